"""Evaluates two polynomials and selects one result, instead of selecting each coefficient.

Input: canonical hlo. Output: a polynomial by Horner's rule whose coefficients are all selected between two constants
by one condition is two polynomials, of each side's constants and of that side's argument, and one select. A step of
each is one instruction of Vector, ``(p + constant) * x``, where selecting is one more, and the constant that it gives
an array, so that the sum and the product are two. Every element's value is the same to the last bit. The inverse of the
error function, and so every normal random number of JAX, is such a polynomial of nine coefficients; it looks at
``-log1p(y)`` as well, whose tail, which alone needs it to be exact near 0, the condition leaves out: an ordinary
logarithm does for it, which Scalar has.
"""

from typing import NamedTuple

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import (
    defining_op,
    erase,
    has_one_use,
    ops_of,
    replace,
    users,
)
from neuronx_cc.passes.analysis.values import is_float, splat_number
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext, only_for

LEAST = 3
"""Coefficients from which two polynomials take less than selects."""
LEAST_APART = 1.0
"""Numbers this far from 0 to which a logarithm is added, or with which it is compared, so that its error does not show
that is absolute."""
FOLLOWED = 64
"""Ops after a logarithm that are looked at."""


class Polynomial(NamedTuple):
    """``coefficients``, selects by one condition, of powers of ``argument``, the lowest first."""

    argument: hlo.SSAValue
    coefficients: tuple[hlo.SelectOp, ...]

    @property
    def condition(self) -> hlo.SSAValue:
        return self.coefficients[0].predicate


@only_for(hlo.SelectOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        known: dict[hlo.SSAValue, Polynomial | None] = {}
        for op in reversed(list(ops_of(computation.block))):
            if isinstance(op, hlo.ElementwiseOp) and op.results[0].first_use is None:
                erase(op)  # steps of a polynomial that was split, whose readers would count
            elif isinstance(op, hlo.AddOp):
                found = _polynomial(op, module, known)
                if found is not None and len(found.coefficients) >= LEAST:
                    _split(Build.before(module, op), op, found)
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.LogPlusOneOp) and op.shape.dtype == "f32" and _is_apart(op.result, module):
                b = Build.before(module, op)
                replace(op, b.each(hlo.LogOp, b.add(op.operand, b.number_like(1, op.operand))))


def _polynomial(op: hlo.AddOp, module: HloModule, known: dict[hlo.SSAValue, Polynomial | None]) -> Polynomial | None:
    if op.result not in known:
        known[op.result] = _found(op, module, known) if is_float(op.shape.dtype) else None
    return known[op.result]


def _found(op: hlo.AddOp, module: HloModule, known: dict[hlo.SSAValue, Polynomial | None]) -> Polynomial | None:
    for lowest, rest in (op.operands, reversed(op.operands)):
        coefficient, product = _selected(lowest, module), defining_op(rest)
        if coefficient is None or not isinstance(product, hlo.MultiplyOp) or not has_one_use(rest):
            continue
        for inner, argument in (product.operands, reversed(product.operands)):
            highest, more = _selected(inner, module), defining_op(inner)
            if highest is not None and highest.predicate is coefficient.predicate:
                return Polynomial(argument, (coefficient, highest))
            if isinstance(more, hlo.AddOp) and has_one_use(inner):
                others = _polynomial(more, module, known)
                if others is not None and others.argument is argument and others.condition is coefficient.predicate:
                    return Polynomial(argument, (coefficient, *others.coefficients))
    return None


def _selected(value: hlo.SSAValue, module: HloModule) -> hlo.SelectOp | None:
    """The op of ``value`` if it selects between two constants, element by element."""
    op = defining_op(value)
    if not isinstance(op, hlo.SelectOp) or hlo.shape_of(op.predicate).dims != op.shape.dims:
        return None
    return op if all(splat_number(side, module) is not None for side in (op.on_true, op.on_false)) else None


def _split(b: Build, op: hlo.AddOp, polynomial: Polynomial) -> None:
    sides = []
    chosen = defining_op(polynomial.argument)
    for side in (1, 2):
        argument = polynomial.argument
        if isinstance(chosen, hlo.SelectOp) and chosen.predicate is polynomial.condition:
            argument = chosen.operands[side]
        total, *lower = (each.operands[side] for each in reversed(polynomial.coefficients))
        for coefficient in lower:
            total = b.add(b.mul(total, argument), coefficient)
        sides.append(total)
    replace(op, b.select(polynomial.condition, *sides))


def _is_apart(value: hlo.SSAValue, module: HloModule) -> bool:
    """Whether numbers of magnitude 1 or more are added to all that reads ``value``, perhaps negated, or where they are
    not, a comparison with such a number says that it is larger than that.
    """
    conditions = set[hlo.SSAValue]()
    roots = list[hlo.SqrtOp]()
    for user in users(value):
        if isinstance(user, hlo.NegateOp):
            if not _is_apart(user.result, module):
                return False
        elif isinstance(user, hlo.SqrtOp):
            roots.append(user)
        elif isinstance(user, hlo.CompareOp | hlo.AddOp | hlo.SubtractOp):
            numbers = [splat_number(operand, module) for operand in user.operands]
            number = next((number for number in numbers if number is not None), None)
            if number is None or abs(number) < LEAST_APART:
                return False
            if isinstance(user, hlo.CompareOp) and user.lhs is value and number > 0 and user.direction.data == "LT":
                conditions.add(user.result)
        else:
            return False
    return bool(users(value)) and all(_is_left_out(root.result, conditions, set()) for root in roots)


def _is_left_out(value: hlo.SSAValue, conditions: set[hlo.SSAValue], seen: set[hlo.SSAValue]) -> bool:
    """Whether ``value`` shows only where one of the ``conditions`` does not hold."""
    seen.add(value)
    for user in users(value):
        if isinstance(user, hlo.SelectOp) and user.predicate in conditions:
            if user.predicate is value or user.on_true is value:
                return False
            continue
        if not isinstance(user, hlo.ElementwiseOp) or len(seen) > FOLLOWED:
            return False
        if user.results[0] not in seen and not _is_left_out(user.results[0], conditions, seen):
            return False
    return bool(users(value))
