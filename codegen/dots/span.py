"""Parts of operands and results, by index: what emission moves at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from neuronx_cc.codegen.emission.builder import Affine
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.ir.frozen import replace

Terms = tuple[tuple[Affine, int], ...]
"""First index and size along each dim of the chunks of k (``Problem.chunks``)."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of an operand, and terms of k, that are staged together."""

    batch: Sequence[Affine]
    at: dict[int, Affine]
    """Index along each free dim; along ``tiled`` that of the first row."""
    tiled: int
    """The free dim that is cut into blocks, -1 without any."""
    size: int
    """Rows along it."""
    terms: Terms | None = None
    """None for all of k."""
    group: int = 1
    """Tiles of neighbouring indices along ``around`` that ``size`` is made of."""
    around: int = -1
    """Another free dim; -1 without any."""

    def tiles(self, count: int = 1) -> Iterator[tuple[Affine, Span]]:
        """``count`` tiles of the group at a time, fewer at last, and which row of the span is their first."""
        size = self.size // self.group
        for number in range(0, self.group, count):
            at = {**self.at, self.around: self.at[self.around] + number} if self.group > 1 else self.at
            tiles = min(count, self.group - number)
            yield Affine(number * size), replace(self, at=at, size=tiles * size, group=tiles)

    @property
    def chunk(self) -> int:
        """How many chunks of the dim that is cut come before; in a loop, in its first iteration."""
        return next((first.const for first, size in self.terms or () if size > 1), 0)

    def within(self, offset: Affine, chunks: Sequence[Atom]) -> tuple[Affine, list[Atom]]:
        """Where the terms begin in what begins at ``offset`` with these dims of chunks, and the dims that are left."""
        if self.terms is None:
            return offset, list(chunks)
        for (first, _), atom in zip(self.terms, chunks, strict=True):
            offset = offset + first * atom.stride
        return offset, [replace(atom, size=size) for (_, size), atom in zip(self.terms, chunks, strict=True)]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows and columns of the result."""

    batch: Sequence[Affine]
    m_at: dict[int, Affine]
    """Where the block of rows begins, along each dim of m."""
    n_at: dict[int, Affine]
    rows: int
    columns: int
    m_offset: Affine = field(default_factory=Affine)
    """From the beginning of the block to the first row."""
    n_offset: Affine = field(default_factory=Affine)
    staged: Affine = field(default_factory=Affine)
    """From the first row of what is staged to the block's: other tiles of its group."""
    beside: int = 1
    """Neighbouring rows on each partition."""

    def cut_rows(self, offset: Affine, rows: int) -> Part:
        """``rows`` of these, from ``offset`` on."""
        return replace(self, m_offset=self.m_offset + offset, rows=rows)

    def cut_columns(self, offset: Affine, columns: int) -> Part:
        """``columns`` of these, from ``offset`` on."""
        return replace(self, n_offset=self.n_offset + offset, columns=columns)

    def tiles(self, height: int) -> Iterator[Part]:
        """Of ``height`` rows each, the last one of those that are left."""
        for start in range(0, self.rows, height):
            yield self.cut_rows(Affine(start), min(height, self.rows - start))

    def of_each_partition(self, number: int) -> Part:
        """Of the neighbouring rows of each partition the one of this ``number``: a tile, staged after those before."""
        rows = self.rows // self.beside
        return replace(self, rows=rows, beside=1, staged=self.staged + number * rows)

    @property
    def lhs_row(self) -> Affine:
        """The first row, among those that are staged of lhs."""
        return self.staged + self.m_offset


def heights(size: int, height: int, beside: int) -> list[tuple[int, int, int, int]]:
    """Cut rows into (start, count of tiles, tile size, rows side by side on a partition): all partitions are filled
    first. ``height``: partitions; ``beside``: rows on one, at most.
    """
    found, start = [], 0
    for each in range(beside, 0, -1):
        tiles = (size - start) // (height * each)
        if tiles:
            found.append((start, tiles, height * each, each))
            start += tiles * height * each
    return [*found, *([(start, 1, size - start, 1)] if start < size else [])]


def in_a_row(terms: Terms, sizes: Sequence[int]) -> tuple[Affine, int]:
    """First chunk and number of chunks of a box, where the chunks of these dims lie one after the other.

    A box that cuts a dim holds one index of each dim outside of it, and all of those inside.
    """
    begin, count = Affine(), 1
    for (first, size), whole in zip(terms, sizes, strict=True):
        begin, count = begin * whole + first, count * size
    return begin, count


def batch_start(view: View, atoms: Sequence[Atom], batch: Sequence[Affine]) -> Affine:
    """Where the part of one batch index begins; ``atoms``: of the view's batch dims."""
    offset = view.start
    for atom, index in zip(atoms, batch, strict=True):
        offset = offset + index * atom.stride
    return offset


def rows_at(view: View, batch: Sequence[Atom], free: Sequence[Atom], span: Span) -> tuple[Affine, Atom]:
    """Where the rows of a block begin, and how they follow each other."""
    offset = batch_start(view, batch, span.batch)
    rows = Atom(1, 0)
    for dim, atom in enumerate(free):
        if dim == span.tiled:
            rows = replace(atom, size=span.size)
            if atom.partition:
                continue
        offset = offset + span.at[dim] * atom.stride
    return offset, rows
