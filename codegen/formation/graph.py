"""Kernels, and what the ops around them are: views, elementwise, given, contractions that take in an addition.

Reshape, transpose, broadcast, slice, reverse and bit casts are *views*: they only change how an array is addressed and
belong to no kernel.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import Any, TypeGuard, TypeVar

from neuronx_cc.ir import hlo
from neuronx_cc.ir.small_types import COMPUTED as NOT_OF_CORE
from neuronx_cc.ir.types import WIDE_FLOATS, bits
from neuronx_cc.passes.analysis.convolutions import is_grouped, is_kernel_gradient
from neuronx_cc.passes.analysis.stored import lies_in_hbm
from neuronx_cc.passes.decode_floats import is_taken_by_contractions

T = TypeVar("T")
VIEWS = hlo.opcodes(hlo.ViewOp, hlo.IdentityOp)
ELEMENTWISE = hlo.opcodes(hlo.ElementwiseOp) - VIEWS
_VIEWS = frozenset(hlo.OPCODES[opcode] for opcode in VIEWS)
_RETYPING_OPS = frozenset([hlo.BitcastConvertOp, hlo.ConvertOp])
FREE = frozenset(["constant", "iota"])
"""Ops regenerated wherever they are used."""


@dataclass(slots=True, eq=False)
class Kernel:
    """``shape``: a map kernel's iteration space without size-1 dims, of which the trailing ``reduced`` are reduced.

    Reduced dims of its ops that others follow come last in the space all the same: see ``order``.
    """

    number: int
    ops: list[hlo.HloOp] = field(default_factory=list)
    shape: tuple[int, ...] = ()
    reduced: int = 0
    is_map: bool = False
    folded: int = 0
    """How many leading axes of ``shape`` its column sums fold, all of them for sums of everything; 0 without any."""
    scanned: int = -1
    """The axis of ``shape`` along which scans of a map kernel run; each tile holds all of it."""
    order: tuple[int, ...] = ()
    """The dim of its ops, without size-1 dims, that each axis is, those that are reduced last; in order where empty."""
    joined: tuple[int, ...] = ()
    """How many such dims each axis of ``shape`` is: one each where empty."""
    together: object = None
    """What the ops are together: an attention (``codegen.attention``), a chain (``codegen.chains``) or nothing."""

    @property
    def kind(self) -> str:
        """In the names of kernels."""
        if self.together is not None:
            return type(self.together).__name__.lower()
        return "map" if self.is_map else self.ops[0].opcode

    @property
    def rows(self) -> tuple[int, ...]:
        return self.shape[: len(self.shape) - self.reduced] if self.reduced else self.shape

    @property
    def dims(self) -> tuple[int, ...]:
        """Of its ops, without size-1 dims, before axes are joined."""
        return tuple(self.shape[self.order.index(dim)] for dim in range(len(self.order))) or self.shape

    def in_order(self, dims: Sequence[T]) -> Sequence[T]:
        """What belongs to the ``dims`` of a value, without those of size 1, in the order of the axes."""
        return [dims[dim] for dim in self.order] if len(dims) == len(self.order) else dims

    def sums_columns(self, op: object) -> TypeGuard[hlo.ReduceOp]:
        """Whether ``op`` is one of its column sums."""
        if not self.folded or not isinstance(op, hlo.ReduceOp):
            return False
        return op.shape.size == 1 if self.folded == len(self.shape) else not suffix_reduction(op)

    def folds_rows(self, op: object) -> TypeGuard[hlo.ReduceOp]:
        """Whether ``op`` folds rows of each tile."""
        return isinstance(op, hlo.ReduceOp) and not self.sums_columns(op)

    def is_row(self, shape: hlo.Shape) -> bool:
        """Whether a value of the kernel has one element for each row that is reduced."""
        count = len(self.shape) - self.reduced
        return self.reduced > 0 and len(squeeze(shape.dims)) == (sum(self.joined[:count]) if self.joined else count)

    def axis_of(self, dims: tuple[int, ...], dim: int) -> int:
        """The axis that dim number ``dim`` of an op's ``dims`` is part of; -1 for a dim of size 1."""
        if dims[dim] == 1:
            return -1
        place = self.in_order(range(len(squeeze(dims)))).index(len(squeeze(dims[:dim])))
        return next(axis for axis, end in enumerate(accumulate(self.joined)) if place < end) if self.joined else place


def is_place(value: hlo.SSAValue) -> bool:
    """Whether ``value`` counts along the rows of a sort, which makes such an operand where it sorts."""
    op = value.owner
    if isinstance(op, hlo.BroadcastOp) and op.dimensions.data == (1,):
        op = op.operand.owner
        return isinstance(op, hlo.IotaOp) and op.shape.rank == 1
    return isinstance(op, hlo.IotaOp) and op.iota_dimension.data == 1


def counts_itself(use: Any) -> bool:
    """Whether a sort makes the operand ``use`` itself."""
    user = use.operation
    if isinstance(user, hlo.BroadcastOp):
        return all(counts_itself(further) for further in user.result.uses)
    return isinstance(user, hlo.SortOp) and is_place(user.operands[use.index])


def squeeze(dims: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in dims if size != 1)


def is_view(op: hlo.Operation) -> TypeGuard[hlo.HloOp]:
    """True for ops that only change how an array is addressed."""
    kind = type(op)
    return kind in _VIEWS or (kind in _RETYPING_OPS and _keeps_bytes(op))  # type: ignore[arg-type]  # HLO ops only


def _keeps_bytes(op: hlo.HloOp) -> bool:
    """Whether the bytes of the operand, read as another type, are the result."""
    source, target = hlo.shape_of(op.sources[0]), op.shape
    if op.opcode == "bitcast-convert":
        return target.dims == source.dims and hlo.itemsize(target.dtype) == hlo.itemsize(source.dtype)
    return bits(source.dtype) < 8 or bits(target.dtype) < 8  # passes.widen_small_types


def elements(value: hlo.SSAValue) -> dict[int, list[hlo.SSAValue]]:
    """Index -> the ``get-tuple-element``s of a tuple."""
    found: dict[int, list[hlo.SSAValue]] = {}
    for use in value.uses:
        if isinstance(use.operation, hlo.GetTupleElementOp):
            found.setdefault(use.operation.index.data, []).append(use.operation.result)
    return found


def operands_of(op: hlo.HloOp) -> list[hlo.SSAValue]:
    """Operands, with those of ``tuple`` ops in place of the tuples."""
    found: list[hlo.SSAValue] = []
    for operand in op.sources:
        found += operand.owner.sources if isinstance(operand.owner, hlo.TupleOp) else [operand]
    return found


def is_load_cast(op: hlo.Operation, epilogues: Set[hlo.Operation] = frozenset()) -> bool:
    """A cast to a float of what lies in HBM that only contractions read, as operands or in their ``epilogues``, or
    reductions that no map takes: these load what is stored, and cast it.

    8-bit integers are for products and the kernels of convolutions, which engines convert: what adds up, or loads
    windows, knows floats only.
    """
    if not isinstance(op, hlo.ConvertOp):
        return False
    if not lies_in_hbm(op.operand):
        return False
    stored = hlo.shape_of(op.operand).dtype
    if stored in NOT_OF_CORE:
        return is_taken_by_contractions(op)
    if stored in ("s8", "u8"):
        return op.shape.dtype in WIDE_FLOATS and all(map(_converts, op.result.uses))
    floats = {"f32", "bf16", "f16", "f8e4m3", "f8e5m2"}
    return {op.shape.dtype, stored} <= floats and all(
        isinstance(use.operation, hlo.DotOp | hlo.ConvolutionOp)
        or _is_folded(use.operation, use.index)
        or _is_read(use, epilogues)
        for use in op.result.uses
    )


def _converts(use: Any) -> bool:
    """Whether a contraction converts the operand ``use`` of 8 bits as it comes."""
    op = use.operation
    if isinstance(op, hlo.ConvolutionOp):
        return use.index == 1 and not is_grouped(op) and not is_kernel_gradient(op)
    return isinstance(op, hlo.DotOp)


def _is_folded(op: hlo.Operation, operand: int) -> bool:
    """Whether ``operand`` is the array of a reduction that no map takes."""
    return isinstance(op, hlo.ReduceOp) and len(op.sources) == 2 and operand == 0 and not suffix_reduction(op)


def base(value: hlo.SSAValue) -> hlo.SSAValue:
    """The value whose storage ``value`` is a view of."""
    while isinstance(value, hlo.OpResult) and is_view(value.op):
        value = value.op.sources[0]
    return value


def repeats(value: hlo.SSAValue) -> bool:
    """Whether ``value`` is a view that has elements of an array several times."""
    return hlo.shape_of(base(value)).size < hlo.shape_of(value).size


def same_order(value: hlo.SSAValue, source: hlo.SSAValue) -> bool:
    """Whether ``value`` has the elements of ``source``, in that order, without moving any."""
    while value is not source:
        if not isinstance(value, hlo.OpResult) or not is_view(value.op):
            return False
        if value.op.opcode not in ("reshape", "copy", "opt-barrier", "bitcast"):
            return False
        value = value.op.sources[0]
    return True


def trace(value: hlo.SSAValue, kernel: Kernel, member: dict[hlo.SSAValue, Kernel]) -> hlo.SSAValue | None:
    """The value of map kernel ``kernel`` whose bits ``value`` has, up to size-1 dims and repetition along a row.

    None when ``value`` is not computed in the kernel, a column sum, or only reachable through a view that moves
    elements.
    """
    source = value
    while member.get(source) is not kernel:
        if not isinstance(source, hlo.OpResult) or not is_view(source.op):
            return None
        op = source.op
        outer = squeeze(op.shape.dims)
        source = op.sources[0]
        inner = squeeze(hlo.shape_of(source).dims)
        if isinstance(op, hlo.BroadcastOp):
            kept = [axis for axis, size in enumerate(op.shape.dims) if size != 1]
            mapped = [kept.index(axis) for axis in op.dimensions.data if axis in kept]
            along_row = kernel.is_row(hlo.shape_of(source)) and prod(outer) == prod(kernel.shape)
            rows = list(kernel.in_order(range(len(outer)))[: len(mapped)]) if along_row else [*range(len(mapped))]
            if mapped != rows or not (inner == outer or along_row):
                return None
        elif op.opcode not in ("reshape", "copy", "opt-barrier", "bitcast", "bitcast-convert") or inner != outer:
            return None
    return None if kernel.sums_columns(source.owner) else source  # which is there after all tiles


def suffix_reduction(op: hlo.ReduceOp) -> int:
    """How many trailing non-1 dims a single-operand reduction folds; 0 when it is of another form."""
    rank, folded = _folded(op)
    return len(folded) if folded == list(range(rank - len(folded), rank)) else 0


def inner_reduction(op: hlo.ReduceOp) -> list[int]:
    """The non-1 dims that a single-operand reduction folds, where others stand after them; else none."""
    rank, folded = _folded(op)
    return folded if folded and folded[-1] < rank - 1 else []


def prefix_reduction(op: hlo.ReduceOp) -> int:
    """How many leading non-1 dims a single-operand reduction folds, maybe all; 0 when it is of another form."""
    _, folded = _folded(op)
    return len(folded) if folded == list(range(len(folded))) else 0


def _folded(op: hlo.ReduceOp) -> tuple[int, list[int]]:
    """How many non-1 dims the operand of a reduction has, and which of them are folded; none with several operands."""
    dims = hlo.shape_of(op.sources[0]).dims
    kept = [axis for axis, size in enumerate(dims) if size != 1]
    alone = len(op.sources) == 2
    return len(kept), sorted(kept.index(axis) for axis in op.dimensions.data if alone and axis in kept)


def computes_elementwise(op: hlo.Operation) -> bool:
    return isinstance(op, hlo.HloOp) and op.opcode in ELEMENTWISE


def reads(value: hlo.SSAValue) -> list[Any]:
    """Uses of ``value``, also through views and tuples of it."""
    found: list[Any] = []
    for use in value.uses:
        passed_on = is_view(use.operation) or isinstance(use.operation, hlo.TupleOp)
        found += reads(use.operation.results[0]) if passed_on else [use]
    return found


def _is_read(use: Any, epilogues: Set[hlo.Operation]) -> bool:
    """Whether ops of ``epilogues`` read ``use``, maybe repeated along other dims."""
    op = use.operation
    if isinstance(op, hlo.BroadcastOp | hlo.ReshapeOp) and op not in epilogues:
        return all(_is_read(further, epilogues) for further in op.result.uses)
    return op in epilogues
