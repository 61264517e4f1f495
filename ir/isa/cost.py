"""How long instructions occupy their engine, as formulas over the machine description.

``f(instr, machine)`` returns cycles of the instruction's own engine; N is the number of elements per partition of the
largest operand. ``dma_cost`` describes a transfer to the shared DMA engines. Latencies (when a result is visible) are
the clock's concern. Source: hardware sheet 2.4, 3.2, 3.3 (the vendor's cost tables of v2.26.1) and 1.8.2.
"""

from dataclasses import dataclass
from math import ceil, prod

from neuronx_cc.ir.isa.program import Instr, Ref, Space, Stream
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.types import itemsize

INTEGER_COST = {"divide": "integer_divide", "remainder": "integer_divide", "power": "integer_power"}
SLOW_PROGRAMS = frozenset(
    [
        *("sine", "cosine", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "cbrt", "atan2"),
        *("exponential-minus-one", "log-plus-one", "exponential", "log", "tanh", "logistic", "erf", "sqrt", "rsqrt"),
        *("divide", "remainder"),
    ]
)


def elements(ref: Ref) -> int:
    """Elements per partition of an on-chip operand."""
    return prod(ref.counts[1:])


def largest(instr: Instr) -> int:
    """Elements per partition of the largest operand."""
    return max((elements(ref) for ref in (*instr.outs, *instr.ins)), default=0)


def _in_psum(instr: Instr) -> bool:
    return any(ref.space is Space.PSUM for ref in (*instr.outs, *instr.ins))


def slowdown(instr: Instr, machine: Machine) -> float:
    """2 when an operand's minor stride leaves the fast range of the memory ports (hardware sheet 1.7), else 1."""
    limit, strict = machine["sram.fast_stride_bytes"], machine["sram.stride16_policy"] == "slow"
    for ref in (*instr.outs, *instr.ins):
        minor = next(((count, stride) for count, stride in reversed(ref.dims[1:]) if count > 1), (1, 0))
        if abs(minor[1]) > limit or (strict and abs(minor[1]) == limit):
            return float(machine["sram.slow_stride_factor"])
    return 1.0


def load_stationary(instr: Instr, machine: Machine) -> float:
    """M / 4, times 4 for fp32."""
    source = instr.ins[0]
    factor = machine["pe.ls_fp32_factor"] if source.dtype == "f32" and "tf32" not in instr.flags else 1.0
    return float(elements(source) / machine["pe.ls_speedup"] * factor)


def multiply_moving(instr: Instr, machine: Machine) -> float:
    """max(min(64, M), N), times 4 for fp32."""
    moving = instr.ins[0]
    rows = max(min(machine["pe.min_ii_cycles"], instr.outs[0].counts[0]), elements(moving))
    passes = machine["pe.fp32_passes"] if moving.dtype == "f32" and "tf32" not in instr.flags else 1.0
    return float(rows * passes / machine["pe.rate_limit"] + machine["pe.psum_accumulate_latency"])


def _vector(instr: Instr, machine: Machine, cycles: float) -> float:
    overhead = machine["vec.overhead_psum_cycles" if _in_psum(instr) else "vec.overhead_sbuf_cycles"]
    return float(max(machine["vec.min_ii_cycles"], cycles * slowdown(instr, machine) + overhead))


def copy(instr: Instr, machine: Machine) -> float:
    """max(MIN_II, N), on Vector or GpSimd."""
    if instr.stream is Stream.GPSIMD:
        return float(max(machine["pool.min_ii_cycles"], largest(instr) * slowdown(instr, machine)))
    return _vector(instr, machine, largest(instr))


def memset(instr: Instr, machine: Machine) -> float:
    """max(MIN_II, N); N / 2 on Vector for 16-bit float zeros."""
    if instr.stream is Stream.VECTOR and instr.outs[0].dtype in ("bf16", "f16") and instr.imm[0] == 0:
        return _vector(instr, machine, largest(instr) / 2)
    return copy(instr, machine)


def _divides(instr: Instr) -> bool:
    return "divide" in instr.alu


def tensor_tensor(instr: Instr, machine: Machine) -> float:
    """2N; N with one operand in PSUM, or for bf16 add, subtract and multiply with unit strides."""
    n = largest(instr)
    if _divides(instr):
        return _vector(instr, machine, n * machine["vec.divide_cycles_per_elem"])
    if len({ref.space for ref in instr.ins}) == 2:
        return _vector(instr, machine, n)
    operands = (*instr.outs, *instr.ins)
    unit = all(stride == 2 for ref in operands for count, stride in ref.dims[-1:] if count > 1)
    if unit and all(ref.dtype == "bf16" for ref in operands) and instr.alu[0] in ("add", "subtract", "multiply"):
        return _vector(instr, machine, n)
    return _vector(instr, machine, 2 * n)


def tensor_scalar(instr: Instr, machine: Machine) -> float:
    """max(MIN_II, N): the second operator is free."""
    factor = machine["vec.divide_cycles_per_elem"] if _divides(instr) else 1
    return _vector(instr, machine, largest(instr) * factor)


def scalar_tensor_tensor(instr: Instr, machine: Machine) -> float:
    """2N; N for bf16 (x - s) * y with even N."""
    n = largest(instr)
    if _divides(instr):
        return _vector(instr, machine, n * machine["vec.divide_cycles_per_elem"])
    fast = instr.alu == ("subtract", "multiply") and all(ref.dtype == "bf16" for ref in instr.ins[:2]) and n % 2 == 0
    return _vector(instr, machine, n if fast else 2 * n)


def tensor_reduce(instr: Instr, machine: Machine) -> float:
    """N; N / 2 for bf16 add and max."""
    fast = instr.ins[0].dtype == instr.outs[0].dtype == "bf16" and instr.alu[0] in ("add", "max")
    return _vector(instr, machine, largest(instr) / (2 if fast else 1))


def copy_predicated(instr: Instr, machine: Machine) -> float:
    """2N with source and predicate in the same memory, else N."""
    same = len(instr.ins) == 2 and instr.ins[0].space is instr.ins[1].space
    return _vector(instr, machine, largest(instr) * (2 if same else 1))


def reciprocal(instr: Instr, machine: Machine) -> float:
    """8N."""
    return _vector(instr, machine, largest(instr) * machine["vec.reciprocal_cycles_per_elem"])


def activation(instr: Instr, machine: Machine) -> float:
    """max(MIN_II, N), and MIN_II more to read the accumulator."""
    cycles = largest(instr) * slowdown(instr, machine) + machine["act.overhead_cycles"]
    extra = machine["act.read_accumulator_cycles"] if "accumulate" in instr.flags else 0.0
    return float(max(machine["act.min_ii_cycles"], cycles) + extra)


def _program(instr: Instr, machine: Machine, per_element: str) -> float:
    cycles = largest(instr) * machine[f"pool.cost.{per_element}"] * slowdown(instr, machine)
    return float(machine["pool.start_cycles"] + cycles)


def pool_move(instr: Instr, machine: Machine) -> float:
    """150 + N."""
    return _program(instr, machine, "move")


def int_tensor_tensor(instr: Instr, machine: Machine) -> float:
    """150 + 2N; more for division and powers."""
    return _program(instr, machine, INTEGER_COST.get(instr.alu[0], "integer"))


def scan(instr: Instr, machine: Machine) -> float:
    """2N: two streamed inputs."""
    return _vector(instr, machine, 2 * largest(instr))


def select_scatter(instr: Instr, machine: Machine) -> float:
    """150 + 5 N for each position of a window: load, compare, select twice, combine; N windows a partition."""
    positions = prod(int(size) for size in instr.imm[1::2])
    return float(
        machine["pool.start_cycles"] + elements(instr.ins[1]) * positions * machine["pool.cost.select_position"]
    )


def program(instr: Instr, machine: Machine) -> float:
    """150 + c N with c by the kind of function."""
    name = instr.alu[0]
    kind = "power" if name == "power" else "polynomial" if name in SLOW_PROGRAMS else "rounding"
    return _program(instr, machine, kind)


def convert(instr: Instr, machine: Machine) -> float:
    """150 + 4N."""
    return _program(instr, machine, "rounding")


def partition_reduce(instr: Instr, machine: Machine) -> float:
    """150 + 16N."""
    return _program(instr, machine, "partition_reduce")


def partition_broadcast(instr: Instr, machine: Machine) -> float:
    """150 + 2N."""
    return _program(instr, machine, "partition_broadcast")


def group_gather(instr: Instr, machine: Machine) -> float:
    """150 + 16 M (7 + w) for rows of w 32-bit words: a processor moves the rows of its 16 partitions one by one."""
    return _group_rows(instr.outs[0], machine, "gather")


def group_scatter(instr: Instr, machine: Machine) -> float:
    """150 + 16 M (14 + 2 w): each row is read, combined and written back before the next one."""
    return _group_rows(instr.ins[0], machine, "scatter")


def _group_rows(entries: Ref, machine: Machine, kind: str) -> float:
    words = ceil(entries.counts[2] * itemsize(entries.dtype) / 4)
    each = machine[f"pool.cost.{kind}_row"] + words * machine[f"pool.cost.{kind}_word"]
    return float(machine["pool.start_cycles"] + 16 * entries.counts[1] * each)


def no_cycles(instr: Instr, machine: Machine) -> float:
    """Not timed in engine cycles: see ``dma_cost`` and ``control_ns``."""
    return 0.0


def control_ns(instr: Instr, machine: Machine) -> float:
    """Nanoseconds of instructions that the sequencer executes itself (``nop``, ``reg_load``, ``host_call``)."""
    if instr.op in ("nop", "host_call"):
        return float(machine["seq.nop_ns"])
    in_hbm = instr.ins[0].space is Space.HBM
    return float(machine["seq.reg_load_hbm_ns" if in_hbm else "seq.reg_load_ns"])


def collective_ns(instr: Instr, machine: Machine) -> float:
    """Nanoseconds of a collective, as ``exchange_ns`` of its operands."""
    nbytes = max(prod(ref.counts) * itemsize(ref.dtype) for ref in (*instr.outs, *instr.ins))
    return exchange_ns(str(instr.alu[0]), nbytes, int(instr.imm[1]), machine)


def exchange_ns(kind: str, nbytes: int, members: int, machine: Machine) -> float:
    """Nanoseconds of an exchange of ``nbytes`` (operand or result, whichever is larger) between ``members`` devices:
    latency of its steps plus bytes over the bandwidth of the slowest link.

    Small ones exchange everything in one step (two for an all-reduce), larger ones go round a ring, in which every
    device passes on one block in each of members - 1 steps (hardware sheet 6.4).
    """
    members = max(2, members)
    bandwidth = min(machine["link.bw"], machine["hbm.bw_per_core"])
    rounds = 2 if kind == "all_reduce" else 1
    if kind in ("permute", "broadcast"):
        return float(machine["cc.latency_ns"] + nbytes / bandwidth)
    ring = nbytes > machine["cc.mesh_bytes"]
    steps = rounds * (members - 1 if ring else 1)
    return float(steps * machine["cc.latency_ns"] + rounds * nbytes * (members - 1) / members / bandwidth)


def barrier_ns(machine: Machine) -> float:
    """Nanoseconds from the last stream's arrival at a barrier until all streams go on after it.

    A stream signals the sync engine, which sees it a semaphore latency later, branches on its register, and signals all
    streams in turn; these branch, too.
    """
    return float(2 * (machine["seq.nop_ns"] + machine["sem.latency_ns"] + machine["seq.branch_ns"]))


@dataclass(frozen=True, slots=True)
class DmaCost:
    """A transfer's demands. Times in ns."""

    service_ns: float
    """Time for which it keeps all DMA engines of the core (or the HBM bandwidth) busy, others moving the other way."""
    read_ns: float
    """Time for which it keeps what the engines read HBM with busy; 0 if it does not."""
    write_ns: float
    """The same of what they write HBM with. Copies on chip take both."""
    engine_ns: float
    """Time of the engine that has most to do: from the start of the data to its end, without contention."""
    software_ns: float
    """Time in which software generates descriptors, for run-time addresses."""
    nbytes: int
    hbm_bytes: int
    descriptors: int

    @property
    def alone_ns(self) -> float:
        """Time that the transfer takes of the engines when they serve no other."""
        return max(self.service_ns, self.read_ns, self.write_ns)


def dma_cost(instr: Instr, machine: Machine) -> DmaCost:
    """Cost of a DMA, as ``transfer_cost`` of its runs."""
    target = instr.outs[0]
    source = instr.ins[0]
    rows = instr.ins[-1].counts[0] if instr.op in ("dma_gather", "dma_scatter") else 0
    count, run_bytes = contiguous_runs(target, source, rows)
    moved = rows * prod(target.counts[1:]) if rows else prod(target.counts)
    read, written = (moved * itemsize(ref.dtype) * (ref.space is Space.HBM) for ref in (source, target))
    software = 0.0
    if instr.stream is Stream.DMA_DYNAMIC:
        software = machine["dma.swdge_start_cycles"] / machine["clock.gpsimd_ghz"]
        software += (rows or count) * machine["dma.swdge_descriptor_ns"]
    return transfer_cost(count, run_bytes, read, written, machine, software)


def transfer_cost(
    count: int, run_bytes: int, read: int, written: int, machine: Machine, software: float = 0.0
) -> DmaCost:
    """Cost of ``count`` contiguous runs of ``run_bytes``; ``read`` and ``written`` are bytes from and to HBM.

    A run takes max(elem_cost, overhead + bytes / bandwidth) of one engine. An engine that reads HBM all the time, or
    writes it, is slower than one that does both in turn (``dma.bw_per_engine``, ``dma.bw_both_per_engine``).
    """
    least, overhead, engines = machine["dma.elem_cost_ns"], machine["dma.run_overhead_ns"], machine["dma.engines"]
    each = max(least, overhead + run_bytes / machine["dma.bw_per_engine"])
    both = max(least, overhead + run_bytes / machine["dma.bw_both_per_engine"])
    pieces = max(1, ceil(run_bytes / machine["dma.packet_bytes"]))
    longest = ceil(count * pieces / engines) * each / pieces
    one_way = count * each / engines
    service = max(count * both / engines, (read + written) / machine["hbm.bw_per_core"])
    on_chip = not read and not written
    return DmaCost(
        service,
        one_way if read or on_chip else 0.0,
        one_way if written or on_chip else 0.0,
        max(longest, one_way, service),
        software,
        count * run_bytes,
        read + written,
        count,
    )


def contiguous_runs(target: Ref, source: Ref, rows: int = 0) -> tuple[int, int]:
    """Number of runs that are contiguous on both sides, and the bytes of one (of the wider type).

    ``rows``: of a gather or scatter, whose rows lie anywhere on one side; 0 for other transfers.
    """
    first = 1 if rows else 0
    length = 1
    for dim in range(len(target.dims) - 1, first - 1, -1):
        if target.dims[dim][0] == 1:
            continue
        if not all(_continues(ref, dim, length) for ref in (target, source)):
            break
        length *= target.dims[dim][0]
    runs = max(1, rows) * prod(target.counts[first:]) // length
    return runs, length * max(itemsize(target.dtype), itemsize(source.dtype))


def _continues(ref: Ref, dim: int, length: int) -> bool:
    on_partitions = dim == 0 and ref.space is not Space.HBM
    return not on_partitions and ref.dims[dim][1] == length * itemsize(ref.dtype)
