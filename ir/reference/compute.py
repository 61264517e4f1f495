"""Reference semantics of contractions, reductions and windows.

16-bit and 8-bit floats accumulate in f32 and round once at the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.combiners import COMBINERS
from neuronx_cc.ir.extremes import Extreme
from neuronx_cc.ir.hlo.attrs import ragged_prefix
from neuronx_cc.ir.reference.elementwise import round_to_format
from neuronx_cc.ir.reference.evaluator import Evaluator, unpack
from neuronx_cc.ir.reference.values import Array, Value, narrow, widen
from neuronx_cc.ir.types import INTEGERS, NUMPY_DTYPE


def _as_matrices(x: Array, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> Array:
    """``[batch, rows, columns]`` with each group of dims flattened."""
    sizes = [int(np.prod([x.shape[dim] for dim in group], dtype=np.int64)) for group in (batch, rows, columns)]
    return np.asarray(x.transpose(*batch, *rows, *columns).reshape(sizes))


def _matmul(lhs: Array, rhs: Array, dtype: str) -> Array:
    """Batched product with the accumulation type of result type ``dtype``."""
    if dtype == "pred":
        return np.asarray(np.matmul(lhs.astype(np.uint8), rhs.astype(np.uint8), dtype=np.uint64) > 0)
    if dtype in INTEGERS:
        target = widen(np.zeros(0, NUMPY_DTYPE[dtype])).dtype
        return _integer_matmul(lhs, rhs).astype(target)
    work = np.result_type(widen(np.zeros(0, NUMPY_DTYPE[dtype])).dtype, widen(lhs[:0]).dtype, widen(rhs[:0]).dtype)
    return np.asarray(np.matmul(lhs.astype(work), rhs.astype(work)))


def _integer_matmul(lhs: Array, rhs: Array) -> Array:
    """Exact modulo 2**64; through f64, which has fast kernels, when no partial sum can reach 2**53."""
    wide_lhs, wide_rhs = widen(lhs), widen(rhs)
    if lhs.size and rhs.size and max(lhs.dtype.itemsize, rhs.dtype.itemsize) < 8:
        bound = lhs.shape[-1] * float(np.abs(wide_lhs.astype(np.int64)).max()) * np.abs(wide_rhs.astype(np.int64)).max()
        if bound < 2.0**53:
            return np.asarray(np.matmul(wide_lhs.astype(np.float64), wide_rhs.astype(np.float64)).astype(np.int64))
    work = np.uint64 if "uint64" in (lhs.dtype.name, rhs.dtype.name) else np.int64
    return np.asarray(np.matmul(wide_lhs.astype(work), wide_rhs.astype(work)))


_ALGORITHM_FORMAT = {"dot_bf16_bf16_f32": (8, 7), "dot_tf32_tf32_f32": (8, 10), "dot_f16_f16_f32": (5, 10)}


def dot(op: hlo.DotOp, lhs: Array, rhs: Array) -> Array:
    """Contraction; result dims are batch, lhs free, rhs free. ``algorithm`` rounds f32 operands first."""
    return contract(_rounded(op, lhs), _rounded(op, rhs), op.dims.data, op.shape.dtype)


def _rounded(op: hlo.DotOp | hlo.ConvolutionOp, operand: Array) -> Array:
    """``operand`` as the algorithm of ``op`` takes it."""
    rounding = _ALGORITHM_FORMAT.get(op.algorithm.data) if op.algorithm is not None else None
    return round_to_format(operand, *rounding) if rounding is not None and operand.dtype == np.float32 else operand


def contract(lhs: Array, rhs: Array, dims: hlo.DotDims, dtype: str) -> Array:
    """``lhs`` times ``rhs`` over the contracting dims, in ``dtype``."""
    lhs_free = [i for i in range(lhs.ndim) if i not in dims.lhs_batch and i not in dims.lhs_contracting]
    rhs_free = [i for i in range(rhs.ndim) if i not in dims.rhs_batch and i not in dims.rhs_contracting]
    left = _as_matrices(lhs, dims.lhs_batch, lhs_free, dims.lhs_contracting)
    right = _as_matrices(rhs, dims.rhs_batch, dims.rhs_contracting, rhs_free)
    sizes = [lhs.shape[i] for i in (*dims.lhs_batch, *lhs_free)] + [rhs.shape[i] for i in rhs_free]
    return narrow(_matmul(left, right, dtype), dtype).reshape(sizes)


def ragged_dot(op: hlo.RaggedDotOp, lhs: Array, rhs: Array, sizes: Array) -> Array:
    """A dot for each group of consecutive positions along the ragged dim of lhs; see chlo.ragged_dot."""
    dims, dtype = op.dims.data, op.shape.dtype
    (axis,), groups = op.ragged_dims.data, op.group_dims.data
    if axis in dims.lhs_batch:
        return contract(lhs, rhs, dims, dtype)
    contracting, batch = dims.lhs_contracting, dims.lhs_batch
    members = _members(lhs, axis, ragged_prefix(axis, lhs.ndim, batch, contracting), sizes)
    lefts = [np.where(inside, lhs, np.zeros((), lhs.dtype)) for inside in members]
    if axis in contracting:
        other = dims.rhs_contracting[contracting.index(axis)]
        prefix = ragged_prefix(other, rhs.ndim, dims.rhs_batch, dims.rhs_contracting)
        rights = [np.where(inside, rhs, np.zeros((), rhs.dtype)) for inside in _members(rhs, other, prefix, sizes)]
        return np.stack([contract(left, right, dims, dtype) for left, right in zip(lefts, rights, strict=True)])
    (group,) = groups

    def without(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dim - (dim > group) for dim in axes)

    inner = replace(dims, rhs_contracting=without(dims.rhs_contracting), rhs_batch=without(dims.rhs_batch))
    total = np.zeros(op.shape.dims, NUMPY_DTYPE[dtype])
    for number, left in enumerate(lefts):
        total += contract(left, rhs.take(number, group), inner, dtype)
    return total


def _members(array: Array, axis: int, prefix: tuple[int, ...], sizes: Array) -> Array:
    """[groups, *dims, 1 where all are alike]: whether a position along ``axis`` lies in the group.

    ``sizes`` are ``[groups]``, or ``[*prefix dims, groups]``; one below zero counts as zero.
    """
    axes = (*(prefix if sizes.ndim > 1 else ()), axis)
    sizes = np.maximum(sizes, 0)
    ends = np.cumsum(sizes, -1, np.int64)[..., None]
    position = np.arange(array.shape[axis])
    inside = np.moveaxis((position >= ends - sizes[..., None].astype(np.int64)) & (position < ends), -2, 0)
    inside = inside.transpose(0, *(1 + np.argsort(axes)))
    return inside.reshape(len(inside), *(size if dim in axes else 1 for dim, size in enumerate(array.shape)))


def scaled_dot(op: hlo.ScaledDotOp, lhs: Array, rhs: Array, lhs_scale: Array, rhs_scale: Array) -> Array:
    """A dot of the operands times their scales, one scale for a block of equally many elements."""
    wide = []
    for value, scale in ((lhs, lhs_scale), (rhs, rhs_scale)):
        factor = scale.astype(np.float32)
        for dim, parts in enumerate(scale.shape):
            factor = factor.repeat(value.shape[dim] // max(1, parts), dim)
        wide.append(value.astype(np.float32) * factor)
    return narrow(contract(wide[0], wide[1], op.dims.data, "f32"), op.shape.dtype)


def convolution(op: hlo.ConvolutionOp, lhs: Array, rhs: Array) -> Array:
    """Windows of the padded, dilated lhs times the kernel, summed over window and input feature of the group."""
    dims, window = op.dims.data, op.window.data
    features, batches = op.feature_group_count.data, op.batch_group_count.data
    lhs, rhs = _rounded(op, lhs), _rounded(op, rhs)
    image = lhs.transpose(dims.lhs_batch, dims.lhs_feature, *dims.lhs_spatial)
    kernel = rhs.transpose(dims.rhs_output_feature, dims.rhs_input_feature, *dims.rhs_spatial)
    kernel = np.flip(kernel, tuple(2 + i for i, dim in enumerate(window) if dim.reversal))
    image = _dilate_and_pad(image, window, np.zeros((), image.dtype), leading=2)
    patches = _windows(image, window, leading=2)  # [n, c, *out, *k]
    rank, groups = len(window), features * batches
    out = patches.shape[2 : 2 + rank]
    n, c = image.shape[:2]
    taps = kernel.shape[1:]
    # [g, n, c, out, k] -> [g, n * out, c * k]; exactly one of the two group counts exceeds 1
    split = patches.reshape(batches, n // batches, features, c // features, *out, *(dim.size for dim in window))
    split = split.transpose(0, 2, 1, *range(4, 4 + rank), 3, *range(4 + rank, 4 + 2 * rank))
    left = split.reshape(groups, n // batches * _product(out), _product(taps))
    right = kernel.reshape(groups, kernel.shape[0] // groups, _product(taps)).transpose(0, 2, 1)
    product = narrow(_matmul(left, right, op.shape.dtype), op.shape.dtype)
    result = product.reshape(groups, n // batches, *out, -1 if product.size else kernel.shape[0] // groups)
    result = np.moveaxis(np.moveaxis(result, -1, 1), 2, 0)  # [n, g, o, out]
    result = result.reshape(n // batches, kernel.shape[0], *out)
    order = [dims.out_batch, dims.out_feature, *dims.out_spatial]
    return np.moveaxis(result, range(len(order)), order)


def _product(sizes: Sequence[int]) -> int:
    return int(np.prod(sizes, dtype=np.int64))


def _dilate_and_pad(x: Array, window: Sequence[hlo.WindowDim], value: Array, leading: int = 0) -> Array:
    """Base dilation, then edge padding (negative crops), on the dims after the first ``leading``."""
    dims = list(x.shape[:leading])
    for dim, size in zip(window, x.shape[leading:], strict=True):
        dilated = (size - 1) * dim.lhs_dilation + 1 if size else 0
        dims.append(max(0, dilated))
    dilated_x = np.full(dims, value, x.dtype)
    steps = (slice(None),) * leading + tuple(slice(None, None, dim.lhs_dilation) for dim in window)
    dilated_x[steps] = x
    crop = [slice(None)] * leading
    grow = [(0, 0)] * leading
    for dim, size in zip(window, dims[leading:], strict=True):
        crop.append(slice(min(size, max(0, -dim.pad_low)), max(0, size + min(0, dim.pad_high))))
        grow.append((max(0, dim.pad_low), max(0, dim.pad_high)))
    return np.pad(dilated_x[tuple(crop)], grow, constant_values=value)


def _windows(x: Array, window: Sequence[hlo.WindowDim], leading: int = 0) -> Array:
    """Read-only view ``[*leading dims, *out dims, *window sizes]``."""
    out, strides, taps = [], [], []
    for dim, size, stride in zip(window, x.shape[leading:], x.strides[leading:], strict=True):
        reach = (dim.size - 1) * dim.rhs_dilation + 1
        out.append(max(0, (size - reach) // dim.stride + 1) if size >= reach else 0)
        strides.append(stride * dim.stride)
        taps.append(stride * dim.rhs_dilation)
    words = x.view(np.uint8) if x.dtype.itemsize == 1 else x  # as_strided does not take 8-bit floats
    return np.lib.stride_tricks.as_strided(
        words,
        (*x.shape[:leading], *out, *(dim.size for dim in window)),
        (*x.strides[:leading], *strides, *taps),
        writeable=False,
    ).view(x.dtype)


def reduce(evaluator: Evaluator, op: hlo.ReduceOp, *args: Array) -> Value:
    """Folds the operands over ``dimensions`` by ``to_apply``, starting from the initial values."""
    count = len(args) // 2
    return fold(evaluator, op.to_apply.data[0], args[:count], args[count:], op.dimensions.data)


def fold(
    evaluator: Evaluator, name: str, arrays: Sequence[Array], initial: Sequence[Array], dimensions: Sequence[int]
) -> Value:
    """Folds ``arrays`` over ``dimensions`` by computation ``name``; one array, or a tuple of several."""
    opcode = evaluator.binary_opcode(name)
    if opcode in COMBINERS and len(arrays) == 1:
        return _fold_fast(COMBINERS[opcode], arrays[0], initial[0], tuple(dimensions))
    kept = [dim for dim in range(arrays[0].ndim) if dim not in dimensions]
    order = [*sorted(dimensions), *kept]
    dims = arrays[0].shape
    rows = [
        x.transpose(order).reshape(_product([dims[dim] for dim in dimensions]), *(dims[dim] for dim in kept))
        for x in arrays
    ]
    # neighbours are combined pairwise, which keeps their order and needs only log2(n) calls
    while rows[0].shape[0] > 1:
        even = rows[0].shape[0] // 2 * 2
        pairs = evaluator.call_on_arrays(name, *(x[:even:2] for x in rows), *(x[1:even:2] for x in rows))
        rows = [np.concatenate([pair, x[even:]]) for pair, x in zip(pairs, rows, strict=True)]
    starts = [np.broadcast_to(value, rows[0].shape[1:]) for value in initial]
    if rows[0].shape[0] == 0:
        return unpack(starts)
    return unpack(evaluator.call_on_arrays(name, *starts, *(x[0] for x in rows)))


def _fold_fast(ufunc: np.ufunc | Extreme, x: Array, initial: Array, dimensions: tuple[int, ...]) -> Array:
    wide = widen(x)
    if wide.dtype == np.bool_ and ufunc in (np.add, np.multiply):
        ufunc = np.logical_or if ufunc is np.add else np.logical_and
    if isinstance(ufunc, Extreme):
        if _product([x.shape[dim] for dim in dimensions]) == 0:
            return np.broadcast_to(initial, [size for dim, size in enumerate(x.shape) if dim not in dimensions])
        folded = ufunc.reduce(wide, axis=dimensions)
    else:
        folded = ufunc.reduce(wide, axis=dimensions, dtype=wide.dtype)
    return np.asarray(ufunc(folded, widen(initial))).astype(x.dtype)


def reduce_window(evaluator: Evaluator, op: hlo.ReduceWindowOp, *args: Array) -> Value:
    """Folds every window of the operands, padded with the initial values."""
    count, window = len(args) // 2, op.window.data
    views = [
        _windows(_dilate_and_pad(x, window, initial), window)
        for x, initial in zip(args[:count], args[count:], strict=True)
    ]
    rank = len(window)
    return fold(evaluator, op.to_apply.data[0], views, args[count:], range(rank, 2 * rank))


def select_and_scatter(
    evaluator: Evaluator, op: hlo.SelectAndScatterOp, operand: Array, source: Array, initial: Array
) -> Array:
    """Scatters each source element to the element of its window that ``to_apply[0]`` selects; padding never wins."""
    select, scatter = op.to_apply.data
    window = op.window.data
    lowest = op.padding is not None
    edge = np.array(-np.inf).astype(operand.dtype) if lowest else np.zeros((), operand.dtype)
    padded = _dilate_and_pad(operand, window, edge)
    flat = np.arange(operand.size, dtype=np.int64).reshape(operand.shape)
    places = _windows(_dilate_and_pad(flat, window, np.array(-1, np.int64)), window)
    views = _windows(padded, window)
    rank, dims = len(window), source.shape
    best, where, chosen = np.zeros(dims, operand.dtype), np.full(dims, -1, np.int64), np.zeros(dims, np.bool_)
    for tap in np.ndindex(views.shape[rank:]):
        at = (Ellipsis, *tap)
        value, place = views[at], places[at]
        keeps = evaluator.call_on_arrays(select, best, value)[0]
        takes = (lowest | (place >= 0)) & (~chosen | ~keeps)
        best, where = np.where(takes, value, best), np.where(takes, place, where)
        chosen |= takes
    result = np.full(operand.size, initial, operand.dtype)
    for place, value in zip(where.reshape(-1), source.reshape(-1), strict=True):
        if place >= 0:
            result[place] = evaluator.call_on_arrays(scatter, result[place], np.asarray(value))[0]
    return result.reshape(operand.shape)


COMPUTE: dict[str, Callable[..., Value]] = {
    "convolution": convolution,
    "dot": dot,
    "ragged-dot": ragged_dot,
    "scaled-dot": scaled_dot,
}

COMPUTE_CALLING: dict[str, Callable[..., Value]] = {
    "reduce": reduce,
    "reduce-window": reduce_window,
    "select-and-scatter": select_and_scatter,
}
