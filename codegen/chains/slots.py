"""PSUM for products that elementwise ops read where TensorE leaves them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from neuronx_cc.codegen.chains.schedule import Schedule
from neuronx_cc.codegen.emission.builder import Block, Builder, Ring
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.ir.machine import Sizes


@dataclass(slots=True)
class Slots:
    """As many products of a block of rows as have room; none where they do not stay."""

    idle: deque[Ring] = field(default_factory=deque)
    lent: dict[int, Ring] = field(default_factory=dict)

    @classmethod
    def of(cls, pool: TilePool, schedule: Schedule, sizes: Sizes) -> Slots:
        """All of them, of whole banks."""
        rings = [pool.bank(schedule.columns * 4) for _ in range(schedule.stay)]
        return cls(deque(ring for ring in rings if ring is not None))

    def __bool__(self) -> bool:
        return bool(self.idle or self.lent)

    def take(self, builder: Builder, columns: int, partitions: int) -> Block:
        """One [partition, column] in FP32."""
        ring = self.idle.popleft()
        self.lent[id(ring.alloc)] = ring
        return tile_in(builder, ring, [columns], "f32", partitions, True)

    def give_back(self, block: Block) -> None:
        """Let others use it; blocks that are none of these are left alone."""
        ring = self.lent.pop(id(block.alloc), None)
        if ring is not None:
            self.idle.append(ring)
