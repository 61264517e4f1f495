"""Sums over devices are made once: after the loop that adds up what is summed, after the additions of what is summed.

Input: ``flatten_control``'s form, collectives as ``resolve_collectives`` leaves them. A sum over devices commutes with
additions, movements and factors. So

* where a loop adds sums over devices to an element of its state, or writes them into it, and reads it for nothing else,
  the devices add up or write what each of them has, and there is one sum after the loop: gradients that are accumulated
  over parts of a batch, or stacked over the layers of a scan;
* where several such sums are added, their addends are, and there is one sum.

What an all-reduce hands to several readers, or to one that does not commute with it, stays where it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, has_one_use, insert_before, ops_of, replace
from neuronx_cc.passes.analysis.devices import device_counts
from neuronx_cc.passes.analysis.effects import has_effects
from neuronx_cc.passes.analysis.trip_count import count, element_of, trip_count
from neuronx_cc.passes.analysis.values import combiner_kind, is_float, splat_number
from neuronx_cc.passes.manager import PassContext
from neuronx_cc.passes.simplify_control import elements, packed


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is looked at."""

    module: HloModule
    body: hlo.ComputationOp | None = None
    """Of a loop; else None."""
    element: int = -1
    """The element of its state that holds what is summed later."""
    counter: int = -1
    """The element that counts, the same on all devices."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What a value is computed from."""

    ops: tuple[hlo.AllReduceOp, ...] = ()
    reads: int = 0
    """How often the loop's element is read."""

    def agrees(self, other: "Sums") -> bool:
        """Whether all of these sums and the others are over the same devices."""
        groups = [_groups(op) for op in (*self.ops, *other.ops)]
        return all(each == groups[0] for each in groups)


def run(module: HloModule, context: PassContext) -> None:
    if device_counts(module) == (1, 1):
        return
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.WhileOp):
                _delay(module, op)
        for op in reversed(list(ops_of(computation.block))):
            if isinstance(op, hlo.AddOp | hlo.SubtractOp):
                _merge(module, op)


def _merge(module: HloModule, op: hlo.HloOp) -> None:
    """One sum of ``op`` in the place of several of what it adds."""
    sums = _sums_in(op.results[0], Place(module), top=True)
    if sums is None or len(sums.ops) < 2 or op.next_op is None:
        return
    last = op.next_op
    first = sums.ops[0]
    kept = _kept(first)
    _bypass(sums.ops)
    result = op.results[0]
    readers = [(use.operation, use.index) for use in result.uses]
    total = insert_before(last, hlo.AllReduceOp, [result], result.type, first.loc, kept)
    for reader, index in readers:
        reader.operands[index] = total


def _delay(module: HloModule, loop: hlo.WhileOp) -> None:
    """Sums after ``loop`` in the place of those in it, element by element of its state."""
    if trip_count(loop, module) in (0, 1):
        return
    body = module.computation(loop.body.data[0])
    counted = count(loop, module)
    condition = elements(module.computation(loop.condition.data[0]).block.args[0])
    for index, (initial, result) in enumerate(zip(packed(loop.operand), packed(body.root), strict=True)):
        place = Place(module, body, index, -1 if counted is None else counted.index)
        inside = _sums_in(result, place)
        ahead = _sums_in(initial, Place(module))
        if inside is None or ahead is None or not inside.ops or index in condition:
            continue
        if inside.reads == _reads(body, index) and ahead.agrees(inside):
            _sum_after(loop, index, inside.ops[0])
            _bypass([*inside.ops, *ahead.ops])


def _reads(body: hlo.ComputationOp, index: int) -> int:
    """How often ``body`` reads the element."""
    return sum(len(list(each.results[0].uses)) for each in elements(body.block.args[0]).get(index, ()))


def _sum_after(loop: hlo.WhileOp, index: int, like: hlo.AllReduceOp) -> None:
    anchor = loop.next_op
    assert anchor is not None, "a block ends with a return"
    found = elements(loop.results[0]).get(index, [])
    if not found:
        return
    type_ = found[0].results[0].type
    properties = {"index": hlo.IntAttr(index)}
    element = insert_before(anchor, hlo.GetTupleElementOp, [loop.results[0]], type_, found[0].loc, properties)
    total = insert_before(anchor, hlo.AllReduceOp, [element], type_, like.loc, _kept(like))
    for each in found:
        replace(each, total)


def _sums_in(value: hlo.SSAValue, place: Place, top: bool = False) -> Sums | None:
    """The all-reduces after which ``value`` is made, if it may as well be made before one; None if not.

    All of them add over the same devices, and nothing else reads what lies between. ``top`` lets ``value`` have any
    readers.
    """
    module = place.module
    op = defining_op(value)
    if splat_number(value, module) == 0:
        return Sums()
    if not isinstance(op, hlo.HloOp) or not (top or has_one_use(value)):
        return None
    if isinstance(op, hlo.AllReduceOp):
        return Sums((op,)) if _adds(op, module) and not has_effects(op) else None
    if isinstance(op, hlo.GetTupleElementOp):
        is_state = place.body is not None and element_of(value, place.body) == place.element
        return Sums(reads=1) if is_state else None
    parts: list[hlo.SSAValue] = []
    if isinstance(op, hlo.ViewOp | hlo.NegateOp) and not isinstance(op, hlo.BroadcastOp):
        parts = [op.operands[0]]
    elif isinstance(op, hlo.AddOp | hlo.SubtractOp | hlo.ConcatenateOp):
        parts = list(op.operands)
    elif isinstance(op, hlo.MultiplyOp | hlo.DivideOp):
        parts = _scaled(op, module)
    elif isinstance(op, hlo.ConvertOp) and _widens(op):
        parts = [op.operands[0]]
    elif isinstance(op, hlo.DynamicUpdateSliceOp) and all(_is_counted(each, place) for each in op.operands[2:]):
        parts = list(op.operands[:2])
    found = Sums()
    for part in parts:
        sums = _sums_in(part, place)
        if sums is None or not sums.agrees(found):
            return None
        found = Sums((*found.ops, *sums.ops), found.reads + sums.reads)
    return found if parts else None


def _scaled(op: hlo.MultiplyOp | hlo.DivideOp, module: HloModule) -> list[hlo.SSAValue]:
    """What ``op`` scales, of which a sum may as well be scaled; nothing where there is no such factor or divisor.

    An infinite factor, or a divisor of 0, gives infinities of both signs for parts whose sum has one.
    """
    divides = isinstance(op, hlo.DivideOp)
    if divides and not is_float(hlo.shape_of(op.results[0]).dtype):
        return []
    for index in (1,) if divides else (1, 0):
        number = splat_number(op.operands[index], module)
        if number is not None and isfinite(number) and (number or not divides):
            return [op.operands[1 - index]]
    return []


def _adds(op: hlo.AllReduceOp, module: HloModule) -> bool:
    dtype = hlo.shape_of(op.results[0]).dtype
    return combiner_kind(op, module) == "add" and dtype != "pred" and op.replica_groups is not None


def _groups(op: hlo.AllReduceOp) -> list[tuple[int, ...]]:
    assert op.replica_groups is not None
    return sorted(tuple(sorted(group)) for group in op.replica_groups.data)


def _widens(op: hlo.ConvertOp) -> bool:
    """Whether a cast loses nothing, and so neither does a sum after it."""
    return (hlo.shape_of(op.operands[0]).dtype, hlo.shape_of(op.results[0]).dtype) in (("bf16", "f32"), ("f16", "f32"))


def _is_counted(value: hlo.SSAValue, place: Place, depth: int = 8) -> bool:
    """Whether a place is the same on all devices: it depends on constants and the loop's counter alone."""
    if splat_number(value, place.module) is not None:
        return True
    if place.body is not None and element_of(value, place.body) == place.counter:
        return True
    op = defining_op(value)
    if depth == 0 or not isinstance(op, hlo.ElementwiseOp | hlo.ReshapeOp):
        return False
    return all(_is_counted(operand, place, depth - 1) for operand in op.operands)


def _bypass(sums: Iterable[hlo.AllReduceOp]) -> None:
    for op in sums:
        replace(op, op.operands[0])


def _kept(op: hlo.AllReduceOp) -> dict[str, hlo.Attribute]:
    assert op.replica_groups is not None
    return {"to_apply": op.to_apply, "replica_groups": op.replica_groups}
