"""Attention: scores, softmax and their product with the values, block of rows by block of rows.

Where columns are many, a block takes them by sections, each with exponentials beside the greatest score so far.

``out[g, h, r] = sum_c softmax_c(steps(q[g, h, r] . k[h, c])) v[h, c]``. The scores of a block of rows have the rows on
the partitions. Exponentials are multiplied with the values as they are, cast to the type of that product; the sums of
each row divide its result. Rows without any score but -inf are NaN, or zeros where the program guards them. Columns
that a comparison of row and column numbers masks for a whole block are not computed where they have no weight: what
keys and values hold there, even if it is not finite, does not matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, product, zip_longest
from math import ceil, prod

from neuronx_cc.codegen.attention.arrays import Arrays, arrays_of
from neuronx_cc.codegen.attention.block import Work
from neuronx_cc.codegen.attention.choose import problem_of
from neuronx_cc.codegen.attention.contracted import Contracted
from neuronx_cc.codegen.attention.estimate import choose
from neuronx_cc.codegen.attention.home import on_chip
from neuronx_cc.codegen.attention.operands import Rows, Staged, Under, stagings
from neuronx_cc.codegen.attention.pattern import Attention
from neuronx_cc.codegen.attention.schedule import (
    PARTS,
    UNDER_WAY,
    UNROLLED_BLOCKS,
    Problem,
    Schedule,
    footprint,
    groups_at_once,
    heads_at_once,
)
from neuronx_cc.codegen.attention.twice import Twice
from neuronx_cc.codegen.attention.upright import Upright
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.problem import pe_dtype
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import TilePool, pieces
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace


class NoRoomLeft(Exception):
    """What stays on chip leaves no piece of SBUF that is large enough for a kernel of several contractions."""

    def __init__(self, first: hlo.DotOp) -> None:
        super().__init__(first.loc.name)
        self.first = first


def lower(context: Context, attention: Attention) -> None:
    """Emit the kernel and give its result a home. Raises NoRoomLeft."""
    builder = context.builder
    for operand in (*attention.scores.operands, *attention.product.operands):
        dtype = hlo.shape_of(operand).dtype
        context.fixed.identity(carrier_of(dtype, context.moves_values(dtype)))
    context.fixed.ones(context.sizes.columns, pe_dtype(attention.scores))
    home = on_chip(context, attention)
    arrays = arrays_of(context, attention, home)
    problem = problem_of(context, attention, builder.sbuf.largest_gap())
    around, beside = (1, 1, *arrays.sizes[: arrays.heads])[-2:]
    problem = replace(problem, beside=beside, around=around, stays=home is not None)
    schedule = choose(problem, context.timing)
    if schedule is None:
        raise NoRoomLeft(attention.scores)
    builder.program.schedules[builder.kernel] = schedule.line(problem)
    builder.sbuf.make_room(footprint(problem, schedule, builder.sizes))
    if schedule.twice:
        context.fixed.identity("bf16")
        context.fixed.ones(context.sizes.columns, "bf16", PARTS)
    with TilePool(builder, f"attention {attention.product.loc.name}") as pool:
        upright = Contracted if schedule.contracted else Upright
        kind = upright if schedule.pack else Twice if schedule.twice else Work
        work = kind(context, attention, arrays, problem, schedule, pool)
        _Loops(context, attention, arrays, problem, schedule, work).emit()


@dataclass(frozen=True, slots=True)
class _Loops:
    """All blocks of rows in their order."""

    context: Context
    attention: Attention
    arrays: Arrays
    problem: Problem
    schedule: Schedule
    work: Work

    def emit(self) -> None:
        """All heads: as many of them together, and as many blocks of rows, as make a body of instructions."""
        self._around(())

    def _around(self, at: tuple[Affine, ...]) -> None:
        """All heads of the dims around, but the innermost, at ``at``."""
        left = self.arrays.heads - len(at)
        if left == 2 and 0 < self._blocks_beside() * 2 <= self._several:
            self._pairs(at)
        elif left > (2 if self.schedule.pack > self.problem.beside else 1):
            for index in self.context.builder.each(self.arrays.sizes[len(at)], 1):
                self._around((*at, index))
        elif self.schedule.pack:
            self._packs(at)
        else:
            self._heads(at)

    @property
    def _several(self) -> int:
        """Bunches or packs of heads that make a body of instructions."""
        return heads_at_once(self.problem, self.schedule, self.context.sizes)

    def _even(self, total: int, most: int) -> list[tuple[int, int, int]]:
        """``total`` in tiles of at most ``most``, as equal as they can be."""
        return self.context.builder.tiles(total, ceil(total / ceil(total / most)))

    def _blocks_beside(self) -> int:
        """Bunches or packs of the innermost dim around; 0 where a pack has more heads."""
        return self.arrays.sizes[self.arrays.heads - 1] // self.schedule.heads

    def _pairs(self, at: tuple[Affine, ...]) -> None:
        """Heads of both innermost dims around, so that a body of instructions has enough of them."""
        builder, inner, together = self.context.builder, self._blocks_beside(), self.schedule.heads
        for start, count, size in self._even(self.arrays.sizes[len(at)], self._several // inner):
            for index in builder.each(count, 1):
                first = index * size + start
                places = product(range(size), range(inner))
                heads = [(*at, first + outer, Affine(number * together)) for outer, number in places]
                self._bunch(list(map(self._pack, heads)) if self.schedule.pack else self._all_blocks(heads))

    def _packs(self, at: tuple[Affine, ...]) -> None:
        """Blocks of the rows of several heads each."""
        builder, arrays, pack = self.context.builder, self.arrays, self.schedule.pack
        if arrays.heads == len(at):
            self._bunch([self._pack(at)])
            return
        inner = (Affine(),) * (arrays.heads - len(at) - 1)
        step = pack // self.problem.beside if inner else pack
        for start, count, size in builder.tiles(arrays.sizes[len(at)] // step, self._several):
            for index in builder.each(count, 1):
                first = (index * size + start) * step
                self._bunch([self._pack((*at, first + number * step, *inner)) for number in range(size)])

    def _pack(self, first: tuple[Affine, ...]) -> Rows:
        p = self.problem
        size = self.schedule.pack * p.groups * p.rows
        return Rows(first, (), Affine(), size, p.columns, (Affine(), size))

    def _heads(self, at: tuple[Affine, ...]) -> None:
        """The heads of the innermost dim around, as many as the schedule says together."""
        builder, arrays, left = self.context.builder, self.arrays, self.arrays.heads - len(at)
        blocks = prod(arrays.sizes[arrays.heads :]) * -(-self.problem.rows // self.context.sizes.columns)
        written, together = blocks * self.schedule.sections(self.problem), self.schedule.together
        if not left:
            self._head(at, blocks, written)
        elif written > UNROLLED_BLOCKS:
            for index in builder.each(arrays.sizes[len(at)] // together, 1):
                self._head((*at, index * together), blocks, written)
        else:
            for start, count, size in self._even(arrays.sizes[len(at)] // together, self._several):
                for index in builder.each(count, 1):
                    first = (index * size + start) * together
                    self._bunch(self._all_blocks([(*at, first + number * together) for number in range(size)]))

    def _head(self, head: tuple[Affine, ...], blocks: int, written: int) -> None:
        if written <= UNROLLED_BLOCKS:
            self._bunch(self._all_blocks([head]))
        else:
            self._groups(head, (), blocks, self.work.stage(head, 0) if written == blocks else None)

    def _groups(self, head: tuple[Affine, ...], group: tuple[Affine, ...], blocks: int, staged: Staged | None) -> None:
        """Many blocks of rows of one head."""
        builder, sizes, step = (
            self.context.builder,
            self.arrays.sizes[len(head) + len(group) :],
            self.context.sizes.columns,
        )
        if sizes:
            of_each = blocks // sizes[0]
            together = 1 if len(sizes) > 1 else groups_at_once(self.problem, self.schedule, self.context.sizes)
            for start, count, size in self._even(sizes[0], together):
                for index in builder.each(count, 1):
                    at = index * size + start
                    if size == 1:
                        self._groups(head, (*group, at), of_each, staged)
                    else:
                        groups = [(*group, at + number) for number in range(size)]
                        self._bunch([x for each in groups for x in self._blocks(head, each, Affine(), of_each)], staged)
            return
        bunch, written = self.schedule.bunch, blocks * self.schedule.sections(self.problem)
        bunches = 0 if self.problem.banded or written <= UNROLLED_BLOCKS else self.problem.rows // (bunch * step)
        if bunches:
            with builder.loop(bunches) as index:
                self._bunch(self._blocks(head, group, index * (bunch * step), bunch), staged)
        first = bunches * bunch
        self._bunch(self._blocks(head, group, Affine(first * step), blocks - first), staged)

    def _all_blocks(self, heads: Sequence[tuple[Affine, ...]]) -> list[Rows]:
        blocks = -(-self.problem.rows // self.context.sizes.columns)
        groups = [tuple(map(Affine, place)) for place in product(*map(range, self.arrays.sizes[self.arrays.heads :]))]
        return [rows for head in heads for group in groups for rows in self._blocks(head, group, Affine(), blocks)]

    def _blocks(self, head: tuple[Affine, ...], group: tuple[Affine, ...], first: Affine, count: int) -> list[Rows]:
        p, step = self.problem, self.context.sizes.columns
        found: list[Rows] = []
        for start, several in pieces(count, self.schedule.span):
            span = first + start * step, several * step
            if not first.terms:
                span = span[0], min(span[1], p.rows - span[0].const)
            if self.schedule.alternating > 1:
                for at in range(several):
                    size = ceil((span[1] - at) / several)
                    found.append(Rows(head, group, span[0] + at, size, p.columns, span, at, several))
                continue
            for block in range(start, start + several):
                begin = first + block * step
                size = step if begin.terms else min(step, p.rows - begin.const)
                columns = self.attention.columns(begin.const, begin.const + size - 1)
                found.append(Rows(head, group, begin, size, columns, span, (block - start) * step))
        return found

    def _bunch(self, blocks: Sequence[Rows], staged: Staged | None = None) -> None:
        """Blocks of rows, one after the other; keys and values are ``staged``, or those of each head are here.

        With room for the scores of two, those of one are made while the exponentials of the one before are, those of
        the one before that are transposed, still older ones are multiplied with the values, and operands of the next
        block come: no engine waits for another within a step.
        """
        self.work.begin()
        under = self._spaced(self._sections(blocks))
        with self.context.builder.unrolled():
            if self.schedule.scores == 1:
                for each in filter(None, under):
                    staged = self._ready([each], 0, staged)
                    deque(self.work.scores(each), 0)
                    deque(self.work.exponentials(each), 0)
                    deque(self.work.weights(each), 0)
                    deque(self.work.weighted(each), 0)
                return
            staged = self._ready(under, 0, staged)
            work = self.work
            made = (work.weighted, 3), (work.weights, 2), (work.scores, 0), (work.exponentials, 1)
            for at in range(len(under) + 3):
                steps = [(stage, under[at - age]) for stage, age in made if 0 <= at - age < len(under)]
                stages = [stage(each) for stage, each in steps if each is not None]
                deque(chain.from_iterable(zip_longest(*stages)), 0)
                staged = self._ready(under, at + 1, staged)

    def _spaced(self, under: Iterator[Under]) -> list[Under | None]:
        """With pauses, so that what is under way wants no more keys and values than are staged."""
        spaced: list[Under | None] = []
        for each in under:
            while not self.schedule.pack and stagings([*spaced[1 - UNDER_WAY :], each]) > self.schedule.staged:
                spaced.append(None)
            spaced.append(each)
        return spaced

    def _sections(self, blocks: Sequence[Rows]) -> Iterator[Under]:
        """Sections of the columns of all blocks: a bunch of them goes over one before it comes to the next."""
        for _, of_head in groupby(blocks, lambda rows: rows.head):
            several = list(of_head)
            for start, count in pieces(len(several), self.schedule.bunch):
                bunch: list[tuple[Rows, dict[str, Block]]] = [(rows, {}) for rows in several[start : start + count]]
                for first, columns in pieces(self.problem.columns, self.schedule.section):
                    for rows, running in bunch:
                        if first < rows.columns:
                            yield Under(rows, first, min(columns, rows.columns - first), running)

    def _ready(self, under: Sequence[Under | None], at: int, staged: Staged | None) -> Staged | None:
        """Bring the operands of a block to SBUF: its queries, and keys and values where they are others."""
        each = under[at] if at < len(under) else None
        if each is None:
            return staged
        if staged is None or (staged.head, staged.first) != each.operands:
            staged = self.work.stage(each.rows.head, each.first)
        if "queries" not in each.running:
            each.running["queries"] = self.work.queries(each)
        each.tiles |= {**staged.tiles, "queries": each.running["queries"]}
        return staged
