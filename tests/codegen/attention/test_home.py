"""Results of attention that stay on chip for the contraction that reads them, and those that do not."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, assert_close, compile_text, text_of

from neuronx_cc.codegen.attention import choose

SHORT = TRN1.with_settings(["memory.sbuf_partition_bytes=65536"])
STAYS = "the result stays on chip"


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, too, are one kernel here."""
    monkeypatch.setattr(choose, "apart", lambda *_: math.inf)


def projected(q: Any, k: Any, v: Any, w: Any) -> Any:
    """Of [batch, head, row, feature]: heads beside each other, multiplied with [head x feature, output]."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * 0.2
    heads = jnp.einsum("bhqk,bhkd->bqhd", jax.nn.softmax(scores, axis=-1), v)
    return heads.reshape(*heads.shape[:2], -1) @ w


def by_heads(q: Any, k: Any, v: Any, w: Any) -> Any:
    """The same summed over heads and features, which are two dims."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * 0.2
    weights = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    heads = jnp.einsum("bhqk,bhkd->bqhd", jax.nn.softmax(jnp.where(weights, scores, -jnp.inf), axis=-1), v)
    return jnp.einsum("bqhd,hdo->bqo", heads, w.reshape(*heads.shape[2:], -1))


def added(q: Any, k: Any, v: Any, w: Any) -> Any:
    """What else than contractions reads."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    return jax.nn.softmax(scores, axis=-1) @ v + w[0, 0]


def schedules(function: Any, dims: tuple[int, int, int, int], dtype: Any = np.float32, machine: Any = TRN1) -> str:
    """Those of ``function``, whose values are checked. ``dims``: batch, heads, rows, features."""
    random = np.random.default_rng(sum(dims))
    _, heads, _, features = dims
    shapes = dims, dims, dims, (heads * features, 24)
    inputs = [np.asarray(jnp.asarray(random.standard_normal(each) * 0.5, dtype)) for each in shapes]
    compiled = compile_text(text_of(function, *inputs), machine)
    (found,) = compiled.run(inputs)
    want = jax.jit(function)(*(np.asarray(each, np.float32) for each in inputs))
    assert_close(np.asarray(found, np.float32), np.asarray(want), 2e-5 if dtype == np.float32 else 3e-2)
    return "\n".join(compiled.program.schedules.values())


@pytest.mark.parametrize("function", [projected, by_heads])
@pytest.mark.parametrize(
    "dims", [(1, 2, 100, 16), (1, 3, 128, 24), (2, 2, 256, 40), (1, 1, 512, 8), (1, 1, 4096, 8), (3, 4, 384, 5)]
)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_values(function: Any, dims: tuple[int, int, int, int], dtype: Any) -> None:
    lines = schedules(function, dims, dtype)
    assert dims[2] < 256 or function is by_heads or STAYS in lines, lines


@pytest.mark.parametrize("dims", [(1, 2, 129, 16), (1, 2, 300, 16)])
def test_rows_that_no_blocks_divide_go_to_memory(dims: tuple[int, int, int, int]) -> None:
    assert STAYS not in schedules(projected, dims)


def test_what_others_read_goes_to_memory() -> None:
    assert STAYS not in schedules(added, (1, 2, 256, 32))


def test_without_room_on_chip() -> None:
    assert STAYS not in schedules(projected, (4, 16, 256, 64), machine=SHORT)
