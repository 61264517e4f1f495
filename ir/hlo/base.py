"""Formats of hlo operations: abstract bases, so that a concrete op is name, formula and fields.

A module holds ``ComputationOp``s; ops call computations by name, as HLO itself does.
The text form of the dialect is HLO text (``hlo_import.parser`` and ``hlo_import.printer``).
"""

from abc import ABCMeta
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Self

from xdsl.ir import Attribute, Block, OpResult, Region, SSAValue, SSAValues
from xdsl.irdl import (
    BeforeVariadicSingleAccessor,
    IRDLOperation,
    VarIRConstruct,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import IsolatedFromAbove, IsTerminator

from neuronx_cc.ir.errors import NO_LOC, Loc
from neuronx_cc.ir.hlo.attrs import (
    ArrayType,
    BoolAttr,
    ExtraAttr,
    LocAttr,
    StrAttr,
    StrsAttr,
    TokenType,
    TupleType,
)
from neuronx_cc.ir.types import Shape

OPCODES: dict[str, type["HloOp"]] = {}
"""HLO opcode -> op class; filled as the family modules are imported."""
_SPELLINGS: dict[str, str] = {}
"""Name of an op class -> HLO opcode."""


# Values are hashed by identity; xDSL says so in Python, C says the same in a third of the time.
SSAValue.__hash__ = object.__hash__  # type: ignore[method-assign]
SSAValue.type = property(attrgetter("_type"))  # type: ignore[assignment, method-assign]
# So are operands and results indexed; a slice of them is a plain tuple then, which nothing minds.
SSAValues.__getitem__ = tuple.__getitem__  # type: ignore[method-assign, assignment]


def _operand(index: int) -> property:
    """The operand at ``index``, in a fifth of the time of the generic accessor: passes read little else."""
    return property(lambda op: tuple.__getitem__(op._operands, index))


def _result(index: int) -> property:
    return property(lambda op: op.results[index])


_FIELDS = {VarIRConstruct.OPERAND: _operand, VarIRConstruct.RESULT: _result}
"""Kind of field -> what reads it."""


class _OpClass(ABCMeta):
    """Op classes have no virtual subclasses, so ``isinstance`` need not ask ABC, which takes twice as long; and their
    operands and results are read by properties of ours, in place of the accessors that xDSL sets.
    """

    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__

    def __setattr__(cls, name: str, value: object) -> None:
        if isinstance(value, BeforeVariadicSingleAccessor):
            value = _FIELDS[value.construct](value.idx)
        super().__setattr__(name, value)


class HloOp(IRDLOperation, metaclass=_OpClass):
    """Base of every HLO instruction: operands, one result, properties named as HLO text names them."""

    result = result_def()
    __hash__ = object.__hash__
    extra = opt_prop_def(ExtraAttr)
    """HLO attributes kept as text (sharding, frontend attributes, backend config)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__dict__.get("name")
        if name is not None:
            _SPELLINGS[name] = name.removeprefix("hlo.").replace("_", "-")
            OPCODES[_SPELLINGS[name]] = cls

    @classmethod
    def make(
        cls,
        operands: Sequence[SSAValue],
        result_type: Attribute,
        loc: Loc = NO_LOC,
        properties: Mapping[str, Attribute] | None = None,
    ) -> Self:
        """Build quickly, with interned attributes (``Op.create``; no argument normalisation)."""
        return cls.create(
            operands=operands,
            result_types=(result_type,),
            properties=properties or {},
            attributes={"loc": LocAttr(loc)},
        )

    @property
    def sources(self) -> tuple[SSAValue, ...]:
        """The operands, to read: the tuple itself, where ``operands`` is a view that writes."""
        return self._operands

    @property
    def opcode(self) -> str:
        """HLO spelling of the opcode."""
        return _SPELLINGS[self.name]

    @property
    def loc(self) -> Loc:
        attr = self.attributes.get("loc")
        return attr.data if isinstance(attr, LocAttr) else NO_LOC

    @property
    def shape(self) -> Shape:
        """Shape of the array result; raises TypeError for tuple and token results."""
        return shape_of(self.results[0])


def shape_of(value: SSAValue) -> Shape:
    """Shape of an array value."""
    type_ = value.type
    if not isinstance(type_, ArrayType):
        raise TypeError(f"{type_} is not an array type")
    return type_.data


class NullaryOp(HloOp):
    """No operands."""


class UnaryOp(HloOp):
    """``result = f(operand)``."""

    operand = operand_def()


class BinaryOp(HloOp):
    """``result = f(lhs, rhs)``."""

    lhs = operand_def()
    rhs = operand_def()


class VariadicOp(HloOp):
    """Any number of operands."""

    args = var_operand_def()


class ElementwiseOp(HloOp):
    """Applied element by element; the dims of operands and result agree."""


class ElementwiseUnaryOp(UnaryOp, ElementwiseOp):
    """Of one operand."""


class ElementwiseBinaryOp(BinaryOp, ElementwiseOp):
    """Of two operands."""


class CombinerOp(ElementwiseBinaryOp):
    """Associative and commutative, but for rounding: what reductions, scatters and collectives combine by."""


class IdempotentOp(CombinerOp):
    """Combines a value with itself to itself: an element may be met twice."""


class InRangeOp(HloOp):
    """Its result fits any type of integers that its operands do."""


class HighBitsOp(HloOp):
    """Where in a word an integer ends matters to its result."""


class ExtremeOp(IdempotentOp, InRangeOp):
    """Which of two zeros, or of two NaNs, it gives depends on the order of the operands."""


class ChoosingOp(ElementwiseOp):
    """The result is one of the operands, or its negative: nothing is rounded."""


class DiscontinuousOp(HloOp):
    """Its result jumps: an error of an operand in the last place may make it another number."""


class FormatOp(ElementwiseOp):
    """About the format of its operands itself, which no pass may choose for it."""


class MovementOp(HloOp):
    """The elements of the result are elements of the operands; nothing is computed."""

    PLACES: ClassVar[int | None] = None
    """Operands from this one on say where, and hold nothing that is moved."""


class ViewOp(MovementOp):
    """Of one operand; its attributes say which element goes where."""


class IdentityOp(MovementOp):
    """The result is the operand."""


class OpaqueOp(HloOp):
    """Its result does not follow from its operands alone: chance, other devices, the host or a loop decide."""


class ContractionOp(HloOp):
    """Sums of products of two arrays."""


class ApplyingOp(HloOp):
    """``to_apply``, a computation of scalars, is applied to elements."""

    to_apply = prop_def(StrsAttr)


class CollectiveOp(OpaqueOp):
    """Its result depends on what other devices hold."""


class ReducingOp(CollectiveOp, ApplyingOp):
    """Combines what devices hold by ``to_apply``."""


class ExchangeOp(CollectiveOp):
    """The elements of the result are elements of some device's operands, or zero."""


class StartOp(HloOp):
    """Begins what the op of its result ends."""


class HostOp(HloOp):
    """Speaks to the host, or to other programs, from inside a program."""


class RandomOp(OpaqueOp):
    """Random numbers."""


class RegionOp(OpaqueOp):
    """Which of the computations that it calls run, and how often, run-time values decide."""


def opcodes(*kinds: type[HloOp]) -> frozenset[str]:
    """The opcodes of all ops of these kinds."""
    return frozenset(opcode for opcode, kind in OPCODES.items() if issubclass(kind, kinds))


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """Ends a computation and names its root value."""

    name = "hlo.return"
    root = operand_def()
    traits = traits_def(IsTerminator())


@irdl_op_definition
class ComputationOp(IRDLOperation):
    """A named HLO computation: one block whose arguments are the parameters, ended by ``hlo.return``.

    ``param_locs`` (a discardable attribute ``param.<i>``) keeps the parameters' HLO names.
    """

    name = "hlo.computation"
    sym_name = prop_def(StrAttr)
    is_entry = prop_def(BoolAttr)
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove())

    @classmethod
    def make(cls, name: str, parameter_types: Sequence[Attribute], is_entry: bool = False) -> Self:
        block = Block(arg_types=parameter_types)
        return cls.create(
            properties={"sym_name": StrAttr(name), "is_entry": BoolAttr(is_entry)}, regions=(Region(block),)
        )

    @property
    def computation_name(self) -> str:
        return self.sym_name.data

    @property
    def block(self) -> Block:
        return self.body.block

    @property
    def root(self) -> SSAValue:
        last = self.block.last_op
        assert isinstance(last, ReturnOp)
        return last.root

    def parameter_loc(self, index: int) -> Loc:
        attr = self.attributes.get(f"param.{index}")
        return attr.data if isinstance(attr, LocAttr) else Loc(name=f"arg{index}")

    def set_parameter_loc(self, index: int, loc: Loc) -> None:
        self.attributes[f"param.{index}"] = LocAttr(loc)


def loc_of(value: SSAValue) -> Loc:
    """Location of the instruction or parameter that defines ``value``."""
    if isinstance(value, OpResult):
        return value.op.loc if isinstance(value.op, HloOp) else NO_LOC
    parent = value.owner.parent_op() if isinstance(value.owner, Block) else None
    if isinstance(parent, ComputationOp):
        return parent.parameter_loc(value.index)  # type: ignore[attr-defined]
    return NO_LOC


__all__ = [
    "OPCODES",
    "ApplyingOp",
    "ArrayType",
    "BinaryOp",
    "ChoosingOp",
    "CollectiveOp",
    "CombinerOp",
    "ComputationOp",
    "ContractionOp",
    "DiscontinuousOp",
    "ElementwiseBinaryOp",
    "ElementwiseOp",
    "ElementwiseUnaryOp",
    "ExchangeOp",
    "ExtremeOp",
    "FormatOp",
    "HighBitsOp",
    "HloOp",
    "HostOp",
    "IdempotentOp",
    "IdentityOp",
    "InRangeOp",
    "MovementOp",
    "NullaryOp",
    "OpaqueOp",
    "RandomOp",
    "ReducingOp",
    "RegionOp",
    "ReturnOp",
    "StartOp",
    "TokenType",
    "TupleType",
    "UnaryOp",
    "VariadicOp",
    "ViewOp",
    "loc_of",
    "opcodes",
    "shape_of",
]
