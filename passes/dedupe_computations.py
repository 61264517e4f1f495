"""Keeps one of each group of computations that are equal up to names, and renames the calls.

JAX emits a region for every reduce, sort and scatter, though a model has only a few different ones. Bodies, conditions
and branches of control flow stay apart: they are rewritten together with the op that they belong to.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase
from neuronx_cc.passes.analysis.calls import call_properties
from neuronx_cc.passes.flatten_control import control_computations
from neuronx_cc.passes.manager import PassContext


def run(module: HloModule, context: PassContext) -> None:
    first: dict[object, str] = {}
    renamed: dict[str, str] = {}
    separate = control_computations(module)
    for computation in list(module.computations()):
        if renamed:
            _rename_calls(computation, renamed)
        name = computation.computation_name
        if computation.is_entry.data or name in separate:
            continue
        kept = first.setdefault(structure(computation), name)
        if kept != name:
            renamed[name] = kept
            erase(computation)


def _rename_calls(computation: hlo.ComputationOp, renamed: dict[str, str]) -> None:
    op = computation.block.first_op
    while op is not None:
        for key in call_properties(op):
            attr = op.properties.get(key)
            if isinstance(attr, hlo.StrsAttr) and not renamed.keys().isdisjoint(attr.data):
                op.properties[key] = hlo.StrsAttr(tuple(renamed.get(name, name) for name in attr.data))
        op = op.next_op


def structure(computation: hlo.ComputationOp) -> tuple[object, ...]:
    """A hashable form equal for computations that compute the same in the same order."""
    numbers: dict[hlo.SSAValue, int] = {arg: i for i, arg in enumerate(computation.block.args)}
    rows: list[object] = [tuple(arg.type for arg in computation.block.args)]
    op = computation.block.first_op
    while op is not None:
        rows.append(
            (
                op.name,
                tuple(numbers[operand] for operand in op.operands),
                tuple(result.type for result in op.results),
                tuple(sorted(op.properties.items(), key=lambda item: item[0])),
            )
        )
        for result in op.results:
            numbers[result] = len(numbers)
        op = op.next_op
    return tuple(rows)
