"""What both front ends (text, protos) hand to the builder: computations as plain records, nothing resolved yet."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from neuronx_cc.ir import hlo
from neuronx_cc.ir.constants import ConstantPool
from neuronx_cc.ir.errors import CompileError, Loc

Properties = dict[str, hlo.Attribute]

INFERRED: hlo.Attribute = hlo.StrAttr("the type that follows")
"""Stands for the type of an instruction whose text leaves it out: the builder infers it."""


@dataclass(slots=True)
class RawInstruction:
    """One instruction. ``operands`` are keys of other instructions of the computation (names or proto ids)."""

    key: str | int
    opcode: str
    type: hlo.Attribute
    operands: Sequence[str | int]
    properties: Properties
    loc: Loc
    position: int
    """Where it stands in the file, for ``RawModule.error``."""
    layout: tuple[int, ...] | None = None
    """Minor-to-major order when it is not row-major."""
    spelled: str = ""
    """The type with its layouts, where they say more than the type."""
    parameter: int = -1
    """Parameter number of a ``parameter``."""
    metadata: str = ""
    """Metadata fields that ``loc`` does not carry, as text."""
    operand_types: list[hlo.Attribute | None] | None = None
    """Types written before the operands in the long form of the text, to compare with what the operands are."""


def parameter(name: str, type_: hlo.Attribute, position: int, number: int) -> RawInstruction:
    """The parameter ``number`` of a computation."""
    return RawInstruction(name, "parameter", type_, (), {}, Loc(name), position, parameter=number)


@dataclass(slots=True)
class RawComputation:
    name: str
    instructions: list[RawInstruction]
    root: str | int | None
    """Key of the root; None means the last instruction."""
    position: int
    is_entry: bool = False
    execution_thread: str = ""
    result: hlo.Attribute | None = None
    """Type of the result, where the signature states it."""


class ErrorMaker(Protocol):
    """Makes an error for a position of the file, and for the op there if it is known."""

    def __call__(self, position: int, message: str, loc: Loc | None = None) -> CompileError: ...


@dataclass(slots=True)
class RawModule:
    name: str
    computations: list[RawComputation]
    error: "ErrorMaker"
    """Makes an error for a position of the file."""
    constants: ConstantPool = field(default_factory=ConstantPool)
    aliases: tuple[hlo.Alias, ...] = ()
    donors: tuple[tuple[int, tuple[int, ...]], ...] = ()
    header: tuple[tuple[str, str], ...] = ()
    source: str = ""
