"""Contractions of integers are exact, whatever their values: they wrap as two's complement does."""

from typing import Any

import numpy as np
import pytest
from generated import check_function, compile_text, text_of
from jax import lax

from neuronx_cc.passes.exact_integer_dots import Digits

Array = np.ndarray[Any, Any]


def full(random: np.random.Generator, dtype: str, *dims: int) -> Array:
    """Any values of the type."""
    info = np.iinfo(dtype)
    return random.integers(info.min, info.max, dims, np.dtype(dtype), endpoint=True)


@pytest.mark.parametrize(
    ("left", "right", "out", "k"),
    [
        ("int32", "int32", "int32", 3),
        ("int32", "int32", "int32", 300),
        ("uint32", "uint32", "uint32", 129),
        ("int16", "int16", "int16", 129),
        ("int16", "int16", "int32", 513),
        ("uint16", "uint16", "uint16", 257),
        ("int8", "int8", "int32", 5000),
        ("int8", "int8", "uint32", 127),
        ("uint8", "int32", "int32", 131),
        ("int32", "uint32", "uint32", 131),
    ],
)
def test_full_range(left: str, right: str, out: str, k: int, random: np.random.Generator) -> None:
    def function(x: Any, y: Any) -> Any:
        return lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=np.dtype(out))

    check_function(function, full(random, left, 131, k), full(random, right, k, 65))


@pytest.mark.parametrize(
    ("lhs", "rhs", "numbers"),
    [
        ((3, 5, 7), (7, 4, 3), (((2,), (0,)), ((0,), (2,)))),
        ((3, 5, 7, 2), (2, 7, 4), (((3, 2), (0, 1)), ((), ()))),
        ((40, 7, 60), (60, 50, 7), (((2,), (0,)), ((1,), (2,)))),
        ((5,), (5,), (((0,), (0,)), ((), ()))),
        ((5, 2), (3,), (((), ()), ((), ()))),
        ((3, 0), (0, 4), (((1,), (0,)), ((), ()))),
    ],
    ids=str,
)
def test_dims(lhs: tuple[int, ...], rhs: tuple[int, ...], numbers: Any, random: np.random.Generator) -> None:
    operands = full(random, "int32", *lhs), full(random, "int32", *rhs)
    check_function(lambda x, y: lax.dot_general(x, y, numbers), *operands)


@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("k", [1023, 1024, 1025, 2051, 5000])
def test_terms_of_eight_bits_in_parts(dtypes: tuple[str, str], k: int) -> None:
    """The largest sums that there are, with operands cast to more bits ahead of the contraction."""
    x, w = (
        np.full(dims, np.iinfo(dtype).min or 255, dtype) for dims, dtype in zip(((2, k), (k, 3)), dtypes, strict=True)
    )
    w[:, 1] = np.iinfo(w.dtype).max

    def product(x: Any, w: Any) -> Any:
        return x.astype(np.int32) @ w.astype(np.int32)

    (result,) = compile_text(text_of(product, x, w)).run([x, w])
    np.testing.assert_array_equal(result, x.astype(np.int64) @ w.astype(np.int64))


@pytest.mark.parametrize("dtype", ["int16", "uint32"])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(dtype: str, groups: int, random: np.random.Generator) -> None:
    x, w = full(random, dtype, 2, 6, 9, 10), full(random, dtype, 4, 6 // groups, 3, 3)
    check_function(lambda x, w: lax.conv_general_dilated(x, w, (1, 2), "SAME", feature_group_count=groups), x, w)


@pytest.mark.parametrize("cast", ["bf16", "fp8_e4m3"])
def test_auto_cast_leaves_them_alone(cast: str, random: np.random.Generator) -> None:
    x, y = full(random, "int32", 33, 70), full(random, "int32", 70, 40)
    compiled = compile_text(text_of(lambda x, y: x @ y, x, y), auto_cast="all", auto_cast_type=cast)
    np.testing.assert_array_equal(compiled.run([x, y])[0], x @ y)


@pytest.mark.parametrize(
    ("dtype", "kept", "width", "count", "magnitude"),
    [("s8", 32, 8, 1, 7), ("u8", 32, 8, 1, 8), ("s32", 32, 6, 6, 6), ("s32", 8, 8, 1, 7), ("pred", 32, 3, 1, 1)],
)
def test_digits(dtype: str, kept: int, width: int, count: int, magnitude: int) -> None:
    assert Digits.of(dtype, kept, width) == Digits(width, count, magnitude)
