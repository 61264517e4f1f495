"""64-bit integers in memory: their words are read and written on chip, side by side, as those of complex numbers are.

Input: a module whose 64-bit integers are parameters, results, and what functions of the host take and give. Output:
the words of an array are read by ``real`` (the low ones) and ``imag``, and put together by ``complex``, on s64 and u64
arrays; a bit cast stays where words are used otherwise. Element by element from and to memory, transfers would take as
long as runs of 512 bytes (hardware sheet 1.8.2).
"""

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, insert_before, insert_splat, ops_of, replace

WIDE = ("s64", "u64")
HALVES = (hlo.RealOp, hlo.ImagOp)


def run(module: HloModule) -> None:
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.BitcastConvertOp | hlo.ConvertOp):
                source, target = hlo.shape_of(op.operand), op.shape
                if source.dtype in WIDE and target.dtype not in WIDE:
                    _read(op)
                elif target.dtype in WIDE and source.dtype not in WIDE:
                    _make(module, op)


def _read(op: hlo.BitcastConvertOp | hlo.ConvertOp) -> None:
    """Low words (``convert``), or slices of both that hold one word of each integer."""
    if isinstance(op, hlo.ConvertOp):
        replace(op, insert_before(op, hlo.RealOp, (op.operand,), op.results[0].type, op.loc))
        return
    last = op.shape.rank - 1
    if op.shape.dims[:-1] != hlo.shape_of(op.operand).dims:
        return
    halves: dict[int, hlo.SSAValue] = {}
    for use in list(op.results[0].uses):
        user = use.operation
        cut = user.slice.data[last] if isinstance(user, hlo.SliceOp) else None
        if cut is None or cut.limit != cut.start + 1:
            continue
        assert isinstance(user, hlo.SliceOp)
        if cut.start not in halves:
            part = hlo.array_type(op.shape.dtype, op.shape.dims[:-1])
            half = insert_before(op, HALVES[cut.start], (op.operand,), part, op.loc)
            one = hlo.array_type(op.shape.dtype, (*op.shape.dims[:-1], 1))
            halves[cut.start] = insert_before(op, hlo.ReshapeOp, (half,), one, op.loc)
        user.operands[0] = halves[cut.start]
        bounds = (*user.slice.data[:last], hlo.SliceDim(0, 1))
        user.properties["slice"] = hlo.SliceAttr(bounds)
        if user.results[0].type == halves[cut.start].type:
            replace(user, halves[cut.start])
    if op.results[0].first_use is None:
        erase(op)


def _make(module: HloModule, op: hlo.BitcastConvertOp | hlo.ConvertOp) -> None:
    if isinstance(op, hlo.ConvertOp):
        words = _extended(module, op)
    else:
        sides = defining_op(op.operand)
        if not isinstance(sides, hlo.ConcatenateOp) or sides.dimension.data != op.shape.rank:
            return
        if [hlo.shape_of(side).dims[-1] for side in sides.operands] != [1, 1]:
            return
        part = hlo.array_type(sides.shape.dtype, op.shape.dims)
        words = [insert_before(op, hlo.ReshapeOp, (side,), part, op.loc) for side in sides.operands]
    source = defining_op(op.operand)
    replace(op, insert_before(op, hlo.ComplexOp, words, op.results[0].type, op.loc))
    if isinstance(source, hlo.ConcatenateOp) and source.results[0].first_use is None:
        erase(source)


def _extended(module: HloModule, op: hlo.ConvertOp) -> list[hlo.SSAValue]:
    """The value in 32 bits, and its sign (or zero)."""
    low, shape = op.operand, op.shape
    if hlo.shape_of(low).dtype not in ("s32", "u32"):
        low = insert_before(op, hlo.ConvertOp, (low,), hlo.array_type("s32", shape.dims), op.loc)
    dtype = hlo.shape_of(low).dtype
    if dtype == "u32":
        return [low, insert_splat(module, op, np.array(0, np.uint32), dtype, shape.dims, op.loc)]
    count = insert_splat(module, op, np.array(31, np.int32), dtype, shape.dims, op.loc)
    return [low, insert_before(op, hlo.ShiftRightArithmeticOp, (low, count), low.type, op.loc)]
