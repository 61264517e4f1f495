"""The sums of one block of a convolution, tile by tile: of output features, or of positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from neuronx_cc.codegen.convolutions.axis import Taps
from neuronx_cc.codegen.convolutions.candidates import MAX_UNROLLED
from neuronx_cc.codegen.convolutions.finish import Leaving
from neuronx_cc.codegen.convolutions.problem import Problem
from neuronx_cc.codegen.convolutions.result import Results
from neuronx_cc.codegen.convolutions.schedule import Schedule, row_phases, tile_shape
from neuronx_cc.codegen.convolutions.stage import RowsAt
from neuronx_cc.codegen.convolutions.sums import Features, Sum, Sums, Terms
from neuronx_cc.codegen.convolutions.weights import Kernels, OutputsAt, PartAt
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.interleaved import interleaved_pieces
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.emission.views import Atom, nested
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.limits import MAX_WAIT_COEFS
from neuronx_cc.ir.types import itemsize

Opened = tuple[list[Affine], list[int], Sum]
"""A tile of positions: where it begins, its sizes, and its sums."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """Computes blocks of one convolution."""

    builder: Builder
    problem: Problem
    schedule: Schedule
    kernels: Kernels
    sums: Sums
    results: Results

    def block(self, several: Sequence[Terms], at: list[RowsAt]) -> None:
        """All output features of ``several``, whose features are neighbours, at the positions of one block."""
        if self.problem.positions_on_partitions:
            self._positions(several, at)
            return
        (terms,) = several
        results, outs = self.results, terms.outs
        tiles = results.output_tiles(outs.size)
        blocks = results.feature_blocks(terms.pack, outs, at, tiles, terms.columns)
        for part in tiles:
            for index in self.builder.each(part.tiles, 1):
                parts = [block.index(1, index + part.first) for block in blocks]
                parts = [block.of((Atom(part.partitions, 1, True), *block.dims[1:])) for block in parts]
                features = Features(index * part.tile_step + part.start, part.partitions, part.partition_step)
                self._features(terms, features, at, parts)
        if not self.problem.out.on_chip:
            results.store_features(terms.pack, outs, at, tiles, blocks[0])

    def _features(self, whole: Terms, features: Features, at: list[RowsAt], blocks: list[Block]) -> None:
        """One tile of output features at all positions of the block; ``blocks``, of results and of what is read with
        them, are [partitions, batch, spatial...].
        """
        for phases, goals, counts in self._phases(at, blocks, 1, len(at)):
            terms = self._taps([whole], phases)[0]
            if terms.no_taps and self.problem.epilogue is None:
                self.results.fill_zeros(goals[0])
                continue
            for several in self._open(terms, counts, self.builder.sizes.bank_columns, features.count, features):
                for together in self._batched(several):
                    cut = [_pieces(goals, 1, rows, sizes) for rows, sizes, _ in together]
                    self.results.finish.leave(
                        [(cut[at][0], sum_.bank, sizes, cut[at][1:]) for at, (_, sizes, sum_) in enumerate(together)]
                    )

    def _batched(self, several: list[Opened]) -> Iterator[list[Opened]]:
        """As many at a time as are interleaved."""
        count = self.results.finish.together
        return (several[at : at + count] for at in range(0, len(several), count))

    def _open(
        self, terms: Terms, counts: Sequence[int], limit: int, partitions: int, features: Features
    ) -> Iterator[list[Opened]]:
        """Tiles of at most ``limit`` positions with their finished sums: one by one, or as many as banks are open."""
        shape = tile_shape(counts, limit)
        on_partitions = self.problem.positions_on_partitions
        if terms.kernel is not None or terms.no_taps:
            for together in self._together(counts, shape):
                several = []
                for rows, sizes in together:
                    shown = (prod(sizes), features.count) if on_partitions else (partitions, prod(sizes))
                    bank = self.sums.bank(*shown, several=len(together) > 1)
                    several.append((rows, sizes, self.sums.opened(terms, bank, rows, sizes, features)))
                    self.sums.whole(terms, several[-1][2])
                yield several
            return
        tiles = list(_static(counts, shape))
        for first in range(0, len(tiles), self.sums.banks.count):
            several = []
            for rows, sizes in tiles[first : first + self.sums.banks.count]:
                shown = (prod(sizes), features.count) if on_partitions else (partitions, prod(sizes))
                bank = self.sums.bank(*shown, several=True)
                self.sums.clear(bank)
                several.append((rows, sizes, self.sums.opened(terms, bank, rows, sizes, features)))
            self._stream(terms, [sum_ for _, _, sum_ in several])
            yield several

    def _stream(self, terms: Terms, sums: Sequence[Sum]) -> None:
        """All parts of the kernel, each added to all ``sums``."""
        part = self.schedule.streamed
        assert part is not None, "a kernel that is not there is streamed"
        apart = len(self.problem.kernel) - part.axes
        # a pack's features lie side by side; what comes of HBM is one group's
        segments = self.problem.features.segments
        met = self.problem.features.segments_of(terms.pack.groups)
        for segment, wide in zip(segments, met, strict=True):
            for chunk in self.builder.each(segment.chunks, 1):
                for steps in self._steps(terms.taps[1 : 1 + apart], []):
                    places = tuple(
                        step * tap.step + tap.first for tap, step in zip(terms.taps[1:], steps, strict=False)
                    )
                    kernel = self.kernels.part(terms.pack, terms.outs, PartAt(segment, chunk, 1, places))
                    for sum_ in sums:
                        self.sums.add(sum_, kernel, wide.partitions, chunk + segment.first, Affine(), steps)

    def _steps(self, taps: Sequence[Taps], at: list[Affine]) -> Iterator[list[Affine]]:
        if len(at) == len(taps):
            yield at
            return
        # waits count in few registers: what lies deeper is straight-line code
        count = taps[len(at)].count
        for index in self.builder.each(count, 4 if self.builder.open_loops < MAX_WAIT_COEFS - 1 else count):
            yield from self._steps(taps, [*at, index])

    def _phases(
        self, at: list[RowsAt], blocks: list[Block], first: int, apart: int
    ) -> Iterator[tuple[tuple[int, ...], list[Block], list[int]]]:
        """Each combination of phases of ``apart`` axes, its part of ``blocks``, whose axes begin at dim ``first``, and
        how many positions that has along each axis.
        """
        for phases in product(*(range(axis.phases) for axis in self.problem.axes[:apart])):
            parts, counts = blocks, [rows.piece.outs for rows in at]
            for axis, phase in enumerate(phases):
                counts[axis] = at[axis].piece.axis.rows_of(phase, counts[axis])
                step = self.problem.axes[axis].phases
                parts = [_every(block, first + axis, phase, step, counts[axis]) for block in parts]
            if all(counts):
                yield phases, parts, counts

    def _taps(self, several: Sequence[Terms], phases: Sequence[int]) -> list[Terms]:
        """With the taps that ``phases`` of the axes meet."""
        taps = [axis.taps[phase] for axis, phase in zip(self.problem.axes, phases, strict=True)]
        return [replace(terms, taps=taps) for terms in several]

    def _together(self, counts: Sequence[int], shape: Sequence[int]) -> Iterator[list[tuple[list[Affine], list[int]]]]:
        """Tiles of positions: those that are interleaved are neighbours along the last axis that is cut."""
        axis = max((at for at, (size, step) in enumerate(zip(counts, shape, strict=True)) if size > step), default=0)
        tiles = -(-counts[axis] // shape[axis])
        # what one iteration of a loop around makes is read while the next one's sums are added up
        self.sums.banks.phases = 2 if 2 * tiles <= self.sums.banks.count else 1
        after = [*counts[axis + 1 :]]
        for rows, sizes in self._tiles(counts[:axis], shape[:axis], [], []):
            for several in self._interleaved(counts[axis], shape[axis]):
                yield [([*rows, row, *(Affine() for _ in after)], [*sizes, size, *after]) for row, size in several]

    def _interleaved(self, total: int, step: int) -> Iterator[list[tuple[Affine, int]]]:
        together = self.results.finish.together
        body = self.sums.banks.count // together * together
        return interleaved_pieces(self.builder, total, step, together, body)

    def _tiles(
        self, counts: Sequence[int], shape: Sequence[int], at: list[Affine], sizes: list[int]
    ) -> Iterator[tuple[list[Affine], list[int]]]:
        if len(at) == len(counts):
            yield at, sizes
            return
        for start, size in self.builder.pieces(counts[len(at)], shape[len(at)]):
            yield from self._tiles(counts, shape, [*at, start], [*sizes, size])

    # ---- positions on the partitions --------------------------------------------------------------------------

    def _positions(self, whole: Sequence[Terms], at: list[RowsAt]) -> None:
        results, in_rows = self.results, self.schedule.row_groups > 0
        outs = sum(terms.outs.size for terms in whole)
        everything = results.position_blocks(whole[0].pack, whole[0].outs, outs, at)
        for phases, goals, counts in self._phases(at, everything, 0, len(at) - in_rows):
            if in_rows:
                self._rows(whole, phases, goals, counts)
                continue
            several = self._taps(whole, phases)
            if len(several) > 1 or several[0].no_taps or outs > self.builder.sizes.bank_columns:
                self._wide(several, goals, counts)
            else:
                self._narrow(several[0], goals, counts)

    def _narrow(self, terms: Terms, goals: list[Block], counts: Sequence[int]) -> None:
        """Results that fill a bank at most."""
        outs, results = terms.outs, self.results
        features = Features(Affine(), outs.size)
        for several in self._open(terms, counts, results.height, results.height, features):
            for together in self._batched(several):
                leaving: list[Leaving] = []
                targets = []
                for rows, sizes, sum_ in together:
                    goal, *pieces = _pieces(goals, 0, rows, sizes)
                    result = results.tile([outs.size], prod(sizes), len(together) > 1)
                    arrays = results.read_positions(pieces, terms.columns, result, len(together) > 1)
                    leaving.append((result, sum_.bank, [outs.size], arrays))
                    targets.append(goal)
                results.finish.leave(leaving)
                for goal, (result, *_) in zip(targets, leaving, strict=True):
                    results.store_positions(goal, result)

    def _wide(self, several: Sequence[Terms], goals: list[Block], counts: Sequence[int]) -> None:
        """Results that fill more than a bank, are of several packs, or that no tap meets."""
        results = self.results
        for rows, sizes in self._tiles(counts, tile_shape(counts, results.height), [], []):
            goal, *pieces = _pieces(goals, 0, rows, sizes)
            result = results.tile([goal.dims[-1].size], prod(sizes))
            if several[0].no_taps and self.problem.epilogue is None:
                results.fill_zeros(result)
            else:
                arrays = results.read_positions(pieces, several[0].columns, result)
                for terms, parts in _by_pack(several, [result, *arrays], 1):
                    for together in self._interleaved(terms.outs.size, self.builder.sizes.bank_columns):
                        leaving: list[Leaving] = []
                        for first, columns in together:
                            bank = self.sums.bank(prod(sizes), columns, several=len(together) > 1)
                            sum_ = self.sums.opened(terms, bank, rows, sizes, Features(first, columns))
                            self.sums.whole(terms, sum_)
                            made, *read = (block.index(1, first, columns) for block in parts)
                            leaving.append((made, bank, [columns], read))
                        results.finish.leave(leaving)
            results.store_positions(goal, result)

    def _rows(self, whole: Sequence[Terms], phases: Sequence[int], goals: list[Block], counts: list[int]) -> None:
        """Parts of each row of positions on the partitions, column by column, so that they are stored in long runs.

        ``phases``: of all axes but the last, neighbours along which belong to different ones.
        """
        results, apart = self.results, row_phases(self.problem)
        groups = self.schedule.row_groups if counts[-1] % (self.schedule.row_groups * apart) == 0 else 1
        span = counts[-1] // (groups * apart)
        width = max(1, self.schedule.row_bytes // (apart * goals[0].dims[-1].size * itemsize(goals[0].dtype)))
        width = -(-span // -(-span // width))
        height = -(-counts[-2] // -(-counts[-2] // (results.height // groups)))
        shape = [*(1 for _ in counts[:-2]), height, width]
        for at, sizes in self._tiles([*counts[:-1], span], shape, [], []):
            first, columns = [*at[:-1], at[-1] * apart], [*sizes[:-1], sizes[-1] * apart]
            result = results.tile([columns[-1], goals[0].dims[-1].size], sizes[-2] * groups)
            target, *pieces = (_in_rows(piece, groups, span * apart) for piece in _pieces(goals, 0, first, columns))
            tiles = [result, *results.read_rows(pieces, whole[0].columns, result)]
            for phase in range(apart):
                several = self._taps(whole, [*phases, phase])
                mine = [_every(tile, 1, phase, apart, sizes[-1]) for tile in tiles]
                if several[0].no_taps and self.problem.epilogue is None:
                    results.fill_zeros(mine[0])
                else:
                    self._columns(several, at, [*sizes[:-1], groups], span, mine)
            results.store_rows(target, result)

    def _columns(
        self,
        several: Sequence[Terms],
        at: Sequence[Affine],
        positions: Sequence[int],
        span: int,
        tiles: Sequence[Block],
    ) -> None:
        """The first of ``tiles`` [partitions, columns, features]: each column a sum, several of which share a bank."""
        partitions, columns = tiles[0].dims[:2]
        step = min(self._beside(terms.outs, terms.taps) for terms in several)
        for together in self._interleaved(columns.size, step):
            for terms, parts in _by_pack(several, tiles, 2):
                for place, wide in self.builder.pieces(terms.outs.size, self.builder.sizes.bank_columns):
                    leaving: list[Leaving] = []
                    for column, beside in together:
                        whole = self.sums.bank(partitions.size, beside * wide, several=len(together) > 1)
                        sums = whole.of((whole.dims[0], *dense([beside, wide], "f32")))
                        for number in range(beside):
                            spot = [*at[:-1], at[-1] + (column + number)]
                            bank = sums.index(1, Affine(number))
                            sum_ = self.sums.opened(terms, bank, spot, positions, Features(place, wide), span)
                            self.sums.whole(terms, sum_)
                        goal, *read = (part.index(1, column, beside).index(2, place, wide) for part in parts)
                        leaving.append((goal, whole, [beside, wide], read))
                    self.results.finish.leave(leaving)

    def _beside(self, outs: OutputsAt, taps: Sequence[Taps]) -> int:
        """Columns whose sums share a bank, so that fewer instructions read PSUM."""
        copies = self.schedule.copies
        terms = self.problem.chunks * prod(tap.count for tap in (taps if copies is None else copies.grouped()))
        return max(1, min(4, self.builder.sizes.bank_columns // outs.size, MAX_UNROLLED // max(1, terms)))


def _pieces(blocks: Sequence[Block], first: int, rows: Sequence[Affine], sizes: Sequence[int]) -> list[Block]:
    """The positions ``rows + [0, sizes)``, whose axes are the dims of ``blocks`` from ``first`` on."""
    found = []
    for block in blocks:
        for axis, (row, size) in enumerate(zip(rows, sizes, strict=True)):
            block = block.index(first + axis, row, size)
        found.append(block)
    return found


def _in_rows(piece: Block, groups: int, span: int) -> Block:
    """[rows, columns, features] of [batch, spatial..., features]; rows are ``groups`` parts of ``span`` columns."""
    *outer, rows, columns, features = piece.dims
    assert all(atom.size == 1 for atom in outer), "one image at a time"
    parts = nested(rows, Atom(groups, span * columns.stride)) if groups > 1 else rows
    return piece.of((parts, columns, features))


def _every(block: Block, dim: int, first: int, step: int, count: int) -> Block:
    """``count`` of its elements along ``dim``, ``step`` apart, from ``first`` on."""
    if step == 1:
        return block
    dims, atom = list(block.dims), block.dims[dim]
    dims[dim] = Atom(count, atom.stride * step)
    return block.moved(first * atom.stride).of(tuple(dims))


def _by_pack(several: Sequence[Terms], blocks: Sequence[Block], dim: int) -> Iterator[tuple[Terms, list[Block]]]:
    """The features of each pack, which lie side by side along ``dim`` of ``blocks``."""
    first = 0
    for terms in several:
        yield terms, [block.index(dim, Affine(first), terms.outs.size) for block in blocks]
        first += terms.outs.size


def _static(counts: Sequence[int], shape: Sequence[int]) -> Iterator[tuple[list[Affine], list[int]]]:
    """Tiles of ``shape``, with their places as constants."""
    ranges = [range(0, count, step) for count, step in zip(counts, shape, strict=True)]
    for starts in product(*ranges):
        sizes = [min(step, count - at) for at, step, count in zip(starts, shape, counts, strict=True)]
        yield [Affine(at) for at in starts], sizes
