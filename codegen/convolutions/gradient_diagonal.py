"""Diagonals of sums of groups that share products and lie on rows and columns: [(taps, groups), groups].

A product takes as long as its columns are many, however many rows it fills. So groups fill half of the columns or less,
and shifted tiles of all of them the rows. Vector keeps what belongs to one group, and the DMA brings the taps of each
group to the partition that this has in the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from neuronx_cc.codegen.convolutions.gradient_plan import Sum
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32_PSUM, Tile, Timing
from neuronx_cc.ir.types import itemsize

MASK = "u32"


def nbytes_of(groups: int, stack: int, sums: int) -> int:
    """Bytes a partition of the tiles for ``sums`` sums of up to ``stack`` taps of ``groups`` groups, or one less."""
    return (2 * itemsize(MASK) + 4) * groups + 2 * 4 * sums * (1 + stack)


def drained(groups: int, sums: int, timing: Timing) -> float:
    """Nanoseconds until ``sums`` sums of ``groups`` groups have left PSUM."""
    row = timing.engine("tensor_reduce", Stream.VECTOR, groups, (Tile("f32"),), (Tile("f32"),), ("add",))
    kept = timing.engine("copy_predicated", Stream.VECTOR, groups, (Tile("f32"),), (Tile(MASK), F32_PSUM))
    return (row + kept).times(sums).bound + timing.transfer_latency


@dataclass(frozen=True, slots=True)
class Diagonals:
    """Takes them out of PSUM. Groups have one feature of each operand."""

    emitter: Emitter
    tiles: Tiles
    _masks: dict[tuple[int, int], Block] = field(default_factory=dict)

    def take(self, sums: Sequence[tuple[Sum, Block]], groups: int) -> list[Block]:
        """Of each sum and its bank [(taps, groups), groups]: [groups, taps..., 1]."""
        builder, count = self.emitter.builder, len(sums)
        height = max(bank.dims[0].size for _, bank in sums)
        mask, wide = self._mask(height, groups), self.tiles.tile("f32", [groups], height, "sums of each group", 1)
        found = self.tiles.tile("f32", [count], height, "diagonals", 2)
        for tile in (wide, found):
            builder.memset(tile, 0.0)
        for number, (_, bank) in enumerate(sums):
            rows = bank.dims[0]
            kept, test, goal = (tile.on_partitions(rows.size) for tile in (wide, mask, found))
            builder.emit("copy_predicated", Stream.VECTOR, [kept], [test, bank])
            row = kept.of((rows, Atom(1, 0), kept.dims[1]))
            builder.emit("tensor_reduce", Stream.VECTOR, [goal.index(1, Affine(number), 1)], [row], ["add"])
        stack = height // groups
        moved = self.tiles.tile("f32", [stack, count], groups, "taps of each group", 2)
        for tap in range(stack):
            there = moved.of((moved.dims[0], moved.dims[2])).moved(Affine(tap * moved.dims[1].stride))
            copy(builder, there, found.on_partitions(groups, tap * groups), Stream.DMA_STORE)
        step = moved.dims[1].stride // 4
        return [
            moved.moved(Affine(4 * number)).of((moved.dims[0], *_apart(sum_.left.taps[1:], 4 * step), Atom(1, 4)))
            for number, (sum_, _) in enumerate(sums)
        ]

    def _mask(self, height: int, groups: int) -> Block:
        """Ones where row and column are of the same group."""
        if (height, groups) in self._masks:
            return self._masks[height, groups]
        builder = self.emitter.builder
        mask = self.tiles.tile(MASK, [groups], height, f"same group of {groups}, {height // groups} taps", 1)
        self._masks[height, groups] = mask
        builder.memset(mask, 0)
        for tap in range(height // groups):
            imm = [1, -tap * groups, 1, -1]
            builder.emit("affine_select", Stream.GPSIMD, [mask], [mask], ["not_equal"], imm)
        return mask


def _apart(sizes: Sequence[int], stride: int) -> list[Atom]:
    """Dims of ``sizes``, whose last has neighbours ``stride`` bytes apart."""
    return [Atom(size, prod(sizes[at + 1 :]) * stride) for at, size in enumerate(sizes)]
