"""Transposing copies where one of the two dims is short: values bit for bit, and few runs for the DMA."""

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function

from neuronx_cc.ir.isa.cost import contiguous_runs
from neuronx_cc.ir.isa.program import DMA_STREAMS, Instr

CASES = [
    ((1, 224, 224, 3), (3, 0, 1, 2)),
    ((3, 1, 224, 224), (1, 2, 3, 0)),
    ((5000, 7), (1, 0)),
    ((7, 5001), (1, 0)),
    ((16, 4000), (1, 0)),
    ((4, 130, 33, 2), (0, 3, 1, 2)),
    ((2, 3, 4099), (0, 2, 1)),
    ((100, 64, 5), (0, 2, 1)),
    ((16411, 31), (1, 0)),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("dims", "order"), CASES)
def test_short_dims(dims: tuple[int, ...], order: tuple[int, ...], dtype: str) -> None:
    count = int(np.prod(dims))
    x = np.random.default_rng(count).integers(-128, 128, dims).astype(jnp.dtype(dtype))
    compiled = check_function(lambda x: jnp.transpose(x, order), x)
    transfers = [r for r in compiled.program.records if isinstance(r, Instr) and r.stream in DMA_STREAMS]
    runs = sum(contiguous_runs(instr.outs[0], instr.ins[0])[0] for instr in transfers)
    assert 0 < runs <= count // 8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(
    ("dims", "order"),
    [
        ((256, 2, 256), (0, 2, 1)),
        ((130, 40, 50), (0, 2, 1)),
        ((64, 3, 7, 33), (0, 2, 3, 1)),
        ((96, 2, 3, 40), (0, 3, 2, 1)),
        ((128, 64, 128), (0, 2, 1)),
    ],
)
def test_computed_values_are_stored_in_another_order(dims: tuple[int, ...], order: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(len(dims)).integers(-60, 60, dims).astype(jnp.dtype(dtype))
    compiled = check_function(lambda x: jnp.transpose(x + jnp.maximum(x, -x), order), x)
    stores = [r for r in compiled.program.records if isinstance(r, Instr) and r.outs and r.stream in DMA_STREAMS]
    assert stores
    assert all(contiguous_runs(instr.outs[0], instr.ins[0])[1] >= 2 * x.itemsize for instr in stores)
