"""Computations of scalars with branches, calls and tuples. XLA's CPU back end aborts on branches, so NumPy tells."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_text, compile_text, text_of
from jax import lax

from neuronx_cc.ir.errors import CompileError

X = np.random.default_rng(0).standard_normal((5, 37)).astype(np.float32)


def _larger(a: Any, b: Any) -> Any:
    return lax.cond(b > a, lambda: b, lambda: a)


def _larger_of_three(a: Any, b: Any) -> Any:
    """The index is out of range: the last branch."""
    return lax.switch((b > a).astype(jnp.int32) + 3, [lambda: a, lambda: a, lambda: jnp.maximum(a, b)])


@pytest.mark.parametrize("combine", [_larger, _larger_of_three])
def test_branches_in_a_reduction(combine: Any) -> None:
    compiled = compile_text(text_of(lambda x: lax.reduce(x, np.float32(-9), combine, (1,)), X))
    np.testing.assert_array_equal(compiled.run([X])[0], X.max(1))


def test_branches_in_a_window_and_a_scatter() -> None:
    def function(x: Any) -> Any:
        windows = lax.reduce_window(x, np.float32(-9), _larger, (1, 3), (1, 3), "VALID")
        return windows, x.at[jnp.array([0, 3])].apply(lambda v: lax.cond(v > 0, lambda: v * 2, lambda: v))

    windows, scattered = compile_text(text_of(function, X)).run([X])
    np.testing.assert_array_equal(windows, X[:, :36].reshape(5, 12, 3).max(2))
    doubled = np.where((np.arange(5) % 3 == 0)[:, None] & (X > 0), X * 2, X)
    np.testing.assert_array_equal(scattered, doubled)


def test_branches_in_a_comparator() -> None:
    text = """HloModule m
up {
  t = (f32[], f32[]) parameter(0)
  a = f32[] get-tuple-element(t), index=0
  b = f32[] get-tuple-element(t), index=1
  ROOT r = pred[] compare(a, b), direction=LT
}
down {
  t = (f32[], f32[]) parameter(0)
  a = f32[] get-tuple-element(t), index=0
  b = f32[] get-tuple-element(t), index=1
  ROOT r = pred[] compare(a, b), direction=GT
}
order {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  t = (f32[], f32[]) tuple(a, b)
  p = pred[] compare(a, a), direction=EQ
  ROOT r = pred[] conditional(p, t, t), true_computation=up, false_computation=down
}
ENTRY main {
  x = f32[5,37] parameter(0)
  ROOT s = f32[5,37] sort(x), dimensions={1}, to_apply=order
}
"""
    np.testing.assert_array_equal(compile_text(text).run([X])[0], np.sort(X, 1))


def test_map_of_a_call_and_a_tuple() -> None:
    text = """HloModule m
inner {
  x = f32[] parameter(0)
  ROOT y = f32[] sine(x)
}
outer {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  z = f32[] call(x), to_apply=inner
  t = (f32[], f32[]) tuple(z, y)
  a = f32[] get-tuple-element(t), index=0
  p = pred[] compare(y, a), direction=GT
  ROOT s = f32[] select(p, a, y)
}
ENTRY main {
  x = f32[5,37] parameter(0)
  ROOT m = f32[5,37] map(x, x), dimensions={0,1}, to_apply=outer
}
"""
    check_text(text, X)


def _until_large(v: Any) -> Any:
    return lax.while_loop(lambda c: c < 5, lambda c: c + 1, v)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.reduce(x, np.float32(0), lambda a, b: _until_large(a + b), (1,)),
        lambda x: lax.reduce_window(x, np.float32(0), lambda a, b: _until_large(a + b), (1, 2), (1, 1), "VALID"),
        lambda x: x.at[jnp.array([0, 3])].apply(_until_large),
    ],
    ids=["reduce", "reduce-window", "scatter"],
)
def test_loops_are_refused(function: Any) -> None:
    with pytest.raises(CompileError, match=r"EVRF001.*elementwise.*\(at %.*keep loops"):
        compile_text(text_of(function, X))
