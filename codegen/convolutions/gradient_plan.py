"""How a gradient of a kernel spreads positions over partitions, and which pieces of its result are summed together.

The positions of a block are dealt out: along each axis ``partitions`` take ``inner`` neighbouring positions each.
So the ``inner`` positions of all partitions are tiles of TensorE, and a tap, which shifts every position by the same
distance, finds its operand in another tile of the same partitions: a tile is transposed once for all taps that meet it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from neuronx_cc.codegen.convolutions.axis import Axis
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.ir.isa.program import MAX_FREE_DIMS
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

SUM_SHARE = (5, 8)
"""Of the banks of PSUM: those that hold sums; the others take transposes."""


class Loading(IntEnum):
    """How the positions of an operand come onto the partitions."""

    TURNED = 0
    """The features are loaded there; TensorE transposes."""
    ROWS = 1
    """By DMA; the features of a position are neighbours in HBM."""
    PLANES = 2
    """By DMA; the positions of a feature are."""


TURNED = Loading.TURNED, Loading.TURNED


GROUP = 4
"""Tiles of positions whose transposes share a bank."""
ENOUGH = 0.75
"""Share of the partitions from which a spread is not worth cutting the block for."""


class Pace(NamedTuple):
    """Times of loads and transposes in columns of products on TensorE, and how many rows that has."""

    run: float
    """The least of a run."""
    element: float
    """That of a 32-bit word in a long run."""
    rows: int
    turn: float
    """A column that is transposed."""

    @staticmethod
    def of(timing: Timing, dtype: str = "f32", fast: bool = False) -> Pace:
        """For products of ``dtype``; ``fast``: values are transposed as such."""
        column = timing.column(dtype)
        turn = timing.column(carrier_of(dtype, fast)) / column * (1 if fast else 2)
        return Pace(timing.run_ns / column, itemsize("f32") / timing.dma_rate / column, timing.sizes.rows, turn)

    def columns(self, elements: float) -> float:
        """Columns in the time of a run of so many words."""
        return max(self.run, elements * self.element)


@dataclass(frozen=True, slots=True)
class Steps:
    """How the tiles of one axis follow from neighbouring positions and taps."""

    positions: int
    step: int
    """Input positions between neighbouring positions."""
    taps: int
    stride: int
    """Input positions between neighbouring taps."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The tiles of one axis that some position of a partition meets with some tap."""

    loops: tuple[tuple[int, int], ...]
    """(count, input positions apart), outermost first."""
    position: int
    """Tiles between neighbouring positions."""
    tap: int
    """Tiles between neighbouring taps."""

    @property
    def count(self) -> int:
        return prod(count for count, _ in self.loops)


def reach_of(inner: int, steps: Steps, gaps: bool = False) -> Reach:
    """Tiles shared between taps, or where that leaves ``gaps`` a tile for each pair of position and tap."""
    apart = [steps.step] * (inner > 1) + [steps.stride] * (steps.taps > 1)
    common = gcd(*apart) or 1
    shared = ((inner - 1) * steps.step + (steps.taps - 1) * steps.stride) // common + 1
    if gaps or shared <= inner * steps.taps:
        return Reach(((shared, common),), steps.step // common, steps.stride // common)
    return Reach(((inner, steps.step), (steps.taps, steps.stride)), steps.taps, 1)


@dataclass(frozen=True, slots=True)
class Spread:
    """Of a block's positions, axis by axis; ``partitions * inner`` are all of them."""

    partitions: tuple[int, ...]
    inner: tuple[int, ...]
    reach: tuple[Reach, ...]
    products: int
    """Columns that TensorE takes to multiply."""
    transposes: int
    """Columns that it takes to transpose."""
    loads: int
    """Columns in the time of loading what is not transposed."""

    @property
    def tiles(self) -> int:
        """Tiles of the operand that the taps move."""
        return prod(reach.count for reach in self.reach)


@cache
def spread_of(
    pace: Pace,
    axes: tuple[Steps, ...],
    left: int,
    right: int,
    loaded: tuple[Loading, Loading] = TURNED,
    columns: int = 0,
    whole: tuple[bool, bool] = (True, True),
) -> Spread:
    """The spread that takes least time, for ``left`` features of the operand with taps and ``right`` of the other.

    ``columns`` of TensorE multiply the tiles of one position; estimated when 0. ``whole``: whether these are all
    features of an operand, so that those of neighbouring positions follow each other.
    """
    best: tuple[_Dealt, ...] | None = None
    least, cost = (0, 0), (0, 0, 0)
    total, taps = prod([steps.positions for steps in axes]), prod([steps.taps for steps in axes])
    sums = columns or taps * -(-left // pace.rows) * max(right, 64)
    features, transposed = (left, right), [transposed_columns(pace, count) for count in (left, right)]
    ways = _dealt_out([_ways(steps, pace.rows, bool(loaded[0])) for steps in axes], pace.rows)
    # the fewest products come first; of equal times the first way is taken
    for at, (partitions, dealt) in sorted(enumerate(ways), key=lambda way: -way[1][0]):
        positions = total // partitions
        products = positions * sums
        if best is not None and products > least[0]:
            break
        if len(dealt) > MAX_FREE_DIMS and sum([each.partitions > 1 for each in dealt]) > MAX_FREE_DIMS:
            continue
        transposes, loads = 0, 0
        last = dealt[-1]
        sides = (prod([each.tiles for each in dealt]), last.reach.loops[0]), (positions, (last.inner, 1))
        for side, (tiles, (count, distance)) in enumerate(sides):
            if loaded[side] is Loading.TURNED:
                transposes += int(tiles * transposed[side])
                continue
            rows = partitions * (tiles // (last.inner if side else last.tiles))
            near = distance == 1 and (whole[side] or loaded[side] is Loading.PLANES)
            loads += _load_columns(pace, loaded[side], rows, count, features[side], near)
        time = products + transposes + loads, at
        if best is None or time < least:
            best, least, cost = dealt, time, (products, transposes, loads)
    assert best is not None, "one partition always does"
    taken, inner, reach, _ = zip(*best, strict=True)
    return Spread(taken, inner, reach, *cost)


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of one operand: which positions lie on the partitions together, and how tiles follow each other."""

    partitions: tuple[int, ...]
    """Partitions along each axis."""
    apart: tuple[int, ...]
    """Input positions between neighbouring ones of them."""
    reach: tuple[Reach, ...]

    @property
    def loops(self) -> list[tuple[int, int, int]]:
        """(axis, count, input positions apart), outermost first."""
        return [(axis, *loop) for axis, reach in enumerate(self.reach) for loop in reach.loops]


def tiles_of(spread: Spread, axes: Sequence[Axis]) -> tuple[Tiles, Tiles]:
    """The tiles of the operand with taps and of the other."""
    apart = tuple(axis.step * count for axis, count in zip(axes, spread.inner, strict=True))
    plain = tuple(Reach(((count, 1),), 1, 1) for count in spread.inner)
    return Tiles(spread.partitions, apart, spread.reach), Tiles(spread.partitions, spread.inner, plain)


def transposed_columns(pace: Pace, features: int) -> float:
    """Columns that a transposed tile takes, in both halves of its bits or as values, with the time of loading it."""
    return pace.turn * (max(64, features) + 32 * -(-features // pace.rows))


def _load_columns(pace: Pace, loading: Loading, rows: int, count: int, features: int, near: bool) -> int:
    """The time of loading positions onto the partitions, in the columns that TensorE takes meanwhile.

    ``count`` positions for each of ``rows``; ``near``: they are one run.
    """
    runs, elements = (rows, count) if near else (rows * count, 1)
    if loading is Loading.ROWS:
        elements *= features
    else:
        runs *= features
    return int(runs * pace.columns(elements))


class _Dealt(NamedTuple):
    """Positions of one axis: over how many partitions, how many each, and the tiles that these meet."""

    partitions: int
    inner: int
    reach: Reach
    tiles: int


@cache
def _ways(steps: Steps, most: int, gaps: bool) -> list[_Dealt]:
    """For each number of partitions that divides the positions."""
    divisors = [count for count in range(1, min(steps.positions, most) + 1) if steps.positions % count == 0]
    reached = [(count, reach_of(steps.positions // count, steps, gaps)) for count in divisors]
    return [_Dealt(count, steps.positions // count, reach, reach.count) for count, reach in reached]


def _dealt_out(ways: Sequence[Sequence[_Dealt]], most: int) -> list[tuple[int, tuple[_Dealt, ...]]]:
    """One of the ways of each axis, on at most so many partitions in all, and how many these are."""
    found: list[tuple[int, tuple[_Dealt, ...]]] = [(1, ())]
    for axis in ways:
        found = [
            (count * each.partitions, (*dealt, each))
            for count, dealt in found
            for each in axis
            if count * each.partitions <= most
        ]
    return found


def blocks_of(totals: Sequence[int], spread: Callable[[Sequence[int]], Spread], partitions: int) -> Iterator[list[int]]:
    """Positions of each axis in one block, halved from the outermost axis on until few fill the partitions.

    Where the positions of a block have no divisors to fill the partitions with, a few less than all may be better.
    """
    rows = list(totals)
    while True:
        yield from _trimmed(rows, spread(rows).partitions, partitions)
        shrinkable = [axis for axis, size in enumerate(rows) if size > 1]
        if not shrinkable:
            return
        rows = list(rows)
        rows[shrinkable[0]] = -(-rows[shrinkable[0]] // 2)


def _trimmed(rows: list[int], filled: tuple[int, ...], partitions: int) -> Iterator[list[int]]:
    """``rows``, and with one axis cut to a number with more divisors where few partitions are filled."""
    yield rows
    if prod(filled) >= min(ENOUGH * partitions, prod(rows)):
        return
    for axis, size in enumerate(rows):
        for multiple in (partitions, 16, 4):
            if multiple < size and size % multiple:
                yield [*rows[:axis], size - size % multiple, *rows[axis + 1 :]]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows or columns of the result from the operand with taps: ``size`` features for each of some taps."""

    first: tuple[int, ...]
    """First tap of each axis."""
    taps: tuple[int, ...]
    """Taps of each axis."""
    start: int
    size: int

    @property
    def width(self) -> int:
        return prod(self.taps) * self.size


def even(total: int, most: int) -> Iterator[tuple[int, int]]:
    """(start, size) of parts of about equal size, ``most`` at most."""
    size = -(-total // -(-total // most))
    for start in range(0, total, size):
        yield start, min(size, total - start)


def pieces_of(taps: Sequence[int], features: int, most: int, together: Sequence[bool] = ()) -> list[Piece]:
    """All taps and features in pieces of at most ``most``; ``together``: axes of which several taps may be in one, all
    by default.
    """
    sizes = [1 for _ in taps]
    room = most // features
    for axis in reversed(range(len(taps))):
        if room < 2 or (together and not together[axis]):
            break
        sizes[axis] = min(taps[axis], room)
        room = room // sizes[axis] if sizes[axis] == taps[axis] else 0
    cuts = [list(even(count, size)) for count, size in zip(taps, sizes, strict=True)]
    return [
        Piece(tuple(first for first, _ in chosen), tuple(size for _, size in chosen), start, size)
        for start, size in even(features, most)
        for chosen in product(*cuts)
    ]


@dataclass(frozen=True, slots=True)
class Sum:
    """One sum in PSUM: a piece from the operand with taps and (start, size) features of the other."""

    left: Piece
    right: tuple[int, int]
    bank: int
    column: int


def sum_banks(sizes: Sizes) -> int:
    """Banks of PSUM that hold sums."""
    return max(1, sizes.banks * SUM_SHARE[0] // SUM_SHARE[1])


def parts_of(
    groups: Sequence[Sequence[tuple[Piece, tuple[int, int]]]], columns_are_left: bool, banks: int, columns: int
) -> list[list[Sum]]:
    """The sums that are in PSUM at the same time, none across two of ``banks``; groups that fit are not split."""
    parts: list[list[Sum]] = [[]]
    bank = column = 0
    for group in groups:
        widths = [left.width if columns_are_left else right[1] for left, right in group]
        if bank + _banks(widths, columns, column) > banks >= _banks(widths, columns):
            parts.append([])
            bank = column = 0
        for (left, right), width in zip(group, widths, strict=True):
            if column + width > columns:
                bank, column = bank + 1, 0
            if bank == banks:
                parts.append([])
                bank = 0
            parts[-1].append(Sum(left, right, bank, column))
            column += width
    return [part for part in parts if part]


def _banks(widths: Sequence[int], columns: int, column: int = 0) -> int:
    """Banks of ``columns`` that sums of these widths fill, from ``column`` of the first one on."""
    banks = 1
    for width in widths:
        if column + width > columns:
            banks, column = banks + 1, 0
        column += width
    return banks
