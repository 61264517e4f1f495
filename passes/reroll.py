"""Recognises functions that arrive expanded and puts the one op back that engines have. Input: an inlined module.

* The guard of softplus, ``select(x != x, x, max(x, 0) + ...)``, whose sum is NaN for such an ``x`` anyway.
* The complementary error function, which JAX lowers to 65 ops (two polynomials, an exponential and selects), inside
  exact GELU and its gradient: every use multiplies it, one of them by ``x`` when it is erfc of a negative multiple of
  ``x``. Then ``erfc(t)`` -> ``1 - erf(t)``, and ``erfc(-x * c)`` -> ``1 + erf(x * c)``. The error is at most 1.2e-7
  absolute; relative accuracy of the far tail, where erfc is below that, is lost, so an erfc used in any other way (in
  ``exp(x**2) * erfc(x)``, for one) stays as it is.

The match is structural: the ops below the root are numbered by opcode, operands and constants, and compared with the
numbers of the same expression built here.
"""

from collections.abc import Callable

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, insert_before, insert_splat, ops_of, replace
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.analysis.values import is_float, splat_number
from neuronx_cc.passes.canonical.rule import result_op
from neuronx_cc.passes.manager import PassContext, only_for

COMMUTATIVE = ("add", "multiply")

SMALL = (7.85386146e-05, -0.000801019371, 0.00518832775, -0.0268538129, 0.112835854, -0.37612626, 1.12837911)
"""erf(x) / x as a polynomial in x**2, highest power first."""

MIDDLE = (
    *(0.0232682, -0.138703942, 0.368742466, -0.582473278, 0.621000469),
    *(-0.494451523, 0.340488, -0.274112701, 0.563825965),
)
"""erfc(x) * x * exp(x**2) as a polynomial in 1 / x**2, for 1 <= x < 2."""

LARGE = (-10.477664, 12.9772, -7.49551868, 2.92101908, -1.01526523, 0.42184633, -0.282076746, 0.564189494)
"""The same for 2 <= x."""


class Numbering:
    """Equal numbers for equal expressions: hash-consing over opcode, attributes and operand numbers."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, opcode: str, *operands: int, note: str = "") -> int:
        if opcode in COMMUTATIVE:
            operands = tuple(sorted(operands))
        return self._numbers.setdefault((opcode, note, *operands), len(self._numbers))

    def constant(self, number: float) -> int:
        return self.of("constant", note=f"{number:.5g}")

    def value(self, value: hlo.SSAValue, argument: hlo.SSAValue, module: HloModule, seen: dict[object, int]) -> int:
        """The number of ``value`` as a function of ``argument``, which has the number of ``of("x")``."""
        if value is argument:
            return self.of("x")
        if value in seen:
            return seen[value]
        seen[value] = -1  # counts towards the limit while its operands are numbered
        op = defining_op(value)
        number = splat_number(value, module)
        if number is not None:
            result = self.constant(number)
        elif not isinstance(op, hlo.ElementwiseOp) or len(seen) > MOST_OPS:
            result = self.of("other", note=str(id(value)))
        else:
            note = op.direction.data if isinstance(op, hlo.CompareOp) else ""
            operands = [self.value(operand, argument, module, seen) for operand in op.operands]
            result = self.of(op.opcode, *operands, note=note)
        seen[value] = result
        return result


MOST_OPS = 200
"""More distinct values than any expansion here has: the walk stops."""


def erfc_number(numbering: Numbering) -> int:
    """The number of XLA's expansion of ``erfc(x)`` for f32 (``math.cc``, after Cephes)."""
    of, constant = numbering.of, numbering.constant
    x, one, two, zero = of("x"), constant(1), constant(2), constant(0)

    def polynomial(argument: int, coefficients: tuple[float, ...]) -> int:
        total = constant(coefficients[0])
        for coefficient in coefficients[1:]:
            total = of("add", of("multiply", total, argument), constant(coefficient))
        return total

    square, magnitude = of("multiply", x, x), of("abs", x)
    near = of("subtract", one, of("multiply", x, polynomial(square, SMALL)))
    exponent, inverse = of("negate", square), of("divide", one, square)
    scale = of("multiply", of("exponential", exponent), of("divide", one, magnitude))
    is_middle = of("compare", magnitude, two, note="LT")
    tail = of("multiply", scale, of("select", is_middle, polynomial(inverse, MIDDLE), polynomial(inverse, LARGE)))
    tail = of("select", of("compare", exponent, constant(-88.7228394), note="LT"), zero, tail)
    far = of("select", of("compare", x, zero, note="LT"), of("subtract", two, tail), tail)
    return of("select", of("compare", magnitude, one, note="LT"), near, far)


def _erfc(op: hlo.HloOp, module: HloModule) -> hlo.SSAValue | None:
    assert isinstance(op, hlo.SelectOp)
    condition = result_op(op.predicate)
    if not isinstance(condition, hlo.CompareOp) or op.shape.dtype != "f32":
        return None
    magnitude = result_op(condition.lhs)
    if not isinstance(magnitude, hlo.AbsOp) or splat_number(condition.rhs, module) != 1:
        return None
    numbering = Numbering()
    expected = erfc_number(numbering)
    argument = magnitude.operand
    if numbering.value(op.results[0], argument, module, {}) != expected:
        return None
    if not _only_scales(op.results[0]) or not _in_gelu(op.results[0], *_multiple_of(argument, module), module):
        return None
    one = _splat(op, module, 1.0)
    if _multiple_of(argument, module)[1]:
        return _make(op, hlo.AddOp, _make(op, hlo.ErfOp, _make(op, hlo.NegateOp, argument)), one)
    return _make(op, hlo.SubtractOp, one, _make(op, hlo.ErfOp, argument))


def _softplus(op: hlo.HloOp, module: HloModule) -> hlo.SSAValue | None:
    """``max(x, 0) + ...`` instead of ``select(x != x, x, max(x, 0) + ...)``."""
    assert isinstance(op, hlo.SelectOp)
    condition, guarded = result_op(op.predicate), result_op(op.on_false)
    if not isinstance(condition, hlo.CompareOp) or not isinstance(guarded, hlo.AddOp):
        return None
    value = condition.lhs
    if condition.direction.data != "NE" or condition.rhs is not value or op.on_true is not value:
        return None
    if not is_float(op.shape.dtype):
        return None
    terms = [result_op(operand) for operand in guarded.operands]
    return op.on_false if any(isinstance(term, hlo.MaximumOp) and value in term.operands for term in terms) else None


def _select(op: hlo.HloOp, module: HloModule) -> hlo.SSAValue | None:
    return _softplus(op, module) or _erfc(op, module)


def _only_scales(value: hlo.SSAValue) -> bool:
    """Whether every use of ``value`` multiplies it, perhaps after a conversion."""
    for use in value.uses:
        user = use.operation
        if isinstance(user, hlo.ConvertOp):
            if not _only_scales(user.results[0]):
                return False
        elif not isinstance(user, hlo.MultiplyOp):
            return False
    return True


def _multiple_of(value: hlo.SSAValue, module: HloModule) -> tuple[hlo.SSAValue, bool]:
    """What ``value`` is a constant multiple of, rounded or not, and whether the multiple is negative."""
    negative = False
    while True:
        op = defining_op(value)
        if isinstance(op, hlo.ConvertOp):
            value = op.operand
        elif isinstance(op, hlo.NegateOp):
            value, negative = op.operand, not negative
        elif isinstance(op, (hlo.MultiplyOp, hlo.DivideOp)):
            scale, other = splat_number(op.rhs, module), op.lhs
            if scale is None and isinstance(op, hlo.MultiplyOp):
                scale, other = splat_number(op.lhs, module), op.rhs
            if scale is None:
                return value, negative
            value, negative = other, negative != (scale < 0)
        else:
            return value, negative


FACTORS = 6
"""More factors than a product has in GELU or in its gradient: the walk stops."""


def _in_gelu(
    value: hlo.SSAValue, base: hlo.SSAValue, negative: bool, module: HloModule, alone: bool = True, left: int = FACTORS
) -> bool:
    """Whether ``value``, the erfc of a multiple of ``base``, is multiplied by a multiple of the other sign (GELU), or
    its product with something is added to such a multiple's (the gradient): what is lost is small beside ``base`` then.
    ``alone``: it has been multiplied by constants only.
    """
    for use in value.uses if left else ():
        user = use.operation
        if isinstance(user, hlo.ConvertOp):
            found = _in_gelu(user.results[0], base, negative, module, alone, left - 1)
        elif isinstance(user, hlo.MultiplyOp):
            other = user.operands[1 - use.index]
            found = alone and _multiple_of(other, module) == (base, not negative)
            constant = splat_number(other, module) is not None
            found = found or _in_gelu(user.results[0], base, negative, module, alone and constant, left - 1)
        else:
            found = isinstance(user, hlo.AddOp) and _has_factor(user.operands[1 - use.index], base, module)
        if found:
            return True
    return False


def _has_factor(value: hlo.SSAValue, base: hlo.SSAValue, module: HloModule, left: int = FACTORS) -> bool:
    value, _ = _multiple_of(value, module)
    op = defining_op(value)
    if value is base or not left or not isinstance(op, hlo.MultiplyOp):
        return value is base
    return any(_has_factor(operand, base, module, left - 1) for operand in op.operands)


def _make(op: hlo.HloOp, kind: type[hlo.HloOp], *operands: hlo.SSAValue) -> hlo.SSAValue:
    return insert_before(op, kind, operands, op.results[0].type, op.loc)


def _splat(op: hlo.HloOp, module: HloModule, number: float) -> hlo.SSAValue:
    shape = op.shape
    return insert_splat(module, op, NUMPY_DTYPE[shape.dtype].type(number), shape.dtype, shape.dims, op.loc)


PATTERNS: dict[type, Callable[[hlo.HloOp, HloModule], hlo.SSAValue | None]] = {
    hlo.SelectOp: _select,
}


@only_for(*PATTERNS)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            pattern = PATTERNS.get(type(op))
            if pattern is not None and isinstance(op.results[0].type, hlo.ArrayType):
                value = pattern(op, module)
                if value is not None:
                    replace(op, value)
