"""``--auto-cast all`` leaves in FP32 what recurrences read and make, and casts all else."""

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


def updated(w: Any, g: Any, m: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    return w - 1e-2 * m / (jnp.abs(m) + 1e-3), m


def normalised(x: Any, scale: Any) -> Any:
    return (x - x.mean(1, keepdims=True)) * jax.lax.rsqrt(x.var(1, keepdims=True) + 1e-5) * scale


def types_after(function: Any, *dims: tuple[int, ...]) -> set[str]:
    """Of what is computed of whole arrays under ``--auto-cast all``."""
    module = parse_text(text_of(function, *(np.ones(each, np.float32) for each in dims)))
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast="all"), TRN1))
    return {
        op.shape.dtype
        for op in ops_of(module.entry.block)
        if isinstance(op, hlo.ElementwiseOp) and not isinstance(op, hlo.ConvertOp | hlo.CompareOp) and op.shape.rank
    }


STATES = [(2, 391, 348), (348, 40), (24, 348), (348, 8)], [(1, 200, 512), (512, 64), (32, 512), (512, 16)]


def test_recurrences_stay() -> None:
    assert types_after(states, *STATES[1]) == {"f32"}


@pytest.mark.parametrize(
    ("function", "dims"),
    [
        (updated, [(8, 9)] * 3),
        (updated, [(512, 1024)] * 3),
        (normalised, [(6, 40), (40,)]),
        (normalised, [(512, 1024), (1024,)]),
    ],
)
def test_all_else_is_cast(function: Any, dims: list[tuple[int, ...]]) -> None:
    """Small arrays, too, and what takes as long in FP32: the mode says so, and its errors are to be seen."""
    assert "bf16" in types_after(function, *dims)


@pytest.mark.parametrize("dims", STATES, ids=str)
def test_no_longer_than_in_fp32(dims: list[tuple[int, ...]]) -> None:
    """Simulated, at most 2 % more."""
    given = [np.random.default_rng(at).standard_normal(each, np.float32) for at, each in enumerate(dims)]
    text = text_of(states, *given)
    wide, narrow = (compile_text(text, TRN1, auto_cast=mode) for mode in ("none", "all"))
    times = [simulate(each.program, TRN1).total for each in (narrow, wide)]
    assert times[0] <= 1.02 * times[1]
    for made, want in zip(narrow.run(given), wide.run(given), strict=True):
        np.testing.assert_allclose(made, want, rtol=3e-2, atol=3e-2 * np.abs(want).max())
