"""Connects simulated devices: the meetings of collectives, between one thread for each device.

The devices may run one program or different ones: a meeting takes place when every member of a group has come to its
n-th collective with these members, and they agree on what they exchange (``ir.isa.outside.Exchange``). Who comes when
does not change any value. When no device can go on, each of those that wait gets an error that says for whom.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from neuronx_cc.ir.errors import NeuronError, RunError
from neuronx_cc.ir.isa.collectives import Groups, role_of
from neuronx_cc.ir.isa.elements import Array
from neuronx_cc.ir.isa.outside import Exchange, Meeting
from neuronx_cc.runtime.meetings import differing

Result = TypeVar("Result")


@dataclass(slots=True)
class _Table:
    """A meeting: who has come, with what."""

    members: tuple[int, ...]
    exchange: Exchange
    """What the first one has come for."""
    sources: dict[int, Array] = field(default_factory=dict)
    left: int = 0


class Fabric:
    """Devices that run once; ``groups[i]`` are those that the collectives of device i's program refer to."""

    def __init__(self, groups: Sequence[Sequence[Groups]]) -> None:
        self._groups = groups
        self._changed = threading.Condition()
        self._tables: dict[tuple[tuple[int, ...], int], _Table] = {}
        self._visits: dict[tuple[int, tuple[int, ...]], int] = {}
        """(device, members) -> meetings so far."""
        self._waiting: dict[int, tuple[str, _Table]] = {}
        self._running = set(range(len(groups)))
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

    def meet(self, device: int, exchange: Exchange, groups: int, source: Array) -> Meeting:
        """See ``ir.isa.outside.Port.meet``."""
        role = role_of(exchange, self._groups[device][groups], device)
        members, kind = role.members, role.exchange.kind
        if not members:
            return Meeting((), -1)
        with self._changed:
            visit = self._visits.get((device, members), 0)
            self._visits[device, members] = visit + 1
            key = (members, visit)
            table = self._tables.setdefault(key, _Table(members, role.exchange))
            if table.exchange != role.exchange:
                raise RunError("ERUN922", differing(device, role.exchange, next(iter(table.sources)), table.exchange))
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
        return Meeting([table.sources[member] for member in role.order], role.place)

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

    def meet(self, exchange: Exchange, groups: int, source: Array) -> Meeting:
        return self.fabric.meet(self.device, exchange, groups, source)
