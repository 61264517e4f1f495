"""``--auto-cast all`` leaves in FP32 what takes as long in 16 bits, and programs never take longer for it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, compile_text, text_of

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names
from neuronx_cc.runtime.clock_regions import simulate

LARGE = (512, 1024)


def updated(w: Any, g: Any, m: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    return w - 1e-5 * m / (jnp.abs(m) + 1e-3), m


def normalised(x: Any, scale: Any) -> Any:
    return (x - x.mean(1, keepdims=True)) * jax.lax.rsqrt(x.var(1, keepdims=True) + 1e-5) * scale


def projected(x: Any, w: Any, scale: Any) -> Any:
    return normalised(x @ w, scale)


def mixed(x: Any, w: Any, y: Any) -> Any:
    return jnp.tanh(x @ w + y) * y @ w.T


def edges(x: Any) -> Any:
    p = jnp.pad(x, 1)
    across = p[:-2, 2:] - p[:-2, :-2] + p[1:-1, 2:] - p[1:-1, :-2] + p[2:, 2:] - p[2:, :-2]
    down = p[2:, :-2] - p[:-2, :-2] + p[2:, 1:-1] - p[:-2, 1:-1] + p[2:, 2:] - p[:-2, 2:]
    return jnp.sqrt(across * across + down * down + 1e-9)


def solved(m: Any, x: Any) -> Any:
    return jax.lax.fori_loop(0, 10, lambda _, x: 0.85 * m @ x + 0.15, x)


def states(x: Any, mix: Any, spread: Any, rates: Any) -> Any:
    """Selective state spaces, as Mamba has them."""
    few = rates.shape[1]
    delta, b, c = jnp.split(x @ mix * 0.05, (spread.shape[0], spread.shape[0] + few), -1)
    delta = jax.nn.softplus(delta @ spread * 0.2)
    decay = jnp.exp(delta[..., None] * -jnp.exp(rates))
    fed = (delta * x)[..., None] * b[..., None, :]

    def step(h: Any, each: Any) -> Any:
        h = each[0] * h + each[1]
        return h, (h * each[2]).sum(-1)

    first = jnp.zeros(decay.shape[2:])
    return jax.vmap(lambda *each: jax.lax.scan(step, first, each)[1])(decay, fed, c)


def rotated(a: Any, b: Any) -> Any:
    return jnp.einsum("nij,njk->nik", a, b)


def unfolded(x: Any, w: Any) -> Any:
    p = jnp.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
    _, h, width, _ = x.shape
    rows = jnp.arange(h)[:, None] + jnp.arange(5)
    columns = jnp.arange(width)[:, None] + jnp.arange(5)
    patches = p[:, rows][:, :, :, columns].transpose(0, 1, 3, 2, 4, 5)
    return patches.reshape(1, h, width, -1) @ w


def types_after(function: Any, *dims: tuple[int, ...]) -> set[str]:
    """Of what is computed of whole arrays under ``--auto-cast all``."""
    module = parse_text(text_of(function, *(np.ones(each, np.float32) for each in dims)))
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast="all"), TRN1))
    return {
        op.shape.dtype
        for op in ops_of(module.entry.block)
        if isinstance(op, hlo.ElementwiseOp) and not isinstance(op, hlo.ConvertOp | hlo.CompareOp) and op.shape.rank
    }


@pytest.mark.parametrize(
    ("function", "dims", "dtypes"),
    [
        (updated, [LARGE] * 3, {"f32"}),
        (normalised, [LARGE, LARGE[1:]], {"f32"}),
        (mixed, [(32, 64), (64, 16), (32, 16)], {"f32"}),
        (projected, [(32, 64), (64, 16), (16,)], {"f32"}),
        (projected, [(2048, 512), (512, 512), (512,)], {"bf16"}),
        (edges, [(60, 60)], {"f32"}),
        (edges, [LARGE], {"bf16"}),
    ],
)
def test_types(function: Any, dims: list[tuple[int, ...]], dtypes: set[str]) -> None:
    """Small arrays, and large ones of which little is computed, stay; epilogues and much arithmetic are cast."""
    found = types_after(function, *dims)
    assert found == dtypes if dtypes == {"f32"} else found & dtypes


def test_updates_are_not_lost() -> None:
    """Weights that change by less than the last of 16 bits do change."""
    w, g, m = (np.full(LARGE, value, np.float32) for value in (1.0, 0.5, 0.25))
    found, _ = compile_text(text_of(updated, w, g, m), TRN1, auto_cast="all").run([w, g, m])
    np.testing.assert_allclose(found, np.asarray(updated(w, g, m)[0]), rtol=1e-7)
    assert (found != w).all()


@pytest.mark.parametrize("auto_cast", ["matmult", "all"])
@pytest.mark.parametrize(
    ("function", "dims"),
    [
        (updated, [(248, 496)] * 3),
        (normalised, [(64, 40), (40,)]),
        (mixed, [(32, 64), (64, 16), (32, 16)]),
        (projected, [(700, 200), (200, 300), (300,)]),
        (edges, [(3, 70)]),
        (edges, [(235, 462)]),
        (solved, [(448, 448), (448,)]),
        (solved, [(200, 200), (200,)]),
        (states, [(2, 391, 348), (348, 40), (24, 348), (348, 8)]),
        (states, [(1, 200, 512), (512, 64), (32, 512), (512, 16)]),
        (rotated, [(17, 3, 3), (17, 3, 3)]),
        (rotated, [(40, 4, 4), (40, 4, 2)]),
        (unfolded, [(1, 14, 14, 6), (150, 16)]),
        (unfolded, [(1, 20, 9, 3), (75, 8)]),
    ],
)
def test_no_longer_than_in_fp32(function: Any, dims: list[tuple[int, ...]], auto_cast: str) -> None:
    """Simulated, at most 2 % more."""
    given = [np.random.default_rng(at).standard_normal(each, np.float32) for at, each in enumerate(dims)]
    text = text_of(function, *given)
    wide, narrow = (compile_text(text, TRN1, auto_cast=mode) for mode in ("none", auto_cast))
    times = [simulate(each.program, TRN1).total for each in (narrow, wide)]
    assert times[0] <= 1.02 * times[1]
    for made, want in zip(narrow.run(given), wide.run(given), strict=True):
        np.testing.assert_allclose(made, want, rtol=3e-2, atol=3e-2 * np.abs(want).max())
