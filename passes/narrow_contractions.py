"""Contractions make only what is read of their results, and leave out terms that are zero.

Input: canonical hlo. Output: a contraction of which slices are read, past views, elementwise ops and folds, has these
elements alone; what lies between moves along. Where an operand is zero but in a box, as what is padded is, and the
other one is a finite constant, the contraction goes over that box. So layers that keep a few frequencies of a Fourier
transform, which is a contraction with a constant, compute these: first of the transform, then of the way back.

Exact: sums keep their terms but for zeros, which change none that begins with +0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule, SliceDim
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, insert_before, insert_constant, ops_of, replace
from neuronx_cc.ir.scans import scan_of
from neuronx_cc.passes.analysis.values import constant_of, splat_number
from neuronx_cc.passes.manager import PassContext, only_for

Value = hlo.SSAValue
Box = tuple[tuple[int, int], ...]
"""Of each dim the first element, and the one after the last."""

WORTH = 0.9
"""The part of a result up to which it is worth to make no more: odd sizes cost something, too."""
MOST_ELEMENTS = 1 << 22
"""Of a constant that is looked at."""


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        ops = list(ops_of(computation.block))
        if not any(isinstance(op, hlo.DotOp) for op in ops):
            continue
        if any(isinstance(op, hlo.PadOp | hlo.ConcatenateOp) for op in ops):
            _leave_zeros_out(module, ops)
        if any(isinstance(op, hlo.SliceOp) for op in ops_of(computation.block)):
            _narrow(module, computation)


def _whole(value: Value) -> Box:
    return tuple((0, size) for size in hlo.shape_of(value).dims)


def _hull(one: Box, other: Box) -> Box:
    """The smallest box around both; an empty one adds nothing."""
    if any(low >= high for low, high in one):
        return other
    if any(low >= high for low, high in other):
        return one
    return tuple((min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(one, other, strict=True))


def _volume(box: Box) -> int:
    return prod(high - low for low, high in box)


def _unit_dims_apart(dims: Sequence[int], others: Sequence[int]) -> list[tuple[int, int]] | None:
    """Pairs of dims that are the same ones, where only dims of size 1 come or go."""
    mine = [axis for axis, size in enumerate(dims) if size != 1]
    theirs = [axis for axis, size in enumerate(others) if size != 1]
    same = [dims[axis] for axis in mine] == [others[axis] for axis in theirs]
    return list(zip(mine, theirs, strict=True)) if same else None


# what is zero


def _leave_zeros_out(module: HloModule, ops: Sequence[hlo.HloOp]) -> None:
    """Slice contracted dims to where an operand is not zero, if the other one is a constant without infinities."""
    known: dict[Value, Box] = {}

    def of(value: Value) -> Box:
        return known.get(value) or _whole(value)

    for op in ops:
        if not isinstance(op.results[0].type, hlo.ArrayType):
            continue
        box = _support(module, op, of)
        if box is not None and box != _whole(op.results[0]) and all(low < high for low, high in box):
            known[op.results[0]] = box
        if isinstance(op, hlo.DotOp):
            _contract_boxes(module, op, of)


def _support(module: HloModule, op: hlo.HloOp, of: Callable[[Value], Box]) -> Box | None:
    """A box around all elements of the result of ``op`` that may not be zero; None without one."""
    match op:
        case hlo.PadOp() if splat_number(op.rhs, module) == 0:
            if any(dim.low < 0 or dim.high < 0 or dim.interior for dim in op.padding.data):
                return None
            inner = zip(of(op.lhs), op.padding.data, strict=True)
            return tuple((low + dim.low, high + dim.low) for (low, high), dim in inner)
        case hlo.ConcatenateOp():
            return _of_pieces(module, op, of)
        case hlo.TransposeOp():
            inner_box = of(op.operand)
            return tuple(inner_box[axis] for axis in op.dimensions.data)
        case hlo.ReshapeOp():
            pairs = _unit_dims_apart(op.shape.dims, hlo.shape_of(op.operand).dims)
            inner_box = of(op.operand)
            found = dict(pairs or ())
            return (
                None
                if pairs is None
                else tuple(inner_box[found[axis]] if axis in found else (0, 1) for axis in range(op.shape.rank))
            )
        case hlo.SliceOp():
            boxes = zip(of(op.operand), op.slice.data, strict=True)
            if any(dim.stride != 1 for dim in op.slice.data):
                return None
            return tuple(
                (max(low, dim.start) - dim.start, min(high, dim.limit) - dim.start) for (low, high), dim in boxes
            )
        case hlo.NegateOp() | hlo.ConvertOp():
            return of(op.operands[0])
        case hlo.AddOp() | hlo.SubtractOp():
            return _hull(of(op.operands[0]), of(op.operands[1]))
        case hlo.DotOp():
            return _of_sums(module, op, of)
    return None


def _of_pieces(module: HloModule, op: hlo.ConcatenateOp, of: Callable[[Value], Box]) -> Box | None:
    axis, at, found = op.dimension.data, 0, None
    for piece in op.operands:
        size = hlo.shape_of(piece).dims[axis]
        if splat_number(piece, module) != 0:
            box = of(piece)
            placed = (*box[:axis], (box[axis][0] + at, box[axis][1] + at), *box[axis + 1 :])
            found = placed if found is None else _hull(found, placed)
        at += size
    return found


def _of_sums(module: HloModule, op: hlo.DotOp, of: Callable[[Value], Box]) -> Box | None:
    """Along free dims of an operand beside a finite constant, sums of zeros are zero."""
    dims, box = op.dims.data, list(_whole(op.result))
    batch = len(dims.lhs_batch)
    sides = (op.lhs, dims.lhs_contracting, dims.lhs_batch), (op.rhs, dims.rhs_contracting, dims.rhs_batch)
    place = batch
    for (value, contracted, batches), (other, _, _) in zip(sides, reversed(sides), strict=True):
        finite = _is_finite(module, other)
        for axis, part in enumerate(of(value)):
            if axis in contracted or axis in batches:
                continue
            if finite:
                box[place] = part
            place += 1
    return tuple(box)


def _is_finite(module: HloModule, value: Value) -> bool:
    array = constant_of(value, module)
    return array is not None and array.size <= MOST_ELEMENTS and bool(np.isfinite(array.astype(np.float64)).all())


def _contract_boxes(module: HloModule, op: hlo.DotOp, of: Callable[[Value], Box]) -> None:
    dims = op.dims.data
    boxes = [list(_whole(value)) for value in op.operands]
    for axes in zip(dims.lhs_contracting, dims.rhs_contracting, strict=True):
        for side in (0, 1):
            part, whole = of(op.operands[side])[axes[side]], boxes[side][axes[side]]
            if part[1] - part[0] < whole[1] - whole[0] and _is_finite(module, op.operands[1 - side]):
                for each in (0, 1):
                    boxes[each][axes[each]] = part
    for side, box in enumerate(boxes):
        op.operands[side] = _cut(module, op, op.operands[side], tuple(box))


# what is read


def _narrow(module: HloModule, computation: hlo.ComputationOp) -> None:
    ops = list(ops_of(computation.block))
    wanted: dict[Value, Box] = {computation.root: _whole_or_none(computation.root)}
    for op in reversed(ops):
        box = wanted.get(op.results[0])
        if not isinstance(op.results[0].type, hlo.ArrayType):
            box = None
        if (
            box is not None
            and isinstance(op, hlo.DotOp)
            and (_volume(box) > WORTH * op.shape.size or _cuts_scan(op, box))
        ):
            box = wanted[op.results[0]] = _whole(op.results[0])
        demands = [None] * len(op.operands) if box is None else _demands(op, box)
        for operand, demand in zip(op.operands, demands, strict=True):
            if isinstance(operand.type, hlo.ArrayType):
                needed = demand or _whole(operand)
                wanted[operand] = _hull(wanted[operand], needed) if operand in wanted else needed
    made: dict[Value, tuple[Value, Box]] = {}
    for op in ops:
        result = op.results[0]
        box = wanted.get(result)
        if box is None or not isinstance(result.type, hlo.ArrayType):
            continue
        chosen = isinstance(op, hlo.DotOp) and box != _whole(result)
        if not chosen and not any(operand in made for operand in op.operands):
            continue
        demands = _demands(op, box)
        operands = [
            _cut(module, op, operand, demand, made) if demand is not None else operand
            for operand, demand in zip(op.operands, demands, strict=True)
        ]
        new = _rebuilt(op, operands, box)
        if box == _whole(result):
            replace(op, new)
        else:
            made[result] = new, box


def _whole_or_none(value: Value) -> Box:
    return _whole(value) if isinstance(value.type, hlo.ArrayType) else ()


def _demands(op: hlo.HloOp, box: Box) -> list[Box | None]:
    """What ``op`` reads of each operand for a box of its result; None for all of it."""
    match op:
        case hlo.SliceOp():
            parts = zip(box, op.slice.data, strict=True)
            return [tuple((d.start + low * d.stride, d.start + (high - 1) * d.stride + 1) for (low, high), d in parts)]
        case hlo.TransposeOp():
            order = op.dimensions.data
            return [tuple(box[order.index(axis)] for axis in range(len(order)))]
        case hlo.ReshapeOp():
            pairs = _unit_dims_apart(hlo.shape_of(op.operand).dims, op.shape.dims)
            found = dict(pairs or ())
            rank = hlo.shape_of(op.operand).rank
            return [None if pairs is None else tuple(box[found[a]] if a in found else (0, 1) for a in range(rank))]
        case hlo.BroadcastOp():
            sizes = hlo.shape_of(op.operand).dims
            placed = zip(sizes, op.dimensions.data, strict=True)
            return [tuple(box[axis] if size == op.shape.dims[axis] else (0, size) for size, axis in placed)]
        case hlo.DotOp():
            return _of_operands(op, box)
        case hlo.ReduceOp() if len(op.operands) == 2:
            kept, whole = iter(box), _whole(op.operands[0])
            folded = op.dimensions.data
            return [tuple(part if axis in folded else next(kept) for axis, part in enumerate(whole)), None]
        case hlo.ElementwiseOp():
            return [box if hlo.shape_of(each).dims == op.shape.dims else None for each in op.operands]
    return [None] * len(op.operands)


def _cuts_scan(op: hlo.DotOp, box: Box) -> bool:
    """Whether ``box`` leaves steps of a scan out, all of which are made; with the contraction no state is stored."""
    for operand, demand in zip(op.operands, _of_operands(op, box), strict=True):
        maker = defining_op(operand)
        scan = scan_of(maker) if maker is not None else None
        if scan is not None and demand is not None and demand[scan.axis] != _whole(operand)[scan.axis]:
            return True
    return False


def _of_operands(op: hlo.DotOp, box: Box) -> list[Box | None]:
    dims, place, found = op.dims.data, len(op.dims.data.lhs_batch), list[Box | None]()
    for value, contracted, batches in (
        (op.lhs, dims.lhs_contracting, dims.lhs_batch),
        (op.rhs, dims.rhs_contracting, dims.rhs_batch),
    ):
        part = list(_whole(value))
        for axis in range(len(part)):
            if axis in batches:
                part[axis] = box[batches.index(axis)]
            elif axis not in contracted:
                part[axis] = box[place]
                place += 1
        found.append(tuple(part))
    return found


def _cut(
    module: HloModule,
    anchor: hlo.HloOp,
    value: Value,
    box: Box,
    made: dict[Value, tuple[Value, Box]] | None = None,
) -> Value:
    """Elements ``box`` of ``value``, above ``anchor``; of a transpose, the transpose of a part."""
    start: Box = _whole(value)
    if made is not None and value in made:
        value, start = made[value]
    if box == start:
        return value
    inner = defining_op(value)
    if isinstance(inner, hlo.TransposeOp) and start == _whole(value):
        (part,) = _demands(inner, box)
        assert part is not None, "transposes know what they read"
        return _rebuilt(inner, [_cut(module, anchor, inner.operand, part)], box, anchor)
    array = constant_of(value, module)
    if array is not None and array.size <= MOST_ELEMENTS:
        taken = np.ascontiguousarray(array[tuple(slice(*each) for each in box)])
        return insert_constant(module, anchor, taken, hlo.shape_of(value).dtype, hlo.loc_of(value))
    parts = tuple(SliceDim(low - base, high - base) for (low, high), (base, _) in zip(box, start, strict=True))
    type_ = hlo.array_type(hlo.shape_of(value).dtype, tuple(high - low for low, high in box))
    return insert_before(anchor, hlo.SliceOp, (value,), type_, hlo.loc_of(value), {"slice": hlo.SliceAttr(parts)})


def _rebuilt(op: hlo.HloOp, operands: Sequence[Value], box: Box, anchor: hlo.HloOp | None = None) -> Value:
    """``op`` for a box of its result, of the parts of its operands that it needs, above ``anchor`` or itself."""
    type_ = hlo.array_type(op.shape.dtype, tuple(high - low for low, high in box))
    if isinstance(op, hlo.SliceOp):
        dims = zip(box, op.slice.data, strict=True)
        parts = tuple(SliceDim(0, (high - low - 1) * d.stride + 1, d.stride) for (low, high), d in dims)
        if all(dim == SliceDim(0, size) for dim, size in zip(parts, hlo.shape_of(operands[0]).dims, strict=True)):
            return operands[0]
        return insert_before(op, hlo.SliceOp, operands, type_, op.loc, {"slice": hlo.SliceAttr(parts)})
    copied = copy_op(op, operands, type_)
    block = op.parent
    assert block is not None
    block.insert_op_before(copied, anchor or op)
    return copied.results[0]
