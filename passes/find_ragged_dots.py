"""Recognises ragged contractions that arrive as masked ones, as ``lax.ragged_dot`` is lowered for CPUs.

Input: modules without calls. Output: ``ragged-dot`` in place of contractions with

* ``[groups, *dims]``, which is ``select(mask, broadcast(x), 0)``, and rhs, over groups, with each group's part of rhs;
* two such arrays of the same mask, with groups as a batch dim,

where ``mask`` is ``starts[group] <= position < ends[group]`` along one dim of ``x``, ``ends`` are the running sums of
sizes of groups, and ``starts`` all of these but the last, after a zero. The results are equal then, but where they
mean nothing: a size below zero is zero to ``ragged-dot``, and infinities of other groups do not become NaN.
"""

from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, insert_before, ops_of, replace
from neuronx_cc.passes.analysis.rows import counts_along
from neuronx_cc.passes.analysis.values import combiner_kind, splat_number
from neuronx_cc.passes.manager import PassContext, only_for

Value = hlo.SSAValue


@dataclass(frozen=True, slots=True)
class _Masked:
    """``x`` repeated for groups of ``sizes`` along the dim ``group``, zero but in its group's part of ``axis``."""

    x: Value
    sizes: Value
    group: int
    axis: int
    """Of ``x``."""

    def own(self, dim: int) -> int:
        """The dim of ``x`` that is this one with groups."""
        return dim - (dim > self.group)


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.DotOp) and op.algorithm is None:
                _rewrite(module, op)


def _rewrite(module: HloModule, op: hlo.DotOp) -> None:
    lhs = _masked(module, op.lhs)
    if lhs is None:
        return
    dims = op.dims.data
    if lhs.group in dims.lhs_contracting:
        _replace(op, lhs, op.rhs, _of_rows(dims, lhs))
    elif lhs.group == next(iter(dims.lhs_batch), None):
        rhs = _masked(module, op.rhs)
        if rhs is not None and rhs.sizes is lhs.sizes and dims.rhs_batch[0] == rhs.group:
            _replace(op, lhs, rhs.x, _of_terms(dims, lhs, rhs))


def _replace(op: hlo.DotOp, lhs: _Masked, rhs: Value, found: tuple[hlo.DotDims, tuple[int, ...]] | None) -> None:
    if found is None:
        return
    dims, groups = found
    properties = {name: attr for name, attr in op.properties.items() if name == "operand_precision"}
    properties |= {
        "dims": hlo.DotDimsAttr(dims),
        "ragged_dims": hlo.IntsAttr((lhs.axis,)),
        "group_dims": hlo.IntsAttr(groups),
    }
    operands = lhs.x, rhs, lhs.sizes
    replace(op, insert_before(op, hlo.RaggedDotOp, operands, op.results[0].type, op.loc, properties))


def _of_rows(dims: hlo.DotDims, lhs: _Masked) -> tuple[hlo.DotDims, tuple[int, ...]] | None:
    """Groups are contracted: the dims of the ragged contraction, and the dim of groups of rhs."""
    pairs = list(zip(dims.lhs_contracting, dims.rhs_contracting, strict=True))
    kept = [(lhs.own(left), right) for left, right in pairs if left != lhs.group]
    batch = tuple(map(lhs.own, dims.lhs_batch))
    if lhs.axis in (*batch, *(left for left, _ in kept)):
        return None
    contracting = tuple(left for left, _ in kept), tuple(right for _, right in kept)
    return hlo.DotDims(*contracting, batch, dims.rhs_batch), (dict(pairs)[lhs.group],)


def _of_terms(dims: hlo.DotDims, lhs: _Masked, rhs: _Masked) -> tuple[hlo.DotDims, tuple[int, ...]] | None:
    """Groups are the first batch dim, rows of both sides are contracted."""
    contracting = tuple(map(lhs.own, dims.lhs_contracting)), tuple(map(rhs.own, dims.rhs_contracting))
    if (lhs.axis, rhs.axis) not in zip(*contracting, strict=True):
        return None
    return hlo.DotDims(
        *contracting, tuple(map(lhs.own, dims.lhs_batch[1:])), tuple(map(rhs.own, dims.rhs_batch[1:]))
    ), ()


# ---- masks --------------------------------------------------------------------------------------------------------


def _masked(module: HloModule, value: Value) -> _Masked | None:
    op = defining_op(value)
    if not isinstance(op, hlo.SelectOp) or splat_number(op.operands[2], module) != 0:
        return None
    spread, mask = defining_op(op.operands[1]), defining_op(op.operands[0])
    if not isinstance(spread, hlo.BroadcastOp) or not isinstance(mask, hlo.AndOp):
        return None
    rank, places = op.shape.rank, spread.dimensions.data
    added = [dim for dim in range(rank) if dim not in places]
    if len(added) != 1 or list(places) != sorted(places):
        return None
    for first, second in ((mask.lhs, mask.rhs), (mask.rhs, mask.lhs)):
        starts, ends = _bound(first, "LE"), _bound(second, "LT", swapped=True)
        if starts is None or ends is None or starts[1:] != ends[1:] or starts[1] != added[0]:
            continue
        sizes = _summed(module, ends[0])
        if sizes is not None and _is_before(module, starts[0], ends[0]):
            return _Masked(spread.operand, sizes, added[0], places.index(starts[2]))
    return None


def _bound(value: Value, direction: str, swapped: bool = False) -> tuple[Value, int, int] | None:
    """A comparison of ``numbers[group]`` with a position, or of the latter with the former (``swapped``): the numbers,
    and along which dims they and positions stand.
    """
    op = defining_op(value)
    if not isinstance(op, hlo.CompareOp):
        return None
    mirrored = {"LE": "GE", "LT": "GT"}[direction]
    if op.direction.data == direction:
        numbers, position = (op.rhs, op.lhs) if swapped else (op.lhs, op.rhs)
    elif op.direction.data == mirrored:
        numbers, position = (op.lhs, op.rhs) if swapped else (op.rhs, op.lhs)
    else:
        return None
    spread, at = defining_op(numbers), counts_along(position)
    if not isinstance(spread, hlo.BroadcastOp) or len(spread.dimensions.data) != 1 or at is None:
        return None
    return spread.operand, spread.dimensions.data[0], at


def _summed(module: HloModule, value: Value) -> Value | None:
    """``sizes``, if these are their running sums."""
    op = defining_op(value)
    if not isinstance(op, hlo.ReduceWindowOp) or op.shape.rank != 1 or len(op.operands) != 2:
        return None
    (dim,), size = op.window.data, op.shape.dims[0]
    plain = (dim.size, dim.pad_low, dim.pad_high) == (size, size - 1, 0)
    plain = plain and dim.stride == dim.lhs_dilation == dim.rhs_dilation == 1
    if not plain or combiner_kind(op, module) != "add" or splat_number(op.operands[1], module) != 0:
        return None
    return op.operands[0]


def _is_before(module: HloModule, starts: Value, ends: Value) -> bool:
    """Whether ``starts`` is a zero and all ``ends`` but the last."""
    (count,) = hlo.shape_of(ends).dims
    if count == 1:
        return splat_number(starts, module) == 0
    op = defining_op(starts)
    if not isinstance(op, hlo.ConcatenateOp) or len(op.operands) != 2:
        return False
    first, others = op.operands[0], defining_op(op.operands[1])
    if hlo.shape_of(first).dims != (1,) or splat_number(first, module) != 0 or not isinstance(others, hlo.SliceOp):
        return False
    (dim,) = others.slice.data
    return others.operand is ends and (dim.start, dim.limit, dim.stride) == (0, count - 1, 1)
