"""Column sums of a map kernel: TensorE multiplies what is summed of each tile with ones, and adds up in PSUM.

What lies beside each other in a bank, as many rows as fit, is added up after the last tile, by Vector. The boxes of a
kernel add to the same totals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.ones import add_up
from neuronx_cc.codegen.emission.tiles import TilePool, dense, tile_in
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.formation.columns import Section, sums_in
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.row_reduction import reduce_rows
from neuronx_cc.codegen.maps.space import TileSpace
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import WIDE_FLOATS, itemsize


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring columns whose sums are within a bank: (start, size) of each free dim that is kept."""

    at: Mapping[int, tuple[int, int]]
    start: int
    """Its first column of all."""
    columns: int


@dataclass(frozen=True, slots=True)
class Columns:
    """How the tiles of one box are summed."""

    pieces: tuple[Piece, ...]
    steps: Mapping[int, int]
    """Free dim that is summed -> neighbours whose sums lie beside each other in a bank."""
    strides: Mapping[int, int]
    """Free dim that is kept -> columns from one of its elements to the next."""

    @property
    def several(self) -> int:
        return prod(self.steps.values())

    def atoms(self, piece: Piece) -> list[Atom]:
        """The free dims of a tile as the sums of ``piece`` lie in PSUM."""
        atoms, stride = [], itemsize("f32") * piece.columns
        for dim in reversed(range(len(self.steps) + len(self.strides))):
            if dim in piece.at:
                atoms.append(Atom(piece.at[dim][1], itemsize("f32") * self.strides[dim]))
            else:
                atoms.append(Atom(self.steps[dim], stride))
                stride *= self.steps[dim]
        return atoms[::-1]


def columns_of(tiles: TileSpace, folded: int, bank: int) -> Columns:
    """The sums over the first ``folded`` axes, with ``bank`` columns a bank."""
    kept = sorted((dim for dim in range(len(tiles.sizes)) if tiles.axis(dim) >= folded), key=tiles.order.__getitem__)
    strides, columns = {}, 1
    for dim in reversed(kept):
        strides[dim] = columns
        columns *= tiles.sizes[dim]
    starts: list[list[tuple[int, int]]] = []
    for dim in kept:
        step = min(tiles.sizes[dim], max(1, bank // strides[dim]))
        starts.append([(at, min(step, tiles.sizes[dim] - at)) for at in range(0, tiles.sizes[dim], step)])
    pieces = [
        Piece(
            dict(zip(kept, parts, strict=True)),
            sum(at * strides[dim] for dim, (at, _) in zip(kept, parts, strict=True)),
            prod(size for _, size in parts),
        )
        for parts in product(*starts)
    ]
    left, steps = bank // max(piece.columns for piece in pieces), {}
    for dim in reversed(range(len(tiles.sizes))):
        if dim not in strides:
            steps[dim] = min(tiles.sizes[dim], left)
            left //= steps[dim]
    return Columns(tuple(pieces), steps, strides)


@dataclass(slots=True)
class ColumnSums:
    """Of one section of the columns of a kernel."""

    context: Context
    kernel: Kernel
    section: Section
    pool: TilePool
    emitter: Emitter = field(init=False)
    totals: dict[hlo.HloOp, Block] = field(default_factory=dict)
    """[1, columns of the section] of the boxes so far."""
    _ones: dict[str, Block] = field(default_factory=dict)
    _zero: Block = field(init=False)
    _columns: Columns = field(init=False)
    _banks: dict[tuple[hlo.HloOp, int], Block] = field(default_factory=dict)
    """Sum and number of a piece -> [1, rows beside each other, columns] in PSUM."""

    def __post_init__(self) -> None:
        self.emitter = Emitter(self.context.builder, lambda like, dtype: self.pool.like(like, dtype))
        self._zero = self.pool.apart([1], "f32", 1)
        self.context.builder.memset(self._zero, 0.0)

    def begin(self, tiles: TileSpace) -> None:
        """Let the sums of a box begin with nothing."""
        builder = self.context.builder
        self._columns = columns_of(tiles, self.kernel.folded, builder.sizes.bank_columns)
        for op in sums_in(self.kernel):
            source = op.sources[0]
            values = [source, *(source.owner.operands if isinstance(source.owner, hlo.ConvertOp) else ())]
            for dtype in [hlo.shape_of(value).dtype for value in values]:  # casts are done as they are read
                if dtype in WIDE_FLOATS and dtype not in self._ones:
                    self._ones[dtype] = self.pool.apart([1], dtype, builder.sizes.partitions)
                    builder.memset(self._ones[dtype], 1.0)
            for number, piece in enumerate(self._columns.pieces):
                if (op, number) not in self._banks:
                    sizes = [builder.sizes.bank_columns]
                    self._banks[op, number] = tile_in(builder, self.pool.psum(1, "column sums"), sizes, "f32", 1)
                bank = self._rows(op, number, piece).flat()
                nothing = self._zero.of((bank.dims[0], Atom(bank.dims[1].size, 0)))
                # on Scalar, for TensorE would wait for Vector, which may be busy with the kernel before
                builder.emit("activation", Stream.SCALAR, [bank], [nothing], ["copy"], [1.0])

    def add(self, op: hlo.ReduceOp, source: Block) -> None:
        """Add the tile ``source`` [partitions, free dims] to the sums of ``op``."""
        builder = self.context.builder
        ones = self._ones[source.dtype]
        builder.emit("load_stationary", Stream.TENSOR, [], [ones.of((source.dims[0], ones.dims[1]))])
        for number, piece in enumerate(self._columns.pieces):
            part = source
            for dim, (at, size) in piece.at.items():
                part = part.index(dim + 1, Affine(at), size)
            sums = self._banks[op, number]
            add_up(builder, sums.of((sums.dims[0], *self._columns.atoms(piece))), part)

    def _rows(self, op: hlo.ReduceOp, number: int, piece: Piece) -> Block:
        """[1, rows beside each other, columns] of a piece in PSUM."""
        bank = self._banks[op, number]
        return bank.of((bank.dims[0], *dense([self._columns.several, piece.columns], "f32")))

    def end(self) -> None:
        """Add the sums of a box to the totals."""
        for op in sums_in(self.kernel):
            first = op not in self.totals
            if first:
                self.totals[op] = self.pool.apart([self.section.columns], "f32", 1)
            for number, piece in enumerate(self._columns.pieces):
                total = self.totals[op].index(1, Affine(piece.start), piece.columns)
                here = total if first else self.pool.like(total)
                bank = self._rows(op, number, piece)
                if self._columns.several > 1:
                    reduce_rows(self.emitter, "add", here, bank.select([0, 2, 1]))
                else:
                    self.emitter.leave(here, bank.index(1, Affine()))
                if not first:
                    self.emitter.over("tensor_tensor", Stream.VECTOR, [total], [total, here], alu=["add"])
                    self.pool.give_back(here)

    def store(self, homes: Mapping[hlo.HloOp, View]) -> None:
        """Store the sums in ``homes``, which are dense where there are several sections."""
        for op, total in self.totals.items():
            home = homes[op]
            if op.shape.dtype != "f32":
                cast = self.pool.tile([self.section.columns], op.shape.dtype, 1)
                self.emitter.copy(cast, total)
                total = cast
            atoms = [atom for dim in home.dims for atom in dim]
            if self.section.cuts:
                atoms = [Atom(self.section.columns, itemsize(home.dtype))]
            source = total.of((total.dims[0], *dense([atom.size for atom in atoms], total.dtype)))
            start = home.start + self.section.start * itemsize(home.dtype)
            copy(
                self.context.builder,
                Block(home.alloc, home.dtype, start, (Atom(1, 0), *atoms)),
                source,
                Stream.DMA_STORE,
            )
