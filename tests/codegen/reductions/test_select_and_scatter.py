"""Gradients of pooling: select-and-scatter against the reference semantics and, without ties, XLA.

XLA's CPU back end visits the elements of a window in an order of its own where there is padding, so of equal elements
it may select another one; the reference takes the first in row-major order.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import assert_close, check_function, check_text, compile_text, text_of
from jax import lax

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.reference import evaluate

Array = np.ndarray[Any, Any]
NAMES = {"float32": "f32", "bfloat16": "bf16", "int32": "s32", "uint8": "u8"}

CASES = [
    ((7,), (3,), (2,), ((0, 0),)),
    ((40,), (7,), (1,), ((3, 3),)),
    ((130, 9), (1, 4), (1, 3), ((0, 0), (2, 0))),
    ((300, 7), (3, 1), (2, 1), ((1, 1), (0, 0))),
    ((3, 10, 12), (1, 3, 2), (1, 1, 1), ((0, 0), (1, 1), (1, 0))),
    ((3, 5, 5), (2, 3, 2), (2, 2, 1), ((0, 0), (-1, 2), (1, -1))),
    ((1, 6, 6, 2), (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4),
    ((2, 9, 11, 3), (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (0, 2), (0, 0))),
    ((150, 2, 5, 6), (1, 1, 2, 3), (1, 1, 3, 2), ((0, 0), (0, 0), (1, 0), (0, 1))),
    ((2, 6, 5, 7, 3), (1, 2, 3, 2, 1), (1, 2, 1, 2, 1), ((0, 0), (0, 0), (1, 1), (1, 0), (0, 0))),
    ((4, 3, 4, 3, 4), (2, 1, 2, 2, 2), (1, 1, 2, 1, 2), ((0, 0),) * 5),
]


def hlo_text(dims: Sequence[int], window: Any, dtype: str, keeps: str, kind: str, start: str = "0") -> str:
    """A module that selects and scatters in windows (size, strides, padding)."""
    size, strides, padding = window
    out = [(n + low + high - k) // s + 1 for n, k, s, (low, high) in zip(dims, size, strides, padding, strict=True)]
    spelled = f"size={'x'.join(map(str, size))} stride={'x'.join(map(str, strides))} pad=" + "x".join(
        f"{low}_{high}" for low, high in padding
    )
    shapes = [f"{dtype}[{','.join(map(str, sizes))}]" for sizes in (dims, out)]
    return f"""HloModule m

select {{
  a = {dtype}[] parameter(0)
  b = {dtype}[] parameter(1)
  {keeps}
}}

scatter {{
  a = {dtype}[] parameter(0)
  b = {dtype}[] parameter(1)
  ROOT c = {dtype}[] {kind}(a, b)
}}

ENTRY main {{
  x = {shapes[0]} parameter(0)
  s = {shapes[1]} parameter(1)
  z = {dtype}[] constant({start})
  ROOT r = {shapes[0]} select-and-scatter(x, s, z), window={{{spelled}}}, select=select, scatter=scatter
}}
"""


def compared(direction: str) -> str:
    return f"ROOT c = pred[] compare(a, b), direction={direction}"


def inputs(random: np.random.Generator, text: str, dtype: Any) -> list[Array]:
    """Values with ties, and sources."""
    shapes = [arg.type.data.dims for arg in parse_text(text).entry.block.args]  # type: ignore[attr-defined]
    values = np.round(random.standard_normal(shapes[0]) * 2), random.standard_normal(shapes[1]) * 3
    return [np.abs(x).astype(dtype) if np.dtype(dtype).kind == "u" else x.astype(dtype) for x in values]


def check(text: str, arrays: list[Array]) -> None:
    """The reference is the oracle."""
    (result,) = compile_text(text).run(arrays)
    (want,) = evaluate(parse_text(text), arrays)
    assert_close(result, np.asarray(want).reshape(result.shape))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_first_of_equal_elements(case: Any, random: np.random.Generator) -> None:
    dims, *window = case
    for direction, kind, start in (("GE", "add", "0"), ("LT", "maximum", "-1")):
        text = hlo_text(dims, window, "f32", compared(direction), kind, start)
        check(text, inputs(random, text, np.float32))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_like_xla(case: Any, random: np.random.Generator) -> None:
    dims, *window = case
    text = hlo_text(dims, window, "f32", compared("GT"), "add")
    values, source = inputs(random, text, np.float32)
    check_text(text, random.permutation(values.size).astype(np.float32).reshape(values.shape), source)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.int32, np.uint8], ids=lambda t: np.dtype(t).name)
def test_types(dtype: Any, random: np.random.Generator) -> None:
    dims, *window = CASES[7]
    text = hlo_text(dims, window, NAMES[np.dtype(dtype).name], compared("GE"), "add")
    check(text, inputs(random, text, dtype))


def test_special_values(random: np.random.Generator) -> None:
    """A NaN gives way to the next element, whatever it is; an infinite source reaches its element alone."""
    dims, *window = CASES[7]
    text = hlo_text(dims, window, "f32", compared("GE"), "add")
    values, source = inputs(random, text, np.float32)
    values.flat[::5] = np.nan
    source.flat[::7] = np.inf
    check(text, [values, source])


@pytest.mark.parametrize("case", CASES[3:8], ids=str)
def test_computations_of_their_own(case: Any, random: np.random.Generator) -> None:
    dims, *window = case
    keeps = "x = f32[] abs(a)\n  y = f32[] abs(b)\n  ROOT c = pred[] compare(x, y), direction=GE"
    text = hlo_text(dims, window, "f32", keeps, "subtract", "0.5")
    check(text, inputs(random, text, np.float32))


def test_start_at_run_time(random: np.random.Generator) -> None:
    dims, *window = CASES[7]
    text = hlo_text(dims, window, "f32", compared("GE"), "add").replace("constant(0)", "parameter(2)")
    check(text, [*inputs(random, text, np.float32), np.asarray(0.5, np.float32)])


def test_pooling_and_its_gradient(random: np.random.Generator) -> None:
    def pooled(x: Any) -> Any:
        largest = lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        mean = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        return (largest**2).sum() + (mean**3).sum()

    check_function(lambda x: jax.value_and_grad(pooled)(x), random.standard_normal((2, 14, 15, 8)).astype(np.float32))


@pytest.mark.parametrize("padding", ["SAME", ((0, 0), (1, 1), (2, 1), (0, 0))], ids=str)
def test_padding_of_frameworks(padding: Any, random: np.random.Generator) -> None:
    """JAX pads with minus infinity first; where nothing larger is in a window, the padding takes the source."""

    def pooled(x: Any) -> Any:
        return lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)

    x = random.permutation(2 * 9 * 12 * 5).astype(np.float32).reshape(2, 9, 12, 5)
    x[random.random(x.shape) < 0.2] = -np.inf
    source = random.standard_normal(jax.eval_shape(pooled, x).shape).astype(np.float32)
    check_function(lambda x, g: jax.vjp(pooled, x)[1](g)[0], x, source)
    check_function(lambda x, g: jax.vjp(pooled, x)[1](g)[0], np.full_like(x, -np.inf), source)


def test_narrow_sums_are_rounded_once_in_each_iteration(random: np.random.Generator) -> None:
    """In BF16, XLA's CPU client rounds each addition; a loop may then select other elements than here."""
    x, source = (random.standard_normal((2, 8, size, size), np.float32) for size in (16, 8))
    x, source = x.astype(ml_dtypes.bfloat16), source.astype(ml_dtypes.bfloat16)

    def gradient(x: Any, source: Any) -> Any:
        window = ((1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (0, 1), (0, 1)))
        return jax.vjp(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, *window), x)[1](source)[0]

    want = x
    for _ in range(2):
        summed = np.asarray(jax.jit(gradient)(want.astype(np.float32), source.astype(np.float32)))
        want = want + summed.astype(x.dtype)
    (result,) = compile_text(
        text_of(lambda x, source: lax.fori_loop(0, 2, lambda _, x: x + gradient(x, source), x), x, source)
    ).run([x, source])
    np.testing.assert_array_equal(result.view(np.uint16), want.view(np.uint16))
