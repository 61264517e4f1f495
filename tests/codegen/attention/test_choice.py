"""Whether an attention is one kernel, by estimate: the choice takes little longer than the better one, by the clock."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of

from neuronx_cc.codegen.attention import choose, estimate, kernel
from neuronx_cc.runtime.executable import Executable

SIZES = [(1, 1, 512, 32), (1, 64, 128, 128), (4, 16, 512, 64), (4, 128, 128, 32), (12, 256, 128, 64), (2, 200, 700, 80)]
SIZES += [(12, 1, 1000, 64), (7, 3, 777, 80), (8, 8, 500, 64)]
"""Heads, rows, columns, depth."""


CHANNELS = [(12, 32, 196), (24, 32, 49)]
"""Heads, channels of each, rows of the product that they are columns of."""


def nanoseconds(sizes: tuple[int, ...]) -> float:
    if len(sizes) == 3:
        return timed(of_channels(sizes[0]), (sizes[2], sizes[0] * sizes[1]), (3 * sizes[0] * sizes[1],) * 2)
    heads, rows, columns, depth = sizes

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("hqd,hkd->hqk", q, k) / math.sqrt(depth)
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)

    return timed(attention, *((heads, length, depth) for length in (rows, columns, columns)))


def of_channels(heads: int) -> Callable[..., Any]:
    """Channels attend to each other: what they contract are the rows of an array in which they lie side by side."""

    def attention(x: Any, w: Any) -> Any:
        made = jnp.tile(x, 3) @ w
        q, k, v = jnp.moveaxis(made.reshape(len(x), 3, heads, -1), 1, 0)
        q, k, v = (jnp.moveaxis(each, 0, 1) for each in (q * 0.1, k, v))
        weights = jax.nn.softmax(jnp.einsum("hnd,hne->hde", q, k), axis=-1)
        return jnp.moveaxis(jnp.einsum("hde,hne->hnd", weights, v), 0, 1).reshape(x.shape) @ w[: x.shape[1]]

    return attention


def timed(function: Callable[..., Any], *shapes: tuple[int, ...], auto_cast: str = "matmult") -> float:
    inputs = [np.zeros(shape, np.float32) for shape in shapes]
    compiled = compile_text(text_of(function, *inputs), auto_cast=auto_cast)
    run = Executable(compiled.program, compiled.constants).run([], timing_only=True, check_races=False)
    return float(run.report.kernel_ns)


@pytest.mark.parametrize("sizes", [*SIZES, *CHANNELS], ids=str)
def test_choice(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, found = nanoseconds(sizes), []
    for limit in (0.0, math.inf):
        monkeypatch.setattr(choose, "apart", lambda *_, limit=limit: limit)
        found.append(nanoseconds(sizes))
    assert found[0] != found[1]
    assert chosen <= 1.3 * min(found)


@pytest.mark.parametrize(
    "dims", [(161, 49, 2, 32), (64, 49, 3, 32), (16, 64, 6, 32), (30, 30, 10, 10), (300, 36, 2, 64)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_windows(dims: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens of many windows behind a projection: with a bias beside the scores, or without, and in both forms."""
    windows, rows, heads, depth = dims

    def attention(x: Any, w: Any, *bias: Any) -> Any:
        q, k, v = (x @ w).reshape(windows, rows, 3, heads, depth).transpose(2, 0, 3, 1, 4)
        scores = jnp.einsum("whqd,whkd->whqk", q, k) / math.sqrt(depth)
        weights = jax.nn.softmax(scores + bias[0] if bias else scores, axis=-1)
        return jnp.einsum("whqk,whkd->wqhd", weights, v)

    def nanoseconds(*shapes: tuple[int, ...]) -> float:
        inputs = [np.zeros(shape, jnp.dtype(dtype)) for shape in shapes]
        compiled = compile_text(text_of(attention, *inputs))
        run = Executable(compiled.program, compiled.constants).run([], timing_only=True, check_races=False)
        return float(run.report.kernel_ns)

    width = heads * depth
    shapes = (windows, rows, width), (width, 3 * width)
    chosen, biased = nanoseconds(*shapes), nanoseconds(*shapes, (heads, rows, rows))
    monkeypatch.setattr(choose, "apart", lambda *_: 0.0)
    assert chosen <= 1.1 * nanoseconds(*shapes)
    assert chosen <= 1.1 * biased


def test_a_scale_of_each_head_takes_hardly_any_time() -> None:
    def attention(q: Any, k: Any, v: Any, scale: Any) -> Any:
        return jax.nn.softmax(scale * jnp.einsum("hqd,hkd->hqk", q, k), axis=-1) @ v

    plain, scaled = (timed(attention, *[(48, 64, 32)] * 3, shape) for shape in ((1,), (48, 1, 1)))
    assert scaled < 1.5 * plain


@pytest.mark.parametrize("rows", [16, 32])
def test_keys_and_values_whose_features_lie_apart(rows: int) -> None:
    """They are not loaded one by one so that columns come to lie on the partitions."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        return jnp.einsum("hqk,hdk->hdq", jax.nn.softmax(jnp.einsum("hdq,hdk->hqk", q, k), axis=-1), v)

    def beside(q: Any, k: Any, v: Any) -> Any:
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k), axis=-1), v)

    apart = timed(attention, *((16, 8, length) for length in (rows, 1024, 1024)))
    assert apart < 2 * timed(beside, *((16, length, 8) for length in (rows, 1024, 1024)))


def test_a_mask_is_not_loaded_element_by_element() -> None:
    """Where columns lie on the partitions it would be."""

    def attention(q: Any, k: Any, v: Any, first: Any) -> Any:
        scores = jnp.einsum("bshd,bthd->bhst", q, k)
        seen = jnp.arange(q.shape[1])[:, None] + first >= jnp.arange(k.shape[1])
        return jnp.einsum("bhst,bthd->bhds", jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1), v)

    def plain(q: Any, k: Any, v: Any, first: Any) -> Any:
        chances = jax.nn.softmax(jnp.einsum("bshd,bthd->bhst", q, k) * first, axis=-1)
        return jnp.einsum("bhst,bthd->bhds", chances, v)

    shapes = [(2, 32, 32, 8), (2, 1024, 32, 8), (2, 1024, 32, 8), (1,)]
    masked, alone = (timed(function, *shapes, auto_cast="none") for function in (attention, plain))
    assert masked < 2 * alone


@pytest.mark.parametrize("sizes", [(32, 2, 1024, 32), (12, 1, 700, 96), (16, 4, 700, 96), (32, 1, 256, 32)])
def test_caches_of_tokens_take_no_longer_than_caches_of_heads(sizes: tuple[int, int, int, int]) -> None:
    """Keys and values of all heads lie beside each other: they come together, in runs of several heads."""
    heads, rows, columns, depth = sizes

    def attention(order: str, q: Any, k: Any, v: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum(f"hqd,{order}->hqk", q, k), axis=-1)
        return jnp.einsum(f"hqk,{order}->hqd", weights, v)

    of_heads, of_tokens = (
        timed(partial(attention, order), (heads, rows, depth), *[shape] * 2)
        for order, shape in (("hkd", (heads, columns, depth)), ("khd", (columns, heads, depth)))
    )
    assert of_tokens < 1.15 * of_heads


@pytest.mark.parametrize("order", ["hkd", "khd"])
def test_masks_of_columns_are_estimated_as_they_are_loaded(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, not for each row."""
    estimates: list[float] = []

    def chosen(problem: Any, timing: Any) -> Any:
        schedule = estimate.choose(problem, timing)
        assert schedule is not None
        estimates.append(estimate.estimate(problem, schedule, timing))
        return schedule

    def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = jnp.where(mask > 0, jnp.einsum(f"hqd,{order}->hqk", q, k), -jnp.inf)
        return jnp.einsum(f"hqk,{order}->hqd", jax.nn.softmax(scores, axis=-1), v)

    monkeypatch.setattr(kernel, "choose", chosen)
    time = timed(attention, (4, 4, 64), *[(4, 1024, 64) if order == "hkd" else (1024, 4, 64)] * 2, (1024,))
    assert 0.8 < estimates[0] / time < 1.25


def test_values_that_are_transposed_leave_room() -> None:
    """Rows of all columns are loaded there, which are long."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        k, v = k.astype(jnp.float32), v.astype(jnp.float32)
        weights = jax.nn.softmax(jnp.einsum("hqd,hdk->hqk", q, k), axis=-1)
        return jnp.einsum("hqk,hdk->hqd", weights, v)

    cache = jax.ShapeDtypeStruct((32, 32, 2048), jnp.bfloat16)
    compile_text(text_of(attention, jax.ShapeDtypeStruct((32, 4, 32), jnp.float32), cache, cache))
