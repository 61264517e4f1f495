"""Gathers and scatters of short rows on chip: each of GpSimd's processors has a table in its 16 partitions.

Input: the batched forms that ``passes.indexing.gather`` and ``passes.indexing.scatter`` make. Tables [G, A, R, B] (of
scatters [G, R, B]) whose rows are of A x B elements, indices [G, N], and lists of N rows, which a gather may write with
any leading dims of a row ahead of the list; all dense in HBM. Tables that do not fit their partitions are worked on in
chunks of rows, with the indices counted from the start of the chunk; an index outside it does nothing. Where a gather
has fewer tables than there are processors, several have the same table and divide its list. On chip the elements of a
row are neighbours: Vector brings them together, and apart, where other dims stand between them in HBM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Block, emit_over
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.indexing import LANES
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.small_types import COMPUTED
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.indexing.costs import Costs
from neuronx_cc.passes.indexing.tables import GROUPS, STAGE_SHARE, fills, gathered, list_entries

TABLE_SHARE = (8, 11)
"""Of a partition of SBUF: a table."""
REST_SHARE = (3, 11)
"""The same for what is left for lists."""


@dataclass(frozen=True, slots=True)
class _Array:
    """A dense array in HBM, [count, lead, length, width]: tables or lists of rows of lead x width elements."""

    alloc: Alloc
    dtype: str
    start: Affine
    count: int
    lead: int
    length: int
    width: int
    pitch: int
    """Bytes from one table or list to the next; 0 where all lists are the same."""
    splat: float | None = None
    """The value that all elements have, known at compile time; there is no buffer then."""

    @property
    def row(self) -> int:
        """Bytes."""
        return self.lead * self.width * itemsize(self.dtype)

    def leading(self, at: Affine, size: int) -> _Array:
        """``size`` of the leading dim from ``at`` on."""
        step = self.length * self.width * itemsize(self.dtype)
        return replace(self, start=self.start + at * step, lead=size)

    def partitions(self, which: Affine, first: Affine, partitions: int, entries: int) -> Block:
        """[partitions, lead, entries, width]: rows one after the other from row ``first`` of table ``which``."""
        size = itemsize(self.dtype)
        step = self.width * size
        atoms = (Atom(partitions, entries * step), Atom(self.lead, self.length * step), Atom(entries, step))
        return Block(
            self.alloc, self.dtype, which * self.pitch + first * step + self.start, (*atoms, Atom(self.width, size))
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """``count`` rows or entries from ``first`` on of each of ``groups`` tables or lists from ``table`` on."""

    table: Affine
    groups: int
    first: Affine
    count: int
    copies: int = 1
    """How often each lies on chip, side by side."""

    def of(self, group: int) -> _Part:
        """That of one table, once."""
        return replace(self, table=self.table + group, groups=1, copies=1)


def _array(context: Context, value: hlo.SSAValue, axis: int = 1) -> _Array:
    """``axis``: the dim of rows, or of entries."""
    shape = hlo.shape_of(value)
    dims = (shape.dims[0], prod(shape.dims[1:axis]), shape.dims[axis], prod(shape.dims[axis + 1 :]))
    splat = context.splat(value)
    if splat is not None:
        return _Array(Alloc(Space.HBM, 0, 0), shape.dtype, Affine(), *dims, 0, splat)
    view = context.dense(value)
    return _Array(view.alloc, view.dtype, view.start, *dims, prod(dims[1:]) * itemsize(shape.dtype))


def _numbers(context: Context, value: hlo.SSAValue) -> _Array:
    """Lists of indices [G, N], of which there may be one for all tables."""
    count, entries = hlo.shape_of(value).dims
    view = _repeated(context.hbm(value)) if context.splat(value) is None else None
    view = view or context.dense(value)
    pitch = view.dims[0][0].stride if view.dims[0] else 0
    return _Array(view.alloc, view.dtype, view.start, count, 1, entries, 1, pitch)


def _repeated(view: View) -> View | None:
    """``view`` where it has the same dense list for all tables."""
    tables, entries = (coalesce(atoms) for atoms in view.dims)
    same = all(atom.stride == 0 for atom in tables)
    dense = not entries or (len(entries) == 1 and entries[0].stride == itemsize(view.dtype))
    return replace(view, dims=(tables, entries)) if same and dense else None


def gather(context: Context, op: hlo.GatherOp) -> None:
    """The result in HBM: [G, N, A, B], [G, A, N, B] or [G, A, B, N]."""
    context.homes[op.result] = [context.new_hbm(op.result)]
    axis = next(dim for dim in (1, 2, 3) if dim not in op.dims.data.offset_dims)
    rows = _array(context, op.result, axis)
    problem = gathered(op)
    shares = Costs(context.timing).shares(problem)
    walk = _Walk(context, _array(context, op.lhs, 2), _numbers(context, op.rhs), rows, "", shares)
    walk.fills = fills(context.timing, problem, shares)
    walk.emit()


def scatter(context: Context, op: hlo.ScatterOp) -> None:
    """The result [G, R, W] in HBM, another buffer than the operand's: every table goes through SBUF anyway."""
    operand, indices, updates = op.args
    context.homes[op.result] = [context.new_hbm(op.result)]
    kind = context.combiners.get(op.to_apply.data[0], "assign")
    walk = _Walk(context, _array(context, operand), _numbers(context, indices), _array(context, updates), kind, 1)
    walk.result = _array(context, op.result)
    walk.emit()


class _Walk:
    """All tables, chunk by chunk, each with its whole list."""

    def __init__(self, context: Context, tables: _Array, numbers: _Array, rows: _Array, kind: str, shares: int) -> None:
        self.context, self.builder = context, context.builder
        self.tables, self.numbers, self.rows = tables, numbers, rows
        self.kind = kind
        """The combiner of a scatter; empty for a gather."""
        self.result: _Array | None = None
        self.fills = False
        """Whether transfers fill what tables and lists leave of their tiles; else engines clear it ahead of them."""
        self.shares = shares
        """Processors that have the same table and divide its list."""
        passes = -(-tables.count * shares // GROUPS)
        gap = context.builder.sbuf.largest_gap()
        sizes = self.builder.sizes
        rest = sizes.sbuf_share(REST_SHARE)
        stage_bytes = min(sizes.sbuf_share(STAGE_SHARE), gap // 4)
        if tables.lead > 1:
            rest += stage_bytes
        room = min(sizes.sbuf_share(TABLE_SHARE), max(gap - rest, gap // 2))
        whole = -(-tables.length // LANES) * tables.row
        self.pool = TilePool(context.builder, "tables", 2 if passes > 1 and 2 * whole <= room else 1)
        self.most = max(1, room // self.pool.buffers // tables.row)
        """Rows a partition of one table."""
        step = tables.width * itemsize(tables.dtype)
        if tables.lead > 1:
            self.most = min(self.most, max(1, stage_bytes // step))
        slots = -(-tables.length // (LANES * -(-tables.length // (LANES * self.most))))
        self.stages = TilePool(context.builder, "stages", 2 if 2 * slots * step <= stage_bytes else 1)
        """Of tables, as they lie in HBM."""
        self.stage_bytes = stage_bytes // self.stages.buffers
        self.lists = TilePool(context.builder, "lists", 2)

    def emit(self) -> None:
        for first, passes, groups in self.builder.tiles(self.tables.count, GROUPS // self.shares):
            with self.builder.loop(passes) as index:
                self._chunks(index * groups + first, groups)
        for pool in (self.pool, self.stages, self.lists):
            pool.free()

    def _partitions(self, groups: int) -> int:
        """Those of ``groups`` tables."""
        return LANES * self.shares * groups

    def _chunks(self, table: Affine, groups: int) -> None:
        height = self.tables.length
        count = -(-height // (LANES * self.most))
        slots = -(-height // (LANES * count))
        size = min(height, LANES * slots)
        base, partitions = None, self._partitions(groups)
        if height > size:
            # the large tile first: what lies in the middle of the free bytes would leave no room for it
            self.pool.give_back(self._table(slots, partitions))
            base = self.pool.tile([1], "s32", partitions)
            self.builder.emit("memset", Stream.GPSIMD, [base], [], imm=[0])
        self._chunk(_Part(table, groups, Affine(), size, self.shares), slots, base, True)
        for first, chunks, rows in self.builder.tiles(height - size, size):
            with self.builder.loop(chunks) as index:
                assert base is not None, "there is a second chunk"
                self.builder.emit("int_tensor_tensor", Stream.GPSIMD, [base], [base], ["add"], [size])
                part = _Part(table, groups, index * rows + (first + size), rows, self.shares)
                self._chunk(part, slots, base, False)
        if base is not None:
            self.pool.give_back(base)

    def _table(self, slots: int, partitions: int) -> Block:
        return self.pool.tile([slots, self.tables.lead * self.tables.width], self.tables.dtype, partitions)

    def _chunk(self, part: _Part, room: int, base: Block | None, fresh: bool) -> None:
        """Rows of the tables, in a tile for ``room`` of them a partition; the first ones: ``fresh``."""
        slots = -(-part.count // LANES)
        whole = self._table(room, self._partitions(part.groups))
        tile = whole.index(1, Affine(), slots)
        self._load(tile, self.tables, part)
        for start, tiles, entries, size in self._list_tiles():
            with self.builder.loop(tiles) as index:
                entry = _Part(part.table, part.groups, index * size + start, size)
                self._tile(tile, entry, entries, base, fresh)
        if self.result is not None:
            self._store(tile, self.result, part)
        self.pool.give_back(whole)

    def _list_tiles(self) -> list[tuple[int, int, int, int]]:
        """(start, count, entries a partition, entries) of the tiles of a list."""
        partitions = self._partitions(1)
        pieces = self.builder.tiles(self.numbers.length, partitions * list_entries(self.builder.sizes, self.rows.row))
        return [(start, tiles, -(-size // partitions), size) for start, tiles, size in pieces]

    def _load(self, tile: Block, array: _Array, part: _Part) -> None:
        """``tile`` [slots, elements of a row] of tables or lists."""
        slots, partitions = tile.dims[1].size, tile.dims[0].size
        if array.splat is not None:
            self.builder.memset(tile.flat(), array.splat)
            return
        cleared = not self.fills and part.count * part.groups * part.copies < slots * partitions
        if array.lead == 1:
            if cleared:
                self.builder.memset(tile.flat(), 0)
            for outside, inside in self._parts(tile, array):
                self._transfer(inside, outside, part, False)
            return
        pool = self._pool(array)
        for outside, inside in self._parts(tile, array):
            stage = pool.tile([outside.lead, slots, array.width], array.dtype, partitions)
            if cleared:
                self.builder.memset(stage.flat(), 0)
            self._transfer(stage, outside, part, False)
            self._bits(inside, stage)
            pool.give_back(stage)

    def _store(self, tile: Block, array: _Array, part: _Part) -> None:
        """``tile`` to tables or lists."""
        pool = self._pool(array)
        for outside, inside in self._parts(tile, array):
            stage = inside
            if array.lead > 1:
                stage = pool.tile([outside.lead, tile.dims[1].size, array.width], array.dtype, tile.dims[0].size)
                self._bits(stage, inside)
            self._transfer(stage, outside, part, True)
            if array.lead > 1:
                pool.give_back(stage, stored=True)

    def _pool(self, array: _Array) -> TilePool:
        """Of what is moved at once."""
        return self.lists if array is self.rows else self.stages

    def _parts(self, tile: Block, array: _Array) -> Iterator[tuple[_Array, Block]]:
        """Parts of the leading dim that are moved at once, in HBM and in ``tile``: [lead, slots, width]."""
        slots, size = tile.dims[1].size, itemsize(array.dtype)
        step = array.width * size
        rows = (Atom(slots, array.lead * step), Atom(array.width, size))
        most = array.lead if array is self.rows else max(1, min(array.lead, self.stage_bytes // (slots * step)))
        for first, count, several in self.builder.tiles(array.lead, most):
            with self.builder.loop(count) as index:
                at = index * several + first
                yield array.leading(at, several), tile.moved(at * step).of((tile.dims[0], Atom(several, step), *rows))

    def _bits(self, target: Block, source: Block) -> None:
        if target.dtype in COMPUTED:  # which engines have not
            target, source = replace(target, dtype="u8"), replace(source, dtype="u8")
        emit_over(self.builder, "tensor_copy", Stream.VECTOR, [target], [source])

    def _transfer(self, tile: Block, array: _Array, part: _Part, store: bool) -> None:
        """``tile`` [lead, slots, width] from tables or lists, or to them."""
        slots, copies = tile.dims[2].size, part.copies
        lanes = tile.dims[0].size // (part.groups * copies)
        follows = array.pitch == part.count * array.row and part.count == slots * lanes
        if copies == 1 and array.lead == 1 and follows:  # upon each other in memory as on the partitions
            self._move(tile, array, part, 0, store)
            return
        for group in range(part.groups * copies):
            one, first = part.of(group // copies), group * lanes
            self._move(tile, array, one, first, store)
            if self.fills and not store and part.count < slots * lanes:
                self._fill(tile, array, one, (first, lanes))

    def _move(self, tile: Block, array: _Array, part: _Part, partition: int, store: bool) -> None:
        """Rows that follow upon each other in memory: to or from partitions ``partition`` and on."""
        slots = tile.dims[2].size
        full, rest = divmod(part.groups * part.count, slots)
        for start, partitions, entries in ((0, full, slots), (full, 1, rest)):
            outside = array.partitions(part.table, part.first + start * slots, partitions, entries)
            ends = outside, _places(tile, partition + start, partitions, 0, entries)
            self._copy(*(ends if store else ends[::-1]), store)

    def _fill(self, tile: Block, array: _Array, part: _Part, group: tuple[int, int]) -> None:
        """The places of a ``group`` (first partition, partitions) that are left: by first rows, which nobody looks at.

        Engines that are busy with the tables before need not come to clear them before the transfer may begin.
        """
        (first, lanes), slots = group, tile.dims[2].size
        full, rest = divmod(part.count, slots)
        after = full + 1 if rest else full
        for start, partitions, place, entries in ((full, 1, rest, slots - rest), (after, lanes - after, 0, slots)):
            if rest or start == after:
                source = array.partitions(part.table, part.first, 1, entries)
                source = source.of((Atom(partitions, 0), *source.dims[1:]))
                self._copy(_places(tile, first + start, partitions, place, entries), source, False)

    def _copy(self, target: Block, source: Block, store: bool) -> None:
        if all(atom.size for atom in target.dims):
            copy(self.builder, target, source, Stream.DMA_STORE if store else Stream.DMA_LOAD)

    def _tile(self, tile: Block, part: _Part, entries: int, base: Block | None, fresh: bool) -> None:
        """Some entries of each list, ``entries`` a partition."""
        builder, partitions = self.builder, self._partitions(part.groups)
        numbers = self.lists.tile([entries, 1], self.numbers.dtype, partitions)
        rows = self.lists.tile([entries, self.rows.lead * self.rows.width], self.rows.dtype, partitions)
        keep = not self.kind and not fresh
        if not self.fills and part.count < entries * self._partitions(1):
            builder.emit("memset", Stream.GPSIMD, [numbers.flat()], [], imm=[-1])
        for outside, inside in self._parts(numbers, self.numbers):
            self._transfer(inside, outside, part, False)
        if self.kind or keep:
            self._load(rows, self.rows, part)
        index = numbers.select([0, 1])
        if not self.kind:
            for bound, limit in (("maximum", 0), ("minimum", self.tables.length - 1)):
                builder.emit("int_tensor_tensor", Stream.GPSIMD, [index], [index], [bound], [limit])
        if base is not None:
            spread = Block(base.alloc, base.dtype, base.offset, (base.dims[0], Atom(entries, 0)))
            builder.emit("int_tensor_tensor", Stream.GPSIMD, [index], [index, spread], ["subtract"])
        if self.kind:
            builder.emit("group_scatter", Stream.GPSIMD, [tile], [rows, index], [self.kind])
        else:
            builder.emit("group_gather", Stream.GPSIMD, [rows], [tile, index], flags=["keep"] if keep else [])
            self._store(rows, self.rows, part)
        self.lists.give_back(numbers)
        self.lists.give_back(rows)


def _places(tile: Block, partition: int, partitions: int, first: int, entries: int) -> Block:
    """``entries`` places from ``first`` on of some partitions of a tile [lead, slots, width]."""
    _, lead, slots, width = tile.dims
    atoms = (Atom(partitions, 1, True), lead, Atom(entries, slots.stride), width)
    return Block(tile.alloc, tile.dtype, tile.offset + first * slots.stride, atoms, partition)
