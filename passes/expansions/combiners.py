"""Copies of combiner computations in another element type."""

from collections.abc import Callable

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, ops_of, with_dtypes
from neuronx_cc.ir.types import NUMPY_DTYPE


def combiner_in(module: HloModule, name: str, source: str, target: str) -> str:
    """Name of a copy of computation ``name`` with ``target`` for ``source`` in every type; made once."""
    wanted = f"{name}.{target}"
    for computation in module.computations():
        if computation.computation_name == wanted:
            return wanted
    original = module.computation(name)

    def changed(type_: hlo.Attribute) -> hlo.Attribute:
        return with_dtypes(type_, {source: target})

    copy = hlo.ComputationOp.make(wanted, [changed(arg.type) for arg in original.block.args])
    _fill(module, original, copy, changed)
    module.op.body.block.insert_op_after(copy, original)
    return wanted


def duplicate(module: HloModule, original: hlo.ComputationOp, name: str) -> hlo.ComputationOp:
    """A copy of ``original`` under a new name, not yet in the module."""
    copy = hlo.ComputationOp.make(name, [arg.type for arg in original.block.args])
    _fill(module, original, copy, lambda type_: type_)
    return copy


def _fill(
    module: HloModule,
    original: hlo.ComputationOp,
    copy: hlo.ComputationOp,
    changed: Callable[[hlo.Attribute], hlo.Attribute],
) -> None:
    values: dict[hlo.SSAValue, hlo.SSAValue] = dict(zip(original.block.args, copy.block.args, strict=True))
    for index in range(len(original.block.args)):
        copy.set_parameter_loc(index, original.parameter_loc(index))
    for op in ops_of(original.block):
        new = copy_op(op, [values[operand] for operand in op.operands], changed(op.results[0].type))
        if isinstance(op, hlo.ConstantOp) and new.results[0].type != op.results[0].type:
            dtype = new.shape.dtype
            array = module.constants[op.value.data].astype(NUMPY_DTYPE[dtype])
            new.properties["value"] = hlo.ConstantAttr(module.constants.add(array, dtype))
        copy.block.add_op(new)
        values[op.results[0]] = new.results[0]
    copy.block.add_op(hlo.ReturnOp.create(operands=[values[original.root]]))
