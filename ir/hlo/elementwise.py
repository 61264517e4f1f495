"""Elementwise hlo operations."""

from xdsl.irdl import irdl_op_definition, operand_def, prop_def

from neuronx_cc.ir.hlo.attrs import IntAttr, StrAttr
from neuronx_cc.ir.hlo.base import (
    ChoosingOp,
    CombinerOp,
    DiscontinuousOp,
    ElementwiseBinaryOp,
    ElementwiseUnaryOp,
    ExtremeOp,
    FormatOp,
    HighBitsOp,
    IdempotentOp,
    IdentityOp,
    InRangeOp,
    MovementOp,
    OpaqueOp,
)


class BitwiseOp(CombinerOp, InRangeOp):
    """Combines bit by bit."""


class ShiftOp(ElementwiseBinaryOp):
    """Moves the bits of lhs by rhs places."""


class RoundingOp(ElementwiseUnaryOp, DiscontinuousOp):
    """A whole number near the operand."""


@irdl_op_definition
class AbsOp(ElementwiseUnaryOp, ChoosingOp):
    """``|x|``."""

    name = "hlo.abs"


@irdl_op_definition
class AcosOp(ElementwiseUnaryOp):
    """Arc cosine."""

    name = "hlo.acos"


@irdl_op_definition
class AcoshOp(ElementwiseUnaryOp):
    """Inverse hyperbolic cosine."""

    name = "hlo.acosh"


@irdl_op_definition
class AsinOp(ElementwiseUnaryOp):
    """Arc sine."""

    name = "hlo.asin"


@irdl_op_definition
class AsinhOp(ElementwiseUnaryOp):
    """Inverse hyperbolic sine."""

    name = "hlo.asinh"


@irdl_op_definition
class AtanOp(ElementwiseUnaryOp):
    """Arc tangent."""

    name = "hlo.atan"


@irdl_op_definition
class AtanhOp(ElementwiseUnaryOp):
    """Inverse hyperbolic tangent."""

    name = "hlo.atanh"


@irdl_op_definition
class CbrtOp(ElementwiseUnaryOp):
    """Cube root."""

    name = "hlo.cbrt"


@irdl_op_definition
class CeilOp(RoundingOp):
    """Smallest integer not below x."""

    name = "hlo.ceil"


@irdl_op_definition
class ConvertOp(ElementwiseUnaryOp):
    """Value conversion to the result's element type."""

    name = "hlo.convert"


@irdl_op_definition
class CopyOp(ElementwiseUnaryOp, IdentityOp):
    """Identity, possibly into another layout."""

    name = "hlo.copy"


@irdl_op_definition
class CosineOp(ElementwiseUnaryOp):
    """``cos(x)``."""

    name = "hlo.cosine"


@irdl_op_definition
class CoshOp(ElementwiseUnaryOp):
    """Hyperbolic cosine."""

    name = "hlo.cosh"


@irdl_op_definition
class CountLeadingZerosOp(ElementwiseUnaryOp, HighBitsOp):
    """Number of leading zero bits."""

    name = "hlo.count_leading_zeros"


@irdl_op_definition
class ErfOp(ElementwiseUnaryOp):
    """Gauss error function."""

    name = "hlo.erf"


@irdl_op_definition
class ExponentialOp(ElementwiseUnaryOp):
    """``e**x``."""

    name = "hlo.exponential"


@irdl_op_definition
class ExponentialMinusOneOp(ElementwiseUnaryOp):
    """E**x - 1."""

    name = "hlo.exponential_minus_one"


@irdl_op_definition
class FloorOp(RoundingOp):
    """Largest integer not above x."""

    name = "hlo.floor"


@irdl_op_definition
class ImagOp(ElementwiseUnaryOp, FormatOp):
    """Imaginary part."""

    name = "hlo.imag"


@irdl_op_definition
class IsFiniteOp(ElementwiseUnaryOp):
    """Neither NaN nor infinite."""

    name = "hlo.is_finite"


@irdl_op_definition
class LogOp(ElementwiseUnaryOp):
    """Natural logarithm."""

    name = "hlo.log"


@irdl_op_definition
class LogPlusOneOp(ElementwiseUnaryOp):
    """``log(1 + x)``."""

    name = "hlo.log_plus_one"


@irdl_op_definition
class LogisticOp(ElementwiseUnaryOp):
    """``1 / (1 + e**-x)``."""

    name = "hlo.logistic"


@irdl_op_definition
class NegateOp(ElementwiseUnaryOp, ChoosingOp):
    """``-x``."""

    name = "hlo.negate"


@irdl_op_definition
class NotOp(ElementwiseUnaryOp):
    """Bitwise or logical complement."""

    name = "hlo.not"


@irdl_op_definition
class PopcntOp(ElementwiseUnaryOp, HighBitsOp):
    """Number of set bits."""

    name = "hlo.popcnt"


@irdl_op_definition
class RealOp(ElementwiseUnaryOp, FormatOp):
    """Real part."""

    name = "hlo.real"


@irdl_op_definition
class RoundNearestAfzOp(RoundingOp):
    """Nearest integer, ties away from zero."""

    name = "hlo.round_nearest_afz"


@irdl_op_definition
class RoundNearestEvenOp(RoundingOp):
    """Nearest integer, ties to even."""

    name = "hlo.round_nearest_even"


@irdl_op_definition
class RsqrtOp(ElementwiseUnaryOp):
    """``1 / sqrt(x)``."""

    name = "hlo.rsqrt"


@irdl_op_definition
class SignOp(ElementwiseUnaryOp, DiscontinuousOp, InRangeOp):
    """``-1, 0 or 1 by sign; NaN stays``."""

    name = "hlo.sign"


@irdl_op_definition
class SineOp(ElementwiseUnaryOp):
    """``sin(x)``."""

    name = "hlo.sine"


@irdl_op_definition
class SinhOp(ElementwiseUnaryOp):
    """Hyperbolic sine."""

    name = "hlo.sinh"


@irdl_op_definition
class SqrtOp(ElementwiseUnaryOp):
    """Square root."""

    name = "hlo.sqrt"


@irdl_op_definition
class TanOp(ElementwiseUnaryOp):
    """``tan(x)``."""

    name = "hlo.tan"


@irdl_op_definition
class TanhOp(ElementwiseUnaryOp):
    """Hyperbolic tangent."""

    name = "hlo.tanh"


@irdl_op_definition
class AddOp(CombinerOp):
    """``lhs + rhs``; logical or on pred."""

    name = "hlo.add"


@irdl_op_definition
class AndOp(BitwiseOp, IdempotentOp):
    """Bitwise or logical and."""

    name = "hlo.and"


@irdl_op_definition
class Atan2Op(ElementwiseBinaryOp):
    """Angle of the point (rhs, lhs)."""

    name = "hlo.atan2"


@irdl_op_definition
class ComplexOp(ElementwiseBinaryOp, FormatOp):
    """``lhs + i rhs``."""

    name = "hlo.complex"


@irdl_op_definition
class DivideOp(ElementwiseBinaryOp):
    """``lhs / rhs``; integers truncate toward zero."""

    name = "hlo.divide"


@irdl_op_definition
class MaximumOp(ExtremeOp, ChoosingOp):
    """Larger of both; NaN wins."""

    name = "hlo.maximum"


@irdl_op_definition
class MinimumOp(ExtremeOp, ChoosingOp):
    """Smaller of both; NaN wins."""

    name = "hlo.minimum"


@irdl_op_definition
class MulhiOp(ElementwiseBinaryOp, HighBitsOp):
    """High half of the double-width product."""

    name = "hlo.mulhi"


@irdl_op_definition
class MultiplyOp(CombinerOp):
    """``lhs * rhs``; logical and on pred."""

    name = "hlo.multiply"


@irdl_op_definition
class OrOp(BitwiseOp, IdempotentOp):
    """Bitwise or logical or."""

    name = "hlo.or"


@irdl_op_definition
class PowerOp(ElementwiseBinaryOp):
    """``lhs ** rhs``."""

    name = "hlo.power"


@irdl_op_definition
class RemainderOp(ElementwiseBinaryOp, DiscontinuousOp, InRangeOp):
    """``lhs - rhs * trunc(lhs / rhs)``."""

    name = "hlo.remainder"


@irdl_op_definition
class ShiftLeftOp(ShiftOp):
    """``lhs << rhs``; 0 when rhs is out of range."""

    name = "hlo.shift_left"


@irdl_op_definition
class ShiftRightArithmeticOp(ShiftOp, HighBitsOp):
    """Signed lhs >> rhs."""

    name = "hlo.shift_right_arithmetic"


@irdl_op_definition
class ShiftRightLogicalOp(ShiftOp, HighBitsOp):
    """Unsigned lhs >> rhs."""

    name = "hlo.shift_right_logical"


@irdl_op_definition
class StochasticConvertOp(ElementwiseBinaryOp, DiscontinuousOp, FormatOp, OpaqueOp):
    """``lhs rounded by the random bits rhs``."""

    name = "hlo.stochastic_convert"


@irdl_op_definition
class SubtractOp(ElementwiseBinaryOp):
    """``lhs - rhs``."""

    name = "hlo.subtract"


@irdl_op_definition
class XorOp(BitwiseOp):
    """Bitwise or logical exclusive or."""

    name = "hlo.xor"


@irdl_op_definition
class CompareOp(ElementwiseBinaryOp, DiscontinuousOp):
    """``direction`` EQ NE GE GT LE LT; ``comparison_type`` FLOAT TOTALORDER SIGNED UNSIGNED."""

    name = "hlo.compare"
    direction = prop_def(StrAttr)
    comparison_type = prop_def(StrAttr)


@irdl_op_definition
class ReducePrecisionOp(ElementwiseUnaryOp, FormatOp):
    """Rounds to a smaller format and back."""

    name = "hlo.reduce_precision"
    exponent_bits = prop_def(IntAttr)
    mantissa_bits = prop_def(IntAttr)


@irdl_op_definition
class SelectOp(ChoosingOp, MovementOp):
    """``predicate ? on_true : on_false``, element by element."""

    name = "hlo.select"
    predicate = operand_def()
    on_true = operand_def()
    on_false = operand_def()


@irdl_op_definition
class ClampOp(ChoosingOp, InRangeOp):
    """``min(max(operand, minimum), maximum)``; bounds may be scalars."""

    name = "hlo.clamp"
    minimum = operand_def()
    operand = operand_def()
    maximum = operand_def()
