"""Computes at compile time what depends on constants alone, through the reference semantics.

Constants never grow: splats stay ``broadcast(constant)``, iota stays symbolic, and an op is folded only when its result
is small or no larger than its constant operands. Folding of what is larger than ``SMALL`` elements waits for
``fold_large_constants``, after the passes that decide the types and layouts of weights.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, insert_before, insert_constant, ops_of, replace
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.manager import PassContext

SMALL = 4096
"""Elements of operands and results that an early fold may have."""


SYMBOLIC = (hlo.ConstantOp, hlo.BroadcastOp)
"""What an operand must come from for a fold: a literal, or a splat."""

Apply = Callable[[hlo.HloOp, Sequence[Any]], Any]


def run(module: HloModule, context: PassContext) -> None:
    fold(module, SMALL)


def fold(module: HloModule, limit: int | None) -> None:
    """One forward sweep; ``limit`` bounds the elements of operands and results, None lifts it."""
    from neuronx_cc.ir.reference import CALLING, REFERENCE, evaluator

    apply = evaluator(module).apply
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.OpaqueOp | hlo.BroadcastOp) or not op.sources:
                continue
            sources = [defining_op(operand) for operand in op.sources]
            if not all(type(source) in SYMBOLIC for source in sources):
                continue
            if op.results[0].first_use is None or not isinstance(op.results[0].type, hlo.ArrayType):
                continue
            if op.opcode not in REFERENCE and op.opcode not in CALLING:
                continue
            if isinstance(op, hlo.BitcastConvertOp) and op.shape.dtype in ("s64", "u64"):
                continue  # a 64-bit constant would be cut; its words are not
            if all(isinstance(source, hlo.ConstantOp) for source in sources):
                arrays = [module.constants[s.value.data] for s in sources if isinstance(s, hlo.ConstantOp)]
                if _fits(op, sum(array.nbytes for array in arrays), max(array.size for array in arrays), limit):
                    value = apply(op, arrays)
                    replace(op, _literal(module, op, value))
            elif isinstance(op, hlo.ElementwiseOp) and op.shape.rank:
                _fold_splats(module, op, sources, apply)


def _fits(op: hlo.HloOp, operand_bytes: int, largest: int, limit: int | None) -> bool:
    shape = op.shape
    if limit is not None and (shape.size > limit or largest > limit):
        return False
    return shape.nbytes <= operand_bytes or shape.size <= 64


def _fold_splats(module: HloModule, op: hlo.HloOp, sources: list[hlo.Operation | None], apply: Apply) -> None:
    """An elementwise op on splats is the splat of the op on scalars."""
    scalars = []
    for source in sources:
        if isinstance(source, hlo.BroadcastOp):
            source = defining_op(source.operand)
        if not isinstance(source, hlo.ConstantOp) or source.shape.rank:
            return
        scalars.append(source.results[0])
    scalar_op = type(op).make(scalars, hlo.array_type(op.shape.dtype, ()), op.loc, op.properties)
    assert op.parent is not None
    op.parent.insert_op_before(scalar_op, op)
    value = apply(scalar_op, [module.constants[_digest(scalar)] for scalar in scalars])
    constant = _literal(module, op, value)
    op.parent.erase_op(scalar_op)
    properties = {"dimensions": hlo.IntsAttr(())}
    replace(op, insert_before(op, hlo.BroadcastOp, (constant,), op.results[0].type, op.loc, properties))


def _literal(module: HloModule, op: hlo.HloOp, value: Any) -> hlo.SSAValue:
    dtype = op.shape.dtype
    return insert_constant(module, op, np.asarray(value).astype(NUMPY_DTYPE[dtype], copy=False), dtype, op.loc)


def _digest(value: hlo.SSAValue) -> str:
    op = defining_op(value)
    assert isinstance(op, hlo.ConstantOp)
    return op.value.data
