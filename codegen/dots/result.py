"""The result of a contraction: sums in PSUM, what is made of them, and where each part of the result is written."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product, zip_longest
from math import prod

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.contraction import Placed
from neuronx_cc.codegen.dots.copies import strided
from neuronx_cc.codegen.dots.problem import Problem
from neuronx_cc.codegen.dots.problem import Result as Written
from neuronx_cc.codegen.dots.schedule import (
    EPILOGUE_BUFFERS,
    TAKING_TURNS,
    TRANSPOSED_SUMS,
    Kept,
    Schedule,
    array_name,
    between_name,
    count_row_tiles,
)
from neuronx_cc.codegen.dots.span import Part, batch_start
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.emission.views import Atom, View, align
from neuronx_cc.codegen.epilogues.arrays import views_of_cast
from neuronx_cc.codegen.maps.plan import load_stream
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import NUMPY_DTYPE, itemsize

Finished = tuple[Block, Block, Sequence[Block]]
"""A tile: its result, its sums, and what its epilogue reads beside them."""


@dataclass(frozen=True, slots=True)
class Bias:
    """A row that TensorE adds to the sums, as rows whose sum it is, in the order of the refined dims of n."""

    context: Context
    problem: Problem
    tiles: Tiles
    rows: Block
    whole: bool
    """Whether all of it is on chip."""

    @classmethod
    def load(cls, context: Context, placed: Placed, schedule: Schedule, tiles: Tiles) -> Bias | None:
        """As it is stored on partition 0, or narrow parts of FP32; None where the kernel adds no row."""
        bias, problem = placed.contraction.bias, placed.problem
        if bias is None:
            return None
        literal, cast = context.literal(bias), views_of_cast(context, bias)
        view = (cast[0] if cast else context.hbm(bias)) if literal is None else literal[0]
        free = placed.contraction.free(1)
        view = replace(view, dims=view.dims[-free:])
        space = align([view, replace(placed.out, dims=placed.out.dims[-free:])], view.shape)
        assert space is not None, "the row aligns with the result"
        total, parts = prod(space.sizes), None
        if literal is not None:
            parts = narrow_parts(strided(literal[1], view.start.const, space.atoms[0]).reshape(-1))
        if parts is not None:
            dtype, terms = "bf16", len(parts)
            home = context.constant(parts, dtype, f"{hlo.loc_of(bias).name}.parts")
            rows = (Atom(terms, 2 * total), *dense(space.sizes, dtype))
            source = Block(home.alloc, dtype, home.start, rows)
        else:
            dtype, terms = view.dtype, 1
            source = Block(view.alloc, view.dtype, view.start, (Atom(1, 0), *space.atoms[0]))
            if literal is not None:
                home = context.homes_of_constant(bias)
                source = replace(source, alloc=home.alloc, offset=source.offset + home.start)
        context.fixed.ones(1, dtype, terms)
        if schedule.bias_whole:
            kept = tiles.tile(dtype, [total], terms, "bias", 1)
        else:
            row = context.own_hbm(placed.contraction.result, hlo.Shape(dtype, (terms, total)))
            kept = Block(row.alloc, dtype, row.start, (row.dims[0] or (Atom(1, 0),))[:1] + dense([total], dtype))
        target = kept.of((kept.dims[0], *dense(space.sizes, dtype)))
        copy(context.builder, target, source, Stream.DMA_WEIGHT)
        return cls(context, problem, tiles, kept, schedule.bias_whole)

    def add(self, bank: Block, part: Part) -> None:
        """Accumulate ones[rows] x bias[columns] into a PSUM tile."""
        row, builder = self._row(part), self.context.builder
        builder.multiply(bank, self.context.fixed.ones(part.rows, row.dtype, row.dims[0].size), row, ["accumulate"])

    def add_across(self, banks: Sequence[Block], part: Part) -> None:
        """The same where columns lie on the partitions, some of them in each of ``banks`` [columns, rows]."""
        row, builder = self._row(part), self.context.builder
        for (at, bank), start in product(enumerate(banks), range(0, part.rows, builder.sizes.columns)):
            rows = min(part.rows - start, builder.sizes.columns)
            ones = self.context.fixed.ones(rows, row.dtype, row.dims[0].size)
            column = one_each(row, self.problem.out, at)
            builder.multiply(bank.index(1, Affine(start), rows), column, ones, ["accumulate"])

    def _row(self, part: Part) -> Block:
        """The part of the row that belongs to these columns, on chip."""
        position, stride, step = Affine(), 1, 1
        for dim in reversed(range(len(self.problem.n))):
            position = position + part.n_at[dim] * stride
            if dim == self.problem.n_dim:
                position = position + part.n_offset * stride
                step = stride
            stride *= self.problem.n[dim]
        terms, along = self.rows.dims
        row = replace(
            self.rows,
            offset=self.rows.offset + position * along.stride,
            dims=(terms, Atom(part.columns, along.stride * step)),
        )
        if self.whole:
            return row
        tile = self.tiles.tile(row.dtype, [part.columns], terms.size, "bias", 2)
        copy(self.context.builder, tile, row, Stream.DMA_WEIGHT)
        return tile


@dataclass(frozen=True, slots=True)
class Output:
    """Writes the result part by part."""

    placed: Placed
    emitter: Emitter
    tiles: Tiles
    schedule: Schedule
    banks: int
    """Of PSUM, for sums."""
    rows: tuple[Block | None, ...]
    """What is kept on each partition of each array that the epilogue reads."""
    emitters: tuple[Emitter, ...]
    """Of tiles whose epilogues take turns."""

    @classmethod
    def ready(cls, placed: Placed, emitter: Emitter, tiles: Tiles, schedule: Schedule, banks: int) -> Output:
        """With the rows that the schedule keeps."""
        emitters = tuple(replace(emitter) for _ in range(TAKING_TURNS))
        problem, none = placed.problem, (None,) * len(placed.problem.arrays)
        output = cls(placed, emitter, tiles, schedule, banks, none, emitters)
        batch = [Affine()] * len(problem.b)
        return output._with_rows(Kept.WHOLE, batch, {0: Affine()}, problem.n_tiled)._with_columns(batch)

    def begun(self, batch: Sequence[Affine], n_at: dict[int, Affine], columns: int) -> Output:
        """With the rows that are kept for a block of columns, whatever rows of the result it has."""
        return self._with_rows(Kept.BLOCK, batch, n_at, columns)

    def _with_rows(self, kept: Kept, batch: Sequence[Affine], n_at: dict[int, Affine], columns: int) -> Output:
        if kept not in self.schedule.rows:
            return self
        problem = self.placed.problem
        m_at = {dim: Affine() for dim in range(len(problem.m))}
        part = Part(batch, m_at, n_at, min(problem.m_tiled, self.emitter.builder.sizes.columns), columns)
        found = (
            self._load(number, part, kept) if each is kept else row
            for number, (each, row) in enumerate(zip(self.schedule.rows, self.rows, strict=True))
        )
        return replace(self, rows=tuple(found))

    def _with_columns(self, batch: Sequence[Affine]) -> Output:
        """With one value of each row: [partitions, tiles of rows]."""
        problem, builder, rows = self.placed.problem, self.emitter.builder, list(self.rows)
        most, n_at = builder.sizes.columns, {dim: Affine() for dim in range(len(problem.n))}
        tiled = problem.m_dim
        for number, kept in enumerate(self.schedule.rows):
            if kept is not Kept.COLUMN:
                continue
            array, stream = problem.arrays[number], load_stream(self.placed.contraction.arrays[number])
            count = count_row_tiles(problem, builder.sizes)
            column = self.tiles.tile(array.loaded, [count], most, array_name(number), 1)
            for index in product(*(range(1 if dim == tiled else size) for dim, size in enumerate(problem.m))):
                m_at = {dim: Affine(at) for dim, at in enumerate(index)}
                for start in range(0, problem.m_tiled, most):
                    part = Part(batch, {**m_at, tiled: Affine(start)}, n_at, min(most, problem.m_tiled - start), 1)
                    source, target = self._part(self.placed.adds[number], array, part), self._column(column, part)
                    copy(builder, target.of(target.dims[:1]), source.of(source.dims[:1]), stream)
            rows[number] = column
        return replace(self, rows=tuple(rows))

    def _column(self, column: Block, part: Part) -> Block:
        """The values of a tile of rows among all."""
        problem, most = self.placed.problem, self.emitter.builder.sizes.columns
        tile = (part.m_at[problem.m_dim] + part.m_offset).parts(most)
        stride = -(-problem.m_tiled // most)
        for dim in reversed(range(len(problem.m))):
            if dim != problem.m_dim:
                tile = tile + part.m_at[dim] * stride
                stride *= problem.m[dim]
        return column.index(1, tile, 1).of((Atom(part.rows, 1, True), Atom(part.columns, 0)))

    def target(self, part: Part, rows: Block | None = None) -> Block:
        """Where a part of the result is written: among ``rows`` that are collected on chip, if given."""
        out, view = self.placed.problem.out, self.placed.out
        if rows is None:
            return self._part(view, out, part)
        kept = replace(view, alloc=rows.alloc, start=rows.offset)
        on_chip = tuple(Atom(atom.size, 1, True) for atom in out.m)
        return self._part(kept, replace(out, batch=(), m=on_chip), replace(part, batch=[]))

    def arrays(self, part: Part) -> list[Block]:
        """What the epilogue reads of a part of the result: where it lies on chip, or loaded."""
        return [self._array(number, part) for number in range(len(self.rows))]

    def _array(self, number: int, part: Part) -> Block:
        """One of them; one element a row where its columns repeat."""
        array, kept = self.placed.problem.arrays[number], self.rows[number]
        if array.on_chip:
            return self._part(self.placed.adds[number], array, part)
        if kept is not None and self.schedule.rows[number] is Kept.COLUMN:
            return self._column(kept, part)
        if kept is not None:
            begin = part.n_at[0] if self.schedule.rows[number] is Kept.WHOLE else Affine()
            kept = kept.index(1, begin + part.n_offset, part.columns)
            rows = Atom(part.rows // part.beside, 1, True)
            return kept.of((rows, *([Atom(part.beside, 0)] if part.beside > 1 else []), kept.dims[1]))
        return self._load(number, part, Kept.TILE)

    def _load(self, number: int, part: Part, kept: Kept) -> Block:
        """What the epilogue of a part of the result reads of an array: elements that repeat are loaded once."""
        array = self.placed.problem.arrays[number]
        stream = load_stream(self.placed.contraction.arrays[number])
        source = self._part(self.placed.adds[number], array, part)
        varying = [dim for dim, atom in enumerate(source.dims) if dim and atom.stride]
        order = sorted(varying, key=lambda dim: -abs(source.dims[dim].stride))  # in long runs
        sizes = [source.dims[dim].size for dim in order]
        name, buffers = array_name(number), self.schedule.array_buffers(self.placed.problem, kept)
        phases = self.schedule.array_phases(self.emitter.builder.sizes) if kept is Kept.TILE else 1
        tile = self.tiles.tile(array.loaded, sizes or [1], source.dims[0].size, name, buffers, phases=phases)
        copy(self.emitter.builder, tile if sizes else tile.of(tile.dims[:1]), source.select([0, *order]), stream)
        free = [Atom(atom.size, 0) for atom in source.dims[1:]]
        for at, dim in enumerate(order):
            free[dim - 1] = tile.dims[1 + at]
        return tile.of((tile.dims[0], *free))

    def finish(self, tiles: Sequence[Finished], scaled: bool = False) -> None:
        """``result = epilogue(sums, arrays)`` for each (result, sums, arrays); ops of several take turns, so that
        engines need not wait for what they have just made. ``scaled``: sums have their factor.
        """
        problem, chain, builder = self.placed.problem, self.placed.contraction.chain, self.emitter.builder
        factor = 1.0 if scaled else problem.factor
        if chain is None:
            for result, sums, _ in tiles:
                self.emitter.leave(result, sums, factor)
            return
        repeats = tuple(array.repeats for array in problem.arrays)
        ready, wide = chain.ready(repeats), builder.sizes.bank_columns
        if any(repeats):  # an engine takes one value a partition of rows, not one of each of several
            tiles = [each for tile in tiles for each in _each_row(tile)]
        cut = [
            [block.index(1, Affine(start), min(wide, result.dims[1].size - start)) for block in (result, sums, *arrays)]
            for result, sums, arrays in tiles
            for start in range(0, result.dims[1].size, wide)
        ]
        for first in range(0, len(cut), TAKING_TURNS):
            chains = [
                ready.steps(self.emitters[slot], partial(self._between, slot), out, sums, arrays, factor)
                for slot, (out, sums, *arrays) in enumerate(cut[first : first + TAKING_TURNS])
            ]
            with builder.unrolled_if(len(cut) > TAKING_TURNS):
                deque(zip_longest(*chains), 0)
        builder.mark(self.placed.contraction.op.loc)

    @property
    def together(self) -> int:
        """Tiles that are finished at a time, at most: as many banks are left for the sums of the next ones."""
        return 1 if self.placed.contraction.chain is None else max(1, min(TAKING_TURNS, self.banks // 2))

    def _between(self, slot: int, number: int, like: Block, dtype: str) -> Block:
        """A tile between the sums and the result."""
        sizes = [atom.size for atom in like.dims[1:]]
        return self.tiles.tile(dtype, sizes, like.dims[0].size, between_name(slot, number), EPILOGUE_BUFFERS)

    def transposed_sums(self, result: Block, finished: bool) -> Block:
        """Where sums of ``result`` are to be transposed to: what an epilogue takes from there. ``finished``: they are
        what it is to be.
        """
        plain = self.placed.contraction.chain is None and result.dtype == "f32" and self.placed.problem.factor == 1
        if finished or plain:
            return result
        rows, columns = (atom.size for atom in result.dims)
        return self.tiles.tile("f32", [columns], rows, TRANSPOSED_SUMS, EPILOGUE_BUFFERS)

    def add(self, result: Block, sums: Block, others: Block | None) -> None:
        """``result = sums + others``, both sums of products."""
        if others is None:
            self.emitter.leave(result, sums)
        else:
            self.emitter.over("tensor_tensor", Stream.VECTOR, [result], [sums, others], alu=["add"])

    def store_rows(self, rows: Block, batch: Sequence[Affine]) -> None:
        """Store whole rows of the result that were collected on chip."""
        problem, view = self.placed.problem, self.placed.out
        head = problem.out.m[problem.m_dim] if problem.m_dim >= 0 else Atom(1, 0)
        start = batch_start(view, problem.out.batch, batch)
        target = Block(view.alloc, view.dtype, start, (head, rows.dims[1]))
        copy(self.emitter.builder, target, rows, Stream.DMA_STORE)

    def _part(self, view: View, lies: Written, at: Part) -> Block:
        """[rows, columns] of an array with the dims of the result, or [partitions, rows beside each other, columns]."""
        problem = self.placed.problem
        if lies.across:
            return _columns_across(view, lies)
        offset = batch_start(view, lies.batch, at.batch)
        rows = Atom(at.rows, 1 if view.in_sbuf else 0, view.in_sbuf)
        for dim, atom in enumerate(lies.m):
            if atom.partition:
                continue
            offset = offset + at.m_at[dim] * atom.stride
            if dim == problem.m_dim:
                offset = offset + at.m_offset * atom.stride
                rows = Atom(at.rows, atom.stride)
        columns = Atom(at.columns, 0)
        for dim, atom in enumerate(lies.n):
            offset = offset + at.n_at[dim] * atom.stride
            if dim == problem.n_dim:
                offset = offset + at.n_offset * atom.stride
                columns = Atom(at.columns, atom.stride)
        assert rows.partition or not view.in_sbuf, "a result on chip has its rows on the partitions"
        if at.beside == 1:
            return Block(view.alloc, view.dtype, offset, (rows, columns))
        first, beside = replace(rows, size=at.rows // at.beside), Atom(at.beside, rows.stride)
        if self.schedule.group > 1:
            beside = replace(beside, stride=lies.m[problem.m_around].stride)
        else:
            first = replace(first, stride=rows.stride * at.beside)
        return Block(view.alloc, view.dtype, offset, (first, beside, columns))


def _each_row(tile: Finished) -> list[Finished]:
    """The (result, sums, arrays) of each of the rows that lie beside each other on a partition."""
    result, sums, arrays = tile
    if len(result.dims) < 3:
        return [tile]
    rows = (Affine(row) for row in range(result.dims[1].size))
    return [(result.index(1, row), sums.index(1, row), [array.index(1, row) for array in arrays]) for row in rows]


def _columns_across(view: View, lies: Written) -> Block:
    """All of an array whose columns lie on the partitions, or are to be loaded so: [columns, neighbours, rows], without
    the rows where there is one.
    """
    *_, columns = view.dims
    rows = tuple(atom for atoms in view.dims[:-1] for atom in atoms if atom.size > 1)
    if view.in_sbuf:
        first = next(atom for atom in columns if atom.partition)
        near = next((atom for atom in columns if not atom.partition), Atom(1, itemsize(view.dtype)))
    else:
        (atom,) = columns or (Atom(1, 0),)
        beside = lies.n[0].size // lies.across
        first, near = Atom(lies.across, atom.stride * beside), Atom(beside, atom.stride)
        if lies.apart:
            first, near = Atom(lies.across, atom.stride), Atom(beside, atom.stride * lies.across)
    return Block(view.alloc, view.dtype, view.start, (first, near, *rows))


def one_each(block: Block, out: Written, number: int) -> Block:
    """Of the columns that the last dim of a block is, that ``number`` of each partition of ``out``."""
    *outer, last = block.dims
    step = 1 if out.apart else last.size // out.across
    dims = (*outer, replace(last, size=out.across, stride=last.stride * step))
    return block.moved(number * last.stride * (out.across if out.apart else 1)).of(dims)


def narrow_parts(row: np.ndarray) -> np.ndarray | None:
    """Three rows of bf16 whose sum is an FP32 row, exactly, or None: TensorE adds them in a quarter of the time."""
    bf16 = NUMPY_DTYPE["bf16"]
    parts, left = np.empty((3, len(row)), bf16), row.astype(np.float32)
    with np.errstate(all="ignore"):
        for part in parts:
            part[:] = left.astype(bf16)
            left = left - part.astype(np.float32)
    return None if left.any() else parts
