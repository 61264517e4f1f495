"""Gates of features, as of squeeze-and-excite blocks: what contractions of a row make stays on chip."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax

import neuronx_cc
from neuronx_cc.ir.isa.program import Instr, Space


def convolve(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))


def by_convolutions(x: Any, before: Any, down: Any, bias: Any, up: Any, last: Any) -> Any:
    y = jax.nn.relu(convolve(x, before))
    hidden = jax.nn.silu(convolve(y.mean((2, 3), keepdims=True), down) + bias.reshape(1, -1, 1, 1))
    return y * jax.nn.sigmoid(convolve(hidden, up) + last.reshape(1, -1, 1, 1))


def by_products(x: Any, before: Any, down: Any, bias: Any, up: Any, last: Any) -> Any:
    y = jax.nn.relu(convolve(x, before))
    hidden = jax.nn.silu(y.mean((2, 3)) @ down[:, :, 0, 0].T + bias)
    return y * jax.nn.sigmoid(hidden @ up[:, :, 0, 0].T + last)[:, :, None, None]


def shapes(features: int, hidden: int, images: int = 1, size: int = 5) -> list[tuple[int, ...]]:
    kernels = [(features, features, 1, 1), (hidden, features, 1, 1), (hidden,), (features, hidden, 1, 1), (features,)]
    return [(images, features, size, size), *kernels]


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("gate", [by_convolutions, by_products])
@pytest.mark.parametrize(
    ("features", "hidden"),
    [(8, 1), (96, 4), (127, 5), (128, 8), (129, 3), (240, 10), (300, 130), (672, 28), (1152, 48)],
)
def test_values(gate: Any, features: int, hidden: int, images: int) -> None:
    random = np.random.default_rng(0)
    given = [
        random.standard_normal(shape) * (shape[1] ** -0.5 if len(shape) == 4 else 1)
        for shape in shapes(features, hidden, images)
    ]
    check_function(gate, *(each.astype(np.float32) for each in given), relative=2e-5)


@pytest.mark.parametrize("cast", ["none", "matmult"])
@pytest.mark.parametrize("gate", [by_convolutions, by_products])
@pytest.mark.parametrize(("features", "hidden"), [(64, 16), (240, 10), (480, 20)])
def test_nothing_leaves_the_chip_for_it(gate: Any, features: int, hidden: int, cast: str) -> None:
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes(features, hidden, size=7)]
    executable = neuronx_cc.compile(jax.jit(gate).lower(*types), auto_cast=cast)
    results = [variable.name for variable in executable.program.variables if variable.kind == "scratch"]
    stores = [
        record
        for record in executable.program.records
        if isinstance(record, Instr) and record.op == "dma_copy" and record.outs[0].space is Space.HBM
    ]
    assert not results
    assert len(stores) <= 4


@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 16), (4, 130, 7), (1, 1000, 130), (16, 200, 33)])
def test_weights_by_output(rows: int, inputs: int, outputs: int) -> None:
    """As PyTorch has them: columns that are transposed are stationary as well."""
    random = np.random.default_rng(0)
    sizes = [(rows, inputs), (outputs, inputs), (outputs,), (inputs, outputs)]
    given = [(random.standard_normal(size) * size[-1] ** -0.5).astype(np.float32) for size in sizes]
    check_function(lambda x, w, b, v: jax.nn.gelu(x @ w.T + b) @ v.T, *given, relative=2e-5)
