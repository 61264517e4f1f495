"""Operands of TensorE that every kernel may want: ones and unit matrices, made once, where they are first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from neuronx_cc.codegen.emission.block import neighbours
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, Ring
from neuronx_cc.codegen.emission.tiles import tile_in
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize


@dataclass(slots=True)
class Fixed:
    """What is asked for first must fit: it is asked for outside loops. Raises EXSP001 where it does not."""

    builder: Builder
    _ones: dict[tuple[str, int], Block] = field(default_factory=dict)
    _identities: dict[str, Block] = field(default_factory=dict)

    def identity(self, dtype: str) -> Block:
        """An identity matrix in SBUF, for transposes."""
        if dtype not in self._identities:
            rows = self.builder.sizes.rows
            block = self._identities[dtype] = self._filled(f"identity {dtype}", dtype, rows, rows)
            self.builder.emit("affine_select", Stream.GPSIMD, [block], [block], ["is_equal"], [0.0, 0, 1, -1])
        return self._identities[dtype]

    def ones(self, partitions: int, dtype: str = "f32", terms: int = 1) -> Block:
        """Ones on the first partitions, the stationary that repeats the sum of ``terms`` rows over ``partitions``."""
        if (dtype, terms) not in self._ones:
            self._ones[dtype, terms] = self._filled("ones", dtype, terms, self.builder.sizes.columns)
        return self._ones[dtype, terms].index(1, Affine(0), partitions)

    def transposes(self, banks: Ring, pieces: Sequence[Block], several: bool = False) -> Block:
        """[partition, piece, row] in the next of ``banks``: products of ``pieces`` [row, partition] with a unit matrix.

        ``several``: as for ``Builder.slot``.
        """
        rows, *partitions = (atom.size for atom in pieces[0].dims)
        unit = self.identity(pieces[0].dtype)
        unit = unit.of((Atom(rows, 1, True), Atom(rows, unit.dims[1].stride)))
        bank = tile_in(self.builder, banks, [len(pieces), rows], "f32", prod(partitions), several)
        along = neighbours(pieces)
        if along is not None:
            unit = unit.of((unit.dims[0], Atom(len(pieces), 0), unit.dims[1]))
            self.builder.multiply_each([(bank, along, unit)])
            return bank
        for place, piece in enumerate(pieces):
            self.builder.multiply(bank.index(1, Affine(place)), piece, unit)
        return bank

    def _filled(self, name: str, dtype: str, partitions: int, columns: int) -> Block:
        width = itemsize(dtype)
        alloc = self.builder.sbuf.reserve(columns * width, name)
        block = Block(alloc, dtype, Affine(alloc.lo), (Atom(partitions, 1, True), Atom(columns, width)))
        self.builder.emit("memset", Stream.GPSIMD, [block], [], imm=[1.0])
        return block

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A computation that may not be run: what is made in it is not there after it."""
        ones, identities = dict(self._ones), dict(self._identities)
        yield
        made = [block for kind, block in self._ones.items() if kind not in ones]
        made += [block for dtype, block in self._identities.items() if dtype not in identities]
        for block in made:
            self.builder.sbuf.free(block.alloc)
        self._ones, self._identities = ones, identities
