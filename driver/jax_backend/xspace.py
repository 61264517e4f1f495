"""Writes XSpace messages: planes with lines of events, whose names and properties are numbered in tables of the plane.

Field numbers are those of tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuronx_cc.driver.jax_backend.wire import double, message, number, text

Value = int | float | str | bytes
Facts = Mapping[str, Value]


@dataclass(slots=True)
class Kind:
    """What events of one name have in common."""

    number: int
    name: str
    display: str = ""
    facts: Facts = field(default_factory=dict)


@dataclass(slots=True)
class Plane:
    """A device, or the host."""

    number: int
    name: str
    begin: int = 0
    """Of all lines, in nanoseconds since the epoch."""
    facts: Facts = field(default_factory=dict)
    kinds: dict[object, Kind] = field(default_factory=dict)
    """What events are told apart by -> their kind."""
    keys: dict[str, int] = field(default_factory=dict)
    """Name of a property -> its number."""
    lines: dict[int, tuple[str, bytearray]] = field(default_factory=dict)
    """Number -> name and events."""

    def kind(self, key: object, name: str, display: str = "", facts: Facts | None = None, number: int = 0) -> int:
        """The number of the events known as ``key``, which the first call describes."""
        known = self.kinds.get(key)
        if known is None:
            known = self.kinds[key] = Kind(number or len(self.kinds) + 1, name, display, facts or {})
        return known.number

    def add(self, line: int, name: str, kind: int, at: float, length: float, facts: Facts | None = None) -> None:
        """An event of a line; ``at`` and ``length`` in microseconds."""
        encoded = number(1, kind) + number(2, round(at * 1e6)) + number(3, round(length * 1e6))
        events = self.lines.setdefault(line, (name, bytearray()))[1]
        events.extend(message(4, encoded + self._stats(4, facts or {})))

    def _stats(self, place: int, facts: Facts) -> bytes:
        stats = b""
        for key, value in facts.items():
            known = number(1, self.keys.setdefault(key, len(self.keys) + 1))
            if isinstance(value, int):
                stats += message(place, known + number(4, value))
            elif isinstance(value, float):
                stats += message(place, known + double(2, value))
            elif isinstance(value, bytes):
                stats += message(place, known + message(6, value))
            else:
                stats += message(place, known + text(5, value))
        return stats

    def encoded(self) -> bytes:
        """An XPlane."""
        parts = [number(1, self.number), text(2, self.name)]
        for line, (name, events) in sorted(self.lines.items()):
            parts.append(message(3, number(1, line) + text(2, name) + number(3, self.begin) + bytes(events)))
        for kind in self.kinds.values():
            described = number(1, kind.number) + text(2, kind.name)
            described += (text(4, kind.display) if kind.display else b"") + self._stats(5, kind.facts)
            parts.append(message(4, number(1, kind.number) + message(2, described)))
        stats = self._stats(6, self.facts)
        for name, known in self.keys.items():
            parts.append(message(5, number(1, known) + message(2, number(1, known) + text(2, name))))
        return b"".join(parts) + stats


def space(planes: list[Plane], warnings: tuple[str, ...] = ()) -> bytes:
    """An XSpace; empty without planes."""
    if not planes:
        return b""
    return b"".join(message(1, plane.encoded()) for plane in planes) + b"".join(text(3, line) for line in warnings)
