"""What a convolution decides before it emits: views in canonical order, packs of groups, tiles, blocks.

The canonical order is input [batch, features, spatial...], kernel [outputs, inputs of a group, spatial...] and result
[batch, outputs, spatial...]. Groups with few features share a tile: their kernels form one block-diagonal matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.convolutions.axis import Axis, axis_of, batch_axis
from neuronx_cc.codegen.convolutions.copies import Copies, copies_of
from neuronx_cc.codegen.dots.problem import PE_DTYPES
from neuronx_cc.codegen.emission.builder import Builder, Ring
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.maps.plan import RESIDENT_STEPS, Lanes, lane_divisor, lanes_of, resident_view
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.features_first import CHANNELS

MAX_UNROLLED = 72
"""Products of one sum that are written out; more of them become loops."""
WEIGHT_SHARE = 0.55
"""Part of the free SBUF that the kernel may fill."""
NATURAL_SHARE = (1, 11)
"""Of a partition of SBUF: most of a kernel that is loaded at once to be transposed."""
ROW_SHARE = (1, 22)
"""The same for a row of positions that are moved at once."""
MAX_BANDS = 8
"""Blocks of an image that are written out."""
LARGE_IMAGE = 8192
"""Positions from which a single image is staged in bands, of at most half as many, for the same reason as several."""
SMALL_TILES = 4096
"""Bytes a partition for rows of zeros and the like, beside what is planned."""
RAW_SHARE = (1, 11)
"""The same for input that is loaded before it is put between its padding."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Contracted features: ``chunks`` tiles of ``lanes``; feature = start + lane * lane_step + chunk * chunk_step."""

    start: int
    lanes: int
    chunks: int
    lane_step: int
    chunk_step: int
    first: int
    """Its first chunk among those of all segments."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Output features ``start + lane * lane_step + tile * tile_step`` of ``tiles`` tiles of ``lanes``."""

    start: int
    lanes: int
    tiles: int
    lane_step: int
    tile_step: int
    first: int
    """Its first tile in the result."""


class ConvPlan:
    """Views and sizes; ``groups`` groups of ``inputs`` contracted and ``outputs`` resulting features each."""

    def __init__(self, context: Context, op: hlo.ConvolutionOp, step: int) -> None:
        self.context = context
        self.builder: Builder = context.builder
        self.op = op
        self.result = op.result
        self.step = step
        dims, self.window = op.dims.data, op.window.data
        self.batch_groups = op.batch_group_count.data
        self.groups = op.feature_group_count.data * self.batch_groups
        lhs, rhs = hlo.shape_of(op.lhs), hlo.shape_of(op.rhs)
        self.batch = lhs.dims[dims.lhs_batch] // self.batch_groups
        self.inputs = rhs.dims[dims.rhs_input_feature]
        self.outputs = rhs.dims[dims.rhs_output_feature] // self.groups
        self.lhs_order = (dims.lhs_batch, dims.lhs_feature, *dims.lhs_spatial)
        self.rhs_order = (dims.rhs_output_feature, dims.rhs_input_feature, *dims.rhs_spatial)
        self.out_order = (dims.out_batch, dims.out_feature, *dims.out_spatial)
        sizes = [(lhs.dims[i], op.shape.dims[o]) for i, o in zip(dims.lhs_spatial, dims.out_spatial, strict=True)]
        self.axes: list[Axis] = [batch_axis(self.batch)]
        self.axes += [axis_of(size, out, dim) for (size, out), dim in zip(sizes, self.window, strict=True)]
        self.kernel = [dim.size for dim in self.window]
        self.input, lhs_dtype = self._source(op.lhs)
        self.weights, rhs_dtype = self._source(op.rhs)
        self.pe_dtype = lhs_dtype if lhs_dtype == rhs_dtype and lhs_dtype in PE_DTYPES else "f32"
        self.tf32 = False
        self.apart = not context.fast_relayout
        """Whether groups share no products, in which an infinity or NaN of one would reach the others."""
        self.may_be_infinite = bool({hlo.shape_of(op.lhs).dtype, hlo.shape_of(op.rhs).dtype} & FLOATS)
        self.copies: Copies | None = None
        self.rings: list[Ring] = []
        self._tile_rings: dict[str, Ring] = {}
        self.banks: list[Ring] = []
        self.emitter = Emitter(self.builder, lambda like, dtype: like)

    @property
    def tile_rows(self) -> int:
        """Partitions of a tile of results."""
        return min(self.builder.sizes.rows, self.builder.sizes.columns)

    @property
    def tile_columns(self) -> int:
        """Positions or features of one."""
        return self.builder.sizes.bank_columns

    def _source(self, value: hlo.SSAValue) -> tuple[hlo.SSAValue, str]:
        """The value to read, and its type in the contraction (a cast of given data happens on load)."""
        dtype = hlo.shape_of(value).dtype
        while value in self.context.load_casts:
            value = self.context.load_casts[value]
        return value, dtype

    # ---- operands ---------------------------------------------------------------------------------------------

    def choose(self) -> None:
        """Views of operands and result, segments of the contraction, the orientation of the products."""
        out_strides = _strides(self.op.shape.dims, self.out_order)
        self.positions_on_lanes = False
        """Whether positions, not output features, lie on the partitions of a result tile."""
        self.pack = self._pack(self.tile_rows)
        self.x = self._choose_input()
        self.out = self._choose_output()
        if not self.out.in_sbuf:
            self.positions_on_lanes = out_strides[1] == 1 and self.op.shape.dims[self.out_order[1]] > 1
            if self.positions_on_lanes and not self.x.in_sbuf:
                self.pack = self._pack(self.tile_columns)
        self.w, self.data = self._choose_kernel()
        self.copies = None
        # a kernel whose outputs lie apart would be spread element by element
        dense = self.data is not None or not self.kernel_is_direct or stride_of(self.w, 0) == itemsize(self.w.dtype)
        if self.groups == 1 and self.packs_lanes and dense:
            far = not self.x.in_sbuf and not self.turns_input
            residues = far and rows_are_cheap(self.builder.timing, self.inputs, self.x.shape[-1])
            self.copies = copies_of(self.inputs, self.axes, MAX_UNROLLED, residues)

    def _pack(self, most_outputs: int) -> int:
        """Groups whose features share a tile, with zeros between them."""
        if self.apart:
            return 1
        return max(1, min(self.tile_rows // self.inputs, most_outputs // self.outputs, self.groups))

    def _choose_input(self) -> View:
        """On chip with its features on the partitions, else HBM; every dim but the features' is one progression."""
        views = [view.transpose(self.lhs_order) for view in self.context.views(self.input)]
        for view in views:
            if view.in_sbuf and self._fits_lanes(view):
                return view
        hbm = self.dense_view()
        self._segment()
        return hbm

    def dense_view(self) -> View:
        """The input in HBM, every dim one progression."""
        hbm = self.context.hbm(self.input).transpose(self.lhs_order)
        # features_first has turned images of few channels, which lie side by side, into planes
        channels = self.inputs <= CHANNELS and stride_of(hbm, 1) == itemsize(hbm.dtype)
        if channels or not all(len(coalesce(atoms)) <= 1 for atoms in hbm.dims):
            hbm = self.context.dense(self.input).transpose(self.lhs_order)
        return hbm

    def _segment(self) -> None:
        """Tiles of the contracted features of a group, for an input in HBM."""
        self.segments: list[Segment] = []
        if self.inputs <= self.tile_rows:
            self.segments = [Segment(0, self.inputs, 1, 1, self.inputs, 0)]
        elif lane_divisor(self.inputs) >= 64:
            lanes = lane_divisor(self.inputs)
            chunks = self.inputs // lanes
            self.segments = [Segment(0, lanes, chunks, chunks, 1, 0)]
        else:
            chunks = self.inputs // self.tile_rows
            self.segments = [Segment(0, self.tile_rows, chunks, chunks, 1, 0)]
            self.segments.append(Segment(chunks * self.tile_rows, self.inputs % self.tile_rows, 1, 1, 1, chunks))

    def _fits_lanes(self, view: View) -> bool:
        """Whether a view on chip has the features of whole packs (or whole tiles of a group) on its partitions."""
        atoms = coalesce(view.dims[1])
        others = [atom for axis, dim in enumerate(view.dims) if axis != 1 for atom in dim]
        lanes = lanes_of(view)
        if self.batch_groups > 1 or lanes is None or lanes.axis != 1 or lanes.inner != 1 or len(atoms) > 2:
            return False
        if any(len(coalesce(dim)) > 1 for axis, dim in enumerate(view.dims) if axis != 1):
            return False
        if any(atom.partition for atom in others):
            return False
        size = lanes.size
        if size % self.inputs == 0:
            pack = size // self.inputs
            if pack > self._pack(self.tile_rows):
                return False
            self.pack = pack
            self.segments = [Segment(0, self.inputs, 1, 1, self.inputs, 0)]
            return True
        if self.inputs % size == 0 and size >= min(64, self.inputs):
            self.segments = [Segment(0, size, self.inputs // size, 1, size, 0)]
            return True
        return False

    def _choose_output(self) -> View:
        """Resident with output features on the partitions where that fits, else HBM; in canonical order."""
        context, dims = self.context, self.op.shape.dims
        total = self.groups * self.outputs
        pack = self.pack * self.outputs
        lanes = pack if self.groups > self.pack else lane_divisor(total)
        even = (
            self.groups % self.pack == 0 and pack <= self.tile_rows if self.groups > self.pack else total % lanes == 0
        )
        only_result = self.result in context.outputs and context.last_use(self.result) <= self.step
        if even and lanes >= min(32, total) and lanes > 1 and not only_result:
            per_partition = prod(dims) // lanes * itemsize(self.op.shape.dtype)
            near = context.last_use(self.result) - self.step <= RESIDENT_STEPS
            alloc = context.new_resident(self.result, per_partition) if near else None
            if alloc is not None:
                axis = self.out_order[1]
                home = resident_view(alloc, self.op.shape.dtype, dims, Lanes(axis, lanes, 1))
                context.homes[self.result] = [home]
                return home.transpose(self.out_order)
        home = context.new_hbm(self.result)
        context.homes[self.result] = [home]
        return home.transpose(self.out_order)

    def _choose_kernel(self) -> tuple[View, np.ndarray | None]:
        literal = self.context.literal(self.weights)
        if literal is not None and all(len(coalesce(atoms)) <= 1 for atoms in literal[0].dims):
            return literal[0].transpose(self.rhs_order), literal[1]
        view = self.context.hbm(self.weights).transpose(self.rhs_order)
        if not all(len(coalesce(atoms)) <= 1 for atoms in view.dims):
            view = self.context.dense(self.weights).transpose(self.rhs_order)
        return view, None

    # ---- sizes ------------------------------------------------------------------------------------------------

    @property
    def packs_lanes(self) -> bool:
        """Whether all contracted features of a group lie side by side on the partitions, those of a pack as well."""
        return self.inputs <= self.tile_rows and len(self.segments) == 1 and self.segments[0].chunks == 1

    def lanes_of_pack(self, groups: int) -> int:
        """Partitions that a pack of ``groups`` groups (or a tile of one) contracts at most."""
        return groups * self.inputs if self.packs_lanes else max(segment.lanes for segment in self.segments)

    def segments_of(self, groups: int) -> list[Segment]:
        """The contraction of a pack."""
        return [replace(self.segments[0], lanes=groups * self.inputs)] if self.packs_lanes else self.segments

    @property
    def chunks(self) -> int:
        return sum(segment.chunks for segment in self.segments)

    @property
    def input_stride(self) -> int:
        """Bytes between neighbouring features of the input in HBM."""
        return stride_of(self.x, 1)

    def plan_sizes(self) -> None:
        """How many output features and positions are staged together, in how many buffers."""
        size, out_size = itemsize(self.pe_dtype), itemsize(self.op.shape.dtype)
        room = whole = int(self.builder.sbuf.largest_gap() * 0.92)
        self.natural_bytes = max(self.inputs * size, min(self.builder.sizes.sbuf_share(NATURAL_SHARE), room // 16))
        pack_outputs = min(self.pack, self.groups) * self.outputs
        packs = -(-self.groups // self.pack)
        taps = prod(self.kernel)
        each = self.chunks * taps * size * (1 if self.copies is None else 2)
        # what does not fit gets fewer buffers
        room -= min(self._kernel_staging() + self._input_staging(), room * 2 // 3)
        self.streams_kernel = False
        self.weight_buffers = 1
        limit = max(0, int(room * WEIGHT_SHARE))
        self.block_outputs = pack_outputs
        if each * pack_outputs > limit:
            atom = self.out.partition_atom
            tile = self.tile_rows if atom is None else atom.size
            self.block_outputs = 0 if self.pack > 1 else min(pack_outputs, limit // each // tile * tile)
            if not self.block_outputs:
                self.streams_kernel = True
                self.copies = None
                self.block_outputs = pack_outputs if self.pack > 1 else min(pack_outputs, tile)
                each = self.chunks * size
                self.weight_buffers = 2
        elif packs > 1 and 2 * each * pack_outputs <= limit:
            self.weight_buffers = 2
        room -= each * self.block_outputs * self.weight_buffers
        self.result_buffers = 2
        if self.out.in_sbuf:
            per_output = 0
        elif self.positions_on_lanes:
            per_output = 0
            room -= 3 * max(self.row_bytes, self.block_outputs * out_size)
        else:
            per_output = self.result_buffers * -(-self.block_outputs // self.tile_rows) * out_size
        taken = whole - room
        # rather fewer buffers than blocks of single positions
        room = max(room, whole // 8)
        self.input_buffers = 2 if self.copies is None else 3
        rows = self._first_rows()
        while True:
            extents = [axis.extent(n) for axis, n in zip(self.axes, rows, strict=True)]
            extents = extents if self.copies is None else self.copies.packed(extents)
            outs = prod(min(axis.out, n * axis.phases) for axis, n in zip(self.axes, rows, strict=True))
            used = self.input_buffers * self.chunks * prod(extents) * size + outs * per_output
            shrinkable = [axis for axis, n in enumerate(rows) if n > 1]
            if used <= room or not shrinkable:
                break
            rows[shrinkable[0]] = -(-rows[shrinkable[0]] // 2)
        self.builder.sbuf.make_room(min(whole, taken + used + SMALL_TILES))
        self.rows = rows
        """Outputs a phase of each axis in one block."""
        counts = [-(-axis.rows // n) for axis, n in zip(self.axes, rows, strict=True)]
        self.unrolls_bands = self.copies is not None and 1 < prod(counts[1:]) <= MAX_BANDS
        """Whether the blocks of an image are written out, so that the next one is staged during products."""
        if prod(counts) * packs == 1:
            self.input_buffers = self.result_buffers = 1

    def _first_rows(self) -> list[int]:
        """Everything, but a few images, or bands of a large one, at a time so that loading and products overlap."""
        rows = [max(1, axis.rows) for axis in self.axes]
        images = max(1, -(-4 * self.tile_columns // max(1, prod(rows[1:]))))
        rows[0] = min(rows[0], images)
        if len(rows) > 2 and prod(rows[1:]) > LARGE_IMAGE:
            # those of few features are written out, and take turns in their buffers
            bands = -(-(4 if self.copies is None else 2) * prod(rows[1:]) // LARGE_IMAGE)
            rows[1] = -(-rows[1] // (bands if self.copies is None else bands + bands % 2))
        return rows

    def _kernel_staging(self) -> int:
        """Bytes a partition that arranging the kernel takes on top."""
        if self.data is not None or self.kernel_is_direct:
            return 0
        size = itemsize(self.pe_dtype)
        whole = self.inputs * prod(self.kernel) * size
        spread = 4 * self.pack * self.inputs * size if self.pack > 1 else 0
        return 4 * max(self.inputs * size, min(self.natural_bytes, whole)) + spread

    @property
    def kernel_is_direct(self) -> bool:
        """Whether the kernel is loaded with the contracted features on the partitions."""
        return self.groups == 1 and (stride_of(self.w, 1) > stride_of(self.w, 0) or self.outputs * self.inputs < 1024)

    @property
    def turns_input(self) -> bool:
        """Whether features are neighbours in HBM, so that positions are loaded onto the partitions and transposed."""
        if self.x.in_sbuf or self.input_stride != itemsize(self.x.dtype):
            return False
        return prod(self.x.shape) >= 4096 and prod(self.x.shape[2:]) > 1 and self.inputs * self.pack >= 4

    @property
    def row_bytes(self) -> int:
        return self.builder.sizes.sbuf_share(ROW_SHARE)

    @property
    def raw_bytes(self) -> int:
        return self.builder.sizes.sbuf_share(RAW_SHARE)

    def _input_staging(self) -> int:
        if self.turns_input:
            return 2 * max(self.row_bytes, self.pack * self.inputs * itemsize(self.pe_dtype)) * 3
        if self.x.in_sbuf or (self.copies is not None and self.copies.residues > 1):
            return 0
        return 2 * min(self.raw_bytes, self.chunks * prod(axis.size for axis in self.axes) * itemsize(self.pe_dtype))

    # ---- tiles ------------------------------------------------------------------------------------------------

    def make_bank(self, count: int) -> Ring:
        ring = self.builder.ring(self.builder.psum, self.builder.sizes.bank_bytes, count, f"sums of {self.op.loc.name}")
        self.banks.append(ring)
        return ring

    def ring(self, name: str, nbytes: int, count: int) -> Ring:
        """The buffers called ``name``, of ``nbytes`` at least."""
        ring = self._tile_rings.get(name)
        if ring is None or ring.nbytes < nbytes:
            ring = self.builder.ring(self.builder.sbuf, nbytes, count, f"{name} of {self.op.loc.name}")
            self._tile_rings[name] = ring
            self.rings.append(ring)
        return ring

    def release(self) -> None:
        for ring in self.rings:
            self.builder.sbuf.free(ring.alloc)
        for ring in self.banks:
            self.builder.psum.free(ring.alloc)


def rows_are_cheap(timing: Timing, lanes: int, width: int) -> bool:
    """Whether a DMA of rows of ``width`` to ``lanes`` partitions one by one is quicker than an engine's copy."""
    return lanes * timing.run_ns < timing.engine("tensor_copy", Stream.GPSIMD, width).bound


def stride_of(view: View, axis: int) -> int:
    """Bytes between neighbours along a dim of one progression; 0 for a dim of size 1."""
    atoms = coalesce(view.dims[axis])
    return atoms[0].stride if atoms else 0


def atom_of(view: View, axis: int) -> Atom:
    """The progression of a dim (of size 1: stride 0)."""
    atoms = coalesce(view.dims[axis])
    return atoms[0] if atoms else Atom(1, 0)


def _strides(dims: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    """Elements between neighbours of a dense array along each of ``order``."""
    return [prod(dims[axis + 1 :]) for axis in order]
