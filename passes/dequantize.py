"""Multiplies by the scales of quantised weights after the contraction, and leaves 8-bit weights to it as they are.

Input: canonical hlo, ahead of ``auto_cast``. Weights arrive as ``(convert(q) - zero point) * scale``, in any order of
casts, or divided by the scale; q holds 8-bit integers or floats. What does not vary along the dims that a contraction
sums over commutes with the sum. So

* scales by output channel, or one for all, multiply the result: ``dot(x, q s)`` -> ``dot(x, q) s``;
* zero points become one product more: ``dot(x, q - z)`` -> ``dot(x, q) - sum(x) z``, in FP32. Of a convolution that is
  one with a kernel of ones, an output a group; the zeros of its padding add nothing to either.

Output: contractions of the codes q in the type of the activations, if that holds them, else in FP32; the casts cost
nothing (``codegen.dots.conversion``). Scales that vary along the sum stay where they are. Values change as those of
sums in another order do, and weights are no longer rounded on the way.
"""

from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.passes.analysis.contracted import contracted_by
from neuronx_cc.passes.analysis.conversions import is_lossless
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

STORED = frozenset(["s8", "u8", "f8e4m3", "f8e4m3fn", "f8e5m2"])
FLOATS = frozenset(["f32", "bf16", "f16"])
MOST = 8
"""Ops between a contraction and its weights that are looked through."""


@only_for(hlo.DotOp, hlo.ConvolutionOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if not isinstance(op, hlo.DotOp | hlo.ConvolutionOp) or op.shape.dtype not in FLOATS:
                continue
            for index in (1, 0):
                contracted = contracted_by(op, index)
                weight = _weight(op.operands[index], contracted) if contracted else None
                if weight is not None:
                    replace(op, _rewritten(module, op, index, weight))
                    break


@dataclass(frozen=True, slots=True)
class Weight:
    """An operand that is ``(q - zero) * factor``."""

    codes: Value
    """q, of the operand's dims."""
    factors: tuple[tuple[Value, bool], ...]
    """Arrays of the operand's dims, and whether they divide."""
    zero: Value | None


def _weight(value: Value, contracted: tuple[int, ...]) -> Weight | None:
    """What a factor or zero point can be taken from; None where there is none, or it varies along the sum."""
    zero: Value | None = None
    factors: list[tuple[Value, bool]] = []
    for _ in range(MOST):
        op = defining_op(value)
        if isinstance(op, hlo.ConvertOp):
            source = hlo.shape_of(op.operand).dtype
            if source in STORED:
                return Weight(op.operand, tuple(factors), zero) if factors or zero is not None else None
            if source not in FLOATS | {"s32", "s16"}:
                return None
            value = op.operand
        elif isinstance(op, hlo.MultiplyOp | hlo.DivideOp) and zero is None:
            lhs, rhs = op.operands
            if _is_constant_along(rhs, contracted):
                factors.append((rhs, isinstance(op, hlo.DivideOp)))
                value = lhs
            elif isinstance(op, hlo.MultiplyOp) and _is_constant_along(lhs, contracted):
                factors.append((lhs, False))
                value = rhs
            else:
                return None
        elif isinstance(op, hlo.SubtractOp) and zero is None and _is_constant_along(op.rhs, contracted):
            value, zero = op.lhs, op.rhs
        else:
            return None
    return None


def _is_constant_along(value: Value, contracted: tuple[int, ...]) -> bool:
    """Whether ``value`` repeats what does not vary along these dims, and is no sum itself."""
    op = defining_op(value)
    while isinstance(op, hlo.ConvertOp):
        op = defining_op(op.operand)
    return isinstance(op, hlo.BroadcastOp) and not set(op.dimensions.data) & set(contracted)


def _rewritten(module: HloModule, op: hlo.DotOp | hlo.ConvolutionOp, index: int, weight: Weight) -> Value:
    b, other = Build.before(module, op), op.operands[1 - index]
    dtype = hlo.shape_of(other).dtype
    carried = dtype if is_lossless(hlo.shape_of(weight.codes).dtype, dtype) else "f32"
    operands = [b.convert(other, carried)] * 2
    operands[index] = b.convert(weight.codes, carried)
    around = _OfDot(b, op, index) if isinstance(op, hlo.DotOp) else _OfConvolution(b, op)
    result = b.typed(type(op), operands, hlo.array_type("f32", op.shape.dims), **op.properties)
    if weight.zero is not None:
        result = b.sub(result, b.mul(around.totals(operands[1 - index]), around.channels(weight.zero)))
    for factor, divides in weight.factors:
        scale = around.channels(factor)
        result = b.div(result, scale) if divides else b.mul(result, scale)
    return b.convert(result, op.shape.dtype)


def _first_along(b: Build, value: Value, axes: tuple[int, ...]) -> Value:
    """What does not vary along ``axes``, at their first places."""
    for axis in axes:
        value = b.slice(value, axis, 0, min(1, hlo.shape_of(value).dims[axis]))
    return value


@dataclass(frozen=True, slots=True)
class _OfConvolution:
    """What comes of the other operand, and of each output channel, in FP32 and like the result."""

    b: Build
    op: hlo.ConvolutionOp

    def channels(self, value: Value) -> Value:
        """Of what does not vary along the sum."""
        b, op = self.b, self.op
        value = b.convert(_first_along(b, value, contracted_by(op, 1)), "f32")
        return b.broadcast(b.reshape(value, (op.shape.dims[self._feature],)), op.shape.dims, [self._feature])

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
class _OfDot:
    """The same of a dot, whose operand ``index`` are the weights."""

    b: Build
    op: hlo.DotOp
    index: int

    def channels(self, value: Value) -> Value:
        """Of what does not vary along the sum."""
        b, side = self.b, _sides(self.op)[self.index]
        value = _first_along(b, value, side.contracted)
        value = b.transpose(value, [*side.batch, *side.free, *side.contracted])
        return self._spread(b.reshape(value, hlo.shape_of(value).dims[: len(side.batch) + len(side.free)]), self.index)

    def totals(self, operand: Value) -> Value:
        """The sum over what is contracted, as a product with ones: rounded as the contraction rounds it."""
        side, shape = _sides(self.op)[1 - self.index], hlo.shape_of(operand)
        axes = (*side.batch, *side.contracted)
        ones = self.b.number(1, shape.dtype, [shape.dims[axis] for axis in axes])
        batch, end = len(side.batch), len(axes)
        numbers = hlo.DotDims(side.contracted, tuple(range(batch, end)), side.batch, tuple(range(batch)))
        dims = tuple(shape.dims[axis] for axis in (*side.batch, *side.free))
        properties = {**self.op.properties, "dims": hlo.DotDimsAttr(numbers)}
        sums = self.b.typed(hlo.DotOp, (operand, ones), hlo.array_type("f32", dims), **properties)
        return self._spread(sums, 1 - self.index)

    def _spread(self, value: Value, index: int) -> Value:
        """An array of the batch and free dims of one side."""
        sides = _sides(self.op)
        batch, first = len(sides[index].batch), len(sides[0].free) if index else 0
        places = [*range(batch), *range(batch + first, batch + first + len(sides[index].free))]
        return self.b.broadcast(self.b.convert(value, "f32"), self.op.shape.dims, places)


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
