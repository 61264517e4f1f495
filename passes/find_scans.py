"""Finds running folds that arrive as trees of slices, such as ``lax.associative_scan``, and makes each one op.

Input: an inlined module. Output: an array whose element t along a dim is the fold of the elements 0 to t of others, by
one operator or by the steps of a recurrence ``h = a h + b`` (also ``max(a + h, b)``), comes from a ``reduce-window`` or
a scan (``passes.expansions.scans``); the tree is left to ``dce``.

The proof does not depend on the tree's form. Every value of the tree is followed position by position: which elements,
from which to which, its elements are the fold of. Slices, pads, and concatenations move such spans; operators join
spans that touch. The order in which floats are combined changes with that, as a scan's author allows; sequential folds
also pass over products that overflow inside the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule, WindowDim
from neuronx_cc.ir.hlo.editing import defining_op, insert_constant, ops_of
from neuronx_cc.ir.hlo.editing import replace as replace_op
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE
from neuronx_cc.passes.analysis.values import identity_of, splat_number
from neuronx_cc.passes.analysis.windows import PLAIN
from neuronx_cc.passes.expansions import scans
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

Places = np.ndarray[Any, np.dtype[np.int64]]


@only_for(hlo.PadOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        trees: dict[tuple[int, int], _Tree] = {}
        done: set[hlo.Operation] = set()
        for op in reversed(list(ops_of(computation.block))):
            axis = -1 if op in done else interleaved(op, module)
            if axis < 0:
                continue
            size = op.shape.dims[axis]
            tree = trees.setdefault((axis, size), _Tree(module, axis, size))
            found = tree.combined(op)
            if found is None or not _is_running(found, size):
                continue
            result = _emit(Build.before(module, op, context.timing), found, axis)
            if result is not None:
                done |= tree.inside(op)
                replace_op(op, result)


def interleaved(op: hlo.HloOp, module: HloModule) -> int:
    """The dim along which ``op`` joins two arrays, the elements of one between those of the other; else -1."""
    if not isinstance(op, hlo.AddOp | hlo.OrOp):
        return -1
    pads = [defining_op(operand) for operand in op.operands]
    axes = {axis for pad in pads for axis in _gaps(pad, module)}
    return axes.pop() if len(axes) == 1 and all(pad is not None for pad in pads) else -1


def _gaps(op: hlo.Operation | None, module: HloModule) -> list[int]:
    """Dims that ``op`` pads between elements with zeros; [-1] for other ops."""
    if not isinstance(op, hlo.PadOp) or splat_number(op.rhs, module) != 0:
        return [-1]
    return [axis for axis, dim in enumerate(op.padding.data) if dim != hlo.PadDim(0, 0)] or [-1]


@dataclass(frozen=True)
class Spans:
    """For each position along the dim: a fold of the elements ``low`` to ``high``; low is -1 where there is nothing.

    ``first``: the array folded, or the factors of a recurrence; ``inner`` its operator, "" where spans are single.
    ``second``: the terms of a recurrence, of operators ``outer`` and ``inner``. ``middle``: the carried value of a
    recurrence, before the term from there on is added.
    """

    low: Places
    high: Places
    first: Value
    inner: str = ""
    second: Value | None = None
    outer: str = ""
    middle: Places | None = None

    def at(self, chosen: Any) -> Spans:
        middle = None if self.middle is None else self.middle[chosen]
        return replace(self, low=self.low[chosen], high=self.high[chosen], middle=middle)

    @property
    def is_single(self) -> bool:
        return not self.inner

    @property
    def is_fold(self) -> bool:
        return self.second is None


def _is_running(spans: Spans, size: int) -> bool:
    whole = bool((spans.low == 0).all() and (spans.high == np.arange(size)).all())
    return whole and spans.middle is None and not spans.is_single


@dataclass
class _Tree:
    """The values between the arrays of ``size`` elements along ``axis`` and what is made of them."""

    module: HloModule
    axis: int
    size: int
    known: dict[Value, Spans | None] = field(default_factory=dict)

    def spans(self, value: Value) -> Spans | None:
        if value not in self.known:
            self.known[value] = self._spans(value)
        return self.known[value]

    def inside(self, root: hlo.HloOp) -> set[hlo.Operation]:
        """The ops between ``root`` and the arrays."""
        found: set[hlo.Operation] = set()
        pending: list[hlo.Operation] = [root]
        while pending:
            op = pending.pop()
            found.add(op)
            for operand in op.operands:
                made = defining_op(operand)
                leaf = not isinstance(made, hlo.PadOp) and hlo.shape_of(operand).dims[self.axis :][:1] == (self.size,)
                if made is not None and made not in found and operand in self.known and not leaf:
                    pending.append(made)
        return found

    def _spans(self, value: Value) -> Spans | None:
        op, shape = defining_op(value), hlo.shape_of(value)
        if isinstance(op, hlo.PadOp):
            return self._padded(op)
        if shape.dims[self.axis] == self.size:
            places = np.arange(self.size)
            return Spans(places, places, value)
        if isinstance(op, hlo.SliceOp):
            return self._sliced(op)
        if isinstance(op, hlo.ConcatenateOp) and op.dimension.data == self.axis:
            return self._joined(op)
        return self.combined(op) if isinstance(op, hlo.CombinerOp) else None

    def _sliced(self, op: hlo.SliceOp) -> Spans | None:
        source, bounds = hlo.shape_of(op.operand), list(op.slice.data)
        cut = bounds.pop(self.axis)
        others = [size for axis, size in enumerate(source.dims) if axis != self.axis]
        if any((dim.start, dim.limit, dim.stride) != (0, size, 1) for dim, size in zip(bounds, others, strict=True)):
            return None
        spans = self.spans(op.operand)
        return None if spans is None else spans.at(slice(cut.start, cut.limit, cut.stride))

    def _padded(self, op: hlo.PadOp) -> Spans | None:
        padding = list(op.padding.data)
        dim = padding.pop(self.axis)
        if splat_number(op.rhs, self.module) != 0 or any(other != hlo.PadDim(0, 0) for other in padding):
            return None
        spans = self.spans(op.lhs)
        if spans is None or dim.low < 0 or dim.high < 0 or spans.middle is not None:
            return None
        low, high = (np.full(op.shape.dims[self.axis], -1) for _ in range(2))
        places = slice(dim.low, dim.low + (len(spans.low) - 1) * (dim.interior + 1) + 1, dim.interior + 1)
        low[places], high[places] = spans.low, spans.high
        return replace(spans, low=low, high=high)

    def _joined(self, op: hlo.ConcatenateOp) -> Spans | None:
        parts = [self.spans(operand) for operand in op.operands]
        kind = _common(parts)
        if kind is None or any((part.low < 0).any() for part in parts if part is not None):
            return None
        low, high = (np.concatenate([getattr(part, name) for part in parts]) for name in ("low", "high"))
        return replace(kind, low=low, high=high)

    def combined(self, op: hlo.HloOp) -> Spans | None:
        """The spans of a binary op's result, whatever its size."""
        left, right = (self.spans(operand) for operand in op.operands)
        if left is None or right is None:
            return None
        kind, holes = op.opcode, [part.low < 0 for part in (left, right)]
        if holes[0].any() or holes[1].any():
            return _interleave(left, right) if kind in ("add", "or") and (holes[0] ^ holes[1]).all() else None
        dtype = op.shape.dtype
        for before, after in ((left, right), (right, left)):
            found = _fold(before, after, kind) or _carry(before, after, kind, dtype) or _step(before, after, kind)
            if found is not None:
                return found
        return None


def _common(parts: list[Spans | None]) -> Spans | None:
    """What ``parts`` are folds of, single elements being folds by any operator; None when they differ."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or any(part.middle is not None for part in known):
        return None
    best = max(known, key=lambda part: (not part.is_fold, not part.is_single))
    for part in known:
        term = part.is_single and part.first is best.second
        same = part.first is best.first and part.second is best.second
        if not term and not (same and (part.is_single or (part.inner, part.outer) == (best.inner, best.outer))):
            return None
    return best


def _interleave(left: Spans, right: Spans) -> Spans | None:
    kind, there = _common([left, right]), left.low >= 0
    if kind is None:
        return None
    return replace(kind, low=np.where(there, left.low, right.low), high=np.where(there, left.high, right.high))


def _fold(before: Spans, after: Spans, kind: str) -> Spans | None:
    """Neighbouring spans of one array."""
    if not before.is_fold or not after.is_fold or before.first is not after.first:
        return None
    if {before.inner, after.inner} - {"", kind} or not (before.high + 1 == after.low).all():
        return None
    return replace(before, high=after.high, inner=kind)


def _carry(before: Spans, after: Spans, kind: str, dtype: str) -> Spans | None:
    """What a recurrence came to in ``before``, moved on by the factors ``after``."""
    if before.middle is not None or not after.is_fold or after.inner not in ("", kind):
        return None
    if dtype not in FLOATS and (dtype not in scans.DTYPES or kind != "multiply"):
        return None  # sums of integers wrap: larger ones may come out smaller
    if not any(inner == kind for _, inner in scans.RECURRENCES) or not (before.high + 1 == after.low).all():
        return None
    if before.is_fold and before.is_single and before.first is not after.first:
        return Spans(before.low, after.high, after.first, kind, before.first, "", after.low)
    if before.is_fold or before.first is not after.first or before.inner != kind:
        return None
    return replace(before, high=after.high, middle=after.low)


def _step(carried: Spans, term: Spans, kind: str) -> Spans | None:
    """A carried value with what follows it."""
    if carried.middle is None or term.middle is not None or carried.outer not in ("", kind):
        return None
    if (kind, carried.inner) not in scans.RECURRENCES:
        return None
    if not (term.low == carried.middle).all() or not (term.high == carried.high).all():
        return None
    single = term.is_fold and term.is_single and term.first is carried.second
    same = term.first is carried.first and term.second is carried.second and term.outer == kind
    if not single and not (same and term.inner == carried.inner):
        return None
    return replace(carried, outer=kind, middle=None)


def _emit(build: Build, found: Spans, axis: int) -> Value | None:
    """The op that computes ``found``, above the anchor; backwards where all arrays are reversed along ``axis``."""
    arrays = [found.first] if found.second is None else [found.first, found.second]
    flipped = [defining_op(array) for array in arrays]
    reverse = all(isinstance(op, hlo.ReverseOp) and op.dimensions.data == (axis,) for op in flipped)
    if reverse:
        arrays = [op.operands[0] for op in flipped if op is not None]
    shape = hlo.shape_of(arrays[0])
    if found.second is None:
        result = running(build, arrays[0], found.inner, axis, reverse)
    else:
        name = scans.recurrence_body(build, found.outer, found.inner, shape.dtype)
        result = scans.running(build, arrays, build.module.computation(name), axis, reverse)[1]
    return None if result is None else build.reverse(result, [axis]) if reverse else result


def running(build: Build, array: Value, kind: str, axis: int, reverse: bool) -> Value | None:
    """A ``reduce-window`` over the elements up to each one, from the neutral element; None where there is none."""
    shape = hlo.shape_of(array)
    number = identity_of(kind, shape.dtype)
    if number is None:
        return None
    size = shape.dims[axis]
    dim = WindowDim(size, pad_high=size - 1) if reverse else WindowDim(size, pad_low=size - 1)
    window = tuple(dim if place == axis else PLAIN for place in range(shape.rank))
    neutral = np.array(number).astype(NUMPY_DTYPE[shape.dtype])
    start = insert_constant(build.module, build.anchor, neutral, shape.dtype, build.loc)
    name = build.combiner(hlo.OPCODES[kind], shape.dtype)
    properties = {"window": hlo.WindowAttr(window), "to_apply": hlo.StrsAttr((name,))}
    return build.op(hlo.ReduceWindowOp, (array, start), shape.dtype, shape.dims, **properties)
