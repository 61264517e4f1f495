"""Applies a scalar computation (of a map, reduction, window, scatter or sort) to whole arrays, element by element."""

from collections.abc import Callable, Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import copy_op, insert_before, ops_of
from neuronx_cc.ir.hlo.scalar_bodies import is_elementwise

__all__ = ["apply_body", "apply_op", "is_elementwise", "split_parameters"]


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
    root = body.root
    roots = [root]
    for op in ops_of(body.block):
        if isinstance(op, hlo.TupleOp):
            roots = list(op.operands)
            continue
        values[op.results[0]] = apply_op(anchor, op, [values[operand] for operand in op.operands], dims)
    return [values[result] for result in wanted or roots]


def apply_op(
    anchor: hlo.Operation, op: hlo.HloOp, operands: Sequence[hlo.SSAValue], dims: tuple[int, ...]
) -> hlo.SSAValue:
    """Insert above ``anchor`` what ``op``, an operator on scalars, is of arrays of ``dims``; returns its result."""
    block = anchor.parent
    assert block is not None
    result_type = hlo.array_type(op.shape.dtype, dims)
    is_constant = isinstance(op, hlo.ConstantOp)
    copied = copy_op(op, operands, op.results[0].type if is_constant else result_type)
    block.insert_op_before(copied, anchor)
    if not is_constant or not dims:
        return copied.results[0]
    spread = {"dimensions": hlo.IntsAttr(())}
    return insert_before(anchor, hlo.BroadcastOp, (copied.results[0],), result_type, op.loc, spread)


def split_parameters(
    computation: hlo.ComputationOp, group: int, types: Callable[[int], Sequence[hlo.Attribute]]
) -> list[list[hlo.SSAValue]]:
    """The parts of each parameter, of ``types(index)``: new parameters after those that there are.

    They come in groups of ``group``, as a comparator's do (left, right): those of one part beside each other.
    """
    block, count = computation.block, len(computation.block.args)
    locs = [computation.parameter_loc(index) for index in range(count)]
    made: list[list[hlo.SSAValue]] = [[] for _ in range(count)]
    for start in range(0, count, group):
        for part in range(len(types(start))):
            for index in range(start, start + group):
                computation.set_parameter_loc(len(block.args) - count, locs[index])
                made[index].append(block.insert_arg(types(index)[part], len(block.args)))
    return made
