"""Rewrites ``batch-norm-training``, ``-inference`` and ``-grad`` as sums, products and ``rsqrt``.

Input: any module. Output: none of the three. Statistics and arithmetic are FP32 whatever the element type; the variance
is the mean of squared distances from the mean, which loses nothing to cancellation. Source: the formulas of XLA's
operation semantics (BatchNormTraining, BatchNormInference, BatchNormGrad).
"""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.expansions.build import Build, Value, replace_elements
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.BatchNormOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):  # the elements after an op are erased with it
            if isinstance(op, hlo.BatchNormOp):
                _expand(op, _Norm(module, op))


def _expand(op: hlo.BatchNormOp, norm: "_Norm") -> None:
    if isinstance(op, hlo.BatchNormInferenceOp):
        replace(op, norm.inference(*norm.operands))
        return
    results = norm.training(*norm.operands) if isinstance(op, hlo.BatchNormTrainingOp) else norm.grad(*norm.operands)
    replace_elements(op, norm.as_types(op.results[0].type, results))


class _Norm:
    """The formulas, on FP32 values; vectors of the feature dim are spread over the operand."""

    def __init__(self, module: HloModule, op: hlo.BatchNormOp):
        self.build = Build.before(module, op)
        shape = hlo.shape_of(op.operands[0])
        self.dtype, self.dims, self.feature = shape.dtype, shape.dims, op.feature_index.data
        self.axes = [axis for axis in range(shape.rank) if axis != self.feature]
        self.count = shape.size // max(1, self.dims[self.feature])
        self.epsilon = op.epsilon.data
        self.operands = [self.build.convert(operand, "f32") for operand in op.operands]

    def as_types(self, wanted: hlo.Attribute, values: Sequence[Value]) -> list[Value]:
        assert isinstance(wanted, hlo.TupleType)
        parts = zip(values, wanted.data, strict=True)
        return [self.build.convert(value, part.data.dtype) for value, part in parts]  # type: ignore[attr-defined]

    def spread(self, vector: Value) -> Value:
        return self.build.broadcast(vector, self.dims, [self.feature])

    def sum(self, value: Value) -> Value:
        """Over all dims but the feature's: first those after it, whose sums are along rows."""
        after = [axis for axis in self.axes if axis > self.feature]
        return self.build.sum(self.build.sum(value, after), range(self.feature))

    def mean(self, value: Value) -> Value:
        return self.scaled(self.sum(value), 1 / self.count if self.count else float("nan"))

    def scaled(self, vector: Value, factor: float) -> Value:
        return self.build.mul(vector, self.build.number_like(factor, vector))

    def inverse(self, variance: Value) -> Value:
        """``1 / sqrt(variance + epsilon)``."""
        b = self.build
        return b.each(hlo.RsqrtOp, b.add(variance, b.number_like(self.epsilon, variance)))

    def normalised(self, centred: Value, factor: Value, offset: Value) -> Value:
        b = self.build
        return b.add(b.mul(centred, self.spread(factor)), self.spread(offset))

    def training(self, operand: Value, scale: Value, offset: Value) -> list[Value]:
        b = self.build
        mean = self.mean(operand)
        centred = b.sub(operand, self.spread(mean))
        variance = self.mean(b.mul(centred, centred))
        return [self.normalised(centred, b.mul(self.inverse(variance), scale), offset), mean, variance]

    def inference(self, operand: Value, scale: Value, offset: Value, mean: Value, variance: Value) -> Value:
        b = self.build
        centred = b.sub(operand, self.spread(mean))
        return b.convert(self.normalised(centred, b.mul(self.inverse(variance), scale), offset), self.dtype)

    def grad(self, operand: Value, scale: Value, mean: Value, variance: Value, grad: Value) -> list[Value]:
        b = self.build
        inverse = self.inverse(variance)
        centred = b.sub(operand, self.spread(mean))
        grad_scale = b.mul(self.sum(b.mul(grad, centred)), inverse)
        grad_offset = self.sum(grad)
        share = 1 / max(1, self.count)
        along = b.mul(centred, self.spread(self.scaled(b.mul(inverse, grad_scale), share)))
        left = b.sub(b.sub(grad, self.spread(self.scaled(grad_offset, share))), along)
        return [b.mul(left, self.spread(b.mul(scale, inverse))), grad_scale, grad_offset]
