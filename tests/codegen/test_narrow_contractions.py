"""Drawn programs whose contractions make less than they say: values, and elements that are multiplied."""

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, text_of

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes import pipelines
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes

Case = tuple[Callable[..., Any], tuple[Any, ...], int]
"""A function, its inputs, and the most products that its contractions may make."""


def products_of(function: Callable[..., Any], inputs: tuple[Any, ...]) -> int:
    """Of all contractions, in the text as it comes out of the stage in which they are narrowed."""
    module = parse_text(text_of(function, *inputs))
    names = pipelines.pass_names(pipelines.DEFAULT_PIPELINE)
    names = [*names[: names.index("narrow_contractions") + 1], "dce"]
    run_passes(module, names, PassContext(PassOptions()))
    return sum(
        op.shape.size * prod(hlo.shape_of(op.lhs).dims[dim] for dim in op.dims.data.lhs_contracting)
        for computation in module.computations()
        for op in ops_of(computation.block)
        if isinstance(op, hlo.DotOp)
    )


def low_frequencies(random: np.random.Generator) -> Case:
    """Of a transform of two dims in any order, and back from these alone."""
    n, m, c = 2 ** int(random.integers(4, 7)), 2 ** int(random.integers(4, 7)), int(random.integers(1, 9))
    a, b = int(random.integers(2, n // 2)), int(random.integers(2, m // 3))
    axes = ((1, 2), (2, 1), (-2, -1))[int(random.integers(3))]
    last = c if axes == (-2, -1) else 1
    dims = [2, n, m] if last == c else [2, n, m, c]

    def layer(x: Any, scale: Any) -> Any:
        y = jnp.fft.rfftn(x, axes=axes)
        kept = y[:, :a, :b] * scale
        full = jnp.zeros_like(y).at[:, :a, :b].set(kept)
        return jnp.fft.irfftn(full, [x.shape[axis] for axis in axes], axes=axes)

    arrays = random.standard_normal(dims).astype(np.float32), np.float32(2)
    whole = products_of(lambda x: jnp.fft.irfftn(jnp.fft.rfftn(x, axes=axes) * 2, axes=axes), arrays[:1])
    return layer, arrays, whole * 9 // 10


def last_row(random: np.random.Generator) -> Case:
    """What a decoder makes of its last position, past a bias, a scale and views."""
    b, n, d, v = (int(each) for each in random.integers((1, 8, 8, 40), (4, 70, 40, 400)))

    def logits(x: Any, w: Any, bias: Any) -> Any:
        y = jnp.tanh(jnp.einsum("bnd,vd->bnv", x, w) + bias) * 3
        return jnp.swapaxes(y, 0, 1)[-1]

    shapes = (b, n, d), (v, d), (v,)
    return logits, tuple(random.standard_normal(each).astype(np.float32) for each in shapes), b * d * v


def padded_terms(random: np.random.Generator) -> Case:
    """Zeros ahead of, after and around what a constant is multiplied with, as sums and differences of such."""
    m, k, n = (int(each) for each in random.integers(3, 40, 3))
    low, high = (int(each) for each in random.integers(0, 30, 2))
    constant = random.standard_normal((low + k + high, n)).astype(np.float32)

    def padded(x: Any, y: Any) -> Any:
        wide = jnp.pad(x, ((0, 0), (low, high))) - jnp.pad(y[:, : k - 1], ((0, 0), (low + 1, high)))
        return jnp.exp(wide @ constant / 9)

    shapes = (m, k), (m, k)
    return padded, tuple(random.standard_normal(each).astype(np.float32) for each in shapes), m * k * n


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("draw", [low_frequencies, last_row, padded_terms])
def test_no_more_is_made_than_is_read(draw: Callable[[np.random.Generator], Case], number: int) -> None:
    function, inputs, most = draw(np.random.default_rng(number))
    check_function(function, *inputs, relative=1e-4)
    assert 0 < products_of(function, inputs) <= most


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_zeros_beside_infinities_are_terms(value: float, random: np.random.Generator) -> None:
    """Beside a parameter, and beside a constant that is infinite where the other operand is padded."""
    constant = random.standard_normal((9, 5)).astype(np.float32)
    constant[8, 3] = value

    def padded(x: Any, y: Any) -> tuple[Any, Any]:
        wide = jnp.pad(x, ((0, 0), (1, 2)))
        return wide @ constant, wide @ y

    y = random.standard_normal((9, 4)).astype(np.float32)
    y[0, 1] = value
    check_function(padded, random.standard_normal((7, 6)).astype(np.float32), y)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_of_what_several_read_the_hull_is_made(steps: int, random: np.random.Generator) -> None:
    x, y = random.standard_normal((2, 64, 64)).astype(np.float32)

    def parts(x: Any, y: Any) -> tuple[Any, ...]:
        z = jax.nn.sigmoid(x @ y)
        return z[5:20:steps, 3:9], jnp.flip(z, 0)[44:60, 5:12], z.T[4:6, 10]

    check_function(parts, x, y)
