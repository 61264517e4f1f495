"""Operands of contractions that are stored in fewer bits than TensorE takes: loaded as stored, converted on chip.

The DMA would move them in the wider type. Scalar and Vector (GpSimd, of rows to be transposed) share the elements,
each as many as it converts in the same time, while TensorE multiplies and the DMA loads others.

Codes of 8-bit floats that TensorE does not take (``DECODED``) become FP16, exactly. 128 times a code, as a signed
number, has its sign, and its exponent and mantissa where FP16 has its own; only the highest bit of the exponent, which
must be 0, is the sign once more. With that bit set instead, the pattern is an infinity of BF16 where the code is NaN,
and finite elsewhere: products of it with zeros are NaN in the right places, and add nothing in others.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from neuronx_cc.codegen.dots.problem import Operand, Problem
from neuronx_cc.codegen.dots.tiles import WORD
from neuronx_cc.codegen.emission.builder import Affine, Block, merge_free
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.epilogues.work import leave
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import NOTHING, Tile, Timing, Work
from neuronx_cc.ir.types import itemsize

BUFFERS = 8
"""Of what is loaded and not converted yet: the DMA goes on while the engines are at what comes before."""
ELEMENTS = 2000
"""Elements of a row that are measured: neither starts nor latencies count in long ones."""
LAG = 1
"""Pieces that are converted before one is decoded: an engine waits for results of its last two instructions."""
SECOND = 0.15
"""Part of the second busiest resource's time that counts where several work on the same elements in turn."""
CASTS = tuple(step / 32 for step in range(32))
"""Parts that the DMA may cast."""
UNCONVERTED = 2
"""What is loaded at a time to be converted is as large as so many banks of PSUM: long runs, soon there."""
SHIFT, PLACE = 7, 2.0**7
"""Bits by which a code is moved, and what it is multiplied by for that."""
CODES, SIGNED = "s8", "s16"
"""The types of codes and patterns as numbers."""
HIGHEST = 0x4000
"""The highest bit of the exponent, of FP16 and BF16."""
SUSPECTS = "bf16"
"""The type in which NaNs among codes are infinities."""


def works(timing: Timing, stored: str, dtype: str, other: Stream = Stream.VECTOR) -> tuple[Work, Work]:
    """What Scalar and the other engine do for ``ELEMENTS`` elements a partition."""
    tiles = (Tile(dtype),), (Tile(stored),)
    return (
        timing.engine("activation", Stream.SCALAR, ELEMENTS, *tiles, ("copy",)),
        timing.engine("tensor_copy", other, ELEMENTS, *tiles),
    )


def _other(operand: Operand) -> Stream:
    """What converts beside Scalar: GpSimd, the quicker one, of rows to be transposed, which keep Scalar busy. It keeps
    Vector from SBUF, which other kernels want; and codes are multiplied on the way.
    """
    return Stream.GPSIMD if operand.transposed and not operand.decoded else Stream.VECTOR


def bit_work(timing: Timing, operand: Operand) -> Work:
    """What Vector does besides for as many codes: an operator on pairs of patterns, two where they may be NaN."""
    pairs = (Tile("u32"),), (Tile("u32"),)
    work = timing.engine("tensor_scalar", Stream.VECTOR, ELEMENTS // 2, *pairs, ("bitwise_and",))
    return work.times(1 + operand.suspected)


def waits(problem: Problem, operand: Operand, timing: Timing) -> float:
    """Nanoseconds in which Scalar waits for Vector to decode what both have converted of whole blocks, once."""
    if not operand.decoded or not operand.converted or operand.transposed:
        return 0.0
    elements = problem.products * max(1, prod(problem.m if operand is problem.lhs else problem.n))
    return bit_work(timing, operand).times(elements / ELEMENTS).bound


class Shares(NamedTuple):
    """Parts of the elements that the DMA casts as it loads them, and that Scalar converts, not the other engine."""

    dma: float
    scalar: float


def shares(timing: Timing, operand: Operand, dtype: str, cast: float | None = None, row: int = 0) -> Shares:
    """How elements become ``dtype`` in the least time, if the DMA casts a part of them or as many as is best: of each
    row of so many elements, if any.
    """
    if not operand.decoded and not operand.transposed:
        return Shares(0.0, _balanced(timing, operand.stored, dtype))
    return min(_sharing(timing, operand, dtype, each, row) for each in (CASTS if cast is None else (cast,)))[1]


def _sharing(timing: Timing, operand: Operand, dtype: str, part: float, row: int) -> tuple[float, Shares]:
    """The time of ``ELEMENTS`` of a partition of which the DMA casts a part. Scalar takes what is transposed out of
    PSUM as well.
    """
    scalar, vector = (work.bound for work in works(timing, *_kinds(operand, dtype), _other(operand)))
    bits = bit_work(timing, operand).bound if operand.decoded else 0.0
    leaves = leave(timing.sizes.bank_columns, operand.dtype, timing).scalar if operand.transposed else 0.0
    leaves *= ELEMENTS / timing.sizes.bank_columns
    left, width, run = 1 - part, itemsize(dtype), row or UNCONVERTED * timing.sizes.bank_bytes
    loaded = sum(
        timing.transfer(max(1, int(of * run)) * timing.sizes.partitions, max(1, int(of * run))).bound
        for of in (left, width * part)
        if of
    )
    by_scalar = min(left, max(0.0, (bits + vector * left - leaves) / (scalar + vector)))
    busy = scalar * by_scalar + leaves, bits + vector * (left - by_scalar), loaded * ELEMENTS / run
    *_, second, most = sorted(busy)
    # what is transposed waits for all of them in turn
    return most + operand.transposed * SECOND * second, Shares(part, by_scalar)


def _kinds(operand: Operand, dtype: str) -> tuple[str, str]:
    """What engines convert, and to what."""
    return (CODES, SIGNED) if operand.decoded else (operand.stored, dtype)


def _loaded(timing: Timing) -> Work:
    """``ELEMENTS`` codes of all partitions come from HBM."""
    run = UNCONVERTED * timing.sizes.bank_bytes
    return timing.transfer(run * timing.sizes.partitions, run).times(ELEMENTS / run)


def _balanced(timing: Timing, stored: str, dtype: str) -> float:
    """The part for Scalar with which both engines are done at the same time."""
    scalar, vector = works(timing, stored, dtype)
    return vector.bound / (scalar.bound + vector.bound)


def of(timing: Timing, stored: str, dtype: str, elements: int) -> Work:
    """Of ``elements`` a partition that two engines share."""
    part, (scalar, vector) = _balanced(timing, stored, dtype), works(timing, stored, dtype)
    return (scalar.times(part) + vector.times(1 - part)).times(elements / ELEMENTS)


def of_all(problem: Problem, operand: Operand, timing: Timing) -> Work:
    """Of all of one operand of one batch index, once; nothing where it is not converted."""
    if not operand.converted:
        return NOTHING
    elements = problem.products * max(1, prod(problem.m if operand is problem.lhs else problem.n))
    dtype = problem.transposed_as(operand) if operand.transposed else operand.dtype
    if dtype == operand.stored:
        return NOTHING
    scalar, vector = works(timing, *_kinds(operand, dtype), _other(operand))
    (cast, part), count = shares(timing, operand, dtype), elements / ELEMENTS
    shared = scalar.times(part * count) + vector.times((1 - cast - part) * count)
    if cast:
        shared += _loaded(timing).times((itemsize(dtype) - 1) * cast * count)
    return shared + bit_work(timing, operand).times(count) if operand.decoded else shared


def last(operand: Operand, nbytes: int, pieces: int, timing: Timing) -> float:
    """What is left to do on the bits of a block of ``nbytes`` codes a partition when its last piece is converted: those
    of the pieces before, and of what the DMA has cast."""
    if not operand.decoded:
        return 0.0
    left = min(LAG, pieces - 1) / pieces + shares(timing, operand, operand.dtype).dma
    return bit_work(timing, operand).times(left * nbytes / ELEMENTS).bound


def convert(emitter: Emitter, operand: Operand, target: Block, source: Block, cast: float = 0.0) -> None:
    """``target = source``, both on chip and of the same dims; exact, for every 8-bit value is one of ``target``'s.

    Codes are to be finished by ``decode``. ``cast``: the part of such a block that the DMA has cast besides.

    Each engine takes neighbours, so that neither seems to write what the other does.
    """
    factor = 1.0
    if operand.decoded:
        target, source, factor = replace(target, dtype=SIGNED), replace(source, dtype=CODES), PLACE
    by_scalar = shares(emitter.builder.timing, operand, target.dtype, cast).scalar
    left = 1 - cast  # nothing where the DMA would have cast all of a block: what is here is small
    _shared(emitter, by_scalar / left if left else 0.0, target, source, factor, _other(operand))


def decode(emitter: Emitter, operand: Operand, targets: Iterable[Block]) -> None:
    """The bits of codes that were converted; of several blocks at once, so that none waits for its own conversion."""
    if operand.decoded:
        for target in targets:
            _on_bits(emitter, target, target, bitwise_and=0xFFFF - HIGHEST)


def decode_cast(emitter: Emitter, codes: Block) -> None:
    """The same of codes that the DMA made signed numbers of 16 bits."""
    _on_bits(emitter, codes, codes, logical_shift_left=SHIFT, bitwise_and=(0xFFFF << SHIFT) & (0xFFFF - HIGHEST))


def leave_pairs(emitter: Emitter, apart: int, out: Block, bank: Block) -> None:
    """Codes leave PSUM, where pairs of them are the upper halves of FP32 numbers: those of even terms as numbers of 16
    bits to ``out``, those of odd ones ``apart`` bytes after.
    """
    upper = itemsize("f32") - itemsize(SIGNED)
    for code in range(2):
        target = replace(out.moved(code * apart), dtype=SIGNED)
        source = replace(bank.moved(upper + code), dtype=CODES)
        emitter.over("activation", Stream.SCALAR, [target], [source], alu=["copy"], imm=[PLACE])
    both = out.of((out.dims[0], Atom(2, apart), *out.dims[1:]))
    _on_bits(emitter, both, both, bitwise_and=0xFFFF - HIGHEST)


def pairs_work(timing: Timing, pairs: int) -> Work:
    """The same of so many pairs a partition."""
    codes = (Tile(SIGNED),), (Tile(CODES, psum=True, stride=itemsize("f32")),)
    words = (Tile("u32"),), (Tile("u32"),)
    left = timing.engine("activation", Stream.SCALAR, pairs, *codes, ("copy",))
    return left.times(2) + timing.engine("tensor_scalar", Stream.VECTOR, pairs, *words, ("bitwise_and",))


def cast_by_dma(timing: Timing, operand: Operand, first: int, count: int, unit: int) -> int:
    """Of ``count`` elements or rows of them how many the DMA casts to 16 bits, a multiple of ``unit``: its share of all
    that have come so far, ``first`` before them, less what it has cast of those.
    """
    if not operand.decoded:
        return 0
    part = shares(timing, operand, operand.dtype).dma
    return int((first + count) * part) // unit * unit - int(first * part) // unit * unit


def cast_of_row(timing: Timing, operand: Operand, dtype: str, size: int) -> int:
    """Of a row that comes to be transposed how many elements the DMA casts; what is left are whole words."""
    count = int(shares(timing, operand, dtype, row=size).dma * size)
    return count + (size - count) % WORD if count else 0


def by_columns(timing: Timing, operand: Operand, rows: int, columns: int) -> bool:
    """Whether the DMA casts a part of each row of a block: less than one row is its share, and that is a long run."""
    part = shares(timing, operand, operand.dtype).dma if operand.decoded else 0.0
    return part * rows < 1 and part * columns * itemsize(SIGNED) >= timing.long_run


def cast(emitter: Emitter, target: Block, source: Block) -> None:
    """The same of floats and integers that engines convert by themselves."""
    _shared(emitter, _balanced(emitter.builder.timing, source.dtype, target.dtype), target, source, 1.0)


def _shared(
    emitter: Emitter, part: float, target: Block, source: Block, factor: float, other: Stream = Stream.VECTOR
) -> None:
    """``target = factor * source``: ``part`` of the elements of a partition by Scalar, the others by another engine."""
    blocks = merge_free([target, source])
    if len(blocks[0].dims) < 2:
        blocks = [target, source]  # one element a partition
    size, dim = blocks[0].dims[1].size, 1
    first = round(size * part)
    if first:
        ends = [block.index(dim, Affine(0), first) for block in blocks]
        emitter.over("activation", Stream.SCALAR, ends[:1], ends[1:], alu=["copy"], imm=[factor])
    if first < size:
        ends = [block.index(dim, Affine(first), size - first) for block in blocks]
        if factor == 1:
            emitter.over("tensor_copy", other, ends[:1], ends[1:])
        else:
            emitter.over("tensor_scalar", Stream.VECTOR, ends[:1], ends[1:], alu=["multiply"], imm=[factor])


def suspect(emitter: Emitter, target: Block, decoded: Block) -> None:
    """Patterns in which only NaNs of codes are not finite, of a block that was decoded."""
    _on_bits(emitter, target, decoded, bitwise_or=HIGHEST)


def _on_bits(emitter: Emitter, target: Block, source: Block, **operators: int) -> None:
    """Operators on 16-bit patterns, two at a time where they come in pairs, whose masks take out what is shifted from
    one to the other.
    """
    blocks = merge_free([target, source])
    last, size = len(blocks[0].dims) - 1, blocks[0].dims[-1].size
    paired = [_pairs(block) for block in blocks]
    if None in paired:
        even = [block.index(last, Affine(0), size - 1) for block in blocks] if last and size % 2 and size > 1 else []
        if even and None not in map(_pairs, even):  # all but the last one of each row
            _on_bits(emitter, even[0], even[1], **operators)
            blocks = [block.index(last, Affine(size - 1), 1) for block in blocks]
        blocks = [replace(block, dtype="u16") for block in blocks]
    else:
        blocks = [block for block in paired if block is not None]
        masks = {"bitwise_and", "bitwise_or"} & operators.keys()
        operators |= {alu: operators[alu] << 16 | operators[alu] for alu in masks}
    numbers = [float(number) for number in operators.values()]
    emitter.over("tensor_scalar", Stream.VECTOR, blocks[:1], blocks[1:], alu=[*operators], imm=numbers)


def _pairs(block: Block) -> Block | None:
    """Neighbours of 16 bits as words; None where not all have one, or a word would begin at an odd place."""
    *outer, last = block.dims
    strides = [atom.stride for atom in outer[1:]] + [stride for _, stride in block.offset.terms]
    if len(block.dims) < 2 or last.stride != 2 or last.size % 2:
        return None
    if block.offset.const % 4 or any(stride % 4 for stride in strides):
        return None
    return replace(block, dtype="u32", dims=(*outer, Atom(last.size // 2, 4)))


def width(operand: Operand, rows: int) -> int:
    """From one row of a block on chip to the next, in elements: pairs of patterns begin at whole words."""
    return rows + rows % 2 if operand.decoded else rows


def suspect_bytes(elements: int) -> int:
    """Bytes of the patterns of a block."""
    return elements * itemsize(SUSPECTS)
