"""How a window kernel cuts its output: which dims lie on the partitions, and the block of every dim.

A partition computes a block of outputs from the block of inputs that its windows cover, so neighbouring partitions load
the overlap twice. Blocks of one dim lie on neighbouring partitions; where these are few, those of a second dim beside
them. Blocks of other dims start whole. All are halved, each time along the dim that costs least, until the tiles fit
SBUF.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, NOTHING, Stage, Timing, Work

BUFFERS = 2
"""Tiles under way between two stages."""
MOST_GROUPS = 16
"""Each is moved by a transfer of its own."""
MOST_STARTS = 8
"""Cuts, the cheapest where all fits, of which blocks are looked for that do."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A dim of the operand (``size``) and of the result (``out``) with its window."""

    size: int
    out: int
    window: int = 1
    stride: int = 1
    dilation: int = 1
    low: int = 0
    whole: bool = False
    """Whether tiles hold all that there is of it, without padding, so that rows are one run with their neighbours."""

    @property
    def plain(self) -> bool:
        return (self.window, self.stride, self.low) == (1, 1, 0) and self.out == self.size

    def extent(self, block: int) -> int:
        """Inputs that a tile holds for ``block`` neighbouring outputs: those that they cover."""
        return self.size if self.whole else (block - 1) * self.stride + (self.window - 1) * self.dilation + 1

    def blocks(self, block: int) -> int:
        return -(-self.out // block)

    @property
    def first(self) -> int:
        """Padding ahead of the first input in a tile."""
        return 0 if self.whole else self.low

    @property
    def met(self) -> list[tuple[int, int, int]]:
        """(number, first, end): elements of a window, and the outputs for which they are no padding, if any."""
        found = []
        for number in range(self.window):
            place = number * self.dilation - self.low
            first, end = max(0, -(place // self.stride)), min(self.out, (self.size - 1 - place) // self.stride + 1)
            if first < end:
                found.append((number, first, end))
        return found

    @property
    def meets_all(self) -> bool:
        """Whether every output has an element that is no padding, and what one element of the window meets touches
        what those before it do.
        """
        low = high = -1
        for _, first, end in self.met:
            if low >= 0 and (end < low or first > high):
                return False
            low, high = (first, end) if low < 0 else (min(low, first), max(high, end))
        return (low, high) == (0, self.out)


@dataclass(frozen=True, slots=True)
class Plan:
    """``blocks``: outputs of each dim that a partition computes at a time."""

    partition: int
    blocks: tuple[int, ...]
    group: int = -1
    """A dim of which ``groups`` blocks lie side by side, each with all partitions of the first; -1 for none."""
    groups: int = 1


def merged(dims: Sequence[Dim]) -> list[Dim]:
    """Neighbouring plain dims as one; at least one dim."""
    found: list[Dim] = []
    for dim in dims:
        if dim.plain and found and found[-1].plain:
            found[-1] = Dim(found[-1].size * dim.size, found[-1].out * dim.out)
        elif not (dim.plain and dim.size == 1):
            found.append(dim)
    return found or [Dim(1, 1)]


def lying(timing: Timing, dims: Sequence[Dim], plan: Plan) -> list[Dim]:
    """The dims as tiles hold them: those that one block covers come whole where they are folded tap by tap."""
    found = list(dims)
    for axis, (dim, block) in enumerate(zip(dims, plan.blocks, strict=True)):
        alone = dim.window > 1 and block == dim.out and axis not in (plan.partition, plan.group)
        if alone and not by_doubling(timing, dim.window, dim.extent(block), block) and dim.meets_all:
            found[axis] = replace(dim, whole=True)
    return found


def best_plan(timing: Timing, dims: Sequence[Dim], itemsize: int, room: int) -> Plan:
    """The cheapest cut whose tiles take at most ``room`` bytes a partition."""

    @cache
    def nanoseconds(plan: Plan) -> float:
        return cost(timing, lying(timing, dims, plan), plan, itemsize)

    def nbytes(plan: Plan) -> int:
        return tile_bytes(lying(timing, dims, plan), plan, itemsize)

    starts = sorted(_starts(dims, timing.sizes.partitions), key=nanoseconds)
    plans = [_shrunk(nanoseconds, nbytes, start, room) for start in starts[:MOST_STARTS]]
    return min(plans, key=nanoseconds, default=Plan(0, tuple(1 for _ in dims)))


def _starts(dims: Sequence[Dim], partitions: int) -> list[Plan]:
    """Every dim on the partitions, alone and with blocks of another beside it."""
    whole = tuple(dim.out for dim in dims)
    found = []
    for partition, dim in enumerate(dims):
        found.append(Plan(partition, _with(whole, partition, -(-dim.out // partitions))))
        for group, other in enumerate(dims):
            if group == partition or other.out == 1 or dim.out == 1:
                continue
            for groups in range(2, min(MOST_GROUPS, other.out) + 1):
                each = -(-other.out // groups)
                if -(-other.out // each) == groups:
                    blocks = _with(_with(whole, group, each), partition, -(-dim.out // (partitions // groups)))
                    found.append(Plan(partition, blocks, group, groups))
    return found


def _with(sizes: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*sizes[:axis], size, *sizes[axis + 1 :])


def _shrunk(nanoseconds: Callable[[Plan], float], nbytes: Callable[[Plan], int], plan: Plan, room: int) -> Plan:
    while True:
        options = []
        for axis, block in enumerate(plan.blocks):
            if block > 1:
                options.append(replace(plan, blocks=_with(plan.blocks, axis, -(-block // 2))))
        if not options:
            return plan
        best = min(options, key=nanoseconds)
        fits = nbytes(plan) <= room
        if fits and nanoseconds(best) >= nanoseconds(plan):
            return plan
        plan = best


def tile_bytes(dims: Sequence[Dim], plan: Plan, itemsize: int) -> int:
    """Bytes a partition: two input tiles, two results, and the steps between."""
    extents = [dim.extent(block) for dim, block in zip(dims, plan.blocks, strict=True)]
    return (2 * prod(extents) + 2 * prod(plan.blocks) + between(dims, plan)) * itemsize


def between(dims: Sequence[Dim], plan: Plan) -> int:
    """Elements of the tiles after each windowed dim but the last."""
    sizes = [dim.extent(block) for dim, block in zip(dims, plan.blocks, strict=True)]
    total = 0
    for axis, dim in enumerate(dims):
        if dim.window > 1:
            sizes[axis] = plan.blocks[axis]
            total += prod(sizes)
    return total


def cost(timing: Timing, dims: Sequence[Dim], plan: Plan, itemsize: int) -> float:
    """Nanoseconds of a pipeline of loads, Vector and stores; a tile has as many transfers as groups."""
    tiles = prod(
        dim.blocks(block)
        for axis, (dim, block) in enumerate(zip(dims, plan.blocks, strict=True))
        if axis not in (plan.partition, plan.group)
    )
    most, filled = timing.sizes.partitions // plan.groups, dims[plan.partition].blocks(plan.blocks[plan.partition])
    if plan.group >= 0:
        tiles *= -(-dims[plan.group].blocks(plan.blocks[plan.group]) // plan.groups)
    tiles *= -(-filled // most)
    filled = min(most, filled) * plan.groups
    extents = [dim.extent(block) for dim, block in zip(dims, plan.blocks, strict=True)]
    loads = moved(timing, extents, [dim.size for dim in dims], filled, itemsize)
    stores = moved(timing, plan.blocks, [dim.out for dim in dims], filled, itemsize, "write")
    vector = NOTHING
    for axis, dim in enumerate(dims):
        if dim.window > 1:
            before, extents[axis] = prod(extents), plan.blocks[axis]
            vector += folded(timing, dim.window, before, prod(extents))
    starts = (plan.groups - 1) * timing.semaphore
    stages = [_later(loads, starts), timing.done(vector, Stream.VECTOR), _later(stores, starts)]
    if blank := blanks(dims, plan):
        stages.insert(0, timing.done(timing.engine("memset", Stream.GPSIMD, blank, ins=()), Stream.GPSIMD))
    return timing.pipeline(stages, tiles, BUFFERS)


def blanks(dims: Sequence[Dim], plan: Plan) -> int:
    """Elements of a tile that lie in the padding of some partition; along a dim of several tiles, their mean."""
    extents = [dim.extent(block) for dim, block in zip(dims, plan.blocks, strict=True)]
    total = 0
    for axis, (dim, block) in enumerate(zip(dims, plan.blocks, strict=True)):
        reach = dim.extent(dim.blocks(block) * block)
        edges = 0 if dim.whole else min(extents[axis], dim.low + max(0, reach - dim.low - dim.size))
        tiles = 1 if axis in (plan.partition, plan.group) else dim.blocks(block)
        total += edges * prod(extents) // (extents[axis] * tiles)
    return total


def _later(stage: Stage, more: float) -> Stage:
    """``stage`` whose data is there so much later."""
    return stage._replace(latency=stage.latency + more)


def by_doubling(timing: Timing, window: int, before: int, after: int) -> bool:
    """Whether folding ``before`` elements to ``after`` takes Vector less time by doubling than tap by tap."""
    return _doubling(timing, window, before, after).bound < _taps(timing, window, after).bound


def folded(timing: Timing, window: int, before: int, after: int) -> Work:
    """Vector's work of folding ``before`` elements to ``after``, in the quicker of two ways."""
    return min(_taps(timing, window, after), _doubling(timing, window, before, after), key=lambda work: work.bound)


def _taps(timing: Timing, window: int, after: int) -> Work:
    return timing.engine("tensor_tensor", Stream.VECTOR, after, ins=(F32, F32)).times(window - 1)


def _doubling(timing: Timing, window: int, before: int, after: int) -> Work:
    rounds = timing.engine("tensor_tensor", Stream.VECTOR, before, ins=(F32, F32)).times(window.bit_length() - 1)
    return rounds + timing.engine("tensor_tensor", Stream.VECTOR, after, ins=(F32, F32)).times(window.bit_count())


def moved(
    timing: Timing, block: Sequence[int], whole: Sequence[int], partitions: int, itemsize: int, way: str = "read"
) -> Stage:
    """Moving ``block`` elements of each dim for every partition, from or to an array of dims ``whole``."""
    run = itemsize
    for size, full in zip(reversed(block), reversed(whole), strict=True):
        run *= min(size, full)
        if size != full:  # of more, the rest is padding
            break
    return timing.moved(partitions * prod(block) * itemsize, run, way)
