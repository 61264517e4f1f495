"""Rules of elementwise ops (XLA: shape_inference.cc, InferUnaryOpShape, InferBinaryOpShape, InferTernaryOpShape)."""

from typing import Any

from neuronx_cc.ir.types import Shape
from neuronx_cc.ir.verify.rule import (
    array_rule,
    dims_text,
    expect_dims,
    expect_dtype,
    is_complex,
    is_float,
    is_integer,
)

_PART = {"c64": "f32", "c128": "f64"}
_DIRECTIONS = frozenset(["EQ", "NE", "GE", "GT", "LE", "LT"])


def _same(shapes: list[Shape], result: Shape) -> str:
    first = shapes[0]
    for shape in shapes:
        # shapes are interned: equal ones are nearly always the same object
        if shape is not first and shape != first:
            return f"expected operands of one shape, found {first} and {shape}"
    return "" if result is first or result == first else f"expected a result of {first}, found {result}"


def _number(shapes: list[Shape], what: str, allowed: bool) -> str:
    return "" if allowed else f"expected operands of {what} element type, found {shapes[0].dtype}"


@array_rule("copy", "reduce-precision")
def _plain(op: Any, shapes: list[Shape], result: Shape) -> str:
    if problem := _same(shapes, result):
        return problem
    if op.name == "hlo.reduce_precision":
        if op.exponent_bits.data < 1 or op.mantissa_bits.data < 0:
            return (
                "expected at least 1 exponent bit and 0 mantissa bits, "
                f"found {op.exponent_bits.data} and {op.mantissa_bits.data}"
            )
        return _number(shapes, "floating-point", is_float(shapes[0].dtype))
    return ""


@array_rule("negate", "sign")
def _signed(op: Any, shapes: list[Shape], result: Shape) -> str:
    return _same(shapes, result) or _number(shapes, "numeric", shapes[0].dtype != "pred")


@array_rule("abs")
def _abs(op: Any, shapes: list[Shape], result: Shape) -> str:
    dtype = shapes[0].dtype
    return (
        expect_dims("a result", shapes[0].dims, result.dims)
        or expect_dtype("a result", _PART.get(dtype, dtype), result.dtype)
        or _number(shapes, "numeric", dtype != "pred")
    )


@array_rule(
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "cosh", "cosine", "erf", "exponential",
    "exponential-minus-one", "log", "log-plus-one", "logistic", "rsqrt", "sine", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
def _transcendental(op: Any, shapes: list[Shape], result: Shape) -> str:
    dtype = shapes[0].dtype
    return _same(shapes, result) or _number(shapes, "floating-point or complex", is_float(dtype) or is_complex(dtype))


@array_rule("ceil", "floor", "round-nearest-afz", "round-nearest-even")
def _rounding(op: Any, shapes: list[Shape], result: Shape) -> str:
    return _same(shapes, result) or _number(shapes, "floating-point", is_float(shapes[0].dtype))


@array_rule("count-leading-zeros", "popcnt")
def _counting(op: Any, shapes: list[Shape], result: Shape) -> str:
    return _same(shapes, result) or _number(shapes, "integer", is_integer(shapes[0].dtype))


@array_rule("not")
def _not(op: Any, shapes: list[Shape], result: Shape) -> str:
    dtype = shapes[0].dtype
    return _same(shapes, result) or _number(shapes, "integer or pred", is_integer(dtype) or dtype == "pred")


@array_rule("is-finite")
def _is_finite(op: Any, shapes: list[Shape], result: Shape) -> str:
    return (
        _number(shapes, "floating-point", is_float(shapes[0].dtype))
        or expect_dims("a result", shapes[0].dims, result.dims)
        or expect_dtype("a result", "pred", result.dtype)
    )


@array_rule("real", "imag")
def _part(op: Any, shapes: list[Shape], result: Shape) -> str:
    dtype = shapes[0].dtype
    return (
        _number(shapes, "floating-point or complex", is_float(dtype) or is_complex(dtype))
        or expect_dims("a result", shapes[0].dims, result.dims)
        or expect_dtype("a result", _PART.get(dtype, dtype), result.dtype)
    )


@array_rule("convert")
def _convert(op: Any, shapes: list[Shape], result: Shape) -> str:
    if is_complex(shapes[0].dtype) and not is_complex(result.dtype):
        return f"expected a complex result (take real or imag first), found {result}"
    return expect_dims("a result", shapes[0].dims, result.dims)


@array_rule("stochastic-convert", operands=2)
def _stochastic_convert(op: Any, shapes: list[Shape], result: Shape) -> str:
    if not is_float(shapes[0].dtype):
        return f"expected a floating-point operand, found {shapes[0]}"
    if shapes[1].dtype[0] != "u":
        return f"expected unsigned random bits, found {shapes[1]}"
    return expect_dims("random bits", shapes[0].dims, shapes[1].dims) or expect_dims(
        "a result", shapes[0].dims, result.dims
    )


@array_rule("add", "maximum", "minimum", "multiply", operands=2)
def _arithmetic(op: Any, shapes: list[Shape], result: Shape) -> str:
    return _same(shapes, result)


@array_rule("divide", "power", "remainder", "subtract", operands=2)
def _numeric(op: Any, shapes: list[Shape], result: Shape) -> str:
    return _same(shapes, result) or _number(shapes, "numeric", shapes[0].dtype != "pred")


@array_rule("atan2", operands=2)
def _atan2(op: Any, shapes: list[Shape], result: Shape) -> str:
    dtype = shapes[0].dtype
    return _same(shapes, result) or _number(shapes, "floating-point or complex", is_float(dtype) or is_complex(dtype))


@array_rule("mulhi", "shift-left", "shift-right-arithmetic", "shift-right-logical", operands=2)
def _integral(op: Any, shapes: list[Shape], result: Shape) -> str:
    return _same(shapes, result) or _number(shapes, "integer", is_integer(shapes[0].dtype))


@array_rule("and", "or", "xor", operands=2)
def _bitwise(op: Any, shapes: list[Shape], result: Shape) -> str:
    dtype = shapes[0].dtype
    return _same(shapes, result) or _number(shapes, "integer or pred", is_integer(dtype) or dtype == "pred")


@array_rule("complex", operands=2)
def _complex(op: Any, shapes: list[Shape], result: Shape) -> str:
    if shapes[0] != shapes[1]:
        return f"expected operands of one shape, found {shapes[0]} and {shapes[1]}"
    dtype = {"f32": "c64", "f64": "c128"}.get(shapes[0].dtype)
    if dtype is None:
        return f"expected operands of f32 or f64, found {shapes[0]}"
    return expect_dims("a result", shapes[0].dims, result.dims) or expect_dtype("a result", dtype, result.dtype)


@array_rule("compare", operands=2)
def _compare(op: Any, shapes: list[Shape], result: Shape) -> str:
    if shapes[0] != shapes[1]:
        return f"expected operands of one shape, found {shapes[0]} and {shapes[1]}"
    direction, kind, dtype = op.direction.data, op.comparison_type.data, shapes[0].dtype
    if direction not in _DIRECTIONS:
        return f"expected direction EQ, NE, GE, GT, LE or LT, found {direction}"
    if is_complex(dtype) and direction not in ("EQ", "NE"):
        return f"expected direction EQ or NE on complex operands, found {direction}"
    if dtype == "pred" or dtype[0] == "u":
        allowed = ("UNSIGNED",)
    elif is_integer(dtype):
        allowed = ("SIGNED",)
    else:
        allowed = ("FLOAT", "TOTALORDER")  # type: ignore[assignment]
    if kind not in allowed:
        return f"expected comparison type {' or '.join(allowed)} for {dtype}, found {kind}"
    return expect_dims("a result", shapes[0].dims, result.dims) or expect_dtype("a result", "pred", result.dtype)


@array_rule("select", operands=3)
def _select(op: Any, shapes: list[Shape], result: Shape) -> str:
    predicate, on_true, on_false = shapes
    if on_true != on_false:
        return f"expected both choices of one shape, found {on_true} and {on_false}"
    if predicate.dtype != "pred" or predicate.dims not in ((), on_true.dims):
        return f"expected a predicate of pred[] or pred{dims_text(on_true.dims)}, found {predicate}"
    return _same([on_true], result)


@array_rule("clamp", operands=3)
def _clamp(op: Any, shapes: list[Shape], result: Shape) -> str:
    minimum, operand, maximum = shapes
    for name, bound in (("minimum", minimum), ("maximum", maximum)):
        if bound.dtype != operand.dtype or bound.dims not in ((), operand.dims):
            return f"expected a {name} of {operand} or {operand.dtype}[], found {bound}"
    return _same([operand], result)
