"""Computes contractions in the order in which their results are read.

Input: canonical hlo after ``features_first``, whose transposes of single operands stand where two orders meet. Output:
a contraction whose result comes to such transposes, past elementwise ops, slices and exchanges, has its operands
swapped instead, where that turns fewer elements than before, those of other operands that come transposed among them.
Elementwise ops between a transpose that keeps the innermost dim and what takes any order are computed in the order of
the contraction before it, whose epilogue they may be then.
So has the contraction of one row in a loop with a matrix that the loop keeps on chip: its many columns are rows then,
which fill the partitions, as the next iteration contracts them. What lies between moves along
(``features_first.Mover``). No value changes.
"""

from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, users
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.exchanges import is_exchange
from neuronx_cc.passes.analysis.loop_state import Invariants
from neuronx_cc.passes.analysis.stored import STAGED_SHARE, equal_chunk
from neuronx_cc.passes.analysis.trip_count import trip_count
from neuronx_cc.passes.canonical.contraction import swapped_order
from neuronx_cc.passes.expansions.reordered import inverse
from neuronx_cc.passes.features_first import Mover
from neuronx_cc.passes.manager import PassContext, only_for

MOST = 64
"""Ops after a contraction that are looked at."""
SHORT = 64
"""Bytes of a run, from which on another order of the outer dims is as good."""


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    sizes, long_run = context.timing.sizes, context.timing.long_run
    rows = {
        dot
        for computation in module.computations()
        for op in ops_of(computation.block)
        if isinstance(op, hlo.WhileOp) and trip_count(op, module) not in (0, 1)
        for dot in _single_rows(Invariants(module, op), sizes)
    }
    for computation in module.computations():
        ops = list(ops_of(computation.block))
        chosen = {op for op in ops if op in rows}
        late = set[hlo.Operation]()
        if any(isinstance(op, hlo.TransposeOp) for op in ops):
            chosen |= {op for op in ops if isinstance(op, hlo.DotOp) and _is_read_transposed(op)}
            late = {op for op in ops if isinstance(op, hlo.TransposeOp) and _comes_early(op, long_run)}
        if chosen or late:
            mover = Mover(chosen, late)
            for op in ops_of(computation.block):
                mover.visit(op)


def _single_rows(known: Invariants, sizes: Sizes) -> set[hlo.Operation]:
    """Contractions of one row, which changes, with columns of a matrix that does not, both in equal chunks; none where
    these matrices do not stay on chip.
    """
    found: set[hlo.Operation] = set()
    kept: dict[hlo.SSAValue, int] = {}
    for op in ops_of(known.body.block):
        if not isinstance(op, hlo.DotOp) or op.dims.data.lhs_batch or op.lhs in known:
            continue
        matrix = _loaded(op.rhs)
        if matrix not in known:
            continue
        rows, columns = hlo.shape_of(op.lhs).size, op.shape.size
        terms = prod(hlo.shape_of(op.lhs).dims[axis] for axis in op.dims.data.lhs_contracting)
        alone = rows == terms > 1 and columns > 1
        if alone and all(equal_chunk(size, sizes.partitions) for size in (terms, columns)):
            found.add(op)
            kept[matrix] = hlo.shape_of(op.rhs).nbytes
    return found if sum(kept.values()) <= sizes.sbuf_share(STAGED_SHARE) * sizes.partitions else set()


def _loaded(operand: hlo.SSAValue) -> hlo.SSAValue:
    """What a contraction loads for ``operand``, which it casts on the way."""
    made = defining_op(operand)
    return _loaded(made.operand) if isinstance(made, hlo.ConvertOp) else operand


def _is_read_transposed(dot: hlo.DotOp) -> bool:
    """Whether more elements of what is made of ``dot`` are transposed than are read in its own order."""
    order = swapped_order(dot)
    if order == tuple(range(len(order))):
        return False
    inside: dict[hlo.SSAValue, None] = {dot.result: None}
    pending = [dot.result]
    transposed = 0
    while pending and len(inside) <= MOST:
        value = pending.pop()
        size = hlo.shape_of(value).size
        for use in value.uses:
            user = use.operation
            if isinstance(user, hlo.ElementwiseOp | hlo.SliceOp) or is_exchange(user):
                result = user.results[0]
                if result not in inside:
                    inside[result] = None
                    pending.append(result)
            elif isinstance(user, hlo.TransposeOp):
                transposed += size if user.dimensions.data == order else 0
            elif not isinstance(user, hlo.BroadcastOp | hlo.DotOp) and not _is_convolved(user):
                transposed -= size
    read = {
        operand: defining_op(operand)
        for value in inside
        if value is not dot.result and not isinstance(made := defining_op(value), hlo.SliceOp) and made is not None
        for operand in made.operands
        if operand not in inside and hlo.shape_of(operand).rank == len(order)
    }
    back = inverse(order)
    for operand, made in read.items():
        if isinstance(made, hlo.TransposeOp) and made.dimensions.data == back:
            transposed += hlo.shape_of(operand).size  # it comes in that order
        elif not isinstance(made, hlo.BroadcastOp | hlo.IotaOp):
            transposed -= hlo.shape_of(operand).size
    return not pending and transposed > 0


def _comes_early(op: hlo.TransposeOp, long_run: int) -> bool:
    """Whether ``op`` gives the result of a contraction to elementwise ops alone, after which others take any order;
    where its runs are short, these read no other arrays.
    """
    dims, dot = op.dimensions.data, defining_op(op.operand)
    if not isinstance(dot, hlo.DotOp) or dims[-1] != len(dims) - 1 or not op.operand.has_one_use():
        return False
    kept = next(at for at in range(len(dims)) if dims[at:] == tuple(range(at, len(dims))))
    run = prod(op.shape.dims[kept:]) * itemsize(op.shape.dtype)
    if run < SHORT:
        return False
    inside, pending = set[hlo.Operation](), [op.result]
    while pending and len(inside) <= MOST:
        for user in users(pending.pop()):
            if isinstance(user, hlo.ElementwiseOp) and user.shape.dims == op.shape.dims:
                others = (made for made in map(defining_op, user.operands) if made is not op and made not in inside)
                computed = all(isinstance(made, hlo.BroadcastOp | hlo.ElementwiseOp) for made in others)
                if 2 * run < long_run and not computed:
                    return False
                pending += [] if user in inside else [user.results[0]]
                inside.add(user)
            elif not isinstance(user, hlo.ReturnOp | hlo.TupleOp | hlo.DotOp | hlo.ReduceOp):
                return False
    return bool(inside) and not pending


def _is_convolved(op: hlo.Operation) -> bool:
    """Whether ``op`` leaves out or adds dims of size 1 for a convolution, which takes any order."""
    if not isinstance(op, hlo.ReshapeOp):
        return isinstance(op, hlo.ConvolutionOp)
    return all(isinstance(use.operation, hlo.ConvolutionOp) for use in op.result.uses)
