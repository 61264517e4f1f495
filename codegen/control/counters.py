"""Integers that follow from how often loops have been run: ``const + sum(coef * register)``.

A loop whose trip count is known counts in a register of every sequencer. Where the element of its state that counts,
and what is computed from it, only says where windows start, nothing has to compute it.
"""

from __future__ import annotations

from collections.abc import Callable

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine
from neuronx_cc.codegen.emission.views import View, coalesce
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace

Windowed = hlo.DynamicSliceOp | hlo.DynamicUpdateSliceOp


def note(context: Context, body: hlo.ComputationOp) -> None:
    """Extend ``context.counted`` by what ``body`` computes from values there."""
    for op in body.block.ops:
        found = _affine(context, op) if isinstance(op, hlo.HloOp) else None
        if found is not None:
            context.counted[op.results[0]] = found


def _affine(context: Context, op: hlo.HloOp) -> Affine | None:
    result = op.results[0].type
    if not isinstance(result, hlo.ArrayType) or result.data.dtype != "s32" or result.data.rank:
        return None
    terms = [_term(context, operand) for operand in op.operands]
    if any(term is None for term in terms) or not any(operand in context.counted for operand in op.operands):
        return None
    x = terms[0]
    y = terms[1] if len(terms) > 1 else None
    assert x is not None
    value: Affine | None = None
    match op:
        case hlo.ReshapeOp():
            value = x
        case hlo.NegateOp():
            value = x * -1
        case hlo.AddOp() if y is not None:
            value = x + y
        case hlo.SubtractOp() if y is not None:
            value = x + y * -1
        case hlo.MultiplyOp() if y is not None and not (x.terms and y.terms):
            value = x * y.const if x.terms else y * x.const
    if value is None:
        return None
    low, high = bounds(context, value)
    return value if low >= -(1 << 31) and high < 1 << 31 else None  # else it wraps


def _term(context: Context, value: hlo.SSAValue) -> Affine | None:
    if value in context.counted:
        return context.counted[value]
    number = context.splat(value)
    return Affine(number) if isinstance(number, int) else None


def bounds(context: Context, value: Affine) -> tuple[int, int]:
    """Least and greatest value over all counts."""
    low = high = value.const
    for register, coef in value.terms:
        reach = coef * (context.builder.sync.register_range[register] - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


def fits(context: Context, value: hlo.SSAValue, most: int) -> bool:
    """Whether ``value`` is known to lie in [0, most] in every iteration."""
    found = context.counted.get(value)
    if found is None:
        return False
    low, high = bounds(context, found)
    return low >= 0 and high <= most


def is_counted(context: Context, op: Windowed) -> bool:
    """Whether no start of the window needs a run-time value: each is constant, or a loop's count that stays inside."""
    return all(
        dim == size or context.splat(start) is not None or fits(context, start, dim - size)
        for start, dim, size in _cuts(op)
    )


def window(context: Context, op: Windowed, array: View, place: Callable[[hlo.SSAValue, int], Affine]) -> View | None:
    """Where a window lies in ``array``, clamped so that it fits; None, and nothing placed, where that cannot be cut so.

    ``place(start, most)``: a start that is no constant, in [0, ``most``].
    """
    found: View | None = array
    for axis, (_, dim, size) in enumerate(_cuts(op)):
        found = found.slice(axis, 0, size) if found is not None else None
        if found is None or (dim != size and len(coalesce(array.dims[axis])) > 1):
            return None
    assert found is not None, "every dim can be cut"
    for axis, (start, dim, size) in enumerate(_cuts(op)):
        if dim != size:
            constant, atoms = context.splat(start), coalesce(array.dims[axis])
            first = place(start, dim - size) if constant is None else Affine(min(max(int(constant), 0), dim - size))
            found = replace(found, start=found.start + first * (atoms[0].stride if atoms else 0))
    return found


def _cuts(op: Windowed) -> list[tuple[hlo.SSAValue, int, int]]:
    """For each dim of the array where the window starts, the array's size and the window's."""
    array, *rest = op.args
    sizes, starts = (op.shape, rest) if isinstance(op, hlo.DynamicSliceOp) else (hlo.shape_of(rest[0]), rest[1:])
    return list(zip(starts, hlo.shape_of(array).dims, sizes.dims, strict=True))


def covers(context: Context, op: hlo.DynamicUpdateSliceOp, trips: int) -> bool:
    """Whether the windows of ``trips`` iterations, for which ``is_counted``, are all of the array."""
    cut = [(start, dim, size) for start, dim, size in _cuts(op) if dim != size]
    if len(cut) != 1:
        return not cut
    start, dim, size = cut[0]
    place = context.counted.get(start)
    if place is None or len(place.terms) != 1 or trips * size != dim or abs(place.terms[0][1]) != size:
        return False
    return bounds(context, place) == (0, dim - size)


def unneeded(context: Context, body: hlo.ComputationOp, root: hlo.SSAValue | None) -> set[hlo.Operation]:
    """The ops of ``body`` whose numbers only say where windows start, or are the root's element ``root``."""
    found: set[hlo.Operation] = set()
    for op in reversed(list(body.block.ops)):
        if not op.results or op.results[0] not in context.counted:
            continue
        value = op.results[0]
        if all(
            use.operation in found
            or (value is root and isinstance(use.operation, hlo.TupleOp))
            or _places_window(context, use.operation, use.index)
            for use in value.uses
        ):
            found.add(op)
    return found


def _places_window(context: Context, op: hlo.Operation, index: int) -> bool:
    if isinstance(op, hlo.DynamicSliceOp):
        return index >= 1 and is_counted(context, op)
    return isinstance(op, hlo.DynamicUpdateSliceOp) and index >= 2 and is_counted(context, op)
