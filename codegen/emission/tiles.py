"""Tiles of one kernel: rotating buffers in SBUF, handed out by size and reused within the kernel, and banks of PSUM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import prod

from neuronx_cc.codegen.emission.builder import Block, Builder, Ring
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.errors import NO_LOC, CompileError, Loc
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.types import itemsize


@dataclass(slots=True)
class Idle:
    """Rings of one size that were given back, as a heap."""

    place: tuple[bool, bool]
    """Where in the code their next buffers were told (``Builder.place``)."""
    rings: list[tuple[tuple[bool, int], int, Ring]] = field(default_factory=list)
    """When the next buffer was given back, the order in which the rings were, and these."""


@dataclass(slots=True)
class TilePool:
    """SBUF and PSUM rings of a kernel; all are freed together when it ends: by ``free``, or after a ``with``."""

    builder: Builder
    name: str
    buffers: int = 1
    """Buffers of each tile: more than one lets iterations overlap."""
    gathers: bool = True
    """Whether there is room for what lies between the elements of operands in HBM."""
    _rings: list[Ring] = field(default_factory=list)
    _banks: list[Ring] = field(default_factory=list)
    _idle: dict[int, Idle] = field(default_factory=dict)
    """Bytes -> what was given back."""
    _free_banks: dict[int, list[Ring]] = field(default_factory=dict)
    """Bytes -> PSUM that was given back, the first first."""
    _lent: dict[int, Ring] = field(default_factory=dict)
    _left: dict[tuple[int, int], tuple[bool, int]] = field(default_factory=dict)
    """Ring and offset of a buffer -> whether a transfer reads it, and how many tiles had been given back before it."""
    _count: int = 0
    _shares: dict[int, int] = field(default_factory=dict)
    """Tile -> how many more give it back."""

    def __enter__(self) -> TilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def tile(self, sizes: Sequence[int], dtype: str, partitions: int) -> Block:
        """An uninitialised tile [partitions, sizes...], dense in its free dims."""
        nbytes = max(64, -(-prod(sizes) * itemsize(dtype) // 64) * 64)
        ring = self._idle_of(nbytes) or self.ring(nbytes, self.buffers)
        self._lent[id(ring.alloc)] = ring
        return tile_in(self.builder, ring, sizes, dtype, partitions)

    def _idle_of(self, nbytes: int) -> Ring | None:
        """A ring given back: of about this size, or where there is no room for one more, a larger one.

        So the rest of a dim that tiles do not divide needs no memory beside that of the full tiles. Of several, that
        whose next buffer was given back first: engines are done before a transfer is.
        """
        larger = [size for size, idle in self._idle.items() if idle.rings and size >= nbytes]
        size = min(larger, default=0)
        if not size or (4 * size > 5 * nbytes and self.builder.sbuf.largest_gap() >= nbytes):
            return None
        return heappop(self._sorted(size).rings)[-1]

    def _sorted(self, nbytes: int) -> Idle:
        """Idle rings of ``nbytes`` as they are sorted here."""
        place = self.builder.place
        idle = self._idle.setdefault(nbytes, Idle(place))
        if idle.place != place:  # next buffers are others
            idle.rings = [(self._left_at(ring), order, ring) for _, order, ring in idle.rings]
            heapify(idle.rings)
            idle.place = place
        return idle

    def _left_at(self, ring: Ring) -> tuple[bool, int]:
        """When the next buffer of ``ring`` was given back."""
        return self._left.get((id(ring), self.builder.next_offset(ring)), (False, -1))

    def like(self, block: Block, dtype: str = "") -> Block:
        """A tile of the sizes of ``block``, and of its type unless another one is given."""
        return self.tile([atom.size for atom in block.dims[1:]], dtype or block.dtype, block.dims[0].size)

    def apart(self, sizes: Sequence[int], dtype: str, partitions: int) -> Block:
        """A tile in memory that nothing else in the kernel uses."""
        return tile_in(self.builder, self.ring(prod(sizes) * itemsize(dtype), 1), sizes, dtype, partitions)

    def ring(self, nbytes: int, buffers: int, name: str = "") -> Ring:
        """At most ``buffers`` buffers of ``nbytes`` a partition in SBUF: as many as fit. Raises EXSP001 for none."""
        ring = self.builder.ring(self.builder.sbuf, nbytes, buffers, name or self.name)
        self._rings.append(ring)
        return ring

    def psum(self, banks: int, name: str = "") -> Ring:
        """The same of whole banks of PSUM."""
        ring = self.builder.ring(self.builder.psum, self.builder.sizes.bank_bytes, banks, name or self.name)
        self._banks.append(ring)
        return ring

    def bank(self, nbytes: int) -> Ring | None:
        """PSUM of ``nbytes`` a partition in whole banks, or None when it is taken: such as was not used yet, or was
        given back first.
        """
        size = self.builder.sizes.bank_bytes
        nbytes = -(-nbytes // size) * size
        if self.builder.psum.largest_gap() >= nbytes:
            ring = self.builder.ring(self.builder.psum, nbytes, 1, self.name)
            self._banks.append(ring)
        elif free := self._free_banks.get(nbytes):
            ring = free.pop(0)
        else:
            return None
        self._lent[id(ring.alloc)] = ring
        return ring

    def share(self, block: Block) -> None:
        """One more owner of the tile of ``block`` will give it back."""
        self._shares[id(block.alloc)] = self._shares.get(id(block.alloc), 0) + 1

    def give_back(self, block: Block, stored: bool = False) -> None:
        """Let later tiles use the memory of ``block``; blocks that are no tiles of this pool are left alone.

        ``stored``: a transfer reads it.
        """
        if self._shares.get(id(block.alloc)):
            self._shares[id(block.alloc)] -= 1
            return
        ring = self._lent.pop(id(block.alloc), None)
        if ring is not None and ring.alloc.space is Space.PSUM:
            self._free_banks.setdefault(ring.nbytes, []).append(ring)
        elif ring is not None:
            self._left[id(ring), block.offset.const] = stored, self._count
            self._count += 1
            heappush(self._sorted(ring.nbytes).rings, (self._left_at(ring), self._count, ring))

    def free(self) -> None:
        """Give all of it back; the pool must not be used again."""
        for ring in self._rings:
            self.builder.sbuf.free(ring.alloc)
        for ring in self._banks:
            self.builder.psum.free(ring.alloc)


def tile_in(
    builder: Builder, ring: Ring, sizes: Sequence[int], dtype: str, partitions: int = 1, several: bool = False
) -> Block:
    """The next buffer of ``ring`` as an uninitialised tile [partitions, sizes...], dense in its free dims.

    ``several``: as for ``Builder.slot``.
    """
    assert prod(sizes) * itemsize(dtype) <= ring.nbytes, "a tile fits its buffer"
    return Block(ring.alloc, dtype, builder.slot(ring, several), (Atom(partitions, 1, True), *dense(sizes, dtype)))


def dense(sizes: Sequence[int], dtype: str) -> tuple[Atom, ...]:
    """Atoms of a row-major array, byte strides."""
    stride = itemsize(dtype)
    atoms = []
    for size in reversed(sizes):
        atoms.append(Atom(size, stride))
        stride *= size
    return tuple(reversed(atoms))


def pieces(size: int, step: int) -> list[tuple[int, int]]:
    """(start, size) of the pieces of a dim, of ``step`` each but for the last one."""
    return [(start, min(step, size - start)) for start in range(0, size, step)]


def in_long_runs(block: Block) -> list[int]:
    """The free dims in the order in which a DMA moves long runs, where what is on chip lies so."""
    return sorted(range(1, len(block.dims)), key=lambda dim: -abs(block.dims[dim].stride))


def room_of(tiles: Mapping[tuple[str, int], int]) -> int:
    """Bytes a partition of all buffers: ``tiles`` is (name, how many) -> bytes."""
    return sum(count * nbytes for (_, count), nbytes in tiles.items())


def no_room(kernel: str, room: int, loc: Loc = NO_LOC) -> CompileError:
    """What a kernel raises that has no plan for the ``room`` there is: less stays on chip then, if anything does."""
    return CompileError(
        "EXSP001",
        f"SBUF has no room for the smallest tiles of a {kernel}: {room} bytes a partition are left",
        "a smaller batch may fit",
        loc,
    )
