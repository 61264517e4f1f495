"""Lets loops carry arrays in the order in which an iteration makes them.

Input: canonical hlo after ``features_first``. Output: an element of a loop's state that each iteration transposes last
is carried as it is ahead of that; what reads it reads the transpose, which moves down past all that need not care
(``features_first.Mover``), as in cells of convolutions. Transposes that restore the program's order stand ahead of the
loop and after it. Not for what the body reads or writes in windows. No value changes.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, insert_before, ops_of, retype, users
from neuronx_cc.passes.analysis.effects import effectful_computations
from neuronx_cc.passes.dce import sweep
from neuronx_cc.passes.expansions.reordered import inverse, transposed
from neuronx_cc.passes.features_first import Mover
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.simplify_control import elements, pack_root, packed

ANY_ORDER = (hlo.ElementwiseOp, hlo.ConcatenateOp, hlo.ConvolutionOp, hlo.DotOp, hlo.TransposeOp)
"""Ops that take what they read in any order."""


@only_for(hlo.WhileOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    effectful = effectful_computations(module)
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.WhileOp):
                body = module.computation(op.body.data[0])
                sweep(body, effectful)
                orders = _orders(module, op, body)
                if orders:
                    _carry(module, op, body, orders)


def _orders(module: HloModule, loop: hlo.WhileOp, body: hlo.ComputationOp) -> dict[int, hlo.TransposeOp]:
    """Elements of the state -> what transposes them at the end of an iteration."""
    read, asked = elements(body.block.args[0]), elements(module.computation(loop.condition.data[0]).block.args[0])
    found: dict[int, hlo.TransposeOp] = {}
    for index, value in enumerate(packed(body.root)):
        last = defining_op(value)
        if not isinstance(last, hlo.TransposeOp) or index in asked or not isinstance(last.operand, hlo.OpResult):
            continue
        readers = [user for element in read.get(index, ()) for user in users(element.result)]
        if readers and all(isinstance(user, ANY_ORDER) for user in readers):
            found[index] = last
    return found


def _carry(module: HloModule, loop: hlo.WhileOp, body: hlo.ComputationOp, orders: dict[int, hlo.TransposeOp]) -> None:
    initial, results = packed(loop.operand), packed(body.root)
    for index, last in orders.items():
        results[index] = last.operand
        initial[index] = transposed(loop, initial[index], inverse(last.dimensions.data))
    type_ = hlo.tuple_type(tuple(value.type for value in results))
    loop.operands = [insert_before(loop, hlo.TupleOp, initial, type_, loop.loc)]
    pack_root(body, results)
    condition = module.computation(loop.condition.data[0])
    for typed in (loop.result, body.block.args[0], condition.block.args[0]):
        retype(typed, type_)
    mover = Mover()
    for index, last in orders.items():
        for element in elements(body.block.args[0]).get(index, ()):
            mover.made.add(_restore(element, last))
        for element in elements(loop.result).get(index, ()):
            _restore(element, last)
    for op in ops_of(body.block):
        mover.visit(op)


def _restore(element: hlo.GetTupleElementOp, last: hlo.TransposeOp) -> hlo.Operation:
    """Let users of ``element``, which is now what ``last`` transposes, use the transpose of that."""
    after = element.next_op
    assert after is not None, "a computation ends with its results"
    retype(element.result, last.operand.type)
    restored = transposed(after, element.result, last.dimensions.data)
    made = defining_op(restored)
    assert made is not None
    element.result.replace_uses_with_if(restored, lambda use: use.operation is not made)
    return made
