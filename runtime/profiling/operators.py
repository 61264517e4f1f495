"""What each HLO op costs and moves: one row an op, folded from the instructions that came from it.

Input: a program, its timing and the critical path. Output: ``Operator`` rows. An op is named as its instructions are:
in a kernel that computes several ops each has its own instructions, but loads and stores count for one of them.

The roofline of an op is the time that its products take at TensorE's peak for their type, or that its bytes take at
HBM's bandwidth, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from math import prod

from neuronx_cc.ir.isa.program import DMA_STREAMS, Instr, Loop, Program, Space, Stream, While
from neuronx_cc.ir.isa.program import End as EndRecord
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.types import WIDE_FLOATS, itemsize
from neuronx_cc.runtime.clock_program import LOAD, MULTIPLY, Node, hull
from neuronx_cc.runtime.profiling.counters import multiply_flops, peak_flops
from neuronx_cc.runtime.profiling.path import BUSY, Path
from neuronx_cc.runtime.report import ENGINE_NAME, Kinds


@dataclass(slots=True)
class Operator:
    """One HLO op. Times in ns, sizes in bytes, over the whole run."""

    name: str
    opcode: str = ""
    shape: str = ""
    op_name: str = ""
    source: str = ""
    kernels: list[str] = field(default_factory=list)
    schedule: str = ""
    """Trip counts of the loops around the innermost of its instructions."""
    instructions: int = 0
    start_ns: float = -1.0
    end_ns: float = 0.0
    busy_ns: dict[str, float] = field(default_factory=dict)
    critical_ns: float = 0.0
    """Its time on the critical path."""
    critical_parts: dict[str, float] = field(default_factory=dict)
    """The same by what it is spent on: an engine, or ``latency`` and ``wait``."""
    flops: float = 0.0
    """Of TensorE, without transposes."""
    transpose_flops: float = 0.0
    transpose_ns: float = 0.0
    full_rate_flops: float = 0.0
    """FLOPs of TensorE that the same passes could do with all rows and columns in use."""
    product_types: dict[str, float] = field(default_factory=dict)
    """Element type of operands -> TensorE ns."""
    compute_types: dict[str, float] = field(default_factory=dict)
    """Widest element type of an instruction -> ns of Vector, Scalar and GpSimd."""
    stored_types: dict[str, float] = field(default_factory=dict)
    """Element type in HBM -> bytes."""
    dma_bytes: float = 0.0
    hbm_bytes: float = 0.0
    written_bytes: float = 0.0
    """Of HBM."""
    scratch_bytes: float = 0.0
    """Of HBM, neither inputs nor results."""
    parameter_bytes: dict[str, float] = field(default_factory=dict)
    """Element type -> bytes read of the program's parameters."""
    transfers: float = 0.0
    descriptors: float = 0.0
    short_ns: float = 0.0
    """Service of DMA beyond what its bytes take at full rate."""
    roofline_ns: float = 0.0
    bound: str = ""
    joined: int = 0
    """Other ops that are counted with it."""

    def join(self, other: Operator) -> None:
        """Count another op with this one, which keeps its name."""
        for field_ in fields(self):
            mine, more = getattr(self, field_.name), getattr(other, field_.name)
            if isinstance(mine, dict):
                for key, amount in more.items():
                    mine[key] = mine.get(key, 0.0) + amount
            elif isinstance(mine, list):
                mine += [each for each in more if each not in mine]
            elif isinstance(mine, int | float) and field_.name not in ("start_ns", "end_ns"):
                setattr(self, field_.name, mine + more)
        self.start_ns, self.end_ns = min(self.start_ns, other.start_ns), max(self.end_ns, other.end_ns)
        self.joined += 1

    @property
    def lost_bytes(self) -> float:
        """Bytes of parameters that would not be there if they had the type of the products that they go into."""
        if not self.product_types:
            return 0.0
        main = max(self.product_types, key=lambda dtype: self.product_types[dtype])
        width = itemsize(main if main != "tf32" else "f32")
        floats = {dtype: nbytes for dtype, nbytes in self.parameter_bytes.items() if dtype in WIDE_FLOATS}
        return sum(nbytes * max(0.0, 1 - width / itemsize(dtype)) for dtype, nbytes in floats.items())

    @property
    def run_bytes(self) -> float:
        """Mean bytes of a contiguous run."""
        return self.dma_bytes / self.descriptors if self.descriptors else 0.0

    @property
    def engine(self) -> str:
        """Where it is busy longest."""
        return max(self.busy_ns, key=lambda name: self.busy_ns[name]) if self.busy_ns else ""

    @property
    def longest_ns(self) -> float:
        return max(self.busy_ns.values(), default=0.0)


def make_operators(program: Program, nodes: Sequence[Node], path: Path, machine: Machine) -> list[Operator]:
    """All ops that have instructions, those first that take most of the critical path."""
    rows: dict[str, Operator] = {}
    facts = _Facts(program, machine)
    for node, loops in _with_loops(program, nodes):
        transposes = facts.transposes(node.instr)
        if not node.count or node.instr.debug >= len(program.debug):
            continue
        debug = program.debug[node.instr.debug]
        row = rows.get(debug.hlo)
        if row is None:
            row = rows[debug.hlo] = Operator(debug.hlo, debug.opcode, debug.shape, debug.op_name, debug.place)
        if debug.kernel not in row.kernels:
            row.kernels.append(debug.kernel)
        if len(loops) > row.schedule.count("x") + bool(row.schedule):
            row.schedule = " x ".join(map(str, loops))
        facts.count(row, node, transposes)
    for index, parts in path.by_debug.items():
        if index >= len(program.debug):
            continue
        row = rows[program.debug[index].hlo]
        for (stream, part), time in parts.items():
            row.critical_ns += time
            key = ENGINE_NAME.get(Stream(stream), "dma") if part == BUSY else part
            row.critical_parts[key] = row.critical_parts.get(key, 0.0) + time
    for row in rows.values():
        row.roofline_ns = facts.roofline(row)
        row.bound = _bound(row, machine)
    return sorted(rows.values(), key=lambda row: (-row.critical_ns, -row.longest_ns, row.name))


def _bound(row: Operator, machine: Machine) -> str:
    """What keeps the op from being faster, in a few words."""
    engine, busy = row.engine, row.longest_ns
    if row.critical_ns > 2 * busy + 1:
        return "latency and waits"
    if engine == "dma":
        if row.short_ns > 0.3 * busy:
            return "DMA: short runs"
        return "HBM bandwidth" if row.hbm_bytes / machine["hbm.bw_per_core"] > 0.9 * busy else "DMA bandwidth"
    names = {"tensor": "TensorE", "vector": "VectorE", "scalar": "ScalarE", "gpsimd": "GpSimdE"}
    return names.get(engine, engine)


class _Facts:
    """Counts what instructions do, on one machine."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self._machine = machine
        self._kinds = Kinds(program)
        self._peak = peak_flops(machine)
        self._dma_rate = machine["dma.engines"] * machine["dma.bw_both_per_engine"]
        self._identities: list[tuple[int, int]] = []
        """Where unit matrices lie in SBUF, now."""

    def transposes(self, instr: Instr) -> bool:
        """Whether an instruction multiplies with a unit matrix; instructions come in emission order."""
        for ref in instr.outs:
            if ref.space is Space.SBUF:
                low, high = hull(ref)
                self._identities = [span for span in self._identities if span[1] <= low or high <= span[0]]
                if instr.op == "affine_select" and instr.alu[:1] == ("is_equal",):
                    self._identities.append((low, high))
        if instr.op != "multiply_moving" or not self._identities:
            return False
        at = instr.ins[0].offset
        return any(low <= at < high for low, high in self._identities)

    def count(self, row: Operator, node: Node, transposes: bool) -> None:
        instr, times = node.instr, node.count
        engine = ENGINE_NAME.get(instr.stream, "dma")
        row.instructions += times
        row.busy_ns[engine] = row.busy_ns.get(engine, 0.0) + node.busy
        row.start_ns = node.first if row.start_ns < 0 else min(row.start_ns, node.first)
        row.end_ns = max(row.end_ns, node.last)
        if instr.stream in DMA_STREAMS:
            self._count_transfer(row, node)
        elif node.kind == MULTIPLY:
            flops = multiply_flops(instr, self._machine)[0] * times
            if transposes:
                row.transpose_flops += flops
                row.transpose_ns += node.busy
            else:
                row.flops += flops
                row.full_rate_flops += self._peak * node.busy / _passes(instr, self._machine)
                dtype = "tf32" if "tf32" in instr.flags else instr.ins[0].dtype
                row.product_types[dtype] = row.product_types.get(dtype, 0.0) + node.busy
        elif node.kind != LOAD and engine in ("vector", "scalar", "gpsimd"):
            refs = (*instr.outs, *instr.ins)
            if refs:
                dtype = max((ref.dtype for ref in refs), key=lambda each: (itemsize(each), each))
                row.compute_types[dtype] = row.compute_types.get(dtype, 0.0) + node.busy

    def _count_transfer(self, row: Operator, node: Node) -> None:
        instr, times = node.instr, node.count
        row.transfers += times
        row.dma_bytes += node.nbytes * times
        row.hbm_bytes += node.hbm_bytes * times
        row.descriptors += node.descriptors * times
        at_rate = max(node.nbytes / self._dma_rate, node.hbm_bytes / self._machine["hbm.bw_per_core"])
        row.short_ns += max(0.0, node.busy - at_rate * times)
        if not node.nbytes:
            return
        target, source = instr.outs[0], instr.ins[0]
        for ref, write in ((target, True), (source, False)):
            if ref.space is Space.HBM:
                nbytes = min(prod(target.counts), prod(source.counts)) * itemsize(ref.dtype) * times
                row.stored_types[ref.dtype] = row.stored_types.get(ref.dtype, 0.0) + nbytes
                row.written_bytes += nbytes * write
                kind = self._kinds.of(ref.offset, write)
                if kind == "scratch":
                    row.scratch_bytes += nbytes
                elif kind == "input":
                    row.parameter_bytes[ref.dtype] = row.parameter_bytes.get(ref.dtype, 0.0) + nbytes

    def roofline(self, row: Operator) -> float:
        """See the head of this module."""
        passes = float(self._machine["pe.fp32_passes"]) if "f32" in row.product_types else 1.0
        return max(row.flops * passes / self._peak, row.hbm_bytes / float(self._machine["hbm.bw_per_core"]))


def _passes(instr: Instr, machine: Machine) -> float:
    full = instr.ins[0].dtype == "f32" and "tf32" not in instr.flags
    return float(machine["pe.fp32_passes"]) if full else 1.0


def _with_loops(program: Program, nodes: Sequence[Node]) -> Iterator[tuple[Node, list[int]]]:
    """Each node with the trip counts of the counted loops around it."""
    at = iter(nodes)
    loops: list[int] = []
    for record in program.records:
        if isinstance(record, Instr):
            yield next(at), [count for count in loops if count > 1]
        elif isinstance(record, Loop):
            loops.append(record.count)
        elif isinstance(record, EndRecord):
            loops.pop()
        elif hasattr(record, "register"):
            loops.append(record.count if isinstance(record, While) else 0)
