"""What each published measurement says about each parameter of the machine description, and how far that is from it.

    python benchmarks/calibrate.py [MACHINE]

A row of the table has a key, its value in the description, what a measurement says of it (at least, at most, about so
much), and by which arithmetic; ``!`` marks what contradicts it. Nothing here looks at the time of a whole program of
ours: each statement follows from one engine's active time, from bytes and their time, or from one instruction. Rates of
programs are lower bounds (the data did move in that time); shares of a peak are, too.

Sources: NKIBench (one core of a trn1.32xlarge, FP32; latency, bytes, share of the time in which each engine is active),
AUTOCOMP's traces on trn1, and the vendor's guides. "Columns" are elements a partition.
"""

import sys
from dataclasses import dataclass
from typing import Literal

from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine

PARTITIONS, MIB = 128, 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """A row of NKIBench: milliseconds, MB read and written, active shares."""

    name: str
    ms: float
    read: float
    written: float
    vector: float = 0.0
    scalar: float = 0.0
    flops: float = 0.0
    elements: int = 0

    @property
    def columns(self) -> float:
        return self.elements / PARTITIONS

    def cycles(self, share: float, ghz: float) -> float:
        """Cycles of an engine for each column."""
        return share * self.ms * 1e6 * ghz / self.columns

    @property
    def rate(self) -> float:
        """GB/s of both directions."""
        return (self.read + self.written) / self.ms


MATMUL = Row("matmul 4096 x 5120 x 12288", 35.200, 9059.8, 201.3, flops=2.0 * 4096 * 12288 * 5120)
SWIGLU = Row("swiglu 4096 x 1024 x 3072", 4.222, 141.6, 83.9, 0.135, 0.093)
ROPE = Row("rope, 512 columns a tile", 4.333, 268.4, 134.2, 0.7164, 0.141, elements=64 * 4096 * 128)
ROPE_BEST = Row("rope, 2048 columns a tile", 3.3326, 268.4, 134.2, 0.8389, 0.184, elements=64 * 4096 * 128)
ADAMW = Row("adamw, first", 2.000, 358.6, 89.7, 0.900, 0.616, elements=10944 * 2048)
ADAMW_BEST = Row("adamw, best", 1.888, 358.6, 89.7, 0.955, 0.656, elements=10944 * 2048)
SILU = Row("silu, first", 1.333, 117.4, 117.4, 0.739, 0.315, elements=4096 * 7168)
SILU_BEST = Row("silu, best", 0.798, 117.4, 117.4, 0.672, 0.286, elements=4096 * 7168)
GEMM_FIRST_MS, GEMM_BEST_MS = 20.99, 6.96
GEMM = (4096, 8192, 8192)
"""m, k, n of AUTOCOMP's bf16 GEMM."""

Bound = Literal["at least", "at most", "about"]
SLACK = {"at least": 0.02, "at most": 0.02, "about": 0.05}
"""Relative distance that counts as agreement."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a measurement says about a key."""

    key: str
    bound: Bound
    value: float
    source: str
    arithmetic: str

    def agrees(self, machine: Machine) -> bool:
        now, slack = machine[self.key], SLACK[self.bound]
        low = self.bound == "at most" or now >= self.value * (1 - slack)
        high = self.bound == "at least" or now <= self.value * (1 + slack)
        return bool(low and high)

    def line(self, machine: Machine) -> str:
        now = machine[self.key]
        mark = " " if self.agrees(machine) else "!"
        return (
            f"{mark} {self.key:<32}{now:>8.3g}  {self.bound:<8} {self.value:>8.3g}  "
            f"{(now - self.value) / self.value:>+7.1%}  {self.source}: {self.arithmetic}"
        )


def statements(machine: Machine) -> list[Statement]:
    """Everything that the measurements say; the clocks are those of ``machine``."""
    vector, scalar = machine["clock.vector_ghz"], machine["clock.scalar_ghz"]
    return [
        *_products(machine),
        *_transfers(machine),
        *_vector(vector),
        *_scalar(scalar),
        *_instructions(vector, scalar),
    ]


def _products(machine: Machine) -> list[Statement]:
    peak = 2 * PARTITIONS**2 * machine["clock.tensor_ghz"]
    m, k, n = GEMM
    flops = 2.0 * m * k * n
    share = flops / (GEMM_BEST_MS * 1e6) / peak
    without = flops / ((GEMM_BEST_MS - 0.1) * 1e6) / peak
    key = "pe.rate_limit"
    return [
        Statement(key, "at least", share, "AUTOCOMP GEMM, best", "share of the bf16 peak over the whole time"),
        Statement(key, "about", without, "AUTOCOMP GEMM, best", "the same without 0.1 ms of launch"),
        Statement(key, "about", 0.869, "NKIBench transpose_matmul, best", "share of the fp32 peak"),
        Statement(key, "at least", 0.4141 / 0.5, "NKIBench swiglu", "HFU over that of the fp32 peak (0.5)"),
        Statement(key, "at least", 0.3690 / 0.5, "NKIBench matmul_add_rmsnorm", "HFU over that of the fp32 peak (0.5)"),
        Statement(key, "about", 0.995, "vendor, trn2", "share of the time that fp32 products take: another core"),
        Statement("pe.fp32_passes", "about", 4.0, "vendor", "fp32 at a quarter of the rate"),
    ]


def _transfers(machine: Machine) -> list[Statement]:
    engines = machine["dma.engines"]
    overhead, elem = machine["dma.run_overhead_ns"], machine["dma.elem_cost_ns"]
    read, both, written = MATMUL.rate / engines, SILU_BEST.rate / engines, 250.0 / engines

    def rate(measured: float, run: int) -> float:
        """Bytes a ns beside the overhead of a run, for a rate with runs of so many bytes."""
        return run / (run / measured - overhead)

    m, k, n = GEMM
    # the first step loads a tile of lhsT (rows of 256 B) and of rhs (1 KiB) for each product of 128 x 128 x 512
    products = m // 128 * (k // 128) * (n // 512)
    all_loads = GEMM_FIRST_MS * 1e6 * engines / (products * 256)
    hoisted = GEMM_FIRST_MS * 1e6 * engines / (products * 128 + products // (n // 512) * 128)
    # the best one 128 rows of 512 and of 1024 columns for 512 x 128 x 1024, 1 and 2 KiB
    steps = m // 512 * (k // 128) * (n // 1024)
    pair = GEMM_BEST_MS * 1e6 * engines / (steps * 128)
    long = 2048 / machine["dma.bw_per_engine"] + overhead
    curve = [(1 << 8, 0.105), (1 << 10, 0.425), (1 << 11, 0.814), (1 << 12, 0.967), (1 << 13, 0.984)]
    plateau = machine["dma.bw_per_engine"]
    found = [
        Statement("dma.bw_per_engine", "about", 17.0, "vendor", "effective rate on trn1"),
        Statement(
            "dma.bw_per_engine", "at least", rate(read, 4096), "NKIBench matmul", "263 GB/s, 98 % read, 4 KiB rows"
        ),
        Statement(
            "dma.bw_per_engine", "at least", rate(written, 4096), "NKIBench", "250 GB/s, mostly written, 4 KiB rows"
        ),
        Statement("dma.bw_per_engine", "about", 32768 / 1810, "vendor", "one transfer of 32 KiB takes 1810 ns"),
        Statement(
            "dma.bw_both_per_engine", "at least", rate(both, 4096), "NKIBench silu, best", "294 GB/s, half and half"
        ),
        Statement("dma.bw_both_per_engine", "at least", ADAMW_BEST.rate / engines, "NKIBench adamw, best", "237 GB/s"),
        Statement(
            "dma.elem_cost_ns", "at most", all_loads, "AUTOCOMP GEMM, first", "runs of 256 B and 1 KiB, all loads done"
        ),
        Statement("dma.elem_cost_ns", "at most", hoisted, "AUTOCOMP GEMM, first", "lhsT loaded once a row of tiles"),
        Statement(
            "dma.elem_cost_ns", "at most", pair - long, "AUTOCOMP GEMM, best", "runs of 1 KiB beside those of 2 KiB"
        ),
        Statement("dma.elem_cost_ns", "at most", 97.0, "vendor, trn2", "2 KiB on one engine take 97 ns"),
    ]
    for run, share in curve:
        each = run / (share * plateau)
        if run < elem * plateau:
            found.append(Statement("dma.elem_cost_ns", "about", each, "vendor, no platform", f"curve at {run} B"))
        else:
            left = each - run / plateau
            found.append(Statement("dma.run_overhead_ns", "about", left, "vendor, no platform", f"curve at {run} B"))
    left = 97 - 2048 / 23.1
    found.append(Statement("dma.run_overhead_ns", "about", left, "vendor, trn2", "2 KiB in 97 ns at 23.1 B/ns"))
    return found


def _vector(ghz: float) -> list[Statement]:
    tile = 512
    silu, overhead = SILU.cycles(SILU.vector, ghz), 19 / tile
    adamw = ADAMW_BEST.cycles(ADAMW_BEST.vector, ghz)
    # six two-stream operations and a copy of 512 columns; six of 2048
    first, best = ROPE.vector * ROPE.ms * 1e6 * ghz / 512, ROPE_BEST.vector * ROPE_BEST.ms * 1e6 * ghz / 128
    key = "vec.reciprocal_cycles_per_elem"
    return [
        Statement(key, "at most", silu - 2 - 2 * overhead, "NKIBench silu, first", "besides a product of two streams"),
        Statement(key, "about", silu - 3 - 3 * overhead, "NKIBench silu, first", "if the addition is Vector's, too"),
        Statement(key, "at most", adamw - 8, "NKIBench adamw", "besides four operations on two streams"),
        Statement(key, "about", 8.0, "vendor", "isa reference"),
        Statement(
            "vec.overhead_sbuf_cycles", "about", (first - 13 * 512) / 7, "NKIBench rope, first", "7 instructions a tile"
        ),
        Statement(
            "vec.overhead_sbuf_cycles", "about", (best - 12 * 2048) / 6, "NKIBench rope, best", "6 instructions a tile"
        ),
        Statement(
            "vec.overhead_sbuf_cycles", "about", (5215 - 5120) / 5, "vendor, mamba", "5 instructions of 10 N, N = 512"
        ),
        Statement(
            "vec.overhead_psum_cycles", "about", (3434 - 3072) / 5, "vendor, mamba", "5 instructions of 6 N, N = 512"
        ),
    ]


def _scalar(ghz: float) -> list[Statement]:
    two, one = SILU.cycles(SILU.scalar, ghz) * 512, SILU_BEST.cycles(SILU_BEST.scalar, ghz) * 512
    key = "act.latency_ns"
    return [
        Statement(key, "about", 159 - 64 / ghz, "vendor", "one element takes 159 ns"),
        Statement(
            key, "about", (two / 2 - 512) / ghz, "NKIBench silu, first", "2 of 512 columns, each active to its end"
        ),
        Statement(key, "about", (one - 512) / ghz, "NKIBench silu, best", "1 of 512 columns, active to its end"),
    ]


def _instructions(vector: float, scalar: float) -> list[Statement]:
    return [
        Statement("vec.latency_ns", "about", 14987 - (2 * 8192 + 19) / vector, "vendor", "two streams of 8192 columns"),
        Statement(
            "vec.min_ii_cycles", "about", 58.6 * vector, "conv1d on trn1.2xlarge", "65,536 instructions in 3.84 ms"
        ),
        Statement(
            "act.dependent_cycles", "about", 189 * scalar - 64, "vendor", "189 ns between dependent instructions"
        ),
        Statement("pe.ls_latency_ns", "about", 67.0, "vendor", "one element takes 67 ns"),
        Statement("hbm.bw_per_core", "about", 704 * MIB / 7.03e6 / 0.2561, "vendor", "704 MiB in 7.03 ms are 25.61 %"),
    ]


def main() -> None:
    machine = find_machine(sys.argv[1] if len(sys.argv) > 1 else "trn1")
    print(f"  {'key':<32}{machine.name:>8}  {'says':<8} {'value':>8}  {'off by':>7}  measurement")
    lines = [(statement.key, statement.line(machine)) for statement in statements(machine)]
    before = ""
    for key, line in lines:
        if key != before and before:
            print()
        print(line)
        before = key
    contradicted = sum(not statement.agrees(machine) for statement in statements(machine))
    print(f"\n{len(lines)} statements, {contradicted} contradicted (see the sources in runtime/machines)")


if __name__ == "__main__":
    main()
