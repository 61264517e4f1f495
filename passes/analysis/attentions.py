"""Which contractions a softmax stands between. No pass: passes ask it."""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import SSAValue
from neuronx_cc.ir.hlo.editing import defining_op


def scores_of(product: hlo.DotOp) -> hlo.DotOp | None:
    """The contraction of whose results ``product``, which has batch dims, multiplies exponentials."""
    if not product.dims.data.lhs_batch:
        return None
    for operand in product.operands:
        exponential = _found(operand, hlo.ExponentialOp)
        scores = None if exponential is None else _found(exponential.operands[0], hlo.DotOp)
        if isinstance(scores, hlo.DotOp):
            return scores
    return None


def _found(value: SSAValue, kind: type[hlo.HloOp]) -> hlo.HloOp | None:
    """The nearest op of ``kind`` that ``value`` is made of, element by element."""
    pending, seen = [value], {value}
    while pending:
        op = defining_op(pending.pop())
        if isinstance(op, kind):
            return op
        if isinstance(op, hlo.ElementwiseOp | hlo.ReshapeOp | hlo.TransposeOp):
            size = op.shape.size
            for operand in reversed(op.operands):
                if hlo.shape_of(operand).size == size and operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
    return None
