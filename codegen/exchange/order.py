"""The order of kernels in a computation that exchanges data with other devices.

Input: kernels in an order in which each comes after those that it reads. Output: the same kernels, so that the core
computes while data is on its way. Engines carry out their instructions in order, so a kernel that waits for a
collective keeps those after it. So a collective stands where its operands are there, and a kernel that would still
wait for one lets those pass that would not; one that receives more than it sends (all-gather) stands not long before
its reader. When a collective is done is estimated (``kernel_time``, ``ir.isa.cost.exchange_ns``).

Collectives come in an order that is a fact of module and machine alone: devices that run the same module issue the same
ones in the same order. Where kernels have effects, nothing moves. What is received and not yet read may fill a share of
HBM; beyond that, its readers come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate

from neuronx_cc.codegen.exchange.kernel_time import Estimate
from neuronx_cc.codegen.formation.graph import Kernel, operands_of
from neuronx_cc.ir import hlo
from neuronx_cc.passes.analysis.effects import has_effects

RECEIVED_SHARE = 4
"""One part in so many of HBM is for what collectives have received and nobody has read."""
AHEAD = 2
"""Times what it takes by which a collective that receives more than it sends begins ahead of its reader."""
LEAST_GAIN = 0.02
"""Part of the time that another order must save: estimates are rough, and the order given suits the engines."""


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel, from when to when, in estimated nanoseconds."""

    kernel: Kernel
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Order:
    """The steps of a computation in the order in which they are emitted."""

    steps: tuple[Step, ...]

    @property
    def kernels(self) -> list[Kernel]:
        return [step.kernel for step in self.steps]

    @property
    def time(self) -> float:
        return max(step.end for step in self.steps)

    def line(self) -> str:
        """For who prints schedules."""
        exchanged = [step for step in self.steps if is_exchange(step.kernel)]
        computed = [step for step in self.steps if not is_exchange(step.kernel)]
        busy = sum(step.end - step.begin for step in computed)
        sent = sum(step.end - step.begin for step in exchanged)
        return (
            f"{len(exchanged)} collectives among {len(computed)} kernels, computing {busy / 1e3:.1f} us, "
            f"exchanging {sent / 1e3:.1f} us, estimate {self.time / 1e3:.1f} us"
        )


def is_exchange(kernel: Kernel) -> bool:
    return isinstance(kernel.ops[0], hlo.CollectiveOp)


def _grows(kernel: Kernel) -> bool:
    """Whether more is received than sent, so that it should not lie in memory for long."""
    op = kernel.ops[0]
    return hlo.shape_of(op.result).nbytes > hlo.shape_of(op.operands[0]).nbytes


def plan(
    kernels: Sequence[Kernel],
    maker: Callable[[hlo.SSAValue], Kernel | None],
    estimate: Estimate,
    effectful: Set[str],
) -> Order | None:
    """The order of ``kernels``, where ``maker`` says which of them makes a value.

    None without collectives, and where some have effects; the order given, where another saves too little.
    """
    if not any(map(is_exchange, kernels)) or any(has_effects(op, effectful) for each in kernels for op in each.ops):
        return None
    run = _Run(kernels, maker, estimate)
    planned, given = run.order(), run.in_turn()
    return planned if planned.time < given.time * (1 - LEAST_GAIN) else given


class _Run:
    """Carries the kernels out, one after the other on the core, with collectives beside them in theirs."""

    def __init__(
        self, kernels: Sequence[Kernel], maker: Callable[[hlo.SSAValue], Kernel | None], estimate: Estimate
    ) -> None:
        self.kernels, self.estimate = kernels, estimate
        self.place = {kernel: at for at, kernel in enumerate(kernels)}
        self.readers: dict[Kernel, list[Kernel]] = {kernel: [] for kernel in kernels}
        self.producers: dict[Kernel, dict[Kernel, None]] = {}
        for kernel in kernels:
            found = (maker(operand) for op in kernel.ops for operand in operands_of(op))
            self.producers[kernel] = dict.fromkeys(each for each in found if each not in (None, kernel))
            for producer in self.producers[kernel]:
                self.readers[producer].append(kernel)
        self.missing = {kernel: len(producers) for kernel, producers in self.producers.items()}
        ends = accumulate(0.0 if is_exchange(kernel) else estimate.of(kernel) for kernel in kernels)
        self.starts = dict(zip(kernels, (0.0, *ends), strict=False))
        """When the core comes to a kernel that waits for nothing, in the order given."""
        self.unread = {kernel: len(self.readers[kernel]) for kernel in kernels}
        self.sources: dict[Kernel, list[Kernel]] = {kernel: [] for kernel in kernels}
        """The collectives that a kernel reads."""
        for kernel in filter(is_exchange, kernels):
            for reader in self.readers[kernel]:
                self.sources[reader].append(kernel)
        self.there: dict[Kernel, float] = {}
        """When what a kernel reads will be there."""
        self.ready: list[tuple[int, Kernel]] = []
        self.waiting: list[tuple[float, int, Kernel]] = []
        self.steps: list[Step] = []
        self.late: list[tuple[float, int, Kernel]] = []
        """Collectives that receive more than they send: when their first reader comes, if nothing waits."""
        self.now = self.link = self.computed = 0.0
        """Time of the core and of the links; what the core has done of its work."""
        self.received = 0
        """Bytes that collectives have received, and will, and that are still to be read."""

    def in_turn(self) -> Order:
        """The kernels as they come; what a collective sends is stored after the stores of kernels before it."""
        ends: dict[Kernel, float] = {}
        steps = []
        core = link = 0.0
        for kernel in self.kernels:
            there = max((ends[producer] for producer in self.producers[kernel]), default=0.0)
            begin = max(there, core, link if is_exchange(kernel) else 0.0)
            if isinstance(kernel.ops[0], hlo.RegionOp):  # a barrier
                begin = max(begin, link)
            ends[kernel] = begin + self.estimate.of(kernel)
            link, core = (ends[kernel], core) if is_exchange(kernel) else (link, ends[kernel])
            steps.append(Step(kernel, begin, ends[kernel]))
        return Order(tuple(steps))

    def order(self) -> Order:
        for kernel in [each for each in self.kernels if not self.missing[each]]:
            self._release(kernel, 0.0)
        while self.ready or self.waiting or self.late:
            self._gather()
            if self.ready or self.waiting:
                self._take(self._next())
        return Order(tuple(self.steps))

    def _next(self) -> Kernel:
        """The first that need not wait; else the one that waits least."""
        while self.waiting and (self.waiting[0][0] <= self.now or self.received > self.estimate.hbm // RECEIVED_SHARE):
            _, place, kernel = heappop(self.waiting)
            heappush(self.ready, (place, kernel))
        return heappop(self.ready)[1] if self.ready else heappop(self.waiting)[2]

    def _release(self, kernel: Kernel, there: float) -> None:
        """All that ``kernel`` reads is made or on its way."""
        self.there[kernel] = there
        if is_exchange(kernel) and _grows(kernel):
            heappush(self.late, (self._wanted(kernel), self.place[kernel], kernel))
        elif is_exchange(kernel):
            self._exchange(kernel)
        else:
            heappush(self.waiting, (there, self.place[kernel], kernel))

    def _wanted(self, kernel: Kernel) -> float:
        return min((self.starts[reader] for reader in self.readers[kernel]), default=0.0)

    def _gather(self) -> None:
        """Begin what is due: in twice the time that it takes, beside what is under way, its reader comes."""
        while self.late:
            wanted, _, kernel = self.late[0]
            takes = max(0.0, self.link - self.now) + self.estimate.of(kernel)
            if (self.ready or self.waiting) and wanted - self.computed > AHEAD * takes:
                return
            heappop(self.late)
            self._exchange(kernel)

    def _exchange(self, kernel: Kernel) -> None:
        begin = max(self.link, self.there[kernel])
        self.link = begin + self.estimate.of(kernel)
        self.received += sum(hlo.shape_of(op.result).nbytes for op in kernel.ops)
        self._done(kernel, begin, self.link)

    def _take(self, kernel: Kernel) -> None:
        begin = max(self.now, self.there[kernel])
        if isinstance(kernel.ops[0], hlo.RegionOp):  # a barrier
            begin = max(begin, self.link)
        self.now = begin + self.estimate.of(kernel)
        self.computed += self.now - begin
        for source in self.sources[kernel]:
            self.unread[source] -= 1
            if not self.unread[source]:
                self.received -= sum(hlo.shape_of(op.result).nbytes for op in source.ops)
        self._done(kernel, begin, self.now)

    def _done(self, kernel: Kernel, begin: float, end: float) -> None:
        self.steps.append(Step(kernel, begin, end))
        for reader in self.readers[kernel]:
            self.there[reader] = max(self.there.get(reader, 0.0), end)
            self.missing[reader] -= 1
            if not self.missing[reader]:
                self._release(reader, self.there[reader])
