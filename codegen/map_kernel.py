"""Map kernels: elementwise ops and row reductions over one iteration space, tile by tile.

The iteration space is refined to dims that all inputs and outputs address with one stride each. One of
them goes to the partitions; the rest are free dims of the tile, of which the outermost become loops
when a tile would be too large. Inputs that live in SBUF are read where they are, others are loaded;
outputs are written where they will stay resident, or stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from neuronx_cc.codegen import elementwise
from neuronx_cc.codegen.builder import Affine, Block, Ring, emit_over
from neuronx_cc.codegen.context import Context, squeezed
from neuronx_cc.codegen.elementwise import Emitter, Operand, Splat
from neuronx_cc.codegen.graph import Kernel, base, squeeze, trace
from neuronx_cc.codegen.sync import Alloc
from neuronx_cc.codegen.transfer import copy
from neuronx_cc.codegen.transpose_kernel import LEAST_ELEMENTS
from neuronx_cc.codegen.views import Atom, View, align
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE, itemsize

STREAM_TILE_BYTES = 8192
"""Bytes a partition of one streamed tile: long DMA runs, short enough to overlap (hardware sheet 1.8.2)."""


UNROLL = 4
"""Tiles up to which a loop is unrolled."""
OVERLAP_COLUMNS = 512
"""Elements a partition of an on-chip tile when several engines take part: they overlap tile by tile."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Which elements lie on the partitions: index along ``axis`` is (outer, partition, inner)."""

    axis: int
    size: int
    inner: int


@dataclass(slots=True)
class MapPlan:
    """Everything about a map kernel but its addresses."""

    kernel: Kernel
    inputs: dict[hlo.SSAValue, View] = field(default_factory=dict)
    """External operands, as views of the kernel's whole shape."""
    iotas: dict[hlo.SSAValue, int] = field(default_factory=dict)
    """Counting operands -> axis of the kernel's shape."""
    outputs: dict[hlo.SSAValue, View] = field(default_factory=dict)
    """Results used outside, each as a view of its own squeezed shape."""
    lanes: Lanes | None = None


def lower(context: Context, kernel: Kernel, member: dict[hlo.SSAValue, Kernel], step: int) -> None:
    """Emit ``kernel`` and give its results homes."""
    plan = MapPlan(kernel)
    external = _operands(context, plan, member)
    plan.lanes = _choose_lanes(context, plan, external)
    for value in external:
        plan.inputs[value] = _choose_input(context, plan, value)
    results = [
        value
        for op in kernel.ops
        for value in op.results
        if _used_outside(value, kernel, member) or value in context.outputs
    ]
    for value in results:
        home = _choose_output(context, plan, value, step)
        context.homes[value] = [home]
        plan.outputs[value] = squeezed(home)
    _emit_boxes(context, plan, member, kernel.shape, plan.inputs, plan.outputs, (0,) * len(kernel.shape))


def _operands(context: Context, plan: MapPlan, member: dict[hlo.SSAValue, Kernel]) -> list[hlo.SSAValue]:
    """External operands that are arrays; fills ``plan.iotas``."""
    kernel = plan.kernel
    external: dict[hlo.SSAValue, None] = {}
    for op in kernel.ops:
        for operand in op.operands:
            if trace(operand, kernel, member) is not None or context.splat(operand) is not None:
                continue
            if isinstance(operand, hlo.OpResult) and isinstance(operand.op, hlo.IotaOp):
                dims = operand.op.shape.dims
                axis = operand.op.iota_dimension.data
                plan.iotas[operand] = len(squeeze(dims[:axis])) if dims[axis] != 1 else -1
                continue
            external[operand] = None
    return list(external)


def _full(view: View, kernel: Kernel) -> View:
    """A view of a full or row value, as one of the kernel's whole shape."""
    view = squeezed(view)
    if len(view.dims) < len(kernel.shape):
        return view.broadcast(kernel.shape, range(len(view.dims)))
    return view


def _lanes_of(view: View) -> Lanes | None:
    for axis, atoms in enumerate(view.dims):
        for index, atom in enumerate(atoms):
            if atom.partition:
                return Lanes(axis, atom.size, prod(a.size for a in atoms[index + 1 :]))
    return None


def _choose_lanes(context: Context, plan: MapPlan, external: Sequence[hlo.SSAValue]) -> Lanes | None:
    """The partition assignment of most resident bytes; without residents, the axis that fills most partitions."""
    kernel = plan.kernel
    row_axes = len(kernel.rows) if kernel.reduced else len(kernel.shape)
    votes: dict[Lanes, int] = {}
    for value in external:
        for view in context.views(value):
            lanes = _lanes_of(_full(view, kernel)) if view.in_sbuf else None
            if lanes is not None and lanes.axis < row_axes:
                votes[lanes] = votes.get(lanes, 0) + prod(hlo.shape_of(value).dims)
    if votes:
        return max(votes, key=lambda lanes: votes[lanes])
    if (not kernel.rows and kernel.reduced) or not kernel.shape:
        return None
    largest = max((prod(squeeze(hlo.shape_of(op.results[0]).dims)) for op in kernel.ops), default=1)
    streams = largest * 4 > 128 * 49152
    axes = range(row_axes) if kernel.reduced or len(kernel.shape) == 1 else range(len(kernel.shape) - 1)
    if streams:
        axis = max(range(row_axes), key=lambda axis: min(128, _divisor(kernel.shape[axis])) * 1000 - axis)
        size = _divisor(kernel.shape[axis]) if _divisor(kernel.shape[axis]) >= 64 else min(128, kernel.shape[axis])
        return Lanes(axis, size, kernel.shape[axis] // size)
    axis = max(axes, key=lambda axis: (_divisor(kernel.shape[axis]), axis))
    size = _divisor(kernel.shape[axis])
    if size < 32 and kernel.shape[axis] > 128:
        return Lanes(axis, 128, kernel.shape[axis] // 128)
    if len(kernel.shape) == 1 and not kernel.reduced:
        return Lanes(axis, size, kernel.shape[axis] // size)
    return Lanes(axis, size, 1)


def _divisor(size: int) -> int:
    """Largest divisor that fits the partitions."""
    return next(count for count in range(min(128, size), 0, -1) if size % count == 0)


def _choose_input(context: Context, plan: MapPlan, value: hlo.SSAValue) -> View:
    """A home that the kernel can address: resident with the same lanes, else HBM (copied if it lies across)."""
    for view in context.views(value):
        full = _full(view, plan.kernel)
        if plan.lanes is not None and view.in_sbuf and _lanes_of(full) == plan.lanes:
            return full
    full = _full(context.hbm(value), plan.kernel)
    if plan.lanes is not None and _lies_across(full, plan.lanes):
        return _full(context.dense(value), plan.kernel)
    return full


def _lies_across(view: View, lanes: Lanes) -> bool:
    """Whether neighbours in memory would go to different partitions, so that every element is a DMA run."""
    size = itemsize(view.dtype)
    atoms = [(axis, atom) for axis, dims in enumerate(view.dims) for atom in dims if atom.stride]
    if prod(atom.size for _, atom in atoms) < LEAST_ELEMENTS:
        return False
    contiguous = [axis for axis, atom in atoms if abs(atom.stride) == size]
    return contiguous == [lanes.axis] and lanes.inner == 1 and len(view.dims) > 1


def _used_outside(value: hlo.SSAValue, kernel: Kernel, member: dict[hlo.SSAValue, Kernel]) -> bool:
    for use in value.uses:
        user = use.operation
        if not isinstance(user, hlo.HloOp):
            return True
        if member.get(user.results[0]) is kernel:
            if trace(value, kernel, member) is None:
                return True
            continue
        if member.get(user.results[0]) is None and user.opcode != "tuple":
            if _used_outside(user.results[0], kernel, member):
                return True
            continue
        return True
    return False


def _choose_output(context: Context, plan: MapPlan, value: hlo.SSAValue, step: int) -> View:
    """Resident in the kernel's lanes if it fits and is used again soon; else HBM."""
    shape = hlo.shape_of(value)
    lanes = plan.lanes
    dims = squeeze(shape.dims)
    only_result = value in context.outputs and context.last_use(value) <= step
    if lanes is not None and not only_result and plan.kernel.shape[lanes.axis] % (lanes.size * lanes.inner) == 0:
        per_partition = prod(dims) // lanes.size * itemsize(shape.dtype)
        near = context.last_use(value) - step <= 48 or per_partition <= 1024
        alloc = context.new_resident(value, per_partition) if near else None
        if alloc is not None:
            return _unsqueezed(_resident(alloc, shape.dtype, dims, lanes), shape.dims)
    return context.new_hbm(value)


def _resident(alloc: Alloc, dtype: str, dims: Sequence[int], lanes: Lanes) -> View:
    stride = itemsize(dtype)
    atoms: list[tuple[Atom, ...]] = []
    for axis in reversed(range(len(dims))):
        pieces = [(dims[axis], False)]
        if axis == lanes.axis:
            pieces = [(dims[axis] // (lanes.size * lanes.inner), False), (lanes.size, True), (lanes.inner, False)]
        built = []
        for size, partition in reversed(pieces):
            if size == 1:
                continue
            built.append(Atom(size, 1 if partition else stride, partition))
            stride *= 1 if partition else size
        atoms.append(tuple(reversed(built)))
    return View(alloc, dtype, alloc.lo, tuple(reversed(atoms)))


def _unsqueezed(view: View, dims: Sequence[int]) -> View:
    pending = iter(view.dims)
    return replace(view, dims=tuple(() if size == 1 else next(pending) for size in dims))


# ---- emission ------------------------------------------------------------------------------------------------


def _emit_boxes(
    context: Context,
    plan: MapPlan,
    member: dict[hlo.SSAValue, Kernel],
    shape: tuple[int, ...],
    inputs: dict[hlo.SSAValue, View],
    outputs: dict[hlo.SSAValue, View],
    origin: tuple[int, ...],
) -> None:
    """Split off the rest of an axis that its lanes do not divide, then emit each box."""
    lanes = plan.lanes
    if lanes is not None and shape[lanes.axis] % (lanes.size * lanes.inner):
        whole = shape[lanes.axis] // (lanes.size * lanes.inner) * lanes.size * lanes.inner
        rest = shape[lanes.axis] - whole
        for start, size, box_lanes in (
            (0, whole, lanes),
            (whole, rest, Lanes(lanes.axis, _divisor(rest), rest // _divisor(rest))),
        ):
            if not size:
                continue
            box = replace(plan, lanes=box_lanes)
            box_shape = (*shape[: lanes.axis], size, *shape[lanes.axis + 1 :])
            box_origin = (*origin[: lanes.axis], origin[lanes.axis] + start, *origin[lanes.axis + 1 :])
            _emit_boxes(
                context,
                box,
                member,
                box_shape,
                {value: _cut(view, lanes.axis, start, size) for value, view in inputs.items()},
                {value: _cut(view, lanes.axis, start, size) for value, view in outputs.items()},
                box_origin,
            )
        return
    _Box(context, plan, member, shape, inputs, outputs, origin).emit()


def _cut(view: View, axis: int, start: int, size: int) -> View:
    cut = view.slice(axis, start, size)
    assert cut is not None, "boxes are cut from HBM views along whole rows"
    return cut


class _Box:
    """One rectangular part of a map kernel's space."""

    def __init__(
        self,
        context: Context,
        plan: MapPlan,
        member: dict[hlo.SSAValue, Kernel],
        shape: tuple[int, ...],
        inputs: dict[hlo.SSAValue, View],
        outputs: dict[hlo.SSAValue, View],
        origin: tuple[int, ...],
    ) -> None:
        self.context = context
        self.builder = context.builder
        self.plan = plan
        self.kernel = plan.kernel
        self.member = member
        self.shape = shape
        self.origin = origin
        self.rings: list[Ring] = []
        self.pool: dict[int, list[Ring]] = {}
        rows = len(self.kernel.rows) if self.kernel.reduced else len(shape)
        self.values = [*inputs, *outputs]
        views = [
            view if len(view.dims) == len(shape) else view.broadcast(shape, range(rows))
            for view in (*inputs.values(), *outputs.values())
        ]
        template = self._template()
        space = align([template, *views], shape, frozenset([rows]))
        if space is None:
            # a view whose atoms do not nest with the lanes: go through a dense copy
            views = [
                view if align([template, view], shape) is not None else self._dense(value, view)
                for value, view in zip(self.values, views, strict=True)
            ]
            space = align([template, *views], shape, frozenset([rows]))
        assert space is not None, "dense views align with anything"
        lane_dims = [dim for dim, atom in enumerate(space.atoms[0]) if atom.partition]
        self.lane_dim = lane_dims[0] if lane_dims else -1
        self.order = [dim for dim in range(len(space.sizes)) if dim != self.lane_dim]
        self.sizes = [space.sizes[dim] for dim in self.order]
        self.axes = [space.axes[dim] for dim in self.order]
        self.reduced = [axis >= rows for axis in self.axes]
        self.lanes = space.sizes[self.lane_dim] if lane_dims else 1
        self.iota_axes = [(space.axes[dim], space.atoms[0][dim]) for dim in range(len(space.sizes))]
        self.space = space
        self.blocks = {
            value: self._block(view, atoms)
            for value, view, atoms in zip(self.values, views, space.atoms[1:], strict=True)
        }
        self.inputs = list(inputs)
        self.counters: dict[int, Block] = {}
        """Looped free dim -> counter of the counting operands along it."""
        self.ring_of: dict[int, Ring] = {}
        self.double = False

    def _dense(self, value: hlo.SSAValue, view: View) -> View:
        return _full(self.context.dense(value), self.kernel)

    def _template(self) -> View:
        """A dense on-chip layout that marks the lanes."""
        lanes = self.plan.lanes
        alloc = Alloc(Space.SBUF, 0, 0)
        if lanes is None:
            lanes = Lanes(-1, 1, 1)
        return _resident(alloc, "u8", self.shape, lanes)

    def _block(self, view: View, atoms: list[Atom]) -> Block:
        head = atoms[self.lane_dim] if self.lane_dim >= 0 else Atom(1, 1 if view.in_sbuf else 0, view.in_sbuf)
        return Block(view.alloc, view.dtype, Affine(view.offset), (head, *(atoms[dim] for dim in self.order)))

    # the tile: which free dims are looped over -------------------------------------------------------------------

    def emit(self) -> None:
        self._loop(self._tile_budget(), dict(self.blocks))
        for ring in self.rings:
            self.builder.sbuf.free(ring.alloc)

    def _tile_budget(self) -> int:
        """Elements of one tile."""
        streamed = [block for block in self.blocks.values() if block.alloc.space is Space.HBM]
        live = len(self.kernel.ops) + len(self.inputs) + 2
        whole = prod(self.sizes)
        room = min(65536, int(self.builder.sbuf.largest_gap() * 0.7))
        # streaming kernels take small tiles that overlap; on-chip ones as much as fits
        if streamed and whole * 4 > STREAM_TILE_BYTES * 2:
            return max(1, min(room // (8 * min(live, 10)), STREAM_TILE_BYTES // 4))
        fits = max(1, room // (4 * min(live, 12)))
        if len(self.kernel.ops) > 1 and whole > OVERLAP_COLUMNS:
            return min(fits, max(OVERLAP_COLUMNS, -(-whole // UNROLL)))
        return fits

    def _loop(self, budget: int, blocks: dict[hlo.SSAValue, Block]) -> None:
        """Loop over outer free dims until the tile fits, then emit the body."""
        loops: list[tuple[int, int]] = []
        free = list(range(len(self.sizes)))
        sizes = list(self.sizes)
        while prod(sizes) > budget:
            candidates = [dim for dim in free if not self.reduced[dim] and sizes[dim] > 1]
            if not candidates:
                break
            dim = candidates[0]
            rest = prod(sizes) // sizes[dim]
            if rest >= budget:
                loops.append((dim, 1))
                sizes[dim] = 1
            else:
                step = max(1, budget // rest)
                divisor = next(size for size in range(step, 0, -1) if sizes[dim] % size == 0)
                step = divisor if divisor * 2 >= step else step
                loops.append((dim, step))
                sizes[dim] = step
                break
        self.double = bool(loops)
        self._nest(loops, {}, blocks)

    def _nest(
        self, loops: list[tuple[int, int]], starts: dict[int, tuple[Affine, int]], blocks: dict[hlo.SSAValue, Block]
    ) -> None:
        if not loops:
            self._body(starts, blocks)
            return
        (dim, step), *inner = loops
        for start, tiles, size in self.builder.tiles(self.sizes[dim], step):
            weight = self._iota_weight(dim) if tiles > UNROLL else 0
            if weight:
                self._start_counter(dim, start * weight)
            for index in self.builder.each(tiles, UNROLL):
                position = index * size + start
                cut = {value: block.index(dim + 1, position, size) for value, block in blocks.items()}
                self._nest(inner, {**starts, dim: (position, size)}, cut)
                if weight:
                    counter = self.counters[dim]
                    step_imm = [size * weight]
                    self.builder.emit("int_tensor_tensor", Stream.GPSIMD, [counter], [counter], ["add"], step_imm)
            self.counters.pop(dim, None)

    def _iota_weight(self, dim: int) -> int:
        """How much the counting operands along this dim's axis grow with one step of it; 0 when nothing counts."""
        axis = self.axes[dim]
        counting = set(self.plan.iotas.values()) | {
            len(squeeze(op.shape.dims[: op.iota_dimension.data]))
            for op in self.kernel.ops
            if isinstance(op, hlo.IotaOp)
        }
        if axis not in counting:
            return 0
        position = self.order[dim]
        return prod(size for at, size in enumerate(self.space.sizes) if self.space.axes[at] == axis and at > position)

    def _start_counter(self, dim: int, start: int) -> None:
        ring = self._ring(64, 1)
        block = Block(ring.alloc, "s32", Affine(ring.alloc.lo), (Atom(self.lanes, 1, True), Atom(1, 4)))
        self.builder.emit("memset", Stream.GPSIMD, [block], [], imm=[start])
        self.counters[dim] = block

    # the body ----------------------------------------------------------------------------------------------------

    def _tile(self, like_sizes: Sequence[int], dtype: str, rows_only: bool = False) -> Block:
        """A fresh rotating tile with dense free dims."""
        kept = [size if not (rows_only and self.reduced[dim]) else 1 for dim, size in enumerate(like_sizes)]
        nbytes = max(64, -(-prod(kept) * itemsize(dtype) // 64) * 64)
        count = 2 if self.double else 1
        rings = self.pool.setdefault(nbytes, [])
        ring = rings.pop() if rings else self._ring(nbytes, count)
        stride = itemsize(dtype)
        atoms = []
        for size in reversed(kept):
            atoms.append(Atom(size, stride))
            stride *= size
        free = [
            replace(atom, size=like_sizes[dim], stride=0) if rows_only and self.reduced[dim] else atom
            for dim, atom in enumerate(reversed(atoms))
        ]
        block = Block(ring.alloc, dtype, self.builder.slot(ring), (Atom(self.lanes, 1, True), *free))
        self.ring_of[id(ring.alloc)] = ring
        return block

    def _ring(self, nbytes: int, count: int) -> Ring:
        ring = self.builder.ring(self.builder.sbuf, nbytes, count, f"tile of {self.kernel.ops[0].opcode}")
        self.rings.append(ring)
        return ring

    def _give_back(self, block: Block) -> None:
        ring = self.ring_of.get(id(block.alloc))
        if ring is not None:
            self.pool[ring.nbytes].append(ring)

    def _body(self, starts: dict[int, tuple[Affine, int]], blocks: dict[hlo.SSAValue, Block]) -> None:
        self.ring_of = {}
        sizes = [starts[dim][1] if dim in starts else size for dim, size in enumerate(self.sizes)]
        row_dims = [0, *(dim + 1 for dim in range(len(sizes)) if not self.reduced[dim])]
        scratch: list[Block] = []

        def make_scratch(like: Block, dtype: str) -> Block:
            stride = itemsize(dtype)
            atoms = []
            for atom in reversed(like.dims[1:]):
                atoms.append(Atom(atom.size, stride))
                stride *= atom.size
            nbytes = max(64, -(-stride // 64) * 64)
            rings = self.pool.setdefault(nbytes, [])
            ring = rings.pop() if rings else self._ring(nbytes, 2 if self.double else 1)
            self.ring_of[id(ring.alloc)] = ring
            head = replace(like.dims[0], stride=1, partition=True)
            block = Block(ring.alloc, dtype, self.builder.slot(ring), (head, *reversed(atoms)))
            scratch.append(block)
            return block

        emitter = Emitter(self.builder, make_scratch)
        last_use = self._last_uses()
        here: dict[hlo.SSAValue, Block] = {}
        for value in self.inputs:
            here[value] = self._load(value, blocks[value], sizes)
        for value, axis in self.plan.iotas.items():
            here[value] = self._iota(value, axis, sizes, starts)
        for index, op in enumerate(self.kernel.ops):
            self.builder.mark(op.loc)
            result = op.results[0]
            is_row = bool(self.kernel.reduced) and squeeze(hlo.shape_of(result).dims) == self.kernel.rows
            reduces = isinstance(op, hlo.ReduceOp)
            ins = [self._operand(operand, here) for operand in op.operands]
            out = blocks.get(result)
            if out is None or out.alloc.space is Space.HBM:
                out = self._tile(sizes, op.shape.dtype, rows_only=is_row)
            elif is_row:
                out = replace(
                    out,
                    dims=tuple(
                        replace(atom, stride=0) if dim and self.reduced[dim - 1] else atom
                        for dim, atom in enumerate(out.dims)
                    ),
                )
            here[result] = out
            if is_row:
                out = out.select(row_dims)
                if not reduces:
                    ins = [operand.select(row_dims) if isinstance(operand, Block) else operand for operand in ins]
            if reduces:
                self._reduce(emitter, op, out, ins)
            elif isinstance(op, hlo.IotaOp):
                self._emit_iota(out, len(squeeze(op.shape.dims[: op.iota_dimension.data])), starts)
            else:
                elementwise.emit(emitter, op, out, ins)
            target = blocks.get(result)
            if target is not None and target.alloc.space is Space.HBM:
                stored = here[result].select(row_dims) if is_row else here[result]
                copy(self.builder, target.select(row_dims) if is_row else target, stored, Stream.DMA_STORE)
            for block in scratch:
                self._give_back(block)
            scratch.clear()
            for value in last_use.get(index, ()):
                if value in here and id(here[value].alloc) in self.ring_of:
                    self._give_back(here[value])
        self.builder.mark(self.kernel.ops[-1].loc)

    def _last_uses(self) -> dict[int, list[hlo.SSAValue]]:
        last: dict[hlo.SSAValue, int] = {}
        for index, op in enumerate(self.kernel.ops):
            last[op.results[0]] = index
            for operand in op.operands:
                source = trace(operand, self.kernel, self.member)
                last[operand if source is None else source] = index
        dying: dict[int, list[hlo.SSAValue]] = {}
        for value, index in last.items():
            dying.setdefault(index, []).append(value)
        return dying

    def _operand(self, operand: hlo.SSAValue, here: dict[hlo.SSAValue, Block]) -> Operand:
        source = trace(operand, self.kernel, self.member)
        if source is not None:
            return here[source]
        constant = self.context.splat(operand)
        if constant is not None:
            return Splat(constant, hlo.shape_of(operand).dtype)
        return here[operand]

    def _load(self, value: hlo.SSAValue, block: Block, sizes: Sequence[int]) -> Block:
        """The tile of an input: in place when resident, else loaded without its repetitions."""
        if block.alloc.space is not Space.HBM:
            return block
        repeated = [atom.stride == 0 for atom in block.dims[1:]]
        kept = [1 if rep else size for rep, size in zip(repeated, sizes, strict=True)]
        tile = self._tile(kept, block.dtype)
        dims = [0, *(dim + 1 for dim, rep in enumerate(repeated) if not rep)]
        stream = Stream.DMA_WEIGHT if is_given(value) else Stream.DMA_LOAD
        copy(self.builder, tile.select(dims), block.select(dims), stream)
        full = tuple(
            Atom(size, 0) if rep else atom for rep, size, atom in zip(repeated, sizes, tile.dims[1:], strict=True)
        )
        return replace(tile, dims=(tile.dims[0], *full))

    def _iota(
        self, value: hlo.SSAValue, axis: int, sizes: Sequence[int], starts: dict[int, tuple[Affine, int]]
    ) -> Block:
        tile = self._tile(sizes, hlo.shape_of(value).dtype)
        self._emit_iota(tile, axis, starts)
        return tile

    def _emit_iota(self, out: Block, axis: int, starts: dict[int, tuple[Affine, int]]) -> None:
        """Count along ``axis`` of the space: the dims of that axis are its mixed-radix digits."""
        digits = [dim for dim in range(len(self.space.sizes)) if self.space.axes[dim] == axis]
        weight = 1
        weights: dict[int, int] = {}
        for dim in reversed(digits):
            weights[dim] = weight
            weight *= self.space.sizes[dim]
        lane = weights.get(self.lane_dim, 0)
        steps = [weights.get(dim, 0) for dim in self.order]
        start = sum(position.const * steps[dim] for dim, (position, _) in starts.items())
        base = Affine(start + (self.origin[axis] if digits else 0))
        counters = [self.counters[dim] for dim in starts if steps[dim] and dim in self.counters]
        if not counters:
            self._plain_iota(out, base.const, lane, steps)
            return
        # a loop index is no immediate: counters kept in SBUF are added
        total = out if out.dtype in ("s32", "u32") else self._tile([atom.size for atom in out.dims[1:]], "s32")
        fixed = self.origin[axis] + sum(
            position.const * steps[dim] for dim, (position, _) in starts.items() if dim not in self.counters
        )
        self._plain_iota(total, fixed, lane, steps)
        for counter in counters:
            spread = replace(counter, dims=(counter.dims[0], *(Atom(a.size, 0) for a in total.dims[1:])))
            emit_over(self.builder, "int_tensor_tensor", Stream.GPSIMD, [total], [total, spread], ["add"])
        if total is not out:
            emit_over(self.builder, "convert", Stream.GPSIMD, [out], [total])

    def _plain_iota(self, out: Block, base: int, lane: int, steps: Sequence[int]) -> None:
        dims = [dim for dim in range(len(steps)) if out.dims[dim + 1].size > 1]
        while len(dims) > 4:
            outer = dims[0]
            for index in range(out.dims[outer + 1].size):
                self._plain_iota(out.index(outer + 1, Affine(index), 1), base + index * steps[outer], lane, steps)
            return
        target = out.select([0, *(dim + 1 for dim in dims)])
        self.builder.emit("iota", Stream.GPSIMD, [target], [], imm=[base, lane, *(steps[dim] for dim in dims)])

    def _reduce(self, emitter: Emitter, op: hlo.ReduceOp, out: Block, ins: Sequence[Operand]) -> None:
        opcode = self.context.combiners[op.to_apply.data[0]]
        source, init = ins
        if isinstance(source, Splat):
            raise CompileError("IRED001", "a reduction of a constant was not folded", "report this", op.loc)
        elementwise.reduce_rows(emitter, opcode, out, source)
        dtype = op.shape.dtype
        if isinstance(init, Splat):
            if init.value != identity(opcode, dtype):
                elementwise.emit_binary(emitter, opcode, dtype, out, out, init)
            return
        rows = [dim for dim in range(len(init.dims)) if dim == 0 or not self.reduced[dim - 1]]
        elementwise.emit_binary(emitter, opcode, dtype, out, out, init.select(rows))


def is_given(value: hlo.SSAValue) -> bool:
    """Whether the data is there before the program starts: a parameter or a constant."""
    source = base(value)
    return not isinstance(source, hlo.OpResult) or isinstance(source.op, hlo.ConstantOp)


def identity(opcode: str, dtype: str) -> float | None:
    """The value that leaves a combiner's other operand unchanged."""
    if opcode in ("add", "or", "xor"):
        return 0
    if opcode == "multiply":
        return 1
    if dtype == "pred":
        return 1 if opcode in ("and", "minimum") else 0
    if dtype in FLOATS:
        return float("-inf") if opcode == "maximum" else float("inf") if opcode == "minimum" else None
    info = np.iinfo(NUMPY_DTYPE[dtype])
    return {"maximum": int(info.min), "minimum": int(info.max), "and": -1 if info.min < 0 else int(info.max)}.get(
        opcode
    )
