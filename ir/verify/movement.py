"""Rules of constants, shape changes, slicing and indexing (XLA: shape_inference.cc)."""

from typing import Any

from neuronx_cc.ir.types import Shape, bits
from neuronx_cc.ir.verify.rule import (
    ANY,
    array_rule,
    dims_in_range,
    dims_text,
    expect_dims,
    expect_dtype,
    is_integer,
)


@array_rule("constant", operands=0)
def _constant(op: Any, shapes: list[Shape], result: Shape) -> str:
    return ""


@array_rule("iota", operands=0)
def _iota(op: Any, shapes: list[Shape], result: Shape) -> str:
    if result.dtype == "pred":
        return "expected a numeric result, found pred"
    return dims_in_range("iota_dimension", (op.iota_dimension.data,), result.rank)


@array_rule("reshape", "dynamic-reshape", operands=(1, ANY))
def _reshape(op: Any, shapes: list[Shape], result: Shape) -> str:
    if len(shapes) > 1 and op.name == "hlo.reshape":
        return f"expected 1 operand, found {len(shapes)}"
    if shapes[0].size != result.size:
        return f"expected a result of {shapes[0].size} elements as {shapes[0]}, found {result}"
    return expect_dtype("a result", shapes[0].dtype, result.dtype)


@array_rule("bitcast")
def _bitcast(op: Any, shapes: list[Shape], result: Shape) -> str:
    found, expected = result.size * bits(result.dtype), shapes[0].size * bits(shapes[0].dtype)
    return "" if found == expected else f"expected a result of {expected} bits as {shapes[0]}, found {result}"


@array_rule("bitcast-convert")
def _bitcast_convert(op: Any, shapes: list[Shape], result: Shape) -> str:
    operand = shapes[0]
    old, new = bits(operand.dtype), bits(result.dtype)
    if (operand.dtype == "pred") != (result.dtype == "pred"):
        return f"expected pred on both sides or neither, found {operand} and {result}"
    if old == new:
        expected = operand.dims
    elif old > new:
        expected = (*operand.dims, old // new)
    else:
        if operand.rank == 0 or operand.dims[-1] != new // old:
            return f"expected an operand whose last dim is {new // old} to become {result.dtype}, found {operand}"
        expected = operand.dims[:-1]
    return expect_dims("a result", expected, result.dims)


@array_rule("broadcast")
def _broadcast(op: Any, shapes: list[Shape], result: Shape) -> str:
    operand, dims = shapes[0], op.dimensions.data
    if len(dims) != operand.rank:
        return f"expected one of dimensions for each of the {operand.rank} dims of {operand}, found {dims_text(dims)}"
    if problem := dims_in_range("dimensions", dims, result.rank):
        return problem
    kept = tuple(result.dims[dim] for dim in dims)
    if kept != operand.dims:
        return (
            f"expected result dims {dims_text(dims)} to be {dims_text(operand.dims)}, "
            f"found {dims_text(kept)} in {result}"
        )
    return expect_dtype("a result", operand.dtype, result.dtype)


@array_rule("transpose")
def _transpose(op: Any, shapes: list[Shape], result: Shape) -> str:
    operand, dims = shapes[0], op.dimensions.data
    if sorted(dims) != list(range(operand.rank)):
        return f"expected dimensions to permute the {operand.rank} dims of {operand}, found {dims_text(dims)}"
    return expect_dims("a result", tuple(operand.dims[dim] for dim in dims), result.dims) or expect_dtype(
        "a result", operand.dtype, result.dtype
    )


@array_rule("reverse")
def _reverse(op: Any, shapes: list[Shape], result: Shape) -> str:
    if problem := dims_in_range("dimensions", op.dimensions.data, shapes[0].rank):
        return problem
    return "" if shapes[0] == result else f"expected a result of {shapes[0]}, found {result}"


@array_rule("concatenate", operands=(1, ANY))
def _concatenate(op: Any, shapes: list[Shape], result: Shape) -> str:
    first, dim = shapes[0], op.dimension.data
    if problem := dims_in_range("dimensions", (dim,), first.rank):
        return problem
    for shape in shapes[1:]:
        if (
            shape.dtype != first.dtype
            or shape.rank != first.rank
            or any(a != b for n, (a, b) in enumerate(zip(shape.dims, first.dims, strict=True)) if n != dim)
        ):
            return f"expected operands that agree outside dimension {dim}, found {first} and {shape}"
    total = sum(shape.dims[dim] for shape in shapes)
    expected = (*first.dims[:dim], total, *first.dims[dim + 1 :])
    return expect_dims("a result", expected, result.dims) or expect_dtype("a result", first.dtype, result.dtype)


@array_rule("slice")
def _slice(op: Any, shapes: list[Shape], result: Shape) -> str:
    operand, dims = shapes[0], op.slice.data
    if len(dims) != operand.rank:
        return f"expected a slice of {operand.rank} dimensions for {operand}, found {len(dims)}"
    expected = []
    for number, (dim, size) in enumerate(zip(dims, operand.dims, strict=True)):
        if not (0 <= dim.start <= dim.limit <= size and dim.stride >= 1):
            return (
                f"expected 0 <= start <= limit <= {size} and stride >= 1 in dimension {number}, "
                f"found [{dim.start}:{dim.limit}:{dim.stride}]"
            )
        expected.append(-(-(dim.limit - dim.start) // dim.stride))
    return expect_dims("a result", tuple(expected), result.dims) or expect_dtype(
        "a result", operand.dtype, result.dtype
    )


@array_rule("pad", operands=2)
def _pad(op: Any, shapes: list[Shape], result: Shape) -> str:
    operand, value = shapes
    padding = op.padding.data
    if value.rank or value.dtype != operand.dtype:
        return f"expected a padding value of {operand.dtype}[], found {value}"
    if len(padding) != operand.rank:
        return f"expected a padding of {operand.rank} dimensions for {operand}, found {len(padding)}"
    expected = []
    for number, (pad, size) in enumerate(zip(padding, operand.dims, strict=True)):
        padded = pad.low + size + pad.high + max(size - 1, 0) * pad.interior
        if pad.interior < 0 or padded < 0:
            return (
                f"expected interior padding of 0 or more and a padded size of 0 or more in dimension {number}, "
                f"found {pad.low}_{pad.high}_{pad.interior} on size {size}"
            )
        expected.append(padded)
    return expect_dims("a result", tuple(expected), result.dims) or expect_dtype(
        "a result", operand.dtype, result.dtype
    )


def _start_indices(rank: int, indices: list[Shape]) -> str:
    if len(indices) != rank:
        return f"expected {rank} start indices, found {len(indices)}"
    for index in indices:
        if index.rank or not is_integer(index.dtype) or index.dtype != indices[0].dtype:
            return f"expected scalar start indices of one integer type, found {index}"
    return ""


@array_rule("dynamic-slice", operands=(1, ANY))
def _dynamic_slice(op: Any, shapes: list[Shape], result: Shape) -> str:
    operand, sizes = shapes[0], op.dynamic_slice_sizes.data
    if problem := _start_indices(operand.rank, shapes[1:]):
        return problem
    if len(sizes) != operand.rank or any(not 0 <= s <= d for s, d in zip(sizes, operand.dims, strict=True)):
        return f"expected slice sizes within {operand}, found {dims_text(sizes)}"
    return expect_dims("a result", sizes, result.dims) or expect_dtype("a result", operand.dtype, result.dtype)


@array_rule("dynamic-update-slice", operands=(2, ANY))
def _dynamic_update_slice(op: Any, shapes: list[Shape], result: Shape) -> str:
    operand, update = shapes[:2]
    if problem := _start_indices(operand.rank, shapes[2:]):
        return problem
    if (
        update.dtype != operand.dtype
        or update.rank != operand.rank
        or any(u > d for u, d in zip(update.dims, operand.dims, strict=True))
    ):
        return f"expected an update that fits into {operand}, found {update}"
    return "" if result == operand else f"expected a result of {operand}, found {result}"


@array_rule("get-dimension-size")
def _get_dimension_size(op: Any, shapes: list[Shape], result: Shape) -> str:
    if problem := dims_in_range("dimensions", (op.dimension.data,), shapes[0].rank):
        return problem
    return "" if result == Shape("s32", ()) else f"expected a result of s32[], found {result}"


@array_rule("set-dimension-size", operands=2)
def _set_dimension_size(op: Any, shapes: list[Shape], result: Shape) -> str:
    if shapes[1] != Shape("s32", ()):
        return f"expected a size of s32[], found {shapes[1]}"
    return dims_in_range("dimensions", (op.dimension.data,), shapes[0].rank) or (
        "" if result == shapes[0] else f"expected a result of {shapes[0]}, found {result}"
    )


@array_rule("gather", operands=2)
def _gather(op: Any, shapes: list[Shape], result: Shape) -> str:
    operand, indices = shapes
    numbers, sizes = op.dims.data, op.slice_sizes.data
    vector = numbers.index_vector_dim
    dropped = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    problem = (
        _indices("start", indices, vector)
        or _index_map(numbers.start_index_map, operand, indices, vector)
        or dims_in_range("collapsed_slice_dims and operand_batching_dims", dropped, operand.rank)
        or _batching(numbers.operand_batching_dims, numbers.start_indices_batching_dims, operand, indices, vector)
        or dims_in_range("offset_dims", numbers.offset_dims, result.rank)
    )
    if problem:
        return problem
    batch_dims = tuple(size for dim, size in enumerate(indices.dims) if dim != vector)
    if list(numbers.offset_dims) != sorted(numbers.offset_dims):
        return f"expected sorted offset_dims, found {dims_text(numbers.offset_dims)}"
    if len(sizes) != operand.rank or any(not 0 <= s <= d for s, d in zip(sizes, operand.dims, strict=True)):
        return f"expected slice_sizes within {operand}, found {dims_text(sizes)}"
    if any(sizes[dim] > 1 for dim in dropped):
        return f"expected slice_sizes of at most 1 in collapsed and batching dims, found {dims_text(sizes)}"
    window = [size for dim, size in enumerate(sizes) if dim not in dropped]
    if len(window) != len(numbers.offset_dims):
        return f"expected {len(window)} offset_dims, found {dims_text(numbers.offset_dims)}"
    if result.rank != len(window) + len(batch_dims):
        return f"expected a result of rank {len(window) + len(batch_dims)}, found {result}"
    windows, batches = iter(window), iter(batch_dims)
    expected = tuple(next(windows if dim in numbers.offset_dims else batches) for dim in range(result.rank))
    return expect_dims("a result", expected, result.dims) or expect_dtype("a result", operand.dtype, result.dtype)


def _indices(kind: str, indices: Shape, vector: int) -> str:
    if not is_integer(indices.dtype):
        return f"expected {kind} indices of an integer type, found {indices}"
    if not 0 <= vector <= indices.rank:
        return f"expected index_vector_dim between 0 and {indices.rank}, found {vector}"
    return ""


def _index_map(index_map: tuple[int, ...], operand: Shape, indices: Shape, vector: int) -> str:
    length = 1 if vector == indices.rank else indices.dims[vector]
    if len(index_map) != length:
        return f"expected {length} indexed dims, as long as an index vector of {indices}, found {dims_text(index_map)}"
    return dims_in_range("indexed dims", index_map, operand.rank)


def _batching(
    operand_dims: tuple[int, ...], index_dims: tuple[int, ...], operand: Shape, indices: Shape, vector: int
) -> str:
    if len(operand_dims) != len(index_dims):
        return f"expected paired batching dims, found {dims_text(operand_dims)} and {dims_text(index_dims)}"
    if problem := dims_in_range("batching dims of the indices", index_dims, indices.rank):
        return problem
    if vector in index_dims:
        return f"expected batching dims other than index_vector_dim {vector}, found {dims_text(index_dims)}"
    for left, right in zip(operand_dims, index_dims, strict=True):
        if operand.dims[left] != indices.dims[right]:
            return f"expected batching dims of equal size, found {operand.dims[left]} and {indices.dims[right]}"
    return ""


def scatter_shapes(op: Any, operands: list[Shape], indices: Shape, updates: list[Shape]) -> str:
    """Rules of scatter apart from its combiner."""
    numbers, operand, update = op.dims.data, operands[0], updates[0]
    vector = numbers.index_vector_dim
    dropped = (*numbers.inserted_window_dims, *numbers.input_batching_dims)
    problem = (
        _indices("scatter", indices, vector)
        or _index_map(numbers.scatter_dims_to_operand_dims, operand, indices, vector)
        or dims_in_range("inserted_window_dims and input_batching_dims", dropped, operand.rank)
        or _batching(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, operand, indices, vector)
        or dims_in_range("update_window_dims", numbers.update_window_dims, update.rank)
    )
    if problem:
        return problem
    batch_dims = tuple(size for dim, size in enumerate(indices.dims) if dim != vector)
    window_limits = [size for dim, size in enumerate(operand.dims) if dim not in dropped]
    if update.rank != len(batch_dims) + len(numbers.update_window_dims):
        return f"expected updates of rank {len(batch_dims) + len(numbers.update_window_dims)}, found {update}"
    if len(numbers.update_window_dims) != len(window_limits):
        return f"expected {len(window_limits)} update_window_dims, found {dims_text(numbers.update_window_dims)}"
    scattered = tuple(size for dim, size in enumerate(update.dims) if dim not in numbers.update_window_dims)
    if scattered != batch_dims:
        return f"expected update dims {dims_text(batch_dims)} beside the window, found {dims_text(scattered)}"
    for dim, limit in zip(numbers.update_window_dims, window_limits, strict=True):
        if update.dims[dim] > limit:
            return f"expected update window dim {dim} of at most {limit}, found {update.dims[dim]}"
    for other, other_update in zip(operands, updates, strict=True):
        if other.dims != operand.dims or other_update.dims != update.dims or other.dtype != other_update.dtype:
            return f"expected operands and updates that agree, found {other} and {other_update}"
    return ""
