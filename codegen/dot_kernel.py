"""Contractions on TensorE.

``out[b, m, n] = sum_k lhs[b, m, k] * rhs[b, n, k]``: the array wants k on the partitions of both
operands; lhs tiles are stationary, rhs tiles stream through, and m lands on the partitions of PSUM.
An operand with k on its partitions (in SBUF, or loaded so from HBM) is used as it is; one whose rows
lie on the partitions is transposed by TensorE, 128 x 128 at a time. Blocks of both operands are staged
in SBUF; partial sums stay in PSUM over all of k, or are added up in SBUF where k needs several blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from neuronx_cc.codegen.builder import PSUM_BANK, Affine, Block, Builder, Ring
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.elementwise import Emitter
from neuronx_cc.codegen.graph import Kernel, is_load_cast, takes_row
from neuronx_cc.codegen.map_plan import RESIDENT_STEPS, Lanes, is_given, lane_divisor, lanes_of, resident_view
from neuronx_cc.codegen.tiles import dense
from neuronx_cc.codegen.transfer import copy
from neuronx_cc.codegen.views import Atom, View, align
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import NUMPY_DTYPE, itemsize

PE_DTYPES = frozenset(["f32", "bf16", "f16", "f8e4m3", "f8e5m2", "f8e3m4"])
TILE_ROWS = 128
TILE_COLUMNS = 512
RESULT_COLUMNS = 2048
"""Columns of a result row that are stored together."""
RESULT_BUFFERS = 3
LONG_RUN = 2400
"""Bytes of a DMA run that costs as much as a shorter one (hardware sheet 1.8.2)."""
TRANSPOSE_BYTES = 0.15
"""Cost of transposing a byte on TensorE at one cycle a row, in bytes of DMA."""


@dataclass(slots=True)
class Side:
    """One operand: its view with dims [batch..., free..., contracted...], refined class by class."""

    value: hlo.SSAValue
    view: View
    dtype: str
    """Element type on TensorE."""
    batch: list[Atom]
    free: list[Atom]
    contracted: list[Atom]
    data: np.ndarray | None = None
    """Bytes of a constant operand that is still to be laid out for this contraction."""
    laid_out: dict[tuple[int, int], View] = field(default_factory=dict)
    """(first row, rows of a block) -> the constant's blocks."""

    @property
    def on_chip(self) -> bool:
        return self.view.in_sbuf

    @property
    def rows_on_lanes(self) -> bool:
        """Whether the free dim is (on chip) or should be (HBM: k is contiguous) on the partitions."""
        if self.on_chip:
            return any(atom.partition for atom in self.free)
        if self.data is not None:
            return False
        inner = [atom for atom in self.contracted if atom.stride == itemsize(self.view.dtype) and atom.size > 1]
        return bool(inner) or not self.free


@dataclass(slots=True)
class Segment:
    """A part of k: ``lanes`` elements on the partitions, in ``chunks`` tuples of the other k dims."""

    start: int
    """First index along the lane dim (only cut when k is one dim)."""
    lanes: int
    outer: int
    """Steps of the lane dim around the lanes."""


def lower(context: Context, kernel: Kernel, step: int) -> None:
    """Emit the contraction (and the bias that the kernel adds to it) and give the result a home."""
    op = kernel.ops[0]
    assert isinstance(op, hlo.DotOp)
    bias = None
    if len(kernel.ops) > 1:
        bias = takes_row(Kernel(0, [op]), kernel.ops[1])
        assert bias is not None, "kernel formation found the row"
    _Dot(context, op, kernel.ops[-1].results[0], bias, step).emit()


class _Dot:
    def __init__(
        self, context: Context, op: hlo.DotOp, result: hlo.SSAValue, bias: hlo.SSAValue | None, step: int
    ) -> None:
        self.result = result
        self.bias = bias
        self.context = context
        self.builder: Builder = context.builder
        self.op = op
        self.step = step
        dims = op.dims.data
        lhs_shape, rhs_shape = hlo.shape_of(op.lhs), hlo.shape_of(op.rhs)
        self.lhs_order = _order(lhs_shape.rank, dims.lhs_batch, dims.lhs_contracting)
        self.rhs_order = _order(rhs_shape.rank, dims.rhs_batch, dims.rhs_contracting)
        self.batch_dims = [lhs_shape.dims[axis] for axis in dims.lhs_batch]
        self.m_dims = [lhs_shape.dims[axis] for axis in self.lhs_order[1]]
        self.n_dims = [rhs_shape.dims[axis] for axis in self.rhs_order[1]]
        self.k_dims = [lhs_shape.dims[axis] for axis in dims.lhs_contracting]
        self.pe_dtype = _pe_dtype(self._source(op.lhs)[1], self._source(op.rhs)[1])
        self.tf32 = op.algorithm is not None and "tf32" in op.algorithm.data
        self.rings: list[Ring] = []
        self.psum_rings: list[Ring] = []
        self.emitter = Emitter(self.builder, lambda like, dtype: like)

    # ---- operands ---------------------------------------------------------------------------------------------

    def _source(self, value: hlo.SSAValue) -> tuple[hlo.SSAValue, str]:
        """The value to read and the type it has for the contraction (a cast of given data happens on load)."""
        dtype = hlo.shape_of(value).dtype
        while isinstance(value, hlo.OpResult) and is_load_cast(value.op):
            value = value.op.operands[0]
        return value, dtype

    def _views(self, value: hlo.SSAValue, order: tuple[list[int], list[int], list[int]]) -> list[View]:
        permutation = [*order[0], *order[1], *order[2]]
        return [view.transpose(permutation) for view in self.context.views(value)]

    def _classes(self, view: View, free: int) -> tuple[View, View, View]:
        batch = len(self.batch_dims)
        parts = (view.dims[:batch], view.dims[batch : batch + free], view.dims[batch + free :])
        return tuple(replace(view, dims=part) for part in parts)  # type: ignore[return-value]

    def _choose(self) -> tuple[View, View]:
        """Homes of both operands whose partitions TensorE can use."""
        lhs_value, _ = self._source(self.op.lhs)
        rhs_value, _ = self._source(self.op.rhs)
        chosen = []
        self.data: dict[hlo.SSAValue, np.ndarray] = {}
        for value, order, free in (
            (lhs_value, self.lhs_order, len(self.m_dims)),
            (rhs_value, self.rhs_order, len(self.n_dims)),
        ):
            literal = self.context.literal(value)
            if literal is not None:
                self.data[value] = literal[1]
                chosen.append(literal[0].transpose([*order[0], *order[1], *order[2]]))
                continue
            for view in self._views(value, order):
                batch, _, _ = self._classes(view, free)
                if not view.in_sbuf or (batch.partition_atom is None and view.partition_atom is not None):
                    chosen.append(view)
                    break
            else:
                chosen.append(self.context.hbm(value).transpose([*order[0], *order[1], *order[2]]))
        lhs, rhs = chosen
        k_lhs = lanes_of(self._classes(lhs, len(self.m_dims))[2]) if lhs.in_sbuf else None
        k_rhs = lanes_of(self._classes(rhs, len(self.n_dims))[2]) if rhs.in_sbuf else None
        if k_lhs is not None and k_rhs is not None and k_lhs != k_rhs:
            lhs = self.context.hbm(lhs_value).transpose([*self.lhs_order[0], *self.lhs_order[1], *self.lhs_order[2]])
        return lhs, rhs

    # ---- plan -------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        if self.op.shape.size == 0:
            self.context.homes[self.result] = [self.context.new_hbm(self.result)]
            return
        lhs, rhs = self._choose()
        for dtype in sorted({self.pe_dtype, *(view.dtype for view in (lhs, rhs) if view.dtype in PE_DTYPES)}):
            self.context.identity(dtype)
        out = self._choose_output(lhs)
        self.context.homes[self.result] = [out]
        for attempt in range(3):
            if self._refine(lhs, rhs, out):
                break
            lhs = self._dense(self.op.lhs, self.lhs_order)
            if attempt:
                rhs = self._dense(self.op.rhs, self.rhs_order)
        else:
            raise CompileError("IDOT001", "operand layouts of the dot do not nest", "report this", self.op.loc)
        self._run()
        for ring in self.rings:
            self.builder.sbuf.free(ring.alloc)
        for ring in self.psum_rings:
            self.builder.psum.free(ring.alloc)

    def _dense(self, value: hlo.SSAValue, order: tuple[list[int], list[int], list[int]]) -> View:
        source = self._source(value)[0]
        self.data.pop(source, None)
        return self.context.dense(source).transpose([*order[0], *order[1], *order[2]])

    def _choose_output(self, lhs: View) -> View:
        """Resident with rows of lhs on the partitions where that fits, else HBM."""
        context, op = self.context, self.op
        dims = op.shape.dims
        batch, free = len(self.batch_dims), len(self.m_dims)
        m_view = self._classes(lhs, free)[1]
        lanes = lanes_of(m_view) if lhs.in_sbuf else None
        if lanes is None and free:
            axis = max(range(free), key=lambda axis: (lane_divisor(self.m_dims[axis]), axis))
            lanes = Lanes(axis, lane_divisor(self.m_dims[axis]), 1)
        only_result = self.result in context.outputs and context.last_use(self.result) <= self.step
        if lanes is not None and lanes.size > 1 and not only_result and (lanes.size >= 32 or prod(dims) <= 8192):
            lanes = replace(lanes, axis=lanes.axis + batch)
            per_partition = prod(dims) // lanes.size * itemsize(op.shape.dtype)
            near = context.last_use(self.result) - self.step <= RESIDENT_STEPS
            alloc = context.new_resident(self.result, per_partition) if near else None
            if alloc is not None:
                return resident_view(alloc, op.shape.dtype, dims, lanes)
        return context.new_hbm(self.result)

    def _refine(self, lhs: View, rhs: View, out: View) -> bool:
        batch, free = len(self.batch_dims), len(self.m_dims)
        lhs_b, lhs_m, lhs_k = self._classes(lhs, free)
        rhs_b, rhs_n, rhs_k = self._classes(rhs, len(self.n_dims))
        out_b = replace(out, dims=out.dims[:batch])
        out_m = replace(out, dims=out.dims[batch : batch + free])
        out_n = replace(out, dims=out.dims[batch + free :])
        b = align([lhs_b, rhs_b, out_b], self.batch_dims)
        m = align([lhs_m, out_m], self.m_dims)
        n = align([rhs_n, out_n], self.n_dims)
        k = align([lhs_k, rhs_k], self.k_dims)
        if b is None or m is None or n is None or k is None:
            return False
        if any(atom.partition for atoms in n.atoms[1:] for atom in atoms) or any(a.partition for a in b.atoms[2]):
            return False
        self.b_sizes, self.m_sizes, self.n_sizes, self.k_sizes = b.sizes, m.sizes, n.sizes, k.sizes
        left, right = self._source(self.op.lhs)[0], self._source(self.op.rhs)[0]
        literal = self.data.get
        self.lhs = Side(left, lhs, self.pe_dtype, b.atoms[0], m.atoms[0], k.atoms[0], literal(left))
        self.rhs = Side(right, rhs, self.pe_dtype, b.atoms[1], n.atoms[0], k.atoms[1], literal(right))
        self.out = out
        self.out_batch, self.out_m, self.out_n = b.atoms[2], m.atoms[1], n.atoms[1]
        return self._lane_dims()

    def _lane_dims(self) -> bool:
        """Pick the dims that are tiled: k on partitions, m on the output's partitions, n along the free dim."""
        marked = [
            dim
            for dim in range(len(self.k_sizes))
            if self.lhs.contracted[dim].partition or self.rhs.contracted[dim].partition
        ]
        self.k_dim = marked[0] if marked else -1
        self.segments: list[Segment] = []
        if marked:
            self.segments = [Segment(0, self.k_sizes[self.k_dim], 1)]
        elif self.k_sizes:
            self.k_dim = max(range(len(self.k_sizes)), key=lambda dim: (lane_divisor(self.k_sizes[dim]), dim))
            size = self.k_sizes[self.k_dim]
            lanes = lane_divisor(size)
            if lanes >= 64 or size <= 128 or len(self.k_sizes) > 1:
                self.segments = [Segment(0, lanes, size // lanes)]
            else:
                self.segments = [Segment(0, 128, size // 128)]
                if size % 128:
                    self.segments.append(Segment(size // 128 * 128, size % 128, 1))
        else:
            self.segments = [Segment(0, 1, 1)]
        out_lane = [dim for dim, atom in enumerate(self.out_m) if atom.partition]
        lhs_lane = [dim for dim, atom in enumerate(self.lhs.free) if atom.partition]
        if out_lane and lhs_lane and out_lane != lhs_lane:
            return False
        wanted = out_lane or lhs_lane
        self.m_dim = (
            wanted[0]
            if wanted
            else (max(range(len(self.m_sizes)), key=lambda d: self.m_sizes[d]) if self.m_sizes else -1)
        )
        rhs_lane = [dim for dim, atom in enumerate(self.rhs.free) if atom.partition]
        self.n_dim = (
            rhs_lane[0]
            if rhs_lane
            else (max(range(len(self.n_sizes)), key=lambda d: self.n_sizes[d]) if self.n_sizes else -1)
        )
        return True

    # ---- emission ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._budget()
        for side in (self.lhs, self.rhs):
            if side.data is not None and (self.accumulate_in_sbuf or len(self.segments) > 1):
                home = self.context.homes_of_constant(side.value)
                side.view = replace(side.view, alloc=home.alloc, offset=side.view.offset + home.offset)
                side.data = None
        self.acc = self._psum_ring(4)
        needs_transpose = self.lhs.rows_on_lanes or self.rhs.rows_on_lanes
        self.turn = self._psum_ring(4) if needs_transpose else None
        self._load_bias()
        self._batches([])

    def _load_bias(self) -> None:
        """The whole bias row on partition 0, FP32, in the order of the refined n dims."""
        self.bias_row: Block | None = None
        if self.bias is None:
            return
        self.context.ones(1)
        free = len(self.n_dims)
        view = self.context.hbm(self.bias)
        view = replace(view, dims=view.dims[-free:])
        space = align([view, replace(self.out, dims=self.out.dims[-free:])], view.shape)
        assert space is not None, "the row aligns with the result"
        total = prod(space.sizes)
        self.bias_row = self._dense_tile("f32", [total], 1, "bias", 1)
        atoms = (Atom(1, 0), *space.atoms[0])
        source = Block(view.alloc, view.dtype, Affine(view.offset), atoms)
        target = replace(self.bias_row, dims=(Atom(1, 1, True), *dense(space.sizes, "f32")))
        copy(self.builder, target, source, Stream.DMA_WEIGHT)

    def _add_bias(self, bank: Block, n_at: dict[int, Affine], n_offset: Affine, rows: int, columns: int) -> None:
        """Accumulate ones[rows] x bias[columns] into a PSUM tile."""
        if self.bias_row is None:
            return
        position, stride = Affine(), 1
        for dim in reversed(range(len(self.n_sizes))):
            position = position + n_at[dim] * stride
            if dim == self.n_dim:
                position = position + n_offset * stride
                step = stride
            stride *= self.n_sizes[dim]
        row = replace(
            self.bias_row,
            offset=self.bias_row.offset + position * 4,
            dims=(Atom(1, 1, True), Atom(columns, 4 * step if self.n_sizes else 4)),
        )
        self.builder.emit("load_stationary", Stream.TENSOR, [], [self.context.ones(rows)])
        self.builder.emit("multiply_moving", Stream.TENSOR, [bank], [row], flags=["accumulate"])

    def _budget(self) -> None:
        """Block sizes: k whole if possible; then the loop order and blocks that move and transpose least."""
        size = itemsize(self.pe_dtype)
        others = prod(count for dim, count in enumerate(self.k_sizes) if dim != self.k_dim)
        depth = max(1, others * max(segment.outer for segment in self.segments))
        lanes = max(segment.lanes for segment in self.segments)
        m_size = self.m_sizes[self.m_dim] if self.m_dim >= 0 else 1
        n_size = self.n_sizes[self.n_dim] if self.n_dim >= 0 else 1
        results = RESULT_BUFFERS * min(n_size, RESULT_COLUMNS) * itemsize(self.out.dtype)
        room = int(self.builder.sbuf.largest_gap() * 0.95) - (0 if self.out.in_sbuf else results)
        natural = 2 * lanes * size * sum(side.rows_on_lanes for side in (self.lhs, self.rhs))
        one = size * (2 * min(n_size, 128) + 2 * min(m_size, 128)) + natural
        self.k_block = depth if len(self.k_sizes) > 1 else max(1, min(depth, room // one))
        self.accumulate_in_sbuf = self.k_block < depth
        self.rhs_outside = False
        if self.accumulate_in_sbuf:
            # the sums take room too: two buffers of four rows of tiles
            room -= 2 * 4 * min(n_size, TILE_COLUMNS) * 4
            self.k_block = max(1, room // one)
            self.rhs_buffers = self.lhs_buffers = 2
            each = (room - natural * self.k_block) // (4 * self.k_block * size)
            self.m_block = min(_block(m_size, max(1, each), TILE_ROWS), 4 * TILE_ROWS)
            self.n_block = min(_block(n_size, max(1, each), TILE_COLUMNS), TILE_COLUMNS)
            self.builder.sbuf.make_room(room)
            return
        column = self.k_block * size
        room -= natural * self.k_block
        small_m = min(m_size, TILE_ROWS)
        # rhs inside: a large block of lhs stays while blocks of rhs stream by
        wide = max((room - small_m * column) // 3, column)
        n_inner = _block(n_size, min(wide, max(room // 5, TILE_COLUMNS * column)) // column, TILE_COLUMNS)
        m_outer, m_buffers = _outer_block(m_size, room - 3 * n_inner * column, column, TILE_ROWS)
        # rhs outside: the other way round
        m_inner = small_m
        n_outer, n_buffers = _outer_block(n_size, room - 3 * m_inner * column, column, TILE_COLUMNS)
        inside = self._traffic(self.lhs, m_size) + self._traffic(self.rhs, n_inner) * -(-m_size // m_outer)
        outside = self._traffic(self.rhs, n_outer) + self._traffic(self.lhs, m_size) * -(-n_size // n_outer)
        self.rhs_outside = outside < inside
        if self.rhs_outside:
            self.m_block, self.n_block, self.lhs_buffers, self.rhs_buffers = m_inner, n_outer, 3, n_buffers
        else:
            self.m_block, self.n_block, self.lhs_buffers, self.rhs_buffers = m_outer, n_inner, m_buffers, 3
        batches = prod(self.b_sizes)
        m_blocks = batches * prod(self.m_sizes) // m_size * -(-m_size // self.m_block)
        n_blocks = batches * prod(self.n_sizes) // n_size * -(-n_size // self.n_block)
        self.lhs_buffers = min(self.lhs_buffers, m_blocks * (n_blocks if self.rhs_outside else 1))
        self.rhs_buffers = min(self.rhs_buffers, n_blocks * (1 if self.rhs_outside else m_blocks))
        staged = (self.lhs_buffers * self.m_block + self.rhs_buffers * self.n_block) * column
        self.builder.sbuf.make_room(staged + natural * self.k_block + results)

    def _traffic(self, side: Side, block: int) -> float:
        """Relative cost of staging all of ``side`` once in blocks of ``block``: bytes by run length, and transposes."""
        if side.on_chip and not side.rows_on_lanes:
            return 0.0
        free = prod(self.m_sizes if side is self.lhs else self.n_sizes)
        nbytes = float(free * prod(self.k_sizes) * itemsize(side.view.dtype))
        if side.data is not None:
            return nbytes
        run = itemsize(side.view.dtype) * (prod(self.k_sizes) if side.rows_on_lanes else block)
        transposes = TRANSPOSE_BYTES * nbytes * (4 if side.dtype == "f32" else 1) if side.rows_on_lanes else 0.0
        return (0.0 if side.on_chip else nbytes * max(1.0, LONG_RUN / run)) + transposes

    def _psum_ring(self, banks: int) -> Ring:
        ring = self.builder.ring(self.builder.psum, PSUM_BANK, banks, "partial sums")
        self.psum_rings.append(ring)
        return ring

    def _ring(self, nbytes: int, count: int, name: str) -> Ring:
        ring = self.builder.ring(self.builder.sbuf, nbytes, count, name)
        self.rings.append(ring)
        return ring

    def _batches(self, batch: list[Affine]) -> None:
        if len(batch) < len(self.b_sizes):
            for index in self.builder.each(self.b_sizes[len(batch)], 16):
                self._batches([*batch, index])
            return
        whole: tuple[Affine | int, int | None] = (0, None)
        if self.accumulate_in_sbuf:
            for m_at, m_size in self._positions(self.m_sizes, self.m_dim, self.m_block):
                for n_at, n_size in self._positions(self.n_sizes, self.n_dim, self.n_block):
                    self._k_blocks(batch, m_at, m_size, n_at, n_size)
        elif self.rhs_outside:
            for n_at, n_size in self._positions(self.n_sizes, self.n_dim, self.n_block):
                rhs = self._stage(self.rhs, batch, n_at, self.n_dim, n_size, whole, "rhs")
                for m_at, m_size in self._positions(self.m_sizes, self.m_dim, self.m_block):
                    lhs = self._stage(self.lhs, batch, m_at, self.m_dim, m_size, whole, "lhs")
                    self._tiles(batch, m_at, m_size, n_at, n_size, lhs, rhs)
        else:
            for m_at, m_size in self._positions(self.m_sizes, self.m_dim, self.m_block):
                lhs = self._stage(self.lhs, batch, m_at, self.m_dim, m_size, whole, "lhs")
                for n_at, n_size in self._positions(self.n_sizes, self.n_dim, self.n_block):
                    rhs = self._stage(self.rhs, batch, n_at, self.n_dim, n_size, whole, "rhs")
                    self._tiles(batch, m_at, m_size, n_at, n_size, lhs, rhs)

    def _positions(
        self, sizes: Sequence[int], tile_dim: int, block: int, at: dict[int, Affine] | None = None
    ) -> Iterator[tuple[dict[int, Affine], int]]:
        """Loop over all dims of one side: the index of each, and the size of the block along ``tile_dim``."""
        at = at or {}
        left = [dim for dim in range(len(sizes)) if dim != tile_dim and dim not in at]
        if left:
            for index in self.builder.each(sizes[left[0]]):
                yield from self._positions(sizes, tile_dim, block, {**at, left[0]: index})
            return
        for start, tiles, size in self.builder.tiles(sizes[tile_dim] if tile_dim >= 0 else 1, block):
            for index in self.builder.each(tiles):
                yield {**at, tile_dim: index * size + start}, size

    # staging: k on the partitions ------------------------------------------------------------------------------

    def _stage(
        self,
        side: Side,
        batch: list[Affine],
        at: dict[int, Affine],
        tile_dim: int,
        size: int,
        k_range: tuple[Affine | int, int | None],
        name: str,
    ) -> list[Block]:
        """For each segment a block [lanes, chunks, size] of ``side``: in place, loaded, or transposed."""
        if side.data is not None:
            source = self._literal_block(side, batch, at, tile_dim, size)
            return [self._loaded(side, source, size, name, self.segments[0])]
        blocks = []
        for segment in self.segments:
            source = self._source_block(side, batch, at, tile_dim, size, segment, k_range)
            in_place = (
                side.on_chip and not side.rows_on_lanes and side.view.dtype == side.dtype and len(source.dims) <= 3
            )
            if in_place:
                blocks.append(source if len(source.dims) == 3 else _insert_chunk(source))
            elif side.rows_on_lanes:
                blocks.append(self._transposed(side, source, size, name, segment))
            else:
                blocks.append(self._loaded(side, source, size, name, segment))
        return blocks

    def _literal_block(self, side: Side, batch: list[Affine], at: dict[int, Affine], tile_dim: int, size: int) -> Block:
        """A block of a constant, stored so that each partition reads one contiguous run."""
        total = side.free[tile_dim].size if tile_dim >= 0 else 1
        block = self.n_block if side is self.rhs else self.m_block
        start = 0 if size == min(block, total) else total // block * block
        (segment,) = self.segments
        others = [count for dim, count in enumerate(self.k_sizes) if dim != self.k_dim]
        chunks = prod(others) * segment.outer
        width = itemsize(side.dtype)
        if (start, size) not in side.laid_out:
            side.laid_out[start, size] = self._lay_out(side, tile_dim, start, size, segment)
        view = side.laid_out[start, size]
        outer = [(atom, index) for atom, index in zip(side.batch, batch, strict=True)]
        outer += [(atom, at[dim]) for dim, atom in enumerate(side.free) if dim != tile_dim]
        count = (total - start) // size * size
        stride = count * segment.lanes * chunks * width
        offset = Affine(view.offset)
        for atom, index in reversed(outer):
            offset = offset + index * stride
            stride *= atom.size
        if tile_dim >= 0:
            offset = offset + (at[tile_dim] + -start) * (segment.lanes * chunks * width)
        dims = (Atom(segment.lanes, chunks * size * width), Atom(chunks, size * width), Atom(size, width))
        return Block(view.alloc, side.dtype, offset, dims)

    def _lay_out(self, side: Side, tile_dim: int, start: int, size: int, segment: Segment) -> View:
        """Register the constant as [batch..., other free dims..., blocks, lanes, chunks, rows of a block]."""
        assert side.data is not None
        atoms = [*side.batch, *side.free, *side.contracted]
        raw = side.data.reshape(-1)
        base = raw[side.view.offset // raw.itemsize :]
        array = np.lib.stride_tricks.as_strided(
            base, [atom.size for atom in atoms], [atom.stride for atom in atoms], writeable=False
        )
        batch, free = len(side.batch), len(side.free)
        if tile_dim >= 0:
            stop = start + (side.free[tile_dim].size - start) // size * size
            array = array[(slice(None),) * (batch + tile_dim) + (slice(start, stop),)]
        array = array.astype(NUMPY_DTYPE[side.dtype])
        lane_axis = batch + free + self.k_dim
        shape = list(array.shape)
        if self.k_dim >= 0:
            shape[lane_axis : lane_axis + 1] = [segment.outer, segment.lanes]
        else:
            lane_axis = len(shape)
            shape += [1, 1]
        row_axis = batch + tile_dim if tile_dim >= 0 else len(shape)
        if tile_dim >= 0:
            shape[row_axis : row_axis + 1] = [shape[row_axis] // size, size]
            lane_axis += 1
        else:
            shape += [1, 1]
        array = array.reshape(shape)
        others = [axis for axis in range(batch + free + (tile_dim >= 0)) if axis not in (row_axis, row_axis + 1)]
        others = [axis for axis in others if axis not in (lane_axis, lane_axis + 1)]
        rest = [
            axis
            for axis in range(len(shape))
            if axis not in (*others, row_axis, row_axis + 1, lane_axis, lane_axis + 1)
        ]
        order = [*others, row_axis, lane_axis + 1, *rest, lane_axis, row_axis + 1]
        laid_out = np.ascontiguousarray(array.transpose(order))
        name = f"{hlo.loc_of(side.value).name}.{start}"
        return self.context.constant(laid_out, side.dtype, name)

    def _source_block(
        self,
        side: Side,
        batch: list[Affine],
        at: dict[int, Affine],
        tile_dim: int,
        size: int,
        segment: Segment,
        k_range: tuple[Affine | int, int | None],
    ) -> Block:
        """The operand's part as a block: [k lanes, other k dims..., rows] or, rows first, [rows, k dims..., lanes dim]."""
        offset = Affine(side.view.offset)
        for atom, index in zip(side.batch, batch, strict=True):
            offset = offset + index * atom.stride
        rows = Atom(1, 0)
        for dim, atom in enumerate(side.free):
            if dim == tile_dim:
                rows = replace(atom, size=size)
                if atom.partition:
                    continue
            offset = offset + at[dim] * atom.stride
        others = [(dim, atom) for dim, atom in enumerate(side.contracted) if dim != self.k_dim]
        lane_atom = side.contracted[self.k_dim] if self.k_dim >= 0 else Atom(1, 0)
        offset = offset + (0 if lane_atom.partition else segment.start * lane_atom.stride)
        chunks = [atom for _, atom in others]
        if segment.outer > 1 or k_range[1] is not None:
            outer = Atom(segment.outer, lane_atom.stride * segment.lanes)
            if k_range[1] is not None:
                begin = k_range[0] if isinstance(k_range[0], Affine) else Affine(k_range[0])
                offset = offset + begin * outer.stride
                outer = replace(outer, size=k_range[1])
            chunks.append(outer)
        lanes = replace(lane_atom, size=segment.lanes)
        dims = (rows, *chunks, lanes) if side.rows_on_lanes else (lanes, *chunks, rows)
        return Block(side.view.alloc, side.view.dtype, offset, dims)

    def _loaded(self, side: Side, source: Block, size: int, name: str, segment: Segment) -> Block:
        """DMA a block with k on the partitions, casting on the way."""
        chunks = [atom.size for atom in source.dims[1:-1]]
        lanes = source.dims[0].size
        tile = self._dense_tile(
            side.dtype, [prod(chunks), size], lanes, f"{name} block {segment.start}", self._buffers(name)
        )
        target = _spread_chunks(tile, chunks)
        if side.on_chip:
            self.emitter.over("tensor_copy", Stream.VECTOR, [target], [source])
        else:
            stream = Stream.DMA_WEIGHT if is_given(side.value) else Stream.DMA_LOAD
            copy(self.builder, target, source, stream)
        return tile

    def _buffers(self, name: str) -> int:
        return self.lhs_buffers if name == "lhs" else self.rhs_buffers

    def _dense_tile(self, dtype: str, sizes: Sequence[int], lanes: int, name: str, count: int) -> Block:
        nbytes = prod(sizes) * itemsize(dtype)
        key = (name, count)
        if key not in self._tile_rings or self._tile_rings[key].nbytes < nbytes:
            self._tile_rings[key] = self._ring(nbytes, count, f"{name} of {self.op.loc.name}")
        ring = self._tile_rings[key]
        stride = itemsize(dtype)
        atoms = []
        for size in reversed(sizes):
            atoms.append(Atom(size, stride))
            stride *= size
        return Block(ring.alloc, dtype, self.builder.slot(ring), (Atom(lanes, 1, True), *reversed(atoms)))

    @property
    def _tile_rings(self) -> dict[tuple[str, int], Ring]:
        if not hasattr(self, "_rings_by_key"):
            self._rings_by_key: dict[tuple[str, int], Ring] = {}
        return self._rings_by_key

    def _transposed(self, side: Side, source: Block, size: int, name: str, segment: Segment) -> Block:
        """Load rows of up to 128 onto the partitions (unless they lie there) and transpose them chunk by chunk."""
        chunks = [atom.size for atom in source.dims[1:-1]]
        lanes = source.dims[-1].size
        out = self._dense_tile(
            side.dtype, [prod(chunks), size], lanes, f"{name} block {segment.start}", self._buffers(name)
        )
        if source.dims[0].partition and source.dtype not in PE_DTYPES:
            cast = self._dense_tile(
                "f32", [atom.size for atom in source.dims[1:]], source.dims[0].size, f"{name} cast", 1
            )
            self.emitter.over("tensor_copy", Stream.VECTOR, [cast], [source])
            source = cast
        if source.dims[0].partition:
            self._turn_rows(side, source, out, chunks, Affine(0), size)
            return out
        row_stride = source.dims[0].stride
        for start, tiles, rows in self.builder.tiles(size, TILE_ROWS):
            for index in self.builder.each(tiles):
                at = index * rows + start
                part = replace(
                    source,
                    offset=source.offset + at * row_stride,
                    dims=(replace(source.dims[0], size=rows), *source.dims[1:]),
                )
                natural = self._dense_tile(side.dtype, [*chunks, lanes], rows, f"{name} rows", 2)
                stream = Stream.DMA_WEIGHT if is_given(side.value) else Stream.DMA_LOAD
                copy(self.builder, natural, part, stream)
                self._turn_rows(side, natural, out, chunks, at, rows)
        return out

    def _turn_rows(self, side: Side, natural: Block, out: Block, chunks: Sequence[int], at: Affine, rows: int) -> None:
        """Transpose [rows, chunks..., lanes] into ``out[lanes, chunk, at : at + rows]``, a PSUM bank at a time."""
        identity = self.context.identity(side.dtype if natural.dtype == side.dtype else natural.dtype)
        identity = replace(identity, dims=(replace(identity.dims[0], size=rows), replace(identity.dims[1], size=rows)))
        lanes = natural.dims[-1].size
        flat = _flatten_chunks(natural)
        total = prod(chunks)
        per_bank = max(1, TILE_COLUMNS // max(rows, 1))
        assert self.turn is not None
        if flat is None:
            for position, index in enumerate(_every(chunks)):
                piece = natural
                for value in index:
                    piece = piece.index(1, Affine(value))
                self._turn_some(piece, None, identity, out, Affine(position), 1, at, rows, lanes)
            return
        for start, tiles, count in self.builder.tiles(total, per_bank):
            for loop_index in self.builder.each(tiles, 8):
                first = loop_index * count + start
                self._turn_some(flat, first, identity, out, first, count, at, rows, lanes)

    def _turn_some(
        self,
        source: Block,
        first: Affine | None,
        identity: Block,
        out: Block,
        chunk: Affine,
        count: int,
        at: Affine,
        rows: int,
        lanes: int,
    ) -> None:
        assert self.turn is not None
        slot = self.builder.slot(self.turn)
        bank = Block(self.turn.alloc, "f32", slot, (Atom(lanes, 1, True), Atom(count, rows * 4), Atom(rows, 4)))
        for position in range(count):
            piece = source if first is None else source.index(1, first + position)
            self.builder.emit("load_stationary", Stream.TENSOR, [], [piece])
            self.builder.emit("multiply_moving", Stream.TENSOR, [bank.index(1, Affine(position))], [identity])
        target = out.index(1, chunk, count).index(2, at, rows)
        self.emitter.copy(target, bank)

    # the array -------------------------------------------------------------------------------------------------

    def _tiles(
        self,
        batch: list[Affine],
        m_at: dict[int, Affine],
        m_size: int,
        n_at: dict[int, Affine],
        n_size: int,
        lhs: list[Block],
        rhs: list[Block],
    ) -> None:
        """All PSUM tiles of a block pair; results for HBM are collected into long rows before they are stored."""
        for m_start, m_tiles, rows in self.builder.tiles(m_size, TILE_ROWS):
            for m_index in self.builder.each(m_tiles):
                m_offset = m_index * rows + m_start
                for start, groups, width in self.builder.tiles(n_size, RESULT_COLUMNS):
                    for group in self.builder.each(groups):
                        offset = group * width + start
                        target = self._target(batch, m_at, m_offset, rows, n_at, offset, width)
                        result = target
                        if not self.out.in_sbuf:
                            result = self._dense_tile(self.out.dtype, [width], rows, "result", RESULT_BUFFERS)
                        for n_start, n_tiles, columns in self.builder.tiles(width, TILE_COLUMNS):
                            for n_index in self.builder.each(n_tiles):
                                n_offset = n_index * columns + n_start
                                bank = self._bank(rows, columns)
                                self._accumulate(bank, lhs, rhs, m_offset, rows, offset + n_offset, columns)
                                self._add_bias(bank, n_at, offset + n_offset, rows, columns)
                                self.emitter.copy(result.index(1, n_offset, columns), bank)
                        if not self.out.in_sbuf:
                            copy(self.builder, target, result, Stream.DMA_STORE)

    def _bank(self, rows: int, columns: int) -> Block:
        return Block(self.acc.alloc, "f32", self.builder.slot(self.acc), (Atom(rows, 1, True), Atom(columns, 4)))

    def _accumulate(
        self,
        bank: Block,
        lhs: list[Block],
        rhs: list[Block],
        m_offset: Affine,
        rows: int,
        n_offset: Affine,
        columns: int,
    ) -> None:
        """One PSUM tile over all chunks of all segments."""
        first = True
        for left, right in zip(lhs, rhs, strict=True):
            chunks = left.dims[1].size
            left = left.index(2, m_offset, rows)
            right = right.index(2, n_offset, columns)
            if chunks > 8:
                self._multiply(bank, left.index(1, Affine(0)), right.index(1, Affine(0)), not first)
                first = False
                with self.builder.loop(chunks - 1) as index:
                    self._multiply(bank, left.index(1, index + 1), right.index(1, index + 1), True)
                continue
            for chunk in range(chunks):
                self._multiply(bank, left.index(1, Affine(chunk)), right.index(1, Affine(chunk)), not first)
                first = False

    def _multiply(self, bank: Block, stationary: Block, moving: Block, accumulate: bool) -> None:
        self.builder.emit("load_stationary", Stream.TENSOR, [], [stationary])
        flags = (["accumulate"] if accumulate else []) + (["tf32"] if self.tf32 and self.pe_dtype == "f32" else [])
        # an accumulating multiply also reads its bank
        self.builder.emit("multiply_moving", Stream.TENSOR, [bank], [moving], flags=flags)

    def _target(
        self,
        batch: list[Affine],
        m_at: dict[int, Affine],
        m_offset: Affine,
        rows: int,
        n_at: dict[int, Affine],
        n_offset: Affine,
        columns: int,
    ) -> Block:
        offset = Affine(self.out.offset)
        for atom, index in zip(self.out_batch, batch, strict=True):
            offset = offset + index * atom.stride
        lanes = Atom(rows, 1 if self.out.in_sbuf else 0, self.out.in_sbuf)
        for dim, atom in enumerate(self.out_m):
            if atom.partition:
                continue
            offset = offset + m_at[dim] * atom.stride
            if dim == self.m_dim:
                offset = offset + m_offset * atom.stride
                lanes = Atom(rows, atom.stride)
        free = Atom(columns, 0)
        for dim, atom in enumerate(self.out_n):
            offset = offset + n_at[dim] * atom.stride
            if dim == self.n_dim:
                offset = offset + n_offset * atom.stride
                free = Atom(columns, atom.stride)
        if self.out.in_sbuf and not lanes.partition:
            raise AssertionError("an on-chip result has its rows on the partitions")
        return Block(self.out.alloc, self.out.dtype, offset, (lanes, free))

    # k in several blocks ---------------------------------------------------------------------------------------

    def _k_blocks(
        self, batch: list[Affine], m_at: dict[int, Affine], m_size: int, n_at: dict[int, Affine], n_size: int
    ) -> None:
        """Partial products of k blocks, added up in SBUF in FP32."""
        m_tiles = -(-m_size // TILE_ROWS)
        sums = self._dense_tile("f32", [m_tiles, n_size], min(m_size, TILE_ROWS), "sums", 2)
        whole = self.segments
        first = True
        for segment in whole:
            for start, tiles, size in self.builder.tiles(segment.outer, self.k_block):
                self.segments = [segment]
                if first:
                    self._k_block(batch, m_at, m_size, n_at, n_size, Affine(start), size, sums, False)
                    first = False
                    start, tiles = start + size, tiles - 1
                if tiles:
                    with self.builder.loop(tiles) as index:
                        at = index * size + start
                        self._k_block(batch, m_at, m_size, n_at, n_size, at, size, sums, True)
        self.segments = whole
        for m_start, tiles, rows in self.builder.tiles(m_size, TILE_ROWS):
            for tile in range(tiles):
                at = Affine(m_start + tile * rows)
                part = replace(sums, dims=(Atom(rows, 1, True), *sums.dims[1:])).index(
                    1, Affine((m_start + tile * rows) // TILE_ROWS)
                )
                target = self._target(batch, m_at, at, rows, n_at, Affine(0), n_size)
                if self.out.in_sbuf:
                    self.emitter.copy(target, part)
                    continue
                if self.out.dtype != "f32":
                    cast = self._dense_tile(self.out.dtype, [n_size], rows, "result", 2)
                    self.emitter.copy(cast, part)
                    part = cast
                copy(self.builder, target, part, Stream.DMA_STORE)

    def _k_block(
        self,
        batch: list[Affine],
        m_at: dict[int, Affine],
        m_size: int,
        n_at: dict[int, Affine],
        n_size: int,
        start: Affine,
        size: int,
        sums: Block,
        add: bool,
    ) -> None:
        lhs = self._stage(self.lhs, batch, m_at, self.m_dim, m_size, (start, size), "lhs")
        rhs = self._stage(self.rhs, batch, n_at, self.n_dim, n_size, (start, size), "rhs")
        for m_start, tiles, rows in self.builder.tiles(m_size, TILE_ROWS):
            for tile in range(tiles):
                m_offset = Affine(m_start + tile * rows)
                part = replace(sums, dims=(Atom(rows, 1, True), *sums.dims[1:])).index(
                    1, Affine((m_start + tile * rows) // TILE_ROWS)
                )
                bank = self._bank(rows, n_size)
                self._accumulate(bank, lhs, rhs, m_offset, rows, Affine(0), n_size)
                if not add:
                    self._add_bias(bank, n_at, Affine(0), rows, n_size)
                if add:
                    self.emitter.over("tensor_tensor", Stream.VECTOR, [part], [part, bank], alu=["add"])
                else:
                    self.emitter.copy(part, bank)


def _order(rank: int, batch: Sequence[int], contracting: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    free = [axis for axis in range(rank) if axis not in batch and axis not in contracting]
    return list(batch), free, list(contracting)


def _pe_dtype(lhs: str, rhs: str) -> str:
    """Operand type on TensorE: 16- and 8-bit floats as they are (if both are), everything else FP32."""
    if lhs == rhs and lhs in PE_DTYPES:
        return lhs
    return "f32"


def _block(size: int, room: int, tile: int) -> int:
    """Block of at most ``room`` elements, in whole tiles if it is cut at all."""
    if size <= room:
        return size
    if room >= tile:
        blocks = -(-size // (room // tile * tile))
        return -(-size // (blocks * tile)) * tile
    return next((part for part in (256, 128, 64) if part <= room), max(1, room))


def _outer_block(size: int, room: int, column: int, tile: int) -> tuple[int, int]:
    """Largest block of the outer side, and how many buffers of it fit (two let the next one load)."""
    for buffers in (2, 1):
        if size * column * buffers <= room or buffers == 1:
            return _block(size, max(1, room // (buffers * column)), tile), buffers
    raise AssertionError("unreachable")


def _insert_chunk(block: Block) -> Block:
    return replace(block, dims=(block.dims[0], Atom(1, 0), block.dims[1]))


def _spread_chunks(tile: Block, chunks: Sequence[int]) -> Block:
    """View the flat chunk dim of a staged tile as the k dims it came from."""
    stride = tile.dims[1].stride
    atoms = []
    for size in reversed(chunks):
        atoms.append(Atom(size, stride))
        stride *= size
    return replace(tile, dims=(tile.dims[0], *reversed(atoms), tile.dims[2]))


def _flatten_chunks(block: Block) -> Block | None:
    """Merge the chunk dims between the first and the last dim into one; None when their strides differ."""
    dims = list(block.dims[1:-1])
    if not dims:
        return replace(block, dims=(block.dims[0], Atom(1, 0), block.dims[-1]))
    while len(dims) > 1:
        if dims[0].stride != dims[1].stride * dims[1].size:
            return None
        dims[0:2] = [Atom(dims[0].size * dims[1].size, dims[1].stride)]
    return replace(block, dims=(block.dims[0], dims[0], block.dims[-1]))


def _every(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    out: list[tuple[int, ...]] = [()]
    for size in sizes:
        out = [(*index, value) for index in out for value in range(size)]
    return out
