"""What casts do to values, without changing the module: the reference semantics with operands and results rounded.

An op that is cast rounds its FP32 operands, computes in FP32 and rounds its result, as the pass ``auto_cast`` would
have it. So single casts can be tried by themselves, and ops compared with what they give on the same operands uncast.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of
from neuronx_cc.ir.reference import CALLING, REFERENCE, Evaluator, Value
from neuronx_cc.ir.reference.elementwise import round_to_format
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.auto_cast import code_computations
from neuronx_cc.passes.manager import PassOptions
from neuronx_cc.passes.precision.casts import in_range
from neuronx_cc.passes.precision.decisions import Contraction, is_f32, of_operands, of_result, results_change
from neuronx_cc.passes.precision.integers import only_for_integers
from neuronx_cc.passes.precision.lowering import computes_in_any_float
from neuronx_cc.passes.precision.quantization import is_format, rounded_weight, weight_of
from neuronx_cc.passes.precision.recurrences import of_recurrences

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Cast:
    """Types that the FP32 operands and the FP32 result of an op are rounded to; ``f32``: not at all."""

    operands: str = "f32"
    result: str = "f32"
    rounded: tuple[int, ...] = ()
    """Operands that come in another type: those that a cast op computes in this type are not rounded once more."""
    weights: str = ""
    """The format of 8 bits in which a constant operand is stored, if it is."""
    weight: int = -1
    """Which operand that is."""
    contracted: tuple[int, ...] = ()
    """Its dims that are summed over."""

    def __str__(self) -> str:
        parts = {"operands": self.operands, "result": self.result, "weights": self.weights}
        return ", ".join(f"{part} {dtype}" for part, dtype in parts.items() if dtype not in ("f32", ""))

    def with_weights(self, module: HloModule, op: hlo.HloOp, form: str) -> "Cast":
        """With a constant operand in a format of ``precision.quantization``; without one as it is."""
        weight = weight_of(module, op) if is_format(form) else None
        if weight is None:
            return self
        rounded = tuple(number for number in self.rounded if number != weight.operand)
        return replace(self, rounded=rounded, weights=form, weight=weight.operand, contracted=weight.contracted)


def casts_of(module: HloModule, options: PassOptions) -> dict[hlo.HloOp, Cast]:
    """The ops of ``module``, as it comes to ``auto_cast``, that are cast, in order."""
    casts = {}
    for computation in code_computations(module):
        known: dict[hlo.SSAValue, str] = {}
        unrounded, held = only_for_integers(computation), of_recurrences(computation, options)
        for op in ops_of(computation.block):
            if op in unrounded or (op in held and options.policy.choice(op, "result") is None):
                continue
            choice = options.policy.choice(op, "weights")
            cast = _cast_of(op, options).with_weights(module, op, choice[0] if choice else "")
            if cast == Cast():
                continue
            exact = cast.result == "f32" and not isinstance(op, Contraction)
            known[op.results[0]] = cast.operands if exact else cast.result
            fresh = tuple(
                number
                for number, value in enumerate(op.operands)
                if known.get(value) != cast.operands and number != cast.weight
            )
            if fresh or cast.result != "f32" or cast.weights:
                casts[op] = replace(cast, rounded=fresh)
    return casts


def _cast_of(op: hlo.HloOp, options: PassOptions) -> Cast:
    result = of_result(op, options) if results_change(options) else None
    rounded = result.dtype if result is not None else "f32"
    if isinstance(op, Contraction):
        has_f32 = any(hlo.shape_of(operand).dtype == "f32" for operand in op.operands)
        operands = of_operands(op, options).dtype if has_f32 else "f32"
        return Cast(operands, rounded if result is not None and result.ruled else "f32")
    if not computes_in_any_float(op):
        return Cast(result=rounded) if result is not None and result.ruled and is_f32(op.results[0]) else Cast()
    if not any(is_f32(value) for value in (*op.operands, *op.results)):
        return Cast()
    exact = isinstance(op, hlo.MovementOp | hlo.ChoosingOp) or not is_f32(op.results[0])
    return Cast(rounded, "f32" if exact else rounded)


def rounded(array: Array, dtype: str) -> Array:
    """``array`` (FP32) with the values that ``dtype`` has."""
    if dtype == "tf32":
        return round_to_format(array, 8, 10)
    with np.errstate(all="ignore"):
        return array.astype(NUMPY_DTYPE[dtype]).astype(np.float32)


class RoundingEvaluator(Evaluator):
    """Evaluates with ``casts``; those of ops that it does not hold are not made."""

    def __init__(self, module: HloModule, casts: Mapping[hlo.HloOp, Cast]):
        super().__init__(module, REFERENCE, CALLING)
        self._casts = casts

    def apply(self, op: hlo.HloOp, operands: Sequence[Value]) -> Value:
        cast = self._casts.get(op)
        if cast is None:
            return super().apply(op, operands)
        taken = list(operands)
        for number in cast.rounded:
            constant = isinstance(defining_op(op.operands[number]), hlo.ConstantOp)
            taken[number] = _rounded(taken[number], cast.operands, constant)
        if cast.weights:
            weight = taken[cast.weight]
            assert isinstance(weight, np.ndarray)
            taken[cast.weight] = rounded_weight(weight, cast.contracted, cast.weights).astype(weight.dtype)
        value = super().apply(op, taken)
        return _rounded(value, cast.result)

    def beyond(self, op: hlo.HloOp, operands: Sequence[Value], uncast: Value) -> tuple[str, float]:
        """The type of a cast that makes infinities of finite numbers, and the largest of these; of others nothing.

        ``uncast``: what ``op`` results in without casts.
        """
        cast = self._casts[op]
        fresh = [n for n in cast.rounded if not isinstance(defining_op(op.operands[n]), hlo.ConstantOp)]
        rounded_ones = [(operands[number], cast.operands) for number in fresh] + [(uncast, cast.result)]
        for value, dtype in rounded_ones:
            if isinstance(value, np.ndarray) and value.dtype == np.float32 and dtype not in ("f32", "tf32"):
                largest = float(np.max(np.abs(value), where=np.isfinite(value), initial=0.0))
                if not np.isfinite(rounded(np.array([largest], np.float32), dtype)).all():
                    return dtype, largest
        return "", 0.0


def _rounded(value: Value, dtype: str, constant: bool = False) -> Value:
    if not isinstance(value, np.ndarray) or value.dtype != np.float32 or dtype == "f32":
        return value
    return rounded(in_range(value, dtype) if constant else value, dtype)
