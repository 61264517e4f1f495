"""Gathers and scatters of short rows on chip: each of GpSimd's processors has a table in its 16 partitions.

Input: the batched forms that ``passes.indexing.gather`` and ``passes.indexing.scatter`` make. Tables [G, R, W],
indices [G, N], rows [G, N, W]; all three dense in HBM. Tables that do not fit their partitions are worked on in chunks
of rows, with the indices counted from the start of the chunk; an index outside it does nothing. A gather from one table
has the table in all groups of partitions, and divides the list.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.indexing import LANES
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.indexing.costs import GROUPS

TABLE_SHARE = (8, 11)
"""Of a partition of SBUF: a table."""
LIST_SHARE = (1, 22)
"""The same for one tile of rows."""
REST_SHARE = (3, 11)
"""The same for what is left for lists."""
MAX_LIST = 1024
"""Entries a partition of one tile."""


@dataclass(slots=True)
class _Array:
    """A dense array in HBM whose last dim is the row; ``width`` elements."""

    alloc: Alloc
    dtype: str
    start: Affine
    dims: tuple[int, ...]
    """Tables or lists, rows or entries of one."""
    width: int
    splat: float | None = None
    """The value that all elements have, known at compile time; there is no buffer then."""

    @property
    def row(self) -> int:
        return self.width * itemsize(self.dtype)

    def partitions(self, which: Affine, first: Affine, partitions: int, entries: int) -> Block:
        """``partitions`` of ``entries`` rows each, one after the other from row ``first`` of table ``which``."""
        offset = which * (self.dims[1] * self.row) + first * self.row + self.start
        size = itemsize(self.dtype)
        atoms = (Atom(partitions, entries * self.row), Atom(entries, self.row), Atom(self.width, size))
        return Block(self.alloc, self.dtype, offset, atoms)


@dataclass(frozen=True, slots=True)
class _Part:
    """``count`` rows or entries from ``first`` on of each of ``groups`` tables or lists from ``table`` on."""

    table: Affine
    groups: int
    first: Affine
    count: int

    def of(self, group: int) -> _Part:
        """That of one table."""
        return replace(self, table=self.table + group, groups=1)


def _array(context: Context, value: hlo.SSAValue, stored: bool = False) -> _Array:
    """``stored``: in a buffer in any case."""
    shape = hlo.shape_of(value)
    splat = None if stored else context.splat(value)
    if splat is not None:
        return _Array(Alloc(Space.HBM, 0, 0), shape.dtype, Affine(), shape.dims[:2], prod(shape.dims[2:]), splat)
    view = context.dense(value)
    return _Array(view.alloc, view.dtype, view.start, shape.dims[:2], prod(shape.dims[2:]))


def gather(context: Context, op: hlo.GatherOp) -> None:
    """The result [G, N, W] in HBM."""
    context.homes[op.result] = [context.new_hbm(op.result)]
    _Walk(context, _array(context, op.lhs), _array(context, op.rhs, True), _array(context, op.result), "").emit()


def scatter(context: Context, op: hlo.ScatterOp) -> None:
    """The result [G, R, W] in HBM, another buffer than the operand's: every table goes through SBUF anyway."""
    operand, indices, updates = op.args
    context.homes[op.result] = [context.new_hbm(op.result)]
    kind = context.combiners.get(op.to_apply.data[0], "assign")
    walk = _Walk(context, _array(context, operand), _array(context, indices, True), _array(context, updates), kind)
    walk.result = _array(context, op.result)
    walk.emit()


class _Walk:
    """All tables, chunk by chunk, each with its whole list."""

    def __init__(self, context: Context, tables: _Array, numbers: _Array, rows: _Array, kind: str) -> None:
        self.context, self.builder = context, context.builder
        self.tables, self.numbers, self.rows = tables, numbers, rows
        self.kind = kind
        """The combiner of a scatter; empty for a gather."""
        self.result: _Array | None = None
        passes = -(-tables.dims[0] // GROUPS)
        gap = context.builder.sbuf.largest_gap()
        sizes = self.builder.sizes
        room = min(sizes.sbuf_share(TABLE_SHARE), max(gap - sizes.sbuf_share(REST_SHARE), gap // 2))
        whole = -(-tables.dims[1] // LANES) * tables.row
        self.pool = TilePool(context.builder, "tables", 2 if passes > 1 and 2 * whole <= room else 1)
        self.most = max(tables.row, room // self.pool.buffers)
        """Bytes a partition of one table."""
        self.lists = TilePool(context.builder, "lists", 2)
        self.shared = not kind and tables.dims[0] == 1
        """Whether all groups have the same table and divide its list."""

    def emit(self) -> None:
        for first, passes, groups in self.builder.tiles(self.tables.dims[0], GROUPS):
            with self.builder.loop(passes) as index:
                self._chunks(index * groups + first, GROUPS if self.shared else groups)
        self.pool.free()
        self.lists.free()

    def _chunks(self, table: Affine, groups: int) -> None:
        height, row = self.tables.dims[1], self.tables.row
        slots = max(1, self.most // row)
        count = -(-height // (LANES * slots))
        slots = -(-height // (LANES * count))
        size = min(height, LANES * slots)
        base = None
        if height > size:
            # the large tile first: what lies in the middle of the free bytes would leave no room for it
            self.pool.give_back(self.pool.tile([slots, self.tables.width], self.tables.dtype, LANES * groups))
            base = self.pool.tile([1], "s32", LANES * groups)
            self.builder.emit("memset", Stream.GPSIMD, [base], [], imm=[0])
        self._chunk(_Part(table, groups, Affine(), size), slots, base, True)
        for first, chunks, rows in self.builder.tiles(height - size, size):
            with self.builder.loop(chunks) as index:
                assert base is not None, "there is a second chunk"
                self.builder.emit("int_tensor_tensor", Stream.GPSIMD, [base], [base], ["add"], [size])
                self._chunk(_Part(table, groups, index * rows + (first + size), rows), slots, base, False)
        if base is not None:
            self.pool.give_back(base)

    def _chunk(self, part: _Part, room: int, base: Block | None, fresh: bool) -> None:
        """Rows of the tables, in a tile for ``room`` of them a partition; the first ones: ``fresh``."""
        slots = -(-part.count // LANES)
        whole = self.pool.tile([room, self.tables.width], self.tables.dtype, LANES * part.groups)
        tile = whole.index(1, Affine(), slots)
        if part.count % slots or part.count < LANES * slots or self.tables.splat is not None:
            self.builder.memset(tile.flat(), 0 if self.tables.splat is None else self.tables.splat)
        if self.tables.splat is None:
            self._move_tables(tile, self.tables, part, False)
        for start, tiles, entries, size in self._list_tiles(part.groups):
            with self.builder.loop(tiles) as index:
                self._tile(tile, replace(part, first=index * size + start, count=size), entries, base, fresh)
        if self.result is not None:
            self._move_tables(tile, self.result, part, True)
        self.pool.give_back(whole)

    def _list_tiles(self, groups: int) -> list[tuple[int, int, int, int]]:
        """(start, count, entries a partition, entries) of the tiles of a list."""
        partitions = LANES * groups if self.shared else LANES
        most = max(1, min(MAX_LIST, self.builder.sizes.sbuf_share(LIST_SHARE) // self.rows.row))
        pieces = self.builder.tiles(self.numbers.dims[1], partitions * most)
        return [(start, tiles, -(-size // partitions), size) for start, tiles, size in pieces]

    def _move_tables(self, tile: Block, array: _Array, part: _Part, store: bool) -> None:
        if not self.shared and self._is_dense(tile, array, part.count):
            self._move(tile, array, part, 0, store)
            return
        for group in range(part.groups):
            self._move(tile, array, part.of(0 if self.shared else group), group * LANES, store)

    def _move_lists(self, tile: Block, array: _Array, part: _Part, store: bool) -> None:
        if self.shared or self._is_dense(tile, array, part.count):
            self._move(tile, array, part.of(0) if self.shared else part, 0, store)
            return
        for group in range(part.groups):
            self._move(tile, array, part.of(group), group * LANES, store)

    def _is_dense(self, tile: Block, array: _Array, rows: int) -> bool:
        """Whether the tables or lists of neighbouring groups follow upon each other in memory as on the partitions."""
        return rows == array.dims[1] == LANES * tile.dims[1].size

    def _move(self, tile: Block, array: _Array, part: _Part, partition: int, store: bool) -> None:
        """Rows that follow upon each other in memory: to or from partitions ``partition`` and on."""
        slots = tile.dims[1].size
        full, rest = divmod(part.groups * part.count, slots)
        for start, partitions, entries in ((0, full, slots), (full, 1, rest)):
            if not partitions or not entries:
                continue
            outside = array.partitions(part.table, part.first + start * slots, partitions, entries)
            inside = Block(
                tile.alloc,
                tile.dtype,
                tile.offset,
                (Atom(partitions, 1, True), Atom(entries, tile.dims[1].stride), tile.dims[2]),
                partition + start,
            )
            ends = (outside, inside) if store else (inside, outside)
            copy(self.builder, *ends, Stream.DMA_STORE if store else Stream.DMA_LOAD)

    def _tile(self, tile: Block, part: _Part, entries: int, base: Block | None, fresh: bool) -> None:
        """Some entries of each list (of the one list, when it is shared), ``entries`` a partition."""
        builder, partitions = self.builder, LANES * part.groups
        numbers = self.lists.tile([entries, 1], self.numbers.dtype, partitions)
        rows = self.lists.tile([entries, self.rows.width], self.rows.dtype, partitions)
        partial = part.count < entries * (partitions if self.shared else LANES)
        keep = not self.kind and not fresh
        if partial:
            builder.emit("memset", Stream.GPSIMD, [numbers.flat()], [], imm=[-1])
            if keep or (self.kind and self.rows.splat is None):
                self.builder.memset(rows.flat(), 0)
        self._move_lists(numbers, self.numbers, part, False)
        if self.rows.splat is not None and self.kind:
            self.builder.memset(rows.flat(), self.rows.splat)
        elif self.kind or keep:
            self._move_lists(rows, self.rows, part, False)
        index = numbers.select([0, 1])
        if not self.kind:
            for bound, limit in (("maximum", 0), ("minimum", self.tables.dims[1] - 1)):
                builder.emit("int_tensor_tensor", Stream.GPSIMD, [index], [index], [bound], [limit])
        if base is not None:
            spread = Block(base.alloc, base.dtype, base.offset, (base.dims[0], Atom(entries, 0)))
            builder.emit("int_tensor_tensor", Stream.GPSIMD, [index], [index, spread], ["subtract"])
        if self.kind:
            builder.emit("group_scatter", Stream.GPSIMD, [tile], [rows, index], [self.kind])
        else:
            builder.emit("group_gather", Stream.GPSIMD, [rows], [tile, index], flags=["keep"] if keep else [])
            self._move_lists(rows, self.rows, part, True)
        self.lists.give_back(numbers)
        self.lists.give_back(rows)
