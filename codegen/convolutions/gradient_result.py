"""Results of gradients of kernels: out of PSUM, in the order in which they lie in HBM.

Of groups that share products (``pack`` of them), sums [o, taps, n] have a diagonal of blocks that belong to one group;
the others are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, product
from math import prod

from neuronx_cc.codegen.convolutions.axis import Taps
from neuronx_cc.codegen.convolutions.gradient_diagonal import Diagonals
from neuronx_cc.codegen.convolutions.gradient_plan import Piece, Sum, even
from neuronx_cc.codegen.convolutions.gradient_schedule import result_buffers
from neuronx_cc.codegen.convolutions.problem import atom_of
from neuronx_cc.codegen.convolutions.turn import Turner
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Block, merge_free
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.movement.halves import part_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import MAX_FREE_DIMS, Stream
from neuronx_cc.ir.types import FLOATS, itemsize

FEW_NEIGHBOURS = 8
"""Neighbours in the result up to which it is not transposed."""


@dataclass(frozen=True)
class Results:
    """Where sums are, and where they go."""

    out: View
    """[n of a group, o, taps...]"""
    kept: tuple[int, int]
    """Features of a group."""
    groups: int
    taps: Sequence[Taps]
    """Of images (one), and of each axis of positions those that meet any input: ascending, or from last to first."""
    emitter: Emitter
    tiles: Tiles
    turner: Turner
    """Of bit patterns."""
    sums: Alloc
    """Banks of PSUM."""
    columns_are_left: bool
    """Whether ``o``, not ``n``, lies on the partitions of the sums."""

    @property
    def rows(self) -> int:
        sizes = self.emitter.builder.sizes
        return min(sizes.rows, sizes.columns)

    @property
    def columns(self) -> int:
        return self.emitter.builder.sizes.bank_columns

    def bank(self, rows: int, columns: int, sum_: Sum) -> Block:
        offset = Affine(self.sums.lo + sum_.bank * self.emitter.builder.sizes.bank_bytes + sum_.column * 4)
        return Block(self.sums, "f32", offset, (Atom(rows, 1, True), Atom(columns, 4)))

    def shape(self, sum_: Sum) -> tuple[int, int]:
        """Rows and columns."""
        left, right = sum_.left.width, sum_.right[1]
        return (right, left) if self.columns_are_left else (left, right)

    def _row_stride(self, piece: Piece) -> int:
        """Bytes between rows of the result that are neighbours in ``piece``."""
        strides = [atom_of(self.out, 2 + axis).stride for axis in range(len(self.taps) - 1)]
        stacked = [stride for count, stride in zip(piece.taps[1:], strides, strict=True) if count > 1]
        return atom_of(self.out, 0).stride or (stacked[-1] if stacked else 0)

    def store(self, part: Sequence[Sum], left_start: int, right_start: int) -> None:
        """Out of PSUM, in the order of the result in HBM."""
        if not self.columns_are_left:
            for sum_ in part:
                self._store_rows(sum_, left_start, right_start)
            return
        for _, sums in groupby(part, lambda sum_: (sum_.right, sum_.left.start)):
            self._store_columns(list(sums), left_start, right_start)

    def place(self, left: int, right: int, taps: Sequence[int]) -> Affine:
        """Where an element of the result lies; ``taps`` counted among those that meet any input."""
        offset = self.out.start + left * atom_of(self.out, 0).stride + right * atom_of(self.out, 1).stride
        for axis, at in enumerate(taps[1:]):
            tap = self.taps[1 + axis]
            offset += (tap.first + tap.step * at) * atom_of(self.out, 2 + axis).stride
        return offset

    @property
    def backwards(self) -> bool:
        return self.taps[-1].step < 0

    def _store_rows(self, sum_: Sum, left_start: int, right_start: int) -> None:
        rows, columns = self.shape(sum_)
        result = self._tile([columns], rows)
        self.emitter.leave(result, self.bank(rows, columns, sum_))
        left, right = left_start + sum_.left.start, right_start + sum_.right[0]
        if not self.backwards:
            self._store_tap(result, left, right, sum_.left.first, self._row_stride(sum_.left))
            return
        places = product(
            *(range(first, first + count) for first, count in zip(sum_.left.first, sum_.left.taps, strict=True))
        )
        for number, taps in enumerate(places):
            part = replace(
                result, partition=number * sum_.left.size, dims=(Atom(sum_.left.size, 1, True), result.dims[1])
            )
            self._store_tap(part, left, right, taps, atom_of(self.out, 0).stride)

    def _store_tap(self, result: Block, left: int, right: int, taps: Sequence[int], stride: int) -> None:
        """Rows ``stride`` bytes apart."""
        dims = (Atom(result.dims[0].size, stride), Atom(result.dims[1].size, atom_of(self.out, 1).stride))
        target = Block(self.out.alloc, self.out.dtype, self.place(left, right, taps), dims)
        copy(self.emitter.builder, target, result, Stream.DMA_STORE)

    def _store_columns(self, sums: Sequence[Sum], left_start: int, right_start: int) -> None:
        """Sums of the same rows and features, for neighbouring taps."""
        piece, (start, rows) = sums[0].left, sums[0].right
        first = [min(sum_.left.first[axis] for sum_ in sums) for axis in range(len(self.taps))]
        ends = [max(s.left.first[axis] + s.left.taps[axis] for s in sums) for axis in range(len(self.taps))]
        counts = [end - begin for begin, end in zip(first, ends, strict=True)]
        if prod(counts) * piece.size != sum(sum_.left.width for sum_ in sums):
            for sum_ in sums:
                self._store_columns([sum_], left_start, right_start)
            return
        result = self.room(rows, counts[1:], piece.size)
        for sum_ in sums:
            bank = self.bank(*self.shape(sum_), sum_)
            dims = dense([*sum_.left.taps[1:], piece.size], "f32")
            self.emitter.leave(self._taps_of(result, sum_.left, first), replace(bank, dims=(bank.dims[0], *dims)))
        lowest = [end - 1 for end in ends] if self.backwards else first
        self._send(result, self.place(left_start + piece.start, right_start + start, lowest))

    def _taps_of(self, result: Block, piece: Piece, first: Sequence[int]) -> Block:
        """The taps of ``piece`` of [o, taps..., n], whose first are ``first`` (with that of images)."""
        for axis, (at, begin) in enumerate(zip(piece.first[1:], first[1:], strict=True)):
            dim, count = 1 + axis, piece.taps[1 + axis]
            if not self.backwards:
                result = result.index(dim, Affine(at - begin), count)
                continue
            total, stride = result.dims[dim].size, result.dims[dim].stride
            result = result.moved((total - 1 - (at - begin)) * stride)
            result = result.of((*result.dims[:dim], Atom(count, -stride), *result.dims[dim + 1 :]))
        return result

    def _tile(self, sizes: Sequence[int], rows: int) -> Block:
        count = result_buffers(prod(sizes) * itemsize(self.out.dtype), self.emitter.builder.sizes)
        return self.tiles.tile(self.out.dtype, sizes, rows, "result", count)

    def _strides(self) -> list[int]:
        """Bytes between taps of each axis, and features of ``n``, in the result."""
        return [atom_of(self.out, dim).stride for dim in (*range(2, 1 + len(self.taps)), 0)]

    def room(self, rows: int, taps: Sequence[int], features: int) -> Block:
        """Room for results [``rows``, taps..., features], stored as they lie in HBM."""
        free = [*taps, features]
        strides = self._strides()
        order = sorted(range(len(free)), key=lambda dim: -abs(strides[dim]))
        stored = self._tile([free[dim] for dim in order], rows)
        return stored.select([0, *(1 + order.index(dim) for dim in range(len(free)))])

    def _send(self, result: Block, place: Affine) -> None:
        """Store [o, taps..., n]."""
        free = [Atom(atom.size, stride) for atom, stride in zip(result.dims[1:], self._strides(), strict=True)]
        order = [0, *sorted(range(1, len(free) + 1), key=lambda dim: -abs(free[dim - 1].stride))]
        partitions = Atom(result.dims[0].size, atom_of(self.out, 1).stride)
        target = Block(self.out.alloc, self.out.dtype, place, (partitions, *free))
        copy(self.emitter.builder, target.select(order), result.select(order), Stream.DMA_STORE)

    def take_diagonal(self, sum_: Sum, groups: int, result: Block) -> None:
        """Of a sum [o of all groups, taps..., n of all groups] what belongs to one group."""
        rows, columns = self.shape(sum_)
        left, right = self.kept
        taps = prod(sum_.left.taps)
        wide = self.tiles.tile("f32", [taps, groups, left], rows, "products", 2)
        self.emitter.leave(wide.of((wide.dims[0], Atom(columns, 4))), self.bank(rows, columns, sum_))
        steps = [1, 0, -right, 0]
        if right == 1:
            tests = [("is_equal", [0.0, 0, *steps])]
        else:
            tests = [("is_ge", [0.0, 0, *steps]), ("is_ge", [0.0, right - 1, *(-step for step in steps)])]
        for test, imm in tests:
            self.emitter.builder.emit("affine_select", Stream.GPSIMD, [wide], [wide], [test], imm)
        target = self._taps_of(result, sum_.left, [0 for _ in self.taps])
        sizes = sum_.left.taps[1:]
        split = wide.of((wide.dims[0], *dense([*sizes, groups, left], "f32")))
        by_group = split.select([*range(1 + len(sizes)), 2 + len(sizes), 1 + len(sizes)])
        self._add_groups(target, by_group)

    @cached_property
    def _diagonals(self) -> Diagonals:
        return Diagonals(self.emitter, self.tiles)

    def store_stacked(self, part: Sequence[Sum], right_start: int) -> None:
        """Of sums [(taps, groups), groups], the taps of one feature for each group."""
        taken: list[tuple[list[Sum], list[Block]]] = []
        for (_, groups), same in groupby(part, lambda sum_: sum_.right):
            sums = list(same)
            banks = [(sum_, self.bank(*self.shape(sum_), sum_)) for sum_ in sums]
            taken.append((sums, self._diagonals.take(banks, groups)))
            # Vector takes the next ones while the DMA moves these
            for before in taken[-2:-1]:
                self._store_taps(*before, right_start)
        self._store_taps(*taken[-1], right_start)

    def _store_taps(self, sums: Sequence[Sum], moved: Sequence[Block], right_start: int) -> None:
        """``moved``: [groups, taps..., 1] of each sum."""
        (start, groups), none = sums[0].right, [0 for _ in self.taps]
        result = self.room(groups, [tap.count for tap in self.taps[1:]], 1)
        for sum_, taps in zip(sums, moved, strict=True):
            self.emitter.copy(self._taps_of(result, sum_.left, none), taps)
        self.send_packed(result, self.place(0, right_start + start, none))

    def _add_groups(self, target: Block, source: Block) -> None:
        """``target`` [o, taps..., n] from [o, taps..., n, groups]."""
        outer = merge_free([target, source.of(source.dims[:-1])])
        if len(outer[0].dims) > MAX_FREE_DIMS:
            for index in range(target.dims[1].size):
                self._add_groups(target.index(1, Affine(index)), source.index(1, Affine(index)))
            return
        reduced = outer[1].of((*outer[1].dims, source.dims[-1]))
        self.emitter.builder.emit("tensor_reduce", Stream.VECTOR, [outer[0]], [reduced], ["add"])

    def send_packed(self, result: Block, place: Affine) -> None:
        """Store [o, taps..., n]; where ``o`` are neighbours, transposed."""
        strides = self._strides()
        order = sorted(range(len(strides)), key=lambda dim: -abs(strides[dim]))
        free = [Atom(result.dims[1 + dim].size, strides[dim]) for dim in order]
        along = coalesce(tuple(atom for atom in free if atom.size > 1))
        rows = result.dims[0].size
        width = itemsize(self.out.dtype)
        if atom_of(self.out, 1).stride != width or len(along) != 1 or rows < FEW_NEIGHBOURS:
            self._send(result, place)
            return
        flat = result.of((result.dims[0], Atom(along[0].size, width)))
        for start, size in even(along[0].size, self.rows):
            goal = self.tiles.tile(self.out.dtype, [rows], size, "transposed result", 2)
            for plane, part, byte in self.turner.carriers(flat.index(1, Affine(start), size)):
                one = plane.of((plane.dims[0], Atom(1, 0), plane.dims[1]))
                target = part_of(goal, part, byte)
                self.turner.turn(one, target.of((target.dims[0], Atom(1, 0), target.dims[1])))
            dims = (Atom(size, along[0].stride), Atom(rows, width))
            target = Block(self.out.alloc, self.out.dtype, place + start * along[0].stride, dims)
            copy(self.emitter.builder, target, goal, Stream.DMA_STORE)

    def store_unmet(self) -> None:
        """Zeros where the taps meet padding alone."""
        met = [range(tap.first, tap.first + tap.step * tap.count, tap.step) for tap in self.taps[1:]]
        unmet = [
            index
            for index in product(*(range(size) for size in self.out.shape[2:]))
            if not all(at in places for at, places in zip(index, met, strict=True))
        ]
        if not unmet:
            return
        axes = (1, 0) if self.columns_are_left else (0, 1)
        features = self.kept[0], self.kept[1] * self.groups
        rows, columns = (features[axis] for axis in axes)
        row, column = (atom_of(self.out, axis).stride for axis in axes)
        wide, high = min(columns, self.columns), min(rows, self.rows)
        zeros = self.tiles.tile(self.out.dtype, [wide], high, "no result", 1)
        engine = Stream.VECTOR if self.out.dtype in FLOATS else Stream.GPSIMD
        self.emitter.over("memset", engine, [zeros], [], imm=[0.0])
        for index in unmet:
            offset = self.out.start
            for axis, at in enumerate(index):
                offset += at * atom_of(self.out, 2 + axis).stride
            for (start, partitions), (first, wide) in product(even(rows, self.rows), even(columns, self.columns)):
                dims = (Atom(partitions, row), Atom(wide, column))
                target = Block(self.out.alloc, self.out.dtype, offset + (start * row + first * column), dims)
                source = replace(zeros, dims=(Atom(partitions, 1, True), Atom(wide, itemsize(self.out.dtype))))
                copy(self.emitter.builder, target, source, Stream.DMA_STORE)
