"""Maps of which bytes of a memory are defined, for the race check.

A map knows some footprints; accesses to them define all bytes of one, or ask whether all are defined. ``state`` is an
array of bits, parts of which can be copied, put back, and intersected with what they are at another time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd
from typing import Protocol

import numpy as np

from neuronx_cc.ir.isa.program import Space
from neuronx_cc.runtime.footprints import SIZE, Footprints, Pattern
from neuronx_cc.runtime.intervals import Array, distinct, numbers
from neuronx_cc.runtime.race_native import MAX_DIMS, Cells, walk_cells, walk_stretches

MAX_RUNS = 1 << 22
"""Runs that a map of HBM holds, about; beyond, the memory is mapped in parts."""
_SMALLEST = 1 << 12
"""Bytes of the smallest part."""
GRID_CELLS = 4096
"""Cells of a grid that cost no more than a run of a map of HBM."""
_LARGEST_GRID = 1 << 28
_BITS = 64

Layer = tuple[int, np.uint64]
"""A word of a cell, and the bits in it."""


class Map(Protocol):
    """What of a memory is defined."""

    state: Array

    def first_undefined(self, touched: Array, writes: Array) -> int:
        """Accesses to footprints one after the other: the first read that is not defined, or -1. Writes define."""

    def part(self, touched: Array) -> Array:
        """A part of ``state`` that has all cells of these footprints."""


class _Walk:
    """The walk of a map in Python."""

    state: Array

    def first_undefined(self, touched: Array, writes: Array) -> int:
        for at, (footprint, write) in enumerate(zip(touched.tolist(), writes.tolist(), strict=True)):
            if write:
                self._define(footprint)
            elif not self._defines(footprint):
                return at
        return -1

    def part(self, touched: Array) -> Array:
        return self.state

    def _define(self, footprint: int) -> None:
        raise NotImplementedError

    def _defines(self, footprint: int) -> bool:
        raise NotImplementedError


class OnChipMap(_Walk):
    """SBUF or PSUM: a word for every few bytes of a partition, with a bit for each band of partitions.

    No footprint begins or ends within these bytes, nor within a band.
    """

    def __init__(self, footprints: Footprints, members: Array, space: Space) -> None:
        patterns = [footprints.patterns.all[number] for number in distinct(footprints.pattern[members]).tolist()]
        self._footprints = footprints
        self._grain = gcd(
            *[gcd(pattern.run, pattern.pitch) for pattern in patterns], *footprints.base[members].tolist()
        )
        rows = sorted({row for pattern in patterns for row in (pattern.first, pattern.last)})
        bands = {row: band for band, row in enumerate(rows)}
        self._masks = {
            (first, last): _words((1 << bands[last]) - (1 << bands[first]))
            for first, last in {(pattern.first, pattern.last) for pattern in patterns}
        }
        words = (len(rows) + _BITS - 1) // _BITS
        self.state: Array = np.zeros((words, SIZE[space] // self._grain), np.uint64)
        self._facts = cells_of(footprints, members, self._grain, 0, self._masks)

    def first_undefined(self, touched: Array, writes: Array) -> int:
        found = walk_cells(self.state, touched, writes, self._facts)
        return super().first_undefined(touched, writes) if found is None else found

    def part(self, touched: Array) -> Array:
        base, end = self._footprints.base[touched].min(), self._footprints.end[touched].max()
        return self.state[:, base // self._grain : end // self._grain]

    def _define(self, footprint: int) -> None:
        for cells, mask in self._cells(footprint):
            cells |= mask

    def _defines(self, footprint: int) -> bool:
        return all(bool(((cells & mask) == mask).all()) for cells, mask in self._cells(footprint))

    def _cells(self, footprint: int) -> Iterator[tuple[Array, np.uint64]]:
        """The words of the footprint, as often as it takes to hold all bands, with the bits of its bands."""
        pattern, base = self._footprints.at(footprint)
        shape = (*[count for count, _ in pattern.dims], pattern.run // self._grain)
        strides = (*[stride // self._grain * 8 for _, stride in pattern.dims], 8)
        for word, mask in self._masks[pattern.first, pattern.last]:
            yield np.ndarray(shape, np.uint64, self.state[word], base // self._grain * 8, strides), mask


def _words(mask: int) -> list[Layer]:
    """The words of a long mask that are not 0, with their numbers."""
    words = [(word, mask >> word * _BITS & (1 << _BITS) - 1) for word in range(mask.bit_length() // _BITS + 1)]
    return [(word, np.uint64(bits)) for word, bits in words if bits]


class HbmMap(_Walk):
    """A part of HBM: a flag for each *cell* between two places at which runs of its footprints begin or end."""

    def __init__(self, footprints: Footprints, members: Array, initialised: Array, low: int, high: int) -> None:
        """``members`` are the footprints that touch low..high-1, which alone matters."""
        starts, ends, owners = _runs(footprints, members, low, high)
        given = np.clip(initialised, low, high)
        bounds = distinct(np.concatenate([starts, ends, given.reshape(-1)]))
        self._begin, self._end = np.searchsorted(bounds, starts), np.searchsorted(bounds, ends)
        firsts = np.flatnonzero(np.diff(owners, prepend=-1))
        lasts = np.append(firsts[1:], len(owners))
        self._firsts, self._lasts = np.zeros((2, len(footprints)), np.int64)
        self._firsts[owners[firsts]], self._lasts[owners[firsts]] = firsts, lasts
        self.state: Array = np.zeros(len(bounds), bool)
        self.state[numbers(np.searchsorted(bounds, given[:, 0]), np.searchsorted(bounds, given[:, 1]))] = True

    def first_undefined(self, touched: Array, writes: Array) -> int:
        found = walk_stretches(self.state, touched, writes, (self._firsts, self._lasts, self._begin, self._end))
        return super().first_undefined(touched, writes) if found is None else found

    def _define(self, footprint: int) -> None:
        self.state[self._cells(footprint)] = True

    def _defines(self, footprint: int) -> bool:
        return bool(self.state[self._cells(footprint)].all())

    def _cells(self, footprint: int) -> Array | slice:
        first, last = int(self._firsts[footprint]), int(self._lasts[footprint])
        if last == first + 1:
            return slice(self._begin[first], self._end[first])
        return numbers(self._begin[first:last], self._end[first:last])


class GridMap(_Walk):
    """HBM from the least to the greatest byte of some footprints: a flag for each few bytes, within which none of them
    begins or ends a run."""

    def __init__(self, footprints: Footprints, members: Array, initialised: Array, grain: int) -> None:
        self._footprints, self._grain = footprints, grain
        self._low, high = int(footprints.base[members].min()), int(footprints.end[members].max())
        self.state: Array = np.zeros((high - self._low) // grain, bool)
        for start, end in ((np.clip(initialised, self._low, high) - self._low) // grain).tolist():
            self.state[start:end] = True
        self._facts = cells_of(footprints, members, grain, self._low, None)

    def first_undefined(self, touched: Array, writes: Array) -> int:
        found = walk_cells(self.state, touched, writes, self._facts)
        return super().first_undefined(touched, writes) if found is None else found

    def part(self, touched: Array) -> Array:
        base, end = self._footprints.base[touched].min() - self._low, self._footprints.end[touched].max() - self._low
        return self.state[base // self._grain : end // self._grain]

    def _define(self, footprint: int) -> None:
        self._cells(footprint)[...] = True

    def _defines(self, footprint: int) -> bool:
        return bool(self._cells(footprint).all())

    def _cells(self, footprint: int) -> Array:
        pattern, base = self._footprints.at(footprint)
        shape = (*[count for count, _ in reversed(pattern.dims)], pattern.run // self._grain)
        strides = (*[stride // self._grain for _, stride in reversed(pattern.dims)], 1)
        return np.ndarray(shape, bool, self.state, (base - self._low) // self._grain, strides)


def cells_of(
    footprints: Footprints, members: Array, grain: int, low: int, masks: Mapping[tuple[int, int], list[Layer]] | None
) -> Cells | None:
    """Where the footprints lie in a map of which a cell is ``grain`` bytes, the first one at ``low``.

    ``masks``, by first and last partition, are those of maps of words; others are of bytes. None for a pattern of more
    dims than are walked through.
    """
    shapes = np.zeros((len(footprints.patterns.all), 4 + 2 * MAX_DIMS), np.int64)
    layers: list[Layer] = [(0, np.uint64(1))] if masks is None else []
    for number in distinct(footprints.pattern[members]).tolist():
        pattern = footprints.patterns.all[number]
        if len(pattern.dims) > MAX_DIMS:
            return None
        first = len(layers) if masks else 0
        layers += masks[pattern.first, pattern.last] if masks else []
        shapes[number, :4] = pattern.run // grain, len(pattern.dims), first, len(layers)
        for place, (count, stride) in enumerate(reversed(pattern.dims)):
            shapes[number, 4 + place], shapes[number, 4 + MAX_DIMS + place] = count, stride // grain
    words, bits = zip(*layers, strict=True) if layers else ((), ())
    bases = (footprints.base - low) // grain
    return Cells(footprints.pattern, bases, shapes, np.array(words, np.int64), np.array(bits, np.uint64))


def grid_of_hbm(footprints: Footprints, members: Array, initialised: Array, copies: int) -> GridMap | None:
    """A grid of these footprints, copied so often; None where an ``HbmMap`` takes less time."""
    patterns = footprints.patterns.all
    numbered = footprints.pattern[members]
    low, high = int(footprints.base[members].min()), int(footprints.end[members].max())
    bounds = np.clip(initialised, low, high) - low
    bounds = bounds[bounds[:, 0] < bounds[:, 1]].reshape(-1)
    used = [patterns[number] for number in distinct(numbered).tolist()]
    grain = gcd(*[gcd(pattern.run, pattern.pitch) for pattern in used])
    grain = gcd(grain, int(np.gcd.reduce(footprints.base[members] - low)), int(np.gcd.reduce(bounds)))
    sizes = np.zeros((len(patterns), 2))
    sizes[distinct(numbered)] = [(pattern.runs, pattern.runs * pattern.run) for pattern in used]
    runs, nbytes = sizes[numbered].sum(axis=0)
    if high - low > _LARGEST_GRID * grain or (high - low) * copies + nbytes > GRID_CELLS * grain * runs:
        return None
    return GridMap(footprints, members, initialised, grain)


def parts_of_hbm(footprints: Footprints, members: Array, low: int, high: int) -> Iterator[tuple[int, int, Array]]:
    """low..high-1 in parts whose footprints (of ``members``) have few runs there, with these."""
    begin, end = footprints.base[members], footprints.end[members]
    shares = (np.minimum(end, high) - np.maximum(begin, low)) / (end - begin)
    here = shares > 0
    runs = np.array([pattern.runs for pattern in footprints.patterns.all])[footprints.pattern[members]]
    if (runs * shares)[here].sum() <= MAX_RUNS or high - low <= _SMALLEST:
        yield low, high, members[here]
        return
    middle = (low + high) // 2
    yield from parts_of_hbm(footprints, members[here], low, middle)
    yield from parts_of_hbm(footprints, members[here], middle, high)


def _runs(footprints: Footprints, members: Array, low: int, high: int) -> tuple[Array, Array, Array]:
    """The runs of footprints inside low..high-1: starts, ends, and whose they are. Those of one are together."""
    contained = (low <= footprints.base[members]) & (footprints.end[members] <= high)
    parts: list[tuple[Array, Array, Array]] = [(np.zeros(0, np.int64),) * 3]
    whole = members[contained]
    whole = whole[np.argsort(footprints.pattern[whole], kind="stable")]
    firsts = np.flatnonzero(np.diff(footprints.pattern[whole], prepend=-1))
    for group in np.split(whole, firsts[1:]) if len(whole) else []:
        starts, ends = footprints.patterns.all[footprints.pattern[group[0]]].offsets()
        bases = footprints.base[group][:, None]
        parts.append(((bases + starts).reshape(-1), (bases + ends).reshape(-1), np.repeat(group, len(starts))))
    for number in members[~contained].tolist():
        pattern, base = footprints.at(number)
        pattern, base = _trimmed(pattern, base, low, high)
        starts, ends = (np.clip(column + base, low, high) for column in pattern.offsets())
        starts, ends = starts[ends > starts], ends[ends > starts]
        parts.append((starts, ends, np.full(len(starts), number)))
    starts, ends, owners = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return starts, ends, owners


def _trimmed(pattern: Pattern, base: int, low: int, high: int) -> tuple[Pattern, int]:
    """The pattern without the outer rows that do not reach into low..high-1."""
    if not pattern.dims:
        return pattern, base
    *inner, (count, stride) = pattern.dims
    row = pattern.extent - (count - 1) * stride
    first = max(0, (low - base - row) // stride + 1)
    kept = max(min(count, (high - base + stride - 1) // stride) - first, 0)
    base += first * stride
    if kept == 1:
        return _trimmed(replace(pattern, dims=tuple(inner)), base, low, high)
    return replace(pattern, dims=(*inner, (kept, stride))), base
