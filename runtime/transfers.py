"""The DMA engines as one server of several queues: packets of the queues take turns (hardware sheet 1.8.1).

A queue serves its transfers one after the other. Those at the heads of the queues share the engines equally, as if
packets were infinitely small; reads of HBM and writes may together keep the engines less busy than a transfer alone
would. So a short transfer is not kept by a long one of another queue.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neuronx_cc.ir.isa.program import Stream
    from neuronx_cc.runtime.clock_program import Node

NEGLIGIBLE = 1e-6
"""Nanoseconds by which two times may differ from rounding."""


@dataclass(slots=True, frozen=True)
class Issue:
    """How an instruction came to start when it did. Times in ns."""

    before: float
    """When its stream was free."""
    ready: float
    """When its waits were met, too."""
    cause: Stream | None
    """The stream it waited for last."""
    count: int
    """How many instructions of that stream had to be done."""


@dataclass(slots=True, eq=False)
class Transfer:
    """A transfer that was posted to a queue, or what the queue does between transfers, which needs no engine."""

    stream: int
    node: Node
    issue: Issue
    posted: float
    work: float
    """Time of the engines that is left, in ns."""
    reads: float
    """Time that reads of HBM are busy, of that of the engines; ``writes``: of writes."""
    writes: float
    begun: float = -1.0


class Transfers:
    """What is under way."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Transfer]] = {}
        self._now = 0.0

    def post(self, transfer: Transfer) -> None:
        """Add a transfer to its queue. ``advance`` has been called for the time."""
        queue = self._queues.setdefault(transfer.stream, deque())
        if not queue:
            transfer.begun = self._now
        queue.append(transfer)

    def next_end(self) -> float | None:
        """When the next transfer will have been served, if no others are posted before."""
        heads = self._heads()
        return self._now + min(head.work for head in heads) * _slowdown(heads) if heads else None

    def advance(self, now: float) -> list[tuple[Transfer, float]]:
        """Serve until ``now``: the transfers that are finished by then, in order, and when they are."""
        finished: list[tuple[Transfer, float]] = []
        while heads := self._heads():
            slowdown = _slowdown(heads)
            step = min(head.work for head in heads)
            ends = self._now + step * slowdown
            if ends > now + NEGLIGIBLE:
                for head in heads:
                    head.work -= (now - self._now) / slowdown
                break
            self._now = max(self._now, ends)
            for head in heads:
                head.work -= step
                if head.work <= NEGLIGIBLE:
                    finished.append((head, self._now))
                    queue = self._queues[head.stream]
                    queue.popleft()
                    if queue:
                        queue[0].begun = self._now
        self._now = max(self._now, now)
        return finished

    def _heads(self) -> list[Transfer]:
        return [queue[0] for queue in self._queues.values() if queue]


def _slowdown(heads: list[Transfer]) -> float:
    """Time that transfers which share the engines take, of that in which the engines do the work of each alone."""
    return max(len(heads), sum(head.reads for head in heads), sum(head.writes for head in heads))
