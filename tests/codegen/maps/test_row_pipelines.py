"""Norms whose tiles are staggered, or whose rows are taken in sections; sums made by what makes the rows."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function

import neuronx_cc
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.ir.targets import find_machine

QUARTER = find_machine(Path(__file__).resolve().parents[2] / "machines" / "quarter.toml")


def layer_norm(x, scale, bias):
    y = x.astype(jnp.float32)
    centred = y - y.mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias).astype(x.dtype)


def rms_norm(x, scale, _):
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def softmax(x, scale, bias):
    return jax.nn.softmax(x * scale + bias, -1)


def several(x, scale, bias):
    """Two sums of what one op makes, and of their distances from the largest."""
    e = jnp.exp(x * scale)
    return e / e.sum(-1, keepdims=True) + bias, (e - e.max(-1, keepdims=True)).sum(-1)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("function", [layer_norm, rms_norm, softmax, several])
@pytest.mark.parametrize(
    ("rows", "columns", "machine"),
    [(1300, 515, TRN1), (1001, 1021, TRN1), (300, 2600, QUARTER), (270, 1999, QUARTER), (131, 8192, TRN1)],
)
def test_values(function, rows, columns, machine, dtype):
    random = np.random.default_rng(columns)
    shapes = (rows, columns), (columns,), (columns,)
    check_function(
        function, *(np.asarray(random.standard_normal(dims)).astype(dtype) for dims in shapes), machine=machine
    )


def test_squares_are_added_up_as_they_are_made():
    types = [jax.ShapeDtypeStruct(dims, jnp.float32) for dims in ((512, 1024), (1024,), (1024,))]
    executable = neuronx_cc.compile(jax.jit(rms_norm).lower(*types), auto_cast="none")
    ops = [record for record in executable.program.records if isinstance(record, Instr)]
    assert any("accumulate" in op.flags and op.alu == ("square",) for op in ops)
    assert not any(op.op == "tensor_reduce" for op in ops)


@pytest.mark.parametrize("rows", [1, 2, 129, 513])
@pytest.mark.parametrize("columns", [3, 700])
def test_what_a_row_has_once_counts_in_its_sum_as_often_as_it_is_repeated(rows, columns):
    def function(x, y):
        once = [jnp.exp(x), x + 1.5, x * x, jnp.max(y, 1) * 2]
        return [each / jnp.broadcast_to(each[:, None], (rows, columns)).sum(1) for each in once]

    random = np.random.default_rng(rows)
    check_function(function, *(random.uniform(1, 2, dims).astype(np.float32) for dims in ((rows,), (rows, columns))))
