"""Softmax and its like over dims in the middle of repeated arrays, whose last dims are batch dims of a contraction."""

from collections.abc import Callable
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

Function = Callable[..., Any]


def batch_dims(function: Function, *inputs: Any) -> set[tuple[int, ...]]:
    """Of the operands of all contractions with such, where the layout of the program is known."""
    module = parse_text(text_of(function, *inputs))
    names = pipelines.pass_names(pipelines.DEFAULT_PIPELINE)
    run_passes(module, [*names[: names.index("batch_dims_first") + 1], "dce"], PassContext(PassOptions()))
    found = set()
    for op in ops_of(module.entry.block):
        if isinstance(op, hlo.DotOp) and hlo.shape_of(op.lhs).rank > 2:
            found.add((op.dims.data.lhs_batch, op.dims.data.rhs_batch))
    return {axes for pair in found for axes in pair if axes and len(axes) > 0}


def graph_attention(x: Any, y: Any, mask: Any, values: Any) -> Any:
    scores = jax.nn.leaky_relu(x[:, None] + y[None], 0.2)
    scores = jnp.where(mask[..., None] > 0, scores, -1e9)
    return jnp.einsum("nmh,mhd->nhd", jax.nn.softmax(scores, 1), values)


def two_readers(x: Any, y: Any, mask: Any, values: Any) -> Any:
    """Two contractions read it; sums over rows, over columns and over both are read beside them."""
    scores = jnp.tanh(x[:, None] * y[None] + mask[..., None])
    weights = scores / (1 + jnp.abs(scores).sum(1, keepdims=True))
    first = jnp.einsum("nmh,mhd->nhd", weights, values)
    second = jnp.einsum("nmh,nhd->mhd", weights, values[: weights.shape[0]])
    return first.sum(), second.sum(0), weights.max(0), weights.sum((0, 1))


def counted(x: Any, y: Any, mask: Any, values: Any) -> Any:
    """Row and column numbers are counted in the new order."""
    far = jnp.abs(jnp.arange(x.shape[0])[:, None] - jnp.arange(y.shape[0])[None]) > 40
    scores = jnp.where(far[..., None], -30.0, x[:, None] - y[None] * jnp.arange(x.shape[1], dtype=jnp.float32))
    return jnp.einsum("nmh,mhd->nhd", jax.nn.softmax(scores + mask[..., None], 1), values)


FUNCTIONS = graph_attention, two_readers, counted


def draw(number: int) -> tuple[Any, ...]:
    random = np.random.default_rng(number)
    n, h = int(random.integers(90, 190)), int(random.choice([4, 5, 8, 11, 16]))
    n = max(n, int((140_000 / h) ** 0.5) + 1)
    shapes = (n, h), (n, h), (n, n), (n, h, int(random.integers(2, 20)))
    return tuple(random.standard_normal(each).astype(np.float32) for each in shapes)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_heads_come_first(function: Function, number: int) -> None:
    inputs = draw(number)
    check_function(function, *inputs, relative=1e-4)
    assert (2,) not in batch_dims(function, *inputs)


def test_what_is_wanted_in_its_own_order_stays() -> None:
    """A result of the program, an operand that is no repetition, and a fold over the heads."""
    x, y, mask, values = draw(0)
    large = np.random.default_rng(1).standard_normal((*mask.shape, x.shape[1])).astype(np.float32)

    def result(x: Any, y: Any, values: Any) -> Any:
        weights = jax.nn.softmax(x[:, None] + y[None], 1)
        return jnp.einsum("nmh,mhd->nhd", weights, values), weights

    def operand(x: Any, large: Any, values: Any) -> Any:
        return jnp.einsum("nmh,mhd->nhd", jax.nn.softmax(x[:, None] + large, 1), values)

    def heads(x: Any, y: Any, values: Any) -> Any:
        return jnp.einsum("nmh,mhd->nhd", jax.nn.softmax(x[:, None] + y[None], 2), values)

    for function, inputs in ((result, (x, y, values)), (operand, (x, large, values)), (heads, (x, y, values))):
        check_function(function, *inputs, relative=1e-4)
        assert (2,) in batch_dims(function, *inputs), function.__name__


def test_gradients_of_it(random: np.random.Generator) -> None:
    x, y, mask, values = draw(2)
    check_function(
        jax.grad(lambda *inputs: (graph_attention(*inputs) ** 2).sum(), (0, 1, 3)), x, y, mask, values, relative=1e-3
    )
