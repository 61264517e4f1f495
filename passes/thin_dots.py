"""Rewrites contractions in which TensorE would be idle as sums of products.

Input: canonical hlo. Output: a dot of few terms a sum, and few rows or columns, becomes a product and a sum over its
last dims where Vector is done with that earlier, by estimate: TensorE takes each batch index by itself, and as long
for a few rows, columns or terms as for all that it has room for. Such are batches of small matrices, and very many rows
times a small matrix; other engines read them as they lie, with rows on all partitions. So does the product of one
vector with the rows of a large matrix, and that of two long vectors. A matrix that is a constant is laid out for
TensorE at compile time, one that is stored in few bits is taken so where products are cast, and codes that no engine
reads are decoded on their way to it, in a quarter of the time that they take anywhere else: these are left to it.
Products and sums are FP32, whatever the operands' floats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, NOTHING, Tile, Timing, Work
from neuronx_cc.ir.types import WIDE_FLOATS, itemsize
from neuronx_cc.passes.analysis.attentions import scores_of
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.eight_bit_floats import LATE
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.precision.decisions import of_operands

MOST_CONTRACTED = 128
"""Contracted elements of which Vector makes sums of products; of more, TensorE's partitions are full."""
LEAST_DEPTH = 4
"""Keys of an attention are vectors of at least one element to so many columns of TensorE."""
LEAST_QUERIES = 16
"""Rows of an attention from which it takes several batch indices together, however few features they have."""
LEAST_FEATURES = 8
"""Terms of a product of an attention, at least; outer products have fewer."""
TOGETHER = 1.35
"""How many times less an attention takes in one kernel than its contractions, whose engines work side by side there."""
LEAST_MATRIX = 1 << 20
"""Elements of a matrix from which it pays that TensorE need not transpose it."""
LONGEST_MATRIX_ROW = 8192
"""Elements of its rows, of which partitions hold several."""
FEW_BITS = frozenset(["f8e4m3", "f8e5m2", "f8e3m4", "s8", "u8"])
"""Types of 8 bits whose numbers TensorE multiplies with parts of FP32 ones, exactly."""
PARTS = 3
"""Such parts."""
ZERO_POINTS = 2.5
"""How many times as long unsigned numbers take: their zero points are multiplied with the sum of the vector, for which
these kernels wait.
"""


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        narrow = _in_attentions(computation, context)
        for op in ops_of(computation.block):
            if isinstance(op, hlo.DotOp) and (made := _instead(module, op, narrow, context)) is not None:
                replace(op, made)


def _in_attentions(computation: hlo.ComputationOp, context: PassContext) -> dict[hlo.Operation, bool]:
    """The contractions on both sides of a softmax, and whether Vector takes less time for both of them together.

    One kernel makes both on TensorE, with the softmax between; only one of them on Vector has none of that.
    """
    found: dict[hlo.Operation, bool] = {}
    for op in ops_of(computation.block):
        scores = scores_of(op) if isinstance(op, hlo.DotOp) else None
        if scores is not None and isinstance(op, hlo.DotOp):
            both = [(each, *_sides(each)) for each in (scores, op)]
            narrow = all(_may_be_narrow(*each, context) for each in both)
            if narrow:
                vector = sum(_on_vector(*each, context.timing) for each in both)
                narrow = vector * TOGETHER < sum(_on_tensor(*each, context) for each in both)
            found |= {op: narrow, scores: narrow}
    return found


def _instead(
    module: HloModule, op: hlo.DotOp, narrow: Mapping[hlo.Operation, bool], context: PassContext
) -> Value | None:
    """What ``op`` becomes, if not TensorE computes it; ``narrow``: what is known of contractions of attentions."""
    if _is_of_vectors(op):
        return _inner_product(Build.before(module, op), op)
    lhs, rhs = _sides(op)
    if narrow[op] if op in narrow else _is_narrow(op, lhs, rhs, context):
        return _sum_of_products(Build.before(module, op), op, lhs, rhs, context.timing.sizes.partitions)
    for matrix, vector in ((lhs, rhs), (rhs, lhs)):
        if _is_of_rows(op, matrix, vector) and not _is_for_tensor(op, matrix, context):
            return _sum_of_products(Build.before(module, op), op, matrix, vector, context.timing.sizes.partitions)
    return None


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand, and which of its dims are batch dims and contracted."""

    value: Value
    batch: tuple[int, ...]
    contracted: tuple[int, ...]
    name: str

    @property
    def shape(self) -> hlo.Shape:
        return hlo.shape_of(self.value)

    @property
    def kept(self) -> int:
        """How many dims are the operand's own."""
        return self.shape.rank - len(self.batch) - len(self.contracted)

    @property
    def free(self) -> int:
        """Elements of the dims that are the operand's own."""
        return prod(self.shape.dims[dim] for dim in self._kinds[2][1])

    @property
    def row(self) -> int:
        """Of these, how many one tile may have: those that follow what is contracted, if it has no batch dims."""
        after = prod(self.shape.dims[max(self.contracted, default=-1) + 1 :])
        return self.free if self.batch or after == 1 else min(self.free, after)

    @property
    def labels(self) -> list[str]:
        """For each dim, what both operands and the result call it."""
        names = {dim: f"{kind}{at}" for kind, dims in self._kinds for at, dim in enumerate(dims)}
        return [names[dim] for dim in range(self.shape.rank)]

    @property
    def _kinds(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        free = tuple(dim for dim in range(self.shape.rank) if dim not in (*self.batch, *self.contracted))
        return (("b", self.batch), ("k", self.contracted), (self.name, free))


def _sides(op: hlo.DotOp) -> tuple[_Side, _Side]:
    dims = op.dims.data
    lhs = _Side(op.lhs, dims.lhs_batch, dims.lhs_contracting, "m")
    return lhs, _Side(op.rhs, dims.rhs_batch, dims.rhs_contracting, "n")


# ---- what is narrow -------------------------------------------------------------------------------------------


def _is_narrow(op: hlo.DotOp, lhs: _Side, rhs: _Side, context: PassContext) -> bool:
    """Whether Vector makes sums of products in less time than TensorE."""
    fits = _may_be_narrow(op, lhs, rhs, context)
    return fits and _on_vector(op, lhs, rhs, context.timing) < _on_tensor(op, lhs, rhs, context)


def _may_be_narrow(op: hlo.DotOp, lhs: _Side, rhs: _Side, context: PassContext) -> bool:
    """Whether Vector may make the sums of products."""
    terms = prod(lhs.shape.dims[dim] for dim in lhs.contracted)
    if not {lhs.shape.dtype, rhs.shape.dtype, op.shape.dtype} <= WIDE_FLOATS or terms > MOST_CONTRACTED:
        return False
    _, middle, most = sorted((terms, lhs.free, rhs.free))
    columns = context.timing.sizes.columns
    attends = terms >= LEAST_FEATURES
    queries = min(lhs.free, rhs.free)
    deep = middle >= columns // LEAST_DEPTH or (queries >= LEAST_QUERIES and queries > terms)
    if attends and lhs.batch and lhs.kept and rhs.kept and 2 * most >= columns and deep:
        return False  # attentions of few rows have kernels that take several batch indices together
    return op.shape.size > 0


def _on_vector(op: hlo.DotOp, lhs: _Side, rhs: _Side, timing: Timing) -> float:
    """Nanoseconds for products and sums of all terms, and until their operands are there."""
    order, terms = _order(op, lhs, rhs, timing.sizes.partitions)
    sizes = _sizes(lhs, rhs)
    stored, most = prod(sizes[label] for label in (*order, *terms)), timing.sizes.bank_columns
    filled = _filled(order[:-1] or order, sizes) if order else 1
    if lhs.batch:  # all partitions have as many of their indices
        filled = ceil(filled / ceil(filled / timing.sizes.partitions))
    filled = min(timing.sizes.partitions, filled)
    count = ceil(stored / filled / most)
    factors = (_tile(lhs, rhs), _tile(rhs, lhs))
    work = timing.engine("tensor_tensor", Stream.VECTOR, most, ins=factors, alu=("multiply",))
    if prod(sizes[label] for label in terms) > 1:
        work += timing.engine("tensor_reduce", Stream.VECTOR, most, alu=("add",))
    moved = timing.transfer(op.shape.nbytes, timing.long_run, "write")
    for side in (lhs, rhs):
        moved += _loaded(side, (*order, *terms), timing)
    return max(count * work.bound, moved.bound) + timing.transfer_latency


def _loaded(side: _Side, dims: Sequence[str], timing: Timing) -> Work:
    """The transfers of an operand in the order ``dims``, or of a copy that is made in that order."""
    run, nbytes = itemsize(side.shape.dtype), side.shape.nbytes
    own = [label for label in dims if label in side.labels]
    for label, stored, size in zip(reversed(own), reversed(side.labels), reversed(side.shape.dims), strict=True):
        if label != stored:
            break
        run *= size
    return _moved(nbytes, run, timing)


def _moved(nbytes: int, run: int, timing: Timing) -> Work:
    """The transfers of ``nbytes`` in such runs, or of a copy that is made in order."""
    copied = timing.transfer(nbytes, timing.long_run, "copy") + timing.transfer(nbytes, timing.long_run)
    return min(timing.transfer(nbytes, run), copied, key=lambda work: work.bound)


def _filled(order: Sequence[str], sizes: Mapping[str, int]) -> int:
    """Partitions that one of the dims ``order`` fills, or all that both operands have."""
    batch = prod(sizes[label] for label in order if label[0] == "b")
    return max([batch, *(sizes[label] for label in order)])


def _tile(side: _Side, other: _Side) -> Tile:
    """An operand on chip, from term to term: dense where it is loaded for all rows of the other one."""
    labels = side.labels
    last = max((at for at, label in enumerate(labels) if label[0] == "k"), default=len(labels))
    spread = not side.batch and side.shape.size < other.shape.size
    return Tile(stride=itemsize("f32") * (1 if spread else prod(side.shape.dims[last + 1 :])))


def _on_tensor(op: hlo.DotOp, lhs: _Side, rhs: _Side, context: PassContext) -> float:
    """Nanoseconds for the tiles of all batch indices, one after the other, and until their operands are there."""
    timing, dtype = context.timing, "f32"
    if op.shape.dtype == "f32" == lhs.shape.dtype:
        dtype = of_operands(op, context.options).dtype.replace("tf32", "f32")
    rows, columns = timing.sizes.columns, timing.sizes.bank_columns
    batch, (m, n) = prod(lhs.shape.dims[dim] for dim in lhs.batch), (side.row for side in (lhs, rhs))
    tiles = min(ceil(m / rows) * ceil(n / columns), ceil(n / rows) * ceil(m / columns))
    tiles *= lhs.free // m * (rhs.free // n)
    narrow, wide = min(m, n, rows), min(max(m, n), columns)
    product = timing.product(narrow, wide, dtype)
    left = timing.engine("activation", Stream.SCALAR, wide, (F32,), (F32_PSUM,), ("copy",))
    work = (product + left).times(batch * tiles)
    for side in (lhs, rhs):
        work += _arrival(side, batch, dtype, timing)
    if lhs.batch:
        work += timing.transfer(op.shape.nbytes, op.shape.dims[-1] * itemsize(op.shape.dtype), "write")
    # what is cast keeps TensorE waiting: each batch index comes by a transfer of its own
    cast = timing.transfer_latency if lhs.batch else timing.latency(Stream.VECTOR) + timing.latency(Stream.SCALAR)
    cast = 0.0 if dtype == "f32" else cast
    return max(work.tensor + work.scalar + work.vector, work.dma) + cast


def _arrival(side: _Side, batch: int, dtype: str, timing: Timing) -> Work:
    """What brings the terms of an operand to the partitions: short runs, single elements, transposes."""
    labels, size = side.labels, itemsize(side.shape.dtype)
    if isinstance(side.value.owner, hlo.ConstantOp) or not labels or side.shape.size == side.free:
        return NOTHING
    run = size if labels[-1][0] == "b" else side.shape.dims[-1] * size
    work = _moved(side.shape.nbytes, run, timing) if side.batch else NOTHING
    if labels[-1][0] == "k":
        rows = min(side.free, timing.sizes.columns)
        terms = min(side.shape.size // (batch * side.free), timing.sizes.rows)
        half = timing.transpose(rows, terms, "bf16")
        if side.batch and itemsize(dtype) > 2:  # each half of the bit patterns is put together first
            half += timing.engine("tensor_copy", Stream.VECTOR, terms)
        work += half.times(batch * ceil(side.free / rows) * itemsize(dtype) // 2)
    return work


def _is_of_rows(op: hlo.DotOp, matrix: _Side, vector: _Side) -> bool:
    """Whether ``op`` multiplies all rows of a large ``matrix``, as they lie, with one ``vector``."""
    shape, other = matrix.shape, vector.shape
    return (
        {shape.dtype, other.dtype, op.shape.dtype} == {"f32"}
        and not matrix.batch
        and matrix.contracted == (1,)
        and shape.rank == 2
        and other.size == shape.dims[1] <= LONGEST_MATRIX_ROW
        and shape.size >= LEAST_MATRIX
        and shape.dims[0] >= 1024
    )


def _is_for_tensor(op: hlo.DotOp, matrix: _Side, context: PassContext) -> bool:
    """Whether TensorE multiplies rows faster than they are read as they lie."""
    made = matrix.value.owner
    stored = hlo.shape_of(made.operands[0]).dtype if isinstance(made, hlo.ConvertOp) else "f32"
    if stored == LATE:
        return True
    if stored in FEW_BITS and of_operands(op, context.options).dtype != "tf32":
        return _rows_on_tensor(matrix, stored, context.timing) < _rows_on_vector(matrix, stored, context.timing)
    if itemsize(stored) < itemsize("f32"):
        return False
    return isinstance(made, hlo.ConstantOp)


def _rows_on_tensor(matrix: _Side, stored: str, timing: Timing) -> float:
    """Nanoseconds in which rows that are stored in few bits are transposed, and multiplied with parts of a vector."""
    sizes, taken = timing.sizes, "bf16"
    tiles = ceil(matrix.shape.dims[0] / sizes.columns) * ceil(matrix.shape.dims[1] / sizes.rows)
    work = timing.transpose(sizes.columns, sizes.rows, taken) + timing.product(sizes.columns, PARTS, taken)
    work += timing.engine("tensor_copy", Stream.GPSIMD, sizes.rows, (Tile(taken),), (Tile(stored),))
    moved = timing.transfer(matrix.shape.size * itemsize(stored), timing.long_run)
    # the vector is transposed first, and sums of a bank at a time leave, are transposed and scaled
    turns = ceil(matrix.shape.dims[0] / sizes.bank_columns)
    waits = 2 * timing.transfer_latency + turns * (timing.latency(Stream.SCALAR) + 2 * timing.latency(Stream.VECTOR))
    time = max(work.times(tiles).bound, moved.bound) + waits
    return ZERO_POINTS * time if stored == "u8" else time


def _rows_on_vector(matrix: _Side, stored: str, timing: Timing) -> float:
    """The same of rows that are multiplied as they lie, and added up."""
    size = timing.sizes.bank_columns
    work = timing.engine("tensor_tensor", Stream.VECTOR, size, alu=("multiply",))
    work += timing.engine("tensor_reduce", Stream.VECTOR, size, alu=("add",))
    moved = timing.transfer(matrix.shape.size * itemsize(stored), timing.long_run)
    return max(work.times(ceil(matrix.shape.size / timing.sizes.partitions / size)).bound, moved.bound)


def _is_of_vectors(op: hlo.DotOp) -> bool:
    """Whether ``op`` gives one number, of vectors longer than a partition's row."""
    shapes = [hlo.shape_of(operand) for operand in op.operands]
    contracted = (op.dims.data.lhs_contracting, op.dims.data.rhs_contracting)
    return (
        op.shape.size == 1
        and shapes[0].size == shapes[1].size > LONGEST_MATRIX_ROW
        and {shape.dtype for shape in (*shapes, op.shape)} <= WIDE_FLOATS
        and all(list(axes) == sorted(axes) for axes in contracted)
    )


def _inner_product(b: Build, op: hlo.DotOp) -> Value:
    """The sum of products of all elements, in FP32."""
    flat = [b.convert(b.reshape(operand, (hlo.shape_of(operand).size,)), "f32") for operand in op.operands]
    return b.convert(b.reshape(b.sum(b.mul(*flat), (0,)), op.shape.dims), op.shape.dtype)


# ---- sums of products -----------------------------------------------------------------------------------------


def _sizes(lhs: _Side, rhs: _Side) -> dict[str, int]:
    """Of the dims of both operands."""
    return {label: size for side in (lhs, rhs) for label, size in zip(side.labels, side.shape.dims, strict=True)}


def _order(op: hlo.DotOp, lhs: _Side, rhs: _Side, rows: int) -> tuple[list[str], list[str]]:
    """Dims of the result, and what is contracted.

    The longest comes first where those ahead of it do not fill the partitions, ``rows`` of them. Where batch indices
    are neighbours, the larger operand keeps its order, with the other's dims in place of what is contracted.
    """
    large, small = (lhs, rhs) if lhs.shape.size >= rhs.shape.size else (rhs, lhs)
    terms = [label for label in large.labels if label[0] == "k"]
    order, sizes = _of_result(lhs, rhs), _sizes(lhs, rhs)
    if not order:
        return order, terms
    longest = max(order, key=lambda label: sizes[label])
    if longest[0] == "b" and longest == large.labels[-1] and sizes[longest] % rows == 0:
        at = large.labels.index(terms[0]) if terms else 0
        others = [label for label in small.labels if label[0] == small.name]
        around = [*large.labels[:at], *others, *large.labels[at:]]
        return [label for label in around if label not in terms], terms
    ahead = order[: order.index(longest)]
    if not ahead or 2 * _filled(ahead, sizes) < rows:
        order = [longest, *(label for label in order if label != longest)]
    return order, terms


def _of_result(lhs: _Side, rhs: _Side) -> list[str]:
    """Dims of the result of ``op``, in its order."""
    labels = {label for side in (lhs, rhs) for label in side.labels if label[0] != "k"}
    return sorted(labels, key=lambda label: ("bmn".index(label[0]), int(label[1:])))


def _sum_of_products(b: Build, op: hlo.DotOp, lhs: _Side, rhs: _Side, rows: int) -> Value:
    """The result of ``op``, whichever operand is ``lhs``."""
    order, terms = _order(op, lhs, rhs, rows)
    sizes, dims = _sizes(lhs, rhs), [*order, *terms]
    shape, factors = [sizes[label] for label in dims], []
    for side in (lhs, rhs):
        labels = side.labels
        own = [label for label in dims if label in labels]
        ordered = b.transpose(b.convert(side.value, "f32"), [labels.index(label) for label in own])
        factors.append(ordered if own == dims else b.broadcast(ordered, shape, [dims.index(label) for label in own]))
    summed = b.sum(b.mul(*factors), range(len(order), len(dims)))
    return b.convert(b.transpose(summed, [order.index(label) for label in _of_result(lhs, rhs)]), op.shape.dtype)
