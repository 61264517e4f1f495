"""Formats of hlo operations: abstract bases, so that a concrete op is name, formula and fields.

A module holds ``ComputationOp``s; ops call computations by name, as HLO itself does.
The text form of the dialect is HLO text (``hlo_import.parser`` and ``hlo_import.printer``).
"""

from abc import ABCMeta
from collections.abc import Mapping, Sequence
from typing import Any, Self

from xdsl.ir import Attribute, Block, OpResult, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
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
    TokenType,
    TupleType,
)
from neuronx_cc.ir.types import Shape

OPCODES: dict[str, type["HloOp"]] = {}
"""HLO opcode -> op class; filled as the family modules are imported."""
_SPELLINGS: dict[str, str] = {}
"""Name of an op class -> HLO opcode."""


class _OpClass(ABCMeta):
    """Op classes have no virtual subclasses, so ``isinstance`` need not ask ABC, which takes twice as long."""

    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


class HloOp(IRDLOperation, metaclass=_OpClass):
    """Base of every HLO instruction: operands, one result, properties named as HLO text names them."""

    result = result_def()
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


class ElementwiseUnaryOp(UnaryOp):
    """Applied element by element; operand and result dims agree."""


class ElementwiseBinaryOp(BinaryOp):
    """Applied element by element; lhs, rhs and result dims agree."""


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
    "ArrayType",
    "BinaryOp",
    "ComputationOp",
    "ElementwiseBinaryOp",
    "ElementwiseUnaryOp",
    "HloOp",
    "NullaryOp",
    "ReturnOp",
    "TokenType",
    "TupleType",
    "UnaryOp",
    "VariadicOp",
    "loc_of",
    "shape_of",
]
