"""Transposes on TensorE of what a convolution stages: positions or output features in, contracted features out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Block, Ring
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.halves import halves_of
from neuronx_cc.ir.types import itemsize

SPARE_REGISTERS = 32
"""Registers that are left for what else a convolution has to loop over."""


@dataclass(frozen=True, slots=True)
class Turner:
    """Transposes tiles of one convolution."""

    context: Context
    emitter: Emitter
    tiles: Tiles
    banks: Ring
    """Of PSUM."""
    fast: bool
    """Whether 16-bit values are moved as such."""

    def carriers(self, natural: Block) -> Iterator[tuple[Block, str, int]]:
        """Blocks that TensorE carries exactly, the type of the parts that they hold, and their byte in an element."""
        if self.fast:
            return iter([(natural, natural.dtype, 0)])
        partitions, *free = natural.dims

        def room(carrier: str, _: int) -> Block:
            plane = self.tiles.tile(carrier, [atom.size for atom in free], partitions.size, "bits", 2)
            wider, width = itemsize(carrier), itemsize(natural.dtype)
            return plane.of((partitions, *(Atom(atom.size, atom.stride // width * wider) for atom in free)))

        return halves_of(natural, room, self.emitter.copy)

    def loops_pay(self, count: int) -> bool:
        """Whether ``count`` equal parts are worth a loop, and a register and its phase are left for it.

        Those of loops inside others are free again after the outermost one only.
        """
        return count > 2 and self.emitter.builder.registers_left > SPARE_REGISTERS

    def turn(
        self, source: Block, target: Block, alone: bool = False, copy: Callable[[Block, Block], None] | None = None
    ) -> None:
        """Transpose [rows, chunks, partitions] into ``target`` [partitions, chunks, rows...], as many chunks as a bank
        holds.

        ``alone``: nothing else is transposed in an iteration of the loop around. ``copy`` takes what is transposed out
        of PSUM, where sums tell whether all of it was finite.
        """
        builder = self.emitter.builder
        rows, total = source.dims[0].size, source.dims[1].size
        sizes = [atom.size for atom in target.dims[2:]]
        pieces = builder.tiles(total, max(1, builder.sizes.bank_columns // rows))
        alone = alone and len(pieces) == pieces[0][1] == 1
        for start, tiles, count in pieces:
            loops = self.loops_pay(tiles)
            for tile in builder.each(tiles, 1 if loops else 8):
                first = tile * count + start
                taken = [source.index(1, first + position) for position in range(count)]
                bank = self.context.fixed.transposes(self.banks, taken, several=not (alone or loops))
                split = bank.of((bank.dims[0], *dense([count, *sizes], "f32")))
                (copy or self._leave)(target.index(1, first, count), split)

    def _leave(self, target: Block, bank: Block) -> None:
        self.leave(target, bank, self.emitter.copy)

    def leave(self, target: Block, bank: Block, copy: Callable[[Block, Block], None]) -> None:
        """Copy what TensorE transposed, and note whether all values that it moved as such are finite."""
        watch = self.context.watch if self.fast else None
        (copy if watch is None else watch.leave)(target, bank)
