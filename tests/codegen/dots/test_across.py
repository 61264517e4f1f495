"""Results of few rows whose columns lie on the partitions, and what is made of them there."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, assert_close, compile_text, text_of
from jax import lax

import neuronx_cc
from neuronx_cc.ir.isa.timing import Timing

LITTLE = TRN1.with_settings(["memory.sbuf_partition_bytes=32768"])
ACROSS = "columns on"


def normal(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def gated(x: Any, up: Any, gate: Any, down: Any, *_: Any) -> Any:
    """Arrays of the result's layout, of another type where there are casts."""
    for _ in range(2):
        y = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        x = x + (jax.nn.silu(y @ gate) * (y @ up)) @ down
    return x


def biased(x: Any, up: Any, gate: Any, down: Any, first: Any, second: Any, scale: Any) -> Any:
    """Rows, and one value a row, come from HBM."""
    for _ in range(2):
        x = x + jnp.tanh((normal(x) @ up + first) * scale) @ down + second
    return x * (x @ gate).sum(-1, keepdims=True)


def stored(x: Any, up: Any, gate: Any, down: Any, *_: Any) -> Any:
    """What lies across is a result of the program as well, and parts of it are read."""
    hidden = jnp.exp(x @ up)
    return hidden @ down, hidden, hidden[:, ::3], (hidden @ down).T


def inputs_of(rows: int, width: int, hidden: int) -> list[Any]:
    random = np.random.default_rng(rows + width + hidden)
    shapes = (rows, width), (width, hidden), (width, hidden), (hidden, width), (hidden,), (width,), (rows, 1)
    return [(random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(("width", "hidden"), [(129, 640), (1000, 192), (128, 130), (513, 127)])
@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("cast", ["none", "matmult"])
def test_values(rows: int, width: int, hidden: int, cast: str) -> None:
    inputs = inputs_of(rows, width, hidden)
    options = {"auto_cast": cast} if cast != "none" else {}
    for function in (gated, biased, stored):
        compiled = compile_text(text_of(function, *inputs), TRN1, **options)
        with jax.enable_x64(True):
            want = jax.tree.leaves(jax.jit(function)(*(np.asarray(each, np.float64) for each in inputs)))
        for found, each in zip(compiled.run(inputs), want, strict=True):
            assert_close(np.asarray(found, np.float32), np.asarray(each, np.float32), 3e-2 if options else 3e-5)
        across = any(ACROSS in line for line in compiled.program.schedules.values())
        assert across or function is stored or hidden < 512


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("constant", [False, True], ids=["given", "constant"])
def test_eight_bits(dtype: Any, constant: bool) -> None:
    """Codes are converted, or decoded and looked at for NaNs, before they are stationary."""
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 256)).astype(np.float32)
    weights = [
        (random.standard_normal(shape) * 20).astype(np.float32).astype(dtype) for shape in ((256, 512), (512, 256))
    ]

    def function(x: Any, *given: Any) -> Any:
        up, down = (jnp.asarray(each).astype(jnp.float32) * 0.01 for each in (weights if constant else given))
        return jnp.tanh(jnp.tanh(x @ up) @ down) @ up

    arguments = [x, *weights]
    executable = neuronx_cc.compile(jax.jit(function, keep_unused=True).lower(*arguments), auto_cast="matmult")
    assert any(ACROSS in line for line in executable.program.schedules.values())
    (found,) = executable.run(arguments).outputs
    assert_close(found, np.asarray(function(*arguments)), 3e-2)


def test_in_loops_and_small_memories() -> None:
    def function(x: Any, weights: Any) -> Any:
        def layer(x: Any, pair: Any) -> Any:
            return x + jnp.tanh(normal(x) @ pair[0]) @ pair[1], None

        return lax.scan(layer, x, weights)[0]

    random = np.random.default_rng(0)
    x = random.standard_normal((2, 256)).astype(np.float32)
    weights = [random.standard_normal(shape).astype(np.float32) / 16 for shape in ((5, 256, 640), (5, 640, 256))]
    with jax.enable_x64(True):
        want = function(np.asarray(x, np.float64), [np.asarray(each, np.float64) for each in weights])
    for machine in (TRN1, LITTLE):
        compiled = compile_text(text_of(lambda x, *weights: function(x, weights), x, *weights), machine)
        (found,) = compiled.run([x, *weights])
        assert_close(found, np.asarray(want, np.float32), 3e-5)


def test_time_of_decoding() -> None:
    """A network of one row takes at most 1.25 times the reading of its weights, in any type."""
    for dtype in (jnp.bfloat16, jnp.float8_e4m3, jnp.int8):
        shapes = [(1024, 2816), (1024, 2816), (2816, 1024)] * 4

        def function(x: Any, *weights: Any) -> Any:
            for at in range(0, len(weights), 3):
                x = gated(x, *(each.astype(jnp.float32) for each in weights[at : at + 3]))
            return x

        given = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
        x = jax.ShapeDtypeStruct((1, 1024), jnp.float32)
        executable = neuronx_cc.compile(jax.jit(function).lower(x, *given), auto_cast="matmult")
        report = executable.run([], timing_only=True, check_races=False).report
        nbytes = 2 * sum(np.prod(shape) for shape in shapes) * jnp.dtype(dtype).itemsize
        assert report.kernel_ns <= 1.25 * nbytes / Timing(TRN1).dma_rate, dtype
