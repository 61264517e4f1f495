"""Gathers whose rows are operands of contractions: a matrix for each number, as of the experts that tokens chose.

Contractions read such a matrix where it lies in the table; the others move rows together first.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.timing import Timing

Use = tuple[hlo.DotOp, int]
"""A contraction, and which of its operands."""
PASSES = 3
"""Of a row that is brought together: read, written, and read by the contraction."""


def listed_rows(op: hlo.GatherOp) -> tuple[int, int, int] | None:
    """Rows of the table, elements of one, and how many are taken, where each number takes one row of a matrix."""
    dims, shape = op.dims.data, hlo.shape_of(op.lhs)
    plain = dims.offset_dims == (1, 2) and dims.start_index_map == (0,) and not dims.operand_batching_dims
    if not plain or shape.rank != 2 or op.slice_sizes.data != (1, shape.dims[1]) or op.shape.rank != 3:
        return None
    return shape.dims[0], shape.dims[1], op.shape.dims[0]


def uses_of(op: hlo.GatherOp, timing: Timing) -> list[Use]:
    """The contractions that alone read ``op`` and take its rows one by one; none where moving them is faster."""
    rows = listed_rows(op)
    if rows is None or not reads_listed(timing, hlo.shape_of(op.lhs).nbytes // rows[0]):
        return []
    found: list[Use] = []
    for use in _ends(op.result):
        if use is None or not _apart(*use, rows[1]):
            return []
        found.append(use)
    return found


def _ends(value: hlo.SSAValue) -> Iterator[Use | None]:
    """What reads ``value``, past reshapes and casts; None for anything but contractions."""
    for use in value.uses:
        user = use.operation
        if isinstance(user, hlo.ReshapeOp | hlo.ConvertOp):
            yield from _ends(user.results[0])
        else:
            yield (user, use.index) if isinstance(user, hlo.DotOp) else None


def _apart(op: hlo.DotOp, index: int, row: int) -> bool:
    """Whether no dim of an operand lies in several rows of ``row`` elements, and terms of one sum lie in one."""
    dims = op.dims.data
    contracted = dims.lhs_contracting if index == 0 else dims.rhs_contracting
    inner = 1
    sizes = hlo.shape_of(op.operands[index]).dims
    for axis in reversed(range(len(sizes))):
        if inner >= row:
            if axis in contracted and sizes[axis] > 1:
                return False
        elif inner * sizes[axis] > row:
            return False
        inner *= sizes[axis]
    return any(sizes[axis] > 1 for axis in contracted)


def reads_listed(timing: Timing, nbytes: int) -> bool:
    """Whether software makes a descriptor for each partition sooner than a row of so many bytes is moved twice."""
    software = timing.sizes.partitions * float(timing.machine["dma.swdge_descriptor_ns"])
    return max(software, nbytes / timing.dma_rate) < PASSES * nbytes / timing.dma_rate
