"""Loops over blocks of rows: whole bunches and what is left, groups of queries together, sections of columns."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, compile_text, text_of

from neuronx_cc.codegen.attention import choose, estimate, kernel, schedule
from neuronx_cc.runtime.executable import Executable


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Iterations are as short as those of few rows."""
    for module in (schedule, kernel, estimate):
        monkeypatch.setattr(module, "UNROLLED_BLOCKS", 4)
    monkeypatch.setattr(schedule, "LEAST_UNROLLED", 2)
    monkeypatch.setattr(schedule, "UNROLLED_CHUNKS", 8)
    monkeypatch.setattr(choose, "apart", lambda *_: math.inf)
    estimate._estimated.cache_clear()
    yield
    estimate._estimated.cache_clear()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("seed", range(16))
def test_drawn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    heads, groups = int(draw.integers(1, 4)), tuple(int(each) for each in draw.integers(1, 7, draw.integers(1, 3)))
    rows, columns = int(draw.choice([64, 128, 300, 640, 1000, 1153])), int(draw.choice([20, 128, 129, 300, 700]))
    depth, causal = int(draw.choice([16, 64, 130])), bool(draw.integers(2))

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("h...qd,hkd->h...qk", q, k) * depth**-0.5
        if causal:
            mask = jnp.arange(rows)[:, None] >= jnp.arange(columns)
            scores = jnp.where(mask, scores, -1e9)
        return jnp.einsum("h...qk,hkd->h...qd", jax.nn.softmax(scores, -1), v)

    shapes = (heads, *groups, rows, depth), (heads, columns, depth), (heads, columns, depth)
    check_function(attention, *(draw.standard_normal(shape).astype(np.float32) for shape in shapes))


@pytest.mark.parametrize(("heads", "groups", "columns"), [(1, 1, 256), (1, 1, 1024), (1, 1, 2048), (2, 4, 300)])
def test_a_row_takes_as_long_in_loops(heads: int, groups: int, columns: int) -> None:
    """A few more rows than are unrolled cost no more than their share, and a bit."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        return jnp.einsum("hgqk,hkd->hgqd", jax.nn.softmax(jnp.einsum("hgqd,hkd->hgqk", q, k) * 0.1, -1), v)

    def time(rows: int) -> float:
        q, k = (jax.ShapeDtypeStruct(dims, jnp.bfloat16) for dims in ((heads, groups, rows, 64), (heads, columns, 64)))
        compiled = compile_text(text_of(attention, q, k, k))
        run = Executable(compiled.program, compiled.constants).run([], timing_only=True, check_races=False)
        return run.report.time_ns / rows

    most = 8192 // groups
    assert time(most + 128) <= 1.12 * time(most)
