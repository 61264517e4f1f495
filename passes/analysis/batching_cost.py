"""Time and memory of a loop's iterations one after the other, and of all of them at once. No pass."""

from collections.abc import Container, Iterable, Sequence
from math import ceil, prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, Timing
from neuronx_cc.ir.scans import scan_of
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.analysis.loop_state import FREE

HBM_SHARE = 16
"""What all iterations make may take one of so many parts of HBM."""


def _is_free(op: hlo.HloOp) -> bool:
    return isinstance(op, (*FREE, hlo.GetTupleElementOp, hlo.TupleOp)) or op.shape.size <= 1


def busy(op: hlo.HloOp, timing: Timing) -> float:
    """Nanoseconds of an engine that ``op`` takes, whatever waits for it."""
    if _is_free(op):
        return 0.0
    sizes = timing.sizes
    if isinstance(op, hlo.DotOp):
        numbers, lhs = op.dims.data, hlo.shape_of(op.lhs)
        batch = prod(lhs.dims[axis] for axis in numbers.lhs_batch)
        inner = prod(lhs.dims[axis] for axis in numbers.lhs_contracting)
        rows = lhs.size // max(1, batch * inner)
        columns = op.shape.size // max(1, batch * rows)
        moving, still = max(rows, columns), min(rows, columns)
        column = timing.column(lhs.dtype if lhs.dtype in FLOATS else "f32")
        return batch * ceil(inner / sizes.rows) * ceil(still / sizes.columns) * moving * column
    size = max(hlo.shape_of(value).size for value in (*op.sources, op.results[0]))
    return timing.engine("tensor_tensor", Stream.VECTOR, ceil(size / sizes.partitions), ins=(F32, F32)).bound


def in_turn(ops: Iterable[hlo.HloOp], trips: int, timing: Timing) -> float:
    """Nanoseconds of ``trips`` iterations: each op waits for the one before it, the first for what is loaded."""
    each = 0.0
    moves = False
    for op in ops:
        moves |= isinstance(op, hlo.DynamicSliceOp | hlo.DynamicUpdateSliceOp | hlo.ScatterOp)
        each += 0.0 if _is_free(op) else busy(op, timing) + timing.latency(Stream.VECTOR)
    return trips * (each + moves * timing.transfer_latency)


def at_once(ops: Iterable[hlo.HloOp], timing: Timing) -> float:
    """Nanoseconds of ``ops``, each of which stores its result in HBM and loads it again."""
    made = [op for op in ops if not _is_free(op)]
    moved = sum(2 * op.shape.nbytes for op in made) / timing.dma_rate
    return sum(busy(op, timing) for op in made) + moved + 4 * timing.transfer_latency


def fits(ops: Sequence[hlo.HloOp], results: Container[hlo.Operation | None], timing: Timing) -> bool:
    """Whether what ``ops`` make fits HBM. What lies around a scan, in arrays as large, stays on chip range by range."""
    made = [op for op in ops if not _is_free(op)]
    scanned = {op.shape.size for op in made if scan_of(op) is not None}
    stored = [op for op in made if op in results or op.shape.size not in scanned or not _passes(op)]
    whole, kept = (sum(op.shape.nbytes for op in some) for some in (made, stored))
    return whole <= timing.sizes.hbm_bytes and kept * HBM_SHARE <= timing.sizes.hbm_bytes


def _passes(op: hlo.HloOp) -> bool:
    return isinstance(op, hlo.ElementwiseOp) or scan_of(op) is not None
