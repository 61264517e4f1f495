"""Few rows that stream past columns, whose sums Vector transposes: columns of the stationary operand land on the
partitions of PSUM, as many tiles of them side by side as a bank has room for, with the sums of each part of the rows.

TensorE takes half the time that it takes for columns that stream past few rows, and parts of the rows cost nothing.
Where Scalar takes transposed columns out of PSUM all the time, it takes the sums out as well: Vector, which would wait
for SBUF with the port of PSUM in its hands, kept it from that for a quarter of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neuronx_cc.codegen.dots import splitting
from neuronx_cc.codegen.dots.problem import Problem
from neuronx_cc.codegen.dots.products import Pair, Products
from neuronx_cc.codegen.dots.span import Part
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.movement.transpose_kernel import turn_squares


class Bank(NamedTuple):
    """Sums of neighbouring tiles of columns."""

    start: int
    """The first column."""
    columns: int
    """Of each tile."""
    sums: Block
    """[columns, tiles, parts of rows, rows]."""

    @property
    def tiles(self) -> int:
        return self.sums.dims[1].size

    @property
    def size(self) -> int:
        return self.tiles * self.columns

    def tile(self, number: int) -> Bank:
        """One of its tiles."""
        return Bank(self.start + number * self.columns, self.columns, self.sums.index(1, Affine(number), 1))

    def parts(self, of: Part) -> list[Part]:
        """What each tile has the sums of."""
        return [of.cut_columns(Affine(self.start + at * self.columns), self.columns) for at in range(self.tiles)]


@dataclass(frozen=True, slots=True)
class Turned:
    """Multiplies so, and transposes the sums."""

    problem: Problem
    builder: Builder
    products: Products
    tiles: Tiles
    emitter: Emitter

    def banks(self, part: Part) -> list[Bank]:
        """Room for all sums of a part of the result: no more banks than its rows would fill."""
        sizes, side = self.builder.sizes, self.problem.side_by_side
        most, height = sizes.bank_columns // (side * part.rows), min(part.columns, sizes.columns)
        full, rest = divmod(part.columns, height)
        tiles, found = full + (rest > 0), list[Bank]()
        for first in range(0, tiles, most):
            count = min(most, tiles - first)
            bank = self.products.bank(height, count * side * part.rows, several=tiles > most)
            sums = bank.of((bank.dims[0], *dense([count, side, part.rows], bank.dtype)))
            whole = min(count, full - first)
            if whole:
                found.append(Bank(first * height, height, sums.index(1, Affine(), whole)))
            if whole < count:
                last = sums.index(1, Affine(whole), 1).on_partitions(rest)
                found.append(Bank((first + whole) * height, rest, last))
        return found

    def add(self, part: Part, banks: Sequence[Bank], pair: Pair, first: bool) -> None:
        """The products of a pair, the ``first`` ones of these sums or more."""
        sums = [
            (bank.sums.index(1, Affine(at)), pair.turned(each))
            for bank in banks
            for at, each in enumerate(bank.parts(part))
        ]
        for each in [sums] if self.problem.rhs.converted else [[one] for one in sums]:
            self.products.add_up(each, first)

    def whole(self, bank: Bank) -> Block:
        """The sums of a bank with their parts added up: [columns, tiles, rows]."""
        sums = bank.sums if self.problem.side_by_side > 1 else bank.sums.index(2, Affine())
        if self.scales:
            dtype = self.problem.out.dtype if self.finishes else "f32"
            sums = splitting.left(self.emitter, self.tiles, sums, dtype, self.problem.factor)
        return splitting.sum_up(self.emitter, self.tiles, [sums]) if self.problem.side_by_side > 1 else sums

    @property
    def scales(self) -> bool:
        """Whether Scalar takes sums out of PSUM before they are transposed, with the factor that the result wants."""
        return self.problem.rhs.transposed

    @property
    def finishes(self) -> bool:
        """Whether that makes the result of them."""
        alike = self.problem.side_by_side == 1 or self.problem.out.dtype == "f32"
        return self.scales and alike and self.problem.epilogue is None

    def pieces(self, bank: Bank, sums: Block) -> Iterator[tuple[int, Block]]:
        """Tiles that fill a bank as rows: their first column, and [columns, tiles, rows] of ``sums``."""
        most = max(1, self.builder.sizes.bank_columns // bank.columns)
        for at in range(0, bank.tiles, most):
            yield bank.start + at * bank.columns, sums.index(1, Affine(at), min(most, bank.tiles - at))

    def turn(self, result: Block, sums: Block) -> None:
        """``result`` [rows, columns of all tiles] of sums [columns, tiles, rows]."""
        columns, tiles = sums.dims[0].size, sums.dims[1].size
        for at in range(tiles):
            turn_squares(self.builder, result.index(1, Affine(at * columns), columns), sums.index(1, Affine(at)))
