"""What a rule is: operand counts, the kind of its types, and a function that says what is wrong.

A rule function returns "" when the op is well formed, else a sentence "expected ..., found ...".
``ArrayRule`` functions get the operand shapes and the result shape; ``TypeRule`` functions the types themselves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from neuronx_cc.ir.hlo import ArrayType, ComputationOp, TupleType
from neuronx_cc.ir.hlo.base import HloOp
from neuronx_cc.ir.types import COMPLEX, FLOATS, INTEGERS, Shape

Computations = Mapping[str, ComputationOp]
ArrayCheck = Callable[[Any, list[Shape], Shape], str]
TypeCheck = Callable[[Any, list[Any], Any], str]
CallCheck = Callable[[Any, list[Any], Any, Computations], str]

ANY = 1 << 30


@dataclass(frozen=True, slots=True)
class ArrayRule:
    """All operands and the result are arrays."""

    check: ArrayCheck
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class TypeRule:
    """Operands and result may be tuples or tokens."""

    check: TypeCheck
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class CallRule:
    """As ``TypeRule``, and the op calls computations, whose signatures count."""

    check: CallCheck
    least: int
    most: int


Rule = ArrayRule | TypeRule | CallRule
RULES: dict[str, Rule] = {}
"""Opcode -> rule."""


def array_rule(*opcodes: str, operands: int | tuple[int, int] = 1) -> Callable[[ArrayCheck], ArrayCheck]:
    """Registers an ``ArrayRule`` for ``opcodes``; ``operands`` is a count or (least, most)."""
    least, most = (operands, operands) if isinstance(operands, int) else operands

    def register(check: ArrayCheck) -> ArrayCheck:
        RULES.update({opcode: ArrayRule(check, least, most) for opcode in opcodes})
        return check

    return register


def type_rule(*opcodes: str, operands: int | tuple[int, int] = 1) -> Callable[[TypeCheck], TypeCheck]:
    """Registers a ``TypeRule``."""
    least, most = (operands, operands) if isinstance(operands, int) else operands

    def register(check: TypeCheck) -> TypeCheck:
        RULES.update({opcode: TypeRule(check, least, most) for opcode in opcodes})
        return check

    return register


def call_rule(*opcodes: str, operands: int | tuple[int, int] = (0, ANY)) -> Callable[[CallCheck], CallCheck]:
    """Registers a ``CallRule``."""
    least, most = (operands, operands) if isinstance(operands, int) else operands

    def register(check: CallCheck) -> CallCheck:
        RULES.update({opcode: CallRule(check, least, most) for opcode in opcodes})
        return check

    return register


def show(type_: Any) -> str:
    """A type or shape as HLO text; long tuples are cut."""
    if isinstance(type_, Shape):
        return str(type_)
    if isinstance(type_, ArrayType):
        return str(type_.data)
    if isinstance(type_, TupleType):
        shown = ", ".join(map(show, type_.data[:8])) + (", ..." if len(type_.data) > 8 else "")
        return f"({shown})"
    return "token[]"


def dims_text(dims: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, dims))}]"


def is_integer(dtype: str) -> bool:
    return dtype in INTEGERS


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def is_complex(dtype: str) -> bool:
    return dtype in COMPLEX


def expect_dims(what: str, expected: tuple[int, ...], found: tuple[int, ...]) -> str:
    """ "" or the sentence about dims."""
    return "" if expected == found else f"expected {what} of dims {dims_text(expected)}, found {dims_text(found)}"


def expect_dtype(what: str, expected: str, found: str) -> str:
    return "" if expected == found else f"expected {what} of element type {expected}, found {found}"


def expect_type(what: str, expected: Any, found: Any) -> str:
    return "" if expected == found else f"expected {what} of type {show(expected)}, found {show(found)}"


def dims_in_range(what: str, dims: tuple[int, ...], rank: int, unique: bool = True) -> str:
    """Whether ``dims`` are distinct dimension numbers below ``rank``."""
    if any(not 0 <= dim < rank for dim in dims):
        return f"expected {what} between 0 and {rank - 1}, found {dims_text(dims)}"
    if unique and len(set(dims)) != len(dims):
        return f"expected distinct {what}, found {dims_text(dims)}"
    return ""


def same_but_precision(first: Any, second: Any) -> bool:
    """Types that agree when all floating-point element types count as one."""
    if first == second:
        return True
    if isinstance(first, TupleType) and isinstance(second, TupleType):
        return len(first.data) == len(second.data) and all(map(same_but_precision, first.data, second.data))
    if not (isinstance(first, ArrayType) and isinstance(second, ArrayType)):
        return False
    return first.data.dims == second.data.dims and first.data.dtype in FLOATS and second.data.dtype in FLOATS


__all__ = [
    "ANY",
    "RULES",
    "ArrayRule",
    "CallRule",
    "Computations",
    "HloOp",
    "Rule",
    "TypeRule",
    "array_rule",
    "call_rule",
    "dims_in_range",
    "dims_text",
    "expect_dims",
    "expect_dtype",
    "expect_type",
    "is_complex",
    "is_float",
    "is_integer",
    "same_but_precision",
    "show",
    "type_rule",
]
