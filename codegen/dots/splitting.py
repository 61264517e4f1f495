"""FP32 operands in three parts of BF16 each, whose sum they are: products of these with 16-bit numbers are exact.

The upper half of an FP32 number is one of BF16, which is finite if the number is. What it leaves has 16 bits at most,
of which the upper half is the second part, and the third is the rest. An infinity, of either operand, leaves no number:
``problem.Split`` says what is done about that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf, prod

import numpy as np

from neuronx_cc.codegen.dots.problem import PART, PARTS, Operand, Problem, Split
from neuronx_cc.codegen.dots.tiles import UNROLLED_PIECES, Tiles, piece_of
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, NOTHING, Tile, Timing, Work, total
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

FINITE, REST, HALVED = "finite", "rest", "halved"
"""The tiles with finite numbers, with what a part leaves of them, and with parts that leave nothing, to be halved."""
LEFT, SUMS, INFINITE = "sums", "sums of parts", "infinite sums"
SHARE = 192
"""Elements that are split at a time are at most one in so many bytes of the room."""
LARGEST = float(np.finfo(np.float32).max)
BUFFERS = 2
ELEMENTS = 1000
"""Elements of a row that are measured: neither starts nor latencies count in long ones."""


def most_elements(problem: Problem, sizes: Sizes) -> int:
    """Elements a partition that are split at a time: enough for long rows, in tiles that take a small part of SBUF."""
    return max(1, min(2 * sizes.bank_columns, problem.room // SHARE))


def work(problem: Problem, operand: Operand, timing: Timing) -> Work:
    """Of all of one operand of one batch index, once."""
    if not operand.split:
        return NOTHING
    whole, part = Tile(), Tile(PART)
    clamp = timing.engine("tensor_scalar", Stream.VECTOR, ELEMENTS, (whole,), (whole,), ("max", "min"))
    leave = timing.engine("tensor_tensor", Stream.VECTOR, ELEMENTS, (whole,), (whole, part), ("subtract",))
    copy = timing.engine("activation", Stream.SCALAR, ELEMENTS, (part,), (part,), ("copy",))
    both = timing.engine("scalar_tensor_tensor", Stream.VECTOR, ELEMENTS, (whole,), (whole,) * 2, ("multiply", "add"))
    steps = {
        Split.APART: [leave.times(2), copy.times(2)],
        Split.FINITE: [clamp, leave.times(2), copy.times(2)],
        Split.NONZERO: [clamp, leave.times(2), both.times(6)],
    }[operand.split]
    elements = problem.products * max(1, prod(problem.m if operand is problem.lhs else problem.n))
    return total(steps).times(elements / ELEMENTS)


def footprint(problem: Problem, operand: Operand, sizes: Sizes) -> dict[tuple[str, int], int]:
    """Bytes a partition of the tiles between."""
    if operand.split is None:
        return {}
    names = {Split.APART: [REST], Split.FINITE: [REST, FINITE], Split.NONZERO: [REST, FINITE, HALVED]}[operand.split]
    return {(name, BUFFERS): itemsize("f32") * most_elements(problem, sizes) for name in names}


def split(emitter: Emitter, tiles: Tiles, parts: Sequence[Block], source: Block, how: Split, most: int) -> None:
    """``parts`` of ``source``, all on chip and of the same dims [partitions, chunks, rows], ``most`` elements a
    partition at a time.
    """
    for (number, *made), several in _pieces(emitter.builder, [source, *parts], most, False):

        def tile(name: str, like: Block = number, several: bool = several) -> Block:
            sizes, partitions = [atom.size for atom in like.dims[1:]], like.dims[0].size
            return tiles.tile("f32", sizes, partitions, name, BUFFERS, several)

        finite, rest = number, tile(REST)
        if how is not Split.APART:
            finite = tile(FINITE)
            limits = [-LARGEST, LARGEST]
            emitter.over("tensor_scalar", Stream.VECTOR, [finite], [number], alu=["max", "min"], imm=limits)
        if how is Split.NONZERO:
            _without_zeros(emitter, made, number, finite, rest, tile(HALVED))
        else:
            _as_they_are(emitter, made, number, finite, rest)


def _as_they_are(emitter: Emitter, parts: Sequence[Block], source: Block, finite: Block, rest: Block) -> None:
    first, second, third = parts
    copy = partial(emitter.over, "activation", Stream.SCALAR, alu=["copy"], imm=[1.0])
    copy([first], [_upper_halves(source)])
    _leave(emitter, rest, finite)
    copy([second], [_upper_halves(rest)])
    _leave(emitter, third, rest)


def _without_zeros(
    emitter: Emitter, parts: Sequence[Block], source: Block, finite: Block, rest: Block, halved: Block
) -> None:
    def halve(part: Block, whole: Block, of: Block, left: Block, out: Block) -> None:
        """``part`` of ``whole``, and ``out`` what is left beside it; ``of``: where its upper half is."""
        both = partial(emitter.over, "scalar_tensor_tensor", Stream.VECTOR)
        both([halved], [left, _upper_halves(whole)], alu=["is_equal", "multiply"], imm=[0.0])
        both([part], [halved, _upper_halves(of)], alu=["multiply", "add"], imm=[-0.5])
        both([out], [halved, left], alu=["multiply", "add"], imm=[0.5])

    first, second, third = parts
    _leave(emitter, rest, finite)
    halve(first, finite, source, rest, rest)
    _leave(emitter, finite, rest)
    halve(second, rest, rest, finite, third)


def _leave(emitter: Emitter, out: Block, number: Block) -> None:
    """What the upper half of ``number`` leaves."""
    emitter.over("tensor_tensor", Stream.VECTOR, [out], [number, _upper_halves(number)], alu=["subtract"])


def _upper_halves(numbers: Block) -> Block:
    """Of FP32, as BF16."""
    return replace(numbers.moved(itemsize("f32") - itemsize(PART)), dtype=PART)


def _pieces(
    builder: Builder, blocks: Sequence[Block], most: int, several: bool
) -> Iterator[tuple[Sequence[Block], bool]]:
    """Blocks of equal dims in pieces of at most so many elements a partition; with each, whether others follow in
    straight-line code.
    """
    sizes = [atom.size for atom in blocks[0].dims[1:]]
    if prod(sizes) <= most:
        yield blocks, several
        return
    dim, piece = piece_of(sizes, most)
    for start, tiles, size in builder.tiles(sizes[dim], piece):
        for index in builder.each(tiles, UNROLLED_PIECES):
            cut = [block.index(1 + dim, index * size + start, size) for block in blocks]
            yield from _pieces(builder, cut, most, tiles <= UNROLLED_PIECES)


def side_by_side(parts: Block) -> Block:
    """Parts [partitions, part, chunks, rows] as they stream past columns: [partitions, chunks, part, rows]."""
    return parts.select([0, 2, 1, 3])


def sum_up(emitter: Emitter, tiles: Tiles, banks: Sequence[Block]) -> Block:
    """Sums [partitions, columns, part, rows] in each of several banks, or on chip, with their parts added up:
    [partitions, columns, rows] on chip. Infinite sums of first parts are all that counts.
    """
    partitions, _, _, rows = banks[0].dims
    columns, first = sum(bank.dims[1].size for bank in banks), 0
    sums = tiles.tile("f32", [columns, rows.size], partitions.size, SUMS, BUFFERS)
    infinite = tiles.tile("u8", [columns, rows.size], partitions.size, INFINITE, BUFFERS)
    for bank in banks:
        count = bank.dims[1].size
        out, flags = (each.index(1, Affine(first), count) for each in (sums, infinite))
        one, two, three = (bank.index(2, Affine(part)) for part in range(PARTS))
        emitter.over("activation", Stream.SCALAR, [out], [three], alu=["copy"], imm=[1.0])
        emitter.over("tensor_tensor", Stream.VECTOR, [out], [two, out], alu=["add"])
        emitter.over("tensor_scalar", Stream.VECTOR, [flags], [one], alu=["abs", "is_equal"], imm=[0.0, inf])
        emitter.over("copy_predicated", Stream.VECTOR, [out], [flags], imm=[0.0])
        emitter.over("tensor_tensor", Stream.VECTOR, [out], [one, out], alu=["add"])
        first += count
    return sums


def left(emitter: Emitter, tiles: Tiles, sums: Block, dtype: str, factor: float) -> Block:
    """``factor`` times sums [partitions, columns, ...] on chip: Vector, which adds them up or transposes them, would
    keep Scalar from PSUM as long as it waits for SBUF.
    """
    sizes, partitions = [atom.size for atom in sums.dims[1:]], sums.dims[0].size
    made = tiles.tile(dtype, sizes, partitions, LEFT, BUFFERS)
    emitter.leave(made, sums, factor)
    return made


def sums_work(problem: Problem, elements: int, timing: Timing) -> Work:
    """Of ``sum_up``, for so many sums a partition."""
    if problem.side_by_side == 1:
        return NOTHING
    flags = (Tile("u8"),)
    add = timing.engine("tensor_tensor", Stream.VECTOR, elements, (F32,), (F32_PSUM, F32), ("add",))
    return total(
        [
            timing.engine("activation", Stream.SCALAR, elements, (F32,), (F32_PSUM,), ("copy",)),
            add.times(2),
            timing.engine("tensor_scalar", Stream.VECTOR, elements, flags, (F32_PSUM,), ("abs", "is_equal")),
            timing.engine("copy_predicated", Stream.VECTOR, elements, (F32,), flags),
        ]
    )


def sums_footprint(problem: Problem, columns: int) -> dict[tuple[str, int], int]:
    """Bytes a partition of the results of ``sum_up``, of tiles of so many elements."""
    if problem.side_by_side == 1:
        return {}
    return {(SUMS, BUFFERS): itemsize("f32") * columns, (INFINITE, BUFFERS): columns}
