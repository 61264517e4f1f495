"""The loops of a contraction over blocks of its dims, and the pair of blocks that waits to be multiplied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from neuronx_cc.codegen.dots.problem import Problem, Segment
from neuronx_cc.codegen.dots.products import Pair
from neuronx_cc.codegen.dots.schedule import Schedule
from neuronx_cc.codegen.dots.span import Terms
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.frames import Frame

PAIR = 2
"""Blocks of k that are unrolled: as many as have buffers."""
At = dict[int, Affine]
"""An index along each dim of a class."""


@dataclass(slots=True)
class Waiting:
    """A pair of blocks that is multiplied once the next one is staged: TensorE then has work while transposes leave
    PSUM.
    """

    builder: Builder
    _pair: Pair | None = None
    _work: Callable[[], None] | None = None
    _sums: Callable[[], None] | None = None
    _summed: Callable[[], None] | None = None
    """What is made of sums that are there."""
    _steps: Iterator[None] | None = None
    """What multiplies it step by step, in place of all at once."""
    _frame: Frame | None = None
    """The loop in which they wait."""

    def follow(self, pair: Pair, work: Callable[[], None], sums: Callable[[], None] | None = None) -> None:
        """Multiply what waits, and let ``pair`` wait; ``work`` multiplies it. ``sums``: does so but for what is made
        of the sums, for which PSUM has room until then.
        """
        self._finish()
        if self._sums is not None and self._here:
            self._sums()
            self._summed, self._work = self._work, None
        else:
            self.multiply()
        self._pair, self._work, self._sums, self._frame = pair, work, sums, self.builder.sync.frames[-1]

    def follow_in_steps(self, pair: Pair, steps: Iterator[None]) -> None:
        """Multiply what waits, and let ``pair`` wait: ``steps`` multiply it between those that stage the next one."""
        self.multiply()
        self._pair, self._steps, self._frame = pair, steps, self.builder.sync.frames[-1]

    def multiply(self) -> None:
        """Multiply what waits."""
        self._finish()
        steps, self._steps = self._steps, None
        for _ in steps or ():
            pass
        work, self._pair, self._work, self._sums = self._work, None, None, None
        if work is not None:
            work()

    def between(self) -> None:
        """Make what is made of sums that are there: the next pair is being staged, and the engines that do so had work
        while TensorE made them. Or multiply a part of what waits, so that no engine waits for all of that.
        """
        if self._here:
            self._finish()
            next(self._steps or iter(()), None)

    @property
    def _here(self) -> bool:
        return self.builder.sync.frames[-1] is self._frame

    def _finish(self) -> None:
        summed, self._summed = self._summed, None
        if summed is not None:
            summed()

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
        size, body = self.problem.b[len(batch)], self.schedule.batch_bodies(self.problem)[len(batch)]
        for index in self._each(size, size if body == size else 0, body):
            yield from self.batches([*batch, index])

    def rows(self) -> Iterator[tuple[At, int]]:
        """The blocks of m: the index of each of its dims, and the rows of the block; tiles that are staged together."""
        problem, group = self.problem, self.schedule.group
        first = self.kept and self.schedule.stays == "lhs"
        if group == 1:
            yield from self._positions(problem.m, problem.m_dim, self.schedule.lhs.rows, {}, first)
            return
        around, sizes = problem.m_around, list(problem.m)
        sizes[around] //= group
        for at, rows in self._positions(sizes, problem.m_dim, self.schedule.lhs.rows, {}, False):
            yield {**at, around: at[around] * group}, rows * group

    def columns(self) -> Iterator[tuple[At, int]]:
        """The blocks of n."""
        problem = self.problem
        first = self.kept and self.schedule.stays == "rhs"
        yield from self._positions(problem.n, problem.n_dim, self.schedule.rhs.rows, {}, first)

    def terms(self) -> Iterator[tuple[Segment, Terms, bool]]:
        """The blocks of k, each with whether it is the last; the first and the last one are in no loop."""
        segments = self.problem.segments
        for segment, box in zip(segments, self.schedule.boxes, strict=True):
            ends = segment is segments[0], segment is segments[-1]
            for terms, last in self._boxes(self.problem.chunks(segment), box, *ends):
                yield segment, terms, last

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
        with self.builder.unrolled_if(len(pieces) > 1):
            for start, tiles, size in pieces:
                for index in self._each(tiles, unroll):
                    yield {**at, tiled: index * size + start}, size

    def _each(self, count: int, unroll: int, body: int = 0) -> Iterator[Affine]:
        """As the builder's, with several in an iteration; what is staged in one is multiplied in the same."""
        if count <= unroll:
            yield from self.builder.each(count, unroll)
            return
        body = body or min(self.schedule.body, count)
        self.waiting.multiply()
        with self.builder.unrolled_if(count % body > 0):
            with self.builder.loop(count // body) as index, self.builder.unrolled_if(body > 1):
                for at in range(body):
                    yield index * body + at
                self.waiting.multiply()
            for at in range(count // body * body, count):
                yield Affine(at)

    def _boxes(self, sizes: Sequence[int], box: Sequence[int], first: bool, last: bool) -> Iterator[tuple[Terms, bool]]:
        """Loop over boxes of dims of these sizes: where each begins, its size, and whether it is the last of all.

        ``first`` and ``last``: some boxes at this end are in no loop. Pairs are unrolled, so that both buffers of what
        is staged are used in turn.
        """
        if not sizes:
            yield (), last
            return
        pieces = self.builder.tiles(sizes[0], box[0])
        for number, (start, tiles, size) in enumerate(pieces):
            begins, ends = first and number == 0, last and number == len(pieces) - 1
            head = min(tiles, int(begins))
            tail = min(tiles - head, int(ends))
            between = tiles - head - tail
            pairs, odd = (0, between) if self.schedule.straight else divmod(between, PAIR)
            for at in range(head + odd):
                inner = self._boxes(sizes[1:], box[1:], begins and at == 0, ends and at == tiles - 1)
                yield from ((((Affine(start + at * size), size), *rest), end) for rest, end in inner)
            if pairs:
                self.waiting.multiply()
                with self.builder.loop(pairs) as index, self.builder.unrolled():
                    for at in range(head + odd, head + odd + PAIR):
                        begin = index * (PAIR * size) + (start + at * size)
                        inner = self._boxes(sizes[1:], box[1:], False, False)
                        yield from ((((begin, size), *rest), False) for rest, _ in inner)
                    self.waiting.multiply()
            for at in range(tiles - tail, tiles):
                inner = self._boxes(sizes[1:], box[1:], False, ends and at == tiles - 1)
                yield from ((((Affine(start + at * size), size), *rest), end) for rest, end in inner)
