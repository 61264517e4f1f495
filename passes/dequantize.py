"""Multiplies by the scales of quantised weights after the contraction, and leaves 8-bit weights to it as they are.

Input: canonical hlo, ahead of ``auto_cast``. Weights arrive as ``(convert(q) - zero point) * scale`` or
``convert(q) * scale + minimum``, with casts, reshapes and transposes in any place; q holds 8-bit integers or floats.
What does not vary along the dims that a contraction sums over commutes with the sum. So

* scales by output channel, or one for all, multiply the result: ``dot(x, q s)`` -> ``dot(x, q) s``;
* scales that vary along the sum alone multiply the other operand: ``dot(x, s q)`` -> ``dot(x s, q)``;
* scales by output channel and group of neighbouring terms make each group a product of its own, where rows are few:
  rows of zeros but for the terms of one group, as many as fill the partitions of the sums, multiply the codes at once;
  elsewhere contractions scale codes as they come (``codegen.dots.scales``);
* what is added or subtracted becomes one product more: ``dot(x, q - z)`` -> ``dot(x, q) - sum(x) z``, in FP32. Of a
  convolution that is one with a kernel of ones, an output a group; the zeros of its padding add nothing to either.

Output: contractions of the codes q in the type of the activations, if that holds them, else in FP32; the casts cost
nothing (``codegen.dots.conversion``). Other scales stay where they are. Values change as those of sums in another order
do, and weights are no longer rounded on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.ir.isa.rules import SQUARE
from neuronx_cc.ir.types import WIDE_FLOATS
from neuronx_cc.passes.analysis.contracted import contracted_by
from neuronx_cc.passes.analysis.conversions import is_lossless
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.eight_bit_floats import LATE
from neuronx_cc.passes.expansions.repeated import Repeated, View, groups, repeated, spread
from neuronx_cc.passes.manager import PassContext, PassOptions, only_for
from neuronx_cc.passes.precision.decisions import of_operands

STORED = frozenset(["s8", "u8", "f8e4m3", "f8e4m3fn", "f8e5m2"])
INTEGERS = frozenset(["s8", "u8", "s16", "s32"])
LEAST_SCALED = {(False, False): 64, (False, True): 16, (True, False): 128}
"""The same where contractions scale codes as they come: whether terms are neighbours, and activations FP32."""
LEAST_TERMS, LEAST_DECODED = 4, 1
"""Terms of a group for each row, at least, where groups are products of their own, whose sums are FP32; of codes that
operators on bits decode elsewhere.
"""
INFINITE = frozenset(["f8e4m3", "f8e5m2"])
"""Types with infinities, whose products with zeros are no numbers."""
PASSED = (hlo.ConvertOp, hlo.TransposeOp, hlo.MultiplyOp, hlo.DivideOp, hlo.AddOp, hlo.SubtractOp)
MOST = 12
"""Ops between a contraction and its weights that are looked through."""


@only_for(hlo.DotOp, hlo.ConvolutionOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if not isinstance(op, hlo.DotOp | hlo.ConvolutionOp) or op.shape.dtype not in WIDE_FLOATS:
                continue
            for index in (1, 0):
                moved = _moved(module, op, index, context) if contracted_by(op, index) else None
                if moved is not None:
                    replace(op, moved)
                    break


def _moved(module: HloModule, op: hlo.DotOp | hlo.ConvolutionOp, index: int, context: PassContext) -> Value | None:
    """The result with what operand ``index`` is made of after the contraction; None where that stays."""
    weight = _weight(op.operands[index])
    if weight is None:
        return None
    if _is_movable(op, index, weight):
        b = Build.before(module, op)
        if isinstance(op, hlo.DotOp):
            return _rewritten(_OfDot(b, op, index, context.options), weight)
        return _rewritten(_OfConvolution(b, op, index), weight)
    if not isinstance(op, hlo.DotOp):
        return None
    codes = hlo.shape_of(weight.codes).dtype
    for size in sorted(_joined(op.operands[index], MOST)):
        terms = [hlo.shape_of(op.operands[index]).dims[axis] for axis in contracted_by(op, index)]
        if len(terms) != 1 or size <= 1 or terms[0] % size or not _pays(op, index, weight, size):
            continue
        b = Build.before(module, op)
        dot = _in_groups(b, op, size)
        grouped = _weight(dot.operands[index])
        if grouped is not None and _is_movable(dot, index, grouped):
            group = len(dot.dims.data.lhs_batch) - 1
            around = _of_groups(b, dot, index, codes, context)
            return b.convert(b.sum(_rewritten(around, grouped), (group,)), op.shape.dtype)
    return None


def _pays(dot: hlo.DotOp, index: int, weight: Weight, size: int) -> bool:
    """Whether sums of groups of ``size`` terms take less time than scaled weights."""
    rows, codes = _rows(dot, index), hlo.shape_of(weight.codes).dtype
    if codes == LATE:
        return rows * LEAST_DECODED <= size
    alone = index == 1 and not _sides(dot)[1].batch and all(_scales_as_it_comes(step) for step in weight.steps)
    whole = hlo.shape_of(dot.operands[1 - index]).dtype == "f32"
    near = hlo.shape_of(dot.operands[index]).rank - 1 in contracted_by(dot, index)
    least = LEAST_SCALED.get((near, whole)) if alone else None
    if least is not None and codes in INFINITE and not whole:
        return False  # no product takes several groups
    return rows * (least or LEAST_TERMS) <= size or (rows == 1 and least is not None and not near)


def _scales_as_it_comes(step: Step) -> bool:
    """Whether contractions do so with what they load."""
    return not issubclass(step.kind, hlo.DivideOp) and not (step.reverse and issubclass(step.kind, hlo.SubtractOp))


def _rows(dot: hlo.DotOp, index: int) -> int:
    """Of the operand beside ``index``, for each batch index."""
    return prod(hlo.shape_of(dot.operands[1 - index]).dims[axis] for axis in _sides(dot)[1 - index].free)


def _joined(value: Value, most: int) -> set[int]:
    """Sizes of the last of the dims that reshapes join to one, in what ``value`` is made of."""
    op = defining_op(value)
    if most == 0 or not isinstance(op, (*PASSED, hlo.BroadcastOp, hlo.ReshapeOp)):
        return set()
    found = set().union(*(_joined(operand, most - 1) for operand in op.operands))
    if isinstance(op, hlo.ReshapeOp):
        before = hlo.shape_of(op.operands[0]).dims
        found |= {before[axes[-1]] for axes, made in groups(before, op.shape.dims) if len(axes) > 1 and len(made) == 1}
    return found


def _in_groups(b: Build, dot: hlo.DotOp, size: int) -> hlo.DotOp:
    """The same of each ``size`` terms: their groups are the last batch dim."""
    operands, batches, terms, count = [], [], [], 0
    for operand, side in zip(dot.operands, _sides(dot), strict=True):
        (axis,), dims = side.contracted, hlo.shape_of(operand).dims
        count = dims[axis] // size
        operands.append(b.reshape(operand, (*dims[:axis], count, size, *dims[axis + 1 :])))
        batches.append((*(at + (at > axis) for at in side.batch), axis))
        terms.append((axis + 1,))
    first = len(batches[0]) - 1
    dims = (*dot.shape.dims[:first], count, *dot.shape.dims[first:])
    properties = {**dot.properties, "dims": hlo.DotDimsAttr(hlo.DotDims(*terms, *batches))}
    made = defining_op(b.typed(hlo.DotOp, operands, hlo.array_type("f32", dims), **properties))
    assert isinstance(made, hlo.DotOp)
    return made


@dataclass(frozen=True, slots=True)
class Step:
    """What is done to the numbers of codes."""

    kind: type[hlo.HloOp]
    """MultiplyOp, DivideOp, AddOp or SubtractOp."""
    by: Repeated
    """Like the contraction's operand."""
    reverse: bool = False
    """Whether the numbers are the right operand."""

    @property
    def scales(self) -> bool:
        return issubclass(self.kind, hlo.MultiplyOp | hlo.DivideOp)


@dataclass(frozen=True, slots=True)
class Weight:
    """An operand that is made of codes by ``steps``, the first one first."""

    codes: Value
    views: tuple[View, ...]
    """What gives the codes the operand's dims."""
    steps: tuple[Step, ...]


def _weight(value: Value) -> Weight | None:
    """How an operand is made of codes; None where it is not, or of nothing but them."""
    views: list[View] = []
    steps: list[Step] = []
    for _ in range(MOST):
        op = defining_op(value)
        if isinstance(op, hlo.ConvertOp):
            source = hlo.shape_of(op.operand).dtype
            value = op.operand
            if source not in INTEGERS and op.shape.dtype in INTEGERS:
                return None  # cuts off fractions
            if source in STORED:
                return Weight(value, tuple(reversed(views)), tuple(reversed(steps))) if steps else None
            if source not in WIDE_FLOATS | INTEGERS:
                return None
        elif isinstance(op, hlo.ReshapeOp | hlo.TransposeOp):
            views.append(View.of(op))
            value = op.operands[0]
        elif isinstance(op, PASSED) and (op.shape.dtype in WIDE_FLOATS or isinstance(op, hlo.AddOp | hlo.SubtractOp)):
            found = _step(op, views)
            if found is None:
                return None
            step, value = found
            steps.append(step)
        else:
            return None
    return None


def _step(op: hlo.HloOp, views: list[View]) -> tuple[Step, Value] | None:
    """One step, and the numbers that it is done to."""
    for index in (1, 0):
        array = repeated(op.operands[index], tuple(reversed(views)))
        if array is None or (index == 0 and isinstance(op, hlo.DivideOp)):
            continue
        return Step(type(op), array, index == 0), op.operands[1 - index]
    return None


def _is_movable(op: hlo.DotOp | hlo.ConvolutionOp, index: int, weight: Weight) -> bool:
    """Whether each step varies along the sum or along the outputs alone, and nothing was added to what varies along
    the sum.
    """
    contracted = contracted_by(op, index)
    free = [axis for axis in range(hlo.shape_of(op.operands[index]).rank) if axis not in contracted]
    if isinstance(op, hlo.DotOp):
        side = _sides(op)[index]
        free = list(side.free)
    along = False
    for step in weight.steps:
        if any(step.by.dims[axis] > 1 for axis in contracted):
            if not step.scales or any(step.by.dims[axis] > 1 for axis in free) or isinstance(op, hlo.ConvolutionOp):
                return False
            along = True
        elif along and not step.scales:
            return False
    other, own = (prod(hlo.shape_of(op.operands[each]).dims) for each in (1 - index, index))
    return not along or other <= own


def _rewritten(around: _OfDot | _OfConvolution, weight: Weight) -> Value:
    """What ``around`` stands for, with the steps after the contraction."""
    b, op, index = around.b, around.op, around.index
    other, contracted = op.operands[1 - index], contracted_by(op, index)
    dtype, codes = hlo.shape_of(other).dtype, weight.codes
    for view in weight.views:
        codes = view.of_array(b, codes)
    for step in weight.steps:
        if isinstance(around, _OfDot) and any(step.by.dims[axis] > 1 for axis in contracted):
            scale = around.terms(step.by.array(b))
            other = b.convert(b.each(step.kind, b.convert(other, "f32"), scale), dtype)
    carried = dtype if is_lossless(hlo.shape_of(codes).dtype, dtype) else "f32"
    other = b.convert(other, carried)
    result = around.product(other, codes)
    for step in weight.steps:
        if any(step.by.dims[axis] > 1 for axis in contracted):
            continue
        channels = around.channels(step.by.array(b))
        if not step.scales:
            channels = b.mul(around.totals(other), channels)
        result = b.each(step.kind, *((channels, result) if step.reverse else (result, channels)))
    return b.convert(result, op.shape.dtype)


@dataclass(frozen=True, slots=True)
class _Around:
    """A contraction whose operand ``index`` are the weights."""

    b: Build
    op: hlo.DotOp | hlo.ConvolutionOp
    index: int

    def product(self, other: Value, codes: Value) -> Value:
        """The contraction of both, the codes in the type of the other one."""
        codes = self.b.convert(codes, hlo.shape_of(other).dtype)
        operands = (other, codes) if self.index else (codes, other)
        return self.b.typed(type(self.op), operands, hlo.array_type("f32", self.op.shape.dims), **self.op.properties)


@dataclass(frozen=True, slots=True)
class _OfConvolution(_Around):
    """What comes of the other operand, and of each output channel, in FP32 and like the result."""

    op: hlo.ConvolutionOp

    def channels(self, value: Value) -> Value:
        """Of an array like the kernel that varies along the outputs alone."""
        b, op = self.b, self.op
        dims = hlo.shape_of(value).dims
        row = b.reshape(b.convert(value, "f32"), (dims[op.dims.data.rhs_output_feature],))
        return spread(b, row, op.shape.dims, [self._feature])

    def totals(self, image: Value) -> Value:
        """The sum of each window of each group: a convolution with ones."""
        b, op = self.b, self.op
        groups, dims = op.feature_group_count.data, list(hlo.shape_of(op.rhs).dims)
        dims[op.dims.data.rhs_output_feature] = groups
        ones = b.number(1, hlo.shape_of(image).dtype, dims)
        sums = list(op.shape.dims)
        sums[self._feature] = groups
        result = b.typed(hlo.ConvolutionOp, (image, ones), hlo.array_type("f32", tuple(sums)), **op.properties)
        each = op.shape.dims[self._feature] // groups
        sums.insert(self._feature + 1, each)
        kept = [axis for axis in range(len(sums)) if axis != self._feature + 1]
        return b.reshape(b.broadcast(result, tuple(sums), kept), op.shape.dims)

    @property
    def _feature(self) -> int:
        return int(self.op.dims.data.out_feature)


@dataclass(frozen=True, slots=True)
class _OfDot(_Around):
    """The same of a dot."""

    op: hlo.DotOp
    options: PassOptions

    def channels(self, value: Value) -> Value:
        """Of an array like the weights that does not vary along the sum."""
        b, side = self.b, _sides(self.op)[self.index]
        value = b.transpose(value, [*side.batch, *side.free, *side.contracted])
        return self._spread(b.reshape(value, hlo.shape_of(value).dims[: len(side.batch) + len(side.free)]), self.index)

    def terms(self, value: Value) -> Value:
        """Of one that varies along batch dims and the sum, in FP32 and like the other operand."""
        b, (side, other) = self.b, (_sides(self.op)[each] for each in (self.index, 1 - self.index))
        value = b.transpose(b.convert(value, "f32"), [*side.batch, *side.contracted, *side.free])
        value = b.reshape(value, hlo.shape_of(value).dims[: len(side.batch) + len(side.contracted)])
        dims = hlo.shape_of(self.op.operands[1 - self.index]).dims
        return spread(b, value, dims, [*other.batch, *other.contracted])

    def totals(self, operand: Value) -> Value:
        """The sum over what is contracted, of numbers as TensorE multiplies them: a product with ones where these have
        a type that nothing else computes with.
        """
        b, side, shape = self.b, _sides(self.op)[1 - self.index], hlo.shape_of(operand)
        rounded = of_operands(self.op, self.options).dtype if shape.dtype == "f32" else shape.dtype
        if rounded in WIDE_FLOATS:
            value = b.transpose(b.convert(operand, rounded), [*side.batch, *side.free, *side.contracted])
            first = len(side.batch) + len(side.free)
            sums = b.sum(b.convert(value, "f32"), tuple(range(first, shape.rank)))
            return self._spread(sums, 1 - self.index)
        axes = (*side.batch, *side.contracted)
        ones = b.number(1, shape.dtype, [shape.dims[axis] for axis in axes])
        batch, end = len(side.batch), len(axes)
        numbers = hlo.DotDims(side.contracted, tuple(range(batch, end)), side.batch, tuple(range(batch)))
        dims = tuple(shape.dims[axis] for axis in (*side.batch, *side.free))
        properties = {**self.op.properties, "dims": hlo.DotDimsAttr(numbers)}
        return self._spread(
            b.typed(hlo.DotOp, (operand, ones), hlo.array_type("f32", dims), **properties), 1 - self.index
        )

    def _spread(self, value: Value, index: int) -> Value:
        """An array of the batch and free dims of one side."""
        sides = _sides(self.op)
        batch, first = len(sides[index].batch), len(sides[0].free) if index else 0
        places = [*range(batch), *range(batch + first, batch + first + len(sides[index].free))]
        return spread(self.b, self.b.convert(value, "f32"), self.op.shape.dims, places)


@dataclass(frozen=True, slots=True)
class _OfGroups(_OfDot):
    """The same of a dot whose last batch dim are groups of terms, ``together`` of which are one product: rows of zeros,
    but for the terms of one of them.
    """

    together: int

    def _apart(self, other: Value) -> Value:
        """[batch..., products, groups and rows, all their terms], which are zero in all groups but one."""
        b, side, count = self.b, _sides(self.op)[1 - self.index], self.together
        value = b.transpose(other, [*side.batch, *side.free, *side.contracted])
        *batch, groups = (hlo.shape_of(other).dims[axis] for axis in side.batch)
        outer, rows, terms = (*batch, groups // count), _rows(self.op, self.index), hlo.shape_of(value).dims[-1]
        at = len(outer)
        value = b.transpose(b.reshape(value, (*outer, count, rows, terms)), [*range(at), at + 1, at, at + 2])
        dims = (*outer, count, rows, count, terms)
        own = b.compare(b.iota((count, count), 0), b.iota((count, count), 1), "EQ")
        repeated = b.broadcast(value, dims, [*range(at), at + 1, at + 2, at + 3])
        zeros = b.number(0, hlo.shape_of(value).dtype, dims)
        value = b.select(b.broadcast(own, dims, [at, at + 2]), repeated, zeros)
        return b.reshape(value, (*outer, count * rows, count * terms))

    def product(self, other: Value, codes: Value) -> Value:
        """Of all groups, each with the terms of its own."""
        other = self._apart(other)
        b, side, dims = self.b, _sides(self.op)[self.index], hlo.shape_of(codes).dims
        (axis,), batch = side.contracted, len(side.batch)
        made = dims[axis - 1] // self.together, dims[axis] * self.together
        codes = b.reshape(codes, (*dims[: axis - 1], *made, *dims[axis + 1 :]))
        codes = b.convert(codes, hlo.shape_of(other).dtype)
        free = tuple(dims[each] for each in side.free)
        sums = self._with(other, codes, hlo.DotDims((batch + 1,), (axis,), tuple(range(batch)), side.batch), free)
        if self.index:
            return sums
        rank = hlo.shape_of(sums).rank
        return b.transpose(sums, [*range(batch), *range(rank - len(free), rank), *range(batch, rank - len(free))])

    def _with(self, rows: Value, others: Value, numbers: hlo.DotDims, free: tuple[int, ...]) -> Value:
        """Rows of all groups times others of these dims: [batch..., groups, rows' dims..., free...]."""
        b, side = self.b, _sides(self.op)[1 - self.index]
        dims = hlo.shape_of(self.op.operands[1 - self.index]).dims
        sums = hlo.array_type("f32", (*hlo.shape_of(rows).dims[:-1], *free))
        properties = {**self.op.properties, "dims": hlo.DotDimsAttr(numbers)}
        made = b.typed(hlo.DotOp, (rows, others), sums, **properties)
        return b.reshape(made, (*(dims[axis] for axis in (*side.batch, *side.free)), *free))


def _of_groups(b: Build, dot: hlo.DotOp, index: int, codes: str, context: PassContext) -> _OfDot:
    """With as many groups a product as partitions have rows for, where zeros add nothing to sums; of FP32, whose parts
    stream past columns side by side, as few rows do that.
    """
    whole = of_operands(dot, context.options).dtype == hlo.shape_of(dot.operands[1 - index]).dtype == "f32"
    side, partitions = _sides(dot)[index], SQUARE if whole else context.timing.sizes.partitions
    count = hlo.shape_of(dot.operands[index]).dims[side.batch[-1]]
    most = max(1, partitions // max(1, _rows(dot, index)))
    together = next(each for each in range(min(most, count), 0, -1) if count % each == 0)
    if together == 1 or codes in INFINITE:
        return _OfDot(b, dot, index, context.options)
    return _OfGroups(b, dot, index, context.options, together)


@dataclass(frozen=True, slots=True)
class Side:
    """The dims of one operand."""

    batch: tuple[int, ...]
    free: tuple[int, ...]
    contracted: tuple[int, ...]


def _sides(dot: hlo.DotOp) -> tuple[Side, Side]:
    numbers = dot.dims.data
    found = []
    for operand, batch, contracted in (
        (dot.lhs, numbers.lhs_batch, numbers.lhs_contracting),
        (dot.rhs, numbers.rhs_batch, numbers.rhs_contracting),
    ):
        axes = range(hlo.shape_of(operand).rank)
        found.append(Side(batch, tuple(axis for axis in axes if axis not in (*batch, *contracted)), contracted))
    return found[0], found[1]
