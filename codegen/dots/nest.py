"""The loops of a contraction over blocks of its dims, and the pair of blocks that waits to be multiplied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.dots.problem import Problem, Segment
from neuronx_cc.codegen.dots.products import Pair
from neuronx_cc.codegen.dots.schedule import Schedule
from neuronx_cc.codegen.dots.span import Terms
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder

At = dict[int, Affine]
"""An index along each dim of a class."""


@dataclass(slots=True)
class Waiting:
    """A pair of blocks that is multiplied once the next one is staged: TensorE then has work while transposes leave
    PSUM."""

    _pair: Pair | None = None
    _work: Callable[[], None] | None = None

    def follow(self, pair: Pair, work: Callable[[], None]) -> None:
        """Multiply what waits, and let ``pair`` wait; ``work`` multiplies it."""
        self.multiply()
        self._pair, self._work = pair, work

    def multiply(self) -> None:
        """Multiply what waits."""
        work, self._pair, self._work = self._work, None, None
        if work is not None:
            work()

    def told(self, tile: Block) -> None:
        """``tile`` is filled next: what waits and lies there is multiplied before."""
        unread = [block for side in self._pair or () for block in side if block.alloc is tile.alloc]
        if any(_may_meet(tile.offset, block.offset) for block in unread):
            self.multiply()


def _may_meet(buffer: Affine, other: Affine) -> bool:
    """Whether two buffers of a ring may be the same one: a loop's phases and those of unrolled code are not in step."""
    return buffer.terms != other.terms or buffer.const == other.const


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops over the dims of a problem, in blocks."""

    builder: Builder
    problem: Problem
    schedule: Schedule
    waiting: Waiting
    kept: bool
    """Whether blocks that stream are kept from the first pass on, which is no part of a loop then."""

    def batches(self, batch: Sequence[Affine] = ()) -> Iterator[list[Affine]]:
        """Every batch index."""
        if len(batch) == len(self.problem.b):
            yield list(batch)
            return
        unroll = self.schedule.batches // prod(self.problem.b[len(batch) + 1 :])
        for index in self._each(self.problem.b[len(batch)], unroll):
            yield from self.batches([*batch, index])

    def rows(self) -> Iterator[tuple[At, int]]:
        """The blocks of m: the index of each of its dims, and the rows of the block; tiles that are staged together."""
        problem, group = self.problem, self.schedule.group
        first = self.kept and self.schedule.stays == "lhs"
        if group == 1:
            yield from self._positions(problem.m, problem.m_dim, self.schedule.lhs.rows, {}, first)
            return
        outside, sizes = problem.m_dim - 1, list(problem.m)
        sizes[outside] //= group
        for at, rows in self._positions(sizes, problem.m_dim, self.schedule.lhs.rows, {}, False):
            yield {**at, outside: at[outside] * group}, rows * group

    def columns(self) -> Iterator[tuple[At, int]]:
        """The blocks of n."""
        problem = self.problem
        first = self.kept and self.schedule.stays == "rhs"
        yield from self._positions(problem.n, problem.n_dim, self.schedule.rhs.rows, {}, first)

    def terms(self, segment: Segment, first: bool) -> Iterator[Terms]:
        """The blocks of a segment of k. ``first``: the first one is in no loop."""
        at = self.problem.segments.index(segment)
        yield from self._boxes(self.problem.chunks(segment), self.schedule.boxes[at], first)

    def _positions(self, sizes: Sequence[int], tiled: int, block: int, at: At, first: bool) -> Iterator[tuple[At, int]]:
        """Loop over all dims of one class. ``first``: the first block is not part of a loop."""
        unroll = self.schedule.blocks
        left = [dim for dim in range(len(sizes)) if dim != tiled and dim not in at]
        if left:
            for index in self._each(sizes[left[0]], unroll):
                yield from self._positions(sizes, tiled, block, {**at, left[0]: index}, first)
            return
        pieces = self.builder.tiles(sizes[tiled] if tiled >= 0 else 1, block)
        if first and pieces[0][1] > unroll:
            _, tiles, size = pieces[0]
            pieces[:1] = [(0, 1, size), (size, tiles - 1, size)]
        for start, tiles, size in pieces:
            for index in self._each(tiles, unroll):
                yield {**at, tiled: index * size + start}, size

    def _each(self, count: int, unroll: int) -> Iterator[Affine]:
        """As the builder's; what is staged in one pass of a loop is multiplied in the same."""
        if count > unroll:
            self.waiting.multiply()
        for index in self.builder.each(count, unroll):
            yield index
            if count > unroll:
                self.waiting.multiply()

    def _boxes(self, sizes: Sequence[int], box: Sequence[int], first: bool) -> Iterator[Terms]:
        """Loop over boxes of dims of these sizes: where each begins, and its size."""
        if not sizes:
            yield ()
            return
        for start, tiles, size in self.builder.tiles(sizes[0], box[0]):
            if first:
                for rest in self._boxes(sizes[1:], box[1:], first):
                    yield ((Affine(start), size), *rest)
                first, start, tiles = False, start + size, tiles - 1
            if tiles:
                with self.builder.loop(tiles) as index:
                    for rest in self._boxes(sizes[1:], box[1:], False):
                        yield ((index * size + start, size), *rest)
