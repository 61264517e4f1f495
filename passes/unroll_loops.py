"""Unrolls short loops on small arrays, and short elementwise ones.

Input: ``flatten_control``'s form, after ``batch_loops``. Output: a loop of few iterations whose body has few ops, all
on small arrays, is its iterations one after the other: what its counter places lies at a known place, and nothing waits
for the end of an iteration. Factorisations of small matrices and permutations of their rows are such loops. So is a
loop whose body is elementwise, on arrays of any size: one kernel does all of it, and no state goes through memory from
iteration to iteration. The rounds of JAX's random bits are such a loop, whose shifts are constants then.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, erase, ops_of, replace
from neuronx_cc.passes.analysis.trip_count import counted_loops
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.simplify_control import elements, packed

MOST_TRIPS, MOST_ELEMENTWISE_TRIPS = 4, 8
MOST_OPS = 256
"""Of all iterations."""
LARGEST = 2048
"""Elements of an array in the body."""


@only_for(hlo.WhileOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for loop, counted in counted_loops(module):
        if _is_small(module, loop, counted.trips) or _is_elementwise(module, loop, counted.trips):
            _unroll(module, loop, counted.trips)


def _is_small(module: HloModule, loop: hlo.WhileOp, trips: int) -> bool:
    ops = list(ops_of(module.computation(loop.body.data[0]).block))
    if not 1 < trips <= MOST_TRIPS or trips * len(ops) > MOST_OPS:
        return False
    arrays = [op for op in ops if not isinstance(op, hlo.TupleOp)]
    plain = all(isinstance(op.results[0].type, hlo.ArrayType) and not isinstance(op, hlo.OpaqueOp) for op in arrays)
    return plain and all(op.shape.size <= LARGEST for op in arrays)


def _is_elementwise(module: HloModule, loop: hlo.WhileOp, trips: int) -> bool:
    ops = list(ops_of(module.computation(loop.body.data[0]).block))
    given = hlo.TupleOp | hlo.GetTupleElementOp | hlo.ConstantOp | hlo.IotaOp | hlo.ViewOp
    made = [op for op in ops if not isinstance(op, given)]
    plain = all(isinstance(op, hlo.ElementwiseOp) and isinstance(op.results[0].type, hlo.ArrayType) for op in made)
    return 1 < trips <= MOST_ELEMENTWISE_TRIPS and plain and trips * len(made) <= MOST_OPS


def _unroll(module: HloModule, loop: hlo.WhileOp, trips: int) -> None:
    body, block, state = module.computation(loop.body.data[0]), loop.parent, packed(loop.operand)
    assert block is not None
    for _ in range(trips):
        values: dict[hlo.SSAValue, hlo.SSAValue] = {}
        for op in ops_of(body.block):
            if isinstance(op, hlo.GetTupleElementOp):
                values[op.result] = state[op.index.data]
            elif not isinstance(op, hlo.TupleOp):
                made = copy_op(op, [values[operand] for operand in op.operands])
                block.insert_op_before(made, loop)
                values[op.results[0]] = made.results[0]
        state = [values[result] for result in packed(body.root)]
    for index, found in elements(loop.result).items():
        for element in found:
            replace(element, state[index])
    erase(loop)
