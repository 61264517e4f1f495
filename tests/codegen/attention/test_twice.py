"""Attention whose scores are computed twice: for the greatest of each row, and with the columns on the partitions."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, Compiled, assert_close, compile_text, text_of

from neuronx_cc.codegen.attention import choose, estimate
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine

MACHINES = Path(__file__).parents[2] / "machines"
SCHEDULES = estimate.schedules


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wherever it is possible, and however small."""

    def only(*problem: Any) -> Iterator[Any]:
        found = list(SCHEDULES(*problem))
        return iter([each for each in found if each.twice] or found)

    monkeypatch.setattr(choose, "apart", lambda *_: math.inf)
    monkeypatch.setattr(estimate, "schedules", only)
    estimate._estimated.cache_clear()
    yield
    estimate._estimated.cache_clear()


def attention(scale: float, mask: Callable[[Any], Any] | None = None, inside: Any = -np.inf) -> Callable[..., Any]:
    def function(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("hqd,hkd->hqk", q, k) * scale
        if mask is not None:
            scores = jnp.where(mask(scores), scores, inside)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1), v)

    return function


def lower(s: Any) -> Any:
    return jnp.tril(jnp.ones(s.shape[-2:], bool), s.shape[-1] - s.shape[-2])


def window(s: Any) -> Any:
    return lower(s) & ~jnp.tril(jnp.ones(s.shape[-2:], bool), s.shape[-1] - s.shape[-2] - 70)


def operands(random: np.random.Generator, heads: int, rows: int, columns: int, depth: int, width: int) -> list[Any]:
    shapes = (heads, rows, depth), (heads, columns, depth), (heads, columns, width)
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


def compiled_twice(function: Any, inputs: list[Any], machine: Machine = TRN1) -> Compiled:
    compiled = compile_text(text_of(function, *inputs), machine)
    (line,) = compiled.program.schedules.values()
    assert "computed twice" in line
    return compiled


def check(function: Any, inputs: list[Any], relative: float = 2e-5, machine: Machine = TRN1) -> None:
    (found,) = compiled_twice(function, inputs, machine).run(inputs)
    assert_close(found, np.asarray(jax.jit(function)(*inputs)), relative)


DIMS = [
    *((1, 1, 130, 1, 1), (1, 127, 129, 8, 16), (2, 128, 128, 64, 64), (3, 129, 511, 32, 48), (1, 200, 513, 128, 128)),
    *((2, 300, 640, 129, 33), (12, 64, 77, 40, 40), (5, 31, 1030, 16, 511), (1, 256, 2049, 80, 24), (4, 2, 130, 5, 7)),
]


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("mask", [None, lower, window], ids=["all", "lower", "window"])
def test_values(twice: None, dims: tuple[int, ...], mask: Any, random: np.random.Generator) -> None:
    if mask is not None and dims[1] > dims[2]:
        pytest.skip("rows without a score")
    check(attention(dims[3] ** -0.5, mask), operands(random, *dims))


@pytest.mark.parametrize("dims", [(2, 300, 700, 64, 64), (8, 100, 200, 96, 40)], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(twice: None, dims: tuple[int, ...], dtype: str, random: np.random.Generator) -> None:
    function = attention(dims[3] ** -0.5, lower)
    inputs = [np.asarray(jnp.asarray(x).astype(dtype)) for x in operands(random, *dims)]
    (found,) = compiled_twice(function, inputs).run(inputs)
    exact = jax.jit(function)(*(x.astype(np.float32) for x in inputs))
    assert_close(found.astype(np.float32), np.asarray(exact), 3e-2 if dtype == "bfloat16" else 4e-3)


def test_small_machine(twice: None, random: np.random.Generator) -> None:
    small = find_machine(str(MACHINES / "half.toml"))
    check(attention(0.2, lower), operands(random, 3, 300, 400, 32, 32), machine=small)


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e9, 1e18])
def test_large_scores(twice: None, size: float, random: np.random.Generator) -> None:
    """The greatest score is subtracted exactly enough, however large it is: one column has all the weight."""
    q, k, v = operands(random, 2, 150, 300, 16, 8)
    q, k = (np.round(x * 8) / 8 for x in (q, k))
    q[:, :, 0], k[:, :, 0] = np.float32(size), 0
    k[:, ::7, 0] = 1
    k[:, 14, 0] = 2
    check(attention(1.0), [q, k, v])
    check(attention(1.0), [-q, k, v])


def test_rows_that_are_no_numbers(twice: None, random: np.random.Generator) -> None:
    """Each stays by itself: other rows, and other heads, are as they were."""
    q, k, v = operands(random, 3, 140, 260, 32, 16)
    q[0, 5, 3], q[1, 7, 3], q[2, 130, 0] = np.nan, np.inf, -np.inf
    check(attention(0.2), [q, k, v])
    check(attention(0.2, lower), [q, k, v])
    v[0, 200, 3], v[2, 0, 0] = np.inf, np.nan
    check(attention(0.2), [q, k, v])


def test_rows_without_a_score(twice: None, random: np.random.Generator) -> None:
    """They are NaN, and zeros where the program guards them."""
    inputs = operands(random, 2, 200, 150, 16, 8)
    check(attention(0.2, lower), inputs)

    def guarded(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.where(lower(jnp.zeros((200, 150))), jnp.einsum("hqd,hkd->hqk", q, k), -jnp.inf)
        top = scores.max(-1, keepdims=True)
        made = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0))
        total = made.sum(-1, keepdims=True)
        return jnp.einsum("hqk,hkd->hqd", made / jnp.where(total == 0, 1, total), v)

    check(guarded, inputs)


def test_only_where_it_is_right(random: np.random.Generator) -> None:
    """Not where what masks leave out might have weight, where something lies beside the scores, or factors turn round
    which is the greatest.
    """
    inputs = operands(random, 2, 512, 512, 64, 64)

    def added(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("hqd,hkd->hqk", q, k) + jnp.sin(q[0, :, :1] * 100.0)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1), v)

    for function in (attention(0.1, lower, -1e9), attention(0.1, lower, 0.0), attention(-0.1), added):
        compiled = compile_text(text_of(function, *inputs))
        assert not any("computed twice" in line for line in compiled.program.schedules.values())
        (found,) = compiled.run(inputs)
        assert_close(found, np.asarray(jax.jit(function)(*inputs)), 3e-5)


@pytest.mark.parametrize("rows", [256, 512, 1024])
def test_of_fp32_it_takes_less_time(rows: int, random: np.random.Generator) -> None:
    """Where nothing else is decided for it: FP32 is transposed in two halves of its bits otherwise."""
    compiled_twice(attention(0.125), operands(random, 12, rows, rows, 64, 64))
