"""Tiles of one kernel: rotating buffers, handed out by size and reused within the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from neuronx_cc.codegen.builder import Block, Builder, Ring
from neuronx_cc.codegen.views import Atom
from neuronx_cc.ir.types import itemsize


@dataclass(slots=True)
class TilePool:
    """SBUF and PSUM rings of a kernel; all are freed together when it ends."""

    builder: Builder
    name: str
    buffers: int = 1
    """Buffers of each tile: more than one lets iterations overlap."""
    gathers: bool = True
    """Whether there is room for what lies between the elements of operands in HBM."""
    _rings: list[Ring] = field(default_factory=list)
    _banks: list[Ring] = field(default_factory=list)
    _idle: dict[int, list[Ring]] = field(default_factory=dict)
    _lent: dict[int, Ring] = field(default_factory=dict)

    def tile(self, sizes: Sequence[int], dtype: str, lanes: int) -> Block:
        """An uninitialised tile [lanes, sizes...], dense in its free dims."""
        nbytes = max(64, -(-prod(sizes) * itemsize(dtype) // 64) * 64)
        idle = self._idle.setdefault(nbytes, [])
        ring = idle.pop() if idle else self.ring(nbytes, self.buffers)
        self._lent[id(ring.alloc)] = ring
        return Block(ring.alloc, dtype, self.builder.slot(ring), (Atom(lanes, 1, True), *dense(sizes, dtype)))

    def apart(self, sizes: Sequence[int], dtype: str, lanes: int) -> Block:
        """A tile in memory that nothing else in the kernel uses."""
        ring = self.ring(prod(sizes) * itemsize(dtype), 1)
        return Block(ring.alloc, dtype, self.builder.slot(ring), (Atom(lanes, 1, True), *dense(sizes, dtype)))

    def ring(self, nbytes: int, buffers: int) -> Ring:
        ring = self.builder.ring(self.builder.sbuf, nbytes, buffers, self.name)
        self._rings.append(ring)
        return ring

    def bank(self, nbytes: int) -> Ring | None:
        """PSUM of ``nbytes`` a partition, or None when it is taken."""
        if self.builder.psum.largest_gap() < nbytes:
            return None
        ring = self.builder.ring(self.builder.psum, nbytes, 1, self.name)
        self._banks.append(ring)
        return ring

    def give_back(self, block: Block) -> None:
        """Let later tiles use the memory of ``block``; blocks that are no tiles of this pool are left alone."""
        ring = self._lent.pop(id(block.alloc), None)
        if ring is not None:
            self._idle.setdefault(ring.nbytes, []).append(ring)

    def free(self) -> None:
        for ring in self._rings:
            self.builder.sbuf.free(ring.alloc)
        for ring in self._banks:
            self.builder.psum.free(ring.alloc)


def dense(sizes: Sequence[int], dtype: str) -> tuple[Atom, ...]:
    """Row-major atoms."""
    stride = itemsize(dtype)
    atoms = []
    for size in reversed(sizes):
        atoms.append(Atom(size, stride))
        stride *= size
    return tuple(reversed(atoms))
