"""Gathers, scatters and cache updates: simulated time against the roofline, simulator wall time against jaxlib's.

The roofline counts indices, rows and results once each, at the rate that the DMA engines reach (272 GB/s); an operand
that is not given up is copied to the result, which counts, too. "Simulated" leaves out the preamble and the postamble.

    python benchmarks/indexing.py [PART OF A NAME ...]
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from stopwatch import best

import neuronx_cc
from neuronx_cc.ir.errors import CompileError

Array = np.ndarray[Any, Any]
BANDWIDTH = 272.0
"""Bytes a ns of the DMA engines of one core on trn1 (hardware description, dma.bw_per_engine)."""


@dataclass
class Case:
    """A function, its inputs, and the bytes that it has to move."""

    function: Callable[..., Any]
    inputs: list[Array]
    nbytes: int


def cases() -> dict[str, Case]:
    random = np.random.default_rng(0)

    def floats(*dims: int) -> Array:
        return random.standard_normal(dims).astype(np.float32)

    def below(limit: int, *dims: int) -> Array:
        return random.integers(0, limit, dims).astype(np.int32)

    found: dict[str, Case] = {}
    table = floats(50257, 768)
    for tokens in (512, 4096):
        rows, ids = floats(tokens, 768), (random.zipf(1.2, tokens) % 50257).astype(np.int32)
        found[f"embedding {tokens}"] = Case(
            lambda w, i: jnp.take(w, i, axis=0, mode="clip"), [table, ids], 2 * rows.nbytes + ids.nbytes
        )
        found[f"embedding gradient {tokens}"] = Case(
            lambda i, u: jnp.zeros((50257, 768), jnp.float32).at[i].add(u, mode="drop"),
            [ids, rows],
            table.nbytes + 3 * rows.nbytes + ids.nbytes,
        )
    x, along = floats(512, 1000), below(1000, 512, 1000)
    found["take_along_axis 512x1000"] = Case(
        lambda x, i: jnp.take_along_axis(x, i, 1, mode="clip"), [x, along], 2 * x.nbytes + along.nbytes
    )
    column = below(1000, 1000)
    found["columns 1000 of 512x1000"] = Case(
        lambda x, i: jnp.take(x, i, axis=1, mode="clip"), [x, column], 2 * x.nbytes + column.nbytes
    )
    found["add to columns"] = Case(
        lambda x, i, u: x.at[:, i].add(u, mode="drop"), [x, column, x + 1], 3 * x.nbytes + column.nbytes
    )
    million = 1 << 20
    flat, where = floats(million), below(million, million)
    found["scalars 1M of 1M"] = Case(
        lambda x, i: jnp.take(x, i, mode="clip"), [flat, where], 2 * flat.nbytes + where.nbytes
    )
    found["histogram 1M into 1000"] = Case(lambda i: jnp.bincount(i, length=1000), [below(1000, million)], 4 * million)
    found["scatter-add 1M into 1M"] = Case(
        lambda x, i, u: x.at[i].add(u, mode="drop"), [flat, where, flat + 1], 3 * flat.nbytes + where.nbytes
    )
    found["scatter 1M into 1M"] = Case(
        lambda x, i, u: x.at[i].set(u, mode="drop"), [flat, where, flat + 1], 3 * flat.nbytes + where.nbytes
    )
    found |= _picks(floats, below) | _narrow_rows(floats, below) | _biases(floats, below)
    cache, row = floats(12, 1024, 64), floats(12, 1, 64)
    found["KV cache, one row"] = Case(
        lambda c, r, at: lax.dynamic_update_slice(c, r, (0, at, 0)), [cache, row, np.int32(700)], 2 * cache.nbytes
    )
    found["KV cache, 64 rows"] = Case(
        lambda c, r, at: lax.fori_loop(0, 64, lambda s, c: lax.dynamic_update_slice(c, r * s, (0, at + s, 0)), c),
        [cache, row, np.int32(700)],
        2 * cache.nbytes,
    )
    return found


def _cross_entropy(x: jax.Array, labels: jax.Array) -> jax.Array:
    picked = jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], axis=-1)
    return -jnp.mean(picked)


def _picks(floats: Callable[..., Array], below: Callable[..., Array]) -> dict[str, Case]:
    """One or few elements of each row. What is read whole anyway, or written, counts whole."""
    x, wide, labels = floats(512, 1000), floats(4096, 128), below(1000, 512)
    ids, few = below(128, 4096), below(4096, 128, 64)
    found = {
        "label of each of 4096x128": Case(
            lambda x, i: jnp.take_along_axis(x, i[:, None], 1, mode="clip"), [wide, ids], wide.nbytes + 2 * ids.nbytes
        ),
        "cross entropy 512x1000": Case(_cross_entropy, [x, labels], x.nbytes + labels.nbytes),
        "its gradient": Case(jax.grad(_cross_entropy), [x, labels], 2 * x.nbytes + labels.nbytes),
        "64 of each of 128x4096": Case(
            lambda x, i: jnp.take_along_axis(x, i, 1, mode="clip"), [floats(128, 4096), few], 3 * few.nbytes
        ),
        "x.at[i, j].set 4096": Case(
            lambda x, i, j, u: x.at[i, j].set(u, mode="drop"),
            [x, below(512, 4096), below(1000, 4096), floats(4096)],
            2 * x.nbytes + 3 * 16384,
        ),
        "beams 32x8x512": Case(
            lambda x, i: jnp.take_along_axis(x, i[..., None], 1, mode="clip"),
            [floats(32, 8, 512), below(8, 32, 8)],
            2 * 4 * 32 * 8 * 512,
        ),
        "repeat 4096x16": Case(
            lambda x, n: jnp.repeat(x, n, axis=0, total_repeat_length=8192),
            [floats(4096, 16), below(4, 4096)],
            4 * 16 * (4096 + 8192) + 4 * 4096,
        ),
    }
    return found


def _narrow_rows(floats: Callable[..., Array], below: Callable[..., Array]) -> dict[str, Case]:
    """Short rows of small tables, and sums into few rows."""
    found: dict[str, Case] = {}
    for height, width, count in (
        (1000, 16, 4096),
        (50257, 16, 4096),
        (1000, 64, 4096),
        (512, 128, 4096),
        (4, 768, 512),
    ):
        table, ids, rows = floats(height, width), below(height, count), floats(count, width)
        found[f"{count} rows of {height}x{width}"] = Case(
            lambda w, i: jnp.take(w, i, axis=0, mode="clip"), [table, ids], 2 * rows.nbytes + ids.nbytes
        )
        found[f"its gradient, {height}x{width}"] = Case(
            lambda i, u, height=height: jnp.zeros((height, u.shape[1])).at[i].add(u, mode="drop"),
            [ids, rows],
            table.nbytes + rows.nbytes + ids.nbytes,
        )
    for count, width, segments in ((4096, 64, 16), (8192, 256, 128), (65536, 1, 16), (65536, 1, 1000)):
        rows = floats(count, width) if width > 1 else floats(count)
        found[f"{segments} sums of {count}x{width}"] = Case(
            lambda u, i, segments=segments: jax.ops.segment_sum(u, i, num_segments=segments),
            [rows, below(segments, count)],
            rows.nbytes + 4 * count,
        )
    for bins in (16, 256):
        found[f"histogram 64K into {bins}"] = Case(
            lambda i, bins=bins: jnp.bincount(i, length=bins), [below(bins, 65536)], 4 * 65536
        )
    return found


def _biases(floats: Callable[..., Array], below: Callable[..., Array]) -> dict[str, Case]:
    """What attentions add to their scores by the distance of two places, a row of heads for each distance."""
    found: dict[str, Case] = {}
    for heads, distances, places in ((4, 196, 196), (12, 729, 196), (16, 32, 512)):
        biases, where = floats(heads, distances), below(distances, places, places)
        nbytes = biases.nbytes + (1 + heads) * where.nbytes
        name = f"biases {heads}x{distances} of {places}"
        found[name] = Case(lambda x, i: jnp.take(x, i, axis=1, mode="clip"), [biases, where], nbytes)
        found[f"{name}, heads last"] = Case(
            lambda x, i: jnp.transpose(jnp.take(x, i, axis=0, mode="clip"), (2, 0, 1)), [biases.T, where], nbytes
        )
    return found


def table(found: dict[str, Case], names: list[str]) -> None:
    """Run the cases whose names contain one of ``names`` (all without names) and print a line for each."""
    print(
        f"{'':28} {'simulated':>10} {'roofline':>9} {'ratio':>6} "
        f"{'compile':>8} {'simulator':>10} {'jaxlib':>8} {'ratio':>6}"
    )
    for name, case in found.items():
        if names and not any(wanted in name for wanted in names):
            continue
        jitted = jax.jit(case.function)
        lowered = jitted.lower(*case.inputs)
        start = time.perf_counter()
        try:
            executable = neuronx_cc.compile(
                lowered.compiler_ir("hlo").as_serialized_hlo_module_proto(), auto_cast="none"
            )
        except CompileError as error:
            print(f"{name:28} {error.code}: {error.message}")
            continue
        compiled = time.perf_counter() - start
        result = executable.run(case.inputs)
        for got, want in zip(result.outputs, jax.tree.leaves(jitted(*case.inputs)), strict=True):
            scale = np.max(np.abs(want), initial=0)
            assert np.max(np.abs(got.astype(np.float64) - np.asarray(want)), initial=0) <= 1e-4 * scale, name
        simulated = result.report.kernel_ns / 1e3
        roofline = case.nbytes / BANDWIDTH / 1e3
        wall = 1e3 * best(lambda: executable.run(case.inputs))  # noqa: B023
        device = [jax.device_put(x) for x in case.inputs]
        reference = 1e3 * best(lambda: jax.block_until_ready(jitted(*device)))  # noqa: B023
        print(
            f"{name:28} {simulated:8.1f}us {roofline:7.1f}us {simulated / roofline:6.1f} {compiled:7.2f}s "
            f"{wall:8.1f}ms {reference:6.1f}ms {wall / reference:6.1f}"
        )


if __name__ == "__main__":
    table(cases(), sys.argv[1:])
