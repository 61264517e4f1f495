"""Gives the products of an attention of one query each a dim for that row.

Input: canonical hlo. A softmax between two contractions may have one row for each batch index, which programs write
with a dim of size 1 (``bqf,bpf->bqp``) or without (``bf,bpf->bp``). Output: both contractions have that dim, as an
attention is found; other contractions without rows of their own are left as they are.
"""

from __future__ import annotations

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.analysis.attentions import scores_of
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext, only_for


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.DotOp) and (scores := _scores(op)) is not None:
                for each in (op, scores):
                    _with_rows(module, each)


def _scores(product: hlo.DotOp) -> hlo.DotOp | None:
    """The contraction of whose results ``product`` multiplies exponentials, if one of both lacks a row."""
    scores = scores_of(product)
    return scores if scores is not None and not all((*_own(product), *_own(scores))) else None


def _own(op: hlo.DotOp) -> tuple[int, int]:
    """How many dims of its own each operand has."""
    dims = op.dims.data
    both = (op.lhs, dims.lhs_batch, dims.lhs_contracting), (op.rhs, dims.rhs_batch, dims.rhs_contracting)
    lhs, rhs = (hlo.shape_of(value).rank - len(batch) - len(contracted) for value, batch, contracted in both)
    return lhs, rhs


def _with_rows(module: HloModule, op: hlo.DotOp) -> None:
    """Let each operand have a dim of its own: a last one of size 1 where it has none."""
    b, own = Build.before(module, op), _own(op)
    dims, batch = op.shape.dims, len(op.dims.data.lhs_batch)
    operands = [
        value if count else b.reshape(value, (*hlo.shape_of(value).dims, 1))
        for value, count in zip(op.operands, own, strict=True)
    ]
    lhs, rhs = dims[batch : batch + own[0]], dims[batch + own[0] :]
    shape = (*dims[:batch], *(lhs or (1,)), *(rhs or (1,)))
    made = b.typed(hlo.DotOp, operands, hlo.array_type(op.shape.dtype, shape), **op.properties)
    replace(op, b.reshape(made, dims))
