"""Chains of contractions and what lies between them: block of rows by block of rows, nothing between in HBM.

A block of rows has its products, rows on the partitions, in SBUF; elementwise ops and folds of rows are those of maps.
What is contracted along the columns is transposed; what is contracted along the rows is multiplied as it is, and adds
up in PSUM or SBUF over all blocks. Rows, and columns, are dealt out over the partitions, each of which takes
neighbours, so that all is loaded and stored in long runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from neuronx_cc.codegen.attention.kernel import NoRoomLeft
from neuronx_cc.codegen.chains.arrays import Array, Arrays, arrays_of
from neuronx_cc.codegen.chains.body import Body
from neuronx_cc.codegen.chains.choose import LEFT, schedule_of
from neuronx_cc.codegen.chains.cuts import chunk_of, chunks_of, parts_of
from neuronx_cc.codegen.chains.pattern import Chain, Sink
from neuronx_cc.codegen.chains.schedule import Extent, Schedule
from neuronx_cc.codegen.chains.slots import Slots
from neuronx_cc.codegen.chains.tasks import Group, Head, Task
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.filler import transposer_of
from neuronx_cc.codegen.dots.problem import pe_dtype, rounding_of
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.dots.transpose import Transposer
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.interleave import COMPUTING, Port, done
from neuronx_cc.codegen.emission.tiles import TilePool, pieces, tile_in
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Instr, Stream

UNROLLED_TURNS = 256
"""Banks of transposes that are no loop."""


def lower(context: Context, chain: Chain) -> None:
    """Emit the kernel and give the results of its last contractions homes."""
    builder = context.builder
    for op in (*chain.sources, *(sink.op for sink in chain.sinks)):
        dtype = pe_dtype(op)
        context.fixed.identity(carrier_of(dtype, context.moves_values(dtype)))
    schedule = schedule_of(context, chain, int(builder.sbuf.largest_gap() * LEFT))
    if schedule is None:
        raise NoRoomLeft(chain.sources[0])
    arrays = arrays_of(context, chain, schedule)
    builder.program.schedules[builder.kernel] = schedule.line()
    with TilePool(builder, f"chain {chain.sinks[-1].op.loc.name}") as pool:
        _Loops(context, chain, arrays, schedule, pool).emit()


@dataclass(slots=True)
class _Loops:
    """All heads, and all blocks of rows of each."""

    context: Context
    chain: Chain
    arrays: Arrays
    schedule: Schedule
    pool: TilePool
    tiles: Tiles = field(init=False)
    emitter: Emitter = field(init=False)
    body: Body = field(init=False)
    _order: list[hlo.HloOp | Sink] = field(init=False)
    _ends: dict[hlo.HloOp | Sink, list[hlo.SSAValue]] = field(init=False)
    _staying: set[hlo.DotOp] = field(init=False)
    _factors: dict[hlo.DotOp, tuple[hlo.HloOp, float] | None] = field(init=False)
    """What Scalar multiplies products with as it copies them, for the op that does so."""
    _extents: list[Extent] = field(init=False)
    """Of each block of rows."""
    _transposer: Transposer = field(init=False)
    _scores: Ring | None = field(init=False)
    _along: Ring = field(init=False)
    slots: Slots = field(init=False)
    _sums: dict[Sink, tuple[Ring, int]] = field(init=False)
    _free: dict[object, float] = field(default_factory=dict)
    """When banks of PSUM that one after the other fills are free."""
    _port: Port = field(default_factory=dict)
    _summed: dict[Sink, Head] = field(default_factory=dict)
    """Whose sums over rows are under way."""

    def __post_init__(self) -> None:
        builder, s = self.context.builder, self.schedule
        name = self.chain.sinks[-1].op.loc.name
        self.tiles = Tiles(builder, name, {}, self.pool)
        self.emitter = Emitter(builder, lambda like, dtype: self.body.scratch(like, dtype))
        self._sums = self._sum_banks([sink for sink in self.chain.sinks if sink.across])
        self._along = self.tiles.banks(1, "results")
        turns = self.tiles.banks(s.turning, "transposes")
        self.slots = Slots.of(self.pool, s, self.context.sizes) if s.stay else Slots()
        self._scores = None if s.stay else self.tiles.banks(s.products, "products")
        own = TilePool(builder, f"tile of chain {name}")
        self.body = Body(self.context, self.chain, s, own, self.slots, self.emitter)
        self._factors = {op: self.body.factor_of(op) for op in self.chain.sources}
        self._extents = [*map(s.extent, range(s.row_blocks))]
        self._order, self._ends, self._staying = self.body.order, self.body.ends, self.body.staying
        self._transposer = transposer_of(self.context, self.emitter, self.tiles, turns, UNROLLED_TURNS)

    def _sum_banks(self, sinks: Sequence[Sink]) -> dict[Sink, tuple[Ring, int]]:
        """Banks for the sums of each, and the first byte there: one for all, if they stay in PSUM and it holds them."""
        s, sizes, found = self.schedule, self.context.sizes, dict[Sink, tuple[Ring, int]]()
        ring, begin = None, 0
        for sink in sinks:
            if ring is None or not s.one_bank:
                banks = s.sum_banks(sink.width, sizes.bank_columns) if s.in_psum else 1
                ring, begin = self.pool.bank(banks * sizes.bank_bytes), 0
            if ring is None:
                raise NoRoomLeft(self.chain.sources[0])
            found[sink] = ring, begin
            begin += 4 * s.column_chunks * sink.width
        return found

    # ---- loops ----------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        self._around(())
        self.body.pool.free()

    def _around(self, at: tuple[Affine, ...]) -> None:
        """All heads of the dims around at ``at``; a body has several of the innermost, or all of several around it."""
        builder, sizes, heads = self.context.builder, self.chain.dims[:-2], self.schedule.heads
        if len(at) == len(sizes):
            self._heads([[at]])
        elif prod(sizes[len(at) + 1 :]) > heads:
            for index in builder.each(sizes[len(at)], 1):
                self._around((*at, index))
        else:
            inner = [*product(*map(range, sizes[len(at) + 1 :]))]
            for start, count, size in builder.tiles(sizes[len(at)], heads // len(inner)):
                for index in builder.each(count, 1):
                    each = [(*at, index * size + (start + number)) for number in range(size)]
                    self._heads([each] if len(at) == len(sizes) - 1 else self._rows_of(each, inner))

    def _rows_of(
        self, around: Sequence[tuple[Affine, ...]], inner: Sequence[tuple[int, ...]]
    ) -> list[list[tuple[Affine, ...]]]:
        """Heads in lists of those that differ in the innermost dim only."""
        last = self.chain.dims[-3]
        heads = [(*at, *map(Affine, each)) for at in around for each in inner]
        return [heads[start : start + last] for start in range(0, len(heads), last)]

    def _heads(self, lists: Sequence[Sequence[tuple[Affine, ...]]]) -> None:
        """Heads one after the other: next comes a step of the block that can go on first, as in ``interleave``.

        ``lists``: of those that may be loaded together.
        """
        builder, s = self.context.builder, self.schedule
        apart = -(-self.steps // s.under_way)
        groups = [Group(row[at], size) for row in lists for at, size in pieces(len(row), s.together)]
        places = [(group, place) for group in groups for place in range(group.size)]
        each_at = (at for row in lists for at in row)
        heads = [Head(number, at, *place) for number, (at, place) in enumerate(zip(each_at, places, strict=True))]
        waiting = deque((head, block) for head in heads for block in range(s.row_blocks))
        unstaged, staging, going = deque(heads), list[Task](), list[Task]()
        with builder.unrolled():
            self._free.clear()
            self._port.clear()
            free: dict[Stream, float] = {}
            while waiting or going:
                oldest = min([each.head.number for each in going] + [head.number for head, _ in [*waiting][:1]])
                if unstaged and not staging and unstaged[0].number - oldest < s.staged:
                    staging = [Task(unstaged.popleft(), 0, 0, going[0].ready if going else 0.0)]
                    staging[0].steps = self._staged(staging[0])
                near = not going or (going[-1].emitted >= apart and len(going) < s.under_way)
                if waiting and near and (there := waiting[0][0].there) is not None:
                    head, block = waiting.popleft()
                    ready = max(there, going[0].ready if going else 0.0)
                    rows = Task(head, block, len(self.chain.sources), ready)
                    rows.steps = self._block(rows, going)
                    going.append(rows)
                self._step([*going, *staging], free)
                going, staging = ([each for each in tasks if not each.is_done] for tasks in (going, staging))

    def _step(self, tasks: Sequence[Task], free: dict[Stream, float]) -> None:
        """Emit a step of the first that can go on: the oldest block always can, once its operands are there."""
        builder = self.context.builder
        for task in sorted(tasks, key=lambda each: each.ready):
            start = len(builder.program.records)
            goes_on = next(task.steps, None)
            if goes_on is None:
                task.is_done = True
                return
            if goes_on:
                task.emitted += 1
                for record in builder.program.records[start:]:
                    if isinstance(record, Instr) and record.stream in COMPUTING:
                        task.ready = done(builder.timing, record, free, task.ready, self._port)
                self._free.update(dict.fromkeys(task.fills, task.ready))
                task.fills.clear()
                self.slots.settle(task.ready)
                return

    def _until_free(self, task: Task, bank: object) -> Iterator[bool]:
        """Let others go first until ``bank`` of PSUM is free, and fill it in this step."""
        if self._free.get(bank, 0.0) > task.ready:
            task.ready = self._free[bank]
            yield False
        task.fills.append(bank)

    @property
    def steps(self) -> int:
        """Of a block of rows."""
        banks = -(-self.schedule.columns // self.context.sizes.bank_columns)
        return self.body.steps + len(self.chain.sources) * banks + len(self.chain.sinks) + 1

    # ---- operands -------------------------------------------------------------------------------------------------

    def _staged(self, task: Task) -> Iterator[bool]:
        """Operands of a head in SBUF: as they lie, rows on the partitions, and transposed."""
        head, timing = task.head, self.context.timing
        for op in self.chain.sources:
            for index in (0, 1):
                self._plain(head, self.arrays.operands[op, index], pe_dtype(op))
        for sink in self.chain.sinks:
            self._plain(head, self.arrays.others[sink], pe_dtype(sink.op))
        yield True
        task.ready += timing.transfer_latency
        for op in self.chain.sources:
            for index in (0, 1):
                yield from self._turned(task, op, index)
        head.there = task.ready

    def _plain(self, head: Head, array: Array, dtype: str) -> Block:
        """Rows of an operand as they lie [partition, neighbour, term]: on a partition neighbours."""
        key = array.key, dtype
        if key not in head.tiles:
            new = key not in head.group.tiles
            tile = head.tiles[key] = self._rows(head, array, key, dtype, f"operand {len(head.tiles)}")
            if new:
                self.context.builder.mark(array.loc)
                array.copy(self.context.builder, *self._moved(head, array, key, tile))
        return head.tiles[key]

    def _rows(self, head: Head, array: Array, key: object, dtype: str, name: str) -> Block:
        """Room for rows of a head [partition, neighbour, term]: in that of its group where they lie beside others'."""
        s, group = self.schedule, head.group
        if not array.abreast:
            return self.tiles.tile(dtype, [array.each, array.terms], array.parts, name, s.staged, True)
        if key not in group.tiles:
            sizes = [array.each, s.together, array.terms]
            tile = self.tiles.tile(dtype, sizes, array.parts, name, s.groups, True)
            group.tiles[key] = tile.index(2, Affine(0), group.size)
        return group.tiles[key].index(2, Affine(head.place))

    def _moved(self, head: Head, array: Array, key: object, tile: Block) -> tuple[Block, Block]:
        """What is loaded or stored at once: in SBUF, and in HBM."""
        group = head.group
        if array.abreast:
            return group.tiles[key], array.together(group.at, group.size)
        return tile, array.at(head.at)

    def _turned(self, task: Task, op: hlo.DotOp, index: int) -> Iterator[bool]:
        """Terms of an operand on the partitions, [term, chunk, row]; rows in blocks, columns in their order."""
        array, head, rows = self.arrays.operands[op, index], task.head, self.context.sizes.rows
        key = self._turned_key(op, index)
        if key in head.tiles:
            return
        plain = self._plain(head, array, pe_dtype(op))
        size, deep = array.rows, -(-array.terms // rows)
        name = f"operand {len(head.tiles)}"
        partitions = min(rows, array.terms)
        tile = self.tiles.tile(pe_dtype(op), [deep, size], partitions, name, self.schedule.staged, True)
        head.tiles[key] = tile
        for chunk, (start, terms) in enumerate(pieces(array.terms, rows)):
            yield from self._until_free(task, "transposes")
            self.context.builder.mark(op.loc)
            self._turn(plain.index(2, Affine(start), terms), tile.index(1, Affine(chunk)).on_partitions(terms), index)
            yield True

    def _turn(self, plain: Block, out: Block, index: int) -> None:
        """Rows [partition, neighbour, term] as [term, row], in blocks, or in the order of columns."""
        s, step, each = self.schedule, out.dims[1].stride, plain.dims[1].size
        parts, size = (s.column_parts, s.columns) if index else (s.row_parts, s.rows)
        whole, rest = divmod(size, parts)
        far, near = (step, each * step) if index and not s.in_order else (parts * step, step)
        for start, count, height in ((0, whole, parts), (whole, 1, rest)):
            if count and height:
                dims = out.dims[0], Atom(count, far), Atom(height, near)
                rows = plain.index(1, Affine(start), count).on_partitions(height)
                self._transposer.transpose(rows, out.moved(start * far).of(dims))

    def _turned_key(self, op: hlo.DotOp, index: int) -> object:
        return "transposed", index, self.arrays.operands[op, index].key, pe_dtype(op)

    # ---- a block of rows --------------------------------------------------------------------------------------------

    def _block(self, rows: Task, going: Sequence[Task]) -> Iterator[bool]:
        """A block of rows; False where it has to wait until others have gone on."""
        head, block, extent = rows.head, rows.block, self._extents[rows.block]
        self.body.extent = extent
        here = {value: self._loaded(head, array, block) for value, array in self.arrays.read.items()}
        summed: set[hlo.HloOp] = set()
        yield True
        for op in self._order:
            if isinstance(op, Sink):
                yield from self._sink(rows, op, here[op.value])
            elif isinstance(op, hlo.DotOp):
                while self.slots and (not self._may_take(rows, going) or self.slots.free_at > rows.ready):
                    if self._may_take(rows, going):
                        rows.ready = self.slots.free_at
                    yield False
                rows.left -= 1
                yield from self._products(head, op, block, here)
            elif op.results[0] not in here or isinstance(op, hlo.ReduceOp):
                self.body.extent = extent
                if self.body.emit(op, here, summed):
                    if op.results[0] in self.arrays.stored:
                        array = self.arrays.stored[op.results[0]]
                        copy(self.context.builder, self._beside(head, array, block), here[op.results[0]], array.stream)
                    yield True
            for value in self._ends.get(op, ()):
                self.body.pool.give_back(here[value])

    def _sink(self, rows: Task, sink: Sink, made: Block) -> Iterator[bool]:
        """Contract what is made of a block of rows; store the head's result after its last block."""
        head, mark = rows.head, self.context.builder.mark
        while sink.across and self._summed.get(sink, head) is not head:
            yield False
        if sink.across:
            if sink not in self._summed:
                yield from self._until_free(rows, sink)
            mark(sink.op.loc)
            self._summed[sink] = head
            self._across(head, sink, rows.block, made)
        else:
            yield from self._until_free(rows, "transposes")
            mark(sink.op.loc)
            transposed = self._transposed(made, self._extents[rows.block])
            yield True
            yield from self._until_free(rows, "results")
            mark(sink.op.loc)
            self._contracted(head, sink, rows.block, transposed)
            self.body.pool.give_back(transposed)
        head.done[sink] += 1
        if head.done[sink] == self.schedule.row_blocks:
            rows.fills.append(sink)
            self._store(head, sink)
            self._summed.pop(sink, None)
        yield True

    def _may_take(self, rows: Task, going: Sequence[Task]) -> bool:
        """Whether there is PSUM for products, beside what older blocks want."""
        older = sum(each.left for each in going[: next(at for at, each in enumerate(going) if each is rows)])
        return len(self.slots.idle) > older

    def _loaded(self, head: Head, array: Array, block: int) -> Block:
        """What is read beside the products [row, column], or [row] with repetitions."""
        s = self.schedule
        wide = bool(array.last.stride)
        tile = self.body.pool.tile([s.columns if wide else 1], array.view.dtype, s.row_parts)
        self.context.builder.mark(array.loc)
        room, source = self.body.room(tile), self._beside(head, array, block)
        into = room.of((room.dims[0], replace(room.dims[1], size=source.dims[1].size)))
        copy(self.context.builder, into, source, array.stream)
        return room

    def _beside(self, head: Head, array: Array, block: int) -> Block:
        """What of ``array`` lies beside the products of a block, [row, column], or one column."""
        extent, last = self._extents[block], array.last
        rows = array.at(head.at).index(1, Affine(block)) if array.rowed else array.at(head.at)
        column = Atom(extent.columns if last.stride else 1, last.stride)
        return rows.moved(extent.begin * last.stride).of((replace(rows.dims[0], size=extent.rows), column))

    def _products(self, head: Head, op: hlo.DotOp, block: int, here: dict[hlo.SSAValue, Block]) -> Iterator[bool]:
        """The products of a contraction for a block of rows [row, column]: in PSUM where there is room, else SBUF."""
        builder, sizes, s = self.context.builder, self.context.sizes, self.schedule
        left, right = (head.tiles[self._turned_key(op, index)] for index in (0, 1))
        depth = self.arrays.operands[op, 0].terms
        extent = self.body.extent = self._extents[block]
        if self.slots:
            out = here[op.result] = self.slots.take(builder, s.columns, extent.columns, extent.rows)
        else:
            out = here[op.result] = self.body.room(self.body.pool.tile([s.columns], op.shape.dtype, s.row_parts))
        for start, size in pieces(extent.columns, sizes.bank_columns):
            builder.mark(op.loc)
            part = out.index(1, Affine(start), size)
            ring = self._scores
            bank = part if ring is None else tile_in(builder, ring, [size], "f32", extent.rows, True)
            for chunk, (_, terms) in enumerate(pieces(depth, sizes.rows)):
                stationary = left.index(1, Affine(chunk)).index(1, Affine(block * s.row_parts), extent.rows)
                moving = right.index(1, Affine(chunk)).index(1, Affine(extent.begin + start), size)
                flags = ["accumulate"] * (chunk > 0) + [*rounding_of(op)]
                builder.multiply(bank, stationary.on_partitions(terms), moving.on_partitions(terms), flags)
            if not self.slots:
                self.body.leave(part, bank)
                yield True
        yield True
        if self.slots and op not in self._staying:
            builder.mark(op.loc)
            self.body.extent = extent
            reader, factor = self._factors[op] or (op, 1.0)
            here[reader.results[0]] = self.body.leave_at_once(out, factor)
            yield True

    def _transposed(self, made: Block, extent: Extent) -> Block:
        """Columns on the partitions [column, chunk, row]."""
        s, step = self.schedule, made.dims[1].stride
        transposed = self.body.pool.tile([s.column_chunks, s.row_parts], made.dtype, s.column_parts)
        near, far = (step, s.column_parts * step) if s.in_order else (s.column_chunks * step, step)
        whole, rest = divmod(extent.columns, s.column_parts)
        for start, count, size in ((0, whole, s.column_parts), (whole, 1, rest)):
            if count and size:
                out = transposed.index(1, Affine(start), count).index(2, Affine(), extent.rows).on_partitions(size)
                self._transposer.transpose(
                    made.moved(start * far).of((made.dims[0], Atom(count, far), Atom(size, near))), out
                )
        return transposed

    def _contracted(self, head: Head, sink: Sink, block: int, transposed: Block) -> None:
        """Contract the columns: the result's rows of this block."""
        builder, s, extent = self.context.builder, self.schedule, self._extents[block]
        other = self._plain(head, self.arrays.others[sink], pe_dtype(sink.op))
        bank = tile_in(builder, self._along, [sink.width], "f32", extent.rows, True)
        chunks = chunks_of(self.schedule, extent)
        for number, chunk in enumerate(chunks):
            flags = ["accumulate"] * (number > 0) + [*rounding_of(sink.op)]
            size = s.columns_of(chunk)
            stationary = transposed.index(1, Affine(number)).index(1, Affine(), extent.rows).on_partitions(size)
            builder.multiply(bank, stationary, other.index(1, Affine(chunk)).on_partitions(size), flags)
        if sink not in head.made:
            head.made[sink] = self._result(head, sink, sink.op.shape.dtype)
        self.body.leave(head.made[sink].index(1, Affine(block)).on_partitions(extent.rows), bank)

    def _result(self, head: Head, sink: Sink, dtype: str) -> Block:
        """Room for it, and, where it is summed in another type, for what is stored of it."""
        name = f"result {self.chain.sinks.index(sink)}"
        if dtype == sink.op.shape.dtype:
            return self._rows(head, self.arrays.results[sink], sink, dtype, name)
        sizes = [self.schedule.column_chunks, sink.width]
        return self.tiles.tile(dtype, sizes, self.schedule.column_parts, f"sums of {name}", self.schedule.staged, True)

    def _across(self, head: Head, sink: Sink, block: int, made: Block) -> None:
        """Contract the rows of this block: what they add to the result."""
        builder, s, extent = self.context.builder, self.schedule, self._extents[block]
        other = self._plain(head, self.arrays.others[sink], pe_dtype(sink.op)).index(1, Affine(block))
        other = other.on_partitions(extent.rows)
        if sink not in head.made:
            if s.in_psum:
                ring, begin = self._sums[sink]
                place = builder.slot(ring, True) + begin
                head.made[sink] = Block(ring.alloc, "f32", place, (Atom(s.column_parts, 1, True),))
            else:
                head.made[sink] = self._result(head, sink, "f32")
        for part, chunks in parts_of(s, builder.sizes, sink.width, head.made[sink], chunks_of(self.schedule, extent)):
            size = part.dims[0].size
            seen = [chunk in head.seen[sink] for chunk in chunks]
            if s.in_psum:
                bank = part
            else:
                bank = tile_in(builder, self._sums[sink][0], [len(chunks), sink.width], "f32", size, True)
            for number, chunk in enumerate(chunks):
                flags = ["accumulate"] * (s.in_psum and seen[number]) + [*rounding_of(sink.op)]
                builder.multiply(bank.index(1, Affine(number)), chunk_of(s, made, extent, chunk), other, flags)
            for number, before in enumerate(seen if not s.in_psum and len(set(seen)) > 1 else seen[:1]):
                several = (number, 1) if len(set(seen)) > 1 else (0, len(chunks))
                total, more = (x.index(1, Affine(several[0]), several[1]) for x in (part, bank))
                if not s.in_psum and before:
                    self.emitter.over("tensor_tensor", Stream.VECTOR, [total], [total, more], alu=["add"])
                elif not s.in_psum:
                    self.body.leave(total, more)
        head.seen[sink] |= {*chunks_of(self.schedule, extent)}

    def _store(self, head: Head, sink: Sink) -> None:
        """All of a head's result, from SBUF or PSUM."""
        builder, array, dtype = self.context.builder, self.arrays.results[sink], sink.op.shape.dtype
        builder.mark(sink.op.loc)
        made = head.made[sink]
        if sink.across and (self.schedule.in_psum or dtype != "f32"):
            out = self._result(head, sink, dtype)
            for part, chunks in parts_of(
                self.schedule, builder.sizes, sink.width, made, range(self.schedule.column_chunks)
            ):
                into = out.index(1, Affine(chunks.start), len(chunks)).on_partitions(part.dims[0].size)
                self.body.leave(into, part)
            made = out
        head.group.done[sink] += 1
        if not array.abreast or head.group.done[sink] == head.group.size:
            source, target = self._moved(head, array, sink, made)
            array.copy(builder, target, source)
