"""Pieces of memory as operands of instructions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.views import Affine, Atom, Nested, run_of
from neuronx_cc.ir.isa.program import MAX_FREE_DIMS, Ref, Space
from neuronx_cc.ir.types import itemsize


@dataclass(slots=True, unsafe_hash=True)
class Block:
    """A strided piece of memory, ready to be an operand: dims major first, at most one on the partitions.

    Never changed; ``moved`` and ``of`` are quicker than ``dataclasses.replace``.
    """

    alloc: Alloc
    dtype: str
    offset: Affine
    dims: tuple[Atom, ...]
    partition: int = 0

    def index(self, dim: int, at: Affine, size: int | None = None) -> Block:
        """Restrict ``dim`` to ``size`` elements from ``at`` (drop it when ``size`` is None)."""
        dims, offset = self.dims, self.offset
        atom = dims[dim]
        if atom.partition:
            if at.const or at.terms or size is None:
                raise AssertionError("a partition dim is never indexed")
        else:
            offset = offset + (at * atom.stride if at.terms else at.const * atom.stride)
        kept = () if size is None else (Atom(size, atom.stride, atom.partition),)
        return Block(self.alloc, self.dtype, offset, dims[:dim] + kept + dims[dim + 1 :], self.partition)

    def moved(self, by: Affine | int) -> Block:
        """The same piece ``by`` bytes further."""
        return Block(self.alloc, self.dtype, self.offset + by, self.dims, self.partition)

    def of(self, dims: tuple[Atom, ...]) -> Block:
        """Other dims from the same place."""
        return Block(self.alloc, self.dtype, self.offset, dims, self.partition)

    @property
    def is_dense(self) -> bool:
        """Whether elements of the free dims lie side by side, in order."""
        size, atoms = itemsize(self.dtype), [atom for atom in self.dims[1:] if atom.size > 1]
        return run_of(atoms, size) == size * prod(atom.size for atom in atoms)

    def flat(self) -> Block:
        """The free dims of a dense tile as one."""
        assert self.is_dense, "elements that do not lie side by side are no run"
        size = itemsize(self.dtype)
        return self.of((self.dims[0], Atom(prod([atom.size for atom in self.dims[1:]]), size)))

    def on_partitions(self, count: int, first: int | None = None) -> Block:
        """The same on ``count`` partitions, from ``first`` on, or from where it begins."""
        start = self.partition if first is None else first
        return Block(self.alloc, self.dtype, self.offset, (Atom(count, 1, True), *self.dims[1:]), start)

    @property
    def varying(self) -> list[int]:
        """The free dims along which elements differ."""
        return [dim for dim, atom in enumerate(self.dims) if dim and atom.stride and atom.size > 1]

    def repeated(self, like: Block) -> Block:
        """Its one value a partition for each element of ``like``."""
        return self.of((like.dims[0], *(Atom(atom.size, 0) for atom in like.dims[1:])))

    def backwards(self, dims: Iterable[int]) -> Block:
        """The same read from the ends of ``dims``."""
        offset, atoms = self.offset, list(self.dims)
        for dim in dims:
            offset += (atoms[dim].size - 1) * atoms[dim].stride
            atoms[dim] = Atom(atoms[dim].size, -atoms[dim].stride)
        return Block(self.alloc, self.dtype, offset, tuple(atoms), self.partition)

    def every(self, dim: int, start: int, count: int, step: int) -> Block:
        """``count`` elements of a free dim, every ``step``-th from ``start`` on."""
        cut = self.index(dim, Affine(start), count)
        return cut.of((*cut.dims[:dim], Atom(count, cut.dims[dim].stride * step), *cut.dims[dim + 1 :]))

    def at_each(self, dim: int, count: int) -> list[Block]:
        """The blocks at all indices of ``count`` free dims from ``dim`` on, in row-major order."""
        each = [self.index(dim, Affine(at)) for at in range(self.dims[dim].size)] if count else [self]
        return [block for one in each for block in one.at_each(dim, count - 1)] if count > 1 else each

    def select(self, order: Sequence[int]) -> Block:
        """The dims in another order (all that are left out must have been indexed away)."""
        return self.of(tuple([self.dims[dim] for dim in order]))


def ref(block: Block) -> Ref:
    """The operand of a block. On-chip blocks start with their partition dim; HBM blocks with any dim."""
    dims, space, offset = block.dims, block.alloc.space, block.offset
    if space is not Space.HBM and (not dims or not dims[0].partition):
        dims = (Atom(1, 1, True), *dims)
    if len(dims) > MAX_FREE_DIMS + 1 or (dims and isinstance(dims[0], Nested)):
        raise AssertionError(f"operand with {len(dims) - 1} free dims, or groups of rows")
    sizes = tuple([(atom.size, 0 if atom.partition else atom.stride) for atom in dims])
    return Ref(space, block.dtype, offset.const, sizes, block.partition, offset.terms)


def neighbours(blocks: Sequence[Block]) -> Block | None:
    """Blocks that are the same but for their places, equally far apart, as one with a dim 1 for their numbers."""
    first, places = blocks[0], [block.offset.const for block in blocks]
    step = places[1] - places[0] if len(places) > 1 else 0
    if any(place != places[0] + at * step for at, place in enumerate(places)):
        return None
    for block in blocks[1:]:
        offset = block.offset
        if block.alloc is not first.alloc or offset.terms != first.offset.terms or offset.tile != first.offset.tile:
            return None
        if block.dims != first.dims or block.dtype != first.dtype or block.partition != first.partition:
            return None
    return first.of((first.dims[0], Atom(len(blocks), step), *first.dims[1:]))


def split_scalars(outs: Sequence[Block], ins: Sequence[Block]) -> tuple[list[Block], list[Block]]:
    """The operands of the results' sizes, and those of one value a partition, which follow them."""
    tiles = [block for block in ins if len(block.dims) == len(outs[0].dims)]
    return tiles, list(ins[len(tiles) :])


def merge_free(blocks: Sequence[Block], first: int = 1) -> list[Block]:
    """Merge neighbouring dims (from ``first`` on) that every block can merge; drop free dims of size 1."""
    first_dims = blocks[0].dims
    keep = [dim for dim, atom in enumerate(first_dims) if dim < first or atom.size > 1]
    if len(keep) < len(first_dims):
        blocks = [block.select(keep) for block in blocks]
    index = first
    while index + 1 < len(blocks[0].dims):
        inner = blocks[0].dims[index + 1].size
        if all([block.dims[index].stride == block.dims[index + 1].stride * inner for block in blocks]):
            size = blocks[0].dims[index].size * inner
            blocks = [
                block.of((*block.dims[:index], Atom(size, block.dims[index + 1].stride), *block.dims[index + 2 :]))
                for block in blocks
            ]
        else:
            index += 1
    return list(blocks)
