"""Consecutive rows of groups whose sizes are known at run time: brought together, and put back. No pass.

Numbers of rows are s32. Sizes below zero count as zero, and what reaches beyond the last row is cut off.
"""

from dataclasses import dataclass
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.indexing.rows import gather_rows

PIECES = 128
"""Windows that the DMA moves side by side: as many as there are partitions, or each is moved by few of its engines."""


@dataclass(frozen=True, slots=True)
class Groups:
    """``count`` groups of ``rows`` rows in all: the first row of each, and the one after its last, both [count]."""

    count: int
    rows: int
    starts: Value
    ends: Value


@dataclass(frozen=True, slots=True)
class Left:
    """Tiles of rows that are left of groups: how many, and for each its group, first row, and the row after its last
    [most, 3].
    """

    count: Value
    tiles: Value


def groups_of(b: Build, sizes: Value, rows: int) -> Groups:
    """The groups of ``sizes`` [groups]."""
    (count,) = hlo.shape_of(sizes).dims
    sizes = b.each(hlo.MaximumOp, b.convert(sizes, "s32"), b.number(0, "s32", (count,)))
    ends = running_sum(b, b.each(hlo.MinimumOp, sizes, b.number(rows, "s32", (count,))))
    starts = b.sub(ends, sizes)
    most = b.number(rows, "s32", (count,))
    return Groups(count, rows, *(b.each(hlo.MinimumOp, each, most) for each in (starts, ends)))


def running_sum(b: Build, sizes: Value) -> Value:
    """Sums of the first 1, 2, ... elements along the last dim, in s32."""
    dims = hlo.shape_of(sizes).dims
    rank, count = len(dims), dims[-1]
    square = b.broadcast(sizes, (*dims[:-1], count, count), [*range(rank - 1), rank])
    row, column = b.iota((count, count), 0), b.iota((count, count), 1)
    kept = b.broadcast(b.compare(column, row, "LE"), hlo.shape_of(square).dims, [rank - 1, rank])
    return b.sum(b.select(kept, square, b.number_like(0, square)), [rank])


def first_rows(b: Build, groups: Groups, first: int) -> Value:
    """[groups]: where windows of ``first`` rows begin that have the first ones of each group, inside of all rows."""
    return b.each(hlo.MinimumOp, groups.starts, b.number(groups.rows - first, "s32", (groups.count,)))


def brought(b: Build, groups: Groups, begins: Value, table: Value, first: int) -> Value:
    """[groups, first, W]: ``first`` rows of ``table`` [rows, W] from each of ``begins`` on."""
    pieces = next(n for n in range(1, first + 1) if first % n == 0 and (groups.count * n >= PIECES or n == first))
    height, shape = first // pieces, (groups.count, pieces)
    ahead = b.mul(b.iota(shape, 1), b.number(height, "s32", shape))
    numbers = b.reshape(b.add(b.broadcast(begins, shape, (0,)), ahead), (groups.count * pieces,))
    found = gather_rows(b, table, numbers, height)
    return b.reshape(found, (groups.count, first, hlo.shape_of(table).dims[1]))


def belongs(b: Build, groups: Groups, begins: Value, first: int) -> Value:
    """[groups, first]: which of the rows ``brought`` are of their group."""
    shape = groups.count, first
    at = b.add(b.broadcast(begins, shape, (0,)), b.iota(shape, 1))
    return inside(b, at, *(b.broadcast(each, shape, (0,)) for each in (groups.starts, groups.ends)))


def put_back(b: Build, groups: Groups, begins: Value, made: Value, none: Value) -> Value:
    """[rows, W]: each row of ``made`` [groups, first, W] where it came from; rows of no group are ``none`` [1, W], and
    rows that a group has after its first ones anything.
    """
    _, first, width = hlo.shape_of(made).dims
    shape = groups.rows, groups.count
    row = b.iota(shape, 0)
    within = inside(b, row, *(b.broadcast(each, shape, (1,)) for each in (groups.starts, groups.ends)))
    ahead = b.mul(b.iota((groups.count,), 0), b.number(first, "s32", (groups.count,)))
    moved = b.broadcast(b.sub(ahead, begins), shape, (1,))
    beyond = groups.count * first  # the row of none
    numbers = b.select(within, b.sub(b.add(moved, row), b.number(beyond, "s32", shape)), b.number(0, "s32", shape))
    numbers = b.add(b.sum(numbers, [1]), b.number(beyond, "s32", (groups.rows,)))
    table = b.concatenate([b.reshape(made, (beyond, width)), none], 0)
    return b.reshape(gather_rows(b, table, numbers), (groups.rows, width))


def group_of_rows(b: Build, groups: Groups) -> tuple[Value, Value]:
    """[rows]: the number of each row's group, and whether it belongs to any."""
    shape = groups.rows, groups.count
    before = b.compare(b.broadcast(groups.ends, shape, (1,)), b.iota(shape, 0), "LE")
    numbers = b.sum(b.convert(before, "s32"), [1])
    return numbers, b.compare(numbers, b.number(groups.count, "s32", (groups.rows,)), "LT")


def left_over(b: Build, groups: Groups, first: int, tile: int, whole: bool) -> Left:
    """Tiles of ``tile`` rows of the groups that have more than ``first``: of the rows after these, or of all."""
    count, shape = groups.count, (groups.count,)
    size = b.sub(groups.ends, groups.starts)
    skipped = b.number(0 if whole else first, "s32", shape)
    tiles = b.div(b.add(b.sub(size, skipped), b.number(tile - 1, "s32", shape)), b.number(tile, "s32", shape))
    more = b.compare(size, b.number(first, "s32", shape), "GT")
    tiles = b.select(more, tiles, b.number(0, "s32", shape))
    ends = running_sum(b, tiles)
    most = groups.rows // (first + 1) + groups.rows // tile
    table = most, count
    at = b.iota(table, 0)
    before = b.broadcast(b.sub(ends, tiles), table, (1,))
    within = inside(b, at, before, b.broadcast(ends, table, (1,)))
    ahead = b.mul(b.sub(at, before), b.number_like(tile, at))
    first_row = b.add(b.broadcast(b.add(groups.starts, skipped), table, (1,)), ahead)
    facts = (b.iota(table, 1), first_row, b.broadcast(groups.ends, table, (1,)))
    columns = [b.sum(b.select(within, fact, b.number_like(0, fact)), [1]) for fact in facts]
    total = b.reshape(b.slice(ends, 0, count - 1, count), ())
    return Left(total, b.concatenate([b.reshape(column, (most, 1)) for column in columns], 1))


def inside(b: Build, at: Value, starts: Value, ends: Value) -> Value:
    """Whether ``starts <= at < ends``."""
    return b.each(hlo.AndOp, b.compare(at, starts, "GE"), b.compare(at, ends, "LT"))


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows that are left of a group."""

    size: int
    group: Value
    first: Value
    """The first row."""
    begin: Value
    """Where the rows that are read begin, inside of all rows."""
    mine: Value
    """Which of these are of the tile."""

    @classmethod
    def of(cls, b: Build, groups: Groups, tiles: Value, at: Value, size: int) -> "Tile":
        """The tile ``at`` of ``Left.tiles``."""
        row = b.reshape(b.dynamic_slice(tiles, (at, b.number(0, "s32")), (1, 3)), (3,))
        group, first, end = (b.reshape(b.slice(row, 0, index, index + 1), ()) for index in range(3))
        begin = b.each(hlo.MinimumOp, first, b.number(groups.rows - size, "s32"))
        last = b.each(hlo.MinimumOp, end, b.add(first, b.number(size, "s32")))
        place = b.add(b.iota((size,), 0), b.broadcast(begin, (size,)))
        return cls(size, group, first, begin, inside(b, place, *(b.broadcast(each, (size,)) for each in (first, last))))

    def rows(self, b: Build, table: Value) -> Value:
        """Those of ``table`` [rows, W]."""
        return b.dynamic_slice(table, (self.begin, b.number(0, "s32")), (self.size, hlo.shape_of(table).dims[1]))


def table_of(b: Build, value: Value, axis: int) -> tuple[Value, list[int]]:
    """[rows, all other dims], and the sizes of these, in their order."""
    dims = hlo.shape_of(value).dims
    others = [dim for dim in range(len(dims)) if dim != axis]
    table = b.reshape(b.transpose(value, [axis, *others]), (dims[axis], prod(dims[dim] for dim in others)))
    return table, [dims[dim] for dim in others]


def where(b: Build, mask: Value, value: Value) -> Value:
    """``value`` [*dims of ``mask``, ...] where that holds, else zero."""
    dims = hlo.shape_of(value).dims
    spread = b.broadcast(mask, dims, range(hlo.shape_of(mask).rank))
    return b.select(spread, value, b.number_like(0, value))


def taken(b: Build, array: Value, axis: int, number: Value) -> Value:
    """``array`` at one index of a dim, which is gone."""
    dims = hlo.shape_of(array).dims
    starts = [number if dim == axis else b.number(0, "s32") for dim in range(len(dims))]
    taken = b.dynamic_slice(array, starts, [1 if dim == axis else size for dim, size in enumerate(dims)])
    return b.reshape(taken, [size for dim, size in enumerate(dims) if dim != axis])
