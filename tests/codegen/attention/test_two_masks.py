"""A causal mask beside other masks and ops: of rows left with nothing but finite numbers all columns have weight."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, compile_text, text_of
from jax import lax

from neuronx_cc.codegen.attention import pattern, steps

RNG = np.random.default_rng(0)
LEAST = float(np.finfo(np.float32).min)


def normal(*dims: int) -> Any:
    return RNG.standard_normal(dims).astype(np.float32)


def counts(rows: int, columns: int) -> tuple[Any, Any]:
    return tuple(lax.broadcasted_iota(jnp.int32, (rows, columns), axis) for axis in (0, 1))


def causal(scores: Any, fill: float = LEAST) -> Any:
    row, column = counts(*scores.shape[-2:])
    return jnp.where(row >= column, scores, fill)


@pytest.mark.parametrize("form", ["select", "add", "multiply and add"])
@pytest.mark.parametrize("first", ["causal", "other"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 256), (64, 64), (130, 256)])
def test_rows_without_columns(first: str, rows: int, columns: int, form: str) -> None:
    """Heads 0 and 2 are masked as a whole, of head 1 some columns are."""

    def other(scores: Any, masked: Any) -> Any:
        if form == "select":
            return jnp.where(masked, LEAST, scores)
        if form == "add":
            return scores + jnp.where(masked, LEAST, 0)
        return scores * (1.0 - masked) + masked * LEAST

    def attention(query: Any, keys: Any, values: Any, masked: Any) -> Any:
        scores = query @ keys.swapaxes(-1, -2) * 0.125
        scores = other(causal(scores), masked) if first == "causal" else causal(other(scores, masked))
        return jax.nn.softmax(scores, -1) @ values

    masked = np.zeros((1, 3, 1, columns), bool)
    masked[:, [0, 2]] = True
    masked[:, 1, :, 1::3] = True
    check_function(attention, *(normal(1, 3, size, 64) for size in (rows, columns, columns)), masked)


AFTER: dict[str, Callable[[Any], Any]] = {
    "cap": lambda scores: 50 * jnp.tanh(causal(scores, -jnp.inf) / 50),
    "floor": lambda scores: jnp.maximum(causal(scores), -3.0),
    "smaller": lambda scores: causal(scores, -1e30) * 1e-30,
    "negated": lambda scores: -causal(scores, -1e30),
    "raised": lambda scores: causal(scores, -1e30) + 1e30,
    "half of the rows": lambda scores: causal(jnp.where(counts(*scores.shape[-2:])[0] < 100, scores, LEAST)),
    "apart": lambda scores: causal(
        jnp.where(counts(*scores.shape[-2:])[0] + 7 < counts(*scores.shape[-2:])[1], scores, LEAST)
    ),
    "logarithms": lambda scores: causal(jnp.log(jnp.maximum(scores, 0.0)), -1e30),
}


@pytest.mark.parametrize("name", AFTER)
def test_what_is_made_of_masked_scores(name: str) -> None:
    def attention(query: Any, keys: Any, values: Any) -> Any:
        scores = AFTER[name](query @ keys.swapaxes(-1, -2) * 0.125)
        return jax.nn.softmax(scores, -1) @ values

    # of the logarithms, some rows have none that is finite
    query, keys, values = (normal(1, 2, 256, 64) for _ in range(3))
    check_function(attention, -np.abs(query) if name == "logarithms" else query, np.abs(keys), values)


BESIDE: dict[str, tuple[Callable[..., Any], bool]] = {
    "alone": (causal, True),
    "infinite, beside what is given": (lambda scores, bias: causal(scores, -jnp.inf) + bias, True),
    "beside what is given": (lambda scores, bias: causal(scores) + bias, False),
    "distances": (
        lambda scores, bias: causal(scores - 0.5 * jnp.abs(jnp.arange(256)[:, None] - jnp.arange(256))),
        True,
    ),
    "whole numbers": (lambda scores, bias: causal(scores + jnp.where(bias > 0, -9.0, 0.0)), True),
    "capped": (lambda scores, bias: causal(jnp.tanh(scores)), True),
    "window": (lambda scores, bias: jnp.where(_near(), causal(scores), LEAST), True),
}


def _near() -> Any:
    row, column = counts(256, 256)
    return row - column < 16


@pytest.mark.parametrize("name", BESIDE)
def test_which_columns_are_left_out(name: str) -> None:
    masked, fewer = BESIDE[name]

    def attention(query: Any, keys: Any, values: Any, bias: Any) -> Any:
        scores = query @ keys.swapaxes(-1, -2) * 0.125
        return jax.nn.softmax(masked(scores, *[bias] * (name != "alone")), -1) @ values

    found: list[int] = []

    def noted(*arguments: Any) -> int:
        found.append(steps.with_weight(*arguments))
        return found[-1]

    inputs = [*(normal(1, 2, 256, 64) for _ in range(3)), normal(256, 256)]
    with mock.patch.object(pattern, "with_weight", noted):
        compile_text(text_of(attention, *inputs))
    assert (min(found) < 256) == fewer
