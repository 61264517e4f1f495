"""Small edits of hlo IR that passes share: build, replace, retype, copy.

Blocks are straight-line code: every edit keeps the definition of a value above its uses.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from xdsl.ir import Attribute, Block, BlockArgument, Operation, OpResult, SSAValue

from neuronx_cc.ir.errors import Loc
from neuronx_cc.ir.hlo.attrs import ArrayType, ConstantAttr, IntsAttr, TupleType, array_type, tuple_type
from neuronx_cc.ir.hlo.base import ComputationOp, HloOp, ReturnOp, ViewOp
from neuronx_cc.ir.hlo.module import HloModule
from neuronx_cc.ir.hlo.movement import BroadcastOp, ConstantOp


def defining_op(value: SSAValue) -> Operation | None:
    """The op whose result ``value`` is; None for a parameter."""
    return value.op if isinstance(value, OpResult) else None


def ops_of(block: Block) -> Iterator[HloOp]:
    """The instructions of ``block`` in order, without the return; the current one may be erased meanwhile."""
    op = block.first_op
    while op is not None:
        following = op._next_op  # the property of that name takes a quarter of a sweep
        if type(op) is not ReturnOp:
            yield op  # type: ignore[misc]  # a computation holds instructions and the return only
        op = following


def kinds_in(module: HloModule) -> set[type[HloOp]]:
    """The classes of the instructions of ``module``."""
    found: set[type[Operation]] = set()
    for computation in module.computations():
        op = computation.block.first_op
        while op is not None:
            found.add(type(op))
            op = op._next_op
    return found - {ReturnOp}  # type: ignore[return-value]  # what a computation holds beside it are instructions


def values_of(computation: ComputationOp) -> list[SSAValue]:
    """The parameters and the results of all instructions."""
    return [*computation.block.args, *(op.results[0] for op in ops_of(computation.block))]


def has_dtype(type_: Attribute, dtypes: Container[str]) -> bool:
    """Whether ``type_`` is an array of one of these element types, or a tuple with one in it."""
    if isinstance(type_, TupleType):
        return any(has_dtype(part, dtypes) for part in type_.data)
    return isinstance(type_, ArrayType) and type_.data.dtype in dtypes


def with_dtypes(type_: Attribute, dtypes: Mapping[str, str]) -> Attribute:
    """``type_`` with other element types, inside tuples too."""
    if isinstance(type_, TupleType):
        return tuple_type(tuple(with_dtypes(part, dtypes) for part in type_.data))
    if isinstance(type_, ArrayType) and type_.data.dtype in dtypes:
        return array_type(dtypes[type_.data.dtype], type_.data.dims)
    return type_


def insert_before(
    anchor: Operation,
    kind: type[HloOp],
    operands: Sequence[SSAValue],
    result_type: Attribute,
    loc: Loc,
    properties: Mapping[str, Attribute] | None = None,
) -> SSAValue:
    """Build an op above ``anchor`` and return its result."""
    op = kind.make(operands, result_type, loc, properties)
    block = anchor.parent
    assert block is not None
    block.insert_op_before(op, anchor)
    return op.results[0]


def insert_constant(
    module: HloModule, anchor: Operation, array: np.ndarray[Any, Any], dtype: str, loc: Loc
) -> SSAValue:
    """A constant op above ``anchor`` holding ``array`` (NumPy type of ``dtype``, any dims)."""
    digest = module.constants.add(array, dtype)
    return insert_before(anchor, ConstantOp, (), array_type(dtype, array.shape), loc, {"value": ConstantAttr(digest)})


def insert_splat(
    module: HloModule, anchor: Operation, scalar: np.ndarray[Any, Any], dtype: str, dims: tuple[int, ...], loc: Loc
) -> SSAValue:
    """``broadcast(constant(scalar))`` above ``anchor``; just the constant when ``dims`` is empty."""
    value = insert_constant(module, anchor, scalar.reshape(()), dtype, loc)
    if not dims:
        return value
    return insert_before(anchor, BroadcastOp, (value,), array_type(dtype, dims), loc, {"dimensions": IntsAttr(())})


def erase(op: Operation) -> None:
    """Remove an op whose result has no users."""
    assert op.parent is not None
    op.parent.erase_op(op)


def replace(op: Operation, value: SSAValue) -> None:
    """Let the users of ``op`` use ``value``, and remove ``op``."""
    op.results[0].replace_all_uses_with(value)
    erase(op)


def retype(value: SSAValue, type_: Attribute) -> None:
    """Change the type of a value in place; the caller keeps its definition and users valid."""
    value._type = type_


def copy_op(op: HloOp, operands: Sequence[SSAValue], result_type: Attribute | None = None) -> HloOp:
    """A detached copy of ``op`` on other operands, with its properties and location."""
    return type(op).create(
        operands=operands,
        result_types=(result_type or op.results[0].type,),
        properties=dict(op.properties),
        attributes=dict(op.attributes),
    )


def copy_for(op: HloOp, readers: Sequence[Operation]) -> HloOp:
    """A copy of ``op`` ahead of the first of ``readers``, which read it instead."""
    copy, block = copy_op(op, op.sources), op.parent
    assert block is not None, "of a computation"
    block.insert_op_before(copy, readers[0])
    for reader in readers:
        reader.operands = [copy.results[0] if operand is op.results[0] else operand for operand in reader.operands]
    return copy


def viewed(value: SSAValue) -> SSAValue:
    """What ``value`` is a view of, through any number of views; itself if it is none."""
    while isinstance(value.owner, ViewOp):
        value = value.owner.operands[0]
    return value


def users(value: SSAValue) -> list[Operation]:
    """Ops that use ``value``, once per use."""
    return [use.operation for use in value.uses]


def has_one_use(value: SSAValue) -> bool:
    return value.has_one_use()


def argument_block(value: SSAValue) -> Block | None:
    """The block whose parameter ``value`` is, or None for an op's result."""
    return value.block if isinstance(value, BlockArgument) else None


__all__ = [
    "argument_block",
    "copy_op",
    "defining_op",
    "erase",
    "has_one_use",
    "insert_before",
    "insert_constant",
    "insert_splat",
    "ops_of",
    "replace",
    "retype",
    "users",
]
