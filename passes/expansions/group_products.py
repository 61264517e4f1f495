"""Contractions of rows by group: the first rows of each group as one batch, what is left of larger ones in a loop.

No pass: ``expand_ragged_dots`` asks. What is left is multiplied a tile of rows at a time, as often as the sizes at run
time need it, which mostly is not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.group_plan import Plan
from neuronx_cc.passes.expansions.group_rows import (
    Groups,
    belongs,
    brought,
    first_rows,
    group_of_rows,
    inside,
    left_over,
    put_back,
)
from neuronx_cc.passes.indexing.rows import gather_rows


def contraction(b: Build, op: hlo.RaggedDotOp, operands: Sequence[Value], dims: hlo.DotDims, dtype: str = "") -> Value:
    """A plain one, with the precision of ``op``, if it has one, and its type unless given."""
    kept = {name: attr for name, attr in op.properties.items() if name == "operand_precision"}
    left, right = (hlo.shape_of(operand).dims for operand in operands)
    sizes = [left[dim] for dim in dims.lhs_batch]
    sizes += [size for dim, size in enumerate(left) if dim not in (*dims.lhs_batch, *dims.lhs_contracting)]
    sizes += [size for dim, size in enumerate(right) if dim not in (*dims.rhs_batch, *dims.rhs_contracting)]
    type_ = hlo.array_type(dtype or op.shape.dtype, tuple(sizes))
    return b.typed(hlo.DotOp, operands, type_, dims=hlo.DotDimsAttr(dims), **kept)


# ---- rows times the matrix of their group -------------------------------------------------------------------------


def products(b: Build, op: hlo.RaggedDotOp, groups: Groups, plan: Plan) -> Value:
    """The result of ``op``, whose ragged dim is a free one of lhs."""
    lhs, rhs, _ = op.args
    (axis,), (group,) = op.ragged_dims.data, op.group_dims.data
    dims, first, tile = op.dims.data, plan.first, plan.tile
    table, others = _table(b, lhs, axis)
    begins = first_rows(b, groups, first)
    rows = b.reshape(brought(b, groups, begins, table, first), (groups.count, first, *others))
    one, batch = _rows_first(axis, dims.lhs_contracting), _rows_first(axis, dims.lhs_batch)
    all_groups = hlo.DotDims(_after(one), dims.rhs_contracting, (0, *_after(batch)), (group, *dims.rhs_batch))
    of_one = hlo.DotDims(one, _without(group, dims.rhs_contracting), batch, _without(group, dims.rhs_batch))

    def multiplied(b: Build, rows: Value, rhs: Value, dims: hlo.DotDims, ahead: int) -> Value:
        """With the rows after ``ahead`` dims, and all others after them."""
        made = contraction(b, op, (rows, rhs), dims)
        place, rank = ahead + len(batch), hlo.shape_of(made).rank
        return b.transpose(made, [*range(ahead), place, *range(ahead, place), *range(place + 1, rank)])

    made = multiplied(b, rows, rhs, all_groups, 1)
    sizes = hlo.shape_of(made).dims[2:]
    found = put_back(b, groups, begins, b.reshape(made, (groups.count, first, prod(sizes))), first)
    left = left_over(b, groups, first, tile, whole=False)

    def step(b: Build, at: Value, state: list[Value]) -> list[Value]:
        out, table, rhs, tiles = state
        here = _Tile.of(b, groups, tiles, at, tile)
        rows = b.reshape(here.rows(b, table), (tile, *others))
        made = multiplied(b, rows, _taken(b, rhs, group, here.group), of_one, 0)
        made = b.reshape(made, (tile, prod(sizes)))
        kept = b.select(b.broadcast(here.mine, hlo.shape_of(made).dims, (0,)), made, here.rows(b, out))
        return [b.dynamic_update_slice(out, kept, (here.begin, b.number(0, "s32"))), table, rhs, tiles]

    found = b.loop(left.count, [found, table, rhs, left.tiles], step)[0]
    spread = b.reshape(found, (groups.rows, *sizes))
    free = [dim for dim in range(len(others) + 1) if dim not in (*dims.lhs_batch, *dims.lhs_contracting)]
    place = len(batch) + free.index(axis)
    return b.transpose(spread, [*range(1, place + 1), 0, *range(place + 1, len(sizes) + 1)])


def is_plain(op: hlo.RaggedDotOp) -> bool:
    """Whether lhs is [rows, terms] and rhs has groups first."""
    return hlo.shape_of(op.args[0]).rank == 2 and op.group_dims.data == (0,) and not op.dims.data.lhs_batch


def of_few_rows(b: Build, op: hlo.RaggedDotOp, groups: Groups) -> Value:
    """The result of a plain ``op``: each row times the matrix of its group, which is read by its number."""
    lhs, rhs, _ = op.args
    dims, shape = op.dims.data, hlo.shape_of(rhs).dims
    numbers, belongs = group_of_rows(b, groups)
    table = b.reshape(rhs, (groups.count, prod(shape[1:])))
    matrices = b.reshape(gather_rows(b, table, numbers), (groups.rows, *shape[1:]))
    each_row = hlo.DotDims(dims.lhs_contracting, dims.rhs_contracting, (0,), (0,))
    return _where(b, belongs, contraction(b, op, (lhs, matrices), each_row))


# ---- sums over the rows of each group -----------------------------------------------------------------------------


def sums(b: Build, op: hlo.RaggedDotOp, groups: Groups, plan: Plan) -> Value:
    """The result of ``op``, whose ragged dim is a contracted one: [groups, ...]."""
    dims, first, tile = op.dims.data, plan.first, plan.tile
    (axis,) = op.ragged_dims.data
    axes = axis, dims.rhs_contracting[dims.lhs_contracting.index(axis)]
    begins = first_rows(b, groups, first)
    mine = belongs(b, groups, begins, first)
    tables = [_table(b, value, axis) for value, axis in zip(op.args[:2], axes, strict=True)]
    shape = groups.count, first
    rows = [
        _where(b, mine, b.reshape(brought(b, groups, begins, table, first), (*shape, *others)))
        for table, others in tables
    ]
    parts = (dims.lhs_contracting, dims.rhs_contracting, dims.lhs_batch, dims.rhs_batch)
    of_one = hlo.DotDims(*(_rows_first(axes[number % 2], part) for number, part in enumerate(parts)))
    batch = [(0, *_after(part)) for part in (of_one.lhs_batch, of_one.rhs_batch)]
    all_groups = hlo.DotDims(_after(of_one.lhs_contracting), _after(of_one.rhs_contracting), *batch)
    result = contraction(b, op, rows, all_groups)
    sizes = hlo.shape_of(result).dims[1:]
    left = left_over(b, groups, first, tile, whole=True)
    wide = "f32" if op.shape.dtype in FLOATS else op.shape.dtype
    apart = wide != op.shape.dtype  # the sums of tiles are rounded once
    totals = [b.number(0, wide, sizes)] if apart else []

    def step(b: Build, at: Value, state: list[Value]) -> list[Value]:
        out, lhs, rhs, tiles, starts, *totals = state
        here = _Tile.of(b, groups, tiles, at, tile)
        rows = [
            _where(b, here.mine, b.reshape(here.rows(b, table), (tile, *others)))
            for table, (_, others) in zip((lhs, rhs), tables, strict=True)
        ]
        made = contraction(b, op, rows, of_one, wide)
        begun = b.reshape(b.dynamic_slice(starts, (here.group,), (1,)), ())
        anew = b.broadcast(b.compare(here.first, begun, "EQ"), sizes)
        total = totals[0] if apart else _taken(b, out, 0, here.group)
        total = b.add(made, b.select(anew, b.number_like(0, made), total))
        update = b.reshape(b.convert(total, op.shape.dtype), (1, *sizes))
        out = b.dynamic_update_slice(out, update, (here.group, *[b.number(0, "s32")] * len(sizes)))
        return [out, lhs, rhs, tiles, starts, *([total] if apart else [])]

    state = [result, *(table for table, _ in tables), left.tiles, groups.starts, *totals]
    return b.loop(left.count, state, step)[0]


# ---- rows and tiles of them ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tile:
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
    def of(cls, b: Build, groups: Groups, tiles: Value, at: Value, size: int) -> "_Tile":
        """The tile ``at`` of ``group_rows.Left.tiles``."""
        row = b.reshape(b.dynamic_slice(tiles, (at, b.number(0, "s32")), (1, 3)), (3,))
        group, first, end = (b.reshape(b.slice(row, 0, index, index + 1), ()) for index in range(3))
        begin = b.each(hlo.MinimumOp, first, b.number(groups.rows - size, "s32"))
        last = b.each(hlo.MinimumOp, end, b.add(first, b.number(size, "s32")))
        place = b.add(b.iota((size,), 0), b.broadcast(begin, (size,)))
        return cls(size, group, first, begin, inside(b, place, *(b.broadcast(each, (size,)) for each in (first, last))))

    def rows(self, b: Build, table: Value) -> Value:
        """Those of ``table`` [rows, W]."""
        return b.dynamic_slice(table, (self.begin, b.number(0, "s32")), (self.size, hlo.shape_of(table).dims[1]))


def _table(b: Build, value: Value, axis: int) -> tuple[Value, list[int]]:
    """[rows, all other dims], and the sizes of these, in their order."""
    dims = hlo.shape_of(value).dims
    others = [dim for dim in range(len(dims)) if dim != axis]
    table = b.reshape(b.transpose(value, [axis, *others]), (dims[axis], prod(dims[dim] for dim in others)))
    return table, [dims[dim] for dim in others]


def _rows_first(axis: int, part: Sequence[int]) -> tuple[int, ...]:
    """``part`` of the dims of an operand whose dim ``axis`` comes first now."""
    return tuple(0 if dim == axis else dim + (dim < axis) for dim in part)


def _after(part: Sequence[int]) -> tuple[int, ...]:
    """Dims after that of groups."""
    return tuple(dim + 1 for dim in part)


def _without(gone: int, part: Sequence[int]) -> tuple[int, ...]:
    return tuple(dim - (dim > gone) for dim in part)


def _where(b: Build, mask: Value, value: Value) -> Value:
    """``value`` [*dims of ``mask``, ...] where that holds, else zero."""
    dims = hlo.shape_of(value).dims
    spread = b.broadcast(mask, dims, range(hlo.shape_of(mask).rank))
    return b.select(spread, value, b.number_like(0, value))


def _taken(b: Build, array: Value, axis: int, number: Value) -> Value:
    """``array`` at one index of a dim, which is gone."""
    dims = hlo.shape_of(array).dims
    starts = [number if dim == axis else b.number(0, "s32") for dim in range(len(dims))]
    taken = b.dynamic_slice(array, starts, [1 if dim == axis else size for dim, size in enumerate(dims)])
    return b.reshape(taken, [size for dim, size in enumerate(dims) if dim != axis])
