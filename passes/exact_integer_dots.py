"""Rewrites integer contractions whose sums FP32 need not hold into those that it does.

TensorE multiplies and adds floats; FP32 holds integers of up to 24 bits. Input: a module whose 64-bit integers are
narrowed. Output: every dot and convolution of integers has sums of at most 24 bits. A larger one is taken apart. Dots
of 8-bit integers, perhaps cast to more bits, are added up over few parts of the terms, which are added as integers.
Others have their operands written as digits to the base 2^b (the highest one signed), ``sum(x y)`` is, modulo 2^32, the
sum of
``sum(x_i y_j) 2^(i + j)b`` over all pairs of digits; each ``sum(x_i y_j)`` is a contraction of 8-bit integers, which
are shifted and added as integers. Small dots are products and sums of integers themselves.
"""

from dataclasses import dataclass
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.ir.types import INTEGERS, SIGNED, bits
from neuronx_cc.passes.analysis.conversions import is_lossless
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

EXACT_BITS = 24
"""Integers of up to this many bits are exact in FP32."""
DIGITS = range(8, 2, -1)
"""Bits of a digit, widest first; less than three make more products than a model waits for."""
MOST_PARTS = 32
"""Sums over parts of the terms, at most: each is a result by itself."""
SMALL = 1 << 15
"""Products up to which they are made one by one."""

Contraction = hlo.DotOp | hlo.ConvolutionOp


@dataclass(frozen=True, slots=True)
class Digits:
    """How the integers of an operand are written: ``count`` digits of ``width`` bits, the highest perhaps signed."""

    width: int
    count: int
    magnitude: int
    """Bits of the largest digit's magnitude."""

    @classmethod
    def of(cls, dtype: str, kept: int, width: int) -> "Digits":
        """Of the low ``kept`` bits of ``dtype``."""
        total = _kept_bits(dtype, kept)
        if total <= width:
            return cls(width, 1, total - (dtype in SIGNED))
        return cls(width, -(-total // width), width)


def _kept_bits(dtype: str, kept: int) -> int:
    return 1 if dtype == "pred" else min(bits(dtype), kept)


@only_for(hlo.DotOp, hlo.ConvolutionOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, Contraction) and is_integer_contraction(op):
                op.operands = [_as_stored(operand) for operand in op.operands]
                _rewrite(module, op)


def _as_stored(value: Value) -> Value:
    """What was cast to ``value``, an integer of more bits."""
    made = defining_op(value)
    while isinstance(made, hlo.ConvertOp) and _widens(made):
        value = made.operand
        made = defining_op(value)
    return value


def _widens(cast: hlo.ConvertOp) -> bool:
    source = hlo.shape_of(cast.operand).dtype
    return source in ("s8", "u8") and is_lossless(source, cast.shape.dtype)


def is_integer_contraction(op: Contraction) -> bool:
    operands = (hlo.shape_of(op.lhs).dtype, hlo.shape_of(op.rhs).dtype)
    return op.shape.dtype in INTEGERS and all(dtype in INTEGERS or dtype == "pred" for dtype in operands)


def sum_bits(op: Contraction) -> int:
    """Bits of the largest magnitude of a sum."""
    lhs, rhs = (Digits.of(hlo.shape_of(x).dtype, 64, 64) for x in (op.lhs, op.rhs))
    return lhs.magnitude + rhs.magnitude + bits_of_terms(op)


def digits(op: Contraction) -> tuple[Digits, Digits] | None:
    """How to write both operands so that the fewest products are needed; None when there are too many terms."""
    dtypes = [hlo.shape_of(x).dtype for x in (op.lhs, op.rhs)]
    return ways_of(dtypes[0], dtypes[1], bits(op.shape.dtype), bits_of_terms(op))


def ways_of(left: str, right: str, kept: int, terms: int) -> tuple[Digits, Digits] | None:
    """The same for operands of types ``left`` and ``right``, ``terms`` bits of terms, and the low ``kept`` bits."""
    ways = [
        (lhs, rhs)
        for lhs in (Digits.of(left, kept, width) for width in DIGITS)
        for rhs in (Digits.of(right, kept, width) for width in DIGITS)
        if lhs.magnitude + rhs.magnitude + terms <= EXACT_BITS
    ]
    return min(ways, key=lambda way: len(_pairs(way[0], way[1], kept)), default=None)


def bits_of_terms(op: Contraction) -> int:
    return max(_terms(op) - 1, 0).bit_length()


def _terms(op: Contraction) -> int:
    """Products in a sum, at most."""
    if isinstance(op, hlo.DotOp):
        return prod(hlo.shape_of(op.lhs).dims[axis] for axis in op.dims.data.lhs_contracting)
    rhs = hlo.shape_of(op.rhs)
    return rhs.size // max(1, rhs.dims[op.dims.data.rhs_output_feature])


def _pairs(lhs: Digits, rhs: Digits, kept: int) -> list[tuple[int, int]]:
    """Digits whose products count in the low ``kept`` bits."""
    return [(i, j) for i in range(lhs.count) for j in range(rhs.count) if i * lhs.width + j * rhs.width < kept]


def _rewrite(module: HloModule, op: Contraction) -> None:
    dtype, b = op.shape.dtype, Build.before(module, op)
    operands = [hlo.shape_of(x) for x in (op.lhs, op.rhs)]
    if 0 in (op.shape.size, operands[0].size, operands[1].size):
        return
    signed = any(shape.dtype in SIGNED for shape in operands)
    if sum_bits(op) <= EXACT_BITS:
        if dtype == "u32" and signed:  # FP32 sums below zero would become 0
            sums = b.typed(type(op), (op.lhs, op.rhs), hlo.array_type("s32", op.shape.dims), **op.properties)
            replace(op, b.convert(sums, dtype))
        return
    if isinstance(op, hlo.DotOp) and op.shape.size * _terms(op) <= SMALL:
        replace(op, b.convert(_one_by_one(b, op), dtype))
        return
    if isinstance(op, hlo.DotOp) and (step := _terms_together(op)):
        replace(op, b.convert(_in_parts(b, op, step), dtype))
        return
    ways = digits(op)
    if ways is None:
        return
    kept = bits(dtype)
    taken = [_digits(b, x, way, kept) for x, way in zip((op.lhs, op.rhs), ways, strict=True)]
    type_ = hlo.array_type("s32", op.shape.dims)
    total: Value | None = None
    for i, j in _pairs(*ways, kept):
        part = b.typed(type(op), (taken[0][i], taken[1][j]), type_, **op.properties)
        shift = i * ways[0].width + j * ways[1].width
        if shift:
            part = b.each(hlo.ShiftLeftOp, part, b.number_like(shift, part))
        total = part if total is None else b.add(total, part)
    assert total is not None
    replace(op, b.convert(total, dtype))


def _longest(op: hlo.DotOp) -> int:
    """Which of the contracted dims is the longest."""
    sizes = [hlo.shape_of(op.lhs).dims[axis] for axis in op.dims.data.lhs_contracting]
    return max(range(len(sizes)), key=lambda index: sizes[index])


def _terms_together(op: hlo.DotOp) -> int:
    """Indices of the longest contracted dim over which sums of 8-bit integers are exact; 0 where these make too many
    parts, or the integers are larger.
    """
    lhs, rhs = (Digits.of(hlo.shape_of(x).dtype, 64, 64) for x in (op.lhs, op.rhs))
    if max(bits(hlo.shape_of(x).dtype) for x in (op.lhs, op.rhs)) > 8:
        return 0
    size = hlo.shape_of(op.lhs).dims[op.dims.data.lhs_contracting[_longest(op)]]
    step = (1 << EXACT_BITS - lhs.magnitude - rhs.magnitude) * size // _terms(op)
    parts = -(-size // max(1, step))
    return -(-size // parts) if parts <= MOST_PARTS else 0


def _in_parts(b: Build, op: hlo.DotOp, step: int) -> Value:
    """Sums over ``step`` indices of the longest contracted dim at a time, added up as s32."""
    which, total = _longest(op), None
    axes = (op.dims.data.lhs_contracting[which], op.dims.data.rhs_contracting[which])
    size, type_ = hlo.shape_of(op.lhs).dims[axes[0]], hlo.array_type("s32", op.shape.dims)
    for start in range(0, size, step):
        limit = min(start + step, size)
        taken = [b.slice(x, axis, start, limit) for x, axis in zip((op.lhs, op.rhs), axes, strict=True)]
        part = b.typed(hlo.DotOp, taken, type_, **op.properties)
        total = part if total is None else b.add(total, part)
    assert total is not None, "some terms"
    return total


def _one_by_one(b: Build, op: hlo.DotOp) -> Value:
    """All products in an array of the result's dims and the contracted ones, summed over these."""
    numbers = op.dims.data
    rank, lhs, rhs = op.shape.rank, hlo.shape_of(op.lhs), hlo.shape_of(op.rhs)
    dims = (*op.shape.dims, *(lhs.dims[axis] for axis in numbers.lhs_contracting))
    free = len(numbers.lhs_batch)
    spread = []
    for value, shape, batch, contracting in (
        (op.lhs, lhs, numbers.lhs_batch, numbers.lhs_contracting),
        (op.rhs, rhs, numbers.rhs_batch, numbers.rhs_contracting),
    ):
        place = {axis: index for index, axis in enumerate(batch)}
        place |= {axis: rank + index for index, axis in enumerate(contracting)}
        for axis in range(shape.rank):
            if axis not in place:
                place[axis], free = free, free + 1
        order = sorted(range(shape.rank), key=lambda axis: place[axis])
        transposed = b.transpose(b.convert(value, "s32"), order)
        spread.append(b.broadcast(transposed, dims, [place[axis] for axis in order]))
    return b.sum(b.mul(*spread), range(rank, len(dims)))


def _digits(b: Build, value: Value, way: Digits, kept: int) -> list[Value]:
    """The digits of ``value``, lowest first, as 8-bit integers."""
    dtype = hlo.shape_of(value).dtype
    signed = dtype in SIGNED
    total = _kept_bits(dtype, kept)
    if total < 32:
        value = b.convert(value, f"{'s' if signed else 'u'}{max(total, 8)}")
    if way.count == 1:
        return [value]
    value = b.convert(value, "s32" if signed else "u32")
    shift = hlo.ShiftRightArithmeticOp if signed else hlo.ShiftRightLogicalOp
    found = []
    for index in range(way.count):
        digit = b.each(shift, value, b.number_like(index * way.width, value)) if index else value
        last = index == way.count - 1
        if not last:
            digit = b.each(hlo.AndOp, digit, b.number_like((1 << way.width) - 1, digit))
        found.append(b.convert(digit, "s8" if signed and last else "u8"))
    return found
