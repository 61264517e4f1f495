"""Convolutions of each feature by itself, of arrays that lie on chip with features on the partitions.

TensorE would multiply with matrices of which only the diagonal is used, and these have to be made. Here Vector adds up
shifted copies, each scaled by one value a partition. Sums are FP32, of which Scalar makes narrower results; products of
narrower inputs and kernels are as exact as TensorE's.
"""

from __future__ import annotations

from itertools import groupby

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.maps.plan import load_stream, resident_view
from neuronx_cc.codegen.maps.spread import Partitions
from neuronx_cc.codegen.movement import column_kernel
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, Tile, Timing
from neuronx_cc.ir.types import FLOATS, WIDE_FLOATS, itemsize
from neuronx_cc.passes.analysis.convolutions import is_depthwise


def lower(context: Context, op: hlo.ConvolutionOp) -> bool:
    """Emit the convolution and give its result a home; False, and nothing done, where another kernel has to do it."""
    if not _is_depthwise(context, op):
        return False
    dims = op.dims.data
    order = [dims.lhs_feature, dims.lhs_batch, *dims.lhs_spatial]
    found = [_block(view.transpose(order)) for view in context.views(op.lhs) if view.in_sbuf]
    source = next((x for x in found if x is not None and _pays(context.timing, op, x.dims[0].size)), None)
    target = _result(context, op, source) if source is not None else None
    result = None if target is None else _block(target.transpose([dims.out_feature, dims.out_batch, *dims.out_spatial]))
    if source is None or target is None or result is None:
        return False
    context.homes[op.result] = [target]
    kernel = context.dense(context.source_of(op.rhs)).transpose(
        [dims.rhs_output_feature, dims.rhs_input_feature, *dims.rhs_spatial]
    )
    _emit(context, op, result, source, kernel)
    return True


def _is_depthwise(context: Context, op: hlo.ConvolutionOp) -> bool:
    shapes = [hlo.shape_of(value) for value in (op.lhs, op.rhs, op.result)]
    return (
        is_depthwise(op)
        and {shape.dtype for shape in shapes} <= FLOATS
        and shapes[2].dtype in WIDE_FLOATS
        and all(shape.size for shape in shapes)
        and op.lhs not in context.load_casts
    )


def _pays(timing: Timing, op: hlo.ConvolutionOp, partitions: int) -> bool:
    """Whether sums of shifted copies of ``partitions`` features at a time take less time than products.

    TensorE multiplies as many features at a time as it has rows with matrices, whose diagonals are loaded element by
    element, one after the other; the input is copied between its padding, and sums leave PSUM.
    """
    (window,) = op.window.data
    features, sizes = op.feature_group_count.data, timing.sizes
    positions, dtype = op.shape.size // features, hlo.shape_of(op.lhs).dtype
    taps = timing.engine("tensor_scalar", Stream.VECTOR, positions, ins=(Tile(dtype),), alu=("multiply",))
    ins = Tile(dtype), F32
    more = timing.engine("scalar_tensor_tensor", Stream.VECTOR, positions, ins=ins, alu=("multiply", "add"))
    copies = (taps + more.times(window.size - 1)).times(features / partitions)
    rows = min(features, sizes.rows)
    product = timing.product(rows, sizes.bank_columns, dtype).times(positions / sizes.bank_columns)
    width = itemsize(dtype)
    matrix = timing.engine("memset", Stream.GPSIMD, rows, ins=()) + timing.transfer(rows * width, width)
    products = (product + matrix).times(window.size)
    products += timing.engine("tensor_copy", Stream.VECTOR, positions)
    products += timing.engine("activation", Stream.SCALAR, positions, (F32,), (F32_PSUM,), ("copy",))
    loads = timing.transfer_latency * window.size
    return copies.bound < (products.bound + loads) * (features / rows)


def _block(view: View) -> Block | None:
    """[partitions, outer features, inner features, batch, positions] of [features, batch, positions]; None where
    partitions hold others, or a row is no single run.
    """
    feature = view.dims[0]
    at = next((index for index, atom in enumerate(feature) if atom.partition), -1)
    runs = feature[:at], feature[at + 1 :], *view.dims[1:]
    if at < 0 or any(len(atoms) > 1 for atoms in runs):
        return None
    return Block(
        view.alloc, view.dtype, view.start, (feature[at], *(atoms[0] if atoms else Atom(1, 0) for atoms in runs))
    )


def _result(context: Context, op: hlo.ConvolutionOp, source: Block) -> View | None:
    """A home on chip with features where those of ``source`` are; None where it does not fit, or goes elsewhere."""
    shape, (partitions, _, inner, *_) = op.shape, source.dims
    if op.result in context.outputs:
        return None
    alloc = context.new_resident(op.result, shape.nbytes // partitions.size)
    features = Partitions(op.dims.data.out_feature, partitions.size, inner.size)
    return None if alloc is None else resident_view(alloc, shape.dtype, shape.dims, features)


def _emit(context: Context, op: hlo.ConvolutionOp, target: Block, source: Block, kernel: View) -> None:
    builder = context.builder
    (window,) = op.window.data
    pool = TilePool(builder, "kernel of each feature", 2)
    scales = _scales(context, op, kernel, pool, source)
    partitions, outers, inners, batches, _ = (atom.size for atom in source.dims)
    for batch in builder.each(batches, 1):
        for inner in builder.each(inners, 1):
            with builder.loop(outers) as outer:
                row, made = (block.index(1, outer).index(1, inner).index(1, batch) for block in (source, target))
                narrow = made.dtype != "f32"
                sums = pool.tile([made.dims[1].size], "f32", partitions) if narrow else made
                _row(context, window, row, sums, scales.index(2, outer, 1).index(3, inner, 1))
                if narrow:
                    builder.emit("activation", Stream.SCALAR, [made], [sums], ["copy"], [1.0])
                    pool.give_back(sums)
    pool.free()


def _scales(context: Context, op: hlo.ConvolutionOp, kernel: View, pool: TilePool, source: Block) -> Block:
    """The kernel on chip, [partitions, taps, outer, inner features] in FP32, rounded as the operand is."""
    builder, (window,) = context.builder, op.window.data
    partitions, outer, inner = (atom.size for atom in source.dims[:3])
    stride, step = kernel.dims[0][0].stride, kernel.dims[2][0].stride if window.size > 1 else 0
    dims = (
        Atom(partitions, inner * stride),
        Atom(window.size, step),
        Atom(outer, partitions * inner * stride),
        Atom(inner, stride),
    )
    loaded, *casts = (
        pool.apart([window.size, outer, inner], dtype, partitions)
        for dtype, _ in groupby((kernel.dtype, hlo.shape_of(op.rhs).dtype, "f32"))
    )
    column_kernel.copy(builder, loaded, Block(kernel.alloc, kernel.dtype, kernel.start, dims), load_stream(op.rhs))
    for cast in casts:
        builder.emit("tensor_copy", Stream.VECTOR, [cast], [loaded])
        loaded = cast
    return loaded


def _row(context: Context, window: hlo.WindowDim, x: Block, y: Block, scales: Block) -> None:
    """``y[o] = sum over k of x[o stride + k dilation - low] scales[k]`` for [partitions, positions]."""
    builder = context.builder
    length, count = x.dims[1].size, y.dims[1].size
    taps = []
    for tap in range(window.size):
        shift = tap * window.rhs_dilation - window.pad_low
        first = max(0, -(shift // window.stride))
        last = min(count, (length - 1 - shift) // window.stride + 1)
        taps.append(
            (last - first, first, first * window.stride + shift, window.size - 1 - tap if window.reversal else tap)
        )
    taps.sort(key=lambda tap: -tap[0])
    if taps[0][0] < count:
        builder.emit("memset", Stream.VECTOR, [y], [], imm=[0.0])
    for number, (size, first, start, tap) in enumerate(taps):
        if size <= 0:
            continue
        out = y.index(1, Affine(first), size)
        source = x.index(1, Affine(start), size)
        source = replace(source, dims=(source.dims[0], Atom(size, x.dims[1].stride * window.stride)))
        scale = scales.index(1, Affine(tap), 1)
        scale = replace(scale, dims=scale.dims[:1])
        if number == 0 and size == count:
            builder.emit("tensor_scalar", Stream.VECTOR, [out], [source, scale], ["multiply"], [], ["ap0"])
        else:
            operands = [source, out, scale]
            builder.emit("scalar_tensor_tensor", Stream.VECTOR, [out], operands, ["multiply", "add"], [], ["ap0"])
