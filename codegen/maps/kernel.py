"""Map kernels: elementwise ops and row reductions over one iteration space, tile by tile.

The iteration space is refined to dims that all inputs and outputs address with one stride each. One of
them goes to the partitions; the rest are free dims of the tile, of which the outermost become loops
when a tile would be too large. Inputs that live in SBUF are read where they are, others are loaded;
outputs are written where they will stay resident, or stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.emitter import Deferred, Emitter, Readable, Splat
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.formation.graph import Kernel, trace
from neuronx_cc.codegen.maps import elementwise, scan_rows, transposed
from neuronx_cc.codegen.maps import inputs as map_inputs
from neuronx_cc.codegen.maps.ahead import copy_ahead
from neuronx_cc.codegen.maps.area import Area
from neuronx_cc.codegen.maps.axes import axes_view
from neuronx_cc.codegen.maps.between import between, elements_of, fit, gathered_bytes, loops_around
from neuronx_cc.codegen.maps.counting import Counting, Starts
from neuronx_cc.codegen.maps.fusion import Fusion
from neuronx_cc.codegen.maps.inputs import (
    column_bytes,
    column_of,
    is_column,
    is_row,
    keep_column,
    kept_in,
    spread_bytes,
    spread_row,
    tells_zeros,
    unmirrored,
)
from neuronx_cc.codegen.maps.joined import choose_plan
from neuronx_cc.codegen.maps.lifetimes import Alive, Member, last_uses, tiles_alive, up
from neuronx_cc.codegen.maps.operands import Operands
from neuronx_cc.codegen.maps.overlap import BODY, UNROLL, Overlap, Tiles, overlap_of, tile_count
from neuronx_cc.codegen.maps.partitions import defer_partitions, rows_of
from neuronx_cc.codegen.maps.parts import LEAST_TILE, fitting, too_long
from neuronx_cc.codegen.maps.plan import (
    MapPlan,
    Partitions,
    choose_input,
    choose_output,
    counted_axes,
    partition_divisor,
    results_of,
)
from neuronx_cc.codegen.maps.row_reduction import only_on_vector, reduce_rows, sums_as_made, sums_of
from neuronx_cc.codegen.maps.sections import emit_sections
from neuronx_cc.codegen.maps.space import Views, tile_space
from neuronx_cc.codegen.maps.staggered import Staggered
from neuronx_cc.codegen.maps.tile_size import tile_elements
from neuronx_cc.codegen.movement.transfer import put
from neuronx_cc.codegen.reductions import reduce_kernel
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.scans import scan_of
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.values import identity_of

SPREAD_TILES = 4
"""Tiles of a reduction from which it pays to repeat a row over the partitions once, which stays there."""
LEAST_SCALED = 64
"""Elements of a row from which an activation of its own scales it: a shorter one takes as long."""
MOST_SCALES = 256
"""Such instructions in a tile."""


def lower(context: Context, kernel: Kernel, member: Member, step: int) -> None:
    """Emit ``kernel``, in parts if rows that are reduced do not fit SBUF, and give its results homes."""
    for part in fitting(context, kernel, member, step):
        first = part.ops[0]
        if isinstance(first, hlo.ReduceOp) and too_long(context, part, member):
            reduce_kernel.lower(context, first, step)
        else:
            _lower_part(context, part, member, step)


def _lower_part(context: Context, kernel: Kernel, member: Member, step: int) -> None:
    plan, external = choose_plan(context, kernel, member, step)
    kernel = plan.kernel
    results = results_of(context, kernel, member)
    transposed.turn(context, plan, external)
    copy_ahead(context, plan, external)
    inputs = {value: choose_input(context, plan, value) for value in external}
    outputs: Views = {}
    for value in results:
        home = choose_output(context, plan, value, step)
        context.homes[value] = [home]
        outputs[value] = axes_view(home, kernel)
    _emit_boxes(context, plan, member, Area(kernel.shape, (0,) * len(kernel.shape), inputs, outputs))


def _emit_boxes(context: Context, plan: MapPlan, member: Member, area: Area) -> None:
    """Split off the rest of an axis that its partitions do not divide, then emit each box."""
    partitions = plan.partitions
    if partitions is None or not area.shape[partitions.axis] % (partitions.size * partitions.inner):
        _Box(context, plan, member, area).emit()
        return
    total, step = area.shape[partitions.axis], partitions.size * partitions.inner
    whole, rest = total // step * step, total % step
    rest_partitions = Partitions(partitions.axis, partition_divisor(rest), rest // partition_divisor(rest))
    if plan.transposed:
        rest_partitions = transposed.rest_partitions(context.timing, plan, area.shape, rest)
    for start, size, box_partitions in ((0, whole, partitions), (whole, rest, rest_partitions)):
        if size:
            _emit_boxes(
                context, replace(plan, partitions=box_partitions), member, area.cut(partitions.axis, start, size)
            )


class _Box:
    """One rectangular part of a map kernel's space."""

    def __init__(self, context: Context, plan: MapPlan, member: Member, area: Area) -> None:
        self.context, self.builder, self.plan, self.member = context, context.builder, plan, member
        self.kernel = plan.kernel
        self.pool = TilePool(context.builder, f"tile of {plan.kernel.ops[0].opcode}")
        self.loads = self.stores = self.pool
        """What is loaded and stored has memory of its own where several tiles are under way together."""
        self.overlap = Overlap(1)
        self.inputs = list(area.inputs)
        self.dying: dict[int, list[hlo.SSAValue]] = {}
        """Op number -> values that nothing after it reads."""
        arrays = {**area.inputs, **area.outputs}
        tiles = tile_space(context, plan, area.shape, arrays, counted_axes(self.plan), area.part)
        assert all(tiles.blocks[value].alloc is view.alloc for value, view in area.outputs.items()), "written at home"
        self.sizes, self.reduced, self.walk, self.partitions = tiles.sizes, tiles.reduced, tiles.walk, tiles.partitions
        self.blocks = tiles.blocks
        self.runs = {
            dim
            for dim in range(len(self.sizes))
            for value in plan.transposed
            if self.blocks[value].dims[dim + 1].stride == itemsize(self.blocks[value].dtype)
        }
        """Free dims of which a tile holds all, for runs of what is transposed."""
        folded = {dim for dim, reduced in enumerate(self.reduced) if reduced}
        self._whole = folded | {dim - 1 for dim in self.walk} | self.runs
        """Free dims of which a tile holds all."""
        self.turner: transposed.Turner | None = None
        self.counting = Counting(self.builder, self.pool, tiles, area.origin)
        self.fusion = Fusion(context, self.kernel, member, area.outputs, self._is_scale, self._is_loaded)
        self.ops = sum(op not in self.fusion and not self.kernel.is_row(op.shape) for op in self.kernel.ops)
        """That are emitted for all elements."""
        self.sums = sums_of(context, self.kernel, member)
        self._signed = frozenset(operand for op in self.kernel.ops if tells_zeros(op) for operand in op.operands)
        """Operands whose zeros' signs show in what is computed."""
        self.operands = Operands(context, self.kernel, member, self.fusion)

    def _pools(self) -> list[TilePool]:
        return [self.pool] if self.loads is self.pool else [self.pool, self.loads, self.stores]

    def _is_scale(self, operand: hlo.SSAValue) -> bool:
        """Whether ``operand`` has few values a partition, each for long rows, in a tile of its own."""
        source = trace(operand, self.kernel, self.member)
        block = self.blocks.get(operand) if source is None and operand in self.inputs else None
        if block is None or block.dtype != "f32" or not block.dims[0].stride:
            return False
        varying = prod(atom.size for atom in block.dims[1:] if atom.stride)
        return varying * LEAST_SCALED <= prod(self.sizes) and varying <= MOST_SCALES

    def _is_loaded(self, operand: hlo.SSAValue) -> bool:
        """Whether ``operand`` comes from outside and varies along all of a tile."""
        block = self.blocks.get(operand) if operand in self.inputs else None
        return block is not None and all(atom.stride or atom.size == 1 for atom in block.dims)

    # which free dims are looped over -----------------------------------------------------------------------------

    def emit(self) -> None:
        self.dying = last_uses(self.kernel, self.member, self.fusion.within)
        self.turner = transposed.Turner.of(self.context, self.pool, self.plan)
        loaded = [
            value
            for value in self.inputs
            if self.blocks[value].alloc.space is Space.HBM and all(atom.stride for atom in self.blocks[value].dims[1:])
        ]
        resident = {value for value, block in self.blocks.items() if block.alloc.space is not Space.HBM}
        tiles_of = tiles_alive(self.kernel, [*loaded, *self.plan.iotas], self.dying, {*self.fusion.within}, resident)
        own, timing, alignment = tiles_of.element_bytes, self.builder.timing, self.builder.sbuf.alignment
        streamed = [self.blocks[value] for value in self.inputs if value not in {*self.plan.transposed, *resident}]
        cut = partial(loops_around, timing, streamed, self.sizes, self._whole)
        alive = own + sum(between(timing, block) for block in streamed)
        room = int(self.builder.sbuf.largest_gap() * 0.95)
        repeated = [value for value in self.inputs if value not in resident and value not in loaded]
        wanted = {value: spread_bytes(self.blocks[value]) for value in self.inputs if self._is_spread(value)}
        others = [value for value in repeated if value not in wanted]
        least = self._bytes_of(tiles_of, others, smallest := cut(LEAST_TILE))
        if sum(wanted.values()) > room - least:
            least = self._bytes_of(tiles_of, repeated, smallest)
        rows = kept_in(wanted, room - least)
        repeated = [value for value in repeated if value not in rows]
        room -= sum(rows.values())
        free = range(1, len(self.sizes) + 1)
        columns = {value: block for value, block in unmirrored(self.blocks) if is_column(block, free)}
        taken = {value: up(column_bytes(timing, block), alignment) for value, block in columns.items()}
        staying = kept_in(taken, room - least)
        room -= sum(staying.values())
        loops = cut(
            elements := tile_elements(
                self.builder, self.plan, self.blocks, self.inputs, self.sizes, self.walk, self.ops, room // (2 * alive)
            ),
        )
        while self._bytes_of(tiles_of, repeated, loops) > room and elements > LEAST_TILE:
            loops = cut(elements := max(LEAST_TILE, elements // 2))
        for value in rows:
            if self._is_reread(value, loops) and all(not self.blocks[value].dims[dim + 1].stride for dim, _ in loops):
                self.blocks[value] = spread_row(self.context, self.pool, value, self.blocks[value], self.partitions)
        steps = [dict(loops).get(dim, size) for dim, size in enumerate(self.sizes)]
        room = max(room, int(self.builder.sbuf.largest_gap() * 0.95) - sum(staying.values()))  # rows are there now
        aligned = max(own * prod(steps), self._bytes_of(tiles_of, (), loops))
        more = gathered_bytes(timing, streamed, loops)
        self._overlap(loops, steps, own * prod(steps), aligned, more, room, loaded)
        tiles = UNROLL if self.overlap.interleaved else self.overlap.under_way
        if loops or own * prod(steps) + more > room:
            fit(self.loads, streamed, loops, aligned, room // tiles)
        kept = self._keep_columns(loops, staying)
        self.operands.partition_places = defer_partitions(
            self.kernel, self.member, self.blocks, dict(loops), self.fusion, self.context.splat
        )
        self.dying = last_uses(self.kernel, self.member, self.fusion.within)
        self._nest(loops, {}, self.blocks)
        for home, column in kept:
            varying = [0, *(dim for dim, atom in enumerate(home.dims) if dim and atom.stride)]
            put(self.builder, home.select(varying), column.select(varying), Stream.DMA_STORE)
        for pool in self._pools():
            pool.free()

    def _keep_columns(
        self, loops: Sequence[tuple[int, int]], staying: Container[hlo.SSAValue]
    ) -> list[tuple[Block, Block]]:
        """Tiles for few elements a partition that stay during all loops: (home, tile) of results, stored after them."""
        kept: list[tuple[Block, Block]] = []
        for value, block in self.blocks.items():
            if value not in staying or value in self.plan.transposed:
                continue
            if not is_column(block, [dim + 1 for dim, _ in loops]):
                continue
            if value in self.inputs:
                self.blocks[value] = keep_column(self.context, self.pool, value, block, self.partitions)
            elif self.kernel.reduced:
                self.blocks[value] = column_of(self.pool, block, self.partitions)
                kept.append((block, self.blocks[value]))
        return kept

    def _overlap(
        self,
        loops: Sequence[tuple[int, int]],
        steps: Sequence[int],
        least: int,
        aligned: int,
        between: int,
        room: int,
        loaded: Sequence[hlo.SSAValue],
    ) -> None:
        """How tiles of ``steps`` elements along each free dim follow each other, with ``between`` bytes for what lies
        between the elements that are loaded; see ``overlap.Tiles``.
        """
        kernel, alignment, counted = self.kernel, self.builder.sbuf.alignment, counted_axes(self.plan)
        streamed = [b for b in self.blocks.values() if b.alloc.space is Space.HBM and all(a.stride for a in b.dims)]
        stored = {
            value: up(prod(steps) * itemsize(block.dtype), alignment)
            for value, block in self.blocks.items()
            if value not in self.inputs and block.alloc.space is Space.HBM and not kernel.is_row(hlo.shape_of(value))
        }
        at_once = {op.results[0] for index, op in enumerate(kernel.ops) if op.results[0] in self.dying.get(index, ())}
        elsewhere = {*loaded, *stored, *(value for value, b in self.blocks.items() if b.alloc.space is not Space.HBM)}
        read = [up(prod(steps) * itemsize(self.blocks[value].dtype), alignment) for value in loaded]
        made = tiles_alive(kernel, [*self.plan.iotas], self.dying, {*self.fusion.within}, elsewhere)
        tiles = Tiles(
            kernel=kernel,
            loops=tuple(loops),
            sizes=tuple(self.sizes),
            steps=tuple(steps),
            reduced=tuple(self.reduced),
            ops=self.ops,
            streamed=sum(itemsize(block.dtype) for block in streamed) * self.partitions,
            independent=not self.plan.transposed and not counted,
            least=least + between,
            aligned=aligned + between,
            room=room,
            loaded=max(read, default=0),
            read=sum(read) + between,
            made=self._bytes_of(made, (), loops),
            written=sum(nbytes for value, nbytes in stored.items() if value in at_once),
            kept=sum(nbytes for value, nbytes in stored.items() if value not in at_once),
            f32=up(itemsize("f32") * prod(steps), alignment),
        )
        self.overlap = overlap_of(tiles, self.builder.timing)
        self.pool.buffers, self.pool.spare = self.overlap.buffers, self.overlap.spare
        if self.overlap.loading:
            self.loads = TilePool(self.builder, self.pool.name, self.overlap.loading)
            self.stores = TilePool(self.builder, self.pool.name, self.overlap.storing)

    def _bytes_of(self, alive: Alive, repeated: Sequence[hlo.SSAValue], loops: Sequence[tuple[int, int]]) -> int:
        """Bytes a partition of one tile of each of ``alive``, and of inputs that are ``repeated`` in part."""
        sizes = {**dict(enumerate(self.sizes)), **dict(loops)}
        alignment = self.builder.sbuf.alignment
        row = prod(size for dim, size in sizes.items() if self.reduced[dim])
        nbytes = alive.aligned(prod(sizes.values()), prod(sizes.values()) // row, alignment)
        for value in repeated:
            block = self.blocks[value]
            elements = prod(sizes[dim] for dim, atom in enumerate(block.dims[1:]) if atom.stride)
            nbytes += up(elements * itemsize(block.dtype), alignment)
        return max(1, nbytes)

    def _is_spread(self, value: hlo.SSAValue) -> bool:
        """Whether ``value`` is a row that all partitions read in the same tiles again and again."""
        folds = self.kernel.scanned >= 0 or self.kernel.reduced > 0
        return folds and self.partitions > 8 and is_row(self.blocks[value]) and not self._shows_zero_sign(value)

    def _is_reread(self, value: hlo.SSAValue, loops: Sequence[tuple[int, int]]) -> bool:
        """Whether scans or many tiles read such a row, or several one that is too long to be repeated for each."""
        tiles = tile_count(self.sizes, loops)
        long = elements_of(self.blocks[value]) > 2 * self.builder.sizes.bank_columns
        return self.kernel.scanned >= 0 or tiles >= (2 if long else SPREAD_TILES)

    def _nest(self, loops: list[tuple[int, int]], starts: Starts, blocks: dict[hlo.SSAValue, Block]) -> None:
        if not loops:
            deque(self._steps(starts, blocks), 0)
            return
        (dim, step), *inner = loops
        if self.overlap.under_way > 1 and 2 * tile_count(self.sizes, inner) <= BODY:
            count = sum(op not in self.fusion for op in self.kernel.ops)
            staggered = Staggered(self.builder, self.sizes, self._steps, count, self.overlap.under_way)
            staggered.emit(loops, starts, blocks)
            return
        for start, tiles, size in self.builder.tiles(self.sizes[dim], step):
            counted = tiles > UNROLL and self.counting.axis(dim) in counted_axes(self.plan)
            weight = self.counting.weight(dim)
            if counted:
                self.counting.start(dim, start * weight)
            bodies: list[Iterator[None]] = []
            for index in self.builder.each(tiles, UNROLL):
                position = index * size + start
                cut = {value: block.index(dim + 1, position, size) for value, block in blocks.items()}
                if self.overlap.interleaved:
                    bodies.append(self._steps({**starts, dim: (position, size)}, cut))
                    if len(bodies) == tiles:
                        deque(chain.from_iterable(zip(*bodies, strict=True)), 0)
                    continue
                self._nest(inner, {**starts, dim: (position, size)}, cut)
                if counted:
                    self.counting.step(dim, size * weight)
            self.counting.counters.pop(dim, None)

    # the body ----------------------------------------------------------------------------------------------------

    def _steps(self, starts: Starts, blocks: dict[hlo.SSAValue, Block]) -> Iterator[None]:
        """Emit a tile, op by op."""
        sizes = [starts[dim][1] if dim in starts else size for dim, size in enumerate(self.sizes)]
        row_dims = [0, *(dim + 1 for dim in range(len(sizes)) if not self.reduced[dim])]
        scratch: list[Block] = []
        summed: set[hlo.HloOp] = set()

        def make_scratch(like: Block, dtype: str) -> Block:
            scratch.append(self.pool.like(like, dtype))
            return scratch[-1]

        emitter = Emitter(self.builder, make_scratch, pace=_pace(self.builder.timing))
        within = {*self.fusion.users, *self.fusion.functions}
        ahead = only_on_vector(self.kernel, within, self.sums, self._is_array, prod(sizes), blocks)
        emitter.vector_load = sum(ahead.values())
        here = self._load(emitter, blocks, sizes, starts)
        yield
        for index, op in enumerate(self.kernel.ops):
            if op in self.fusion:
                continue
            self.builder.mark(op.loc)
            emitter.vector_load -= ahead.get(op, 0)
            result = op.results[0]
            is_row, home = self.kernel.is_row(hlo.shape_of(result)), blocks.get(result)
            if result not in here:
                here[result] = self._destination(home, sizes, op.shape.dtype, is_row)
            out = here[result].select(row_dims) if is_row else here[result]
            op = self.fusion.casts.get(op, op)
            ins = self.operands.of(op, here)
            if isinstance(op, hlo.ReduceOp):
                if isinstance(ins[0], Splat):
                    scratch.append(self.pool.tile(sizes, ins[0].dtype, self.partitions))
                    emitter.copy(scratch[-1], ins[0])
                    ins[0] = scratch[-1]
                self._reduce(emitter, op, out, ins, row_dims, op in summed)
            elif isinstance(op, hlo.IotaOp):
                head, *free = here[result].dims
                once = (Atom(1, 0) if is_row and fold else atom for atom, fold in zip(free, self.reduced, strict=True))
                axis = self.kernel.axis_of(op.shape.dims, op.iota_dimension.data)
                self.counting.emit(here[result].of((head, *once)), axis, starts)
            elif scan_of(op) is not None:
                scan_rows.emit(self.context, self.pool, op, out, ins, self.walk)
            else:
                total = self.sums.get(op)
                if total is not None and sums_as_made(self.builder.timing, sizes, self.reduced):
                    at = self._destination(blocks.get(total.result), sizes, total.shape.dtype, True)
                    here[total.result], emitter.summing = at, (out, at)
                if is_row or self.overlap.sections is None:
                    elementwise.emit(emitter, op, out, [rows_of(x, row_dims) for x in ins] if is_row else ins)
                else:
                    emit_sections(self.overlap.sections, self.pool, emitter, op, out, ins, row_dims)
                if total is not None and total.result in here and emitter.summing is None:
                    summed.add(total)
                emitter.summing = None
            self._store(home, out, row_dims, is_row)
            while scratch:
                self.pool.give_back(scratch.pop(0))
            self._give_back({value: here[value] for value in self.dying.get(index, ()) if value in here})
            yield
        self.builder.mark(self.kernel.ops[-1].loc)

    def _give_back(self, tiles: Mapping[hlo.SSAValue, Block]) -> None:
        """The tiles of values that nothing reads any more."""
        for value, tile in tiles.items():
            for pool in self._pools():
                pool.give_back(tile, stored=value in self.blocks and value not in self.inputs)

    def _store(self, home: Block | None, out: Block, row_dims: Sequence[int], is_row: bool) -> None:
        """Store what is ``out`` where it lives, if that is HBM."""
        if home is not None and home.alloc.space is Space.HBM:
            there, sections = (home.select(row_dims), None) if is_row else (home, self.overlap.sections)
            for target, source in [(there, out)] if sections is None else sections.of(there, out):
                put(self.builder, target, source, Stream.DMA_STORE)

    def _load(
        self, emitter: Emitter, blocks: dict[hlo.SSAValue, Block], sizes: Sequence[int], starts: Starts
    ) -> dict[hlo.SSAValue, Block]:
        """The tiles of what others made, and of what counts."""
        inputs = {value: blocks[value] for value in self.inputs if value not in self.plan.transposed}
        signs = self._shows_zero_sign
        here = map_inputs.load_all(self.context, self.loads, inputs, self.partitions, signs, self.overlap.sections)
        if self.turner is not None:
            here |= {value: self.turner.load(value, blocks[value], emitter) for value in self.plan.transposed}
        for value, axis in self.plan.iotas.items():
            here[value] = self.pool.tile(sizes, hlo.shape_of(value).dtype, self.partitions)
            self.counting.emit(here[value], axis, starts)
        return here

    def _shows_zero_sign(self, value: hlo.SSAValue) -> bool:
        """Whether an op here may tell -0 from 0 in its operand ``value``."""
        return value in self._signed

    def _destination(self, home: Block | None, sizes: Sequence[int], dtype: str, is_row: bool) -> Block:
        """The resident home itself, or a tile; of a row value, with the reduced dims as repetitions."""
        folded = [is_row and reduced for reduced in self.reduced]
        if home is None or home.alloc.space is Space.HBM:
            kept = [1 if fold else size for fold, size in zip(folded, sizes, strict=True)]
            home = (self.pool if home is None else self.stores).tile(kept, dtype, self.partitions)
        free = (Atom(size, 0) if fold else atom for fold, size, atom in zip(folded, sizes, home.dims[1:], strict=True))
        return replace(home, dims=(home.dims[0], *free))

    def _is_array(self, operand: hlo.SSAValue) -> bool:
        """Whether a tile has several values a partition of ``operand``."""
        source = trace(operand, self.kernel, self.member)
        if source is not None:
            return not self.kernel.is_row(hlo.shape_of(source))
        block = self.blocks.get(operand)
        return block is None or any(
            atom.stride and atom.size > 1 and self.reduced[dim] for dim, atom in enumerate(block.dims[1:])
        )

    def _reduce(
        self,
        emitter: Emitter,
        op: hlo.ReduceOp,
        out: Block,
        ins: Sequence[Readable],
        row_dims: Sequence[int],
        summed: bool,
    ) -> None:
        """Fold rows into ``out``, unless what made them has ``summed`` them up."""
        opcode = self.context.combiners[op.to_apply.data[0]]
        source, init = ins
        assert isinstance(source, Block), "deferred ops have one user, an elementwise op"
        folded = [dim + 1 for dim, reduced in enumerate(self.reduced) if reduced]
        made = self.operands.sources[op.operands[0]]
        home = self.blocks.get(op.operands[0] if made is None else made)
        own = home is None
        if not summed:
            reduce_rows(emitter, opcode, out, source.select([*row_dims, *folded]), own)
        dtype = op.shape.dtype
        start = rows_of(init, row_dims)
        assert not isinstance(start, Deferred), "only arithmetic reads deferred operands"
        # the engines sum from +0, which either zero leaves as it is
        if not isinstance(start, Splat) or start.value != identity_of(opcode, dtype):
            elementwise.emit_binary(emitter, opcode, dtype, out, out, start)


def _pace(timing: Timing) -> float:
    """How many elements Scalar makes while Vector makes one."""
    return timing.cycle(Stream.VECTOR) / timing.cycle(Stream.SCALAR)
