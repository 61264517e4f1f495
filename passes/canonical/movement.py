"""Rules of ``canonicalize`` for shape changes and data movement: exact for every element type.

The forms aimed at: one ``broadcast`` with increasing ``dimensions`` instead of the reshape and broadcast chains that
JAX emits for bias adds and kept dims; no identity, no movement of what is already constant along a dim; slices, pads
and concatenations merged with their like.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import PadDim, SliceDim
from neuronx_cc.ir.hlo.editing import insert_before
from neuronx_cc.passes.analysis.values import splat_of
from neuronx_cc.passes.canonical.rule import Rule, Scope, over, result_op

Value = hlo.SSAValue
Dims = tuple[int, ...]


def _typed(value: Value, dims: Dims) -> hlo.ArrayType:
    """The type of ``value`` moved into ``dims``. A rewrite may move what lies below a convert of ``op``'s operand, so
    the element type is never taken from ``op``.
    """
    return hlo.array_type(hlo.shape_of(value).dtype, dims)


def reshaped(op: hlo.HloOp, value: Value, dims: Dims) -> Value:
    if hlo.shape_of(value).dims == dims:
        return value
    return insert_before(op, hlo.ReshapeOp, (value,), _typed(value, dims), op.loc)


def transposed(op: hlo.HloOp, value: Value, order: Dims) -> Value:
    if order == tuple(range(len(order))):
        return value
    dims = hlo.shape_of(value).dims
    result = _typed(value, tuple(dims[i] for i in order))
    return insert_before(op, hlo.TransposeOp, (value,), result, op.loc, {"dimensions": hlo.IntsAttr(order)})


def broadcasted(op: hlo.HloOp, value: Value, dims: Dims, dimensions: Dims) -> Value:
    if hlo.shape_of(value).dims == dims and dimensions == tuple(range(len(dims))):
        return value
    properties = {"dimensions": hlo.IntsAttr(dimensions)}
    return insert_before(op, hlo.BroadcastOp, (value,), _typed(value, dims), op.loc, properties)


# reshape


def _reshape(op: hlo.ReshapeOp, scope: Scope) -> Value | None:
    if op.operand.type == op.results[0].type:
        return op.operand
    inner = result_op(op.operand)
    if isinstance(inner, hlo.ReshapeOp):
        return reshaped(op, inner.operand, op.shape.dims)
    if isinstance(inner, hlo.BroadcastOp):
        return _reshape_of_broadcast(op, inner)
    return None


def reshape_groups(old: Dims, new: Dims) -> list[tuple[Dims, Dims]] | None:
    """Split a reshape into the smallest groups ``(old dims, new dims)`` of equal product, as positions.

    Dims of size 1 belong to no group. None if a size is zero.
    """
    if 0 in old:
        return None
    left = [i for i, size in enumerate(old) if size != 1]
    right = [j for j, size in enumerate(new) if size != 1]
    groups: list[tuple[Dims, Dims]] = []
    i = j = 0
    while i < len(left):
        start_i, start_j = i, j
        product_old, product_new = old[left[i]], new[right[j]]
        i, j = i + 1, j + 1
        while product_old != product_new:
            if product_old < product_new:
                product_old *= old[left[i]]
                i += 1
            else:
                product_new *= new[right[j]]
                j += 1
        groups.append((tuple(left[start_i:i]), tuple(right[start_j:j])))
    return groups


def _reshape_of_broadcast(op: hlo.ReshapeOp, inner: hlo.BroadcastOp) -> Value | None:
    """``reshape(broadcast(x))`` -> ``broadcast(reshape(x))`` where no group mixes repeated and real dims."""
    old, new = inner.shape.dims, op.shape.dims
    real = dict(zip(inner.dimensions.data, hlo.shape_of(inner.operand).dims, strict=True))
    if not real:
        return broadcasted(op, inner.operand, new, ())
    groups = reshape_groups(old, new)
    if groups is None or list(inner.dimensions.data) != sorted(inner.dimensions.data):
        return None
    kept: list[int] = []
    for left, right in groups:
        if all(i in real for i in left):
            # the group is real: its new dims are the reshaped operand's
            kept.extend(right)
        elif any(i in real for i in left):
            return None
    operand = reshaped(op, inner.operand, tuple(new[j] for j in kept))
    return broadcasted(op, operand, new, tuple(kept))


# broadcast


def _broadcast(op: hlo.BroadcastOp, scope: Scope) -> Value | None:
    dims, dimensions = op.shape.dims, op.dimensions.data
    operand = hlo.shape_of(op.operand)
    if operand.dims == dims and dimensions == tuple(range(len(dims))):
        return op.operand
    if list(dimensions) != sorted(dimensions):
        order = tuple(sorted(range(len(dimensions)), key=lambda i: dimensions[i]))
        return broadcasted(op, transposed(op, op.operand, order), dims, tuple(sorted(dimensions)))
    inner = result_op(op.operand)
    if isinstance(inner, hlo.BroadcastOp):
        return broadcasted(op, inner.operand, dims, tuple(dimensions[i] for i in inner.dimensions.data))
    if isinstance(inner, hlo.ReshapeOp):
        return _broadcast_of_reshape(op, inner)
    if operand.size == 1 and operand.rank:
        return broadcasted(op, reshaped(op, op.operand, ()), dims, ())
    if operand.dims != dims and operand.size == op.shape.size:
        return reshaped(op, op.operand, dims)
    return None


def _broadcast_of_reshape(op: hlo.BroadcastOp, inner: hlo.ReshapeOp) -> Value | None:
    """A reshape that only adds size-1 dims is left out of the broadcast's operand."""
    source = hlo.shape_of(inner.operand).dims
    wide = [i for i, size in enumerate(inner.shape.dims) if size != 1]
    if tuple(inner.shape.dims[i] for i in wide) != source:
        return None
    return broadcasted(op, inner.operand, op.shape.dims, tuple(op.dimensions.data[i] for i in wide))


# transpose and reverse


def _transpose(op: hlo.TransposeOp, scope: Scope) -> Value | None:
    order = op.dimensions.data
    if order == tuple(range(len(order))):
        return op.operand
    dims = hlo.shape_of(op.operand).dims
    wide = [i for i in order if dims[i] != 1]
    if wide == sorted(wide):
        return reshaped(op, op.operand, op.shape.dims)
    inner = result_op(op.operand)
    if isinstance(inner, hlo.TransposeOp):
        return transposed(op, inner.operand, tuple(inner.dimensions.data[i] for i in order))
    if isinstance(inner, hlo.BroadcastOp):
        place = {old: new for new, old in enumerate(order)}
        return broadcasted(op, inner.operand, op.shape.dims, tuple(place[i] for i in inner.dimensions.data))
    return None


def _reverse(op: hlo.ReverseOp, scope: Scope) -> Value | None:
    """Only real dims of size above 1 are worth reversing."""
    inner = result_op(op.operand)
    chosen = {i for i in op.dimensions.data if op.shape.dims[i] > 1}
    source = op.operand
    if isinstance(inner, hlo.BroadcastOp):
        real = inner.dimensions.data
        if chosen & set(real):
            properties = {"dimensions": hlo.IntsAttr(tuple(k for k, i in enumerate(real) if i in chosen))}
            value = insert_before(op, hlo.ReverseOp, (inner.operand,), inner.operand.type, op.loc, properties)
            return broadcasted(op, value, op.shape.dims, real)
        return op.operand
    if isinstance(inner, hlo.ReverseOp):
        chosen ^= set(inner.dimensions.data)
        source = inner.operand
    if not chosen:
        return source
    kept = tuple(sorted(chosen))
    if source is op.operand and kept == op.dimensions.data:
        return None
    return insert_before(op, hlo.ReverseOp, (source,), op.results[0].type, op.loc, {"dimensions": hlo.IntsAttr(kept)})


# slice, pad and concatenate


def _slice(op: hlo.SliceOp, scope: Scope) -> Value | None:
    if op.operand.type == op.results[0].type:
        return op.operand
    match result_op(op.operand):
        case hlo.SliceOp() as inner:
            pairs = zip(inner.slice.data, op.slice.data, strict=True)
            return sliced(op, inner.operand, tuple(_slice_in_slice(first, second) for first, second in pairs))
        case hlo.BroadcastOp() as inner:
            real = tuple(op.slice.data[i] for i in inner.dimensions.data)
            small = sliced(op, inner.operand, real)
            return broadcasted(op, small, op.shape.dims, inner.dimensions.data)
        case hlo.PadOp() as inner:
            return _slice_of_pad(op, inner)
        case hlo.ConcatenateOp() as inner:
            return _slice_of_concatenate(op, inner)
        case hlo.IotaOp() as inner:
            dim = op.slice.data[inner.iota_dimension.data]
            if dim == SliceDim(0, inner.shape.dims[inner.iota_dimension.data]):
                return insert_before(op, hlo.IotaOp, (), op.results[0].type, op.loc, inner.properties)
    return None


def _slice_in_slice(first: SliceDim, second: SliceDim) -> SliceDim:
    start = first.start + second.start * first.stride
    if second.limit <= second.start:
        return SliceDim(first.start, first.start)
    return SliceDim(start, first.start + (second.limit - 1) * first.stride + 1, first.stride * second.stride)


def _extent(dim: SliceDim) -> int:
    return max(0, -(-(dim.limit - dim.start) // dim.stride))


def _dynamic_slice(op: hlo.DynamicSliceOp, scope: Scope) -> Value | None:
    """A window at a place that is known, and so clamped here, is a slice."""
    array, *starts = op.args
    slices = []
    for start, size, dim in zip(starts, op.shape.dims, hlo.shape_of(array).dims, strict=True):
        place = splat_of(start, scope.module) if size < dim else 0
        if place is None:
            return None
        first = min(max(int(place), 0), dim - size)
        slices.append(SliceDim(first, first + size))
    return sliced(op, array, tuple(slices))


def sliced(op: hlo.HloOp, value: Value, slices: tuple[SliceDim, ...]) -> Value:
    dims = hlo.shape_of(value).dims
    if all(dim == SliceDim(0, size) for dim, size in zip(slices, dims, strict=True)):
        return value
    result = _typed(value, tuple(_extent(dim) for dim in slices))
    return insert_before(op, hlo.SliceOp, (value,), result, op.loc, {"slice": hlo.SliceAttr(slices)})


def _slice_of_pad(op: hlo.SliceOp, pad: hlo.PadOp) -> Value | None:
    """The slice lies inside the padded array, with no padding between its elements."""
    shifted = []
    for dim, padding, size in zip(op.slice.data, pad.padding.data, hlo.shape_of(pad.lhs).dims, strict=True):
        if padding.interior or dim.start < padding.low or dim.limit > padding.low + size:
            return None
        shifted.append(SliceDim(dim.start - padding.low, dim.limit - padding.low, dim.stride))
    return sliced(op, pad.lhs, tuple(shifted))


def _slice_of_concatenate(op: hlo.SliceOp, joined: hlo.ConcatenateOp) -> Value | None:
    """The slice takes from one piece only."""
    axis = joined.dimension.data
    wanted = op.slice.data[axis]
    offset = 0
    for piece in joined.operands:
        size = hlo.shape_of(piece).dims[axis]
        if offset <= wanted.start and wanted.limit <= offset + size:
            moved = SliceDim(wanted.start - offset, wanted.limit - offset, wanted.stride)
            return sliced(op, piece, (*op.slice.data[:axis], moved, *op.slice.data[axis + 1 :]))
        offset += size
    return None


def _pad(op: hlo.PadOp, scope: Scope) -> Value | None:
    """No padding; cropping only; padding a splat with its own value; pads of one value merged."""
    padding = op.padding.data
    dims = hlo.shape_of(op.lhs).dims
    if op.shape.dims == dims and all(dim.low == dim.high == 0 for dim in padding):
        return op.lhs
    if all(dim.low <= 0 and dim.high <= 0 and dim.interior == 0 for dim in padding):
        slices = tuple(SliceDim(-dim.low, size + dim.high) for dim, size in zip(padding, dims, strict=True))
        if all(dim.start <= dim.limit for dim in slices):
            return sliced(op, op.lhs, slices)
    if 0 in dims:
        return broadcasted(op, op.rhs, op.shape.dims, ())
    own, fill = splat_of(op.lhs, scope.module), splat_of(op.rhs, scope.module)
    if own is not None and fill is not None and own.tobytes() == fill.tobytes():
        return broadcasted(op, op.rhs, op.shape.dims, ())
    inner = result_op(op.lhs)
    if not isinstance(inner, hlo.PadOp) or inner.rhs is not op.rhs:
        return None
    both = list(zip(inner.padding.data, padding, strict=True))
    if any(a.interior or b.interior or min(a.low, a.high, b.low, b.high) < 0 for a, b in both):
        return None
    merged = hlo.PaddingAttr(tuple(PadDim(a.low + b.low, a.high + b.high) for a, b in both))
    return insert_before(op, hlo.PadOp, (inner.lhs, op.rhs), op.results[0].type, op.loc, {"padding": merged})


def _concatenate(op: hlo.ConcatenateOp, scope: Scope) -> Value | None:
    """One piece; empty pieces; pieces that are concatenations themselves; neighbours cut from one array."""
    axis = op.dimension.data
    pieces: list[Value] = []
    for piece in op.operands:
        inner = result_op(piece)
        if hlo.shape_of(piece).dims[axis] == 0:
            continue
        if isinstance(inner, hlo.ConcatenateOp) and inner.dimension.data == axis:
            pieces.extend(inner.operands)
        elif pieces and (joined := _rejoin(op, axis, pieces[-1], piece)) is not None:
            pieces[-1] = joined
        else:
            pieces.append(piece)
    if not pieces:
        return op.operands[0]
    if len(pieces) == 1:
        return pieces[0]
    if len(pieces) == len(op.operands) and all(a is b for a, b in zip(pieces, op.operands, strict=True)):
        return None
    return insert_before(op, hlo.ConcatenateOp, pieces, op.results[0].type, op.loc, {"dimension": op.dimension})


def _rejoin(op: hlo.HloOp, axis: int, left: Value, right: Value) -> Value | None:
    """``x[a:b] ++ x[b:c]`` -> ``x[a:c]``."""
    first, second = result_op(left), result_op(right)
    if not isinstance(first, hlo.SliceOp) or not isinstance(second, hlo.SliceOp) or first.operand is not second.operand:
        return None
    a, b = first.slice.data, second.slice.data
    if a[axis].limit != b[axis].start or a[axis].stride != 1 or b[axis].stride != 1:
        return None
    if any(x != y for i, (x, y) in enumerate(zip(a, b, strict=True)) if i != axis):
        return None
    return sliced(op, first.operand, (*a[:axis], SliceDim(a[axis].start, b[axis].limit), *a[axis + 1 :]))


# reshapes and broadcasts among elementwise ops


@over(hlo.ReshapeOp)
def sink_reshape(op: hlo.HloOp, scope: Scope) -> Value | None:
    """``f(reshape(x), reshape(y), splat)`` -> ``reshape(f(x, y, splat))`` for reshapes that only move size-1 dims."""
    if not any(type(operand.owner) is hlo.ReshapeOp for operand in op.operands):
        return None
    dims = op.shape.dims
    source: Dims | None = None
    for operand in op.operands:
        inner = result_op(operand)
        if hlo.shape_of(operand).dims != dims:
            return None
        if isinstance(inner, hlo.ReshapeOp):
            inner_dims = hlo.shape_of(inner.operand).dims
            if source not in (None, inner_dims) or not same_but_for_ones(inner_dims, dims):
                return None
            source = inner_dims
        elif not _is_splat_broadcast(inner):
            return None
    if source is None:
        return None
    operands = []
    for operand in op.operands:
        inner = result_op(operand)
        if isinstance(inner, hlo.ReshapeOp):
            operands.append(inner.operand)
        else:
            assert isinstance(inner, hlo.BroadcastOp)
            wide = hlo.array_type(inner.shape.dtype, source)
            operands.append(insert_before(op, hlo.BroadcastOp, (inner.operand,), wide, inner.loc, inner.properties))
    value = insert_before(op, type(op), operands, _typed(op.results[0], source), op.loc, op.properties)
    return reshaped(op, value, dims)


@over(hlo.BroadcastOp)
def sink_broadcast(op: hlo.HloOp, scope: Scope) -> Value | None:
    """An elementwise op that repeats along a dim where no operand varies works once, and its result is repeated."""
    if not all(type(operand.owner) is hlo.BroadcastOp for operand in op.operands):
        return None
    sources = [inner for operand in op.operands if isinstance(inner := result_op(operand), hlo.BroadcastOp)]
    varying = sorted({dim for source in sources for dim in source.dimensions.data})
    if len(varying) == op.shape.rank or any(list(s.dimensions.data) != sorted(s.dimensions.data) for s in sources):
        return None
    dims = tuple(op.shape.dims[i] for i in varying)
    operands = []
    for source in sources:
        dtype = source.shape.dtype
        if hlo.shape_of(source.operand).dims == dims:
            operands.append(source.operand)
            continue
        properties = {"dimensions": hlo.IntsAttr(tuple(varying.index(i) for i in source.dimensions.data))}
        type_ = hlo.array_type(dtype, dims)
        operands.append(insert_before(op, hlo.BroadcastOp, (source.operand,), type_, source.loc, properties))
    value = insert_before(op, type(op), operands, _typed(op.results[0], dims), op.loc, op.properties)
    return broadcasted(op, value, op.shape.dims, tuple(varying))


def _is_splat_broadcast(op: hlo.HloOp | None) -> bool:
    return isinstance(op, hlo.BroadcastOp) and not op.dimensions.data


def same_but_for_ones(left: Dims, right: Dims) -> bool:
    return [size for size in left if size != 1] == [size for size in right if size != 1]


RULES: dict[type, tuple[Rule, ...]] = {
    hlo.ReshapeOp: (_reshape,),
    hlo.BroadcastOp: (_broadcast,),
    hlo.TransposeOp: (_transpose,),
    hlo.ReverseOp: (_reverse,),
    hlo.SliceOp: (_slice,),
    hlo.DynamicSliceOp: (_dynamic_slice,),
    hlo.PadOp: (_pad,),
    hlo.ConcatenateOp: (_concatenate,),
}
SINKS: dict[type, tuple[Rule, ...]] = {hlo.ElementwiseOp: (sink_reshape, sink_broadcast)}
"""Tried last."""
