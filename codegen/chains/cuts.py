"""Chunks of columns: which are computed of a block of rows, where, and in which banks their sums over rows are."""

from __future__ import annotations

from collections.abc import Iterator

from neuronx_cc.codegen.chains.schedule import Extent, Schedule
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import pieces
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.machine import Sizes


def chunks_of(s: Schedule, extent: Extent) -> range:
    """Those of which something is computed."""
    first = extent.begin // s.column_parts
    return range(first, -(-(extent.begin + extent.columns) // s.column_parts))


def chunk_of(s: Schedule, made: Block, extent: Extent, number: int) -> Block:
    """What is made of a block of rows for the columns of chunk ``number``, in order or every so many-th."""
    step = made.dims[1].stride
    if s.in_order:
        return made.index(1, Affine(number * s.column_parts - extent.begin), s.columns_of(number))
    return made.moved(number * step).of((made.dims[0], Atom(s.column_parts, s.column_chunks * step)))


def parts_of(s: Schedule, sizes: Sizes, width: int, total: Block, chunks: range) -> Iterator[tuple[Block, range]]:
    """Sums over rows, as many chunks as a bank holds at a time, and as have as many columns: [column, chunk, term],
    and which.
    """
    held = sizes.bank_columns // width
    for number, (start, count) in enumerate(pieces(s.column_chunks, held)):
        within = range(max(start, chunks.start), min(start + count, chunks.stop))
        whole = range(within.start, min(within.stop, s.columns // s.column_parts))
        for some in (whole, range(max(whole.stop, within.start), within.stop)):
            if not some:
                continue
            if s.in_psum:
                bank = total.moved(number * sizes.bank_bytes + (some.start - start) * 4 * width)
                part = bank.of((bank.dims[0], Atom(len(some), 4 * width), Atom(width, 4)))
            else:
                part = total.index(1, Affine(some.start), len(some))
            yield part.on_partitions(s.columns_of(some.start)), some
