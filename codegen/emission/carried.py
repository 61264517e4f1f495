"""Which accesses of a loop may meet across its iterations, and how each moves with the loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import attrgetter
from typing import NamedTuple

from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.frames import Access
from neuronx_cc.ir.frozen import replace

Alike = tuple[Access, Access]
"""The first and the last of accesses that are the same but for their instructions."""
FEW = 64
"""Accesses of a loop of which all pairs are looked at."""


@dataclass(slots=True)
class Walk:
    """How an access moves with the loop that is being closed."""

    step: int
    """Bytes an iteration."""
    lo: int
    hi: int
    """Hull over the values of all other registers."""
    rotated: frozenset[tuple[int, int]]
    """Its rotations in loops that are closed."""
    phases: tuple[tuple[int, int], ...]
    """(register, stride) of the loop's own phase registers."""


class Like(NamedTuple):
    """Accesses of a loop that differ in their places only: the first and the last of an iteration."""

    first: Access
    last: Access
    walk: Walk
    lo: int
    hi: int
    """Hull over all iterations."""


def alike_of(accesses: Iterable[Access]) -> list[Alike]:
    """Of accesses that are the same but for their instructions, the first and the last."""
    found: dict[tuple[object, ...], Alike] = {}
    for access in accesses:
        key = (
            access.stream, access.write, access.lo, access.hi,
            access.partitions, access.coefs, access.rotations, access.rows,
        )  # fmt: skip
        first, last = found.get(key, (access, access))
        found[key] = (first, access if access.count > last.count else last)
    return list(found.values())


def together(touched: Mapping[Alloc, list[Access]]) -> Iterator[list[Access]]:
    """The accesses to pieces of memory, to those that have bytes in common together, at their addresses, in order."""
    pieces = sorted(touched, key=lambda piece: (piece.space.value, piece.lo))
    while pieces:
        count, space, end = 1, pieces[0].space, pieces[0].hi
        while count < len(pieces) and pieces[count].space is space and pieces[count].lo < end:
            end, count = max(end, pieces[count].hi), count + 1
        found, pieces = pieces[:count], pieces[count:]
        accesses = [
            access if count == 1 else replace(access, lo=access.lo + piece.lo, hi=access.hi + piece.lo)
            for piece in found
            for access in touched[piece]
        ]
        yield sorted(accesses, key=attrgetter("order"))


def near(groups: Sequence[Like]) -> Iterator[tuple[Like, Like]]:
    """Pairs of accesses, in both orders, that may have bytes in common in some iterations."""
    if len(groups) <= FEW:
        yield from product(groups, repeat=2)
        return
    open_: list[Like] = []
    for each in sorted(groups, key=attrgetter("lo")):
        open_ = [other for other in open_ if other.hi > each.lo]
        yield each, each
        for other in open_:
            yield each, other
            yield other, each
        open_.append(each)
