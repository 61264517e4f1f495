"""Contractions whose operands and results have their dims in any order: right, and not much slower than in the best."""

from itertools import permutations
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function

import neuronx_cc

Array = np.ndarray[Any, Any]
SIZES = (1, 2, 3, 4, 7, 12, 16, 22, 48, 64, 100, 127, 128, 129)
MOST_ELEMENTS, MOST_PRODUCTS = 1 << 17, 1 << 24
SBUF = 192 * 1024
"""Bytes a partition."""
WORST = 4.5
"""Times as long as in the best order."""


def draw(seed: int) -> tuple[str, list[Array], bool, bool]:
    """(einsum, operands of small whole numbers, whether the first is computed on chip, whether something follows)."""
    random = np.random.default_rng(seed)
    while True:
        batch, rows, columns, terms = (
            "abcdefgh"[start : start + count]
            for start, count in zip((0, 1, 4, 6), random.integers((0, 1, 1, 1), (2, 4, 3, 3)), strict=True)
        )
        size = {letter: int(random.choice(SIZES)) for letter in "abcdefgh"}
        forms = [batch + rows + terms, batch + columns + terms, batch + rows + columns]
        forms = ["".join(random.permutation([*form])) for form in forms]
        shapes = [[size[letter] for letter in form] for form in forms]
        products = prod(size[letter] for letter in batch + rows + columns + terms)
        if max(map(prod, shapes)) <= MOST_ELEMENTS and products <= MOST_PRODUCTS:
            break
    operands = [random.integers(-2, 3, shape).astype(np.float32) for shape in shapes[:2]]
    return f"{forms[0]},{forms[1]}->{forms[2]}", operands, bool(random.integers(2)), bool(random.integers(2))


def check(seed: int, room: float = 1.0) -> None:
    form, operands, computed, follows = draw(seed)

    def function(x: Any, y: Any) -> Any:
        result = jnp.einsum(form, jnp.maximum(x, -1) if computed else x, y)
        return jnp.maximum(result, -3) * 2 if follows else result

    nbytes = int(SBUF * room) // 1024 * 1024
    check_function(
        function, *operands, relative=0, machine=TRN1.with_settings([f"memory.sbuf_partition_bytes={nbytes}"])
    )


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_any_order(first: int) -> None:
    for seed in range(first, first + 10):
        check(seed)


@pytest.mark.parametrize("first", range(60, 100, 20))
def test_any_order_in_little_room(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed, room=(0.5, 0.25, 0.125)[seed % 3])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1600, 50))
def test_any_order_of_many(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed, room=(1.0, 0.25)[seed % 2])


@pytest.mark.parametrize("sizes", [(22, 100, 96, 16), (7, 128, 64, 48), (100, 12, 48, 192), (33, 65, 30, 24)])
def test_no_order_takes_much_longer(sizes: tuple[int, ...]) -> None:
    size = dict(zip("abck", sizes, strict=True))
    times = {}
    for first in ("abk", "kab", "akb", "bka"):
        for second in ("ck", "kc"):
            for out in map("".join, permutations("abc")):
                form = f"{first},{second}->{out}"
                operands = [np.zeros([size[letter] for letter in operand], np.float32) for operand in (first, second)]
                program = neuronx_cc.compile(
                    jax.jit(lambda x, y, f=form: jnp.einsum(f, x, y)), *operands, auto_cast="none"
                )
                times[form] = program.run([], timing_only=True).report.kernel_ns
    worst = max(times, key=times.__getitem__)
    assert times[worst] < WORST * min(times.values()), (worst, times)
