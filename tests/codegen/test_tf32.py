"""Products in tf32: TensorE rounds what it reads, so they are never slower than in FP32, and round as they should."""

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import assert_close, text_of
from jax import lax

import neuronx_cc
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.ir.reference.elementwise import round_to_format

Function = Callable[..., Any]
NHWC = ("NHWC", "HWIO", "NHWC")


def dot(x: Any, w: Any) -> Any:
    return x @ w


def window(groups: int) -> Function:
    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=groups)

    return function


def gradient(x: Any, y: Any) -> Any:
    """Of a kernel of 3 x 3, which is a convolution with few outputs."""
    _, back = jax.vjp(lambda w: window(1)(x, w), jnp.zeros((3, 3, x.shape[-1], y.shape[-1])))
    return back(y)[0]


def attention(q: Any, k: Any, v: Any) -> Any:
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) / 8), v)


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(len(shapes))
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


CASES: dict[str, tuple[Function, list[np.ndarray]]] = {
    **{
        f"dot {m} {k} {n}": (dot, arrays((m, k), (k, n))) for m, k, n in product((1, 37, 130), (64, 257), (1, 131, 512))
    },
    **{
        f"convolution {side} {features} {taps} {groups}": (
            window(groups),
            arrays((2, side, side, features), (taps, taps, features // groups, features)),
        )
        for side, features, taps, groups in product((7, 20), (12, 64), (1, 3), (1, 4))
    },
    "few channels": (window(1), arrays((1, 33, 33, 3), (7, 7, 3, 32))),
    "single features": (window(24), arrays((1, 9, 9, 24), (3, 3, 1, 24))),
    "gradient": (gradient, arrays((2, 14, 14, 12), (2, 14, 14, 20))),
    "attention": (attention, arrays((2, 130, 64), (2, 130, 64), (2, 130, 64))),
}


@pytest.mark.parametrize("name", CASES)
def test_never_slower_than_fp32(name: str) -> None:
    function, inputs = CASES[name]
    times = {}
    for mode in ("none", "matmult", "all"):
        executable = neuronx_cc.compile(jax.jit(function), *inputs, auto_cast=mode, auto_cast_type="tf32")
        times[mode] = executable.run([], timing_only=True).report.time_ns
    assert max(times["matmult"], times["all"]) <= times["none"] * 1.005


@pytest.mark.parametrize("name", [name for name in CASES if name != "attention"])
def test_operands_are_rounded(name: str) -> None:
    """To ten bits: products of them are exact, so that nothing but the order of the sums is left."""
    function, inputs = CASES[name]
    executable = neuronx_cc.compile(jax.jit(function), *inputs, auto_cast="matmult", auto_cast_type="tf32")
    (result,) = executable.run(inputs).outputs
    taken = inputs if name == "single features" else [round_to_format(each, 8, 10) for each in inputs]
    (want,) = evaluate(parse_text(text_of(function, *inputs)), taken)
    assert_close(result, want, relative=2e-5)
    if name != "single features":
        assert np.abs(result - evaluate(parse_text(text_of(function, *inputs)), inputs)[0]).max() > 0


def test_attention_is_one_kernel() -> None:
    """And within what rounding the operands of both products makes."""
    function, inputs = CASES["attention"]
    executable = neuronx_cc.compile(jax.jit(function), *inputs, auto_cast="matmult", auto_cast_type="tf32")
    (result,) = executable.run(inputs).outputs
    assert_close(result, np.asarray(function(*map(jnp.asarray, inputs))), relative=4e-3)


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize(("terms", "columns"), [(512, 511), (512, 512), (1024, 768), (2048, 511), (2048, 2048)])
def test_few_rows_are_never_slower(rows: int, terms: int, columns: int) -> None:
    """Estimates of other schedules than that of FP32 are not believed to a few percent."""
    text = f"""HloModule product
ENTRY main {{
  x = f32[{rows},{terms}] parameter(0)
  w = f32[{terms},{columns}] parameter(1)
  ROOT dot = f32[{rows},{columns}] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}"""
    exact, rounded = (
        neuronx_cc.compile(text, **options).run([], timing_only=True).report.time_ns
        for options in ({"auto_cast": "none"}, {"auto_cast": "matmult", "auto_cast_type": "tf32"})
    )
    assert rounded <= exact * 1.0005
