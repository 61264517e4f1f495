"""Batches of products that would leave TensorE's rows idle: with one number, with a short vector, of two vectors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax

import neuronx_cc
from neuronx_cc.ir.isa.program import Instr, Stream

CASES = [
    ((700,), (700, 64), ((), ()), ((0,), (0,))),
    ((700, 64), (700,), ((), ()), ((0,), (0,))),
    ((700,), (700,), ((), ()), ((0,), (0,))),
    ((700, 33), (700, 33), ((1,), (1,)), ((0,), (0,))),
    ((7, 50, 9), (7, 50, 5, 9), ((2,), (3,)), ((0, 1), (0, 1))),
    ((7, 50, 3, 9), (7, 50), ((), ()), ((0, 1), (0, 1))),
]


@pytest.mark.parametrize(("left", "right", "contracted", "batch"), CASES, ids=str)
def test_batches(left: Any, right: Any, contracted: Any, batch: Any, random: np.random.Generator) -> None:
    x, y = (random.standard_normal(dims).astype(np.float32) for dims in (left, right))
    compiled = check_function(lambda x, y: lax.dot_general(x, y, (contracted, batch)), x, y)
    streams = {record.stream for record in compiled.program.records if isinstance(record, Instr)}
    assert Stream.TENSOR not in streams


EQUATIONS = [
    ("mk,kn->mn", {"m": 4100, "k": 3, "n": 2}),
    ("km,kn->nm", {"m": 4099, "k": 5, "n": 3}),
    ("nk,mk->mn", {"m": 3072, "k": 1, "n": 4}),
    ("bmk,bkn->bmn", {"b": 300, "m": 3, "k": 4, "n": 2}),
    ("mkb,knb->mnb", {"b": 256, "m": 2, "k": 3, "n": 5}),
    ("kbm,nbk->mbn", {"b": 259, "m": 2, "k": 7, "n": 3}),
    ("bm,bn->bmn", {"b": 300, "m": 5, "n": 3}),
    ("bm,bn->bmn", {"b": 130, "m": 40, "n": 70}),
    ("amk,kbn->abmn", {"a": 40, "m": 40, "b": 2, "k": 4, "n": 3}),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("equation", "sizes"), EQUATIONS, ids=str)
def test_narrow(equation: str, sizes: dict[str, int], dtype: str, random: np.random.Generator) -> None:
    parts = equation.split("->")[0].split(",")
    x, y = (jnp.asarray(random.standard_normal([sizes[dim] for dim in part]), dtype) for part in parts)
    compiled = check_function(lambda x, y: jnp.einsum(equation, jnp.tanh(x), y), x, y)
    assert not any(name.endswith(".dot") for name in compiled.program.schedules)


@pytest.mark.parametrize("mode", ["none", "matmult", "all"])
def test_what_is_not_finite_stays_in_its_row(mode: str, random: np.random.Generator) -> None:
    x, w = (random.standard_normal(dims).astype(np.float32) for dims in ((4100, 3), (3, 2)))
    x[5, 1], x[77, 0] = np.inf, np.nan
    compiled = neuronx_cc.compile(jax.jit(jnp.matmul).lower(x, w), auto_cast=mode)
    (out,) = compiled.run([x, w]).outputs
    assert np.flatnonzero(~np.isfinite(out).all(1)).tolist() == [5, 77]


@pytest.mark.parametrize("rows", [3, 8, 12, 16, 24])
@pytest.mark.parametrize("heads", [8, 64])
def test_operands_are_loaded_once(rows: int, heads: int, random: np.random.Generator) -> None:
    """Keys of [columns, heads, features] were loaded again for each row, in 5 ms, by 8 partitions or by 64."""
    query, keys = (random.standard_normal((count, heads, 8)).astype(np.float32) for count in (rows, 1024))
    function = jax.jit(lambda x, y: jnp.einsum("shd,thd->hst", x, y))
    compiled = neuronx_cc.compile(function.lower(query, keys), auto_cast="none")
    assert compiled.run([], timing_only=True).report.time_ns <= (60_000 if heads == 8 else 400_000)
    if heads < 64:
        check_function(lambda x, y: jnp.einsum("shd,thd->hst", x, y), query, keys)
