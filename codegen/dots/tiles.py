"""The rotating buffers of one contraction, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod

from neuronx_cc.codegen.emission.builder import Block, Builder, Ring
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.ir.types import itemsize

UNROLLED_PIECES = 16
"""Parts of a block, or of rows, done one by one, that are no loop."""
WORD = 4
"""Neighbours that pieces hold together, whose bits are operated on in pairs."""


def piece_of(sizes: Sequence[int], most: int) -> tuple[int, int]:
    """The dim along which a block of more than ``most`` elements is cut into equal pieces of at most so many if one of
    its indices has no more, and the size of these, of whole words where it is no less than one.
    """
    dim = next(dim for dim, size in enumerate(sizes) if size > 1)
    inner = prod(sizes[dim + 1 :])
    fitting, word = max(1, most // inner), WORD // gcd(WORD, inner)
    even = -(-sizes[dim] // -(-sizes[dim] // fitting))
    whole = -(-even // word) * word
    return dim, whole if whole <= fitting else fitting // word * word or even


@dataclass(slots=True)
class Tiles:
    """Rings of tiles in SBUF and of banks of PSUM, all freed together."""

    builder: Builder
    name: str
    """Of the contraction."""
    planned: Mapping[tuple[str, int], int]
    """(name, buffers) -> bytes of a buffer, the most that will be asked for."""
    pool: TilePool
    _rings: dict[tuple[str, int], Ring] = field(default_factory=dict)

    def tile(
        self,
        dtype: str,
        sizes: Sequence[int],
        partitions: int,
        name: str,
        count: int,
        several: bool = False,
        phases: int = 1,
    ) -> Block:
        """The next buffer of the ring ``name`` of ``count`` buffers.

        ``several``: of tiles that follow each other in straight-line code. ``phases``: as in ``Ring``.
        """
        key = name, count
        nbytes = max(prod(sizes) * itemsize(dtype), self.planned.get(key, 0))
        if key not in self._rings or self._rings[key].nbytes < nbytes:
            self._rings[key] = self.pool.ring(nbytes, count, f"{name} of {self.name}")
            self._rings[key].phases = phases
        return tile_in(self.builder, self._rings[key], sizes, dtype, partitions, several)

    def banks(self, count: int, name: str) -> Ring:
        """Banks of PSUM."""
        return self.pool.psum(count, name)
