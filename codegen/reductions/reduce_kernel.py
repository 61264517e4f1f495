"""Reductions that no map kernel takes: over leading dims, over everything, over rows longer than a tile.

Reduced elements lie on the partitions (and in the free dim where they are contiguous); blocks are
accumulated element by element, then folded along the free dim and last across the partitions.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod

from neuronx_cc.codegen.context import Context, squeezed
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter, Splat
from neuronx_cc.codegen.emission.pace import tile_columns
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.codegen.emission.views import Atom, View, align
from neuronx_cc.codegen.maps import bits, elementwise
from neuronx_cc.codegen.maps.plan import is_given
from neuronx_cc.codegen.maps.row_reduction import reduce_rows
from neuronx_cc.codegen.movement.concatenate_kernel import fill
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, Stage
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.analysis.values import identity_of

BUFFERS = 2
"""Of sums and what becomes of them: the next block of kept columns need not wait for this one."""
BUFFERED = 3
"""Tiles of the operand that are under way at a time."""
ROOM = 16
"""Tiles of sums, inputs and results that SBUF has room for."""


def lower(context: Context, op: hlo.ReduceOp, step: int) -> None:
    """Emit a single-operand reduction with a simple combiner; EVRF001 for other forms."""
    del step
    opcode = context.combiners.get(op.to_apply.data[0])
    if len(op.operands) != 2 or opcode is None:
        raise CompileError(
            "EVRF001",
            "reduce with this computation has no code generation",
            "use sum, product, min, max, and, or, argmin or argmax",
            op.loc,
        )
    target = context.new_hbm(op.result)
    context.homes[op.result] = [target]
    operand, init = op.operands
    shape = hlo.shape_of(operand)
    if shape.size == 0:
        fill(context, target, init)
        return
    _Reduce(context, op, opcode, target).emit()


class _Reduce:
    def __init__(self, context: Context, op: hlo.ReduceOp, opcode: str, target: View) -> None:
        self.context = context
        self.builder = context.builder
        self.op = op
        self.opcode = opcode
        self.dtype = op.shape.dtype
        self.acc_dtype = "f32" if self.dtype in FLOATS else self.dtype
        operand = op.operands[0]
        rank = hlo.shape_of(operand).rank
        folded = list(op.dimensions.data)
        kept = [axis for axis in range(rank) if axis not in folded]
        view = context.hbm(operand).transpose([*kept, *folded])
        self.stream = Stream.DMA_WEIGHT if is_given(operand) else Stream.DMA_LOAD
        kept_view = squeezed(replace(view, dims=view.dims[: len(kept)]))
        folded_view = squeezed(replace(view, dims=view.dims[len(kept) :]))
        kept_space = align([kept_view, squeezed(target)], kept_view.shape)
        folded_space = align([folded_view], folded_view.shape)
        assert kept_space is not None, "HBM views align"
        assert folded_space is not None, "HBM views align"
        self.view = view
        self.target = target
        self.kept = kept_space.atoms[0]
        self.kept_out = kept_space.atoms[1]
        self.folded = sorted(folded_space.atoms[0], key=lambda atom: -abs(atom.stride))
        self.pool = TilePool(self.builder, "reduction")
        self.emitter = Emitter(self.builder, self._scratch)

    def emit(self) -> None:
        """Loop over kept elements; for each block accumulate, fold, store."""
        size = itemsize(self.view.dtype)
        offset, out = Affine(self.view.offset), Affine(self.target.offset)
        column = next((dim for dim, atom in enumerate(self.kept) if atom.stride == size), None)
        if column is None and self.kept and not any(abs(atom.stride) == size for atom in self.folded):
            column = len(self.kept) - 1
        others = [dim for dim in range(len(self.kept)) if dim != column]
        self._kept_loops(others, column, offset, out)
        self.pool.free()

    def _kept_loops(self, others: list[int], column: int | None, offset: Affine, out: Affine) -> None:
        if others:
            dim = others[0]
            with self.builder.loop(self.kept[dim].size) as index:
                self._kept_loops(
                    others[1:], column, offset + index * self.kept[dim].stride, out + index * self.kept_out[dim].stride
                )
            return
        if column is None:
            self._block(offset, out, Atom(1, 0), Atom(1, 0))
            return
        atom, out_atom = self.kept[column], self.kept_out[column]
        folded = prod(each.size for each in self.folded)
        for start, tiles, size in self.builder.tiles(atom.size, self._columns(atom.size, folded)):
            with self.builder.loop(tiles) as index:
                at = index * size + start
                self._block(
                    offset + at * atom.stride,
                    out + at * out_atom.stride,
                    replace(atom, size=size),
                    replace(out_atom, size=size),
                )

    def _columns(self, size: int, folded: int) -> int:
        """Elements a partition of a tile, of which ``size`` are kept or lie side by side, ``folded`` times."""
        timing, width = self.builder.timing, itemsize(self.view.dtype)
        partitions = min(timing.sizes.partitions, folded)

        def stages(count: int) -> list[Stage]:
            added = timing.engine("tensor_tensor", Stream.VECTOR, count, ins=(F32, F32))
            return [timing.moved(partitions * count * width, count * width), timing.done(added, Stream.VECTOR)]

        most = min(size, self.builder.sbuf.largest_gap() // (ROOM * 4))
        return tile_columns(timing, max(1, size) * ceil(folded / partitions), max(1, most), BUFFERED, stages)

    def _block(self, offset: Affine, out: Affine, columns: Atom, out_columns: Atom) -> None:
        """Reduce everything for one block of kept columns."""
        size = itemsize(self.view.dtype)
        folded = list(self.folded)
        parts: list[tuple[list[Atom], int, Atom]] = [(folded, 0, Atom(1, 0))]
        if folded and abs(folded[-1].stride) == size and columns.size == 1:
            *outer, last = folded
            partitions = self.builder.sizes.partitions
            inner = _run_length(last.size, partitions, self._columns(last.size // partitions, partitions))
            runs, rest = divmod(last.size, inner)
            blocks = [Atom(runs, last.stride * inner)] if runs > 1 else []
            parts = [([*outer, *blocks], 0, Atom(inner, last.stride))]
            if rest:
                parts.append((outer, runs * inner * last.stride, Atom(rest, last.stride)))
        lanes = max((min(self.builder.sizes.partitions, atom.size) for dims, _, _ in parts for atom in dims), default=1)
        run = parts[0][2].size
        acc = self._tile([columns.size, run], self.acc_dtype, lanes, "sums", BUFFERS)
        neutral = identity_of(self.opcode, self.acc_dtype)
        assert neutral is not None, "simple combiners have an identity"
        engine = Stream.VECTOR if self.acc_dtype in FLOATS else Stream.GPSIMD
        self.builder.emit("memset", engine, [acc], [], imm=[neutral + 0])  # sums start from +0, not from -0
        for dims, shift, piece in parts:
            dims = list(dims)
            lane = dims.pop(max(range(len(dims)), key=lambda dim: dims[dim].size)) if dims else Atom(1, 0)
            self._folded_loops(dims, offset + shift, lane, columns, piece, acc.index(2, Affine(0), piece.size))
        row = acc.index(2, Affine(0))
        if run > 1:
            row = self._tile([columns.size], self.acc_dtype, lanes, "row", BUFFERS)
            reduce_rows(self.emitter, self.opcode, row, acc)
        total = self._across(row, lanes, columns.size)
        self._store(total, out, out_columns)

    @staticmethod
    def _head(block: Block, parts: int) -> Block:
        return replace(block, dims=(Atom(parts, 1, True), *block.dims[1:]))

    def _folded_loops(
        self, folded: list[Atom], offset: Affine, lanes: Atom, columns: Atom, run: Atom, acc: Block
    ) -> None:
        if folded:
            with self.builder.loop(folded[0].size) as index:
                self._folded_loops(folded[1:], offset + index * folded[0].stride, lanes, columns, run, acc)
            return
        for start, tiles, size in self.builder.tiles(lanes.size, self.builder.sizes.partitions):
            with self.builder.loop(tiles) as index:
                at = offset + (index * size + start) * lanes.stride
                tile = self._tile([columns.size, run.size], self.view.dtype, size, "input", BUFFERED)
                source = Block(self.view.alloc, self.view.dtype, at, (replace(lanes, size=size), columns, run))
                copy(self.builder, tile, source, self.stream)
                part = self._head(acc, size)
                elementwise.emit_binary(self.emitter, self.opcode, self.acc_dtype, part, part, tile)

    def _across(self, row: Block, parts: int, columns: int) -> Block:
        """Fold the partitions: a product with ones for float sums, GpSimd for the rest."""
        if parts == 1:
            return row
        total = self._tile([columns], self.acc_dtype, 1, "total", BUFFERS)
        if self.opcode == "add" and self.acc_dtype == "f32":
            ones = self._tile([1], "f32", parts, "ones", 1)
            self.builder.emit("memset", Stream.VECTOR, [ones], [], imm=[1.0])
            self.builder.emit("load_stationary", Stream.TENSOR, [], [ones])
            bank = self.pool.psum(2, "column sums")
            most = self.builder.sizes.bank_columns
            for start in range(0, columns, most):
                width = min(most, columns - start)
                slot = tile_in(self.builder, bank, [width], "f32")
                self.builder.emit("multiply_moving", Stream.TENSOR, [slot], [row.index(1, Affine(start), width)])
                self.emitter.copy(total.index(1, Affine(start), width), slot)
            return total
        if self.acc_dtype == "pred":
            name = bits.logical_alu(self.opcode)
        else:
            name = {**elementwise.ARITHMETIC, **bits.BITWISE}[self.opcode]
        self.builder.emit("partition_reduce", Stream.GPSIMD, [total], [row], [name])
        return total

    def _store(self, total: Block, out: Affine, out_columns: Atom) -> None:
        init = self.op.operands[1]
        constant = self.context.splat(init)
        columns = total.dims[1].size
        if constant is not None:
            if constant != identity_of(self.opcode, self.acc_dtype):
                elementwise.emit_binary(
                    self.emitter, self.opcode, self.acc_dtype, total, total, Splat(constant, self.acc_dtype)
                )
        else:
            start = self._tile([1], hlo.shape_of(init).dtype, 1, "init", 1)
            home = self.context.hbm(init)
            source = Block(home.alloc, home.dtype, Affine(home.offset), (Atom(1, 0), Atom(1, 0)))
            self.builder.emit("dma_copy", Stream.DMA_LOAD, [start], [source])
            spread = replace(start, dims=(start.dims[0], Atom(columns, 0)))
            elementwise.emit_binary(self.emitter, self.opcode, self.acc_dtype, total, total, spread)
        if self.dtype != self.acc_dtype:
            cast = self._tile([columns], self.dtype, 1, "cast", BUFFERS)
            self.emitter.copy(cast, total)
            total = cast
        target = Block(self.target.alloc, self.target.dtype, out, (Atom(1, 0), out_columns))
        copy(self.builder, target, total, Stream.DMA_STORE)

    def _tile(self, sizes: list[int], dtype: str, lanes: int, name: str, count: int) -> Block:
        ring = self.pool.ring(prod(sizes) * itemsize(dtype), count, name)
        return tile_in(self.builder, ring, sizes, dtype, lanes)

    def _scratch(self, like: Block, dtype: str) -> Block:
        return self._tile([atom.size for atom in like.dims[1:]], dtype, like.dims[0].size, "scratch", 1)


def _run_length(size: int, partitions: int, most: int) -> int:
    """Free elements of a contiguous run of ``size``, at most ``most``, so that the rest of it fills the partitions."""
    most = min(most, size // partitions)
    for inner in range(max(1, most), 0, -1):
        if size % inner == 0 and inner >= most // 2:
            return inner
    return max(1, most)
