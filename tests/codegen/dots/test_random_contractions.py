"""Contractions of whole numbers, drawn from all that decides how they are computed: every result is exact.

``tests/support/contraction_cases.py`` draws them, and runs as many as one likes as a script.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from contraction_cases import check, draw
from generated import check_function, compile_text, text_of

Array = np.ndarray[Any, Any]


def whole(random: np.random.Generator, *dims: int) -> Array:
    return random.integers(-2, 3, dims).astype(np.float32)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_small_cases(first: int) -> None:
    for seed in range(first, first + 10):
        check(draw(seed, small=True))


@pytest.mark.parametrize("seed", [2026, 5084, 5299, 5344])
def test_codes_that_are_put_in_order(seed: int) -> None:
    """Of ``f8e4m3fn``, which engines do not have: they move bytes."""
    check(draw(seed, room=0.25, small=True))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 220, 20))
def test_cases(first: int) -> None:
    for seed in range(first, first + 20):
        check(draw(seed, room=1.0))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2000, 2300, 50))
def test_many_small_cases_in_little_room(first: int) -> None:
    for seed in range(first, first + 50):
        check(draw(seed, room=(0.5, 0.25, 0.125)[seed % 3], small=True))


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 0, 1), (1, 2, 0)])
def test_terms_that_lie_apart_meet_terms_on_partitions(order: tuple[int, ...], random: np.random.Generator) -> None:
    x, w = whole(random, 3, 5, 4), whole(random, 60, 33)
    check_function(lambda x, w: x.transpose(order).reshape(1, -1) @ jnp.abs(w), x, w, relative=0)


@pytest.mark.parametrize(("m", "k", "n"), [(3, 12_000, 48), (96, 20_480, 40), (130, 9001, 64)])
def test_columns_on_partitions_are_not_cut(m: int, k: int, n: int, random: np.random.Generator) -> None:
    """Where residents leave too little room for all terms of a block."""

    def function(xp: Any, a: Any, x: Any, z: Any, c: Any) -> Any:
        y = xp.maximum(z @ z[:128], 0)
        shift = xp.minimum((y @ xp.ones((128, 128), np.float32)).max(), 1)
        return -(a @ xp.abs(x + shift)) - c, y

    z = (random.random((2048, 128)) < 0.01).astype(np.float32)
    inputs = [whole(random, m, k), whole(random, k, n), z, whole(random, m, n)]
    results = compile_text(text_of(lambda *given: function(jnp, *given), *inputs)).run(inputs)
    for result, want in zip(results, function(np, *inputs), strict=True):
        np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("seed", [9101])
def test_rows_collected_on_chip_are_not_cut(seed: int) -> None:
    """Columns that lie apart in the result are stored as whole rows, in an SBUF that has room for few rows of lhs."""
    check(draw(seed, small=True))


@pytest.mark.parametrize("n", [20_000, 50_257])
def test_long_rows_are_added(n: int, random: np.random.Generator) -> None:
    check_function(lambda x, w, b: x @ w + b, *(whole(random, *dims) for dims in ((3, 7), (7, n), (n,))), relative=0)


def test_what_is_transposed_as_it_comes_is_no_column_that_stays() -> None:
    """A map that clamps an operand in little room kept it on chip for all tiles, and turned it as if it lay in HBM."""
    check(draw(995_215, room=0.12))
