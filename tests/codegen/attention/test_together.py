"""Blocks of rows of several heads together: layouts, masks, sizes around the limits, shared heads, little memory."""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, assert_close, compile_text, text_of

from neuronx_cc.codegen.attention import choose, kernel, schedule
from neuronx_cc.ir.targets import find_machine

MACHINES = Path(__file__).parents[2] / "machines"
MASKS = ("none", "causal", "columns", "rows", "heads", "each", "select", "two", "scales", "scaled rows")
LAYOUTS = ("heads first", "rows first", "features last of keys")
ROWS = (1, 2, 31, 64, 127, 128, 129, 200, 257)
COLUMNS = (2, 33, 64, 127, 128, 129, 197, 256, 300, 511, 512, 513)


@pytest.fixture(autouse=True)
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many heads as fit."""

    def most(problem: Any, timing: Any) -> Any:
        found = [each for each in schedule.candidates(problem, timing.sizes) if each.together > 1]
        return max(found, key=lambda each: (each.together, each.staged), default=None)

    monkeypatch.setattr(choose, "choose", most)
    monkeypatch.setattr(kernel, "choose", most)
    monkeypatch.setattr(choose, "apart", lambda *_: math.inf)


class Case:
    """An attention of several heads, drawn."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.mask, self.layout = draw.choice(MASKS), draw.choice(LAYOUTS)
        self.batch, self.heads, self.groups = (int(draw.integers(1, most)) for most in (4, 5, 3))
        self.heads += 1
        self.rows, self.columns = int(draw.choice(ROWS)), int(draw.choice(COLUMNS))
        self.depth, self.width = (int(draw.choice([8, 33, 64, 80, 130])) for _ in range(2))
        self.scale = float(draw.choice([1.0, 0.125, 0.3]))
        q = self.laid((self.batch, self.heads * self.groups, self.rows, self.depth))
        k, v = (self.laid((self.batch, self.heads, self.columns, size)) for size in (self.depth, self.width))
        self.inputs = [draw.standard_normal(shape).astype(np.float32) for shape in (q, k, v)]
        several, rows, columns = self.heads * self.groups, self.rows, self.columns
        shapes = {
            "columns": (self.batch, 1, 1, columns),
            "rows": (1, 1, rows, columns),
            "heads": (1, several, rows, columns),
            "each": (self.batch, several, rows, columns),
            "scales": (1, several, 1, 1),
            "scaled rows": (self.batch, several, rows, 1),
        }
        shape = shapes.get(self.mask, (self.batch, 1, rows, columns))
        self.inputs.append(draw.standard_normal(shape).astype(np.float32))

    def laid(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self.layout == "heads first" else (shape[0], shape[2], shape[1], shape[3])

    def __call__(self, q: Any, k: Any, v: Any, m: Any) -> Any:
        if self.layout != "heads first":
            q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        k, v = (jnp.repeat(x, self.groups, 1) for x in (k, v))
        s = jnp.einsum("bhrd,bhcd->bhrc", q, k) * self.scale / math.sqrt(self.depth)
        if self.mask in ("columns", "rows", "heads", "each"):
            s = s + m
        if self.mask in ("scales", "scaled rows"):
            s = s * m
        if self.mask == "two":
            s = jnp.tanh(s) + m * s
        if self.mask == "select":
            s = jnp.where((m > -1).at[..., 0].set(True), s, -1e9)
        if self.mask == "causal":
            s = jnp.where(jnp.arange(self.columns) <= jnp.arange(self.rows)[:, None], s, -jnp.inf)
        o = jax.nn.softmax(s, -1) @ v
        return o.swapaxes(1, 2) if self.layout == "rows first" else o


@pytest.mark.parametrize("seed", range(36))
def test_values(seed: int) -> None:
    case = Case(seed)
    compiled = compile_text(text_of(case, *case.inputs), TRN1)
    (found,) = compiled.run(case.inputs)
    assert_close(found, np.asarray(jax.jit(case)(*case.inputs)), 3e-5)


def test_most_are_taken_together() -> None:
    cases = [Case(seed) for seed in range(12)]
    lines = [compile_text(text_of(case, *case.inputs), TRN1).program.schedules.values() for case in cases]
    assert sum(any("together" in line for line in each) for each in lines) >= 7


@pytest.mark.parametrize("seed", range(60, 66))
@pytest.mark.parametrize("machine", ["half", "quarter"])
def test_small_machines(seed: int, machine: str) -> None:
    case = Case(seed)
    compiled = compile_text(text_of(case, *case.inputs), find_machine(str(MACHINES / f"{machine}.toml")))
    (found,) = compiled.run(case.inputs)
    assert_close(found, np.asarray(jax.jit(case)(*case.inputs)), 3e-5)


@pytest.mark.parametrize("seed", range(72, 78))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(seed: int, dtype: str) -> None:
    case = Case(seed)
    inputs = [x.astype(jnp.dtype(dtype)) for x in case.inputs]
    compiled = compile_text(text_of(case, *inputs), TRN1)
    (found,) = compiled.run(inputs)
    with jax.enable_x64(True):
        want = jax.jit(case)(*(np.asarray(x, np.float64) for x in inputs))
    np.testing.assert_allclose(found.astype(np.float32), want, atol=12 * float(jnp.finfo(dtype).eps))


@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_is_not_finite_stays_in_its_head(which: int, what: float) -> None:
    draw = np.random.default_rng(1)
    inputs = [draw.standard_normal(shape).astype(np.float32) for shape in ((8, 140, 16), *[(8, 200, 16)] * 2)]
    inputs[which][3, 7] = what

    def function(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.swapaxes(1, 2) * 0.25, -1) @ v

    compiled = compile_text(text_of(function, *inputs), fast_relayout=False)
    assert any("8 heads together" in line for line in compiled.program.schedules.values())
    (found,) = compiled.run(inputs)
    wanted = np.asarray(jax.jit(function)(*inputs))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    finite = np.isfinite(wanted)
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize(("depth", "mask"), [(64, "none"), (64, "columns"), (32, "columns")])
def test_heads_of_many_batches(depth: int, mask: str) -> None:
    """A body of instructions takes heads of several batches, and a loop the bodies; the last one has fewer.

    The factor is a power of two for 64 terms: queries are multiplied with it where scores are read in PSUM.
    """
    case, draw = Case(0), np.random.default_rng(1)
    case.mask, case.layout, case.groups, case.scale, case.depth = mask, "rows first", 1, 1.0, depth
    shapes = [*[(43, 16, 3, depth)] * 3, (43, 1, 1, 16)]
    inputs = [draw.standard_normal(shape).astype(jnp.bfloat16) for shape in shapes]
    compiled = compile_text(text_of(case, *inputs), TRN1)
    (line,) = compiled.program.schedules.values()
    assert "3 heads together" in line
    (found,) = compiled.run(inputs)
    with jax.enable_x64(True):
        want = jax.jit(case)(*(np.asarray(x, np.float64) for x in inputs))
    np.testing.assert_allclose(found.astype(np.float32), want, atol=12 * float(jnp.finfo(jnp.bfloat16).eps))


@pytest.mark.parametrize("heads", [2, 3])
@pytest.mark.parametrize("mask", ["bias", "bias and mask"])
def test_windows(heads: int, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many windows of few heads: windows of one head are taken together, and share its bias."""
    monkeypatch.setattr(choose, "WELL", 1e3)
    draw = np.random.default_rng(heads)
    q, k, v = (draw.standard_normal((12, heads, 49, 32)).astype(np.float32) for _ in range(3))
    bias, masked = (draw.standard_normal(shape).astype(np.float32) for shape in ((heads, 49, 49), (12, 1, 49, 49)))

    def function(q: Any, k: Any, v: Any, bias: Any, masked: Any) -> Any:
        scores = jnp.einsum("whrd,whcd->whrc", q, k) * 0.2 + bias
        return jax.nn.softmax(scores + masked if mask == "bias and mask" else scores, -1) @ v

    inputs = [q, k, v, bias, masked]
    compiled = compile_text(text_of(function, *inputs), TRN1)
    assert mask != "bias" or any("12 heads together" in line for line in compiled.program.schedules.values())
    (found,) = compiled.run(inputs)
    assert_close(found, np.asarray(jax.jit(function)(*inputs)), 3e-5)
