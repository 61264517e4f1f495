"""PSUM for products that elementwise ops read where TensorE leaves them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

from neuronx_cc.codegen.chains.schedule import Schedule
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, Ring
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.ir.machine import Sizes


@dataclass(slots=True)
class Slots:
    """As many products of a block of rows as have room; none where they do not stay."""

    idle: deque[tuple[Ring, int, float]] = field(default_factory=deque)
    """Banks, the product there, and since when, in nanoseconds; those first that have been for longest."""
    left: list[tuple[Ring, int]] = field(default_factory=list)
    """The same of those that are so after the step that is emitted."""
    lent: dict[int, tuple[Block, Ring, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, pool: TilePool, schedule: Schedule, sizes: Sizes) -> Slots:
        """All of them, one beside the other in a bank where it holds several."""
        several = schedule.products_a_bank(sizes.bank_columns)
        rings = [pool.bank(schedule.columns * 4) for _ in range(ceil(schedule.stay / several))]
        return cls(deque((ring, number, 0.0) for number in range(several) for ring in rings if ring is not None))

    def __bool__(self) -> bool:
        return bool(self.idle or self.lent or self.left)

    @property
    def free_at(self) -> float:
        """When the first of them is, in nanoseconds."""
        return self.idle[0][2] if self.idle else 0.0

    def settle(self, now: float) -> None:
        """What was given back is idle ``now``."""
        self.idle.extend((ring, number, now) for ring, number in self.left)
        self.left.clear()

    def has(self, block: Block) -> bool:
        """Whether ``block`` is one that is lent."""
        return id(block) in self.lent

    def take(self, builder: Builder, width: int, columns: int, partitions: int) -> Block:
        """One [partition, column] in FP32, of ``columns`` of its ``width``."""
        ring, number, _ = self.idle.popleft()
        room = tile_in(builder, ring, [(number + 1) * width], "f32", partitions, True)
        block = room.index(1, Affine(number * width), columns)
        self.lent[id(block)] = block, ring, number
        return block

    def give_back(self, block: Block) -> None:
        """Let others use it; blocks that are none of these are left alone."""
        lent = self.lent.pop(id(block), None)
        if lent is not None:
            self.left.append(lent[1:])
