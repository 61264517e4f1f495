"""Sorts, top-k and random numbers: simulated time against a roofline, simulator wall time against jaxlib's.

The roofline is the larger of two times: inputs and results at the rate that the DMA engines reach (272 GB/s), and what
the processors have to do, one operation a partition and cycle (GpSimd: 128 partitions, 1.4 GHz). A sort does the
compare-exchanges of a bitonic network (n / 2 in each of L (L + 1) / 2 stages, L = log2 n), a top-k one comparison an
element; ThreeFry's 20 rounds are an addition, a rotation and an exclusive or each, Philox's 10 four products and four
exclusive ors for four numbers. "Simulated" leaves out the preamble and the postamble.

    python benchmarks/sorting.py [PART OF A NAME ...]
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from stopwatch import best, once

import neuronx_cc

Array = np.ndarray[Any, Any]
BANDWIDTH = 272.0
"""Bytes a ns of the DMA engines of one core on trn1 (hardware description, dma.bw_per_engine)."""
OPERATIONS = 128 * 1.4
"""Operations a ns of GpSimd's partitions (hardware description, clock.gpsimd_ghz)."""
MILLION = 1 << 20


@dataclass
class Case:
    """A function, its input, the bytes that it has to move and the operations that it has to do."""

    function: Callable[..., Any]
    operand: Array
    nbytes: int
    operations: float


def exchanges(rows: int, count: int) -> float:
    """Compare-exchanges of bitonic networks for ``rows`` rows of ``count`` elements."""
    levels = (count - 1).bit_length()
    return rows * count / 2 * levels * (levels + 1) / 2


def cases() -> dict[str, Case]:
    random = np.random.default_rng(0)
    million = random.standard_normal(MILLION).astype(np.float32)
    whole = random.integers(-(2**31), 2**31, MILLION).astype(np.int32)
    rows = random.standard_normal((4096, 1000)).astype(np.float32)
    logits = random.standard_normal((128, 50257)).astype(np.float32)
    key, state = np.array([7, 9], np.uint32), np.array([7, 9, 1, 2], np.uint32)
    rounds = MILLION * (20 * 3 + 15)
    return {
        "sort 1M f32": Case(jnp.sort, million, 8 * MILLION, exchanges(1, MILLION)),
        "sort 1M s32": Case(jnp.sort, whole, 8 * MILLION, exchanges(1, MILLION)),
        "argsort 4096x1000": Case(jnp.argsort, rows, 2 * rows.nbytes, exchanges(4096, 1000)),
        "top-k 8 of 128x50257": Case(lambda x: jax.lax.top_k(x, 8), logits, logits.nbytes, logits.size),
        "top-k 8 of 1M": Case(lambda x: jax.lax.top_k(x, 8), million, 4 * MILLION, MILLION),
        "threefry 1M bits": Case(
            lambda k: jax.random.bits(jax.random.wrap_key_data(k), (MILLION,)), key, 4 * MILLION, rounds
        ),
        "threefry 1M normal": Case(
            lambda k: jax.random.normal(jax.random.wrap_key_data(k), (MILLION,)), key, 4 * MILLION, rounds
        ),
        "rbg 1M normal": Case(
            lambda k: jax.random.normal(jax.random.wrap_key_data(k, impl="rbg"), (MILLION,)),
            state,
            4 * MILLION,
            MILLION * 20,
        ),
    }


def main(names: list[str]) -> None:
    print(
        f"{'':22} {'simulated':>10} {'roofline':>9} {'ratio':>6} "
        f"{'compile':>8} {'simulator':>10} {'jaxlib':>9} {'ratio':>6}"
    )
    for name, case in cases().items():
        if names and not any(wanted in name for wanted in names):
            continue
        jitted = jax.jit(case.function)
        # as for a platform that JAX does not know
        lowered = jitted.trace(case.operand).lower(lowering_platforms=("neuron",))
        module = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
        compiled, executable = once(lambda: neuronx_cc.compile(module, auto_cast="none"))  # noqa: B023
        result = executable.run([case.operand])
        for got, want in zip(result.outputs, jax.tree.leaves(jitted(case.operand)), strict=True):
            np.testing.assert_allclose(got, np.asarray(want), 1e-4, 1e-6, err_msg=name)
        simulated = result.report.kernel_ns / 1e3
        roofline = max(case.nbytes / BANDWIDTH, case.operations / OPERATIONS) / 1e3
        wall = 1e3 * best(lambda: executable.run([case.operand]))  # noqa: B023
        device = jax.device_put(case.operand)
        reference = 1e3 * best(lambda: jax.block_until_ready(jitted(device)))  # noqa: B023
        print(
            f"{name:22} {simulated:8.1f}us {roofline:7.1f}us {simulated / roofline:6.1f} {compiled:7.2f}s "
            f"{wall:8.1f}ms {reference:7.1f}ms {wall / reference:6.1f}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
