"""The words of instructions (``encode``), made once for all that differ in number and operands' addresses alone."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import NamedTuple

from neuronx_cc.ir.isa.elements import STORAGE
from neuronx_cc.ir.isa.program import Instr, Ref, Space
from neuronx_cc.runtime.native.encode import (
    BY_SIZE,
    COPY,
    GATHER,
    GROUP_GATHER,
    GROUP_SCATTER,
    MAP,
    RAW8,
    REDUCE,
    SCATTER,
    TYPES,
    Form,
)
from neuronx_cc.runtime.values import register_place


class NotNative(Exception):
    """The core cannot run this program at all."""


_INDEXED = frozenset([GATHER, GROUP_GATHER, GROUP_SCATTER, SCATTER])
"""Kinds whose last operand is a list of numbers."""


class Pattern(NamedTuple):
    """The words that such instructions have in common."""

    words: array[int]
    spots: list[tuple[int, int]]
    """Of each operand in memory its number among (results..., sources...), and where its words begin."""


def pattern(instr: Instr, found: Form, pitch: dict[Space, int]) -> Pattern:
    """What ``item`` fills in for the instruction and others like it."""
    refs = (*instr.outs, *instr.ins)
    order = range(len(refs)) if found.order is None else found.order
    words = [found.kind, 0, len(instr.outs) if order else 0, len(found.params), *found.params]
    words.append(len(found.operations))
    for operation in found.operations:
        words += operation
    words.append(len(order))
    counts = refs[order[0]].counts if order else ()
    spots = []
    for position, index in enumerate(order):
        if index < 0:
            kind = BY_SIZE[STORAGE[refs[0].dtype].itemsize] if found.opaque else TYPES[refs[0].dtype]
            words += (-1, kind, 0, 0, -1, 0, len(counts))
            for count in counts:
                words += (count, 0)
            continue
        ref = refs[index]
        kind = (
            BY_SIZE[STORAGE[ref.dtype].itemsize]
            if found.opaque and not (found.kind in _INDEXED and index == len(refs) - 1)
            else TYPES.get(ref.dtype, RAW8)
        )
        tile = counts if position in found.partitions or (found.kind in (MAP, COPY) and not found.flipped) else None
        spots.append((index, len(words)))
        words += _operand(ref, kind, pitch, tile, found.flipped and (position == 1 or found.kind == REDUCE))
    return Pattern(as_words(words), spots)


def as_words(numbers: Iterable[int] = ()) -> array[int]:
    """As the core reads them; raises NotNative for what is no 64-bit integer."""
    try:
        return array("q", numbers)
    except (OverflowError, TypeError):
        raise NotNative("a number that is no 64-bit integer") from None


def _operand(ref: Ref, kind: int, pitch: dict[Space, int], tile: tuple[int, ...] | None, flipped: bool) -> list[int]:
    """The words of one operand; with the counts of a ``tile``, dims of one element count as many."""
    dims, lane_dim = ref.dims, -1
    if ref.space is not Space.HBM:
        lane_dim = len(dims) - 1 if flipped else 0
        dims = ((ref.dims[0][0], pitch[ref.space]), *ref.dims[1:])
    if flipped:
        dims = dims[::-1]
    if tile is not None:
        strides = [stride if d < len(dims) and count > 1 else 0 for d, (count, stride) in enumerate(dims)]
        strides += [0] * (len(tile) - len(dims))
        dims = tuple(zip(tile, strides, strict=False))
    words = [int(ref.space), kind, 0, 0, lane_dim, len(ref.coefs), *[0] * 2 * len(ref.coefs), len(dims)]
    for dim in dims:
        words += dim
    return words


def item(
    made: Pattern, instr: Instr, number: int, region: Callable[[int], int | None], owned: frozenset[int]
) -> array[int]:
    """The words of one instruction; ``region`` tells the number of the base of a bound region at an HBM offset,
    ``owned`` are the registers of loops and regions around it."""
    words = made.words[:]
    try:
        words[1] = number
        refs = (*instr.outs, *instr.ins)
        for index, at in made.spots:
            ref = refs[index]
            if ref.space is Space.HBM and (base := region(ref.offset)) is not None:
                words[at] = base
            words[at + 2] = ref.offset
            words[at + 3] = ref.partition
            for coef, (register, stride) in enumerate(ref.coefs):
                words[at + 6 + 2 * coef] = register_place(register, instr.stream, owned)
                words[at + 7 + 2 * coef] = stride
    except (OverflowError, TypeError):
        raise NotNative(f"record {number}: an address of more than 64 bits") from None
    return words
