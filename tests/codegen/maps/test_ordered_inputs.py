"""Rows that all partitions read, in another order than they lie in, beside a dim along which they repeat."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from transfers import runs_in_hbm

from neuronx_cc.ir.isa.program import Instr, Space

MOST_RUNS = 8192
"""Of one transfer: an element or a few to each of them would be many times as many."""


@pytest.mark.parametrize(("images", "features", "modes"), [(6, 12, 4), (6, 9, 4), (5, 12, 4), (6, 16, 3), (7, 11, 4)])
def test_rows_of_another_order_are_loaded_in_long_runs(
    images: int, features: int, modes: int, random: np.random.Generator
) -> None:
    """The way back from few frequencies of 128: one of the two matrices lies on the partitions."""
    dims = images, modes, modes, features
    real, imaginary = random.standard_normal((2, *dims)).astype(np.float32)

    def back(real: Any, imaginary: Any) -> Any:
        kept = (jnp.tanh(real) + 1j * jnp.tanh(imaginary)) * 2
        full = jnp.zeros((images, 128, 65, features), kept.dtype).at[:, :modes, :modes].set(kept)
        return jnp.fft.irfft2(full, (128, 128), axes=(1, 2)).sum(2)

    compiled = check_function(back, real, imaginary, relative=1e-4)
    moved = [each for each in compiled.program.records if isinstance(each, Instr) and each.op == "dma_copy"]
    outside = [each for each in moved if any(ref.space is Space.HBM for ref in each.ins)]
    assert max(runs for each in outside for (runs,) in [runs_in_hbm(each)]) <= MOST_RUNS
