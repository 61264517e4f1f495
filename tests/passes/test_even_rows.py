"""Rows whose number no number of partitions divides well get a few more where they are multiplied repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, text_of
from jax import lax

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE

FEATURES, HEADS = 32, 2
Scores = Callable[[Any], Any]


def norm(x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-6)


def layer(x: Any, w: Any, mask: Scores = lambda s: s) -> Any:
    rows = x.shape[0]
    q, k, v = (norm(x) @ w[0]).reshape(rows, 3, HEADS, FEATURES // HEADS).transpose(1, 2, 0, 3)
    scores = mask(jnp.einsum("hsd,htd->hst", q, k) * 0.25)
    x = x + jnp.einsum("hst,htd->shd", jax.nn.softmax(scores, -1), v).reshape(rows, FEATURES) @ w[1]
    return x + jax.nn.gelu(norm(x) @ w[2]) @ w[3]


def given(rows: int, seed: int = 0) -> tuple[Any, list[Any]]:
    random = np.random.default_rng(seed)
    dims = ((FEATURES, 3 * FEATURES), (FEATURES, FEATURES), (FEATURES, 2 * FEATURES), (2 * FEATURES, FEATURES))
    x, *w = ((random.standard_normal(each) / 6).astype(np.float32) for each in ((rows, FEATURES), *dims))
    return x, w


def products(function: Callable[..., Any], *inputs: Any) -> set[int]:
    """Numbers of rows of the module's contractions after the pass."""
    module, names = parse_text(text_of(function, *inputs)), list[str]()
    for _, passes in DEFAULT_PIPELINE:
        names += passes
        if "even_rows" in passes:
            break
    run_passes(module, names, PassContext(PassOptions()), verify_each=True)
    dots = [op for op in ops_of(module.entry.block) if isinstance(op, hlo.DotOp)]
    return {size for op in dots for size in op.shape.dims if size > 128}


@pytest.mark.parametrize(("rows", "more"), [(196, 196), (197, 198), (257, 258), (131, 132), (509, 512), (520, 520)])
def test_numbers_of_rows(rows: int, more: int) -> None:
    x, w = given(rows)
    assert products(lambda x, *w: layer(layer(x, w), w), x, *w) == {more}


def test_few_products_are_left_alone() -> None:
    x, w = given(197)
    assert products(lambda x, w: x @ w, x, w[0]) == {197}


READS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "first": lambda x: x[0],
    "last": lambda x: x[-1],
    "mean": lambda x: x.mean(0),
    "greatest": lambda x: x.max(0),
    "turned": lambda x: x.T,
    "flat": lambda x: x.reshape(-1),
    "reversed": lambda x: x[::-1],
    "product": lambda x: x.T @ x / 100,
    "softmax over rows": lambda x: jax.nn.softmax(x, 0),
    "every third": lambda x: x[1:-1:3],
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("rows", [131, 257])
def test_readers(read: str, rows: int) -> None:
    x, w = given(rows)
    check_function(lambda x, *w: READS[read](layer(layer(x, w), w)), x, *w, relative=1e-4)


def causal(s: Any) -> Any:
    return jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)


def itself(s: Any) -> Any:
    """Only its own column: an added row would have none that counts."""
    rows, columns = (lax.broadcasted_iota(np.int32, s.shape[-2:], axis) for axis in (0, 1))
    return jnp.where(rows == columns, s, -jnp.inf)


def upper(s: Any) -> Any:
    return jnp.where(jnp.triu(jnp.ones(s.shape[-2:], bool)), s, jnp.finfo(np.float32).min)


def biased(s: Any) -> Any:
    return s + jnp.sin(jnp.arange(s.shape[-1]) * 1.0) - 1e9 * (jnp.arange(s.shape[-1]) % 2)


@pytest.mark.parametrize("mask", [causal, itself, upper, biased])
def test_masks(mask: Scores) -> None:
    x, w = given(197)

    def network(x: Any, *w: Any) -> Any:
        x = layer(layer(x, w, mask), w, mask)
        return x, x[-1], x.mean(0)

    check_function(network, x, *w, relative=1e-4)


def test_counted_rows() -> None:
    """What is made of row numbers is that of the last row, also where the next one would make no number."""
    x, w = given(197)

    def network(x: Any, *w: Any) -> Any:
        left = jnp.log(197.0 - lax.broadcasted_iota(np.float32, (197, FEATURES), 0))
        return layer(layer(x + left, w), w).mean(0)

    check_function(network, x, *w, relative=1e-4)


def test_class_token_and_gradients() -> None:
    x, w = given(196)
    token, places = given(1, 1)[0], given(197, 2)[0]

    def loss(w: list[Any], x: Any, token: Any, places: Any) -> Any:
        x = jnp.concatenate([token, x]) + places
        return (norm(layer(layer(x, w), w))[0] ** 3).sum()

    def step(x: Any, token: Any, places: Any, *w: Any) -> Any:
        return jax.grad(loss)(w, x, token, places)

    check_function(step, x, token, places, *w, relative=1e-3)
