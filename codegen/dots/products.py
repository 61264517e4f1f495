"""What TensorE does: products that add up in a bank of PSUM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neuronx_cc.codegen.dots.problem import Result
from neuronx_cc.codegen.dots.result import Bias, one_each
from neuronx_cc.codegen.dots.span import Part
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, Ring
from neuronx_cc.codegen.emission.tiles import tile_in
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.frozen import replace

UNROLLED_PRODUCTS = 8
"""Products of one tile that are no loop."""


class Pair(NamedTuple):
    """Blocks [partitions, chunks, rows] of both operands, of the same segments of k; after those of decoded operands
    the patterns that tell their NaNs, which have another type.
    """

    lhs: Sequence[Block]
    rhs: Sequence[Block]

    def factors(self, zeros: Block | None) -> Iterator[tuple[Block, Block]]:
        """What is multiplied and added up: patterns that tell NaNs with ``zeros`` [partitions, 1]."""
        (lhs, rhs), suspects = zip(*map(_told_apart, self), strict=True)
        count = max(len(lhs), len(rhs))  # parts of one operand are multiplied with all of the other
        yield from zip([*lhs] * (count // len(lhs)), [*rhs] * (count // len(rhs)), strict=True)
        for stationary, moving in zip(suspects[0], rhs, strict=False):
            yield stationary, _spread(zeros, moving)
        for stationary, moving in zip(lhs, suspects[1], strict=False):
            yield _spread(zeros, stationary), moving

    def cut(self, part: Part) -> Pair:
        """What makes one tile."""
        lhs = [block.index(2, part.lhs_row, part.rows) for block in self.lhs]
        return Pair(lhs, [block.index(2, part.n_offset, part.columns) for block in self.rhs])

    def pieces(self, most: int) -> Iterator[tuple[bool, Pair]]:
        """So many chunks of all at a time, at most, and whether they are the first."""
        for number in range(len(self.lhs)):
            both, chunks = (self.lhs[number], self.rhs[number]), self.lhs[number].dims[1].size
            for start in range(0, chunks, most):
                cut = [[block.index(1, Affine(start), min(most, chunks - start))] for block in both]
                yield number == start == 0, Pair(*cut)

    def turned(self, part: Part) -> Pair:
        """The same with the columns of rhs stationary, and the rows of lhs, or parts of them side by side, moving."""
        rows = [block.index(len(block.dims) - 1, part.lhs_row, part.rows) for block in self.lhs]
        return Pair([block.index(2, part.n_offset, part.columns) for block in self.rhs], rows)

    def across(self, out: Result) -> list[Pair]:
        """What makes the columns of each partition: rhs stationary, of each partition one column, and lhs moving."""
        tiles = self.rhs[0].dims[2].size // out.across
        return [Pair([one_each(block, out, at) for block in self.rhs], self.lhs) for at in range(tiles)]


def _told_apart(blocks: Sequence[Block]) -> tuple[Sequence[Block], Sequence[Block]]:
    """Those of values, and those of patterns."""
    values = [block for block in blocks if block.dtype == blocks[0].dtype]
    return values, blocks[len(values) :]


def _spread(zeros: Block | None, like: Block) -> Block:
    assert zeros is not None, "made where there are decoded operands"
    partitions, *free = like.dims
    return zeros.of((replace(zeros.dims[0], size=partitions.size), *(Atom(atom.size, 0) for atom in free)))


@dataclass(frozen=True, slots=True)
class Products:
    """Multiplies staged blocks tile by tile."""

    builder: Builder
    ring: Ring
    """Banks of PSUM."""
    flags: tuple[str, ...]
    bias: Bias | None
    zeros: Block | None = None
    """For patterns that tell NaNs: one on each partition."""

    def bank(self, rows: int, columns: int, several: bool = False) -> Block:
        """FP32 room for the sums of a tile [rows, columns]; ``several``: of tiles that are summed side by side."""
        return tile_in(self.builder, self.ring, [columns], "f32", rows, several)

    def tile(self, part: Part, pair: Pair, biased: bool = True) -> Block:
        """The sums of one tile over all chunks of the pair. ``biased``: with the bias, if there is one."""
        bank = self.bank(part.rows, part.columns)
        self.accumulate(bank, part, pair)
        if biased:
            self.add_row(bank, part)
        return bank

    def add_row(self, bank: Block, part: Part) -> None:
        """The bias, if there is one."""
        if self.bias is not None:
            self.bias.add(bank, part)

    def accumulate(self, bank: Block, part: Part, pair: Pair, first: bool = True) -> None:
        """Add the products of a tile over all chunks of the pair to what is in the bank, unless they are the
        ``first``.
        """
        self.accumulate_all([(part, bank)], pair, first)

    def accumulate_all(self, tiles: Sequence[tuple[Part, Block]], pair: Pair, first: bool = True) -> None:
        """The same of several tiles and their banks."""
        self.add_up([(bank, pair.cut(part)) for part, bank in tiles], first)

    def add_up(self, sums: Sequence[tuple[Block, Pair]], first: bool) -> None:
        """The same of several sums and what makes them, chunk by chunk: chunks that come last are waited for last."""
        for factors in zip(*(pair.factors(self.zeros) for _, pair in sums), strict=True):
            chunks = factors[0][0].dims[1].size
            cut = [(bank, *each) for (bank, _), each in zip(sums, factors, strict=True)]
            unrolled = chunks if chunks <= UNROLLED_PRODUCTS else 1
            ahead = [
                (bank.of((bank.dims[0], Atom(unrolled, 0), *bank.dims[1:])), stationary, moving)
                for bank, stationary, moving in cut
            ]
            self.builder.multiply_each(ahead, self.flags, adds=int(first))
            first = False
            if unrolled < chunks:
                with self.builder.loop(chunks - unrolled) as index:
                    for bank, stationary, moving in cut:
                        at = index + unrolled
                        # an accumulating multiply also reads its bank
                        flags = ["accumulate", *self.flags]
                        self.builder.multiply(bank, stationary.index(1, at), moving.index(1, at), flags)
