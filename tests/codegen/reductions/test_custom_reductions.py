"""Reductions with computations of their own: folded pairwise in order, one or several operands."""

from math import prod
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function, compile_text, text_of
from jax import lax

Array = np.ndarray[Any, Any]

CASES = [
    ((1,), (0,)),
    ((5,), (0,)),
    ((1031,), (0,)),
    ((7, 130), (1,)),
    ((130, 7), (0,)),
    ((700, 33), (0,)),
    ((3, 513), (0,)),
    ((3, 5, 9), (0, 2)),
    ((3, 5, 9), (0, 1)),
    ((2, 3, 2, 3, 2), (1, 2, 4)),
    ((4, 0), (1,)),
    ((0, 4), (1,)),
    ((2, 1, 3), (1,)),
]


def compose(left: tuple[Any, ...], right: tuple[Any, ...]) -> tuple[Any, ...]:
    """Affine maps one after the other: associative, not commutative."""
    return left[0] * right[0], right[0] * left[1] + right[1]


@pytest.mark.parametrize(("dims", "folded"), CASES, ids=str)
def test_order_is_kept(dims: tuple[int, ...], folded: tuple[int, ...], random: np.random.Generator) -> None:
    """NumPy is the oracle: s32 maps compose exactly."""
    factor, shift = (random.integers(-3, 4, dims).astype(np.int32) for _ in range(2))
    text = text_of(lambda a, b: lax.reduce((a, b), (np.int32(1), np.int32(0)), compose, folded), factor, shift)
    results = compile_text(text).run([factor, shift])
    kept = [axis for axis in range(len(dims)) if axis not in folded]
    shape = (*(dims[axis] for axis in kept), prod(dims[axis] for axis in folded))
    rows = [x.transpose(*kept, *folded).reshape(shape) for x in (factor, shift)]
    want = (np.ones(rows[0].shape[:-1], np.int32), np.zeros(rows[0].shape[:-1], np.int32))
    for place in range(rows[0].shape[-1]):
        want = compose(want, (rows[0][..., place], rows[1][..., place]))  # type: ignore[assignment]
    for result, expected in zip(results, want, strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16], ids=lambda t: np.dtype(t).name)
def test_hypotenuse(dtype: Any, random: np.random.Generator) -> None:
    x = np.abs(random.standard_normal((37, 9)) / 8).astype(dtype)
    x[3, 2] = np.inf
    check_function(
        lambda x: lax.reduce(x, np.zeros((), dtype), lambda a, b: jnp.sqrt(a * a + b * b), (0,)), x, relative=0.03
    )


def test_the_initial_value_may_be_computed(random: np.random.Generator) -> None:
    x, start = random.integers(0, 50, (6, 45)).astype(np.int32), np.int32(3)
    text = text_of(lambda x, s: lax.reduce(x, s * 2, lambda a, b: a + b + a * b, (1,)), x, start)
    (result,) = compile_text(text).run([x, start])
    want = np.full(6, 6, np.int32)
    for place in range(45):
        with np.errstate(over="ignore"):
            want = want + x[:, place] + want * x[:, place]
    np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("dims", [(5,), (6, 130), (130, 6), (3, 700, 2), (1, 20_000)], ids=str)
@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.uint8])
def test_parity(dims: tuple[int, ...], dtype: Any, random: np.random.Generator) -> None:
    x = random.integers(0, 2 if dtype is np.bool_ else 200, dims).astype(dtype)
    check_function(lambda x: [lax.reduce_xor(x, (axis,)) for axis in range(len(dims))] + [lax.reduce_or(x, (0,))], x)


def test_first_of_several(random: np.random.Generator) -> None:
    """Three operands: the largest value with the place and weight that came with it."""
    x, places, weights = random.standard_normal((4, 77)), np.arange(77), random.standard_normal(77)
    keys = x.astype(np.float32), np.broadcast_to(places, x.shape).astype(np.int32).copy()

    def larger(left: Any, right: Any) -> Any:
        keep = left[0] >= right[0]
        return tuple(lax.select(keep, a, b) for a, b in zip(left, right, strict=True))

    start = (np.float32(-np.inf), np.int32(-1), np.float32(0))
    given = (*keys, np.broadcast_to(weights, x.shape).astype(np.float32).copy())
    check_function(lambda *args: lax.reduce(args, start, larger, (1,)), *given)


@pytest.mark.parametrize("function", [jnp.argmax, jnp.argmin], ids=["argmax", "argmin"])
@pytest.mark.parametrize(
    ("dims", "dtype"), [((256, 8192), "float32"), ((2, 300, 1155), "int32"), ((128, 20000), "bfloat16")], ids=str
)
def test_places_in_long_rows(function: Any, dims: tuple[int, ...], dtype: str, random: np.random.Generator) -> None:
    """Rows are cut into blocks: the first of equal elements, and the first NaN, wins in each and among them."""
    x = random.integers(-40, 40, dims).astype(np.float32)
    if dtype != "int32":
        rows = x.reshape(-1, dims[-1])
        rows[1, 100:300:40], rows[2, -1], rows[3], rows[4] = np.nan, np.nan, -np.inf, np.inf
        rows[5, 7], rows[5, 400], rows[6, 9], rows[6, 300] = np.inf, np.nan, -0.0, 0.0
    compiled = check_function(lambda x: function(x, axis=-1), jnp.asarray(x).astype(dtype))
    assert any("gather" in kernel for kernel in compiled.program.kernels)
