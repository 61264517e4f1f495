"""A box of a map kernel's space: how its tiles are cut and follow each other, and their emission."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from itertools import chain
from math import ceil, prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Block, Ring
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.formation.graph import trace
from neuronx_cc.codegen.maps import transposed
from neuronx_cc.codegen.maps.area import Area
from neuronx_cc.codegen.maps.between import between, elements_of, fit, gathered, gathered_bytes, within
from neuronx_cc.codegen.maps.body import Blocks, Body, Round
from neuronx_cc.codegen.maps.column_sums import ColumnSums
from neuronx_cc.codegen.maps.counting import Counting, Starts
from neuronx_cc.codegen.maps.crossing import Crossing
from neuronx_cc.codegen.maps.elementwise import ROUNDED
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
    telling_zeros,
    unmirrored,
)
from neuronx_cc.codegen.maps.lifetimes import Alive, Member, last_uses, tiles_alive, up
from neuronx_cc.codegen.maps.moved import loops_around, sooner
from neuronx_cc.codegen.maps.operands import Operands
from neuronx_cc.codegen.maps.overlap import BODY, UNROLL, Overlap, Tiles, overlap_of, tile_count
from neuronx_cc.codegen.maps.packed_rows import PackedRow
from neuronx_cc.codegen.maps.partitions import defer_partitions
from neuronx_cc.codegen.maps.parts import LEAST_TILE
from neuronx_cc.codegen.maps.plan import MapPlan, counted_axes
from neuronx_cc.codegen.maps.row_banks import banks_of, read_at_once, read_beside
from neuronx_cc.codegen.maps.row_reduction import sums_as_made, sums_of
from neuronx_cc.codegen.maps.space import loops_of, tile_space
from neuronx_cc.codegen.maps.staggered import Staggered
from neuronx_cc.codegen.maps.tile_size import tile_elements, whole_runs
from neuronx_cc.codegen.movement.transfer import put
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.types import NARROW, itemsize

Tile = Callable[[Starts, Blocks], Iterator[None]]
"""Emits the tile of blocks that starts there, step by step."""
SPREAD_TILES = 4
"""Tiles of a reduction from which it pays to repeat a row over the partitions once, which stays there."""
MOST_REPEATED = 2048
"""Elements that repeat up to which they come as FP32: longer rows, of which sections are taken, have little room."""
LEAST_SCALED = 64
"""Elements of a row from which an activation of its own scales it: a shorter one takes as long."""
MOST_SCALES = 256
"""Such instructions in a tile."""


class Box:
    """One rectangular part of a map kernel's space."""

    def __init__(self, context: Context, plan: MapPlan, member: Member, area: Area, columns: ColumnSums | None) -> None:
        self.context, self.builder, self.plan, self.member = context, context.builder, plan, member
        self.kernel = plan.kernel
        self.columns = columns
        self.pool = TilePool(context.builder, f"tile of {plan.kernel.ops[0].opcode}")
        self.loads = self.stores = self.pool
        """What is loaded and stored has memory of its own where several tiles are under way together."""
        self.overlap = Overlap(1)
        """How tiles follow each other."""
        self.inputs = dict.fromkeys(area.inputs)
        self.dying: dict[int, list[hlo.SSAValue]] = {}
        """Op number -> values that nothing after it reads."""
        arrays = {**area.inputs, **area.outputs}
        self.tiles = tiles = tile_space(context, plan, area.shape, arrays, counted_axes(self.plan), area.part)
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
        kept = {dim for dim in range(len(self.sizes)) if 0 < self.kernel.folded <= tiles.axis(dim)}
        self.whole = folded | {dim - 1 for dim in self.walk} | self.runs | kept
        """Free dims of which a tile holds all."""
        self.turner: transposed.Turner | None = None
        self.crossing: Crossing | None = None
        self.at_once: Set[hlo.HloOp] = set()
        """Sums over the partitions that the next instruction reads."""
        self.banks: Mapping[hlo.SSAValue, Ring] = {}
        """Values of rows -> where they lie in PSUM."""
        self.packed: dict[hlo.SSAValue, PackedRow] = {}
        """Rows of which sections are repeated over the partitions."""
        self.counting = Counting(self.builder, self.pool, tiles, area.origin)
        asked = self._is_scale, self._is_loaded, self._is_cast, self._is_repeated
        self.fusion = Fusion(context, self.kernel, member, area.outputs, *asked, plan.spreads_rows)
        self.fusion.loaded |= dict.fromkeys(filter(self._is_widened, self.inputs), "f32")
        done = {*self.fusion.within} - {cast for cast in self.fusion.widened if self._is_folded(cast)}
        self.ops = sum(op not in done and not self.kernel.is_row(op.shape) for op in self.kernel.ops)
        """That are emitted for all elements, casts of what is folded among them."""
        self.sums = sums_of(context, self.kernel, member)
        self.signed = telling_zeros(self.kernel.ops)
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

    def _is_cast(self, operand: hlo.SSAValue) -> bool:
        """Whether the DMA may cast ``operand`` as it comes from outside."""
        block = self.blocks.get(operand) if operand in self.inputs and operand not in self.plan.transposed else None
        return block is not None and block.alloc.space is Space.HBM

    def _is_repeated(self, operand: hlo.SSAValue) -> bool:
        """Whether the DMA may cast ``operand``, of which a tile repeats elements that come side by side, or from one
        partition.
        """
        if not self._is_cast(operand) or self._is_loaded(operand):
            return False
        block = self.blocks[operand]
        if elements_of(block) > MOST_REPEATED:
            return False
        return not block.dims[0].stride or gathered(self.builder.timing, block) is None

    def _is_folded(self, cast: hlo.HloOp) -> bool:
        """Whether rows of what ``cast`` widens are folded as they are."""
        return any(self.kernel.folds_rows(use.operation) for use in cast.results[0].uses)

    def _is_widened(self, operand: hlo.SSAValue) -> bool:
        """Whether the DMA makes FP32 of a narrow ``operand`` whose elements are repeated along rows: instructions take
        such a value a partition, or one for each of their rows, in FP32 alone.
        """
        block = self.blocks[operand]
        inner = next((atom for atom in reversed(block.dims[1:]) if atom.size > 1), None)
        if block.dtype not in NARROW or not self._is_cast(operand) or inner is None or inner.stride:
            return False
        readers = (op for op in self.kernel.ops if operand in op.sources)
        return operand not in self.fusion.loaded and all(op.opcode in ROUNDED for op in readers)

    # which free dims are looped over -----------------------------------------------------------------------------

    @contextmanager
    def begun(self) -> Iterator[None]:
        """What comes ahead of its tiles, and after them."""
        self.dying = last_uses(self.kernel, self.member, self.fusion.within)
        self.turner = transposed.Turner.of(self.context, self.pool, self.plan)
        self.crossing = Crossing.of(self.context, self.plan, self.pool)
        if self.crossing is not None:
            for cast in filter(self._is_folded, self.fusion.widened):  # ahead of the loops
                self.context.fixed.ones(self.partitions, hlo.shape_of(cast.operands[0]).dtype, self.partitions)
            self.at_once = read_at_once(self.kernel, self.fusion.within, self.blocks)
        if self.columns is not None:
            self.columns.begin(self.tiles)
        yield
        for pool in self._pools():
            pool.free()
        if self.columns is not None:
            self.columns.end()

    def emit_tiles(self) -> None:
        """Emit tiles that hold whole rows."""
        loaded, resident, tiles_of = self.loaded(), self.resident(), self.alive()
        own, timing = tiles_of.element_bytes, self.builder.timing
        streamed = [self.blocks[value] for value in self.inputs if value not in {*self.plan.transposed, *resident}]
        # sums over the partitions are within a bank, whatever lies between the elements of an array
        made = [self.blocks[value] for value in self.blocks if value not in self.inputs and value not in resident]
        again = [block for block in streamed if not (is_column(block, range(1, len(self.sizes) + 1)) or is_row(block))]
        around = (again, made) if self.crossing is None else ([], [])
        cut = partial(loops_around, timing, around, self.sizes, self.whole)
        alive = own + ceil(sum(between(timing, block) * elements_of(block) for block in streamed) / prod(self.sizes))
        room = int(self.builder.sbuf.largest_gap() * 0.95)
        repeated = self.inputs.keys() - {*resident, *loaded}
        wanted = {value: self.spread_bytes(value) for value in self.inputs if self.is_spread(value)}
        least = self.bytes_of(tiles_of, repeated - wanted.keys(), smallest := cut(LEAST_TILE))
        if sum(wanted.values()) > room - least:
            least = self.bytes_of(tiles_of, repeated, smallest)
        rows = kept_in(wanted, room - least)
        repeated -= rows.keys()
        room -= sum(rows.values())
        staying = kept_in(self.columns_to_keep(), room - least)
        room -= sum(staying.values())
        elements = self._most_elements(room // (2 * alive))
        taken = partial(self.bytes_of, tiles_of, repeated)
        loops = within(room, streamed, self.sizes, elements, cut, taken, timing)
        if any(gathered(timing, block) for block in again):
            alone = within(room, (), self.sizes, elements, partial(loops_of, self.sizes, self.whole), taken, timing)
            loops = sooner(timing, around, self.sizes, loops, alone)
        self.spread(rows, loops)
        steps = [dict(loops).get(dim, size) for dim, size in enumerate(self.sizes)]
        room = max(room, int(self.builder.sbuf.largest_gap() * 0.95) - sum(staying.values()))  # rows are there now
        aligned = max(own * prod(steps), self.bytes_of(tiles_of, (), loops))
        more = gathered_bytes(timing, streamed, loops)
        self._overlap(self.tiles_of(loops, own, aligned, more, room, loaded))
        tiles = UNROLL if self.overlap.interleaved else self.overlap.under_way
        if loops or own * prod(steps) + more > room:
            there = {*self.plan.transposed, *self.resident()}  # what is repeated over the partitions has its room
            loading = [self.blocks[value] for value in self.inputs if value not in there]
            fit(self.loads, loading, loops, aligned, room // tiles)
        kept = self.keep_columns(loops, staying)
        self.defer_partitions(loops)
        if not sums_as_made(self.builder.timing, steps, self.reduced):
            self.fusion.fold_narrow()
        self.dying = last_uses(self.kernel, self.member, self.fusion.within)
        self.banks = self._row_banks(steps)
        body = self.body()
        kernel, iotas = self.kernel, self.plan.iotas
        self.nest(
            loops,
            {},
            self.blocks,
            lambda starts, blocks: body.steps(starts, blocks, Round(kernel.ops, self.dying, self.inputs, iotas)),
        )
        self.store_columns(kept)

    def _most_elements(self, most: int) -> int:
        """Of a tile, of which there is room for ``most``."""
        inputs, sizes = self.inputs, self.sizes
        elements = tile_elements(self.builder, self.plan, self.blocks, inputs, sizes, self.walk, self.ops, most)
        return whole_runs(self.builder, self.plan, sizes, self.reduced, elements, most)

    def _row_banks(self, steps: Sequence[int]) -> Mapping[hlo.SSAValue, Ring]:
        """Where values of rows lie that share a partition with others, of tiles of ``steps``."""
        if not self.kernel.order and self.crossing is None:
            return {}
        kernel, rows = self.kernel, prod(step for step, folds in zip(steps, self.reduced, strict=True) if not folds)
        made = [x for x in read_beside(kernel) if x not in self.blocks or not kernel.is_row(hlo.shape_of(x))]
        together = UNROLL if self.overlap.interleaved else self.overlap.under_way
        made = [value for value in made if value.owner not in self.fusion and value.owner not in self.at_once]
        return banks_of(self.pool, made, rows, together)

    def defer_partitions(self, loops: Sequence[tuple[int, int]]) -> None:
        """Let instructions read values of one a partition where they lie, of tiles of ``loops``."""
        self.operands.partition_places = self.deferred(loops, (), self.fusion, self.kernel.ops)

    def deferred(
        self,
        loops: Sequence[tuple[int, int]],
        made: Collection[hlo.SSAValue],
        fusion: Fusion,
        ops: Sequence[hlo.HloOp],
    ) -> dict[hlo.HloOp, int]:
        """What instructions of ``ops`` read so, added to ``fusion``, of tiles of ``loops``, not what is ``made``."""
        steps = dict(loops)
        rows = prod(steps.get(dim, size) for dim, size in enumerate(self.sizes) if not self.reduced[dim])
        single = rows == 1 and not self.kernel.order and self.crossing is None
        splat = self.context.splat
        return defer_partitions(self.kernel, self.member, self.blocks, steps, fusion, splat, single, ops, made)

    def store_columns(self, kept: Sequence[tuple[Block, Block]]) -> None:
        """Store columns that stayed: (home, tile)."""
        for home, column in kept:
            varying = [0, *(dim for dim, atom in enumerate(home.dims) if dim and atom.stride)]
            put(self.builder, home.select(varying), column.select(varying), Stream.DMA_STORE)

    def resident(self) -> set[hlo.SSAValue]:
        """Arrays that lie on chip already, or are to stay there."""
        return {value for value, block in self.blocks.items() if block.alloc.space is not Space.HBM}

    def columns_to_keep(self) -> dict[hlo.SSAValue, int]:
        """Arrays that may be kept as columns, and the bytes a partition that each takes."""
        free, alignment = range(1, len(self.sizes) + 1), self.builder.sbuf.alignment
        left_out = set(self.plan.ends)  # their tiles have what is not stored
        if self.crossing is not None:
            left_out |= self.blocks.keys() - self.inputs.keys()
        some = {value: block for value, block in self.blocks.items() if value not in left_out}
        columns = {value: block for value, block in unmirrored(some) if is_column(block, free)}
        return {value: up(column_bytes(self.builder.timing, block), alignment) for value, block in columns.items()}

    def spread(self, rows: Iterable[hlo.SSAValue], loops: Sequence[tuple[int, int]]) -> None:
        """Repeat ``rows`` over the partitions once, where ``loops`` would load them again."""
        for value in rows:
            if self._is_reread(value, loops) and all(not self.blocks[value].dims[dim + 1].stride for dim, _ in loops):
                block = self.blocks[value]
                dtype = self.fusion.loaded.get(value, block.dtype)
                self.blocks[value] = spread_row(self.context, self.pool, value, block, self.partitions, dtype)

    def body(self) -> Body:
        return Body(
            self.context,
            self.plan,
            self.member,
            self.tiles,
            self.fusion,
            self.operands,
            self.inputs,
            self.sums,
            self.signed,
            self.counting,
            self.turner,
            self.columns,
            self.crossing,
            self.at_once,
            self.banks,
            self.pool,
            self.loads,
            self.stores,
            self.packed,
        )

    def loaded(self) -> list[hlo.SSAValue]:
        """Inputs in HBM of which a tile has all elements apart."""
        blocks = ((value, self.blocks[value]) for value in self.inputs)
        return [x for x, b in blocks if b.alloc.space is Space.HBM and all(atom.stride for atom in b.dims[1:])]

    def alive(self) -> Alive:
        """Tiles alive at once, of what is loaded, too."""
        given = [*self.loaded(), *self.plan.iotas]
        return tiles_alive(self.kernel, given, self.dying, {*self.fusion.within}, self.resident())

    def keep_columns(
        self, loops: Sequence[tuple[int, int]], staying: Container[hlo.SSAValue]
    ) -> list[tuple[Block, Block]]:
        """Tiles for few elements a partition that stay during all loops: (home, tile) of results, stored after them."""
        kept: list[tuple[Block, Block]] = []
        for value, block in self.blocks.items():
            if value not in staying or value in self.plan.transposed:
                continue
            if not is_column(block, [dim + 1 for dim, _ in loops]):
                continue
            dtype = self.fusion.loaded.get(value, block.dtype)
            if value in self.inputs:
                self.blocks[value] = keep_column(self.context, self.pool, value, block, self.partitions, dtype)
            elif self.kernel.reduced:
                self.blocks[value] = column_of(self.pool, block, self.partitions, dtype)
                kept.append((block, self.blocks[value]))
        return kept

    def _overlap(self, tiles: Tiles) -> None:
        """How ``tiles`` follow each other."""
        self.overlap = overlap_of(tiles, self.builder.timing)
        self.pool.buffers = self.overlap.buffers
        if self.overlap.loading:
            self.loads = TilePool(self.builder, self.pool.name, self.overlap.loading)
            self.stores = TilePool(self.builder, self.pool.name, self.overlap.storing)

    def tiles_of(
        self,
        loops: Sequence[tuple[int, int]],
        each: int,
        aligned: int,
        between: int,
        room: int,
        loaded: Sequence[hlo.SSAValue],
    ) -> Tiles:
        """Tiles of ``loops``, of ``each`` bytes an element and ``aligned`` in all, with ``between`` bytes for what lies
        between the elements that are ``loaded``, in ``room``.
        """
        steps = [dict(loops).get(dim, size) for dim, size in enumerate(self.sizes)]
        kernel, alignment, counted = self.kernel, self.builder.sbuf.alignment, counted_axes(self.plan)
        streamed = [b for b in self.blocks.values() if b.alloc.space is Space.HBM and all(a.stride for a in b.dims)]
        stored = {
            value: up(prod(steps) * itemsize(block.dtype), alignment)
            for value, block in self.blocks.items()
            if value not in self.inputs and block.alloc.space is Space.HBM and not kernel.is_row(hlo.shape_of(value))
        }
        fusion, dying = self.fusion, self.dying
        if kernel.reduced:  # of rows, numbers of which more ops read within another's instruction
            fusion = fusion.copy()
            self.deferred(loops, (), fusion, kernel.ops)
            dying = last_uses(kernel, self.member, fusion.within)
        at_once = {op.results[0] for index, op in enumerate(kernel.ops) if op.results[0] in dying.get(index, ())}
        elsewhere = {*loaded, *stored, *self.resident()}
        read = [up(prod(steps) * itemsize(self.blocks[value].dtype), alignment) for value in loaded]
        made = tiles_alive(kernel, [*self.plan.iotas], dying, {*fusion.within}, elsewhere)
        return Tiles(
            kernel=kernel,
            loops=tuple(loops),
            sizes=tuple(self.sizes),
            steps=tuple(steps),
            reduced=tuple(self.reduced),
            ops=self.ops,
            streamed=sum(itemsize(block.dtype) for block in streamed) * self.partitions,
            independent=not self.plan.transposed and not counted,
            least=each * prod(steps) + between,
            aligned=aligned + between,
            room=room,
            read=sum(read) + between,
            made=self.bytes_of(made, (), loops),
            written=sum(nbytes for value, nbytes in stored.items() if value in at_once),
            kept=sum(nbytes for value, nbytes in stored.items() if value not in at_once),
        )

    def bytes_of(self, alive: Alive, repeated: Collection[hlo.SSAValue], loops: Sequence[tuple[int, int]]) -> int:
        """Bytes a partition of one tile of each of ``alive``, and of inputs that are ``repeated`` in part."""
        sizes = {**dict(enumerate(self.sizes)), **dict(loops)}
        alignment = self.builder.sbuf.alignment
        row = prod(size for dim, size in sizes.items() if self.reduced[dim])
        nbytes = alive.aligned(prod(sizes.values()), prod(sizes.values()) // row, alignment)
        for value in repeated:
            block = self.blocks[value]
            elements = prod(sizes[dim] for dim, atom in enumerate(block.dims[1:]) if atom.stride)
            nbytes += up(elements * itemsize(self.fusion.loaded.get(value, block.dtype)), alignment)
        return max(1, nbytes)

    def is_spread(self, value: hlo.SSAValue) -> bool:
        """Whether ``value`` is a row that all partitions read in the same tiles again and again."""
        folds = self.kernel.scanned >= 0 or self.kernel.reduced > 0 or self.kernel.folded > 0
        return folds and self.partitions > 8 and is_row(self.blocks[value]) and value not in self.signed

    def spread_bytes(self, value: hlo.SSAValue) -> int:
        block = self.blocks[value]
        return spread_bytes(block, self.fusion.loaded.get(value, block.dtype))

    def _is_reread(self, value: hlo.SSAValue, loops: Sequence[tuple[int, int]]) -> bool:
        """Whether scans or many tiles read such a row, or several one that is too long to be repeated for each."""
        tiles = tile_count(self.sizes, loops)
        long = elements_of(self.blocks[value]) > 2 * self.builder.sizes.bank_columns
        return self.kernel.scanned >= 0 or tiles >= (2 if long else SPREAD_TILES)

    def nest(self, loops: list[tuple[int, int]], starts: Starts, blocks: Blocks, tile: Tile) -> None:
        if not loops:
            deque(tile(starts, blocks), 0)
            return
        (dim, step), *inner = loops
        if self.overlap.under_way > 1 and 2 * tile_count(self.sizes, inner) <= BODY:
            count = sum(op not in self.fusion and op not in self.at_once for op in self.kernel.ops)
            staggered = Staggered(self.builder, self.sizes, tile, count, self.overlap.under_way)
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
                    bodies.append(tile({**starts, dim: (position, size)}, cut))
                    if len(bodies) == tiles:
                        deque(chain.from_iterable(zip(*bodies, strict=True)), 0)
                    continue
                self.nest(inner, {**starts, dim: (position, size)}, cut, tile)
                if counted:
                    self.counting.step(dim, size * weight)
            self.counting.counters.pop(dim, None)
