"""Values of a chain of contractions by group (``group_chain``) for some rows. No pass.

For the first rows of each group, brought together; for a tile of rows that are left of one; and for a row of no group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.group_chain import Chain, Product, again, sources, spread, sums_rows
from neuronx_cc.passes.expansions.group_plan import Plan
from neuronx_cc.passes.expansions.group_rows import (
    Groups,
    Tile,
    belongs,
    brought,
    first_rows,
    groups_of,
    put_back,
    table_of,
    taken,
    where,
)


@dataclass(frozen=True, slots=True)
class Reads:
    """What a chain reads to compute some of its ops."""

    rows: tuple[tuple[Value, int], ...]
    """With the dim that is rows."""
    others: tuple[Value, ...]
    """Matrices of groups, and what all rows share."""
    ops: tuple[hlo.HloOp, ...]
    """That are computed of these, in their order."""

    @classmethod
    def of(cls, module: HloModule, chain: Chain, outputs: Sequence[hlo.HloOp]) -> "Reads":
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
                else:  # the same for all rows
                    others |= dict.fromkeys(sources(module, value))
        return cls(tuple(rows), tuple(others), tuple(op for op in chain.ops if op in seen))


@dataclass(slots=True)
class Rows:
    """Values of a chain for rows at ``lead`` dims."""

    b: Build
    chain: Chain
    lead: tuple[int, ...]
    known: dict[Value, Value] = field(default_factory=dict, init=False)

    def prepare(self, ops: Sequence[hlo.HloOp]) -> None:
        """Make what comes of ``ops`` one by one, however long a chain is; but sums."""
        for op in ops:
            if not sums_rows(op):
                self.value(op.results[0])

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
        return [where(self.b, mine, self.rows_of(*each)) for each in zip(product.rows, axes, strict=True)]

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
class OfNone(Rows):
    """One row of no group: contractions give zeros."""

    def product(self, op: hlo.RaggedDotOp) -> Value:
        place, dims = Product.of(op).place, list(op.shape.dims)
        del dims[place]
        return self.b.number(0, op.shape.dtype, (*self.lead, *dims))


@dataclass(slots=True)
class Together(Rows):
    """The first rows of each group, [groups, first]."""

    groups: Groups
    begins: Value
    mine: Value
    """Which of these rows are of their group."""
    tables: dict[tuple[Value, int], Value] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, b: Build, chain: Chain, plan: Plan) -> "Together":
        groups = groups_of(b, chain.sizes, chain.rows)
        begins = first_rows(b, groups, plan.first)
        mine = belongs(b, groups, begins, plan.first)
        return cls(b, chain, (groups.count, plan.first), groups, begins, mine)

    def read(self, value: Value, axis: int) -> Value:
        if (value, axis) not in self.tables:
            table, others = table_of(self.b, value, axis)
            found = brought(self.b, self.groups, self.begins, table, self.lead[1])
            self.tables[value, axis] = self.b.reshape(found, (*self.lead, *others))
        return self.tables[value, axis]

    def product(self, op: hlo.RaggedDotOp) -> Value:
        product, dims = Product.of(op), op.dims.data
        (group,) = op.group_dims.data
        one, batch = (_rows_first(product.axis, part) for part in (dims.lhs_contracting, dims.lhs_batch))
        all_groups = hlo.DotDims(_after(one), dims.rhs_contracting, (0, *_after(batch)), (group, *dims.rhs_batch))
        return self.multiplied(op, self.rows_of(op.args[0], product.axis), op.args[1], all_groups)

    def all_rows(self, op: hlo.HloOp, none: OfNone) -> Value:
        """The result of ``op``: [rows, W], where rows that a group has after its first ones are anything, those of no
        group as in ``none``; or sums, of the first rows alone.
        """
        if not sums_rows(op):
            made = self.value(op.results[0])
            width = hlo.shape_of(made).size // prod(self.lead)
            row = self.b.reshape(none.value(op.results[0]), (1, width))
            return put_back(self.b, self.groups, self.begins, self.b.reshape(made, (*self.lead, width)), row)
        assert isinstance(op, hlo.RaggedDotOp), "sums of products"
        rows = self.summands(op, self.mine)
        one = _of_sums(op)
        batch = [(0, *_after(part)) for part in (one.lhs_batch, one.rhs_batch)]
        dims = hlo.DotDims(_after(one.lhs_contracting), _after(one.rhs_contracting), *batch)
        return contraction(self.b, op, rows, dims)


@dataclass(slots=True)
class OfTile(Rows):
    """Rows that are left of a group, in a loop over tiles of them."""

    here: Tile
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
        matrix = taken(self.b, self.outer(op.args[1]), group, self.here.group)
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
        before = taken(b, out, 0, self.here.group) if total is None else total
        after = b.add(made, b.select(b.broadcast(anew, sizes), b.number_like(0, made), before))
        update = b.reshape(b.convert(after, op.shape.dtype), (1, *sizes))
        return b.dynamic_update_slice(out, update, (self.here.group, *[b.number(0, "s32")] * len(sizes))), after


def _of_sums(op: hlo.RaggedDotOp) -> hlo.DotDims:
    """The dims of the contraction of the rows of one group, which come first."""
    product, dims = Product.of(op), op.dims.data
    axes = (product.axis, product.other or 0)
    parts = (dims.lhs_contracting, dims.rhs_contracting, dims.lhs_batch, dims.rhs_batch)
    return hlo.DotDims(*(_rows_first(axes[number % 2], part) for number, part in enumerate(parts)))


def contraction(b: Build, op: hlo.RaggedDotOp, operands: Sequence[Value], dims: hlo.DotDims, dtype: str = "") -> Value:
    """A plain one, with the precision of ``op``, if it has one, and its type unless given."""
    kept = {name: attr for name, attr in op.properties.items() if name == "operand_precision"}
    left, right = (hlo.shape_of(operand).dims for operand in operands)
    sizes = [left[dim] for dim in dims.lhs_batch]
    sizes += [size for dim, size in enumerate(left) if dim not in (*dims.lhs_batch, *dims.lhs_contracting)]
    sizes += [size for dim, size in enumerate(right) if dim not in (*dims.rhs_batch, *dims.rhs_contracting)]
    type_ = hlo.array_type(dtype or op.shape.dtype, tuple(sizes))
    return b.typed(hlo.DotOp, operands, type_, dims=hlo.DotDimsAttr(dims), **kept)


def _rows_first(axis: int, part: Sequence[int]) -> tuple[int, ...]:
    """``part`` of the dims of an operand whose dim ``axis`` comes first now."""
    return tuple(0 if dim == axis else dim + (dim < axis) for dim in part)


def _after(part: Sequence[int]) -> tuple[int, ...]:
    """Dims after that of groups."""
    return tuple(dim + 1 for dim in part)


def _without(gone: int, part: Sequence[int]) -> tuple[int, ...]:
    return tuple(dim - (dim > gone) for dim in part)
