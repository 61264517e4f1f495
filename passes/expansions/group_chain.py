"""Contractions of rows by the same groups, and what is computed of their results between them. No pass.

Experts of a network are two or three contractions of the same rows with activations between them, and as many again in
their gradient: rows that were brought together group by group for one of them can stay so for the next. A chain holds
contractions of one array of sizes, and the elementwise ops and slices of features whose operands are results of the
chain, or the same for all rows.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import insert_before, insert_splat, ops_of, users
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.values import splat_of
from neuronx_cc.passes.expansions.build import Build, Value


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction of rows by group, with its rows first: times the matrix of their group, or summed in each group."""

    op: hlo.RaggedDotOp
    axis: int
    """Of lhs: its rows."""
    other: int | None
    """Of rhs, where rows are summed."""

    @classmethod
    def of(cls, op: hlo.RaggedDotOp) -> "Product":
        (axis,), dims = op.ragged_dims.data, op.dims.data
        if axis in dims.lhs_contracting:
            return cls(op, axis, dims.rhs_contracting[dims.lhs_contracting.index(axis)])
        return cls(op, axis, None)

    @property
    def sums_rows(self) -> bool:
        return self.other is not None

    @property
    def rows(self) -> tuple[Value, ...]:
        """Operands that have rows."""
        return self.op.args[: 1 + self.sums_rows]

    @property
    def place(self) -> int:
        """The dim of the result that is rows."""
        dims = self.op.dims.data
        taken = (*dims.lhs_batch, *dims.lhs_contracting)
        return len(dims.lhs_batch) + sum(dim not in taken for dim in range(self.axis))

    @property
    def is_linked(self) -> bool:
        """Whether its result has rows first, and so may be read by the next op of a chain."""
        return not self.sums_rows and self.place == 0

    def reads_rows_of(self, made: Container[Value], others: Container[Value]) -> bool:
        """Whether it reads of a chain only what is ``made`` there with rows first, and by rows."""
        for value, axis in zip(self.rows, (self.axis, self.other), strict=False):
            if value in others or (value in made and axis != 0):
                return False
        return self.sums_rows or (self.op.args[1] not in made and self.op.args[1] not in others)


def sums_rows(op: hlo.HloOp) -> bool:
    """Whether ``op`` is a contraction that sums the rows of each group."""
    return isinstance(op, hlo.RaggedDotOp) and Product.of(op).sums_rows


@dataclass(frozen=True, slots=True)
class Chain:
    """Ops in their order."""

    sizes: Value
    rows: int
    ops: tuple[hlo.HloOp, ...]

    @property
    def products(self) -> list[hlo.RaggedDotOp]:
        return [op for op in self.ops if isinstance(op, hlo.RaggedDotOp)]

    @property
    def inputs(self) -> list[tuple[Value, bool]]:
        """What others make and contractions read by rows; whether these sum it."""
        made = {op.results[0] for op in self.ops}
        read = [(value, each.sums_rows) for each in map(Product.of, self.products) for value in each.rows]
        return [each for each in dict.fromkeys(read) if each[0] not in made]

    @property
    def outputs(self) -> list[hlo.HloOp]:
        """Ops whose results others read."""
        return [op for op in self.ops if read_outside(op, self.ops)]


def read_outside(op: hlo.HloOp, ops: Sequence[hlo.HloOp]) -> bool:
    return any(user not in ops for user in users(op.results[0]))


def chains(
    module: HloModule, computation: hlo.ComputationOp, may_join: Callable[[hlo.RaggedDotOp], bool]
) -> list[Chain]:
    """The chains of a computation, of contractions of which each ``may_join`` one."""
    found: dict[tuple[Value, int], list[hlo.RaggedDotOp]] = {}
    for op in ops_of(computation.block):
        if isinstance(op, hlo.RaggedDotOp) and may_join(op):
            rows = hlo.shape_of(op.args[0]).dims[op.ragged_dims.data[0]]
            found.setdefault((op.args[2], rows), []).append(op)
    return [Chain(sizes, rows, _ops(module, computation, rows, ops)) for (sizes, rows), ops in found.items()]


def _ops(
    module: HloModule, computation: hlo.ComputationOp, rows: int, products: Sequence[hlo.RaggedDotOp]
) -> tuple[hlo.HloOp, ...]:
    """``products`` and what is worth computing of their results while rows are together."""
    made, others, ops = set[Value](), set[Value](), list[hlo.HloOp]()
    for op in ops_of(computation.block):
        if isinstance(op, hlo.RaggedDotOp):
            product = Product.of(op)
            if op not in products or not product.reads_rows_of(made, others):
                continue
            ops.append(op)
            (made if product.is_linked else others).add(op.results[0])
        elif isinstance(op, hlo.ElementwiseOp | hlo.SliceOp) and _joins(module, op, rows, made):
            ops.append(op)
            made.add(op.results[0])
    kept, contracted = dict[hlo.Operation, None](), set[hlo.Operation]()
    for op in reversed(ops):
        if isinstance(op, hlo.RaggedDotOp) or not contracted.isdisjoint(users(op.results[0])):
            contracted.add(op)
        if op in contracted or _puts_back_less(op, kept, made):
            kept[op] = None
    for op in ops:  # what is computed of a value that is put back is computed of it there
        if any(each in made and each.owner not in kept for each in op.operands):
            kept.pop(op, None)
    return tuple(op for op in ops if op in kept)


def _joins(module: HloModule, op: hlo.HloOp, rows: int, made: set[Value]) -> bool:
    if made.isdisjoint(op.operands) or op.shape.dims[:1] != (rows,):
        return False
    if isinstance(op, hlo.SliceOp):
        first = op.slice.data[0]
        return (first.start, first.limit, first.stride) == (0, rows, 1)
    return all(each in made or is_uniform(module, each) for each in op.operands)


def _puts_back_less(op: hlo.HloOp, kept: Container[hlo.Operation], made: set[Value]) -> bool:
    """Whether fewer bytes are put back with ``op``, of which no contraction comes, than without."""
    sources = [each for each in dict.fromkeys(op.operands) if each in made]
    if any(user is not op and user not in kept for each in sources for user in users(each)):
        return False
    return op.shape.nbytes <= sum(hlo.shape_of(each).nbytes for each in sources)


def is_uniform(module: HloModule, value: Value) -> bool:
    """Whether ``value`` is the same for all rows."""
    owner = value.owner
    if not hlo.shape_of(value).dims or splat_of(value, module) is not None:
        return True
    if isinstance(owner, hlo.BroadcastOp):
        return 0 not in owner.dimensions.data
    return isinstance(owner, hlo.ElementwiseOp) and all(is_uniform(module, each) for each in {*owner.operands})


def sources(module: HloModule, value: Value) -> list[Value]:
    """What uniform ``value`` is made of, for ``spread``."""
    owner = value.owner
    if splat_of(value, module) is not None:
        return []
    if not hlo.shape_of(value).dims:
        return [value]
    if isinstance(owner, hlo.BroadcastOp):
        return [owner.operand]
    return [each for x in dict.fromkeys(owner.operands) for each in sources(module, x)]  # type: ignore[union-attr]


def spread(b: Build, value: Value, lead: Sequence[int], outer: Callable[[Value], Value]) -> Value:
    """Uniform ``value`` [rows, ...] as [*lead, ...]; ``outer`` finds what it is made of."""
    shape, owner = hlo.shape_of(value), value.owner
    dims = (*lead, *shape.dims[1:]) if shape.dims else ()
    splat = splat_of(value, b.module)
    if splat is not None:
        return insert_splat(b.module, b.anchor, splat, shape.dtype, dims, b.loc)
    if not dims:
        return outer(value)
    if isinstance(owner, hlo.BroadcastOp):
        return b.broadcast(outer(owner.operand), dims, [dim + len(lead) - 1 for dim in owner.dimensions.data])
    made = {each: spread(b, each, lead, outer) for each in dict.fromkeys(owner.operands)}  # type: ignore[union-attr]
    return again(b, owner, [made[each] for each in owner.operands], dims)  # type: ignore[arg-type, union-attr]


def again(b: Build, op: hlo.HloOp, operands: Sequence[Value], dims: Sequence[int]) -> Value:
    """Elementwise ``op`` on other operands, which have ``dims``."""
    return insert_before(
        b.anchor, type(op), operands, hlo.array_type(op.shape.dtype, tuple(dims)), op.loc, op.properties
    )


def row_bytes(values: Iterable[Value], rows: int) -> int:
    """Bytes of one row of them all."""
    return sum(hlo.shape_of(value).size // rows * itemsize(hlo.shape_of(value).dtype) for value in values)
