"""Convolutions of patches that do not overlap as dots, for the pass ``canonicalize``.

Three forms: windows side by side (embeddings of patches), the gradient of their kernel, which is a convolution with a
dilated window, and the gradient of their image (also an upsampling by its window), which dilates the image. In each,
every element of the image belongs to one patch, so that a reshape shows what is contracted. Small windows stay
convolutions, which need no other order of the image in memory.

Sums keep their terms; their order, which HLO leaves open, may change. Products with padding fall away.
"""

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import WindowDim
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.canonical.rule import Scope
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.expansions.reordered import inverse

Value = hlo.SSAValue
Axes = list[int]

LEAST_CONTRACTED, LEAST_SPREAD = 64, 16
"""Elements of a patch from which a dot is quicker."""


def patches(op: hlo.ConvolutionOp, scope: Scope) -> Value | None:
    """The dot for a convolution of large patches."""
    window = op.window.data
    if op.feature_group_count.data > 1 or op.batch_group_count.data > 1 or op.shape.size == 0:
        return None
    if not {op.shape.dtype, hlo.shape_of(op.lhs).dtype, hlo.shape_of(op.rhs).dtype} <= FLOATS:
        return None
    image = [hlo.shape_of(op.lhs).dims[axis] for axis in op.dims.data.lhs_spatial]
    sums = [op.shape.dims[axis] for axis in op.dims.data.out_spatial]
    build = Build.before(scope.module, op)
    sides = list(zip(window, image, sums, strict=True))
    taps = prod(dim.size for dim in window)
    if taps > 1 and prod(sums) >= LEAST_CONTRACTED and all(_interleaved(*side) for side in sides):
        return _contracted(op, build, inner=False)
    if taps >= LEAST_CONTRACTED and all(_side_by_side(*side) for side in sides):
        return _contracted(op, build, inner=True)
    return _spread(op, build) if taps >= LEAST_SPREAD and all(_dilates(*side) for side in sides) else None


def _side_by_side(dim: WindowDim, image: int, sums: int) -> bool:
    return dim == WindowDim(dim.size, dim.size) and sums * dim.size <= image


def _interleaved(dim: WindowDim, image: int, sums: int) -> bool:
    """Whether the window takes every ``sums``-th element."""
    apart = dim.size == 1 or dim.rhs_dilation == sums
    plain = (dim.stride, dim.pad_low, dim.lhs_dilation, dim.reversal) == (1, 0, 1, False)
    return apart and plain and dim.pad_high <= 0 and sums * dim.size <= image


def _dilates(dim: WindowDim, image: int, sums: int) -> bool:
    """Whether each element of the image has a window of results of its own."""
    plain = (dim.stride, dim.lhs_dilation, dim.pad_low) == (1, dim.size, dim.size - 1)
    return plain and (dim.rhs_dilation == 1 or dim.size == 1) and sums >= image * dim.size


def _contracted(op: hlo.ConvolutionOp, build: Build, inner: bool) -> Value:
    """Each dim of the image as (results, window), or as (window, results) with ``inner`` false; windows contracted."""
    dims, image = op.dims.data, op.lhs
    split: Axes = []
    kept: dict[int, int] = {}
    contracted: dict[int, int] = {}
    for axis, size in enumerate(hlo.shape_of(op.lhs).dims):
        if axis not in dims.lhs_spatial:
            (contracted if axis == dims.lhs_feature else kept)[axis] = len(split)
            split.append(size)
            continue
        number = dims.lhs_spatial.index(axis)
        taps, count = op.window.data[number].size, op.shape.dims[dims.out_spatial[number]]
        image = build.slice(image, axis, 0, taps * count)
        kept[axis] = len(split) + (0 if inner else 1)
        contracted[axis] = len(split) + (1 if inner else 0)
        split += [count, taps] if inner else [taps, count]
    # both in the order in which they lie in memory
    results = dict(zip((dims.lhs_batch, *dims.lhs_spatial), (dims.out_batch, *dims.out_spatial), strict=True))
    order = [dims.rhs_input_feature, *dims.rhs_spatial]
    taken = dict(zip(order, (dims.lhs_feature, *dims.lhs_spatial), strict=True))
    order.sort()
    rows, columns = [kept[axis] for axis in sorted(results)], [contracted[taken[axis]] for axis in order]
    lhs = _matrix(build, build.reshape(image, split), *((rows, columns) if inner else (columns, rows)))
    sums = _dot(op, build, lhs, _matrix(build, op.rhs, order, [dims.rhs_output_feature]), 1 if inner else 0)
    made = [*(results[axis] for axis in sorted(results)), dims.out_feature]
    return build.transpose(build.reshape(sums, [op.shape.dims[axis] for axis in made]), inverse(made))


def _spread(op: hlo.ConvolutionOp, build: Build) -> Value:
    """Each element of the image times the whole kernel, window by window."""
    dims, kernel = op.dims.data, op.rhs
    reversed_dims = [dims.rhs_spatial[n] for n, dim in enumerate(op.window.data) if dim.size > 1 and not dim.reversal]
    kernel = build.reverse(kernel, reversed_dims) if reversed_dims else kernel
    positions = [dims.lhs_batch, *dims.lhs_spatial]
    windows = [*dims.rhs_spatial, dims.rhs_output_feature]
    lhs = _matrix(build, op.lhs, positions, [dims.lhs_feature])
    rhs = _matrix(build, kernel, [dims.rhs_input_feature], windows)
    image = [hlo.shape_of(op.lhs).dims[axis] for axis in positions]
    sums = build.reshape(_dot(op, build, lhs, rhs), [*image, *(hlo.shape_of(kernel).dims[axis] for axis in windows)])
    count = len(dims.lhs_spatial)
    pairs = {axis: [1 + n, 1 + count + n] for n, axis in enumerate(dims.out_spatial)}
    pairs |= {dims.out_batch: [0], dims.out_feature: [1 + 2 * count]}
    sums = build.transpose(sums, [dim for axis in range(count + 2) for dim in pairs[axis]])
    sizes = list(op.shape.dims)
    for number, axis in enumerate(dims.out_spatial):
        sizes[axis] = image[1 + number] * op.window.data[number].size
    padding = [(0, whole - size) for whole, size in zip(op.shape.dims, sizes, strict=True)]
    sums = build.reshape(sums, sizes)
    return build.pad(sums, padding) if any(high for _, high in padding) else sums


def _matrix(build: Build, value: Value, rows: Axes, columns: Axes) -> Value:
    sizes = hlo.shape_of(value).dims
    ordered = build.transpose(value, [*rows, *columns])
    return build.reshape(ordered, [prod(sizes[axis] for axis in rows), prod(sizes[axis] for axis in columns)])


def _dot(op: hlo.ConvolutionOp, build: Build, lhs: Value, rhs: Value, contracted: int = 1) -> Value:
    """The product of two matrices over dim ``contracted`` of the first and the rows of the second."""
    properties = {} if op.operand_precision is None else {"operand_precision": op.operand_precision}
    made = hlo.array_type(op.shape.dtype, (hlo.shape_of(lhs).dims[1 - contracted], hlo.shape_of(rhs).dims[1]))
    dims = hlo.DotDimsAttr(hlo.DotDims((contracted,), (0,)))
    return build.typed(hlo.DotOp, (lhs, rhs), made, dims=dims, **properties)
