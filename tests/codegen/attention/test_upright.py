"""Blocks of the rows of several heads: any number of heads, queries and rows, masks, layouts, what is not finite."""

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, assert_close, compile_text, text_of

from neuronx_cc.codegen.attention import choose, kernel, schedule
from neuronx_cc.codegen.attention.geometry import runs
from neuronx_cc.codegen.emission.views import Atom

SMALL = TRN1.with_settings(["memory.sbuf_partition_bytes=98304"])


KINDS = {
    "multiplied": lambda each: not each.contracted,
    "keys transposed": lambda each: each.contracted,
}
WAYS = list(product(KINDS, [False, True]))


@pytest.fixture(autouse=True, params=WAYS, ids=[kind + ", cut" * cut for kind, cut in WAYS])
def packs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest blocks that fit, of several heads or of all queries of one; keys at once, or in many sections."""
    kind, cut = request.param

    def most(problem: Any, timing: Any) -> Any:
        found = [each for each in schedule.candidates(problem, timing.sizes) if each.pack and KINDS[kind](each)]
        return max(found, key=lambda each: (each.pack, -each.streamed if cut else 0, each.staged), default=None)

    monkeypatch.setattr(choose, "choose", most)
    monkeypatch.setattr(choose, "least", lambda *_: 0.0)
    monkeypatch.setattr(choose, "apart", lambda *_: 1.0)
    monkeypatch.setattr(kernel, "choose", most)


def weighted(scores: Any, v: Any) -> Any:
    return jnp.einsum("bghrc,bgcd->bghrd", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)


def scores_of(q: Any, k: Any) -> Any:
    return jnp.einsum("bghrd,bgcd->bghrc", q, k) * 0.3


MASKS: dict[str, Callable[..., Any]] = {
    "none": lambda s, m, p: s,
    "position": lambda s, m, p: jnp.where(jnp.arange(s.shape[-1]) <= p, s, -jnp.inf),
    "of all": lambda s, m, p: jnp.where(m[0, 0, 0], s, -1e9),
    "of heads": lambda s, m, p: jnp.where(m[:, :, :1, :1], s, -1e9),
    "of heads alone": lambda s, m, p: jnp.where(m[:1, :, :1, :1], s, -1e9),
    "of batches": lambda s, m, p: jnp.where(m[:, :1, :1, :1], s, -1e9),
    "of queries": lambda s, m, p: s + m[0, :1, :, :1] * 0.5,
    "of rows": lambda s, m, p: jnp.where(m[0, 0, 0, :, :][None, None, None], s, -1e9),
    "of heads, all columns": lambda s, m, p: s * jnp.where(m[:, :, :1, :1, -1:], 1.0, 0.5),
    "of rows, all columns": lambda s, m, p: s * jnp.where(m[..., -1:], 1.0, 0.5),
    "of each": lambda s, m, p: jnp.where(m, s, -jnp.inf),
}


def case(seed: int, given: str = "", columns: int = 0) -> tuple[Callable[..., Any], list[Any]]:
    """A function and its inputs; with ``given`` mask and ``columns`` of several heads, or such as are drawn."""
    draw = np.random.default_rng(seed)
    batch, heads, groups, rows = draw.choice([1, 2, 3]), draw.integers(1, 9), draw.integers(1, 4), draw.integers(1, 5)
    many, depth, width = draw.choice([1, 31, 127, 128, 129, 200, 600]), draw.choice([8, 33, 64, 130]), 24
    mask = draw.choice(list(MASKS))
    if given:
        mask, batch, heads, groups, many, depth = given, 3, 4, 2, columns, 8
    shapes = (batch, heads, groups, rows, depth), (batch, heads, many, depth), (batch, heads, many, width)
    q, k, v = (draw.standard_normal(shape).astype(np.float32) for shape in shapes)
    kept = draw.random((batch, heads, groups, rows, many)) < 0.7
    kept[..., 0] = True
    turns = {1: (-2, -1), 2: (1, 2)}
    of_keys, of_values = (turns.get(draw.integers(4), (0, 0)) for _ in range(2))

    def function(q: Any, k: Any, v: Any, m: Any, p: Any) -> Any:
        stored = jax.lax.optimization_barrier((jnp.swapaxes(k, *of_keys), jnp.swapaxes(v, *of_values)))
        k, v = jnp.swapaxes(stored[0], *of_keys), jnp.swapaxes(stored[1], *of_values)
        return weighted(MASKS[mask](scores_of(q, k), m, p), v)

    return function, [q, k, v, kept, np.int32(many // 2)]


@pytest.mark.parametrize("seed", range(24))
def test_values(seed: int) -> None:
    function, inputs = case(seed)
    compiled = compile_text(text_of(function, *inputs), SMALL if seed % 2 else TRN1)
    (found,) = compiled.run(inputs)
    assert_close(found, np.asarray(jax.jit(function)(*inputs)), 3e-5)
    if not any("dot" in name for name in compiled.program.kernels):
        assert all("to a block" in line for line in compiled.program.schedules.values())


@pytest.mark.parametrize("columns", [96, 128, 130, 384, 520])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_of_heads_and_columns(mask: str, columns: int) -> None:
    """Masks that heads, batches or rows share, beside columns that fill the last chunk and such as do not."""
    function, inputs = case(columns, mask, columns)
    (found,) = compile_text(text_of(function, *inputs)).run(inputs)
    assert_close(found, np.asarray(jax.jit(function)(*inputs)), 3e-5)


def test_most_are_one_kernel() -> None:
    kernels = [compile_text(text_of(f, *inputs)).program.kernels for f, inputs in map(case, range(20))]
    assert sum(any("attention" in name for name in names) for names in kernels) >= 14


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(dtype: str) -> None:
    """Exponentials are divided before they are rounded, as in XLA."""
    draw = np.random.default_rng(0)
    q, k, v = (jnp.asarray(draw.standard_normal(shape), dtype) for shape in ((1, 8, 2, 1, 64), *[(1, 8, 300, 64)] * 2))

    def function(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bghrd,bgcd->bghrc", q, k, preferred_element_type=jnp.float32) * 0.125
        return weighted(scores, v)

    compiled = compile_text(text_of(function, q, k, v))
    assert any("to a block" in line for line in compiled.program.schedules.values())
    (found,) = compiled.run([np.asarray(x) for x in (q, k, v)])
    exact = function(*(x.astype(jnp.float32) for x in (q, k, v)))
    np.testing.assert_allclose(found.astype(np.float32), exact, atol=2 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_is_not_finite_stays_in_its_head(which: int, what: float) -> None:
    draw = np.random.default_rng(1)
    inputs = [draw.standard_normal(shape).astype(np.float32) for shape in ((1, 8, 1, 2, 16), *[(1, 8, 200, 16)] * 2)]
    inputs[which][0, 3, 0] = what

    def function(q: Any, k: Any, v: Any) -> Any:
        return weighted(scores_of(q, k), v)

    compiled = compile_text(text_of(function, *inputs))
    assert any("8 heads to a block" in line for line in compiled.program.schedules.values())
    (found,) = compiled.run(inputs)
    wanted = np.asarray(jax.jit(function)(*inputs))
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
    np.testing.assert_allclose(found[np.isfinite(wanted)], wanted[np.isfinite(wanted)], rtol=3e-5, atol=3e-5)


def test_runs() -> None:
    assert list(runs((Atom(4, 30), Atom(3, 10)))) == [(0, 0, Atom(12, 10))]
    assert list(runs((Atom(2, 100), Atom(3, 10)))) == [(0, 0, Atom(3, 10)), (3, 100, Atom(3, 10))]
    assert list(runs((Atom(2, 0), Atom(3, 0)))) == [(0, 0, Atom(6, 0))]
    assert list(runs(())) == [(0, 0, Atom(1, 0))]
