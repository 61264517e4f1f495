"""Contractions whose operands were widened multiply what there was before: the same products in a quarter of the time.

Input: any inlined module, after ``clean_casts``, which lets widening casts come after views. Output: a dot or a
convolution of FP32 operands, all of which are casts of values that a type of 16 bits holds, takes these in that type.
Its products and sums are FP32, as they were.
"""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of
from neuronx_cc.ir.types import NARROW
from neuronx_cc.passes.analysis.conversions import is_lossless
from neuronx_cc.passes.manager import PassContext, only_for
from neuronx_cc.passes.precision.casts import Casts
from neuronx_cc.passes.precision.decisions import Contraction


@only_for(hlo.ConvertOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        casts = Casts(module)
        for op in ops_of(computation.block):
            if isinstance(op, Contraction) and op.shape.dtype == "f32":
                _narrow(op, casts)


def _narrow(op: Contraction, casts: Casts) -> None:
    sources = [_widened(operand) for operand in op.operands]
    found = [source for source in sources if source is not None]
    if len(found) < len(sources):
        return
    dtypes = [hlo.shape_of(source).dtype for source in found]
    target = next((each for each in NARROW if all(is_lossless(dtype, each) for dtype in dtypes)), None)
    if target is not None:
        op.operands = [
            source if dtype == target else casts.rounded(op, source, target)
            for source, dtype in zip(found, dtypes, strict=True)
        ]


def _widened(value: hlo.SSAValue) -> hlo.SSAValue | None:
    """What ``value`` in FP32 is a cast of; None where it is none, or one that loses bits."""
    cast = defining_op(value)
    if not isinstance(cast, hlo.ConvertOp) or cast.shape.dtype != "f32":
        return None
    return cast.operand if is_lossless(hlo.shape_of(cast.operand).dtype, "f32") else None
