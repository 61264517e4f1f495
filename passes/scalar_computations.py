"""Makes the computations that operators apply to scalars plain: no branches, and no ``map`` where that suffices.

Input: a module without tuples but those of control flow. Output: in the computations of maps, reductions, windows,
scatters and sorts, a ``conditional`` whose branches consist of operators on scalars is these operators and a
``select``; a ``map`` of such a computation is its operators on whole arrays. A ``map``, ``reduce`` or
``reduce-window`` whose computation loops over scalars is made of whole arrays too, with loops that go on while any
element does.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, erase, ops_of, replace
from neuronx_cc.ir.hlo.scalar_bodies import is_scalar
from neuronx_cc.passes.expand_reductions import fold
from neuronx_cc.passes.expand_windows import own_windows
from neuronx_cc.passes.expansions.bodies import apply_body, is_elementwise
from neuronx_cc.passes.expansions.build import Build, Value, replace_results
from neuronx_cc.passes.expansions.masked_loops import apply_loops, loops_on_scalars
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.ApplyingOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):
            if not isinstance(op, hlo.ApplyingOp):
                continue
            for name in op.to_apply.data:
                _select_branches(module, module.computation(name))
            body = module.computation(op.to_apply.data[0])
            if isinstance(op, hlo.MapOp) and is_elementwise(body):
                replace(op, apply_body(op, body, op.operands, op.shape.dims)[0])
            elif isinstance(op, hlo.MapOp) and loops_on_scalars(module, body):
                replace(op, apply_loops(Build.before(module, op), body, op.operands, op.shape.dims)[0])
            elif isinstance(op, hlo.ReduceOp) and loops_on_scalars(module, body):
                replace_results(op, fold(module, op, context.timing))
            elif isinstance(op, hlo.ReduceWindowOp) and loops_on_scalars(module, body):
                replace_results(op, own_windows(module, op, context.timing))


def _select_branches(module: HloModule, body: hlo.ComputationOp) -> None:
    changed = False
    for op in list(ops_of(body.block)):
        if isinstance(op, hlo.ConditionalOp):
            changed |= _select(module, op)
        elif isinstance(op, hlo.WhileOp):
            for name in (*op.condition.data, *op.body.data):
                _select_branches(module, module.computation(name))
    if changed:
        for inner in reversed(list(ops_of(body.block))):
            if isinstance(inner, hlo.TupleOp) and inner.results[0].first_use is None:
                erase(inner)


def _select(module: HloModule, op: hlo.ConditionalOp) -> bool:
    branches = [module.computation(name) for name in op.branches.data]
    for branch in branches:
        _select_branches(module, branch)
    if not all(_is_plain(branch) for branch in branches):
        return False
    b = Build.before(module, op)
    selector = op.operands[0]
    results = [_applied(b, branch, given) for branch, given in zip(branches, op.operands[1:], strict=True)]
    if hlo.shape_of(selector).dtype == "pred":
        chosen = [b.select(selector, *pair) for pair in zip(*results, strict=True)]
    else:
        chosen = results[-1]
        for index in reversed(range(len(results) - 1)):
            is_it = b.compare(selector, b.number_like(index, selector), "EQ")
            chosen = [b.select(is_it, *pair) for pair in zip(results[index], chosen, strict=True)]
    for use in list(op.results[0].uses):
        assert isinstance(use.operation, hlo.GetTupleElementOp)
        replace(use.operation, chosen[use.operation.index.data])
    erase(op)
    return True


def _is_plain(branch: hlo.ComputationOp) -> bool:
    """Whether all but the taking apart of its parameter, and its root, are operators on scalars."""
    return all(isinstance(op, hlo.GetTupleElementOp | hlo.TupleOp) or is_scalar(op) for op in ops_of(branch.block))


def _applied(b: Build, branch: hlo.ComputationOp, given: Value) -> list[Value]:
    """The results of ``branch``, built here."""
    values: dict[Value, Value] = {branch.block.args[0]: given}
    block = b.anchor.parent
    assert block is not None
    for op in ops_of(branch.block):
        operands = [values[operand] for operand in op.operands]
        if isinstance(op, hlo.GetTupleElementOp):
            packed = defining_op(operands[0])
            assert isinstance(packed, hlo.TupleOp)
            values[op.results[0]] = packed.operands[op.index.data]
        else:
            copied = copy_op(op, operands)
            block.insert_op_before(copied, b.anchor)
            values[op.results[0]] = copied.results[0]
    root = defining_op(values[branch.root])
    assert isinstance(root, hlo.TupleOp)
    return list(root.operands)
