"""Transposes and reshapes of sums over devices stand ahead of the sums, at what makes the addends; broadcasts after.

Input: ``flatten_control``'s form, collectives as ``resolve_collectives`` leaves them. XLA's partitioner puts the sum of
a gradient right after its contraction, ahead of the transpose that gives it the order of the weight. Contractions take
such transposes in (``canonical/contraction``, ``turn_products``); after a sum they would move the whole array. What is
exchanged of a broadcast, as of the gradient of a mean, is what it spreads. No value changes. Collectives of modules
whose devices run programs of their own keep the order that the others know.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, has_one_use, insert_before, ops_of, replace, retype, users
from neuronx_cc.passes.analysis.exchanges import EXCHANGES, cut_of, is_exchange
from neuronx_cc.passes.manager import PassContext, only_for

MOVED = (hlo.TransposeOp, hlo.ReshapeOp)


@only_for(*EXCHANGES)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if is_exchange(op) and not _spread_after(op) and isinstance(op, hlo.AllReduceOp):
                _move_ahead(op)


def _spread_after(op: hlo.HloOp) -> bool:
    """Exchange what ``op``'s operand is a broadcast of, unless a dim is cut that the broadcast adds."""
    spread = defining_op(op.operands[0])
    if not isinstance(spread, hlo.BroadcastOp):
        return False
    cut, dims = cut_of(op), spread.dimensions.data
    given, made = hlo.shape_of(spread.operand), hlo.shape_of(op.results[0])
    if not given.rank or not set(cut.values()) <= set(dims) or given.size == hlo.shape_of(op.operands[0]).size:
        return False
    part = hlo.array_type(given.dtype, tuple(made.dims[axis] for axis in dims))
    exchanged = copy_op(op, [spread.operand], part)
    for name, axis in cut.items():
        exchanged.properties[name] = hlo.IntAttr(dims.index(axis))
    computation = op.parent
    assert computation is not None, "it stands in a computation"
    computation.insert_op_before(exchanged, op)
    replace(
        op, insert_before(op, hlo.BroadcastOp, exchanged.results, op.results[0].type, spread.loc, spread.properties)
    )
    return True


def _move_ahead(op: hlo.AllReduceOp) -> None:
    total = op.results[0]
    while has_one_use(total) and isinstance(view := users(total)[0], MOVED):
        moved = copy_op(view, op.operands)
        computation = op.parent
        assert computation is not None, "it stands in a computation"
        computation.insert_op_before(moved, op)
        op.operands = moved.results
        retype(total, view.results[0].type)
        replace(view, total)
