"""One small HLO module for every (opcode, element type) that the coverage table lists as generated.

``cases()`` yields them with seeded inputs; ``expected(case)`` runs jaxlib's CPU client. Used by the reference
semantics' tests and by the truth test of ``list-operators``.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import collective_cases
import numpy as np
from xla_oracle import run_text

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.operators import supported
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.ir.types import FLOATS, INTEGERS, NUMPY_DTYPE

Array = np.ndarray[Any, Any]

ROUNDING = {"f32": 2.0**-17, "bf16": 2.0**-7, "f16": 2.0**-9, "f8e4m3": 2.0**-3, "f8e5m2": 2.0**-2}
ROUNDING["c64"] = ROUNDING["f32"]
"""Relative error allowed where results are not exact: about two units in the last place; f32 as 1e-5."""

DIMS = (5, 37)


@dataclass(frozen=True)
class Case:
    """HLO text, its inputs, and how close a result must come (0: equal)."""

    opcode: str
    dtype: str
    text: str
    inputs: tuple[Array, ...]
    tolerance: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.opcode}-{self.dtype}"


NUMPY_UNARY: dict[str, Callable[..., Any]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cosh": np.cosh,
    "sinh": np.sinh,
}
IN_NUMPY: dict[str, Callable[..., Any]] = {
    **NUMPY_UNARY,
    "mulhi": lambda x, y: x.astype(object) * y.astype(object) >> x.dtype.itemsize * 8,
}
"""Opcodes that XLA's CPU back end has not got; NumPy in f64 (Python integers) is the oracle."""


_EXPECTED: dict[tuple[object, ...], list[Array]] = {}
"""Results by text and inputs: several test files ask for the same ones."""


def expected(case: Case) -> list[Array]:
    """What jaxlib's CPU client computes."""
    import op_cases_math

    if case.opcode in IN_NUMPY:
        wide = [x.astype(np.float64) if case.dtype in FLOATS else x for x in case.inputs]
        return [np.asarray(IN_NUMPY[case.opcode](*wide)).astype(case.inputs[0].dtype)]
    if case.opcode == "rng" or case.opcode in op_cases_math.REFERENCE_ONLY:
        return evaluate(parse_text(case.text), list(case.inputs))  # HLO leaves the numbers of rng open
    if case.opcode in collective_cases.BODIES or case.opcode in op_cases_math.IDENTITIES:
        return list(case.inputs)
    if case.opcode == "stochastic-convert":
        return [op_cases_math.stochastically_rounded(*case.inputs)]
    if case.opcode in collective_cases.IDENTIFIERS:
        return [np.zeros((), np.uint32)]
    key = (case.text, *(x.tobytes() for x in case.inputs))
    if key not in _EXPECTED:
        # a bitcast before layout assignment is an error in XLA; on row-major layouts it is a reshape
        _EXPECTED[key] = run_text(case.text.replace(" bitcast(", " reshape("), case.inputs)
    return _EXPECTED[key]


def assert_matches(case: Case, results: list[Array], wanted: list[Array]) -> None:
    """Equal dims and types; equal values, or within the case's tolerance relative to the larger of 1 and the value."""
    assert [(x.shape, x.dtype) for x in results] == [(x.shape, x.dtype) for x in wanted]
    for result, want in zip(results, wanted, strict=True):
        if case.tolerance == 0 or want.dtype.kind in "biu":
            assert_same(result, want, case.name)
            continue
        wide = np.complex128 if want.dtype.kind == "c" else np.float64
        got, want64 = result.astype(wide), want.astype(wide)
        np.testing.assert_allclose(got, want64, case.tolerance, case.tolerance, err_msg=case.name)


def assert_same(result: Array, want: Array, name: str = "") -> None:
    """Equal values; NaN equals NaN and zeros must agree in sign."""
    if want.dtype.kind in "biu" or want.dtype.name in ("int4", "uint4"):
        np.testing.assert_array_equal(result, want, name)
        return
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    got, want64 = result.astype(wide), want.astype(wide)
    np.testing.assert_array_equal(got, want64, name)
    if wide is np.float64:
        zero = want64 == 0
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want64[zero]), name)


def shaped(dtype: str, dims: tuple[int, ...]) -> str:
    """HLO text of a shape."""
    return f"{dtype}[{','.join(map(str, dims))}]"


def random_array(dtype: str, dims: tuple[int, ...], seed: str, low: float = -4, high: float = 4) -> Array:
    """Seeded values: floats on [low, high), integers over their whole range (half of them small), bools."""
    rng = np.random.default_rng(zlib.crc32(f"{seed}{dtype}{dims}".encode()))
    if dtype == "pred":
        return np.asarray(rng.integers(0, 2, dims)).astype(np.bool_)
    if dtype == "c64":
        return np.asarray(rng.uniform(low, high, dims) + 1j * rng.uniform(low, high, dims)).astype(np.complex64)
    if dtype in FLOATS:
        return np.asarray(rng.uniform(low, high, dims)).astype(NUMPY_DTYPE[dtype])
    if dtype in ("s4", "u4"):
        return np.asarray(rng.integers(-8, 8, dims) if dtype == "s4" else rng.integers(0, 16, dims)).astype(
            NUMPY_DTYPE[dtype]
        )
    info = np.iinfo(NUMPY_DTYPE[dtype])
    full = rng.integers(info.min, info.max, dims, NUMPY_DTYPE[dtype], endpoint=True)
    small = rng.integers(-5 if info.min < 0 else 0, 6, dims).astype(NUMPY_DTYPE[dtype])
    return np.asarray(np.where(rng.integers(0, 2, dims), full, small)).astype(NUMPY_DTYPE[dtype])


def module_text(parameters: list[tuple[str, tuple[int, ...]]], body: str, computations: str = "") -> str:
    """A module whose entry has parameters p0, p1, ...; ``body`` holds the instructions, the last one ROOT."""
    lines = [f"  p{i} = {shaped(*parameter)} parameter({i})" for i, parameter in enumerate(parameters)]
    return "\n".join(["HloModule case", "", computations, "ENTRY main {", *lines, body, "}", ""])


def combiner(opcode: str, dtype: str) -> str:
    """A computation of two scalars."""
    return (
        f"{opcode}_computation {{\n  a = {dtype}[] parameter(0)\n  b = {dtype}[] parameter(1)\n"
        f"  ROOT c = {dtype}[] {opcode}(a, b)\n}}\n"
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DOMAIN: dict[str, tuple[float, float]] = {
    "acos": (-0.9, 0.9),
    "acosh": (1.1, 8),
    "asin": (-0.9, 0.9),
    "atanh": (-0.9, 0.9),
    "log": (0.1, 8),
    "log-plus-one": (-0.8, 8),
    "rsqrt": (0.1, 8),
    "sqrt": (0, 8),
    "tan": (-1.2, 1.2),
}

_EXACT = _words(
    """
    abs add and ceil clamp compare convert copy count-leading-zeros divide floor is-finite maximum minimum
    mulhi multiply negate not or popcnt reduce-precision remainder round-nearest-afz round-nearest-even select
    shift-left shift-right-arithmetic shift-right-logical sign sqrt subtract xor
    """
)

_UNARY = _words(
    """
    abs acos acosh asin asinh atan atanh cbrt ceil copy cosh cosine count-leading-zeros erf exponential
    exponential-minus-one floor log log-plus-one logistic negate not popcnt round-nearest-afz
    round-nearest-even rsqrt sign sine sinh sqrt tan tanh
    """
)

_BINARY = _words(
    """
    add and atan2 divide maximum minimum mulhi multiply or power remainder shift-left shift-right-arithmetic
    shift-right-logical subtract xor
    """
)


def elementwise(opcode: str, dtype: str, operands: tuple[Array, ...], result: str = "", attributes: str = "") -> Case:
    """A case of one elementwise op on ``operands``; ``result`` is its element type when not ``dtype``."""
    dims = operands[0].shape
    names = {array_dtype: name for name, array_dtype in NUMPY_DTYPE.items() if name != "tf32"}
    parameters = [(names[array.dtype], array.shape) for array in operands]
    arguments = ", ".join(f"p{i}" for i in range(len(operands)))
    root = f"  ROOT r = {shaped(result or dtype, dims)} {opcode}({arguments}){attributes}"
    tolerance = 0.0 if opcode in _EXACT or dtype not in FLOATS else ROUNDING.get(dtype, 0.0)
    return Case(opcode, dtype, module_text(parameters, root), operands, tolerance)


def _case(opcode: str, dtype: str) -> Case | None:
    # these build their cases with what this file defines
    import op_cases_control
    import op_cases_math
    import op_cases_sorting
    import op_cases_windows

    if dtype == "c64" and opcode not in collective_cases.BODIES:
        return op_cases_math.complex_case(opcode)
    if opcode in _UNARY:
        return elementwise(opcode, dtype, (random_array(dtype, DIMS, opcode, *_DOMAIN.get(opcode, (-4, 4))),))
    if opcode in _BINARY:
        low, high = (0.2, 3) if opcode == "power" else (-4, 4)
        lhs, rhs = (random_array(dtype, DIMS, opcode + side, low, high) for side in "lr")
        if opcode == "power" and dtype in INTEGERS:
            rhs = np.clip(rhs, 0 if dtype[0] == "u" else -7, 40)  # XLA's CPU back end reads six bits of the exponent
        return elementwise(opcode, dtype, (lhs, rhs))
    if opcode in collective_cases.BODIES:
        return _collective(opcode, dtype)
    if opcode in collective_cases.IDENTIFIERS:
        return Case(opcode, dtype, module_text([], f"  ROOT r = u32[] {opcode}()"), ())
    families = (op_cases_control, op_cases_math, op_cases_sorting, op_cases_windows)
    tables = [_BUILDERS, *(family.BUILDERS for family in families)]
    return next((table[opcode](opcode, dtype) for table in tables if opcode in table), None)


def _one(
    opcode: str, dtype: str, dims: tuple[int, ...], root: str, computations: str = "", tolerance: float = 0
) -> Case:
    """A case with one parameter."""
    text = module_text([(dtype, dims)], f"  ROOT r = {root}", computations)
    return Case(opcode, dtype, text, (random_array(dtype, dims, opcode),))


def _bitcast_convert(opcode: str, dtype: str) -> Case:
    width = NUMPY_DTYPE[dtype].itemsize * 8
    target = "pred" if dtype == "pred" else f"u{width}" if dtype[0] in "fbs" else {8: "s8", 16: "f16", 32: "f32"}[width]
    return _one(opcode, dtype, DIMS, f"{shaped(target, DIMS)} bitcast-convert(p0)")


def _call(opcode: str, dtype: str) -> Case:
    body = f"double {{\n  a = {shaped(dtype, DIMS)} parameter(0)\n  ROOT b = {shaped(dtype, DIMS)} maximum(a, a)\n}}\n"
    attribute = "to_apply=double" if opcode == "call" else "kind=kLoop, calls=double"
    return _one(opcode, dtype, DIMS, f"{shaped(dtype, DIMS)} {opcode}(p0), {attribute}", body)


def _clamp(opcode: str, dtype: str) -> Case:
    low, high = (1, 3)
    operands = tuple(
        np.full((), bound, NUMPY_DTYPE[dtype]) if bound is not None else random_array(dtype, DIMS, opcode)
        for bound in (low, None, high)
    )
    text = module_text([(dtype, x.shape) for x in operands], f"  ROOT r = {shaped(dtype, DIMS)} clamp(p0, p1, p2)")
    return Case(opcode, dtype, text, operands)


def _collective(opcode: str, dtype: str) -> Case:
    body = collective_cases.BODIES[opcode](shaped(dtype, DIMS), dtype)
    computations = combiner("add", dtype).replace("add_computation", "sum") if "to_apply" in body else ""
    return Case(opcode, dtype, module_text([(dtype, DIMS)], body, computations), (random_array(dtype, DIMS, opcode),))


def _compare(opcode: str, dtype: str) -> Case:
    operands = (random_array(dtype, DIMS, "a", -1, 1), random_array(dtype, DIMS, "a", -1, 1).copy())
    operands[1][::2] = random_array(dtype, DIMS, "b", -1, 1)[::2]
    return elementwise(opcode, dtype, operands, "pred", ", direction=LE")


def _concatenate(opcode: str, dtype: str) -> Case:
    dims = [(3, 5), (3, 130), (3, 1)]
    root = f"  ROOT r = {dtype}[3,136] concatenate(p0, p1, p2), dimensions={{1}}"
    inputs = tuple(random_array(dtype, d, str(d)) for d in dims)
    text = module_text([(dtype, d) for d in dims], root)
    return Case(opcode, dtype, text, inputs)


def _constant(opcode: str, dtype: str) -> Case:
    literal = "{true, false, true}" if dtype == "pred" else "{1, 2, 3}"
    return Case(opcode, dtype, module_text([], f"  ROOT r = {dtype}[3] constant({literal})"), ())


def _convert(opcode: str, dtype: str) -> Case:
    body = [
        "  a = f32[5,37] convert(p0)",
        f"  b = {dtype}[5,37] convert(p1)",
        "  c = s32[5,37] convert(p0)",
        f"  ROOT r = (f32[5,37], {dtype}[5,37], s32[5,37]) tuple(a, b, c)",
    ]
    inputs = (random_array(dtype, DIMS, opcode), random_array("f32", DIMS, opcode, -30, 30))
    return Case(opcode, dtype, module_text([(dtype, DIMS), ("f32", DIMS)], "\n".join(body)), inputs)


def _rarely_true(dims: tuple[int, ...], seed: str) -> Array:
    """One in eight, so that sums of products are of both kinds."""
    return random_array("s8", dims, seed) > 60


def _contraction(opcode: str, dtype: str, lhs: tuple[int, ...], rhs: tuple[int, ...], root: str) -> Case:
    inputs = (random_array(dtype, lhs, "l", -1, 1), random_array(dtype, rhs, "r", -1, 1))
    if dtype == "pred":
        inputs = (_rarely_true(lhs, "l"), _rarely_true(rhs, "r"))
    text = module_text([(dtype, lhs), (dtype, rhs)], f"  ROOT r = {dtype}{root}")
    return Case(opcode, dtype, text, inputs, 4 * ROUNDING.get(dtype, 0))


def _convolution(opcode: str, dtype: str) -> Case:
    window = "window={size=3x3 stride=2x2 pad=2_1x2_3 rhs_dilate=1x2 lhs_dilate=1x2}"
    root = f"[2,4,4,7] convolution(p0, p1), {window}, dim_labels=b01f_01io->bf01"
    return _contraction(opcode, dtype, (2, 6, 7, 5), (3, 3, 5, 4), root)


def _dot(opcode: str, dtype: str) -> Case:
    dims = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    return _contraction(opcode, dtype, (2, 9, 33), (2, 33, 7), f"[2,9,7] dot(p0, p1), {dims}")


def _dynamic_slice(opcode: str, dtype: str) -> Case:
    inputs = (random_array(dtype, (9, 20), opcode), np.array(3, np.int32), np.array(18, np.int32))
    root = f"  ROOT r = {dtype}[4,5] dynamic-slice(p0, p1, p2), dynamic_slice_sizes={{4,5}}"
    return Case(opcode, dtype, module_text([(dtype, (9, 20)), ("s32", ()), ("s32", ())], root), inputs)


def _dynamic_update_slice(opcode: str, dtype: str) -> Case:
    inputs = (
        random_array(dtype, (9, 20), opcode),
        random_array(dtype, (4, 5), "u"),
        np.array(-2, np.int32),
        np.array(7, np.int32),
    )
    root = f"  ROOT r = {dtype}[9,20] dynamic-update-slice(p0, p1, p2, p3)"
    parameters = [(dtype, (9, 20)), (dtype, (4, 5)), ("s32", ()), ("s32", ())]
    return Case(opcode, dtype, module_text(parameters, root), inputs)


def _gather(opcode: str, dtype: str) -> Case:
    inputs = (random_array(dtype, (19, 8), opcode), np.array([[3, 0, 18], [40, -1, 7]], np.int32))
    root = (
        f"  ROOT r = {dtype}[2,3,8] gather(p0, p1), offset_dims={{2}}, collapsed_slice_dims={{0}}, "
        "start_index_map={0}, index_vector_dim=2, slice_sizes={1,8}"
    )
    return Case(opcode, dtype, module_text([(dtype, (19, 8)), ("s32", (2, 3))], root), inputs)


def _scatter(opcode: str, dtype: str) -> Case:
    inputs = (
        random_array(dtype, (19, 8), opcode),
        np.array([3, 0, 18, 40, -1, 7, 3], np.int32),
        random_array(dtype, (7, 8), "u"),
    )
    root = (
        f"  ROOT r = {dtype}[19,8] scatter(p0, p1, p2), update_window_dims={{1}}, inserted_window_dims={{0}}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=maximum_computation"
    )
    parameters = [(dtype, (19, 8)), ("s32", (7,)), (dtype, (7, 8))]
    return Case(opcode, dtype, module_text(parameters, root, combiner("maximum", dtype)), inputs)


def _iota(opcode: str, dtype: str) -> Case:
    dims = (3, 9)
    return Case(opcode, dtype, module_text([], f"  ROOT r = {shaped(dtype, dims)} iota(), iota_dimension=1"), ())


def _map(opcode: str, dtype: str) -> Case:
    text = combiner("maximum", dtype)
    inputs = (random_array(dtype, DIMS, "a"), random_array(dtype, DIMS, "b"))
    root = f"  ROOT r = {shaped(dtype, DIMS)} map(p0, p1), dimensions={{0,1}}, to_apply=maximum_computation"
    return Case(opcode, dtype, module_text([(dtype, DIMS)] * 2, root, text), inputs)


def _pad(opcode: str, dtype: str) -> Case:
    inputs = (random_array(dtype, (4, 6), opcode), random_array(dtype, (), "value"))
    root = f"  ROOT r = {dtype}[3,20] pad(p0, p1), padding=-1_0x2_7_1"
    return Case(opcode, dtype, module_text([(dtype, (4, 6)), (dtype, ())], root), inputs)


def _reduce(opcode: str, dtype: str) -> Case:
    """All plain computations; XLA may count the initial value of add more than once, so there it is zero."""
    inputs = (random_array(dtype, (6, 130), opcode, -1, 1), random_array(dtype, (), "init", -1, 1))
    names = ["maximum", "minimum"]
    names += ["or", "and"] if dtype == "pred" else ["add"] if dtype in FLOATS else ["add", "multiply", "and", "or"]
    neutral = {"add": "0", "and": "true" if dtype == "pred" else "-1" if dtype[0] == "s" else "255", "multiply": "1"}
    lines = []
    for i, name in enumerate(names):
        initial = "p1"
        if name in neutral:
            initial = f"n{i}"
            lines.append(f"  n{i} = {dtype}[] constant({neutral[name]})")
        lines.append(f"  r{i} = {dtype}[6] reduce(p0, {initial}), dimensions={{1}}, to_apply={name}_computation")
    results = ", ".join(f"r{i}" for i in range(len(names)))
    lines.append(f"  ROOT t = ({', '.join([f'{dtype}[6]'] * len(names))}) tuple({results})")
    computations = "".join(combiner(name, dtype) for name in names)
    text = module_text([(dtype, (6, 130)), (dtype, ())], "\n".join(lines), computations)
    return Case(opcode, dtype, text, inputs, 8 * ROUNDING.get(dtype, 0))


def _select(opcode: str, dtype: str) -> Case:
    operands = (random_array("pred", DIMS, "p"), random_array(dtype, DIMS, "a"), random_array(dtype, DIMS, "b"))
    return elementwise(opcode, dtype, operands, dtype)


def _get_tuple_element(opcode: str, dtype: str) -> Case:
    shape = shaped(dtype, DIMS)
    body = f"  t = ({shape}, {shape}) tuple(p0, p1)\n  ROOT g = {shape} get-tuple-element(t), index=1"
    inputs = (random_array(dtype, DIMS, "a"), random_array(dtype, DIMS, "b"))
    return Case(opcode, dtype, module_text([(dtype, DIMS)] * 2, body), inputs)


def _tuple(opcode: str, dtype: str) -> Case:
    shape = shaped(dtype, DIMS)
    body = f"  c = {shape} copy(p0)\n  ROOT t = ({shape}, {shape}) tuple(c, p0)"
    return Case(opcode, dtype, module_text([(dtype, DIMS)], body), (random_array(dtype, DIMS, "a"),))


_BUILDERS: dict[str, Callable[[str, str], Case]] = {
    "bitcast": lambda o, d: _one(o, d, (6, 8), f"{d}[3,16] bitcast(p0)"),
    "bitcast-convert": _bitcast_convert,
    "broadcast": lambda o, d: _one(o, d, (4, 3), f"{d}[3,2,4] broadcast(p0), dimensions={{2,0}}"),
    "call": _call,
    "clamp": _clamp,
    "compare": _compare,
    "concatenate": _concatenate,
    "constant": _constant,
    "convert": _convert,
    "convolution": _convolution,
    "dot": _dot,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "fusion": _call,
    "gather": _gather,
    "get-tuple-element": _get_tuple_element,
    "iota": _iota,
    "is-finite": lambda o, d: elementwise(o, d, (_with_specials(d),), "pred"),
    "map": _map,
    "opt-barrier": lambda o, d: _one(o, d, DIMS, f"{shaped(d, DIMS)} opt-barrier(p0)"),
    "pad": _pad,
    "parameter": lambda o, d: Case(
        o, d, module_text([(d, DIMS)], "").replace("  p0", "  ROOT p0"), (random_array(d, DIMS, o),)
    ),
    "reduce": _reduce,
    "reduce-precision": lambda o, d: elementwise(
        o, d, (random_array(d, DIMS, o),), d, ", exponent_bits=5, mantissa_bits=2"
    ),
    "reshape": lambda o, d: _one(o, d, (6, 35), f"{d}[2,7,15] reshape(p0)"),
    "reverse": lambda o, d: _one(o, d, (6, 35), f"{d}[6,35] reverse(p0), dimensions={{1}}"),
    "scatter": _scatter,
    "select": _select,
    "slice": lambda o, d: _one(o, d, (6, 35), f"{d}[2,11] slice(p0), slice={{[1:5:2], [2:34:3]}}"),
    "transpose": lambda o, d: _one(o, d, (3, 5, 7), f"{d}[7,3,5] transpose(p0), dimensions={{2,0,1}}"),
    "tuple": _tuple,
}


def _with_specials(dtype: str) -> Array:
    values = random_array(dtype, DIMS, "finite")
    values[0, :3] = np.array([np.nan, np.inf, -np.inf], np.float32).astype(values.dtype)
    return values


def cases() -> Iterator[Case]:
    """One case for every opcode and element type that ``list-operators`` claims. KeyError for a row without a case."""
    for row in supported():
        for dtype in row.dtypes:
            case = _case(row.opcode, dtype)
            if case is None:
                raise KeyError(f"no conformance case for {row.opcode}")
            yield case
