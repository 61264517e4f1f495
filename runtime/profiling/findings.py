"""What is worth changing, found by rules: each names an op, its source line, the cause, what it costs, and a remedy.

Input: the operators of a run and its totals. Output: ``Finding``s, those first that cost most. A rule is one function
from one op, or from the whole run, to findings; ``OPERATOR_RULES`` and ``RUN_RULES`` list them all. What a finding
costs is the time on the critical path that would go with its cause, at most: removing one may show the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

from neuronx_cc.ir.machine import Machine
from neuronx_cc.runtime.profiling.operators import Operator
from neuronx_cc.runtime.report import RunReport

LEAST_SHARE = 0.01
"""Of the run, for a finding to be told."""
SHORT_RUN_BYTES = 512
TRANSPOSE_SHARE = 0.1
"""Of an op's TensorE time: the vendor's threshold for advice."""
SPILL_SHARE = 0.25
"""Of HBM reads: the vendor's threshold for advice."""
FIXED_SHARE = 0.3
NARROW = 0.35
"""Of TensorE's rows and columns in use."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth changing."""

    rule: str
    subject: str
    """HLO op, or empty for the run as a whole."""
    source: str
    cause: str
    cost_ns: float
    share: float
    """``cost_ns`` of the time of the run."""
    remedy: str

    @property
    def sentence(self) -> str:
        where = f"{self.subject}{f' ({short(self.source)})' if self.source else ''}: " if self.subject else ""
        return f"{where}{self.cause}; {self.share:.0%} of the time. {self.remedy}"


@dataclass(frozen=True, slots=True)
class Totals:
    """The run as a whole. Times in ns."""

    report: RunReport
    machine: Machine
    barriers_ns: float
    """Between the pieces of loops and branches."""
    repeated: int
    """Iterations and cases."""
    operators: Sequence[Operator]

    @property
    def time_ns(self) -> float:
        return self.report.time_ns


def short(source: str) -> str:
    """File name and line."""
    return source.replace("\\", "/").rsplit("/", 1)[-1]


def size(nbytes: float) -> str:
    """Bytes as people read them."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes:.0f} bytes"


def find(totals: Totals) -> list[Finding]:
    """All findings, the costliest first."""
    found = [finding for rule in RUN_RULES for finding in rule(totals)]
    for row in _alike(totals.operators):
        if row.critical_ns >= LEAST_SHARE * totals.time_ns:
            found += [finding for rule in OPERATOR_RULES for finding in rule(row, totals)]
    told = [finding for finding in found if finding.share >= LEAST_SHARE]
    return sorted(told, key=lambda finding: (-finding.cost_ns, finding.rule, finding.subject))


def _alike(operators: Sequence[Operator]) -> list[Operator]:
    """Ops of one source line and bound as one, named after the costliest: a layer of a model is told of once."""
    groups: dict[tuple[str, ...], Operator] = {}
    for row in operators:
        key = (row.source or row.op_name or row.name, row.bound)
        if key in groups:
            groups[key].join(row)
        else:
            groups[key] = deepcopy(row)
    return list(groups.values())


def _of(row: Operator, totals: Totals, rule: str, cause: str, cost: float, remedy: str) -> list[Finding]:
    cost = min(cost, row.critical_ns)
    if row.joined:
        cause = f"with {row.joined} more like it, {cause}"
    return [Finding(rule, row.name, row.source, cause, cost, cost / totals.time_ns, remedy)]


def short_runs(row: Operator, totals: Totals) -> list[Finding]:
    """DMA that moves few bytes at a time."""
    if not row.descriptors or row.run_bytes >= SHORT_RUN_BYTES or row.short_ns < 0.3 * row.busy_ns.get("dma", 0.0):
        return []
    if row.critical_parts.get("dma", 0.0) < 0.2 * row.critical_ns:
        return []
    pieces = "element by element" if row.run_bytes <= 4 else f"in runs of {row.run_bytes:.0f} bytes"
    return _of(
        row,
        totals,
        "short-runs",
        f"{size(row.dma_bytes)} are moved {pieces}, {row.descriptors:,.0f} descriptors of at least "
        f"{totals.machine['dma.elem_cost_ns']:.0f} ns each",
        row.short_ns,
        "Let the innermost dimension stay where it is: transpose or slice an outer one, or store the array in the "
        "order in which it is read; runs of 2 KiB and more reach full bandwidth.",
    )


def wide_parameters(row: Operator, totals: Totals) -> list[Finding]:
    """Parameters that are cast to a narrower type each time they are used."""
    dma = row.critical_parts.get("dma", 0.0)
    if row.lost_bytes < 0.2 * row.hbm_bytes or dma < 0.2 * row.critical_ns:
        return []
    wide = max(row.parameter_bytes, key=lambda dtype: row.parameter_bytes[dtype])
    types = " and ".join(row.product_types)
    return _of(
        row,
        totals,
        "wide-parameters",
        f"reads {size(row.parameter_bytes[wide])} of parameters in {wide} and multiplies in {types}",
        dma * row.lost_bytes / row.hbm_bytes,
        "Keep the parameters in the type of the products: cast the weights once, outside the program, or compile them "
        "in as constants.",
    )


def bandwidth(row: Operator, totals: Totals) -> list[Finding]:
    """Ops at the roofline of HBM."""
    reached = max(
        row.hbm_bytes / totals.machine["hbm.bw_per_core"],
        row.dma_bytes / (totals.machine["dma.engines"] * totals.machine["dma.bw_per_engine"]),
    )
    if row.critical_ns <= 0 or reached < 0.5 * row.critical_ns:
        return []
    rate = row.hbm_bytes / row.critical_ns
    # more than HBM gives: most of it is moved beside other ops, off the critical path
    how = f"at {rate:.0f} GB/s" if rate <= totals.machine["hbm.bw_per_core"] else "in part beside other ops"
    moved = f"moves {size(row.hbm_bytes)} through HBM {how}"
    if row.flops:
        cause = f"{moved}, with {row.flops / row.hbm_bytes:.0f} FLOPs a byte"
        remedy = "More work for each byte helps (a larger batch, so that weights serve more), or fewer bytes (bf16)."
    else:
        cause = f"{moved} and multiplies nothing with it"
        remedy = "It costs what its bytes cost: keep the array in 16 bits, or smaller, or let it not be made at all."
    return _of(row, totals, "bandwidth", cause, row.critical_ns, remedy)


def full_precision(row: Operator, totals: Totals) -> list[Finding]:
    """FP32 products, which take several passes."""
    ns = row.product_types.get("f32", 0.0)
    passes = totals.machine["pe.fp32_passes"]
    if ns < 0.3 * row.longest_ns or row.critical_parts.get("tensor", 0.0) < 0.2 * row.critical_ns:
        return []
    return _of(
        row,
        totals,
        "fp32-products",
        f"its products are FP32, which takes TensorE {passes:.0f} passes ({ns / 1e3:.1f} us)",
        min(ns, row.critical_parts.get("tensor", 0.0)) * (1 - 1 / passes),
        "Compile with --auto-cast matmult (bf16, or --auto-cast-type tf32 for 10 bits), or cast the operands.",
    )


def narrow_products(row: Operator, totals: Totals) -> list[Finding]:
    """Products that leave most of the array idle."""
    tensor = row.critical_parts.get("tensor", 0.0)
    if not row.full_rate_flops or tensor < 0.3 * row.critical_ns:
        return []
    used = row.flops / row.full_rate_flops
    if used >= NARROW:
        return []
    return _of(
        row,
        totals,
        "narrow-products",
        f"its products use {used:.0%} of TensorE's rows and columns",
        tensor * (1 - used),
        "Contract 128 elements at a time and keep 128 or more on either side: join small contractions (batch "
        "dimensions, heads, q/k/v) into one.",
    )


def transposes(row: Operator, totals: Totals) -> list[Finding]:
    """TensorE time that goes into transposing."""
    tensor = row.busy_ns.get("tensor", 0.0)
    if row.transpose_ns < TRANSPOSE_SHARE * tensor or row.critical_parts.get("tensor", 0.0) < 0.3 * row.critical_ns:
        return []
    return _of(
        row,
        totals,
        "transposes",
        f"{row.transpose_ns / tensor:.0%} of its TensorE time transposes operands, for the contracted dimension must "
        "lie on the partitions",
        row.transpose_ns,
        "Store that operand with the contracted dimension first (x @ w rather than x @ w.T), or make it a constant, "
        "which is laid out once.",
    )


def slow_engine(row: Operator, totals: Totals) -> list[Finding]:
    """Work on GpSimd, whose processors are slow."""
    ns = row.critical_parts.get("gpsimd", 0.0)
    if ns < 0.4 * row.critical_ns:
        return []
    return _of(
        row,
        totals,
        "gpsimd",
        f"{row.opcode or 'it'} runs on GpSimd, whose processors take several cycles an element",
        ns,
        "Use floating point or 16-bit types instead of 32-bit integers, fewer elements, or an op that the other "
        "engines have.",
    )


def elementwise(row: Operator, totals: Totals) -> list[Finding]:
    """Work on Vector and Scalar that nothing else hides."""
    ns = row.critical_parts.get("vector", 0.0) + row.critical_parts.get("scalar", 0.0)
    if ns < 0.5 * row.critical_ns:
        return []
    wide = max(row.compute_types, key=lambda dtype: row.compute_types[dtype], default="f32")
    each = ns / max(1, row.instructions)
    return _of(
        row,
        totals,
        "elementwise",
        f"Vector and Scalar work on {row.shape or 'its elements'} in {wide} ({row.instructions:,} instructions of "
        f"{each / 1e3:.2f} us) while nothing else can go on",
        ns,
        "Fewer passes over the elements help: simpler formulas, bf16 operands, or reductions of longer rows.",
    )


def latencies(row: Operator, totals: Totals) -> list[Finding]:
    """Chains of short instructions, each of which waits for the one before."""
    ns = row.critical_parts.get("latency", 0.0) + row.critical_parts.get("wait", 0.0)
    if ns < 0.5 * row.critical_ns:
        return []
    return _of(
        row,
        totals,
        "latency",
        f"its {row.instructions:,} instructions are short, and most of its time results are on the way from one to the "
        "next",
        ns,
        "Give each instruction more to do: larger tiles, several small arrays joined into one, a batch dimension.",
    )


def fixed_time(totals: Totals) -> list[Finding]:
    """Programs that are over before the device is warm."""
    fixed = totals.report.time_ns - totals.report.kernel_ns
    share = fixed / totals.time_ns if totals.time_ns else 0.0
    if share < FIXED_SHARE:
        return []
    cause = f"starting and ending the program takes {fixed / 1e3:.1f} us, however little it does"
    return [Finding("fixed-time", "", "", cause, fixed, share, "Put more steps into one program (lax.scan, a batch).")]


def spills(totals: Totals) -> list[Finding]:
    """Intermediate results in HBM."""
    summary = totals.report.summary
    reload, read = summary["spill_reload_bytes"], summary["hbm_read_bytes"]
    if not read or reload < SPILL_SHARE * read:
        return []
    top = max(totals.operators, key=lambda row: row.scratch_bytes, default=None)
    cost = (reload + summary["spill_save_bytes"]) / totals.machine["hbm.bw_per_core"]
    cost = min(cost, sum(row.critical_parts.get("dma", 0.0) for row in totals.operators))
    cause = f"intermediate results go through HBM: {size(reload)} are read again, {reload / read:.0%} of all reads"
    return [
        Finding(
            "spills",
            top.name if top else "",
            top.source if top else "",
            f"{cause} (this op moves {size(top.scratch_bytes)} of them)" if top else cause,
            cost,
            cost / totals.time_ns,
            "Smaller tiles of the batch fit SBUF (lax.map over slices of it), and so do 16-bit intermediates.",
        )
    ]


def collectives(totals: Totals) -> list[Finding]:
    """Exchanges with other devices."""
    rows = [row for row in totals.operators if row.critical_parts.get("collective")]
    ns = sum(row.critical_parts["collective"] for row in rows)
    if not rows:
        return []
    top = max(rows, key=lambda row: row.critical_parts["collective"])
    cause = f"exchanges with other devices ({len(rows)} ops) that nothing hides take {ns / 1e3:.1f} us, this one most"
    remedy = "Join small ones, send bf16, or let them overlap with work that does not need their result."
    return [Finding("collectives", top.name, top.source, cause, ns, ns / totals.time_ns, remedy)]


def barriers(totals: Totals) -> list[Finding]:
    """Loops and branches that run-time values decide."""
    if not totals.repeated:
        return []
    cause = f"{totals.repeated:,} iterations and cases of loops and branches each end in a barrier of all engines"
    cost = totals.barriers_ns
    remedy = "Do more in one iteration (unroll), or let the trip count be known at compile time."
    return [Finding("barriers", "", "", cause, cost, cost / totals.time_ns, remedy)]


def gaps(totals: Totals) -> list[Finding]:
    """Descriptors made by software, and function tables."""
    waited = totals.report.waited_ns
    found = []
    tables = sum(row.get("function table", 0.0) for row in waited.values())
    if tables:
        cause = f"ScalarE switches between tables of functions for {tables / 1e3:.1f} us"
        remedy = "Group equal functions: exp, log and tanh in turns are the costliest order."
        found.append(Finding("function-tables", "", "", cause, tables, tables / totals.time_ns, remedy))
    software = sum(row.get("descriptors", 0.0) for row in waited.values())
    if software:
        cause = (
            f"transfers at run-time addresses wait {software / 1e3:.1f} us for their descriptors, which software makes"
        )
        remedy = "Gather longer rows, or slice at places known at compile time."
        found.append(Finding("software-descriptors", "", "", cause, software, software / totals.time_ns, remedy))
    return found


OPERATOR_RULES: tuple[Callable[[Operator, Totals], list[Finding]], ...] = (
    short_runs,
    wide_parameters,
    bandwidth,
    full_precision,
    narrow_products,
    transposes,
    slow_engine,
    elementwise,
    latencies,
)
RUN_RULES: tuple[Callable[[Totals], list[Finding]], ...] = (fixed_time, spills, collectives, barriers, gaps)
