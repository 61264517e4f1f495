"""Tiles of rows, several under way at a time: bodies of loops with the steps of many tiles among each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.interleave import interleave
from neuronx_cc.codegen.maps.counting import Starts
from neuronx_cc.codegen.maps.overlap import BODY, tile_count
from neuronx_cc.ir import hlo

Blocks = dict[hlo.SSAValue, Block]


@dataclass(frozen=True, slots=True)
class Staggered:
    """How they are emitted."""

    builder: Builder
    sizes: Sequence[int]
    """Of the free dims."""
    tile: Callable[[Starts, Blocks], Iterator[None]]
    """Emits the tile of blocks that start there, step by step."""
    steps: int
    under_way: int
    body: int = BODY
    """Tiles of a loop's body."""

    def emit(self, loops: Sequence[tuple[int, int]], starts: Starts, blocks: Mapping[hlo.SSAValue, Block]) -> None:
        """All tiles of ``loops``, (free dim, step), of which the inner ones are unrolled."""
        (dim, step), *inner = loops
        inside = tile_count(self.sizes, inner)
        several = max(1, self.body // inside)
        for start, tiles, size in self.builder.tiles(self.sizes[dim], step):
            for first, bodies, each in self.builder.tiles(tiles, ceil(tiles / ceil(tiles / several))):
                with self.builder.loop(bodies) as index, self.builder.unrolled_if(each * inside > 1):
                    begun: list[Iterator[None]] = []
                    for number in range(each):
                        position = (index * each + (first + number)) * size + start
                        begun += self._tiles(
                            inner, {**starts, dim: (position, size)}, _cut(blocks, dim, position, size)
                        )
                    interleave(self.builder, begun, self.steps, self.under_way)

    def _tiles(self, loops: Sequence[tuple[int, int]], starts: Starts, blocks: Blocks) -> Iterator[Iterator[None]]:
        if not loops:
            yield self.tile(starts, blocks)
            return
        (dim, step), *inner = loops
        for start, tiles, size in self.builder.tiles(self.sizes[dim], step):
            for number in range(tiles):
                position = Affine(number * size + start)
                yield from self._tiles(inner, {**starts, dim: (position, size)}, _cut(blocks, dim, position, size))


def _cut(blocks: Mapping[hlo.SSAValue, Block], dim: int, position: Affine, size: int) -> Blocks:
    return {value: block.index(dim + 1, position, size) for value, block in blocks.items()}
