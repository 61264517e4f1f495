"""What lies on chip and is read with another dim on the partitions, as training of images does with norms of groups."""

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax
from transfers import run_of

from neuronx_cc.ir.isa.program import Instr, Space

SHORT = 16
"""Bytes of a run that is no more than a few elements."""


def short_runs(instr: Instr) -> int:
    """Descriptors of a transfer that move a few elements each."""
    refs = [ref for ref in (*instr.outs, *instr.ins) if ref.space is Space.HBM]
    return prod(refs[0].counts) if refs and min(map(run_of, refs)) < SHORT else 0


@pytest.mark.parametrize(("images", "side", "features", "groups"), [(2, 16, 128, 8), (3, 8, 96, 6), (2, 12, 64, 8)])
def test_norms_of_groups_in_training(
    images: int, side: int, features: int, groups: int, random: np.random.Generator
) -> None:
    x = random.standard_normal((images, side, side, features)).astype(np.float32)
    kernel = random.standard_normal((3, 3, features, features)).astype(np.float32) / 30

    def conv(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def norm(x: Any) -> Any:
        y = x.reshape(images, side, side, groups, features // groups)
        centred = y - y.mean((1, 2, 4), keepdims=True)
        return (centred * lax.rsqrt(jnp.square(centred).mean((1, 2, 4), keepdims=True) + 1e-5)).reshape(x.shape)

    def loss(x: Any, kernel: Any) -> Any:
        return jnp.square(conv(norm(conv(jax.nn.silu(norm(x)), kernel)), kernel)).mean()

    def step(x: Any, kernel: Any) -> Any:
        return jax.grad(loss, (0, 1))(x, kernel)

    compiled = check_function(step, x, kernel, relative=1e-3)
    records = [each for each in compiled.program.records if isinstance(each, Instr) and each.op == "dma_copy"]
    assert sum(map(short_runs, records)) <= x.size // 16
