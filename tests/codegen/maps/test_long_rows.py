"""Norms of rows that nearly fill a partition: one pass over HBM where the tiles fit, values right where they do not."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function

import neuronx_cc
from neuronx_cc.ir.targets import find_machine

MACHINES = Path(__file__).resolve().parents[2] / "machines"
ALL = {"trn1": TRN1, **{name: find_machine(MACHINES / f"{name}.toml") for name in ("half", "quarter")}}


def layer_norm(x, scale, bias):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias


def kept(x, scale, bias):
    """A result that stays on chip for the kernel after it, beside tiles of long rows."""
    y = layer_norm(x, scale, bias)
    return y, jnp.flip(jnp.exp(y - y.max(-1, keepdims=True)).sum(-1))


def arguments(rows, columns, dtype=np.float32):
    random = np.random.default_rng(columns)
    dims = (rows, columns), (columns,), (columns,)
    return [jnp.asarray(random.standard_normal(each), dtype) for each in dims]


def microseconds(function, *dims):
    types = [jax.ShapeDtypeStruct(each, jnp.float32) for each in dims]
    executable = neuronx_cc.compile(jax.jit(function).lower(*types), auto_cast="none")
    return executable.run([], timing_only=True, check_races=False).report.kernel_ns / 1e3


@pytest.mark.parametrize("columns", [6000, 8191, 8192, 8193])
def test_rows_that_fit_are_loaded_once(columns):
    """A neighbour in the grid may cost 1.5 times as much an element."""
    short, long = (microseconds(layer_norm, (1024, n), (n,), (n,)) / n for n in (4096, columns))
    assert long <= 1.5 * short


@pytest.mark.parametrize("machine", ALL)
@pytest.mark.parametrize(("rows", "columns"), [(3, 8192), (130, 2053)])
@pytest.mark.parametrize("function", [layer_norm, kept])
def test_values(function, rows, columns, machine):
    check_function(function, *map(np.asarray, arguments(rows, columns)), machine=ALL[machine])
