"""Few long rows spread over the partitions, whose parts TensorE adds up."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function

import neuronx_cc
from neuronx_cc.ir.isa.program import Instr, Space

SMALL = TRN1.with_settings(["memory.sbuf_partition_bytes=32768"])


def layer_norm(x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def counted(x: Any) -> Any:
    places = jnp.arange(x.shape[-1], dtype=jnp.float32)
    return jnp.where(places < x.shape[-1] - 7, x, 0.0).sum(-1, keepdims=True) * x + places


def with_rows(x: Any, scale: Any) -> Any:
    """Values of a row are read, are results, and come after other folds."""
    total = (x * scale).sum(-1, keepdims=True)
    return total * x + scale, total[..., 0], jnp.exp(x - x.max(-1, keepdims=True)).sum(-1)


def looped(x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda step, x: layer_norm(x + step), x)


@pytest.mark.parametrize("shape", [(4096,), (1, 5120), (3, 8192), (31, 2050), (2, 3, 2304), (5, 2049), (1, 100_000)])
def test_values(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal(shape).astype(np.float32)
    scale = random.standard_normal((*shape[:-1], 1)).astype(np.float32)
    check_function(lambda x: (layer_norm(x), counted(x), looped(x)), x, relative=3e-5)
    check_function(with_rows, x, scale, relative=3e-5)
    check_function(
        lambda x: (layer_norm(x), jnp.cumsum(x, -1), ((x * x).sum(-1, keepdims=True) * x).sum()), x, relative=3e-5
    )


def test_small_memory() -> None:
    x = np.random.default_rng(0).standard_normal((2, 16384)).astype(np.float32)
    check_function(layer_norm, x, relative=3e-5, machine=SMALL)


@pytest.mark.parametrize("rows", [1, 4])
def test_no_step_at_long_rows(rows: int) -> None:
    """A norm of few rows takes about as long whatever their length, as work and transfers are spread."""

    def microseconds(width: int) -> float:
        lowered = jax.jit(layer_norm).lower(jax.ShapeDtypeStruct((rows, width), jnp.float32))
        return neuronx_cc.compile(lowered, auto_cast="none").run([], timing_only=True).report.kernel_ns / 1e3

    times = [microseconds(width) for width in (512, 2048, 2304, 4096, 8192)]
    assert max(times) <= 2 * times[0], times


@pytest.mark.parametrize("dims", [(1, 1280, 4, 32), (1, 1464, 4, 32), (2, 700, 4, 32), (1, 2048, 8, 16), (3, 640, 128)])
@pytest.mark.parametrize("apply", [jnp.multiply, jnp.subtract, jnp.divide], ids=["multiply", "subtract", "divide"])
def test_sums_that_arrays_read_at_once(dims: tuple[int, ...], apply: Any, random: np.random.Generator) -> None:
    """The sum itself, with nothing done to it before, is read beside whole tiles."""
    q, k = (random.standard_normal(dims).astype(np.float32) for _ in range(2))

    def function(q: Any, k: Any) -> Any:
        k = jnp.tanh(k) + 1
        return apply(q, k.sum(1, keepdims=True)).sum(-1), apply(k, k.sum(1, keepdims=True))

    check_function(function, q, k, relative=3e-5)


@pytest.mark.parametrize("dims", [(96, 8, 28, 28), (64, 5000), (8, 96, 40, 40), (2048, 300)])
def test_sums_that_the_next_instruction_reads_stay_in_psum(dims: tuple[int, ...], random: np.random.Generator) -> None:
    axis = 1 if dims[0] < 64 else 0
    x = random.standard_normal(dims).astype(np.float32) + 3

    def norm(x: Any) -> Any:
        mean, variance = x.mean(axis, keepdims=True), x.var(axis, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5)

    check_function(norm, x, relative=3e-5)
    records = neuronx_cc.compile(jax.jit(norm).lower(x), auto_cast="none").program.records
    copies = [each for each in records if isinstance(each, Instr) and each.op == "activation" and each.alu == ("copy",)]
    assert not any(each.ins[0].space is Space.PSUM and each.outs[0].space is Space.SBUF for each in copies)
