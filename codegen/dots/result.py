"""The result of a contraction: sums in PSUM, what is added to them, and where each part of the result is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from neuronx_cc.codegen.dots.budget import RESULT_BUFFERS
from neuronx_cc.codegen.dots.plan import strided
from neuronx_cc.codegen.dots.stage import DotStaging, batch_start
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring
from neuronx_cc.codegen.emission.tiles import dense, tile_in
from neuronx_cc.codegen.emission.views import Atom, View, align
from neuronx_cc.codegen.maps.plan import is_given
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import NUMPY_DTYPE


@dataclass(frozen=True, slots=True)
class Part:
    """Rows and columns of the result."""

    batch: list[Affine]
    m_at: dict[int, Affine]
    """Where the block of rows begins, along each dim of the rows."""
    n_at: dict[int, Affine]
    rows: int
    columns: int
    m_offset: Affine = field(default_factory=Affine)
    """From the beginning of the block to the first row."""
    n_offset: Affine = field(default_factory=Affine)

    def cut_rows(self, offset: Affine, rows: int) -> Part:
        """``rows`` of these, from ``offset`` on."""
        return replace(self, m_offset=self.m_offset + offset, rows=rows)

    def cut_columns(self, offset: Affine, columns: int) -> Part:
        """``columns`` of these, from ``offset`` on."""
        return replace(self, n_offset=self.n_offset + offset, columns=columns)


class DotResult(DotStaging):
    """Writes the result part by part."""

    acc: Ring
    """Banks of PSUM for the sums."""
    rows: Block | None = None
    """All columns of the results of the current batch index, where they are stored together."""
    bias_rows: Block | None = None
    """The row that TensorE adds to the sums, as rows whose sum it is."""

    def _load_bias(self) -> None:
        """The whole row of the bias in the order of the refined n dims: FP32 on partition 0, or narrow parts of it."""
        if self.bias is None:
            return
        literal = self.context.literal(self.bias)
        view = self.context.hbm(self.bias) if literal is None else literal[0]
        free = len(self.n_dims)
        view = replace(view, dims=view.dims[-free:])
        space = align([view, replace(self.out, dims=self.out.dims[-free:])], view.shape)
        assert space is not None, "the row aligns with the result"
        total = prod(space.sizes)
        parts = None
        if literal is not None:
            parts = narrow_parts(strided(literal[1], view.offset, space.atoms[0]).reshape(-1))
        if parts is not None:
            dtype, terms = "bf16", len(parts)
            home = self.context.constant(parts, dtype, f"{hlo.loc_of(self.bias).name}.parts")
            rows = (Atom(terms, 2 * total), *dense(space.sizes, dtype))
            source = Block(home.alloc, dtype, Affine(home.offset), rows)
        else:
            dtype, terms = "f32", 1
            source = Block(view.alloc, view.dtype, Affine(view.offset), (Atom(1, 0), *space.atoms[0]))
            if literal is not None:
                home = self.context.homes_of_constant(self.bias)
                source = replace(source, alloc=home.alloc, offset=source.offset + home.offset)
        self.context.ones(1, dtype, terms)
        if self.bias_whole:
            self.bias_rows = self._dense_tile(dtype, [total], terms, "bias", 1)
        else:
            row = self.context.own_hbm(self.result, hlo.Shape(dtype, (terms, total)))
            self.bias_rows = Block(
                row.alloc, dtype, row.start, (row.dims[0] or (Atom(1, 0),))[:1] + dense([total], dtype)
            )
        target = self.bias_rows.of((self.bias_rows.dims[0], *dense(space.sizes, dtype)))
        copy(self.builder, target, source, Stream.DMA_WEIGHT)

    def _add_bias(self, bank: Block, part: Part) -> None:
        """Accumulate ones[rows] x bias[columns] into a PSUM tile."""
        if self.bias_rows is None:
            return
        position, stride = Affine(), 1
        for dim in reversed(range(len(self.n_sizes))):
            position = position + part.n_at[dim] * stride
            if dim == self.n_dim:
                position = position + part.n_offset * stride
                step = stride
            stride *= self.n_sizes[dim]
        lanes, along = self.bias_rows.dims
        row = replace(
            self.bias_rows,
            offset=self.bias_rows.offset + position * along.stride,
            dims=(lanes, Atom(part.columns, along.stride * step if self.n_sizes else along.stride)),
        )
        if not self.bias_whole:
            tile = self._dense_tile(row.dtype, [part.columns], lanes.size, "bias", 2)
            copy(self.builder, tile, row, Stream.DMA_WEIGHT)
            row = tile
        ones = self.context.ones(part.rows, row.dtype, lanes.size)
        self.builder.emit("load_stationary", Stream.TENSOR, [], [ones])
        self.builder.emit("multiply_moving", Stream.TENSOR, [bank], [row], flags=["accumulate"])

    def _bank(self, rows: int, columns: int) -> Block:
        """FP32 room for the sums of a tile [rows, columns]."""
        return tile_in(self.builder, self.acc, [columns], "f32", rows)

    def _target(self, part: Part) -> Block:
        """Where a part of the result is written."""
        if self.rows is None:
            return self._part(self.out, (self.out_batch, self.out_m, self.out_n), part)
        kept = replace(self.out, alloc=self.rows.alloc, offset=self.rows.offset.const, terms=self.rows.offset.terms)
        lanes = [Atom(atom.size, 1, True) for atom in self.out_m]
        return self._part(kept, ([], lanes, self.out_n), replace(part, batch=[]))

    def _addend(self, at: Part) -> Block | None:
        """What is added to a part of the result: where it lies on chip, or loaded."""
        if self.addend is None:
            return None
        source = self._part(self.add, (self.add_batch, self.add_m, self.add_n), at)
        if self.add.in_sbuf:
            return source
        tile = self._dense_tile(self.add.dtype, [at.columns], at.rows, "addend", RESULT_BUFFERS)
        copy(self.builder, tile, source, Stream.DMA_WEIGHT if is_given(self.addend) else Stream.DMA_LOAD)
        return tile

    def _finish(self, result: Block, sums: Block, addend: Block | None) -> None:
        """``result = sums``, with what the kernel adds."""
        if addend is None:
            self.emitter.leave(result, sums)
        else:
            self.emitter.over("tensor_tensor", Stream.VECTOR, [result], [sums, addend], alu=["add"])

    def _part(self, view: View, atoms: tuple[Sequence[Atom], Sequence[Atom], Sequence[Atom]], at: Part) -> Block:
        """Rows and columns of an array with the dims of the result."""
        offset = batch_start(view, atoms[0], at.batch)
        lanes = Atom(at.rows, 1 if view.in_sbuf else 0, view.in_sbuf)
        for dim, atom in enumerate(atoms[1]):
            if atom.partition:
                continue
            offset = offset + at.m_at[dim] * atom.stride
            if dim == self.m_dim:
                offset = offset + at.m_offset * atom.stride
                lanes = Atom(at.rows, atom.stride)
        free = Atom(at.columns, 0)
        for dim, atom in enumerate(atoms[2]):
            offset = offset + at.n_at[dim] * atom.stride
            if dim == self.n_dim:
                offset = offset + at.n_offset * atom.stride
                free = Atom(at.columns, atom.stride)
        if view.in_sbuf and not lanes.partition:
            raise AssertionError("an on-chip result has its rows on the partitions")
        return Block(view.alloc, view.dtype, offset, (lanes, free))


def narrow_parts(row: np.ndarray) -> np.ndarray | None:
    """Three rows of bf16 whose sum is an FP32 row, exactly, or None: TensorE adds them in a quarter of the time."""
    bf16 = NUMPY_DTYPE["bf16"]
    parts, left = np.empty((3, len(row)), bf16), row.astype(np.float32)
    with np.errstate(all="ignore"):
        for part in parts:
            part[:] = left.astype(bf16)
            left = left - part.astype(np.float32)
    return None if left.any() else parts
