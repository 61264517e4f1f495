"""Rows that come side by side to a partition, and leave so: of tiles that are staged together, or neighbours in HBM."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, assert_close, compile_text, text_of

from neuronx_cc.runtime.clock_regions import simulate

SMALL = TRN1.with_settings(["memory.sbuf_partition_bytes=57344"])
ROWS = (1, 127, 129, 256, 300, 513, 1000, 2049, 4096)
EPILOGUES: tuple[Callable[..., Any], ...] = (
    lambda y, row, array, column: y,
    lambda y, row, array, column: jnp.tanh(y + row),
    lambda y, row, array, column: jax.nn.relu(y) * row + array,
    lambda y, row, array, column: y * column - array,
)


def check(function: Callable[..., Any], inputs: Sequence[Any], machine: Any = TRN1) -> None:
    compiled = compile_text(text_of(function, *inputs), machine)
    (found,) = compiled.run(inputs)
    assert_close(found, np.asarray(function(*inputs)), 1e-5)


@pytest.mark.parametrize("seed", range(24))
def test_neighbours_in_memory(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows, terms, columns = draw.choice(ROWS), draw.choice([10, 16, 33, 64, 130]), draw.choice([1, 4, 16, 33, 128, 513])
    epilogue, around = EPILOGUES[seed % len(EPILOGUES)], draw.choice([0, 2])
    dims = (int(around), int(rows)) if around else (int(rows),)
    sizes = ((*dims, terms), (terms, columns), (columns,), (*dims, columns), (*dims, 1))
    inputs = [draw.standard_normal(size).astype(np.float32) for size in sizes]
    machine = SMALL if seed % 3 == 0 else TRN1
    check(lambda x, w, row, array, column: epilogue(x @ w, row, array, column), inputs, machine)


@pytest.mark.parametrize("seed", range(16))
def test_tiles_on_chip(seed: int) -> None:
    """Layers on what stays on chip: rows in several dims, of which one lies on the partitions."""
    draw = np.random.default_rng(100 + seed)
    rows, widths = int(draw.choice(ROWS[1:])), draw.choice([8, 16, 33, 64, 130], size=4)
    dims = [(rows,), (rows // 2, 2), (3, rows // 3), (rows // 4 or 1, 4)][seed % 4]
    layers = [
        (draw.standard_normal((before, after)) / np.sqrt(before)).astype(np.float32)
        for before, after in pairwise(widths)
    ]
    x = draw.standard_normal((*dims, widths[0])).astype(np.float32)

    def function(x: Any, *layers: Any) -> Any:
        for number, layer in enumerate(layers):
            x = EPILOGUES[(seed + number) % 3](x @ layer, layer[0], 0.5, None)
        return x

    check(function, [x, *layers], SMALL if seed % 3 == 0 else TRN1)


def time(function: Callable[..., Any], *sizes: tuple[int, ...]) -> float:
    """Microseconds."""
    inputs = [np.broadcast_to(np.float32(0), size) for size in sizes]
    return simulate(compile_text(text_of(function, *inputs), auto_cast="matmult").program, TRN1).total / 1e3


@pytest.mark.parametrize("width", [16, 32, 64])
def test_narrow_rows_take_little_longer_than_a_copy(width: int) -> None:
    rows = 2**18 // width
    copied = time(lambda x: x[::-1] * 2, (rows, width))
    assert time(lambda x, w: x @ w, (rows, width), (width, width)) < 2.5 * copied


def test_layers_of_many_rows_keep_engines_busy() -> None:
    """Each layer beyond the first takes hardly longer than its sums take to leave PSUM."""

    def layers(count: int) -> float:
        def function(x: Any, w: Any) -> Any:
            for _ in range(count):
                x = jnp.maximum(x @ w, 0)
            return x

        return time(function, (4096, 64), (64, 64))

    assert (layers(5) - layers(1)) / 4 < 8
