"""Applies a scalar computation (of a map, reduction, window, scatter or sort) to whole arrays, element by element."""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import copy_op, insert_before, ops_of
from neuronx_cc.ir.hlo.scalar_bodies import is_elementwise

__all__ = ["apply_body", "is_elementwise"]


def apply_body(
    anchor: hlo.Operation,
    body: hlo.ComputationOp,
    operands: Sequence[hlo.SSAValue],
    dims: tuple[int, ...],
    wanted: Sequence[hlo.SSAValue] = (),
) -> list[hlo.SSAValue]:
    """Insert ``body`` above ``anchor`` with each scalar replaced by an array of ``dims``; returns its results.

    ``operands``: arrays of ``dims``, one for each parameter. ``body`` must be ``is_elementwise``. ``wanted``: values of
    ``body`` to return instead of its results.
    """
    values: dict[hlo.SSAValue, hlo.SSAValue] = dict(zip(body.block.args, operands, strict=True))
    block = anchor.parent
    assert block is not None
    root = body.root
    roots = [root]
    for op in ops_of(body.block):
        if isinstance(op, hlo.TupleOp):
            roots = list(op.operands)
            continue
        result_type = hlo.array_type(op.shape.dtype, dims)
        scalar = isinstance(op, hlo.ConstantOp)
        copied = copy_op(
            op, [values[operand] for operand in op.operands], op.results[0].type if scalar else result_type
        )
        block.insert_op_before(copied, anchor)
        value: hlo.SSAValue = copied.results[0]
        if scalar and dims:
            spread = {"dimensions": hlo.IntsAttr(())}
            value = insert_before(anchor, hlo.BroadcastOp, (value,), result_type, op.loc, spread)
        values[op.results[0]] = value
    return [values[result] for result in wanted or roots]
