"""Rows without a score but minus infinity: zeros where the program guards them, in every kind of kernel."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import assert_close, compile_text, text_of

from neuronx_cc.codegen.attention import choose, kernel, schedule
from neuronx_cc.codegen.attention.schedule import Schedule

Guard = Callable[[Any], Any]
LOWEST = float(np.finfo(np.float32).min)
GREATEST: dict[str, Guard] = {
    "none": lambda top: top,
    "finite": lambda top: jnp.where(jnp.isfinite(top), top, 0),
    "not infinite": lambda top: jnp.where(top != -jnp.inf, top, 0),
    "infinite": lambda top: jnp.where(top == -jnp.inf, 1.0, top),
    "more": lambda top: jnp.where(top > -jnp.inf, top, -3.0),
    "at least": lambda top: jnp.maximum(top, LOWEST),
}
SUMS: dict[str, Guard] = {
    "none": lambda total: total,
    "zero": lambda total: jnp.where(total == 0, 1, total),
    "not zero": lambda total: jnp.where(total != 0, total, 7),
    "positive": lambda total: jnp.where(total > 0, total, 1),
    "at least": lambda total: jnp.maximum(total, 1e-20),
    "a little more": lambda total: total + 1e-20,
}
OTHERS: dict[str, tuple[Guard, Guard]] = {
    "a floor that scores meet": (lambda top: jnp.maximum(top, -1.0), SUMS["zero"]),
    "more than a little": (GREATEST["finite"], lambda total: total + 0.5),
    "more than sums": (GREATEST["finite"], lambda total: jnp.maximum(total, 2.0)),
    "ones": (GREATEST["finite"], lambda total: jnp.where(total == 1, 2, total)),
    "negative": (GREATEST["finite"], lambda total: jnp.where(total == 0, -1, total)),
    "all but finite": (lambda top: jnp.where(jnp.isfinite(top), 0, top), SUMS["zero"]),
    "of something else": (lambda top: jnp.where(jnp.isfinite(top + 1e38 * top), top, 0), SUMS["zero"]),
}


def attention(greatest: Guard, sums: Guard, after: bool = False) -> Callable[..., Any]:
    def function(q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = jnp.where(mask, jnp.einsum("...qd,...kd->...qk", q, k) * 0.3, -jnp.inf)
        made = jnp.exp(scores - greatest(jnp.max(scores, -1, keepdims=True)))
        total = sums(jnp.sum(made, -1, keepdims=True))
        return made @ v / total if after else (made / total) @ v

    return function


def inputs(rows: int, columns: int, heads: int = 3) -> list[Any]:
    """With a row of the first head that has no columns, one that has one, and infinite and unordered scores."""
    random = np.random.default_rng(rows + columns)
    q, k, v = (random.standard_normal((1, heads, size, 16)).astype(np.float32) for size in (rows, columns, columns))
    mask = random.random((1, heads, rows, columns)) < 0.7
    mask[0, 0, 0], mask[0, 1, -1, 1:] = False, False
    q[0, -1, -1, 2], q[0, -1, rows // 2, 3] = np.inf, np.nan
    return [q, k, v, mask]


def check(function: Callable[..., Any], given: list[Any], fused: bool = True) -> None:
    compiled = compile_text(text_of(function, *given), fast_relayout=False)
    assert any("attention" in name for name in compiled.program.kernels) is fused, compiled.program.kernels
    (found,), want = compiled.run(given), np.asarray(jax.jit(function)(*given))
    assert (np.isnan(found) == np.isnan(want)).all()
    assert_close(found[np.isfinite(want)], want[np.isfinite(want)], 3e-5)
    assert np.isfinite(want).any()


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "apart", lambda *_: math.inf)


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("greatest", GREATEST)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.usefixtures("always")
def test_spellings(greatest: str, sums: str, after: bool) -> None:
    check(attention(GREATEST[greatest], SUMS[sums], after), inputs(70, 90))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.usefixtures("always")
def test_what_is_no_guard_stays_apart(name: str) -> None:
    check(attention(*OTHERS[name]), inputs(70, 90), fused=False)


@pytest.mark.parametrize(("greatest", "sums"), [("finite", "zero"), ("finite", "none"), ("none", "zero")])
@pytest.mark.parametrize("kind", ["sections", "upright"])
def test_kinds(kind: str, greatest: str, sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forced(problem: Any, timing: Any) -> Any:
        if kind == "sections":
            return Schedule(2, 2, 512, 4)
        found = [each for each in schedule.candidates(problem, timing.sizes) if each.pack]
        return max(found, key=lambda each: (each.pack, each.staged), default=None)

    for module in (choose, kernel):
        monkeypatch.setattr(module, "choose", forced)
    monkeypatch.setattr(choose, "least", lambda *_: 0.0)
    monkeypatch.setattr(choose, "apart", lambda *_: 1.0)
    check(attention(GREATEST[greatest], SUMS[sums]), inputs(*((140, 1100) if kind == "sections" else (3, 200))))
