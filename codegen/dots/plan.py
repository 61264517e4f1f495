"""Where the operands and the result of a contraction lie, and which of their dims are tiled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Builder, Ring
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom, View, align, linear
from neuronx_cc.codegen.maps.plan import RESIDENT_STEPS, Lanes, lane_divisor, lanes_of, resident_view
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.types import itemsize

PE_DTYPES = frozenset(["f32", "bf16", "f16", "f8e4m3", "f8e5m2", "f8e3m4"])
TILE_ROWS = 128
TILE_COLUMNS = 512
MANY_LANES = 32
"""Partitions from which a result stays on chip, though after a way through HBM all of them could be used."""
FEW_LANES = 16
"""The same in loops and branches, where nothing overlaps that way."""
CHUNK_EXCESS = 1.25
"""How many more chunks than necessary a contracted dim is cut into, for chunks of equal length."""
DETOUR_CYCLES = 14000
"""Cycles of TensorE in which an operand that lies unfavourably on chip goes to HBM and comes back (about 5 us)."""
DETOUR_CYCLES_PER_ELEMENT = 0.1
"""The same for each element besides."""


@dataclass(frozen=True, slots=True)
class Resident:
    """An operand that was staged whole: for each batch index a block [lanes, chunks, rows] of every segment of k.

    The chunks of all segments lie one behind the other.
    """

    view: View
    """Dims [batch..., free..., contracted...]; the contracted ones say sizes only."""
    segments: list[Segment]
    chunk_bytes: int
    """From one chunk to the next."""


@dataclass(slots=True)
class Side:
    """One operand: its view with dims [batch..., free..., contracted...], refined class by class."""

    name: str
    """lhs or rhs."""
    value: hlo.SSAValue
    view: View
    dtype: str
    """Element type on TensorE."""
    batch: list[Atom]
    free: list[Atom]
    contracted: list[Atom]
    data: np.ndarray | None = None
    """Bytes of a constant operand that is still to be laid out for this contraction."""
    resident: Resident | None = None
    """What was staged ahead of the loops around, if this operand was."""
    laid_out: dict[tuple[int, int], View] = field(default_factory=dict)
    """(first row, rows of a block) -> the constant's blocks."""

    @property
    def on_chip(self) -> bool:
        return self.view.in_sbuf

    @property
    def rows_on_lanes(self) -> bool:
        """Whether the free dim is (on chip) or should be (HBM: k is contiguous) on the partitions."""
        if self.resident is not None:
            return False
        if self.on_chip:
            return any(atom.partition for atom in self.free)
        if self.data is not None:
            return False
        inner = [atom for atom in self.contracted if atom.stride == itemsize(self.view.dtype) and atom.size > 1]
        return bool(inner) or not self.free


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of an operand, and terms of k, that are staged together."""

    batch: list[Affine]
    at: dict[int, Affine]
    """Index along each free dim; along ``tile_dim`` that of the first row."""
    tile_dim: int
    """The free dim that is cut into blocks, -1 without any."""
    size: int
    """Rows along it."""
    terms: tuple[tuple[Affine, int], ...] | None = None
    """First index and size along each dim of the chunks of k (``DotPlan.chunk_sizes``), None for all of them."""


@dataclass(slots=True)
class Segment:
    """A part of k: ``lanes`` elements on the partitions, in ``outer`` steps, for each tuple of the other k dims."""

    start: int
    """First index along the lane dim."""
    lanes: int
    outer: int
    """Steps of the lane dim around the lanes."""


def segments_of(size: int) -> list[Segment]:
    """The segments of a single contracted dim: equal chunks, or chunks of 128 and a rest where that takes fewer."""
    lanes, chunks = lane_divisor(size), -(-size // TILE_ROWS)
    if size // lanes <= CHUNK_EXCESS * chunks:
        return [Segment(0, lanes, size // lanes)]
    whole = size // TILE_ROWS
    found = [Segment(0, TILE_ROWS, whole)] if whole else []
    return found + ([Segment(whole * TILE_ROWS, size % TILE_ROWS, 1)] if size % TILE_ROWS else [])


class DotPlan:
    """Views of ``out[b, m, n] = sum_k lhs[b, m, k] * rhs[b, n, k]``, and the dims that are tiled."""

    keeps_rows = False
    """Whether whole rows of the result are collected on chip, each on its partition, before they are stored."""

    def __init__(
        self,
        context: Context,
        op: hlo.DotOp,
        result: hlo.SSAValue,
        bias: hlo.SSAValue | None,
        step: int,
        addend: hlo.SSAValue | None = None,
    ) -> None:
        self.result = result
        self.bias = bias
        """A row that the kernel adds on TensorE."""
        self.addend = addend
        """An array that it adds to the sums."""
        self.add: View
        """Where that lies; the result's own view where nothing is added."""
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
        self.pe_dtype = pe_dtype(op)
        self.tf32 = op.algorithm is not None and "tf32" in op.algorithm.data
        self.pool = TilePool(self.builder, f"contraction {op.loc.name}")
        self._tile_rings: dict[tuple[str, int], Ring] = {}
        """(name, buffers) -> the ring of ``pool`` with tiles of that name."""
        self.emitter = Emitter(self.builder, lambda like, dtype: like)

    # ---- operands ---------------------------------------------------------------------------------------------

    def fast(self, dtype: str) -> bool:
        """Whether TensorE transposes rows of ``dtype`` as values: 16- and 8-bit types, when that is allowed."""
        return self.context.moves_values(dtype)

    def _source(self, value: hlo.SSAValue) -> tuple[hlo.SSAValue, str]:
        """The value to read and the type it has for the contraction (a cast of given data happens on load)."""
        dtype = hlo.shape_of(value).dtype
        while value in self.context.load_casts:
            value = self.context.load_casts[value]
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
        for index, value, order, free in (
            (0, lhs_value, self.lhs_order, len(self.m_dims)),
            (1, rhs_value, self.rhs_order, len(self.n_dims)),
        ):
            resident = self.context.staged.get((self.op, index))
            if resident is not None:
                chosen.append(resident.view)
                continue
            literal = self.context.literal(value)
            if literal is not None:
                self.data[value] = literal[1]
                chosen.append(literal[0].transpose([*order[0], *order[1], *order[2]]))
                continue
            for view in self._views(value, order):
                batch, rows, contracted = self._classes(view, free)
                on_lanes = batch.partition_atom is None and view.partition_atom is not None
                if not view.in_sbuf or (on_lanes and not self._wastes(contracted, rows if index == 0 else None)):
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

    def _wastes(self, contracted: View, rows: View | None) -> bool:
        """Whether a detour through HBM is faster than what lies on chip: few terms on the partitions, or few rows.

        ``rows``: of the stationary operand, whose tiles they fill.
        """
        m, k = prod(self.m_dims), prod(self.k_dims)
        tiles, chunks = -(-m // TILE_ROWS), -(-k // TILE_ROWS)
        terms, filled = lanes_of(contracted), lanes_of(rows) if rows is not None else None
        if terms is not None:
            excess = tiles * (k // terms.size - chunks)
        elif filled is not None:
            excess = chunks * (m // filled.size - tiles)
        else:
            return False
        cycles = prod([*self.batch_dims, *self.n_dims]) * excess * (4 if self.pe_dtype == "f32" else 1)
        return cycles > DETOUR_CYCLES + DETOUR_CYCLES_PER_ELEMENT * prod([*self.batch_dims, *self.m_dims, *self.k_dims])

    def _scatters(self, rhs: View, out: View) -> bool:
        """Whether columns that are computed together would be stored one by one.

        So it is where ``rhs`` has neighbouring rows on each partition, and the result more rows than ``_keeps_rows``
        collects.
        """
        if not rhs.in_sbuf or out.in_sbuf or prod(self.m_dims) <= TILE_ROWS:
            return False
        rows = [atom for atoms in self._classes(rhs, len(self.n_dims))[1].dims for atom in atoms if atom.size > 1]
        return any(atom.partition for atom in rows[:-1])

    def _dense(self, index: int, copied: bool = True) -> View:
        """Operand ``index`` as a dense array, unless it was staged; without ``copied`` only how it would lie."""
        staged = self.context.staged.get((self.op, index))
        if staged is not None:
            return staged.view
        order = (self.lhs_order, self.rhs_order)[index]
        source = self._source(self.op.operands[index])[0]
        shape = hlo.shape_of(source)
        if source in self.data:
            literal = self.context.literal(source)
            assert literal is not None, "its data was taken"
            view, data = literal
            if copied:
                flat = strided(data, view.offset, [atom for atoms in view.dims for atom in atoms])
                self.data[source] = np.ascontiguousarray(flat.reshape(shape.dims))
            dense = linear(view.alloc, 0, view.dtype, shape.dims)
        elif copied:
            dense = self.context.dense(source)
        else:
            dense = linear(Alloc(Space.HBM, 0, 0), 0, shape.dtype, shape.dims)
        return dense.transpose([*order[0], *order[1], *order[2]])

    def _nest(self, lhs: View, rhs: View, out: View) -> None:
        """Common dims of all arrays; operands whose dims do not nest with the others' are copied to dense arrays.

        A dim on the partitions is never cut: an operand that lies elsewhere, or is the smaller, is copied instead.
        """
        views = [lhs, rhs]
        sizes = [hlo.shape_of(operand).size for operand in self.op.operands]
        singles = sorted((0, 1), key=lambda index: (views[index].in_sbuf, sizes[index]))
        for copies in ((), (singles[0],), (singles[1],), (0, 1)):
            left, right = (self._dense(at, False) if at in copies else views[at] for at in (0, 1))
            if not self._refine(left, right, out):
                continue
            if copies:
                left, right = (self._dense(at) if at in copies else views[at] for at in (0, 1))
                nests = self._refine(left, right, out)
                assert nests, "copies lie as they were said to"
            return
        raise AssertionError("dense arrays nest")

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
        enough = FEW_LANES if context.prefix else MANY_LANES
        if lanes is not None and lanes.size > 1 and not only_result and (lanes.size >= enough or prod(dims) <= 8192):
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
        add = self.add
        out_b = replace(out, dims=out.dims[:batch])
        out_m = replace(out, dims=out.dims[batch : batch + free])
        out_n = replace(out, dims=out.dims[batch + free :])
        add_b, add_m, add_n = self._classes(add, free)
        b = align([lhs_b, rhs_b, out_b, add_b], self.batch_dims)
        m = align([lhs_m, out_m, add_m], self.m_dims)
        n = align([rhs_n, out_n, add_n], self.n_dims)
        k = align([lhs_k, rhs_k], self.k_dims)
        if b is None or m is None or n is None or k is None:
            return False
        of_lhs, of_rhs, of_out = (b.atoms[0], m.atoms[0], k.atoms[0]), (b.atoms[1], n.atoms[0], k.atoms[1]), m.atoms[1:]
        if any(_on_partitions(atoms) > 1 for atoms in (of_lhs, of_rhs, of_out[:1], of_out[1:])):
            return False  # a dim on the partitions is used whole
        if _on_partitions(n.atoms[1:]) or _on_partitions(b.atoms):
            return False
        self.b_sizes, self.m_sizes, self.n_sizes, self.k_sizes = b.sizes, m.sizes, n.sizes, k.sizes
        left, right = self._source(self.op.lhs)[0], self._source(self.op.rhs)[0]
        literal = self.data.get
        kept = [self.context.staged.get((self.op, index)) for index in (0, 1)]
        self.lhs = Side("lhs", left, lhs, self.pe_dtype, b.atoms[0], m.atoms[0], k.atoms[0], literal(left), kept[0])
        self.rhs = Side("rhs", right, rhs, self.pe_dtype, b.atoms[1], n.atoms[0], k.atoms[1], literal(right), kept[1])
        self.out = out
        self.out_batch, self.out_m, self.out_n = b.atoms[2], m.atoms[1], n.atoms[1]
        self.add, self.add_batch, self.add_m, self.add_n = add, b.atoms[3], m.atoms[2], n.atoms[2]
        return self._lane_dims()

    def _addend_view(self, out: View) -> View:
        """The home of what is added: on chip as the result lies, or in HBM; ``out`` itself where nothing is added."""
        if self.addend is None:
            return out
        for view in self.context.in_place(self.addend):
            if view.in_sbuf and out.in_sbuf and view.dims == out.dims:
                return view
            simple = all(len(atoms) < 2 for atoms in view.dims)
            near = [atoms[-1].stride for atoms in view.dims if atoms][-1:]
            if not view.in_sbuf and simple and near == [itemsize(view.dtype)]:
                return view
        return self.context.dense(self.addend)

    def _lane_dims(self) -> bool:
        """Pick the dims that are tiled: k on partitions, m on the output's partitions, n along the free dim."""
        marked = [
            dim
            for dim in range(len(self.k_sizes))
            if self.lhs.contracted[dim].partition or self.rhs.contracted[dim].partition
        ]
        if len(marked) > 1:
            return False
        self.k_dim = marked[0] if marked else -1
        self.segments: list[Segment] = []
        resident = self.lhs.resident or self.rhs.resident
        if resident is not None:
            if len(self.k_sizes) != 1 or (marked and resident.segments != [Segment(0, self.k_sizes[0], 1)]):
                return False
            self.k_dim, self.segments = 0, resident.segments
        elif marked:
            self.segments = [Segment(0, self.k_sizes[self.k_dim], 1)]
        elif self.k_sizes:
            self.k_dim = min(range(len(self.k_sizes)), key=lambda dim: (self._chunks(dim), -dim))
            size = self.k_sizes[self.k_dim]
            lanes = lane_divisor(size)
            self.segments = segments_of(size)
            if lanes >= 64 and (self.lhs.data is not None or self.rhs.data is not None):
                self.segments = [Segment(0, lanes, size // lanes)]
        else:
            self.segments = [Segment(0, 1, 1)]
        out_lane = [dim for dim, atom in enumerate(self.out_m) if atom.partition]
        lhs_lane = [dim for dim, atom in enumerate(self.lhs.free) if atom.partition]
        if out_lane and lhs_lane and out_lane != lhs_lane:
            return False  # a tile's rows are neighbours on the partitions
        rhs_lane = [dim for dim, atom in enumerate(self.rhs.free) if atom.partition]
        self.m_dim = next(iter(out_lane or lhs_lane), _largest(self.m_sizes))
        self.n_dim = next(iter(rhs_lane), _largest(self.n_sizes))
        return True

    @property
    def rows_whole(self) -> bool:
        """Whether the tiled dim of the rows lies on partitions, of lhs, the result or kept rows: no block cuts it."""
        on_partitions = self.m_dim >= 0 and (self.out_m[self.m_dim].partition or self.lhs.free[self.m_dim].partition)
        return on_partitions or self.keeps_rows

    @property
    def columns_whole(self) -> bool:
        """The same of the columns, on the partitions of rhs."""
        return self.n_dim >= 0 and self.rhs.free[self.n_dim].partition

    @property
    def tiled_rows(self) -> int:
        """Size of the dim of the rows (m) that is cut into tiles."""
        return self.m_sizes[self.m_dim] if self.m_dim >= 0 else 1

    @property
    def tiled_columns(self) -> int:
        """Size of the dim of the columns (n) that is cut into tiles."""
        return self.n_sizes[self.n_dim] if self.n_dim >= 0 else 1

    def chunk_sizes(self, segment: Segment) -> list[int]:
        """Sizes of the dims that count the chunks of a segment: those of k beside its dim on the partitions, steps."""
        return [*(size for dim, size in enumerate(self.k_sizes) if dim != self.k_dim), segment.outer]

    @property
    def other_terms(self) -> int:
        """Elements of k for each index of its dim on the partitions."""
        return prod(count for dim, count in enumerate(self.k_sizes) if dim != self.k_dim)

    def _chunks(self, dim: int) -> int:
        """Products for each tile of the result when k dim ``dim`` lies on the partitions."""
        size = self.k_sizes[dim]
        return prod(self.k_sizes) // size * sum(segment.outer for segment in segments_of(size))


def _on_partitions(classes: Iterable[Sequence[Atom]]) -> int:
    """Dims that lie on the partitions."""
    return sum(atom.partition for atoms in classes for atom in atoms)


def strided(data: np.ndarray, offset: int, atoms: Sequence[Atom]) -> np.ndarray:
    """The elements of a constant from byte ``offset`` on, as dims of these atoms."""
    raw = data.reshape(-1)[offset // data.itemsize :]
    sizes, strides = [atom.size for atom in atoms], [atom.stride for atom in atoms]
    # NumPy knows the bytes of each type, and not all types by name
    words = raw.view(f"u{raw.itemsize}")
    return np.lib.stride_tricks.as_strided(words, sizes, strides, writeable=False).view(raw.dtype)


def _largest(sizes: Sequence[int]) -> int:
    """The first dim of the largest size, -1 without any."""
    return max(range(len(sizes)), key=lambda dim: sizes[dim], default=-1)


def _order(rank: int, batch: Sequence[int], contracting: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    free = [axis for axis in range(rank) if axis not in batch and axis not in contracting]
    return list(batch), free, list(contracting)


def pe_dtype(op: hlo.DotOp) -> str:
    """Operand type on TensorE: 16- and 8-bit floats as they are (if both are), everything else FP32."""
    lhs, rhs = hlo.shape_of(op.lhs).dtype, hlo.shape_of(op.rhs).dtype
    if lhs == rhs and lhs in PE_DTYPES:
        return lhs
    return "f32"
