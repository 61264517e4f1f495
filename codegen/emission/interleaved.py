"""Loops whose body does several steps of a kind side by side, so that engines need not wait for what they just made."""

from __future__ import annotations

from collections.abc import Iterator

from neuronx_cc.codegen.emission.builder import Affine, Builder
from neuronx_cc.ir.isa.limits import MAX_WAIT_COEFS

UNROLLED = 4
"""Steps that are straight-line code."""


def interleaved(builder: Builder, count: int, together: int, body: int) -> Iterator[list[Affine]]:
    """Indices of a loop as by ``Builder.each``, ``together`` at a time; a loop's body has ``body``, a multiple."""
    if together == 1:
        yield from ([index] for index in builder.each(count))
        return
    loops = count > max(UNROLLED, body) and builder.open_loops < MAX_WAIT_COEFS
    left = body + count % body if loops else count
    indices = builder.each(count, max(UNROLLED, body), body)
    while left:
        several = [next(indices) for _ in range(min(together, left))]
        left -= len(several)
        yield several
    next(indices, None)  # closes the loop


def interleaved_pieces(
    builder: Builder, total: int, step: int, together: int, body: int
) -> Iterator[list[tuple[Affine, int]]]:
    """Start and size of each tile of a dim as by ``Builder.pieces``, ``together`` at a time."""
    cut = builder.tiles(total, step)
    with builder.unrolled_if(len(cut) > 1):
        for start, count, size in cut:
            for several in interleaved(builder, count, together, body):
                yield [(index * size + start, size) for index in several]
