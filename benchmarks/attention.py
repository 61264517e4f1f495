"""Attention beside its roofline: the greater of the time of its products and of its exponentials.

    python benchmarks/attention.py [--quick] [--apart]

Rows and columns are equal; queries, keys and values are FP32, cast as by default. A masked score counts: causal
attention may take less than half of what it is held against. ``--apart``: with kernels of their own for both products
and the softmax, as where another value needs the scores. Only plans are made and timed, without preamble and
postamble; no values are computed.
"""

import argparse
import math
from collections.abc import Iterator
from statistics import geometric_mean
from typing import Any

import jax
import jax.numpy as jnp

import neuronx_cc
from neuronx_cc.codegen.attention import choose
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32_PSUM, Tile, Timing
from neuronx_cc.ir.targets import find_machine

ROWS = (128, 256, 512, 1024, 2048, 4096, 8192)
QUICK = (512, 2048)
DEPTHS = (64, 128)
HEADS = (1, 12)


def attention(causal: bool, q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("hqd,hkd->hqk", q, k) / math.sqrt(q.shape[-1])
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, axis=-1), v)


def bound_us(timing: Timing, heads: int, rows: int, depth: int) -> float:
    """Microseconds of the busier of TensorE, with both products in BF16, and Scalar, with the exponentials."""
    sizes = timing.sizes
    tiles = heads * math.ceil(rows / sizes.columns) * rows
    scores = tiles * math.ceil(depth / sizes.rows) * timing.column("bf16")
    weighted = heads * math.ceil(rows / sizes.rows) * math.ceil(depth / sizes.columns) * rows * timing.column("bf16")
    columns = min(rows, sizes.bank_columns)
    exponential = timing.engine("activation", Stream.SCALAR, columns, (Tile("bf16"),), (F32_PSUM,), ("exp",)).scalar
    return max(scores + weighted, tiles * exponential / columns) / 1000


def cases(quick: bool) -> Iterator[tuple[int, int, int, bool]]:
    for rows in QUICK if quick else ROWS:
        for depth in DEPTHS:
            for heads in HEADS:
                for causal in (False, True):
                    yield rows, depth, heads, causal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two lengths only")
    parser.add_argument("--apart", action="store_true", help="with several kernels")
    options = parser.parse_args()
    if options.apart:
        choose.apart = lambda *_: 0.0
    timing = Timing(find_machine("trn1"))
    print(f"{'rows':>6} {'depth':>5} {'heads':>5} {'causal':>6} {'us':>9} {'bound us':>9} {'ratio':>6} {'HBM MB':>8}")
    ratios = []
    for rows, depth, heads, causal in cases(options.quick):
        shape = jax.ShapeDtypeStruct((heads, rows, depth), jnp.float32)
        executable = neuronx_cc.compile(
            jax.jit(lambda q, k, v, causal=causal: attention(causal, q, k, v)), *[shape] * 3
        )
        report = executable.run([], timing_only=True, check_races=False).report
        bound = bound_us(timing, heads, rows, depth)
        us, arrays = report.kernel_ns / 1000, 4 * 4 * heads * rows * depth
        ratios.append(us / bound)
        made = max(0, executable.program.hbm_bytes - arrays) / 1e6
        print(f"{rows:6} {depth:5} {heads:5} {causal!s:>6} {us:9.1f} {bound:9.1f} {us / bound:6.2f} {made:8.1f}")
    print(f"geometric mean {geometric_mean(ratios):.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
