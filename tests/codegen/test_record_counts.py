"""Loops stay loops: programs do not grow with batches, heads or rows, and what loops emit is right."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, compile_text

from neuronx_cc.codegen.maps.overlap import LONG_BODY
from neuronx_cc.ir.isa.program import Instr, Program


def attention(q: Any, k: Any, v: Any) -> Any:
    """Both products of [batch, rows, heads, features]."""
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.einsum("bqhd,bkhd->bhqk", q, k), v)


def compiled(function: Any, *dims: tuple[int, ...]) -> Program:
    inputs = [jax.ShapeDtypeStruct(each, jnp.float32) for each in dims]
    return compile_text(jax.jit(function).lower(*inputs).compiler_ir("hlo").as_hlo_text()).program


def records(batch: int, rows: int, heads: int) -> int:
    return len(compiled(attention, *[(batch, rows, heads, 64)] * 3).records)


@pytest.mark.parametrize("other", [(16, 197, 6), (16, 197, 8), (40, 197, 24)], ids=str)
def test_batches_and_heads(other: tuple[int, int, int]) -> None:
    """All heads of an example may be written out, no more, but for what is left of loops of several in an iteration."""
    assert records(*other) <= records(4, 197, other[2]) + 64


@pytest.mark.parametrize("rows", [394, 788, 1576, 3152])
def test_rows(rows: int) -> None:
    """Of many tiles each, fewer products are written out: also the sequencers' registers suffice."""
    assert records(20, rows, 6) <= 2.5 * records(20, 197, 6)


@pytest.mark.parametrize("dims", [(4, 197, 6, 64), (3, 133, 7, 32), (18, 131, 2, 16), (5, 300, 4, 8)], ids=str)
def test_values(dims: tuple[int, ...], random: np.random.Generator) -> None:
    inputs = [random.standard_normal(dims).astype(np.float32) for _ in range(3)]
    check_function(attention, *inputs, relative=5e-5)


def chain(x: Any) -> Any:
    """Ops of two kinds in turn, none of which disappears."""
    for step in range(LONG_BODY):
        x = jnp.tanh(x) * (step + 1.5)
    return x


@pytest.mark.parametrize("columns", [2048, 3000, 2500])
def test_long_bodies(columns: int, random: np.random.Generator) -> None:
    """Two tiles of a map with many ops keep the engines busy."""
    program = check_function(chain, random.standard_normal((128, columns)).astype(np.float32)).program
    assert sum(isinstance(record, Instr) for record in program.records) <= 2 * (2 * LONG_BODY + 2)
