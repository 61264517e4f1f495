"""Copies into HBM through SBUF: elements are reversed, picked out, repeated or interleaved by an engine on chip.

A DMA moves every element that is contiguous with no other on both sides as a transfer of its own, 140 ns each (hardware
sheet 1.8.2). Here each partition loads a piece of the source in long runs, with what lies between its elements; Vector
puts it into the target's order within the partition, with strides of either sign; and long runs are stored. Exact for
every element type: bits are moved, never computed with. ``relayout_plan`` says how much a piece is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from neuronx_cc.codegen.builder import Affine, Block, Builder, Ring, emit_over
from neuronx_cc.codegen.relayout_plan import LANES, Dim, Relayout, dims_of, extent, start_of
from neuronx_cc.codegen.tiles import dense
from neuronx_cc.codegen.views import Atom
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.types import itemsize

_FAST_STRIDE = 16
"""Bytes from which a stride of the minor dim halves the bandwidth of SBUF's ports (hardware sheet 1.7)."""


def copy(builder: Builder, target: Block, source: Block, relayout: Relayout, load: Stream, store: Stream) -> None:
    """Copy between two ordered blocks (``relayout_plan.ordered``) by ``load`` and ``store`` queues."""
    size, dims = itemsize(target.dtype), dims_of(target, source)
    on_chip = source.alloc.space is not Space.HBM
    wanted = [] if on_chip else [("loaded", extent(dims, relayout.pieces, size).nbytes)]
    wanted.append(("in order", prod(relayout.pieces) * size))
    rings = {name: builder.ring(builder.sbuf, nbytes, 2, name) for name, nbytes in wanted}
    work = _Relayout(builder, rings, dims, relayout, load, store, on_chip)
    if not on_chip:
        target, source = (block.of((Atom(1, 0), *block.dims)) for block in (target, source))
    work.cut(0, target, source)
    for ring in rings.values():
        builder.sbuf.free(ring.alloc)


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

    def cut(self, dim: int, target: Block, source: Block) -> None:
        """Loops over the pieces of dim number ``dim`` and those behind it; block dim 0 is the partitions'."""
        if dim == len(self.dims):
            self.tile(target, source)
            return
        piece, builder, size = self.relayout.pieces[dim], self.builder, self.dims[dim].size
        at_once = {self.relayout.lane: LANES // self.relayout.groups, self.relayout.group: self.relayout.groups}
        if dim not in at_once:
            for start, tiles, count in builder.tiles(size, piece):
                with builder.loop(tiles) as index:
                    at = index * count + start
                    self.cut(dim + 1, *(block.index(dim + 1, at, count) for block in (target, source)))
            return
        for start, tiles, count in builder.tiles(size, at_once[dim] * piece):
            with builder.loop(tiles) as index:
                at = index * count + start
                if dim == self.relayout.group:
                    self.cut(dim + 1, *(block.index(dim + 1, at, count) for block in (target, source)))
                    continue
                lanes, rest = divmod(count, piece)
                if lanes:
                    self.cut(dim + 1, *(_dealt(block, dim + 1, at, lanes, piece) for block in (target, source)))
                if rest:
                    at += lanes * piece
                    self.cut(dim + 1, *(_dealt(block, dim + 1, at, 1, rest) for block in (target, source)))

    def tile(self, target: Block, source: Block) -> None:
        """Load, put into order, store."""
        builder, dtype, group = self.builder, target.dtype, self.relayout.group + 1
        free = [dim for dim in range(1, len(target.dims)) if dim != group or not group]
        parts = target.dims[group].size if group else 1
        heads = [target.dims[0].size] * parts
        sizes = [target.dims[dim].size for dim in free]
        layout = dense(sizes, dtype)
        lanes = Atom(sum(heads), 1, True)
        made = Block(self.rings["in order"].alloc, dtype, builder.slot(self.rings["in order"]), (lanes, *layout))
        made = replace(made, partition=source.partition if self.on_chip else 0)
        taken = source.select([0, *free]) if self.on_chip else self._loaded(source, free, parts)
        order = _engine_order(made, taken)
        emit_over(builder, "tensor_copy", Stream.VECTOR, [made.select(order)], [taken.select(order)])
        for part in range(parts):
            place = target.index(group, Affine(part), 1) if group else target
            here = replace(made, partition=part * heads[0], dims=(Atom(heads[0], 1, True), *made.dims[1:]))
            here = here if group else made
            emit_over(builder, "dma_copy", self.store, [place.select([0, *free])], [here])

    def _loaded(self, source: Block, free: list[int], parts: int) -> Block:
        """A tile of the dims ``free``, of ``parts`` elements of the group one below the other."""
        ring, group, size = self.rings["loaded"], self.relayout.group + 1, itemsize(source.dtype)
        counts = [1 if dim == self.relayout.group else atom.size for dim, atom in enumerate(source.dims[1:])]
        tile = extent(self.dims, counts, size)
        lanes, run = source.dims[0].size, Atom(tile.run // size, size)
        loaded = Block(ring.alloc, source.dtype, self.builder.slot(ring), (Atom(lanes * parts, 1, True),))
        start = start_of(source, [dim + 1 for dim in tile.strides])
        outside = [(counts[dim], tile.strides[dim], abs(self.dims[dim].source)) for dim in tile.outside]
        here = (Atom(lanes, 1, True), *(Atom(count, stride) for count, stride, _ in outside), run)
        there = (source.dims[0], *(Atom(count, stride) for count, _, stride in outside), run)
        for part in range(parts):
            at = start + (part * source.dims[group].stride if group else 0)
            place = replace(loaded, partition=part * lanes, dims=here)
            emit_over(self.builder, "dma_copy", self.load, [place], [replace(source, offset=at, dims=there)])
        atoms, back = [], 0
        for dim in free:
            step = tile.strides.get(dim - 1, 0)
            if self.dims[dim - 1].source < 0:
                back += (counts[dim - 1] - 1) * step
                step = -step
            atoms.append(Atom(counts[dim - 1], step))
        return loaded.moved(back).of((loaded.dims[0], *atoms))


def _dealt(block: Block, dim: int, at: Affine, lanes: int, piece: int) -> Block:
    """``lanes`` pieces of dim ``dim`` from ``at`` on, one on each partition."""
    atom = block.dims[dim]
    part = block.index(dim, at, piece)
    return part.of((Atom(lanes, atom.stride * piece), *part.dims[1:]))


def _engine_order(made: Block, taken: Block) -> list[int]:
    """The dims, those last whose strides are short on both sides: the ports of SBUF are quicker then."""
    free = range(1, len(made.dims))
    reach = {dim: max(abs(block.dims[dim].stride) for block in (made, taken)) for dim in free}
    moving = [dim for dim in free if made.dims[dim].size > 1]
    last = min(moving, key=lambda dim: (reach[dim], -dim), default=-1)
    if last < 0 or reach[last] >= _FAST_STRIDE:
        return [0, *free]
    return [0, *(dim for dim in free if dim != last), last]
