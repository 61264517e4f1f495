"""Connects simulated devices: the meetings of collectives, between one thread for each device.

A meeting takes place when every member of a group has come to the same collective instruction for the same time. Who
comes when does not change any value. When no device can go on, each of those that wait gets an error that says for
whom.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from neuronx_cc.ir.errors import NeuronError, RunError
from neuronx_cc.ir.isa.collectives import Groups
from neuronx_cc.ir.isa.elements import Array
from neuronx_cc.ir.isa.outside import Meeting

Result = TypeVar("Result")


@dataclass(slots=True)
class _Table:
    """A meeting: who has come, with what."""

    members: tuple[int, ...]
    sources: dict[int, Array] = field(default_factory=dict)
    left: int = 0


class Fabric:
    """``devices`` devices that run one program, once, with the collectives' ``groups``."""

    def __init__(self, devices: int, groups: Sequence[Groups]) -> None:
        self._groups = groups
        self._changed = threading.Condition()
        self._tables: dict[tuple[int, tuple[int, ...], int], _Table] = {}
        self._visits: dict[tuple[int, int, tuple[int, ...]], int] = {}
        """(device, groups, members) -> meetings so far."""
        self._waiting: dict[int, tuple[str, _Table]] = {}
        self._running = set(range(devices))
        self._failed: NeuronError | None = None

    def run(self, work: Callable[[int], Result]) -> list[Result]:
        """Call ``work(i)`` for each device i on a thread of its own; raises the first device's error, if any."""
        devices = len(self._running)
        results: dict[int, Result] = {}
        errors: dict[int, BaseException] = {}

        def device(number: int) -> None:
            try:
                results[number] = work(number)
            except BaseException as error:
                errors[number] = error
                self._abandon(number, error)
            finally:
                self._finish(number)

        threads = [threading.Thread(target=device, args=(number,), daemon=True) for number in range(1, devices)]
        for thread in threads:
            thread.start()
        device(0)
        for thread in threads:
            thread.join()
        if errors:
            raise min(errors.items(), key=lambda item: (isinstance(item[1], _Abandoned), item[0]))[1]
        return [results[number] for number in range(devices)]

    def port(self, device: int) -> _Port:
        return _Port(self, device)

    def meet(self, device: int, kind: str, groups: int, source: Array) -> Meeting:
        """See ``ir.isa.outside.Port.meet``."""
        members, order, place = _role(self._groups[groups], kind, device)
        if not members:
            return Meeting((), -1)
        with self._changed:
            visit = self._visits.get((device, groups, members), 0)
            self._visits[device, groups, members] = visit + 1
            key = (groups, members, visit)
            table = self._tables.setdefault(key, _Table(members))
            table.sources[device] = source.copy()
            if len(table.sources) == len(members):
                self._changed.notify_all()
            self._waiting[device] = (kind, table)
            self._check_deadlock()
            while len(table.sources) < len(members):
                if self._failed is not None:
                    raise self._failed
                self._changed.wait()
            del self._waiting[device]
            table.left += 1
            if table.left == len(members):
                del self._tables[key]
        return Meeting([table.sources[member] for member in order], place)

    def _finish(self, device: int) -> None:
        with self._changed:
            self._running.discard(device)
            self._check_deadlock()

    def _abandon(self, device: int, error: BaseException) -> None:
        with self._changed:
            if self._failed is None:
                self._failed = _Abandoned("ERUN915", f"device {device} has failed: {error}", "see its error")
                self._changed.notify_all()

    def _check_deadlock(self) -> None:
        """With the lock held: whether every device that still runs waits for one that will not come."""
        stuck = {
            device: (kind, table)
            for device, (kind, table) in self._waiting.items()
            if len(table.sources) < len(table.members)
        }
        if not stuck or self._failed is not None or set(stuck) != self._running:
            return
        said = []
        for device, (kind, table) in sorted(stuck.items()):
            missing = ", ".join(str(member) for member in table.members if member not in table.sources)
            said.append(f"device {device} waits in {kind} for {missing}")
        self._failed = RunError(
            "ERUN915",
            f"the devices wait for each other for ever: {'; '.join(said)}",
            "every member of a group must reach the same collectives in the same order",
        )
        self._changed.notify_all()


class _Abandoned(RunError):
    """Another device has failed first."""


@dataclass(frozen=True, slots=True)
class _Port:
    fabric: Fabric
    device: int

    def meet(self, kind: str, groups: int, source: Array) -> Meeting:
        return self.fabric.meet(self.device, kind, groups, source)


def _role(groups: Groups, kind: str, device: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Whom ``device`` meets, in which order their sources are given, and its place (of a permute: its source's)."""
    if kind == "permute":
        members = tuple(sorted({each for pair in groups for each in pair}))
        if device not in members:
            return (), (), -1
        source = next((source for source, target in groups if target == device), None)
        return members, members, members.index(source) if source is not None else -1
    for group in groups:
        if device in group:
            return tuple(sorted(group)), group, group.index(device)
    return (), (), -1
