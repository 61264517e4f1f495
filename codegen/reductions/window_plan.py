"""How a window kernel cuts its output: which dim lies on the partitions, and the block of every dim.

A lane computes a block of outputs from the block of inputs that its windows cover, so neighbouring lanes load the
overlap twice. Blocks start whole and are halved, each time along the dim that costs least, until the tiles fit SBUF.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

RUN_NS = 140.0
"""Time of a short DMA run on one of 16 engines (hardware sheet 1.8.2)."""
BYTES_PER_NS = 17.0
ENGINES = 16
OVERHEAD = 500.0
"""Nanoseconds of a tile's transfers that nothing hides."""
VECTOR_GHZ = 1.12


@dataclass(frozen=True, slots=True)
class Dim:
    """A dim of the operand (``size``) and of the result (``out``) with its window."""

    size: int
    out: int
    window: int = 1
    stride: int = 1
    dilation: int = 1
    low: int = 0

    @property
    def plain(self) -> bool:
        return (self.window, self.stride, self.low) == (1, 1, 0) and self.out == self.size

    def extent(self, block: int) -> int:
        """Inputs that ``block`` neighbouring outputs cover."""
        return (block - 1) * self.stride + (self.window - 1) * self.dilation + 1

    def blocks(self, block: int) -> int:
        return -(-self.out // block)


@dataclass(frozen=True, slots=True)
class Plan:
    """``blocks``: outputs of each dim that a lane computes at a time."""

    lane: int
    blocks: tuple[int, ...]
    group: int = -1
    """A plain dim of which ``groups`` elements lie side by side on the partitions; -1 for none."""
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


def best_plan(dims: Sequence[Dim], itemsize: int, room: int) -> Plan:
    """The cheapest cut whose tiles take at most ``room`` bytes a partition."""
    best, least = Plan(0, tuple(1 for _ in dims)), inf
    for start in _starts(dims):
        plan = _shrunk(dims, start, itemsize, room)
        time = cost(dims, plan, itemsize)
        if time < least:
            best, least = plan, time
    return best


def _starts(dims: Sequence[Dim]) -> list[Plan]:
    whole = tuple(dim.out for dim in dims)
    found = []
    for lane, dim in enumerate(dims):
        block = -(-dim.out // 128)
        found.append(Plan(lane, (*whole[:lane], block, *whole[lane + 1 :])))
        for group, other in enumerate(dims):
            if group == lane or not other.plain or other.out == 1 or dim.out == 1:
                continue
            groups = next(count for count in range(min(16, other.out), 0, -1) if other.out % count == 0)
            if groups > 1:
                block = -(-dim.out // (128 // groups))
                blocks = [block if axis == lane else 1 if axis == group else size for axis, size in enumerate(whole)]
                found.append(Plan(lane, tuple(blocks), group, groups))
    return found


def _shrunk(dims: Sequence[Dim], plan: Plan, itemsize: int, room: int) -> Plan:
    while True:
        options = []
        for axis, block in enumerate(plan.blocks):
            if block > 1:
                blocks = (*plan.blocks[:axis], -(-block // 2), *plan.blocks[axis + 1 :])
                options.append(Plan(plan.lane, blocks, plan.group, plan.groups))
        if not options:
            return plan
        best = min(options, key=lambda option: cost(dims, option, itemsize))
        fits = tile_bytes(dims, plan, itemsize) <= room
        if fits and cost(dims, best, itemsize) >= cost(dims, plan, itemsize):
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


def cost(dims: Sequence[Dim], plan: Plan, itemsize: int) -> float:
    """Nanoseconds: transfers or Vector, whichever takes longer; the other for one tile, which nothing hides."""
    tiles = prod(
        dim.blocks(block)
        for axis, (dim, block) in enumerate(zip(dims, plan.blocks, strict=True))
        if axis not in (plan.lane, plan.group)
    )
    lanes = dims[plan.lane].blocks(plan.blocks[plan.lane])
    if plan.group >= 0:
        tiles *= dims[plan.group].out // plan.groups
    tiles *= -(-lanes * plan.groups // 128)
    lanes = min(128, lanes * plan.groups)
    extents = [dim.extent(block) for dim, block in zip(dims, plan.blocks, strict=True)]
    loads = transfer_ns(extents, [dim.size for dim in dims], lanes, itemsize)
    stores = transfer_ns(plan.blocks, [dim.out for dim in dims], lanes, itemsize)
    vector = 0.0
    for axis, dim in enumerate(dims):
        if dim.window > 1:
            before, extents[axis] = prod(extents), plan.blocks[axis]
            vector += steps(dim.window, before, prod(extents)) / VECTOR_GHZ
    moves = loads + stores
    return tiles * (max(moves, vector) + OVERHEAD * plan.groups) + min(moves, vector)


def steps(window: int, before: int, after: int) -> float:
    """Vector cycles of folding ``before`` elements to ``after``: tap by tap, or by doubling."""
    return min(2.0 * (window - 1) * after, doubling(window, before, after))


def doubling(window: int, before: int, after: int) -> float:
    return 2.0 * (window.bit_length() - 1) * before + 2.0 * window.bit_count() * after


def transfer_ns(block: Sequence[int], whole: Sequence[int], lanes: int, itemsize: int) -> float:
    """Nanoseconds of moving ``block`` elements of each dim for every lane, from or to an array of dims ``whole``."""
    run = itemsize
    for size, full in zip(reversed(block), reversed(whole), strict=True):
        run *= min(size, full)
        if size < full:
            break
    count = lanes * prod(block) * itemsize / run
    return count * max(RUN_NS, run / BYTES_PER_NS) / ENGINES
