"""Conformance cases of normalisation, linear algebra, Fourier transforms and complex numbers (see ``op_cases``)."""

from collections.abc import Callable

import numpy as np
from op_cases import DIMS, ROUNDING, Array, Case, module_text, random_array, shaped

from neuronx_cc.ir.types import NUMPY_DTYPE


def _case(opcode: str, dtype: str, inputs: list[Array], root: str, tolerance: float) -> Case:
    text = module_text([(dtype, array.shape) for array in inputs], f"  ROOT r = {root}")
    return Case(opcode, dtype, text, tuple(inputs), tolerance)


def _batch_norm(opcode: str, dtype: str) -> Case:
    dims = (4, 3, 5)
    operand = random_array(dtype, dims, opcode, -2, 2)
    scale, offset, mean = (random_array(dtype, (3,), name, -1, 1) for name in ("scale", "offset", "mean"))
    variance = random_array(dtype, (3,), "variance", 1, 3)
    array, vector = f"{dtype}[4,3,5]", f"{dtype}[3]"
    attributes = ", epsilon=0.01, feature_index=1"
    tolerance = 4 * ROUNDING[dtype]
    if opcode == "batch-norm-training":
        root = f"({array}, {vector}, {vector}) {opcode}(p0, p1, p2){attributes}"
        return _case(opcode, dtype, [operand, scale, offset], root, tolerance)
    if opcode == "batch-norm-inference":
        root = f"{array} {opcode}(p0, p1, p2, p3, p4){attributes}"
        return _case(opcode, dtype, [operand, scale, offset, mean, variance], root, tolerance)
    root = f"({array}, {vector}, {vector}) {opcode}(p0, p1, p2, p3, p4){attributes}"
    inputs = [operand, scale, mean, variance, random_array(dtype, dims, "grad", -1, 1)]
    return _case(opcode, dtype, inputs, root, 2 * tolerance)


def complex_array(dims: tuple[int, ...], seed: str, size: float = 2) -> Array:
    """Seeded c64 values in a square around zero."""
    real, imag = (random_array("f32", dims, seed + part, -size, size) for part in "ri")
    return np.asarray(real + 1j * imag, np.complex64)


def _complex(opcode: str, dtype: str) -> Case:
    inputs = [random_array(dtype, DIMS, part) for part in "ri"]
    return _case(opcode, dtype, inputs, f"{shaped('c64', DIMS)} complex(p0, p1)", 0)


def _part(opcode: str, dtype: str) -> Case:
    return _case(opcode, dtype, [random_array(dtype, DIMS, opcode)], f"{shaped(dtype, DIMS)} {opcode}(p0)", 0)


def _fft(opcode: str, dtype: str) -> Case:
    return _case(
        opcode, dtype, [random_array(dtype, DIMS, opcode)], "c64[5,19] fft(p0), fft_type=RFFT, fft_length={37}", 1e-5
    )


def definite(dtype: str, dims: tuple[int, ...], seed: str) -> Array:
    """Hermitian matrices with eigenvalues well above zero."""
    x = complex_array(dims, seed) if dtype == "c64" else random_array("f32", dims, seed, -1, 1)
    matrix = x @ x.conj().swapaxes(-1, -2) + 2 * np.eye(dims[-1])
    return np.asarray(matrix).astype(NUMPY_DTYPE[dtype])


def _cholesky(opcode: str, dtype: str) -> Case:
    root = f"{dtype}[2,6,6] cholesky(p0), lower=true"
    return _case(opcode, dtype, [definite(dtype, (2, 6, 6), opcode)], root, 2 * ROUNDING.get(dtype, ROUNDING["f32"]))


def _triangular_solve(opcode: str, dtype: str) -> Case:
    b = complex_array((2, 6, 3), "b") if dtype == "c64" else random_array(dtype, (2, 6, 3), "b")
    root = (
        f"{dtype}[2,6,3] triangular-solve(p0, p1), left_side=true, lower=true, unit_diagonal=false, "
        "transpose_a=TRANSPOSE"
    )
    return _case(opcode, dtype, [definite(dtype, (2, 6, 6), "a"), b], root, 4 * ROUNDING.get(dtype, ROUNDING["f32"]))


IDENTITIES = frozenset(
    ["add-dependency", "async-done", "async-start", "async-update", "copy-done", "copy-start", "custom-call", "domain"]
)
"""Opcodes whose cases return their inputs, and which XLA's CPU client does not run in that form."""


def _identity(opcode: str, dtype: str) -> Case:
    x = shaped(dtype, DIMS)
    same = f"same {{\n  ROOT a = {x} parameter(0)\n}}\n"
    start = f"  s = (({x}), {x}, u32[]) async-start(p0), calls=same\n"
    bodies = {
        "add-dependency": f"  t = token[] after-all()\n  ROOT r = {x} add-dependency(p0, t)",
        "async-done": f"{start}  ROOT r = {x} async-done(s)",
        "async-start": f"{start}  ROOT r = {x} async-done(s)",
        "async-update": f"{start}  u = (({x}), {x}, u32[]) async-update(s)\n  ROOT r = {x} async-done(u)",
        "copy-done": f"  s = ({x}, {x}, u32[]) copy-start(p0)\n  ROOT r = {x} copy-done(s)",
        "copy-start": f"  s = ({x}, {x}, u32[]) copy-start(p0)\n  ROOT r = {x} copy-done(s)",
        "domain": f'  ROOT r = {x} domain(p0), domain={{kind="sharding", entry={{replicated}}, exit={{replicated}}}}',
    }
    value = complex_array(DIMS, opcode) if dtype == "c64" else random_array(dtype, DIMS, opcode)
    text = module_text([(dtype, DIMS)], bodies[opcode], same if "async" in opcode else "")
    return Case(opcode, dtype, text, (value,))


def _dimension_size(opcode: str, dtype: str) -> Case:
    root = "s32[] get-dimension-size(p0), dimensions={1}"
    return _case(opcode, dtype, [random_array(dtype, DIMS, opcode)], root, 0)


def _stochastic_convert(opcode: str, dtype: str) -> Case:
    word = f"u{NUMPY_DTYPE[dtype].itemsize * 8}"
    x, random = random_array(dtype, DIMS, opcode, -300, 300), random_array(word, DIMS, opcode)
    text = module_text([(dtype, DIMS), (word, DIMS)], f"  ROOT r = s8[5,37] {opcode}(p0, p1)")
    return Case(opcode, dtype, text, (x, random))


def stochastically_rounded(x: Array, random: Array) -> Array:
    """s8 values: magnitudes rounded up where the bits are below the fraction (XLA's evaluator of the op)."""
    size = np.abs(x.astype(np.float64))
    up = random < np.floor(np.modf(size)[0] * 2.0 ** (random.itemsize * 8))
    return np.clip(np.copysign(np.floor(size) + up, x.astype(np.float64)), -128, 127).astype(np.int8)


def _ragged_dot(opcode: str, dtype: str) -> Case:
    inputs = [random_array(dtype, (9, 4), "l", -1, 1), random_array(dtype, (3, 4, 5), "r", -1, 1)]
    root = (
        f"  ROOT r = {dtype}[9,5] ragged-dot(p0, p1, p2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}, "
        "lhs_ragged_dims={0}, rhs_group_dims={0}"
    )
    text = module_text([(dtype, (9, 4)), (dtype, (3, 4, 5)), ("s32", (3,))], root)
    return Case(opcode, dtype, text, (*inputs, np.array([4, 0, 3], np.int32)), 4 * ROUNDING[dtype])


def _scaled_dot(opcode: str, dtype: str) -> Case:
    shapes = [(6, 8), (8, 5), (6, 2), (2, 5)]
    inputs = [random_array(dtype, dims, str(dims), -1, 1) for dims in shapes]
    root = f"{dtype}[6,5] scaled-dot(p0, p1, p2, p3), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    return _case(opcode, dtype, inputs, root, 4 * ROUNDING[dtype])


REFERENCE_ONLY = frozenset(["ragged-dot", "scaled-dot", "scan"])
"""Opcodes that XLA's CPU client does not run: the reference semantics are the oracle."""


BUILDERS: dict[str, Callable[[str, str], Case]] = {
    "batch-norm-grad": _batch_norm,
    "batch-norm-inference": _batch_norm,
    "batch-norm-training": _batch_norm,
    **dict.fromkeys(IDENTITIES - {"custom-call"}, _identity),
    "cholesky": _cholesky,
    "complex": _complex,
    "fft": _fft,
    "get-dimension-size": _dimension_size,
    "imag": _part,
    "ragged-dot": _ragged_dot,
    "real": _part,
    "scaled-dot": _scaled_dot,
    "stochastic-convert": _stochastic_convert,
    "triangular-solve": _triangular_solve,
}

_A, _C, _F = "c64[5,37]", "c64[]", "f32[5,37]"
_COMBINER = "sum {{\n  a = c64[] parameter(0)\n  b = c64[] parameter(1)\n  ROOT c = c64[] {}(a, b)\n}}\n"
_UNARY_BODY = "twice {\n  a = c64[5,37] parameter(0)\n  ROOT b = c64[5,37] add(a, a)\n}\n"

_COMPLEX_ROOTS: dict[str, tuple[list[str], str, str]] = {
    "abs": ([_A], f"{_F} abs(p0)", ""),
    "bitcast": ([_A], "c64[37,5] bitcast(p0)", ""),
    "broadcast": (["c64[4,3]"], "c64[3,2,4] broadcast(p0), dimensions={2,0}", ""),
    "call": ([_A], f"{_A} call(p0), to_apply=twice", _UNARY_BODY),
    "compare": ([_A, _A], "pred[5,37] compare(p0, p1), direction=NE", ""),
    "concatenate": ([_A, "c64[5,2]"], "c64[5,39] concatenate(p0, p1), dimensions={1}", ""),
    "conditional": (
        ["pred[]", _A],
        f"{_A} conditional(p0, p1, p1), true_computation=twice, false_computation=same",
        _UNARY_BODY + "same {\n  ROOT a = c64[5,37] parameter(0)\n}\n",
    ),
    "constant": ([], "c64[3] constant({(1, 2), (0, -1), (-0, 3)})", ""),
    "convert": ([_F], f"{_A} convert(p0)", ""),
    "convolution": (
        ["c64[2,9,3]", "c64[4,3,5]"],
        "c64[2,6,5] convolution(p0, p1), window={size=4}, dim_labels=b0f_0io->b0f",
        "",
    ),
    "custom-call": ([_A], f'{_A} custom-call(p0), custom_call_target="NeuronBoundaryMarker-Start"', ""),
    "dot": (["c64[6,9]", "c64[9,7]"], "c64[6,7] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}", ""),
    "dynamic-slice": ([_A, "s32[]", "s32[]"], "c64[2,5] dynamic-slice(p0, p1, p2), dynamic_slice_sizes={2,5}", ""),
    "dynamic-update-slice": ([_A, "c64[2,5]", "s32[]", "s32[]"], f"{_A} dynamic-update-slice(p0, p1, p2, p3)", ""),
    "fft": ([_A], f"{_A} fft(p0), fft_type=IFFT, fft_length={{5,37}}", ""),
    "fusion": ([_A], f"{_A} fusion(p0), kind=kLoop, calls=twice", _UNARY_BODY),
    "gather": (
        [_A, "s32[4]"],
        "c64[4,37] gather(p0, p1), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
        "index_vector_dim=1, slice_sizes={1,37}",
        "",
    ),
    "get-tuple-element": ([_A, _F], f"t = ({_A}, {_F}) tuple(p0, p1); {_A} get-tuple-element(t), index=0", ""),
    "imag": ([_A], f"{_F} imag(p0)", ""),
    "iota": ([], "c64[3,9] iota(), iota_dimension=1", ""),
    "map": ([_A, _A], f"{_A} map(p0, p1), dimensions={{0,1}}, to_apply=sum", _COMBINER.format("multiply")),
    "pad": ([_A, _C], "c64[5,40] pad(p0, p1), padding=0_0x1_2", ""),
    "parameter": ([_A], f"({_A}) tuple(p0)", ""),
    "real": ([_A], f"{_F} real(p0)", ""),
    "reduce": (
        [_A],
        "one = c64[] constant((1, 0)); c64[5] reduce(p0, one), dimensions={1}, to_apply=sum",
        _COMBINER.format("multiply"),
    ),
    "reduce-window": (
        [_A],
        "zero = c64[] constant((0, 0)); c64[5,35] reduce-window(p0, zero), window={size=1x3}, to_apply=sum",
        _COMBINER.format("add"),
    ),
    "reshape": ([_A], "c64[37,5] reshape(p0)", ""),
    "reverse": ([_A], f"{_A} reverse(p0), dimensions={{1}}", ""),
    "scatter": (
        [_A, "s32[4]", "c64[4,37]"],
        f"{_A} scatter(p0, p1, p2), update_window_dims={{1}}, inserted_window_dims={{0}}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum",
        _COMBINER.format("add"),
    ),
    "select": (["pred[5,37]", _A, _A], f"{_A} select(p0, p1, p2)", ""),
    "slice": ([_A], "c64[2,9] slice(p0), slice={[1:5:2], [2:29:3]}", ""),
    "sort": (
        [_A],
        f"{_A} sort(p0), dimensions={{1}}, to_apply=before",
        "before {\n  a = c64[] parameter(0)\n  b = c64[] parameter(1)\n  x = f32[] real(a)\n  y = f32[] real(b)\n"
        "  ROOT c = pred[] compare(x, y), direction=LT\n}\n",
    ),
    "transpose": ([_A], "c64[37,5] transpose(p0), dimensions={1,0}", ""),
    "tuple": ([_A, _F], f"({_A}, {_F}, {_A}) tuple(p0, p1, p0)", ""),
    "while": (
        [_A],
        f"zero = s32[] constant(0); t = (s32[], {_A}) tuple(zero, p0); "
        f"w = (s32[], {_A}) while(t), condition=more, body=again; {_A} get-tuple-element(w), index=1",
        f"more {{\n  t = (s32[], {_A}) parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n"
        "  n = s32[] constant(3)\n  ROOT c = pred[] compare(i, n), direction=LT\n}\n"
        f"again {{\n  t = (s32[], {_A}) parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n"
        f"  z = {_A} get-tuple-element(t), index=1\n  one = s32[] constant(1)\n  j = s32[] add(i, one)\n"
        f"  y = {_A} multiply(z, z)\n  ROOT r = (s32[], {_A}) tuple(j, y)\n}}\n",
    ),
}
"""Opcode -> parameters, root (after other instructions), computations of a case on c64; others are elementwise."""
_BINARY = ("add", "divide", "multiply", "power", "subtract")


def complex_case(opcode: str) -> Case:
    """A case of ``opcode`` on c64."""
    elementwise = ([_A, _A] if opcode in _BINARY else [_A], "", "")
    if opcode in BUILDERS and opcode not in _COMPLEX_ROOTS:
        return BUILDERS[opcode](opcode, "c64")
    parameters, root, computations = _COMPLEX_ROOTS.get(opcode, elementwise)
    root = root or f"{_A} {opcode}({', '.join(f'p{i}' for i in range(len(parameters)))})"
    inputs, typed = [], []
    for index, parameter in enumerate(parameters):
        dtype, dims_text = parameter.rstrip("]").split("[")
        dims = tuple(int(size) for size in dims_text.split(",") if size)
        typed.append((dtype, dims))
        inputs.append(complex_array(dims, f"{opcode}{index}") if dtype == "c64" else random_array(dtype, dims, opcode))
    *before, root = root.split("; ")
    body = "\n".join(f"  {line}" for line in [*before, f"ROOT r = {root}"])
    text = module_text(typed, body, computations)
    return Case(opcode, "c64", text, tuple(inputs), ROUNDING["f32"])
