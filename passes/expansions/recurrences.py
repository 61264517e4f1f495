"""Updates ``c = outer(inner(a, c), b)`` of a loop's state, and the states that they give in all iterations.

An update is followed op by op from the carried value ``c``: what is added to it, what it is multiplied with, what it is
compared with, are arrays that hold these for all iterations along dim 0. Floats of 16 bits are taken as FP32: what a
loop rounds in every iteration is rounded once, as in sums of many terms; sums and products of integers wrap, and may be
combined in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.types import WIDE_FLOATS
from neuronx_cc.passes import find_scans
from neuronx_cc.passes.analysis.values import identity_of, same_number, splat_number
from neuronx_cc.passes.expansions import scans
from neuronx_cc.passes.expansions.build import Build, Value

SHORT = 16
"""Iterations whose elements of several neighbours in memory a partition holds well."""


@dataclass(frozen=True, slots=True)
class Update:
    """``outer(inner(a, c), b)``; without ``a`` or ``b`` that op is left out."""

    outer: type[hlo.HloOp] = hlo.AddOp
    inner: type[hlo.HloOp] = hlo.MultiplyOp
    a: Value | None = None
    b: Value | None = None

    @property
    def is_affine(self) -> bool:
        return self.outer is hlo.AddOp and (self.a is None or self.inner is hlo.MultiplyOp)

    @property
    def fold(self) -> tuple[type[hlo.HloOp], Value] | None:
        """The op and the array of an update that is one op on the carried value and an array; None of others."""
        if self.b is not None:
            return (self.outer, self.b) if self.a is None else None
        return None if self.a is None else (self.inner, self.a)


SAME = Update()


def step(build: Build, trips: int, op: hlo.HloOp, operands: list[Update | Value]) -> Update | None:
    """What ``op`` makes of carried values and arrays; None where no such update says it."""
    carried = [each for each in operands if isinstance(each, Update)]
    dtype, dims = op.shape.dtype, (trips, *op.shape.dims)
    dtype = "f32" if dtype in WIDE_FLOATS else dtype
    if isinstance(op, hlo.SelectOp):
        return _chosen(build, operands, dims) if dtype == "f32" else None
    if isinstance(op, hlo.ConvertOp | hlo.CopyOp):
        before = hlo.shape_of(op.operands[0]).dtype
        return carried[0] if before == op.shape.dtype or {before, op.shape.dtype} <= WIDE_FLOATS else None
    if isinstance(op, hlo.NegateOp) and dtype == "f32":
        return _scaled(build, carried[0], build.number(-1, dtype, dims))
    if len(operands) != 2:
        return None
    if len(carried) == 2:
        return _both(build, op, carried, dims) if dtype == "f32" else None
    (form,) = carried
    first = operands[0] is form
    other = operands[1] if first else operands[0]
    assert not isinstance(other, Update)
    if isinstance(op, hlo.MaximumOp | hlo.MinimumOp | hlo.AndOp | hlo.OrOp):
        return _limited(build, form, type(op), other)
    if dtype != "f32":
        kind = type(op)
        if kind not in (hlo.AddOp, hlo.MultiplyOp) or dtype == "pred" or dtype not in ("s32", "u32"):
            return None
        return _limited(build, form, kind, other)
    return _moved(build, form, op, other, first)


def _limited(build: Build, form: Update, kind: type[hlo.HloOp], other: Value) -> Update | None:
    """A fold of ``kind`` with ``other`` after ``form``."""
    if form == SAME:
        return Update(outer=kind, b=other)
    if form.outer is kind and form.b is not None and (form.a is None or kind is not hlo.AddOp):
        return replace(form, b=build.each(kind, form.b, other))
    adds = form.outer is hlo.AddOp and form.a is None
    if adds and kind in (hlo.MaximumOp, hlo.MinimumOp) and hlo.shape_of(other).dtype == "f32":
        return Update(kind, hlo.AddOp, form.b, other)
    return None


def _moved(build: Build, form: Update, op: hlo.HloOp, other: Value, first: bool) -> Update | None:
    """Sums, differences, products and quotients of FP32."""
    if isinstance(op, hlo.AddOp):
        if not form.is_affine:
            return _past(build, form, other)
        return replace(form, b=other if form.b is None else build.add(form.b, other))
    if isinstance(op, hlo.SubtractOp):
        if not form.is_affine:
            return _past(build, form, build.neg(other)) if first else None
        if first:
            return replace(form, b=build.neg(other) if form.b is None else build.sub(form.b, other))
        negated = _scaled(build, form, build.number_like(-1, other))
        return None if negated is None else replace(negated, b=other if form.b is None else build.sub(other, form.b))
    if isinstance(op, hlo.MultiplyOp):
        return _scaled(build, form, other)
    if isinstance(op, hlo.DivideOp) and first:
        return _scaled(build, form, build.div(build.number_like(1, other), other))
    return None


def _past(build: Build, form: Update, other: Value) -> Update | None:
    """``other`` added to a greatest or least value: added to both sides."""
    if form.outer not in (hlo.MaximumOp, hlo.MinimumOp) or form.b is None:
        return None
    a = other if form.a is None else build.add(form.a, other)
    return Update(form.outer, hlo.AddOp, a, build.add(form.b, other))


def _scaled(build: Build, form: Update, factor: Value) -> Update | None:
    if not form.is_affine:
        return None
    a = factor if form.a is None else build.mul(form.a, factor)
    return Update(a=a, b=None if form.b is None else build.mul(form.b, factor))


def _parts(build: Build, form: Update, dims: tuple[int, ...]) -> tuple[Value, Value]:
    a = build.number(1, "f32", dims) if form.a is None else form.a
    return a, build.number(0, "f32", dims) if form.b is None else form.b


def _both(build: Build, op: hlo.HloOp, carried: list[Update], dims: tuple[int, ...]) -> Update | None:
    """Sums and differences of two updates of the same value."""
    left, right = carried
    if not isinstance(op, hlo.AddOp | hlo.SubtractOp) or not (left.is_affine and right.is_affine):
        return None
    parts = zip(_parts(build, left, dims), _parts(build, right, dims), strict=True)
    a, b = (build.each(type(op), *pair) for pair in parts)
    return Update(a=a, b=None if left.b is None and right.b is None else b)


def _chosen(build: Build, operands: list[Update | Value], dims: tuple[int, ...]) -> Update | None:
    """One of two updates. What does not depend on the carried value has no factor: 0 would keep infinities."""
    chooser, *forms = operands
    updates = [form for form in forms if isinstance(form, Update) and form.is_affine]
    if isinstance(chooser, Update) or len(updates) < 2:
        return None
    a, b = (build.select(chooser, *pair) for pair in zip(*(_parts(build, each, dims) for each in updates), strict=True))
    unscaled, alone = (all(getattr(each, name) is None for each in updates) for name in ("a", "b"))
    return Update(a=None if unscaled else a, b=None if alone else b)


def _name(kind: type[hlo.HloOp]) -> str:
    """The opcode of a class of ops that has one."""
    (opcode,) = hlo.opcodes(kind)
    return opcode


def _is_repeated(array: Value) -> bool:
    op = defining_op(array)
    return isinstance(op, hlo.BroadcastOp) and hlo.shape_of(op.operand).rank > 0


@dataclass(frozen=True, slots=True)
class Line:
    """Dim 0 of stacked arrays: which end of it is the first iteration."""

    build: Build
    trips: int
    reverse: bool

    def at_start(self, array: Value, others: Value) -> Value:
        """``array`` in the first iteration, ``others`` in all that follow."""
        build, dims = self.build, hlo.shape_of(others).dims
        start = build.number(self.trips - 1 if self.reverse else 0, "s32", dims[:1])
        first = build.broadcast(build.compare(build.iota(dims[:1], 0), start, "EQ"), dims, [0])
        return build.select(first, array, others)

    def spread(self, value: Value) -> Value:
        """The same in all iterations."""
        dims = hlo.shape_of(value).dims
        return self.build.broadcast(value, (self.trips, *dims), range(1, len(dims) + 1))

    def before(self, initial: Value, states: Value) -> Value:
        """What the iterations find, of what they leave."""
        return scans.previous(self.build, states, 0, self.reverse, self.spread(initial))

    def last(self, states: Value) -> Value:
        end = 0 if self.reverse else self.trips - 1
        return self.build.reshape(self.build.slice(states, 0, end, end + 1), hlo.shape_of(states).dims[1:])

    def states(self, update: Update, initial: Value) -> Value | None:
        """What the iterations leave of a state that is ``initial`` at first."""
        build, module = self.build, self.build.module
        number, dtype = splat_number(initial, module), hlo.shape_of(initial).dtype
        if update.fold is not None:
            kind, array = update.fold
            name = _name(kind)
            neutral = identity_of(name, dtype)
            if neutral is None:
                return None
            if not same_number(number, neutral):
                array = self.at_start(build.each(kind, self.spread(initial), array), array)
            return self._flat([array], lambda flat: find_scans.running(build, flat[0], name, 0, self.reverse))
        if update.a is None or update.b is None:
            return self.spread(initial)
        outer, inner = _name(update.outer), _name(update.inner)
        if (outer, inner) not in scans.RECURRENCES:
            return None
        body = module.computation(scans.recurrence_body(build, outer, inner, dtype))
        before = self.spread(initial)
        if scans.is_whole(build, body, hlo.shape_of(update.b).dims, 0):
            name = body.computation_name
            return self._flat(
                [update.a, update.b, before],
                lambda flat: scans.insert(build, flat[:2], name, 0, self.reverse, 1, flat[2]),
            )
        start = build.each(update.outer, build.each(update.inner, update.a, before), update.b)
        arrays = [update.a, self.at_start(start, update.b)]
        return self._flat(arrays, lambda flat: scans.running(build, flat, body, 0, self.reverse)[1])

    def _flat(self, arrays: list[Value], scan: Callable[[list[Value]], Value | None]) -> Value | None:
        """``scan`` of arrays in the dims in which it takes least time.

        Few steps of many elements are whole runs of a partition; many are brought beside these
        (``passes.scans_in_rows``).
        """
        dims = hlo.shape_of(arrays[0]).dims
        size = prod(dims[1:])
        flat = dims
        if self.trips < SHORT and len(dims) > 1 and size % PARTITIONS == 0 and size > PARTITIONS:
            flat = (dims[0], PARTITIONS, size // PARTITIONS)
        if flat != dims and any(_is_repeated(array) for array in arrays):
            flat = dims  # what repeats along neighbours would be moved element by element
        result = scan([self.build.reshape(array, flat) for array in arrays])
        return None if result is None else self.build.reshape(result, dims)

    def total(self, update: Update, initial: Value) -> Value | None:
        """What the last iteration leaves of a fold, where nothing else is asked of it."""
        if update.fold is None:
            return None
        kind, array = update.fold
        neutral = identity_of(_name(kind), hlo.shape_of(initial).dtype)
        if neutral is None:
            return None
        return self.build.each(kind, initial, self.build.reduce(kind, array, [0], neutral))
