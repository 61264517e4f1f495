"""Computations of scalars (of a map, reduction, window, scatter or sort) that can be applied to whole arrays."""

from neuronx_cc.ir.hlo.attrs import ArrayType
from neuronx_cc.ir.hlo.base import ComputationOp, ElementwiseOp, HloOp
from neuronx_cc.ir.hlo.control import TupleOp
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.hlo.movement import BitcastConvertOp, ConstantOp


def is_elementwise(body: ComputationOp) -> bool:
    """Whether every op of ``body`` maps scalars to a scalar; a root tuple of such is allowed."""
    return all(is_scalar(op) or (isinstance(op, TupleOp) and op.results[0] is body.root) for op in ops_of(body.block))


def is_scalar(op: HloOp) -> bool:
    """Whether ``op`` maps scalars to a scalar, each element for itself."""
    values = (*op.operands, *op.results)
    each = isinstance(op, ElementwiseOp | ConstantOp | BitcastConvertOp)
    return each and all(isinstance(x.type, ArrayType) and not x.type.data.rank for x in values)
