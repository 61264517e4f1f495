"""Cheap elementwise ops on large arrays, computed again in each kernel that needs them rather than kept in HBM.

Input: a computation that the passes have prepared. Output: the same with such an op once for each user, right before
it, and the set of these ops, which formation puts into their users' kernels. An op counts when it has one large
operand, which is in HBM anyway, and takes one instruction: a kernel that loads that operand instead of the op's result
moves as many bytes, nobody stores the result, and several of them need the operand once (hardware sheet 1.8: a byte to
HBM and back takes the DMA several times as long as an element takes Vector). So the differences from a mean or the
scaled values of a normalisation, which its gradient reads again, are not stored beside what they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from math import prod

from neuronx_cc.codegen.formation.graph import (
    ELEMENTWISE,
    base,
    computes_elementwise,
    reads,
    same_order,
    squeeze,
    suffix_reduction,
)
from neuronx_cc.codegen.maps.elementwise import ARITHMETIC
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import copy_for, defining_op, ops_of, users
from neuronx_cc.ir.scans import scan_of
from neuronx_cc.ir.types import FLOATS, NARROW, itemsize
from neuronx_cc.passes.analysis.stored import is_given, lies_in_hbm

Sums = Callable[[hlo.ReduceOp], int]
STREAMED_ELEMENTS = 1 << 20
"""Elements from which values go through HBM."""
CHEAP = frozenset(["convert", "negate", *ARITHMETIC])
"""Opcodes of one instruction on floats."""
SMALL = 64
"""How many times smaller an operand is that costs nothing to load."""
LONGEST_CHAIN = 3
"""Ops that are computed again after one another."""


def spread(
    computation: hlo.ComputationOp, sums_columns: Sums, without: Set[hlo.Operation] = frozenset()
) -> set[hlo.Operation]:
    """Give each user of a cheap op one of its own; the ops to compute where their users are.

    Ops ``without`` are no kernels of their own, and stay as they are. ``sums_columns``: whether a map takes a sum.
    """
    chains: dict[hlo.HloOp, int] = {}
    for op in ops_of(computation.block):
        if op.opcode in CHEAP and op not in without:
            length = _chain(op, chains, sums_columns)
            if 0 < length <= LONGEST_CHAIN:
                chains[op] = length
    found: set[hlo.Operation] = set(chains)
    for op in reversed(chains):
        for user in list(dict.fromkeys(users(op.result)))[1:]:
            found.add(copy_for(op, [user]))
    return found


def _chain(op: hlo.HloOp, chains: dict[hlo.HloOp, int], sums_columns: Sums) -> int:
    """Ops from what is in HBM to ``op``; 0 when it is not to be computed again."""
    shape = op.shape
    if (
        (shape.size < STREAMED_ELEMENTS and not _widens(op))
        or shape.dtype not in FLOATS
        or not all(_takes(u, shape, sums_columns) or _casts_itself(u, op) for u in users(op.result))
    ):
        return 0
    large = {operand for operand in op.sources if not _is_small(operand, shape.size)}
    if len(large) != 1:
        return 0
    operand = large.pop()
    source = base(operand)
    read = hlo.shape_of(source)
    if not same_order(operand, source) or read.size != shape.size:
        return 0
    if read.dtype not in FLOATS or itemsize(read.dtype) > itemsize(shape.dtype):
        return 0
    maker = defining_op(source)
    if isinstance(maker, hlo.HloOp) and maker in chains:
        return chains[maker] + 1 if squeeze(read.dims) == squeeze(shape.dims) else 0
    return 1 if _is_stored(source, sums_columns) else 0


def _widens(op: hlo.HloOp) -> bool:
    """Whether engines, or the DMA, do ``op`` as they read its operand, and no contraction does as it writes that."""
    widens = isinstance(op, hlo.ConvertOp) and op.shape.dtype == "f32" and hlo.shape_of(op.operand).dtype in NARROW
    return widens and not isinstance(base(op.sources[0]).owner, hlo.ContractionOp)


def _casts_itself(user: hlo.Operation, op: hlo.HloOp) -> bool:
    """Whether the kernel of ``user`` widens what it loads, so that it needs no ``op`` (``graph.is_load_cast``)."""
    loads = isinstance(user, hlo.DotOp | hlo.ConvolutionOp | hlo.ReduceOp) and len(user.operands) == 2
    return loads and _widens(op) and lies_in_hbm(op.sources[0])


def _is_small(operand: hlo.SSAValue, size: int) -> bool:
    source = base(operand)
    return isinstance(source.owner, hlo.ConstantOp) or prod(hlo.shape_of(source).dims) * SMALL <= size


def _takes(user: hlo.Operation, shape: hlo.Shape, sums_columns: Sums) -> bool:
    """Whether ``user`` may stand in the kernel that computes an operand of ``shape``."""
    if isinstance(user, hlo.ReduceOp):
        return suffix_reduction(user) > 0 or sums_columns(user) > 0
    return computes_elementwise(user) and squeeze(hlo.shape_of(user.results[0]).dims) == squeeze(shape.dims)


def _is_stored(value: hlo.SSAValue, sums_columns: Sums) -> bool:
    """Whether ``value`` is in HBM whatever its elementwise users do."""
    op = defining_op(value)
    if is_given(value) or not isinstance(op, hlo.HloOp):
        return True
    if isinstance(op, hlo.DotOp | hlo.ConvolutionOp):
        return len(list(value.uses)) > 1  # its only user may be added as its sums leave PSUM
    if op.opcode not in ELEMENTWISE and scan_of(op) is None:
        return True
    return any(not _takes(use.operation, hlo.shape_of(value), sums_columns) for use in reads(value))
