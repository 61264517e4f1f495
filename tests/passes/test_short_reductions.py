"""Reductions of few elements that lie apart become elementwise ops of slices."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, text_of

from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes

FUNCTIONS = {"sum": jnp.sum, "prod": jnp.prod, "max": jnp.max, "min": jnp.min}
ROWS = np.random.default_rng(0).standard_normal((40, 3, 130)).astype(np.float32)


def reductions(function: Any, *inputs: Any) -> int:
    """How many the pass leaves."""
    module = load_module(text_of(function, *inputs).encode())
    run_passes(module, ["inline_calls", "canonicalize", "decompose", "short_reductions"], PassContext(PassOptions()))
    return sum(isinstance(op, hlo.ReduceOp) for op in ops_of(module.entry.block))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str) -> None:
    rows = ROWS.copy()
    rows[4, :, 6], rows[5, 0, 7] = -0.0, -np.inf
    rows[3, 1, 5] = np.nan if name in ("sum", "prod") else 1  # XLA's CPU client drops NaNs in minima and maxima
    function = lambda x: FUNCTIONS[name](jnp.tanh(x) + x, axis=1)  # noqa: E731
    assert reductions(function, rows) == 0
    check_function(function, rows)
    check_function(lambda x: FUNCTIONS[name](x, axis=1), (ROWS * 8).astype(np.int32))


@pytest.mark.parametrize("axis", [0, 2])
def test_other_dims_stay(axis: int) -> None:
    assert reductions(lambda x: jnp.sum(x, axis=axis), ROWS) == 1


def test_signs_of_zeros() -> None:
    zeros = np.full((32, 2, 128), -0.0, np.float32)
    check_function(lambda x: 1 / jnp.sum(x, axis=1), zeros)
