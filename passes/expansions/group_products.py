"""Chains of contractions of rows by group: the first rows of each group as one batch, what is left in a loop. No pass.

Values of rows stay brought together from one contraction to the next, and are put back where other ops read them. What
is left of larger groups is computed from what the chain reads, a tile of rows at a time, as often as the sizes at run
time need it, which mostly is not at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase, users
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.group_chain import Chain, Product, again, is_uniform, read_outside, sources, spread
from neuronx_cc.passes.expansions.group_plan import Plan
from neuronx_cc.passes.expansions.group_rows import (
    Groups,
    belongs,
    brought,
    first_rows,
    group_of_rows,
    groups_of,
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


# ---- a chain ------------------------------------------------------------------------------------------------------


def expand(module: HloModule, chain: Chain, plan: Plan, timing: Timing) -> None:
    """Compute ``chain``: what others read by then is put back where the first of them reads any of it."""
    block = chain.ops[0].parent
    assert block is not None, "of a computation"
    made: _Together | None = None
    passed, members = list[hlo.HloOp](), set(chain.ops)
    for op in list(block.ops):
        if op in members:
            passed.append(op)  # type: ignore[arg-type]  # ops of a chain are instructions
            continue
        if not any(each.results[0] in op.operands for each in passed):
            continue
        b = Build(module, op, chain.ops[0].loc, timing)
        made = made or _Together.of(b, chain, plan)
        outputs = [each for each in passed if read_outside(each, chain.ops)]
        for output, value in zip(outputs, _results(b, made, outputs, plan), strict=True):
            for user in users(output.results[0]):
                if user not in members:
                    user.operands = [value if each is output.results[0] else each for each in user.operands]
    for op in reversed(chain.ops):
        erase(op)


def _results(b: Build, made: "_Together", outputs: Sequence[hlo.HloOp], plan: Plan) -> list[Value]:
    """What ``outputs`` are outside of the chain."""
    chain, groups, tile = made.chain, made.groups, plan.tile
    made.b = b
    whole = any(sums_rows(op) for op in outputs)
    left = left_over(b, groups, plan.first, tile, whole)
    state = [made.all_rows(op) for op in outputs]
    totals = [_total(op) for op in outputs]
    state += [b.number(0, dtype, dims) for dtype, dims in filter(None, totals)]
    reads = _Reads.of(b.module, chain, outputs)
    tables = [_table(b, value, axis)[0] for value, axis in reads.rows]
    count = len(state)

    def step(b: Build, at: Value, state: list[Value]) -> list[Value]:
        (*state, tiles, starts), read = state[: count + 2], state[count + 2 :]
        here = _Tile.of(b, groups, tiles, at, tile)
        begun = b.reshape(b.dynamic_slice(starts, (here.group,), (1,)), ())
        anew = b.compare(here.first, begun, "EQ")
        rows = _OfTile(b, chain, (tile,), here, dict(zip((*reads.rows, *reads.others), read, strict=True)))
        results, sums = list(state[: len(outputs)]), iter(state[len(outputs) :])
        later = []
        for number, (op, total) in enumerate(zip(outputs, totals, strict=True)):
            if sums_rows(op):
                before = next(sums) if total else None
                results[number], after = rows.added(op, results[number], before, anew)
                later += [after] if total else []
            else:
                results[number] = rows.stored(op, results[number])
        return [*results, *later, tiles, starts, *read]

    carried = [*state, left.tiles, groups.starts, *tables, *reads.others]
    found = b.loop(left.count, carried, step)[: len(outputs)]
    return [_restored(b, op, value) for op, value in zip(outputs, found, strict=True)]


def sums_rows(op: hlo.HloOp) -> bool:
    return isinstance(op, hlo.RaggedDotOp) and Product.of(op).sums_rows


def _total(op: hlo.HloOp) -> tuple[str, tuple[int, ...]] | None:
    """Type and dims of the sums of tiles, where these are wider than the result and are rounded once."""
    if not sums_rows(op) or op.shape.dtype not in FLOATS or op.shape.dtype == "f32":
        return None
    return "f32", op.shape.dims[1:]


def _restored(b: Build, op: hlo.HloOp, value: Value) -> Value:
    """The result of ``op`` from [rows, W], with its dims in their order; sums have them."""
    if sums_rows(op):
        return value
    place = Product.of(op).place if isinstance(op, hlo.RaggedDotOp) else 0
    dims = list(op.shape.dims)
    value = b.reshape(value, (dims.pop(place), *dims))
    return b.transpose(value, [*range(1, place + 1), 0, *range(place + 1, op.shape.rank)])


@dataclass(frozen=True, slots=True)
class _Reads:
    """What a chain reads to compute some of its ops."""

    rows: tuple[tuple[Value, int], ...]
    """With the dim that is rows."""
    others: tuple[Value, ...]
    """Matrices of groups, and what all rows share."""

    @classmethod
    def of(cls, module: HloModule, chain: Chain, outputs: Sequence[hlo.HloOp]) -> "_Reads":
        made: dict[Value, hlo.HloOp] = {op.results[0]: op for op in chain.ops}
        rows, others = dict[tuple[Value, int], None](), dict[Value, None]()
        wanted, seen = list(outputs), set[hlo.HloOp]()
        while wanted:
            op = wanted.pop()
            if op in seen:
                continue
            seen.add(op)
            if isinstance(op, hlo.RaggedDotOp):
                product = Product.of(op)
                axes = (product.axis, product.other)
                for value, axis in zip(product.rows, axes, strict=False):
                    if value in made and axis == 0:
                        wanted.append(made[value])
                    else:
                        rows[value, axis or 0] = None
                if not product.sums_rows:
                    others[op.args[1]] = None
                continue
            for value in op.operands:
                if value in made:
                    wanted.append(made[value])
                elif is_uniform(module, value):
                    others |= dict.fromkeys(sources(module, value))
        return cls(tuple(rows), tuple(others))


@dataclass(slots=True)
class _Rows:
    """Values of a chain for rows at ``lead`` dims."""

    b: Build
    chain: Chain
    lead: tuple[int, ...]
    known: dict[Value, Value] = field(default_factory=dict, init=False)

    def value(self, value: Value) -> Value:
        """[*lead, ...] of ``value`` [rows, ...], which the chain makes or all rows share."""
        owner = value.owner
        if owner not in self.chain.ops:
            return spread(self.b, value, self.lead, self.outer)
        if value not in self.known:
            self.known[value] = self._made(owner)  # type: ignore[arg-type]  # an op of the chain
        return self.known[value]

    def _made(self, op: hlo.HloOp) -> Value:
        if isinstance(op, hlo.RaggedDotOp):
            return self.product(op)
        operands = [self.value(each) for each in op.operands]
        if isinstance(op, hlo.SliceOp):
            whole = [hlo.SliceDim(0, size) for size in self.lead]
            attr = hlo.SliceAttr((*whole, *op.slice.data[1:]))
            dims = (*self.lead, *op.shape.dims[1:])
            return self.b.op(hlo.SliceOp, operands, op.shape.dtype, dims, slice=attr)
        return again(self.b, op, operands, (*self.lead, *op.shape.dims[1:]))

    def rows_of(self, value: Value, axis: int | None) -> Value:
        """An operand of a contraction, [*lead, all other dims]."""
        if axis == 0 and value.owner in self.chain.ops:
            return self.value(value)
        return self.read(value, axis or 0)

    def summands(self, op: hlo.RaggedDotOp, mine: Value) -> list[Value]:
        """Operands of sums, zero but where rows are ``mine`` [*lead]."""
        product = Product.of(op)
        axes = product.axis, product.other
        return [_where(self.b, mine, self.rows_of(*each)) for each in zip(product.rows, axes, strict=True)]

    def multiplied(self, op: hlo.RaggedDotOp, rows: Value, rhs: Value, dims: hlo.DotDims) -> Value:
        """The product of rows, with these first, and all other dims after them."""
        made = contraction(self.b, op, (rows, rhs), dims)
        ahead, batch = len(self.lead) - 1, len(op.dims.data.lhs_batch)
        place, rank = ahead + batch, hlo.shape_of(made).rank
        return self.b.transpose(made, [*range(ahead), place, *range(ahead, place), *range(place + 1, rank)])

    def outer(self, value: Value) -> Value:
        """What all rows share."""
        return value

    def read(self, value: Value, axis: int) -> Value:
        raise NotImplementedError

    def product(self, op: hlo.RaggedDotOp) -> Value:
        raise NotImplementedError


@dataclass(slots=True)
class _OfNone(_Rows):
    """One row of no group: contractions give zeros."""

    def product(self, op: hlo.RaggedDotOp) -> Value:
        place, dims = Product.of(op).place, list(op.shape.dims)
        del dims[place]
        return self.b.number(0, op.shape.dtype, (*self.lead, *dims))


@dataclass(slots=True)
class _Together(_Rows):
    """The first rows of each group, [groups, first]."""

    groups: Groups
    begins: Value
    mine: Value
    """Which of these rows are of their group."""
    tables: dict[tuple[Value, int], Value] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, b: Build, chain: Chain, plan: Plan) -> "_Together":
        groups = groups_of(b, chain.sizes, chain.rows)
        begins = first_rows(b, groups, plan.first)
        mine = belongs(b, groups, begins, plan.first)
        return cls(b, chain, (groups.count, plan.first), groups, begins, mine)

    def read(self, value: Value, axis: int) -> Value:
        if (value, axis) not in self.tables:
            table, others = _table(self.b, value, axis)
            found = brought(self.b, self.groups, self.begins, table, self.lead[1])
            self.tables[value, axis] = self.b.reshape(found, (*self.lead, *others))
        return self.tables[value, axis]

    def product(self, op: hlo.RaggedDotOp) -> Value:
        product, dims = Product.of(op), op.dims.data
        (group,) = op.group_dims.data
        one, batch = (_rows_first(product.axis, part) for part in (dims.lhs_contracting, dims.lhs_batch))
        all_groups = hlo.DotDims(_after(one), dims.rhs_contracting, (0, *_after(batch)), (group, *dims.rhs_batch))
        return self.multiplied(op, self.rows_of(op.args[0], product.axis), op.args[1], all_groups)

    def all_rows(self, op: hlo.HloOp) -> Value:
        """The result of ``op``: [rows, W], where rows that a group has after its first ones are anything; or sums, of
        the first rows alone.
        """
        if not sums_rows(op):
            made = self.value(op.results[0])
            width = hlo.shape_of(made).size // prod(self.lead)
            none = self.b.reshape(_OfNone(self.b, self.chain, (1,)).value(op.results[0]), (1, width))
            return put_back(self.b, self.groups, self.begins, self.b.reshape(made, (*self.lead, width)), none)
        assert isinstance(op, hlo.RaggedDotOp), "sums of products"
        rows = self.summands(op, self.mine)
        one = _of_sums(op)
        batch = [(0, *_after(part)) for part in (one.lhs_batch, one.rhs_batch)]
        dims = hlo.DotDims(_after(one.lhs_contracting), _after(one.rhs_contracting), *batch)
        return contraction(self.b, op, rows, dims)


@dataclass(slots=True)
class _OfTile(_Rows):
    """Rows that are left of a group, in a loop over tiles of them."""

    here: "_Tile"
    carried: dict[object, Value]
    """What the chain reads -> where the loop has it."""

    def outer(self, value: Value) -> Value:
        return self.carried[value]

    def read(self, value: Value, axis: int) -> Value:
        dims = list(hlo.shape_of(value).dims)
        del dims[axis]
        return self.b.reshape(self.here.rows(self.b, self.carried[value, axis]), (*self.lead, *dims))

    def product(self, op: hlo.RaggedDotOp) -> Value:
        product, dims = Product.of(op), op.dims.data
        (group,) = op.group_dims.data
        one, batch = (_rows_first(product.axis, part) for part in (dims.lhs_contracting, dims.lhs_batch))
        of_one = hlo.DotDims(one, _without(group, dims.rhs_contracting), batch, _without(group, dims.rhs_batch))
        matrix = _taken(self.b, self.outer(op.args[1]), group, self.here.group)
        return self.multiplied(op, self.rows_of(op.args[0], product.axis), matrix, of_one)

    def stored(self, op: hlo.HloOp, out: Value) -> Value:
        """``out`` [rows, W] with the rows of this tile."""
        made = self.value(op.results[0])
        made = self.b.reshape(made, (*self.lead, hlo.shape_of(made).size // self.here.size))
        mine = self.b.broadcast(self.here.mine, hlo.shape_of(made).dims, (0,))
        kept = self.b.select(mine, made, self.here.rows(self.b, out))
        return self.b.dynamic_update_slice(out, kept, (self.here.begin, self.b.number(0, "s32")))

    def added(self, op: hlo.HloOp, out: Value, total: Value | None, anew: Value) -> tuple[Value, Value]:
        """``out`` [groups, ...] with the sums of this tile, and the sums of its group so far; ``anew`` in its first."""
        assert isinstance(op, hlo.RaggedDotOp), "sums of products"
        b, rows = self.b, self.summands(op, self.here.mine)
        wide = "f32" if op.shape.dtype in FLOATS else op.shape.dtype
        made = contraction(b, op, rows, _of_sums(op), wide)
        sizes = hlo.shape_of(made).dims
        before = _taken(b, out, 0, self.here.group) if total is None else total
        after = b.add(made, b.select(b.broadcast(anew, sizes), b.number_like(0, made), before))
        update = b.reshape(b.convert(after, op.shape.dtype), (1, *sizes))
        return b.dynamic_update_slice(out, update, (self.here.group, *[b.number(0, "s32")] * len(sizes))), after


def _of_sums(op: hlo.RaggedDotOp) -> hlo.DotDims:
    """The dims of the contraction of the rows of one group, which come first."""
    product, dims = Product.of(op), op.dims.data
    axes = (product.axis, product.other or 0)
    parts = (dims.lhs_contracting, dims.rhs_contracting, dims.lhs_batch, dims.rhs_batch)
    return hlo.DotDims(*(_rows_first(axes[number % 2], part) for number, part in enumerate(parts)))


# ---- few rows -----------------------------------------------------------------------------------------------------


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
