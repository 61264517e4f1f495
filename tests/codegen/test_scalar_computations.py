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


@pytest.mark.parametrize(("axes", "shape"), [((1,), (5, 37)), ((0,), (5, 37)), ((0, 1), (5, 37)), ((0,), (3, 600))])
@pytest.mark.parametrize("start", [0, 12])
def test_loops_in_a_reduction(axes: tuple[int, ...], shape: tuple[int, ...], start: int) -> None:
    """Of numbers with common divisors, each pair of which takes its own number of iterations."""
    x = (np.random.default_rng(1).integers(-200, 200, shape) * 6).astype(np.int32)
    compiled = compile_text(text_of(lambda x: lax.reduce(x, np.int32(start), jnp.gcd, axes), x))
    np.testing.assert_array_equal(compiled.run([x])[0], np.gcd(np.gcd.reduce(x, axes), start))


def _steps(a: Any, b: Any) -> Any:
    """``b`` and a step for each step down from each number up to ``a``: 0 - 1 would never come down to 0 again."""

    def outer(state: Any) -> Any:
        def inner(pair: Any) -> Any:
            return lax.cond(pair[0] > 5, lambda: pair[0] - 2, lambda: pair[0] - 1), pair[1] + 1

        return state[0] - 1, lax.while_loop(lambda pair: pair[0] != 0, inner, state)[1]

    return lax.while_loop(lambda state: state[0] > 0, outer, (a, b))[1]


def _steps_of(a: int, b: int) -> int:
    for number in range(a, 0, -1):
        while number:
            number, b = number - (2 if number > 5 else 1), b + 1
    return b


def test_loops_in_loops() -> None:
    """Elements that the outer loop is through with, negative ones, do not keep the inner one going."""
    a, b = np.random.default_rng(2).integers(-4, 9, (2, 5, 37)).astype(np.int32)
    pairs = np.stack([a, b], -1)
    compiled = compile_text(text_of(lambda x: lax.reduce(x, np.int32(0), _steps, (2,)), pairs))
    np.testing.assert_array_equal(compiled.run([pairs])[0], np.vectorize(_steps_of, otypes=[np.int32])(a, b))


def test_loops_in_a_reduction_of_several_arrays_in_a_loop() -> None:
    def combine(first: Any, second: Any) -> Any:
        total = lax.while_loop(lambda v: v > 8, lambda v: v - 9, first[0] + second[0])
        return total, jnp.maximum(first[1], second[1])

    def step(_: Any, x: Any) -> Any:
        low, high = lax.reduce((x, x), (np.float32(0), np.float32(-99)), combine, (1,))
        return x + low[:, None] + high[:, None]

    x = np.random.default_rng(3).integers(0, 9, (5, 37)).astype(np.float32)
    compiled = compile_text(text_of(lambda x: lax.fori_loop(0, 2, step, x), x))
    want = x
    for _ in range(2):
        want = want + (want.sum(1) % 9 + want.max(1))[:, None]
    np.testing.assert_array_equal(compiled.run([x])[0], want)


def _add_by_ones(a: Any, b: Any) -> Any:
    """Does not come to an end for a negative ``b``."""
    return lax.while_loop(lambda pair: pair[1] != 0, lambda pair: (pair[0] + 1, pair[1] - 1), (a, b))[0]


@pytest.mark.parametrize("padding", [(0, 0), (2, 1), (36, 0), (0, 36)])
@pytest.mark.parametrize("size", [2, 9, 37])
def test_loops_in_a_window(padding: tuple[int, int], size: int) -> None:
    """What the padding holds, the initial value, is combined with nothing, and no loop waits for it."""
    x = np.random.default_rng(5).integers(0, 9, (5, 37)).astype(np.int32)

    def function(x: Any) -> Any:
        return lax.reduce_window(x, np.int32(-3), _add_by_ones, (1, size), (1, 1), ((0, 0), padding))

    padded = np.pad(x, ((0, 0), padding))
    want = np.lib.stride_tricks.sliding_window_view(padded, size, axis=1).sum(-1) - 3
    exists = np.lib.stride_tricks.sliding_window_view(np.pad(np.ones_like(x), ((0, 0), padding)), size, axis=1).any(-1)
    result = compile_text(text_of(function, x)).run([x])[0]
    np.testing.assert_array_equal(result, np.where(exists, want, -3))


def test_loops_in_a_map() -> None:
    text = """HloModule m
more {
  t = (s32[], s32[]) parameter(0)
  a = s32[] get-tuple-element(t), index=0
  b = s32[] get-tuple-element(t), index=1
  ROOT r = pred[] compare(a, b), direction=LT
}
double {
  t = (s32[], s32[]) parameter(0)
  a = s32[] get-tuple-element(t), index=0
  b = s32[] get-tuple-element(t), index=1
  c = s32[] add(a, a)
  ROOT r = (s32[], s32[]) tuple(c, b)
}
power {
  b = s32[] parameter(0)
  one = s32[] constant(1)
  t = (s32[], s32[]) tuple(one, b)
  w = (s32[], s32[]) while(t), condition=more, body=double
  ROOT r = s32[] get-tuple-element(w), index=0
}
ENTRY main {
  x = s32[5,37] parameter(0)
  ROOT r = s32[5,37] map(x), dimensions={0,1}, to_apply=power
}"""
    x = np.random.default_rng(4).integers(1, 5000, (5, 37)).astype(np.int32)
    np.testing.assert_array_equal(compile_text(text).run([x])[0], 2 ** np.ceil(np.log2(x)).astype(np.int32))


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
        lambda x: lax.reduce(x, np.float32(0), lambda a, b: lax.cond(a > b, _until_large, lambda a: a + b, a), (1,)),
        lambda x: x.at[jnp.array([0, 3])].apply(_until_large),
    ],
    ids=["branch", "scatter"],
)
def test_loops_are_refused(function: Any) -> None:
    with pytest.raises(CompileError, match=r"EVRF001.*elementwise.*\(at %.*keep loops"):
        compile_text(text_of(function, X))
