"""Rewrites argmax and argmin reductions into single-operand reductions, which engines do row by row.

Input: reduces whose ``kind`` is ``argmax`` or ``argmin`` (see ``decompose``). Output: the extreme value by one
reduction; the smallest index among the elements equal to it (or NaN, which wins) by another. The initial index
takes part only where the initial value is the result, which then equals an element or the row is empty.
A value that is read is the element at that index, with the sign that it has if it is zero.

Large arrays of floats are compared once, with the neighbour of the extreme: what is not beyond it is the extreme, or
NaN. The comparison and the index that is added to it are one instruction, and their least is the index.

Long rows of large arrays are cut into blocks: their extremes take one pass over the array, the first block that has the
row's extreme is gathered, and the index within it looked for there.
"""

from math import prod

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, insert_before, insert_splat, ops_of
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE
from neuronx_cc.passes.analysis.rows import counts_along
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext, only_for

LEAST_ELEMENTS = {True: 1 << 21, False: 1 << 19}
"""Elements of an array whose rows are cut into blocks, where places are found in two passes or not."""
LEAST_COMPARED = 1 << 17
"""Elements of an array whose places are found in two passes: what a row takes besides is less than what that saves."""
LEAST_ROW = 512
EXACT = 1 << 24
"""Numbers from 0 on that FP32 has."""
SHORTEST = 16
"""Elements of a block, and blocks of a row, at the least."""
EXTREMES: dict[str, type[hlo.HloOp]] = {"argmax": hlo.MaximumOp, "argmin": hlo.MinimumOp}


@only_for(hlo.ReduceOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):  # the elements after the op are erased with it
            if isinstance(op, hlo.ReduceOp) and op.kind is not None and op.kind.data in EXTREMES:
                _expand(op, module)


def _expand(op: hlo.ReduceOp, module: HloModule) -> None:
    values, indices, start, _ = op.operands
    two = hlo.shape_of(values).dtype in FLOATS and _counted(indices) is not None
    size = _block(op, values, indices, LEAST_ELEMENTS[two])
    if size:
        best, first = _by_blocks(op, module, values, start, size)
        first = Build.before(module, op).convert(first, hlo.shape_of(indices).dtype)
    else:
        best, first = _extreme(op, module, values, indices, start, op.dimensions.data)
    if hlo.shape_of(values).dtype in FLOATS and _value_is_used(op):
        best = _element(op, module, first)
    for use in list(op.results[0].uses):
        user = use.operation
        assert isinstance(user, hlo.GetTupleElementOp), "tuples are dissolved before"
        user.results[0].replace_all_uses_with((best, first)[user.index.data])
        erase(user)
    erase(op)


def _value_is_used(op: hlo.ReduceOp) -> bool:
    users = [use.operation for use in op.results[0].uses]
    return any(isinstance(user, hlo.GetTupleElementOp) and user.index.data == 0 for user in users)


def _element(op: hlo.ReduceOp, module: HloModule, first: hlo.SSAValue) -> hlo.SSAValue:
    """The elements at ``first``: zeros of both signs are equal, and the extreme has the sign of any."""
    values, indices, start, _ = op.operands
    b, dims, axes = Build.before(module, op), hlo.shape_of(values).dims, op.dimensions.data
    kept = [axis for axis in range(len(dims)) if axis not in axes]
    chosen = b.compare(indices, b.broadcast(first, dims, kept), "EQ")
    only = insert_before(op, hlo.SelectOp, (chosen, values, b.broadcast(start, dims, [])), values.type, op.loc)
    assert op.kind is not None
    return _reduce(op, module, only, start, EXTREMES[op.kind.data], axes)


def _extreme(
    op: hlo.ReduceOp,
    module: HloModule,
    values: hlo.SSAValue,
    indices: hlo.SSAValue,
    start: hlo.SSAValue,
    axes: tuple[int, ...],
) -> tuple[hlo.SSAValue, hlo.SSAValue]:
    """The extremes of ``values`` over ``axes`` and the least of ``indices`` where they are."""
    shape, index_shape = hlo.shape_of(values), hlo.shape_of(indices)
    assert op.kind is not None
    best = _reduce(op, module, values, start, EXTREMES[op.kind.data], axes)
    if shape.size >= LEAST_COMPARED and shape.dtype in FLOATS and (counted := _counted(indices)) is not None:
        return best, _first(Build.before(module, op), op, values, best, counted, axes, index_shape.dtype)
    kept = tuple(axis for axis in range(shape.rank) if axis not in axes)
    spread = insert_before(op, hlo.BroadcastOp, (best,), values.type, op.loc, {"dimensions": hlo.IntsAttr(kept)})
    b = Build.before(module, op)
    found = b.compare(values, spread, "EQ")
    if shape.dtype in FLOATS:
        nans = b.compare(values, values, "NE")
        found = insert_before(op, hlo.OrOp, (found, nans), found.type, op.loc)
    dtype, counted = index_shape.dtype, _counted(indices)
    if counted is not None:  # Vector folds rows of FP32, in which these are exact
        indices, dtype = b.iota(index_shape.dims, counted, "f32"), "f32"
    highest = np.array(np.inf, np.float32) if dtype == "f32" else np.array(np.iinfo(NUMPY_DTYPE[dtype]).max)
    highest = highest.astype(NUMPY_DTYPE[dtype])
    never = insert_splat(module, op, highest, dtype, index_shape.dims, op.loc)
    place = insert_before(op, hlo.SelectOp, (found, indices, never), indices.type, op.loc)
    last = insert_splat(module, op, highest, dtype, (), op.loc)
    return best, b.convert(_reduce(op, module, place, last, hlo.MinimumOp, axes), index_shape.dtype)


def _first(
    b: Build,
    op: hlo.ReduceOp,
    values: hlo.SSAValue,
    best: hlo.SSAValue,
    counted: int,
    axes: tuple[int, ...],
    dtype: str,
) -> hlo.SSAValue:
    """The least number along dim ``counted`` of the elements that equal ``best``, or are NaN: two passes of Vector.

    What is not beyond the neighbour of ``best`` is neither. It takes part one above its place, in parts of 2^24.
    """
    assert op.kind is not None
    dims, greatest = hlo.shape_of(values).dims, op.kind.data == "argmax"
    kept = tuple(axis for axis in range(len(dims)) if axis not in axes)
    edge = _neighbour(b, b.convert(best, "f32"), greatest)
    spread = b.broadcast(edge, dims, kept)
    others = b.convert(b.compare(b.convert(values, "f32"), spread, "LE" if greatest else "GE"), "f32")
    places = b.array(np.arange(dims[counted]) / EXACT)
    first = b.reduce(hlo.MinimumOp, b.add(others, b.broadcast(places, dims, (counted,))), axes, float("inf"))
    return b.convert(b.mul(first, b.number_like(EXACT, first)), dtype)


def _neighbour(b: Build, best: hlo.SSAValue, greatest: bool) -> hlo.SSAValue:
    """The FP32 number before ``best``, or after it where that is the least: all others of its row are at or beyond.

    Of a NaN the infinity, which no number is beyond; of an infinity that all of a row are, nothing that compares.
    """
    far, most = float("inf") if greatest else float("-inf"), float(np.finfo(np.float32).max)
    # more than half of the distance to the neighbour, and less than all of it
    step = b.mul(b.typed(hlo.AbsOp, (best,), best.type), b.number_like(2.0**-24 + 2.0**-47, best))
    step = b.each(hlo.MaximumOp, step, b.number_like(2.0**-149, best))
    step = b.each(hlo.MinimumOp, step, b.number_like(most, best))
    if greatest:
        edge = b.each(hlo.MinimumOp, b.sub(best, step), b.number_like(most, best))
    else:
        edge = b.each(hlo.MaximumOp, b.add(best, step), b.number_like(-most, best))
    edge = b.select(b.compare(best, b.number_like(-far, best), "EQ"), b.number_like(float("nan"), best), edge)
    return b.select(b.compare(best, best, "NE"), b.number_like(far, best), edge)


def _counted(indices: hlo.SSAValue) -> int | None:
    """The dim along which ``indices`` count, if FP32 has all its numbers."""
    dim = counts_along(indices)
    return dim if dim is not None and hlo.shape_of(indices).dims[dim] <= EXACT else None


def _block(op: hlo.ReduceOp, values: hlo.SSAValue, indices: hlo.SSAValue, least: int) -> int:
    """Elements of a block, about the root of the row's; 0 where rows are not cut."""
    dims = hlo.shape_of(values).dims
    axis = len(dims) - 1
    if op.dimensions.data != (axis,) or prod(dims) < least or dims[axis] < LEAST_ROW:
        return 0
    counted = defining_op(indices)
    if isinstance(counted, hlo.BroadcastOp) and counted.dimensions.data == (axis,):
        counted = defining_op(counted.operand)
        axis = 0
    if not isinstance(counted, hlo.IotaOp) or counted.iota_dimension.data != axis:
        return 0
    row = dims[-1]
    sizes = [size for size in range(SHORTEST, row // SHORTEST + 1) if row % size == 0]
    return min(sizes, key=lambda size: size + row // size, default=0)


def _by_blocks(
    op: hlo.ReduceOp, module: HloModule, values: hlo.SSAValue, start: hlo.SSAValue, size: int
) -> tuple[hlo.SSAValue, hlo.SSAValue]:
    b, shape = Build.before(module, op), hlo.shape_of(values)
    assert op.kind is not None
    row = shape.dims[-1]
    rows, blocks = shape.size // row, row // size
    cut = b.reshape(values, (rows, blocks, size))
    extremes = _reduce(op, module, cut, start, EXTREMES[op.kind.data], (2,))
    best, block = _extreme(op, module, extremes, b.iota((rows, blocks), 1), start, (1,))
    # a row without the initial value's like has no block
    block = b.each(hlo.MinimumOp, block, b.number(blocks - 1, "s32", (rows,)))
    place = b.add(b.mul(b.iota((rows,), 0), b.number(blocks, "s32", (rows,))), block)
    found = b.typed(
        hlo.GatherOp,
        (b.reshape(values, (rows * blocks, size)), place),
        hlo.array_type(shape.dtype, (rows, size)),
        dims=hlo.GatherDimsAttr(hlo.GatherDims((1,), (0,), (0,), 1)),
        slice_sizes=hlo.IntsAttr((1, size)),
    )
    _, within = _extreme(op, module, found, b.iota((rows, size), 1), start, (1,))
    index = b.add(b.mul(block, b.number(size, "s32", (rows,))), within)
    return b.reshape(best, shape.dims[:-1]), b.reshape(index, shape.dims[:-1])


def _reduce(
    op: hlo.ReduceOp,
    module: HloModule,
    operand: hlo.SSAValue,
    start: hlo.SSAValue,
    combiner: type[hlo.HloOp],
    axes: tuple[int, ...],
) -> hlo.SSAValue:
    """``operand`` folded over ``axes`` by ``combiner``."""
    shape = hlo.shape_of(operand)
    dims = tuple(size for axis, size in enumerate(shape.dims) if axis not in axes)
    properties: dict[str, hlo.Attribute] = {
        "dimensions": hlo.IntsAttr(axes),
        "to_apply": hlo.StrsAttr((Build.before(module, op).combiner(combiner, shape.dtype),)),
        "kind": hlo.StrAttr(combiner.name.removeprefix("hlo.")),
    }
    return insert_before(op, hlo.ReduceOp, (operand, start), hlo.array_type(shape.dtype, dims), op.loc, properties)
