"""``bitcast`` between arrays of other layouts than row-major, as optimised dumps have it.

Types carry no layout here, so such a bitcast is spelled out: bring the operand's dims into storage order (transpose),
reinterpret (bitcast), and take them back out of the result's storage order (transpose).
"""

from neuronx_cc.hlo_import.raw import RawInstruction
from neuronx_cc.ir import hlo

Layout = tuple[int, ...]


def build_bitcast(block: hlo.Block, operand: hlo.SSAValue, layout: Layout | None, raw: RawInstruction) -> hlo.SSAValue:
    """Appends the ops for ``raw``, a bitcast of ``operand`` stored in minor-to-major order ``layout``."""
    result = raw.type
    if isinstance(operand.type, hlo.ArrayType) and isinstance(result, hlo.ArrayType):
        if layout is not None:
            operand = _transpose(block, operand, tuple(reversed(layout)), raw)
        if raw.layout is not None:
            stored = tuple(reversed(raw.layout))
            dims = tuple(result.data.dims[dim] for dim in stored)
            value = _bitcast(block, operand, hlo.array_type(result.data.dtype, dims), raw)
            return _transpose(block, value, tuple(stored.index(dim) for dim in range(len(stored))), raw)
    return _bitcast(block, operand, result, raw)


def _bitcast(block: hlo.Block, operand: hlo.SSAValue, type_: hlo.Attribute, raw: RawInstruction) -> hlo.SSAValue:
    op = hlo.BitcastOp.make([operand], type_, raw.loc, raw.properties)
    block.add_op(op)
    return op.results[0]


def _transpose(block: hlo.Block, operand: hlo.SSAValue, order: tuple[int, ...], raw: RawInstruction) -> hlo.SSAValue:
    shape = hlo.shape_of(operand)
    type_ = hlo.array_type(shape.dtype, tuple(shape.dims[dim] for dim in order))
    op = hlo.TransposeOp.make([operand], type_, raw.loc, {"dimensions": hlo.IntsAttr(order)})
    block.add_op(op)
    return op.results[0]
