"""Rules of contractions, windows, reductions, sorting, normalisation, linear algebra and random numbers."""

from typing import Any

from neuronx_cc.ir.hlo import ArrayType, ComputationOp, DotDims, TupleType, array_type, tuple_type
from neuronx_cc.ir.types import Shape
from neuronx_cc.ir.verify.movement import scatter_shapes
from neuronx_cc.ir.verify.rule import (
    ANY,
    Computations,
    array_rule,
    call_rule,
    dims_in_range,
    dims_text,
    expect_dims,
    expect_dtype,
    expect_type,
    is_complex,
    is_float,
    is_integer,
    same_but_precision,
    show,
    type_rule,
)

_RNG = frozenset(["rng_uniform", "rng_normal"])
_FFT = frozenset(["FFT", "IFFT", "RFFT", "IRFFT"])
_TRANSPOSE = frozenset(["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])


def _mixes_complex(shapes: list[Shape]) -> str:
    """What is wrong where some of the operands and the result are complex, and others are not."""
    if len({is_complex(shape.dtype) for shape in shapes}) == 1:
        return ""
    return f"expected operands and result all complex or all real, found {', '.join(map(str, shapes))}"


@array_rule("dot", operands=2)
def _dot(op: Any, shapes: list[Shape], result: Shape) -> str:
    if problem := _mixes_complex([*shapes, result]):
        return problem
    lhs, rhs = shapes
    return _dot_dims(op.dims.data, lhs, rhs) or expect_dims("a result", dot_result(op.dims.data, lhs, rhs), result.dims)


def _dot_dims(dims: DotDims, lhs: Shape, rhs: Shape, groups: tuple[int, ...] = ()) -> str:
    """What is wrong with the dimension numbers of a contraction; ``groups`` are dims of rhs that it leaves alone."""
    left, right = (*dims.lhs_batch, *dims.lhs_contracting), (*groups, *dims.rhs_batch, *dims.rhs_contracting)
    problem = dims_in_range("lhs batch and contracting dims", left, lhs.rank) or dims_in_range(
        "rhs group, batch and contracting dims" if groups else "rhs batch and contracting dims", right, rhs.rank
    )
    if problem:
        return problem
    for what, ours, theirs in (
        ("batch", dims.lhs_batch, dims.rhs_batch),
        ("contracting", dims.lhs_contracting, dims.rhs_contracting),
    ):
        if tuple(lhs.dims[dim] for dim in ours) != tuple(rhs.dims[dim] for dim in theirs):
            return (
                f"expected {what} dims of equal sizes, "
                f"found {dims_text(ours)} of {lhs} and {dims_text(theirs)} of {rhs}"
            )
    return ""


def dot_result(dims: DotDims, lhs: Shape, rhs: Shape, groups: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Batch dims, free dims of lhs, free dims of rhs."""
    left, right = (*dims.lhs_batch, *dims.lhs_contracting), (*groups, *dims.rhs_batch, *dims.rhs_contracting)
    return (
        *(lhs.dims[dim] for dim in dims.lhs_batch),
        *(size for dim, size in enumerate(lhs.dims) if dim not in left),
        *(size for dim, size in enumerate(rhs.dims) if dim not in right),
    )


@array_rule("ragged-dot", operands=3)
def _ragged_dot(op: Any, shapes: list[Shape], result: Shape) -> str:
    """The three modes of chlo.ragged_dot: the ragged dim is a free, a contracting or a batch dim of lhs."""
    lhs, rhs, sizes = shapes
    dims, ragged, groups = op.dims.data, op.ragged_dims.data, op.group_dims.data
    if not is_integer(sizes.dtype) or sizes.rank < 1:
        return f"expected group sizes of an integer type and rank 1 or more, found {sizes}"
    if len(ragged) != 1 or not 0 <= ragged[0] < lhs.rank:
        return f"expected one lhs ragged dim between 0 and {lhs.rank - 1}, found {dims_text(ragged)}"
    free = ragged[0] not in (*dims.lhs_batch, *dims.lhs_contracting)
    if len(groups) != free or any(not 0 <= dim < rhs.rank for dim in groups):
        return f"expected {int(free)} rhs group dims between 0 and {rhs.rank - 1}, found {dims_text(groups)}"
    if problem := _dot_dims(dims, lhs, rhs, groups):
        return problem
    count = sizes.dims[-1]
    if free and rhs.dims[groups[0]] != count:
        return f"expected {count} elements along the rhs group dim, one for each group size, found {rhs}"
    leading = (count,) if ragged[0] in dims.lhs_contracting else ()
    return expect_dims("a result", (*leading, *dot_result(dims, lhs, rhs, groups)), result.dims)


@array_rule("scaled-dot", operands=4)
def _scaled_dot(op: Any, shapes: list[Shape], result: Shape) -> str:
    return _dot(op, shapes[:2], result)


def window_result(base: tuple[int, ...], window: tuple[Any, ...]) -> tuple[tuple[int, ...], str]:
    """Dims of sliding ``window`` over ``base``, and what is wrong with the window."""
    if len(window) != len(base):
        return (), f"expected a window of {len(base)} dimensions, found {len(window)}"
    dims = []
    for number, (size, dim) in enumerate(zip(base, window, strict=True)):
        if dim.size < 1 or dim.stride < 1 or dim.lhs_dilation < 1 or dim.rhs_dilation < 1:
            return (), (
                f"expected window size, stride and dilations of 1 or more in dimension {number}, found "
                f"size {dim.size}, stride {dim.stride}, dilations {dim.lhs_dilation} and {dim.rhs_dilation}"
            )
        padded = (max(size - 1, 0) * dim.lhs_dilation + min(size, 1)) + dim.pad_low + dim.pad_high
        if padded < 0:
            return (), f"expected a padded size of 0 or more in dimension {number}, found {padded}"
        reach = (dim.size - 1) * dim.rhs_dilation + 1
        dims.append(0 if padded < reach else (padded - reach) // dim.stride + 1)
    return tuple(dims), ""


@array_rule("convolution", operands=2)
def _convolution(op: Any, shapes: list[Shape], result: Shape) -> str:
    if problem := _mixes_complex([*shapes, result]):
        return problem
    lhs, rhs = shapes
    dims, window = op.dims.data, op.window.data
    features, batches = op.feature_group_count.data, op.batch_group_count.data
    rank = 2 + len(dims.lhs_spatial)
    if lhs.rank != rank or rhs.rank != rank or result.rank != rank:
        return f"expected arrays of rank {rank} as dim_labels says, found {lhs}, {rhs} and {result}"
    if features < 1 or batches < 1 or (features > 1 and batches > 1):
        return f"expected group counts of 1 or more and not both above 1, found {features} and {batches}"
    spatial, problem = window_result(tuple(lhs.dims[dim] for dim in dims.lhs_spatial), window)
    if problem:
        return problem
    kernel = tuple(rhs.dims[dim] for dim in dims.rhs_spatial)
    if kernel != tuple(dim.size for dim in window):
        return f"expected a window as large as the kernel, {dims_text(kernel)}, found {[dim.size for dim in window]}"
    input_features, kernel_input = lhs.dims[dims.lhs_feature], rhs.dims[dims.rhs_input_feature]
    output_features, batch = rhs.dims[dims.rhs_output_feature], lhs.dims[dims.lhs_batch]
    if input_features != kernel_input * features:
        return f"expected {kernel_input} x {features} input features, found {input_features} in {lhs}"
    if output_features % features or output_features % batches or batch % batches:
        return (
            f"expected output features {output_features} and batch {batch} to divide by the group counts, "
            f"found {features} and {batches}"
        )
    expected = [0] * rank
    expected[dims.out_batch] = batch // batches
    expected[dims.out_feature] = output_features
    for dim, size in zip(dims.out_spatial, spatial, strict=True):
        expected[dim] = size
    return expect_dims("a result", tuple(expected), result.dims)


def _scalars(name: str, computation: ComputationOp, dtypes: list[str], returns: list[str]) -> str:
    """Whether ``computation`` takes and returns scalars of these types (precision of floats aside)."""
    arguments = [argument.type for argument in computation.block.args]
    wanted = [array_type(dtype, ()) for dtype in dtypes]
    if len(arguments) != len(wanted) or not all(map(same_but_precision, arguments, wanted)):
        shown = ", ".join(map(show, arguments[:8]))
        return f"expected {name} to take ({', '.join(map(show, wanted[:8]))}), found ({shown})"
    results = tuple(array_type(dtype, ()) for dtype in returns)
    wanted_result = results[0] if len(results) == 1 else tuple_type(results)
    root = computation.root.type
    single = isinstance(root, TupleType) and len(results) == 1 and same_but_precision(root, tuple_type(results))
    if not single and not same_but_precision(root, wanted_result):
        return f"expected {name} to return {show(wanted_result)}, found {show(root)}"
    return ""


def _called(op: Any, computations: Computations, index: int = 0) -> ComputationOp:
    return computations[op.to_apply.data[index]]


def _arrays(operands: list[Any]) -> list[Shape] | None:
    shapes = [operand.data for operand in operands if isinstance(operand, ArrayType)]
    return shapes if len(shapes) == len(operands) else None


def _results(result: Any) -> list[Shape] | None:
    """Shapes of an array result, or of a tuple of arrays."""
    return _arrays(list(result.data)) if isinstance(result, TupleType) else _arrays([result])


def _halves(operands: list[Any], result: Any) -> tuple[list[Shape], list[Shape], list[Shape], str]:
    shapes, results = _arrays(operands), _results(result)
    if shapes is None or results is None:
        return [], [], [], "expected arrays as operands and results"
    if len(shapes) % 2 or not shapes:
        return [], [], [], f"expected as many initial values as operands, found {len(shapes)} in all"
    half = len(shapes) // 2
    inputs, initial = shapes[:half], shapes[half:]
    if any(shape.rank for shape in initial):
        return [], [], [], f"expected scalar initial values, found {', '.join(map(str, initial))}"
    if any(shape.dims != inputs[0].dims for shape in inputs):
        return [], [], [], f"expected operands of one size, found {', '.join(map(str, inputs))}"
    if len(results) != half:
        return [], [], [], f"expected {half} results, found {len(results)}"
    return inputs, initial, results, ""


def _folded(
    op: Any, initial: list[Shape], results: list[Shape], dims: tuple[int, ...], computations: Computations
) -> str:
    for shape in results:
        if problem := expect_dims("a result", dims, shape.dims):
            return problem
    dtypes = [shape.dtype for shape in initial]
    problem = _scalars(op.to_apply.data[0], _called(op, computations), dtypes * 2, dtypes)
    if problem:
        return problem
    for shape, start in zip(results, initial, strict=True):
        if not same_but_precision(array_type(shape.dtype, ()), array_type(start.dtype, ())):
            return f"expected a result of {start.dtype} as its initial value, found {shape}"
    return ""


@call_rule("reduce")
def _reduce(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    inputs, initial, results, problem = _halves(operands, result)
    problem = problem or dims_in_range("dimensions", op.dimensions.data, inputs[0].rank)
    if problem:
        return problem
    gone = set(op.dimensions.data)
    left = tuple(size for dim, size in enumerate(inputs[0].dims) if dim not in gone)
    return _folded(op, initial, results, left, computations)


@call_rule("reduce-window")
def _reduce_window(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    inputs, initial, results, problem = _halves(operands, result)
    if problem:
        return problem
    dims, problem = window_result(inputs[0].dims, op.window.data)
    return problem or _folded(op, initial, results, dims, computations)


@call_rule("select-and-scatter", operands=3)
def _select_and_scatter(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    shapes = _arrays(operands)
    if shapes is None or not isinstance(result, ArrayType):
        return "expected arrays as operands and result"
    operand, source, initial = shapes
    dims, problem = window_result(operand.dims, op.window.data)
    if problem:
        return problem
    dtype = operand.dtype
    return (
        expect_dims("a source", dims, source.dims)
        or expect_dims("an initial value", (), initial.dims)
        or expect_dims("a result", operand.dims, result.data.dims)
        or _scalars(op.to_apply.data[0], _called(op, computations), [dtype] * 2, ["pred"])
        or _scalars(op.to_apply.data[1], _called(op, computations, 1), [source.dtype] * 2, [source.dtype])
    )


@call_rule("map")
def _map(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    shapes = _arrays(operands)
    if not shapes or not isinstance(result, ArrayType):
        return "expected arrays as operands and result"
    if any(shape.dims != shapes[0].dims for shape in shapes):
        return f"expected operands of one size, found {', '.join(map(str, shapes))}"
    dtypes = [shape.dtype for shape in shapes]
    return expect_dims("a result", shapes[0].dims, result.data.dims) or _scalars(
        op.to_apply.data[0], _called(op, computations), dtypes, [result.data.dtype]
    )


@call_rule("sort", operands=(1, ANY))
def _sort(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    shapes = _arrays(operands)
    if shapes is None:
        return "expected arrays as operands"
    if any(shape.dims != shapes[0].dims for shape in shapes):
        return f"expected operands of one size, found {', '.join(map(str, shapes))}"
    expected = operands[0] if len(operands) == 1 else tuple_type(tuple(operands))
    dtypes = [shape.dtype for shape in shapes for _ in range(2)]
    return (
        dims_in_range("dimensions", (op.dimension.data,), shapes[0].rank)
        or expect_type("a result", expected, result)
        or _scalars(op.to_apply.data[0], _called(op, computations), dtypes, ["pred"])
    )


@call_rule("scatter", operands=(3, ANY))
def _scatter(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    shapes = _arrays(operands)
    if shapes is None:
        return "expected arrays as operands"
    count = len(shapes) // 2
    if len(shapes) != 2 * count + 1:
        return f"expected operands, indices and as many updates, found {len(shapes)} operands in all"
    inputs, indices, updates = shapes[:count], shapes[count], shapes[count + 1 :]
    expected = operands[0] if count == 1 else tuple_type(tuple(operands[:count]))
    dtypes = [shape.dtype for shape in inputs]
    return (
        scatter_shapes(op, inputs, indices, updates)
        or expect_type("a result", expected, result)
        or _scalars(op.to_apply.data[0], _called(op, computations), dtypes * 2, dtypes)
    )


@type_rule("topk")
def _topk(op: Any, operands: list[Any], result: Any) -> str:
    shapes = _arrays(operands)
    if shapes is None:
        return "expected an array as operand"
    operand, k = shapes[0], op.k.data
    if not operand.rank or not 0 <= k <= operand.dims[-1]:
        return f"expected k within the last dim of {operand}, found {k}"
    dims = (*operand.dims[:-1], k)
    return expect_type("a result", tuple_type((array_type(operand.dtype, dims), array_type("s32", dims))), result)


@type_rule("batch-norm-training", operands=3)
def _batch_norm_training(op: Any, operands: list[Any], result: Any) -> str:
    return _normed(op, operands, result, [1, 2], 3)


@type_rule("batch-norm-inference", operands=5)
def _batch_norm_inference(op: Any, operands: list[Any], result: Any) -> str:
    return _normed(op, operands, result, [1, 2, 3, 4], 1)


@type_rule("batch-norm-grad", operands=5)
def _batch_norm_grad(op: Any, operands: list[Any], result: Any) -> str:
    return _normed(op, operands, result, [1, 2, 3], 3) or expect_type("a grad_output", operands[0], operands[4])


def _normed(op: Any, operands: list[Any], result: Any, per_feature: list[int], results: int) -> str:
    shapes = _arrays(operands)
    if shapes is None:
        return "expected arrays as operands"
    operand, feature = shapes[0], op.feature_index.data
    if problem := dims_in_range("feature_index", (feature,), operand.rank):
        return problem
    if not is_float(operand.dtype):
        return f"expected a floating-point operand, found {operand}"
    features = array_type(operand.dtype, (operand.dims[feature],))
    for index in per_feature:
        if problem := expect_type(f"operand {index}", features, operands[index]):
            return problem
    expected = operands[0] if results == 1 else tuple_type((operands[0], features, features))
    return expect_type("a result", expected, result)


@array_rule("cholesky")
def _cholesky(op: Any, shapes: list[Shape], result: Shape) -> str:
    return _square("the operand", shapes[0]) or ("" if shapes[0] == result else f"expected {shapes[0]}, found {result}")


@array_rule("triangular-solve", operands=2)
def _triangular_solve(op: Any, shapes: list[Shape], result: Shape) -> str:
    a, b = shapes
    if op.transpose_a.data not in _TRANSPOSE:
        return f"expected transpose_a NO_TRANSPOSE, TRANSPOSE or ADJOINT, found {op.transpose_a.data}"
    if problem := _square("a", a) or expect_dtype("b", a.dtype, b.dtype):
        return problem
    if b.rank != a.rank or b.dims[:-2] != a.dims[:-2] or b.dims[-2 if op.left_side.data else -1] != a.dims[-1]:
        return f"expected b to match {a}, found {b}"
    return "" if result == b else f"expected a result of {b}, found {result}"


def _square(what: str, shape: Shape) -> str:
    if shape.rank < 2 or shape.dims[-1] != shape.dims[-2]:
        return f"expected {what} to be square matrices, found {shape}"
    if not (is_float(shape.dtype) or is_complex(shape.dtype)):
        return f"expected {what} of floating-point or complex type, found {shape}"
    return ""


@array_rule("fft")
def _fft(op: Any, shapes: list[Shape], result: Shape) -> str:
    operand, kind, lengths = shapes[0], op.fft_type.data, op.fft_length.data
    if kind not in _FFT:
        return f"expected fft_type FFT, IFFT, RFFT or IRFFT, found {kind}"
    count = len(lengths)
    if not 1 <= count <= 3 or count > operand.rank or any(length < 1 for length in lengths):
        return f"expected 1 to 3 lengths of 1 or more for {operand}, found {dims_text(lengths)}"
    if is_complex(operand.dtype) == (kind == "RFFT"):
        return f"expected a {'real' if kind == 'RFFT' else 'complex'} operand, found {operand}"
    half = (*lengths[:-1], lengths[-1] // 2 + 1)
    taken = half if kind == "IRFFT" else lengths
    given = half if kind == "RFFT" else lengths
    return expect_dims("trailing operand dims", taken, operand.dims[-count:]) or expect_dims(
        "a result", (*operand.dims[:-count], *given), result.dims
    )


@array_rule("rng", operands=2)
def _rng(op: Any, shapes: list[Shape], result: Shape) -> str:
    if op.distribution.data not in _RNG:
        return f"expected distribution rng_uniform or rng_normal, found {op.distribution.data}"
    for shape in shapes:
        if shape.rank or shape.dtype != result.dtype:
            return f"expected scalar parameters of {result.dtype}, found {shape}"
    return ""


@type_rule("rng-bit-generator")
def _rng_bit_generator(op: Any, operands: list[Any], result: Any) -> str:
    if op.algorithm.data not in ("rng_default", "rng_three_fry", "rng_philox"):
        return f"expected algorithm rng_default, rng_three_fry or rng_philox, found {op.algorithm.data}"
    state = _arrays(operands)
    if state is None or state[0].dtype[0] != "u":
        return f"expected a state of unsigned integers, found {show(operands[0])}"
    parts = result.data if isinstance(result, TupleType) else (operands[0], result)
    if len(parts) != 2 or parts[0] != operands[0] or not isinstance(parts[1], ArrayType):
        return f"expected a result of ({show(operands[0])}, bits), or of bits, found {show(result)}"
    return ""


@array_rule("rng-get-and-update-state", operands=0)
def _rng_get_and_update_state(op: Any, shapes: list[Shape], result: Shape) -> str:
    return "" if result.dtype == "u64" else f"expected a state of u64, found {result}"


@type_rule("shuffle", operands=(0, ANY))
def _shuffle(op: Any, operands: list[Any], result: Any) -> str:
    return ""


@call_rule("scan")
def _scan(op: Any, operands: list[Any], result: Any, computations: Computations) -> str:
    axis, carries = op.dimension.data, op.num_carries.data
    shapes, (name,) = _arrays(operands), op.to_apply.data
    results = list(result.data) if isinstance(result, TupleType) else [result]
    outputs = _arrays(results)
    if shapes is None or outputs is None:
        return "expected arrays as operands and results"
    if not 0 <= carries <= min(len(shapes), len(outputs)):
        return f"expected at most {min(len(shapes), len(outputs))} carries, found {carries}"
    whole = [*shapes[: len(shapes) - carries], *outputs[: len(outputs) - carries]]
    if not whole:
        return "expected an array to scan or to make"
    if any(not 0 <= axis < shape.rank or shape.dims[axis] != whole[0].dims[axis] for shape in whole):
        return f"expected arrays of one size along dim {axis}, found {', '.join(map(str, whole))}"
    starts, ends = operands[len(operands) - carries :], results[len(results) - carries :]
    if starts != ends:
        return f"expected carries that keep their types, {show(tuple_type(tuple(starts)))}, found {show(result)}"
    body = computations[name]
    for what, arrays, found in (
        ("parameters", shapes, [argument.type for argument in body.block.args]),
        ("results", outputs, body.root.type.data if isinstance(body.root.type, TupleType) else (body.root.type,)),
    ):
        slices = [array_type(x.dtype, x.dims[:axis] + x.dims[axis + 1 :]) for x in arrays[: len(arrays) - carries]]
        expected = tuple_type((*slices, *starts))
        if problem := expect_type(f"{what} of {name}", expected, tuple_type(tuple(found))):
            return problem
    return ""
