"""Windows and scans: simulated time against the roofline, simulator wall time against jaxlib's.

The roofline counts operands and results once each, at the rate that the DMA engines reach (272 GB/s). "Simulated"
leaves out the preamble and the postamble.

    python benchmarks/windows.py [PART OF A NAME ...]
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from indexing import Array, Case, table
from jax import lax

POOL: tuple[Any, ...] = ((1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, *POOL)


def mean_pool(x: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4


def compose(left: Any, right: Any) -> Any:
    return left[0] * right[0], right[0] * left[1] + right[1]


def cases() -> dict[str, Case]:
    random = np.random.default_rng(0)

    def floats(*dims: int) -> Array:
        return random.standard_normal(dims).astype(np.float32)

    rows, line, image = floats(1024, 4096), floats(1 << 20), floats(8, 112, 112, 64)
    whole = random.integers(-1000, 1000, (1024, 4096)).astype(np.int32)
    steps = [random.uniform(0.5, 1, (512, 1024)).astype(np.float32) for _ in range(2)]
    pooled = image.nbytes // 4
    return {
        "cumsum 1024x4096": Case(lambda x: lax.cumsum(x, 1), [rows], 2 * rows.nbytes),
        "cumsum 1024x4096, axis 0": Case(lambda x: lax.cumsum(x, 0), [rows], 2 * rows.nbytes),
        "cumsum 1024x4096 s32": Case(lambda x: lax.cumsum(x, 1), [whole], 2 * rows.nbytes),
        "cumsum 1M": Case(lambda x: lax.cumsum(x, 0), [line], 2 * line.nbytes),
        "cummax 1M, reverse": Case(lambda x: lax.cummax(x, 0, reverse=True), [line], 2 * line.nbytes),
        "cumlogsumexp 256x1024": Case(lambda x: lax.cumlogsumexp(x, 1), [rows[:256, :1024]], 2 * 256 * 4096),
        "associative scan 512x1024": Case(
            lambda a, b: lax.associative_scan(compose, (a, b), axis=1), steps, 4 * steps[0].nbytes
        ),
        "associative scan, axis 0": Case(
            lambda a, b: lax.associative_scan(compose, (a, b), axis=0)[1], steps, 3 * steps[0].nbytes
        ),
        "max pool 3x3/2": Case(max_pool, [image], image.nbytes + pooled),
        "max pool gradient 3x3/2": Case(
            lambda x, g: jax.vjp(max_pool, x)[1](g)[0], [image, floats(8, 56, 56, 64)], 2 * image.nbytes + pooled
        ),
        "mean pool 2x2/2": Case(mean_pool, [image], image.nbytes + pooled),
        "mean pool gradient 2x2/2": Case(
            lambda g: jax.vjp(mean_pool, jnp.zeros(image.shape))[1](g)[0],
            [floats(8, 56, 56, 64)],
            image.nbytes + pooled,
        ),
        "moving sum of 16, 1M": Case(
            lambda x: lax.reduce_window(x, 0.0, lax.add, (16,), (1,), "SAME"), [line], 2 * line.nbytes
        ),
        "moving maximum of 100, 1M": Case(
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (100,), (1,), "SAME"), [line], 2 * line.nbytes
        ),
        "reduce by hypot 1024x4096": Case(
            lambda x: lax.reduce(x, 0.0, lambda a, b: jnp.sqrt(a * a + b * b), (1,)), [np.abs(rows)], rows.nbytes
        ),
        "argmax 1024x4096": Case(lambda x: jnp.argmax(x, 1), [rows], rows.nbytes),
    }


if __name__ == "__main__":
    table(cases(), sys.argv[1:])
