"""Arrays move between HBM and the partitions in runs, not element by element; products use all rows of TensorE."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import train
from generated import check_function, compile_text, text_of

from neuronx_cc.runtime.executable import Executable


def halves(x: Any) -> Any:
    """Odd and even rows of an array of short rows."""
    return x[1::2] * x[::2]


def windows_and_rows(x: Any, kernel: Any, gain: Any) -> Any:
    """A value with its features on the partitions, and one with its rows there."""
    y = jax.lax.conv_general_dilated(
        x[None], kernel, (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=x.shape[-1]
    )[0]
    return (y * gain) * (x / jnp.sum(x * x, axis=-1, keepdims=True)) + y


def scores(query: Any, keys: Any) -> Any:
    """Products with rows that were cast, several of them on a partition: the columns come in another order."""
    keys = (keys * 2).astype(jnp.bfloat16)
    return jnp.einsum("gqf,gpf->gqp", query.astype(jnp.bfloat16), keys, preferred_element_type=jnp.float32)


def heads(probabilities: Any, values: Any, weights: Any) -> Any:
    """A contraction over heads and features; the product before leaves few heads on the partitions."""
    mixed = jnp.einsum("gqp,gpf->gqf", probabilities, values)
    return mixed.reshape(1, -1) @ weights


def few_rows(x: Any, weights: Any) -> Any:
    """Rows of two dims, of which few lie on the partitions after the elementwise op."""
    return jnp.matmul((x * 2).astype(jnp.bfloat16), weights.astype(jnp.bfloat16), preferred_element_type=jnp.float32)


def stacked(x: Any, weights: Any) -> Any:
    """Each iteration keeps a product of which the last dim is another one than that of the product."""

    def body(x: Any, part: Any) -> tuple[Any, Any]:
        heads = jnp.einsum("bqf,fc->bqc", x, part)
        return x + heads * 0.1, jnp.swapaxes(heads, 1, 2)

    return jax.lax.scan(body, x, weights)


CASES = [
    (halves, [(64, 1536, 16)], [(12, 256, 3)], 0.2e-3),
    (windows_and_rows, [(128, 1536), (4, 1, 1536), (1536,)], [(40, 256), (4, 1, 256), (256,)], 0.4e-3),
    (scores, [(4, 4, 64), (4, 1024, 64)], [(4, 4, 64), (4, 256, 64)], 0.1e-3),
    (heads, [(4, 4, 1024), (4, 1024, 64), (1024, 1024)], [(4, 4, 256), (4, 256, 64), (1024, 512)], 0.15e-3),
    (stacked, [(16, 64, 64), (2, 64, 64)], [(16, 64, 64), (2, 64, 64)], 0.4e-3),
    (few_rows, [(35, 20, 650), (650, 4000)], [(35, 20, 65), (65, 400)], 0.5e-3),
]
"""Function, large and small dims of its arguments, seconds on the device."""


@pytest.mark.parametrize(("function", "large", "small", "limit"), CASES, ids=lambda item: getattr(item, "__name__", ""))
def test_runs(function: Any, large: Any, small: Any, limit: float, random: np.random.Generator) -> None:
    compiled = compile_text(text_of(function, *(np.zeros(dims, np.float32) for dims in large)))
    report = Executable.from_program(compiled.program, compiled.constants).run([], timing_only=True).report
    assert report.time_ns * 1e-9 < limit
    check_function(function, *(random.standard_normal(dims).astype(np.float32) for dims in small))


def test_a_training_step_in_bf16() -> None:
    """Weights of several rows on a partition, and a loop that keeps transposed products: element by element, 9.5 ms."""
    state, step, batches = train.start("gpt")
    text = text_of(step, state, next(batches(16)))
    compiled = compile_text(text, auto_cast="matmult")
    report = Executable.from_program(compiled.program, compiled.constants).run([], timing_only=True).report
    assert report.time_ns * 1e-9 < 5e-3
