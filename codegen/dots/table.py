"""Operands that are rows of a table by number, which contractions read where they lie: one matrix for each number.

Numbers are on chip; the queue that loads a matrix first loads its number into a register, which is added to the
address. As planned, matrices lie twice as far apart as they are long, so that no dims of different matrices are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronx_cc.codegen.dots.span import Span, rows_at
from neuronx_cc.codegen.emission.builder import Affine, Builder
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream

APART = 2
"""How many times their length matrices lie apart, as planned."""
WORD = 4
"""Bytes of a number."""


def tells_matrices(atom: Atom, pitch: int) -> bool:
    """Whether indices along a dim tell matrices that lie ``pitch`` bytes apart, as planned; 0 for others."""
    return atom.size > 1 and 0 < pitch <= atom.stride


@dataclass(frozen=True, slots=True)
class Listed:
    """A table, and where the numbers of its rows are on chip."""

    numbers: View
    """On one partition, s32."""
    pitch: int
    """Bytes from one matrix to the next, as planned."""
    row: int
    """The same in the table."""
    last: int
    """The greatest number."""

    def rows_at(
        self, builder: Builder, view: View, batch: Sequence[Atom], free: Sequence[Atom], span: Span, register: int
    ) -> tuple[Affine, Atom]:
        """As ``span.rows_at``, in the matrix whose number it loads into ``register``."""
        position = Affine()
        indices = [*span.batch, *(span.at.get(dim, Affine()) for dim in range(len(free)))]
        for atom, index in zip((*batch, *free), indices, strict=True):
            if tells_matrices(atom, self.pitch):
                position = position + index * (atom.stride // self.pitch)
        start = self.numbers.start + position * WORD
        where = replace(self.numbers, start=start, dims=())
        builder.load_register(where, 0, self.last, Stream.DMA_DYNAMIC, register)
        moved = replace(view, start=view.start + Affine(0, ((register, self.row),)))
        return rows_at(moved, self._inside(batch), self._inside(free), span)

    def _inside(self, atoms: Sequence[Atom]) -> list[Atom]:
        """Dims as they lie in one matrix."""
        return [replace(atom, stride=0) if tells_matrices(atom, self.pitch) else atom for atom in atoms]
