"""Copies into HBM through SBUF: elements are reversed, picked out, repeated or interleaved by an engine on chip.

A DMA moves every element that is contiguous with no other on both sides as a transfer of its own. Here each partition
loads a piece of the source in long runs, with what lies between its elements; Vector puts it into the target's order
within the partition, with strides of either sign; and long runs are stored. Exact for every element type: bits are
moved, never computed with. ``relayout_plan`` says how much a piece is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, Ring, emit_over
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.relayout_plan import (
    Dim,
    Extent,
    Relayout,
    as_loaded,
    as_stored,
    dims_of,
    start_of,
)
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.types import itemsize


@dataclass(frozen=True, slots=True)
class Blank:
    """What is written between the target's elements, and before and after each run of whole rows."""

    value: float | Block
    """A constant, or an element on each partition."""
    before: int = 0
    """Bytes."""
    after: int = 0


def copy(
    builder: Builder,
    target: Block,
    source: Block,
    relayout: Relayout,
    load: Stream,
    store: Stream,
    blank: Blank | None = None,
) -> None:
    """Copy between two ordered blocks (``relayout_plan.ordered``) by ``load`` and ``store`` queues."""
    size, dims = itemsize(target.dtype), dims_of(target, source)
    on_chip = source.alloc.space is not Space.HBM
    wanted = {} if on_chip else {"loaded": as_loaded(builder.timing, dims, relayout.pieces, size).nbytes}
    wanted["in order"] = as_stored(builder.timing, dims, relayout.pieces, size, blank is not None).nbytes
    wanted["in order"] += blank.before + blank.after if blank is not None else 0
    if not on_chip:
        target, source = (block.of((Atom(1, 0), *block.dims)) for block in (target, source))
    builder.sbuf.make_room(relayout.buffers * sum(wanted.values()))
    with TilePool(builder, "relayout") as pool:
        rings = {name: pool.ring(nbytes, relayout.buffers, name) for name, nbytes in wanted.items()}
        _Relayout(builder, rings, dims, relayout, load, store, on_chip, blank).cut(0, target, source)


@dataclass(slots=True)
class _Relayout:
    builder: Builder
    rings: dict[str, Ring]
    dims: tuple[Dim, ...]
    relayout: Relayout
    load: Stream
    store: Stream
    on_chip: bool
    """Whether the source lies in SBUF: it is read in place."""
    blank: Blank | None

    def cut(self, dim: int, target: Block, source: Block) -> None:
        """Loops over the pieces of dim number ``dim`` and those after it; block dim 0 is the partitions'."""
        if dim == len(self.dims):
            self.tile(target, source)
            return
        piece, builder, size = self.relayout.pieces[dim], self.builder, self.dims[dim].size
        at_once = {
            self.relayout.partition: PARTITIONS // self.relayout.groups,
            self.relayout.group: self.relayout.groups,
        }
        if dim not in at_once:
            for at, count in builder.pieces(size, piece):
                self.cut(dim + 1, *(block.index(dim + 1, at, count) for block in (target, source)))
            return
        for at, count in builder.pieces(size, at_once[dim] * piece):
            for start, partitions, each in builder.tiles(count, piece):
                if dim == self.relayout.group:
                    part = partitions * each
                    self.cut(dim + 1, *(block.index(dim + 1, at + start, part) for block in (target, source)))
                else:
                    blocks = (_dealt(block, dim + 1, at + start, partitions, each) for block in (target, source))
                    self.cut(dim + 1, *blocks)

    def tile(self, target: Block, source: Block) -> None:
        """Load, put into order, store."""
        size, group, parts = itemsize(target.dtype), self.relayout.group, 1
        if group >= 0 and (together := target.dims[group + 1].size) > self.relayout.pieces[group]:
            parts = together // self.relayout.pieces[group]
            target, source = (block.index(group + 1, Affine(), together // parts) for block in (target, source))
        counts = [atom.size for atom in target.dims[1:]]
        partitions = Atom(target.dims[0].size * parts, 1, True)
        free = list(range(len(counts)))
        stored = as_stored(self.builder.timing, self.dims, counts, size, self.blank is not None)
        ring = self.rings["in order"]
        place = Block(ring.alloc, target.dtype, self.builder.slot(ring), (partitions,))
        place = replace(place, partition=source.partition) if self.on_chip else place
        before, after = (self.blank.before, self.blank.after) if self.blank is not None else (0, 0)
        made = place.moved(before).of((partitions, *(Atom(counts[dim], stored.strides.get(dim, 0)) for dim in free)))
        if self.blank is not None:
            self._clear(place.of((partitions, Atom((before + stored.nbytes + after) // size, size))), self.blank.value)
        if self.on_chip:
            taken = source.select([0, *(dim + 1 for dim in free)])
        else:
            taken = self._loaded(source, counts, partitions, parts)
        order = _engine_order(int(self.builder.machine["sram.fast_stride_bytes"]), made, taken)
        emit_over(self.builder, "tensor_copy", Stream.VECTOR, [made.select(order)], [taken.select(order)])
        for here, there in self._transfers(place, target.moved(-before), stored, before + after, parts):
            emit_over(self.builder, "dma_copy", self.store, [there], [here])

    def _loaded(self, source: Block, counts: list[int], partitions: Atom, parts: int) -> Block:
        """The tile of an HBM block as [partitions, free dims]."""
        ring, tile = self.rings["loaded"], as_loaded(self.builder.timing, self.dims, counts, itemsize(source.dtype))
        loaded = Block(ring.alloc, source.dtype, self.builder.slot(ring), (partitions,))
        lowest = replace(source, offset=start_of(source, [dim + 1 for dim in tile.strides]))
        for here, there in self._transfers(loaded, lowest, tile, 0, parts):
            emit_over(self.builder, "dma_copy", self.load, [here], [there])
        atoms, back = [], 0
        for dim in range(len(counts)):
            step = tile.strides.get(dim, 0)
            if self.dims[dim].source < 0:
                back += (counts[dim] - 1) * step
                step = -step
            atoms.append(Atom(counts[dim], step))
        return loaded.moved(back).of((partitions, *atoms))

    def _transfers(
        self, tile: Block, memory: Block, extent: Extent, more: int, parts: int
    ) -> Iterator[tuple[Block, Block]]:
        """Blocks on chip and in HBM of the runs of a tile, ``more`` bytes longer, for ``parts`` pieces of the group."""
        size, group = itemsize(tile.dtype), self.relayout.group
        step = memory.dims[group + 1].stride * self.relayout.pieces[group] if parts > 1 else 0
        partitions, run = memory.dims[0].size, Atom((extent.run + more) // size, size)
        outside = [(memory.dims[dim + 1], extent.strides[dim]) for dim in extent.outside]
        here = (Atom(partitions, 1, True), *(Atom(atom.size, stride) for atom, stride in outside), run)
        there = (memory.dims[0], *(Atom(atom.size, abs(atom.stride)) for atom, _ in outside), run)
        for part in range(parts):
            here_too = replace(tile, partition=tile.partition + part * partitions, dims=here)
            yield here_too, memory.moved(part * step).of(there)

    def _clear(self, tile: Block, value: float | Block) -> None:
        if isinstance(value, Block):
            self.builder.emit("tensor_copy", Stream.VECTOR, [tile], [value.repeated(tile)])
            return
        self.builder.memset(tile, value)


def _dealt(block: Block, dim: int, at: Affine, partitions: int, piece: int) -> Block:
    """``partitions`` pieces of dim ``dim`` from ``at`` on, one on each partition."""
    atom = block.dims[dim]
    part = block.index(dim, at, piece)
    return part.of((Atom(partitions, atom.stride * piece), *part.dims[1:]))


def _engine_order(fast: int, made: Block, taken: Block) -> list[int]:
    """The dims, those last whose strides are below ``fast`` bytes on both sides: the ports of SBUF are quicker then."""
    free = range(1, len(made.dims))
    reach = {dim: max(abs(block.dims[dim].stride) for block in (made, taken)) for dim in free}
    moving = [dim for dim in free if made.dims[dim].size > 1]
    last = min(moving, key=lambda dim: (reach[dim], -dim), default=-1)
    if last < 0 or reach[last] >= fast:
        return [0, *free]
    return [0, *(dim for dim in free if dim != last), last]
