"""Bitonic networks of whole-array ops (Batcher, "Sorting networks and their applications", AFIPS 1968).

A stage compares elements at distance d: an array [rows, N] is seen as [rows, N / 2d, 2, d], and each element meets the
one that reversing the third dim brings to its place. ``by_comparator`` sorts single elements by any comparator;
``by_blocks`` merges blocks of rows that an engine program has sorted.
"""

from collections.abc import Callable, Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.passes.expansions.bodies import apply_body
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.sorting.words import HIGHEST, Words

Before = Callable[[list[Value], list[Value]], Value]


def by_comparator(b: Build, operands: Sequence[Value], body: hlo.ComputationOp) -> list[Value]:
    """``operands`` [rows, n] sorted stably along the rows by an elementwise comparator.

    Where ``body`` says nothing or contradicts itself about two elements, the first one goes first.
    """
    rows, count = hlo.shape_of(operands[0]).dims
    levels = (count - 1).bit_length()
    length = 1 << levels
    values = [b.pad(operand, [(0, 0), (0, length - count)]) for operand in operands]
    values.append(b.iota((rows, length), 1))

    def before(left: list[Value], right: list[Value]) -> Value:
        dims = hlo.shape_of(left[0]).dims
        sides = [left[:-1], right[:-1]]
        less, more = (
            apply_body(b.anchor, body, [x for pair in zip(*order, strict=True) for x in pair], dims)[0]
            for order in (sides, sides[::-1])
        )
        earlier = b.compare(left[-1], right[-1], "LT")
        decided = b.each(hlo.XorOp, less, more)
        if length != count:  # what was added stays at the end
            end = b.number(count, "s32", dims)
            real = b.each(hlo.AndOp, b.compare(left[-1], end, "LT"), b.compare(right[-1], end, "LT"))
            decided = b.each(hlo.AndOp, decided, real)
        return b.select(decided, less, earlier)

    for level in range(1, levels + 1):
        for exponent in reversed(range(level)):
            values = _exchange(b, values, 1 << exponent, before, level - exponent - 1 if level < levels else None)
    return [b.slice(value, 1, 0, count) for value in values[:-1]]


def by_blocks(b: Build, words: Sequence[Value], keys: int, most: int, partitions: int) -> list[Value]:
    """s32 ``words`` [rows, n] sorted stably by the first ``keys``, in blocks of at most ``most`` elements."""
    rows, count = hlo.shape_of(words[0]).dims
    levels = (-(-count // most) - 1).bit_length()
    number = 1 << levels
    block = -(-count // (number * partitions)) * partitions
    values = list(words)
    if keys < len(words):  # the place makes the sort stable
        values.insert(keys, b.iota((rows, count), 1))
        keys += 1
    padding = [(0, 0), (0, number * block - count)]
    values = [b.pad(value, padding, HIGHEST if place < keys else 0) for place, value in enumerate(values)]
    builder = Words(b)

    def sort_blocks(values: list[Value]) -> list[Value]:
        flat = [b.reshape(value, (rows * number, block)) for value in values]
        return [b.reshape(value, (rows, number * block)) for value in builder.sorted(flat, keys, partitions)]

    def flipped(values: list[Value], bits: Sequence[int]) -> list[Value]:
        """With the keys of the blocks complemented whose number has an odd count of ``bits``: they sort downwards."""
        dims = (rows, number, block)
        place = b.iota(dims, 1)
        odd = b.number(0, "s32", dims)
        for bit in bits:
            odd = b.each(hlo.XorOp, odd, b.each(hlo.ShiftRightLogicalOp, place, b.number(bit, "s32", dims)))
        mask = b.reshape(b.neg(b.each(hlo.AndOp, odd, b.number(1, "s32", dims))), (rows, number * block))
        return [b.each(hlo.XorOp, value, mask) for value in values[:keys]] + values[keys:]

    def before(left: list[Value], right: list[Value]) -> Value:
        return builder.before(left[:keys], right[:keys])

    values = sort_blocks(flipped(values, [0]))
    for level in range(1, levels + 1):
        values = flipped(values, [level - 1, level])
        for exponent in reversed(range(level)):
            values = _exchange(b, values, block << exponent, before, None)
        values = sort_blocks(values)
    done = [b.slice(value, 1, 0, count) for value in values]
    return done[: keys - 1] + done[keys:] if len(values) > len(words) else done


def _exchange(b: Build, values: list[Value], distance: int, before: Before, downwards: int | None) -> list[Value]:
    """One stage: the lower of two places gets what comes first.

    With ``downwards``, it is the upper one where that bit of the pair's number is set.
    """
    rows, length = hlo.shape_of(values[0]).dims
    dims = (rows, length // (2 * distance), 2, distance)
    here = [b.reshape(value, dims) for value in values]
    there = [b.reverse(value, [2]) for value in here]
    first = b.compare(b.iota(dims, 2), b.number(0, "s32", dims), "EQ")
    if downwards is not None:
        shifted = b.each(hlo.ShiftRightLogicalOp, b.iota(dims, 1), b.number(downwards, "s32", dims))
        bit = b.each(hlo.AndOp, shifted, b.number(1, "s32", dims))
        first = b.each(hlo.XorOp, first, b.convert(bit, "pred"))
    swaps = b.each(hlo.XorOp, before(here, there), first)
    return [b.reshape(b.select(swaps, other, value), (rows, length)) for other, value in zip(there, here, strict=True)]
