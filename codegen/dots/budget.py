"""How a contraction is cut into blocks that fit SBUF, and which operand's blocks stay while the other's stream past."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.dots.plan import TILE_COLUMNS, TILE_ROWS, DotPlan, Side
from neuronx_cc.codegen.maps.plan import LONG_RUN
from neuronx_cc.codegen.movement.halves import HALVES
from neuronx_cc.ir.types import itemsize

RESULT_COLUMNS = 2048
"""Columns of a result row that are stored together."""
RESULT_BUFFERS = 3
RESULT_ROW_BYTES = 16384
"""Bytes of a result row that is kept whole where its columns are computed in another order than they lie in."""
ROW_BYTES = 4096
"""Bytes of a row that are loaded together where its elements are transposed."""
GROUPED_ROWS = 512
"""Rows of lhs that are staged together where they are neighbours in memory: runs that a DMA moves well."""
UNROLLED_BLOCKS = 4
"""Blocks along one dim that are written out."""
UNROLLED_BANKS = 8
"""Banks of transposes of one tile that are written out."""
DMA_BYTES_PER_NS = 272
"""Of all engines together (hardware sheet 1.8.2)."""
CYCLE_NS = 1 / 2.8
"""Of TensorE."""
UNHIDDEN = 0.3
"""Part of what might overlap that takes time nevertheless: the shorter of transfers and work, the first transfers,
and those for which no room is free when the contraction begins."""
AHEAD_NS = 20_000
"""Transfers that the kernel before would have covered."""
TURN_NS = 0.7
"""Of a column of 128 elements that is transposed and leaves PSUM through Scalar."""
TURN_F32_NS = 2.9
"""The same for FP32 as two halves, bound by TensorE."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of lhs and of rhs that are staged together, in how many buffers, and whose blocks stay."""

    rhs_outside: bool
    m: int
    n: int
    lhs_buffers: int
    rhs_buffers: int


class DotBudget(DotPlan):
    """Sizes of the blocks of both operands."""

    m_group = 1
    """Tiles of rows that are staged together, neighbours along the dim of the rows outside the tiled one."""
    keeps_turned = False
    """Whether blocks of the operand that streams past are transposed once, and kept in HBM."""
    accumulate_in_sbuf = False
    """Whether k is cut into blocks, whose products add up in SBUF."""

    @property
    def unrolled_blocks(self) -> int:
        """Most blocks along one dim that are no loop; those of a contraction whose k is cut always are."""
        return 1 if self.accumulate_in_sbuf else UNROLLED_BLOCKS

    @property
    def unrolled_banks(self) -> int:
        """Most banks of transposes of one tile that are no loop."""
        return 1 if self.accumulate_in_sbuf else UNROLLED_BANKS

    def _budget(self) -> None:
        """Block sizes: k whole if possible; then the loop order and blocks that move and transpose least."""
        size = itemsize(self.pe_dtype)
        outers = [segment.outer for segment in self.segments]
        depth = max(1, max(outers) if len(self.k_sizes) <= 1 else self.other_terms * sum(outers))
        natural = max(each.lanes for each in self.segments) * sum(map(self._staged_bytes, (self.lhs, self.rhs)))
        sides = ((self.lhs, self.tiled_rows), (self.rhs, self.tiled_columns))
        least = [min(free, TILE_ROWS) for side, free in sides if side.resident is None]
        chunk = size * 2 * sum(least) + natural
        self.keeps_rows, self.rhs_outside = self._keeps_rows(), False
        results = self._result_bytes()
        room = int(self.builder.sbuf.largest_gap() * 0.95) - (0 if self.out.in_sbuf else results)
        if self.addend is not None and not self.add.in_sbuf:
            room -= RESULT_BUFFERS * min(self.tiled_columns, RESULT_COLUMNS) * 4
        self.k_block = depth if len(self.k_sizes) > 1 else max(1, min(depth, room // chunk))
        self.accumulate_in_sbuf = self.k_block < depth
        if self.accumulate_in_sbuf:
            self._budget_of_k_blocks(room, chunk, natural)
            return
        column = self.k_block * size
        natural *= self._together(self.k_block)
        room -= natural
        if self.lhs.resident is not None or self.rhs.resident is not None:
            self._budget_beside(room, column)
            return
        blocks = min(self._choices(room, column), key=self._cost)
        self.rhs_outside, self.m_block, self.n_block = blocks.rhs_outside, blocks.m, blocks.n
        self.keeps_turned = self._keeps_turned(blocks)
        batches = prod(self.b_sizes)
        m_blocks = batches * self._count(self.m_sizes, self.m_dim, self.m_block)
        n_blocks = batches * self._count(self.n_sizes, self.n_dim, self.n_block)
        self.lhs_buffers = min(blocks.lhs_buffers, m_blocks * (n_blocks if self.rhs_outside else 1))
        self.rhs_buffers = min(blocks.rhs_buffers, n_blocks * (1 if self.rhs_outside else m_blocks))
        self.m_group = self._group(room - self.rhs_buffers * self.n_block * column, column)
        staged = (self.lhs_buffers * self.m_block * self.m_group + self.rhs_buffers * self.n_block) * column
        self.builder.sbuf.make_room(staged + natural + results)

    def _result_bytes(self) -> int:
        """Bytes a partition of what is computed and not yet stored."""
        width = itemsize(self.out.dtype)
        if self.keeps_rows:
            return 2 * prod(self.n_sizes) * width
        return RESULT_BUFFERS * min(self.tiled_columns, RESULT_COLUMNS) * width

    def _budget_of_k_blocks(self, room: int, chunk: int, natural: int) -> None:
        """As ``_budget`` where k is cut into blocks.

        ``chunk``: bytes a partition that the smallest blocks take for each chunk of k, ``natural`` of them before their
        transposes.
        """
        m_size, n_size = self.tiled_rows, self.tiled_columns
        self.keeps_rows = False
        # the sums take room too: two buffers of four rows of tiles
        room -= 2 * 4 * min(n_size, TILE_COLUMNS) * 4
        self.k_block = max(1, room // chunk)
        self.rhs_buffers = self.lhs_buffers = 2
        each = (room - natural * self.k_block) // (4 * self.k_block * itemsize(self.pe_dtype))
        self.m_block = min(_block(m_size, max(1, each), TILE_ROWS), 4 * TILE_ROWS)
        self.n_block = min(_block(n_size, max(1, each), TILE_COLUMNS), TILE_COLUMNS)
        least_m, least_n = min(m_size, TILE_ROWS), min(n_size, TILE_ROWS)
        if self.m_block < least_m or self.n_block < least_n:
            # these fit, by the choice of k_block; rows that lie on the partitions of a result are never cut
            self.m_block, self.n_block = least_m, least_n
        self.builder.sbuf.make_room(room)

    def _choices(self, room: int, column: int) -> Iterator[Blocks]:
        """What fits: blocks of one operand stay while those of the other stream by, through two or three buffers.

        ``column``: bytes a partition of one row of an operand.
        """
        m_size, n_size = self.tiled_rows, self.tiled_columns
        m_inner = min(m_size, TILE_ROWS)
        wide = max((room - m_inner * column) // 3, column)
        n_inner = _block(n_size, min(wide, max(room // 5, TILE_COLUMNS * column)) // column, TILE_COLUMNS)
        m_outer, m_buffers = _outer_block(m_size, room - 3 * n_inner * column, column, TILE_ROWS)
        yield Blocks(False, m_outer, n_inner, m_buffers, 3)
        n_outer, n_buffers = _outer_block(n_size, room - 3 * m_inner * column, column, TILE_COLUMNS)
        yield Blocks(True, m_inner, n_outer, 3, n_buffers)
        for inner_buffers in (3, 2):
            n_outer = _block(n_size, max(1, (room - inner_buffers * m_inner * column) // (2 * column)), TILE_COLUMNS)
            if n_outer >= min(n_size, TILE_COLUMNS):
                yield Blocks(True, m_inner, n_outer, inner_buffers, 2)
        for n_inner in sorted({min(n_size, columns) for columns in (TILE_COLUMNS, 2 * TILE_COLUMNS)}):
            for inner_buffers in (3, 2):
                for outer_buffers in (2, 1):
                    left = room - inner_buffers * n_inner * column
                    m_outer = _block(m_size, max(1, left // (outer_buffers * column)), TILE_ROWS)
                    if m_outer >= m_inner and m_outer * outer_buffers * column <= left:
                        yield Blocks(False, m_outer, n_inner, outer_buffers, inner_buffers)

    def _cost(self, blocks: Blocks) -> float:
        """Estimated ns of transfers and work, and of those transfers that have to wait for the work on other blocks."""
        batches, m, n = prod(self.b_sizes), prod(self.m_sizes), prod(self.n_sizes)
        m_blocks = self._count(self.m_sizes, self.m_dim, blocks.m)
        n_blocks = self._count(self.n_sizes, self.n_dim, blocks.n)
        outer, inner, passes, others, size = self.lhs, self.rhs, m_blocks, n_blocks, blocks.n
        if blocks.rhs_outside:
            outer, inner, passes, others, size = self.rhs, self.lhs, n_blocks, m_blocks, m
        loads = self._load_ns(outer, blocks.n if blocks.rhs_outside else m)
        again = self._load_ns(inner, size)
        transfers = batches * (loads + passes * again)
        turned = passes
        if self._keeps_turned(blocks):
            turned = 1
            transfers += batches * self._elements(inner) * itemsize(inner.dtype) / DMA_BYTES_PER_NS
        turns = batches * (self._turn_ns(outer) + turned * self._turn_ns(inner))
        chunks = prod(self.k_sizes) / TILE_ROWS
        products = batches * -(-m // TILE_ROWS) * n * chunks * (4 if self.pe_dtype == "f32" else 1) * CYCLE_NS
        work, buffers = turns + products, blocks.rhs_buffers if blocks.rhs_outside else blocks.lhs_buffers
        waits = 0.0 if buffers > 1 else (batches - 1 / passes) * loads
        behind = 1 - min(1, (blocks.lhs_buffers if blocks.rhs_outside else blocks.rhs_buffers) / others)
        first = loads / passes + again / others + min(behind * again, AHEAD_NS)
        return max(transfers, work) + UNHIDDEN * (min(transfers, work) + first) + waits

    def _keeps_turned(self, blocks: Blocks) -> bool:
        """Whether blocks that are transposed stay in HBM, for when the next block of the other operand wants them."""
        sizes, dim, block, side = self.m_sizes, self.m_dim, blocks.m, self.rhs
        if blocks.rhs_outside:
            sizes, dim, block, side = self.n_sizes, self.n_dim, blocks.n, self.lhs
        size = sizes[dim] if dim >= 0 else 1
        return side.rows_on_lanes and not side.on_chip and prod(sizes) == size > block

    def _count(self, sizes: Sequence[int], dim: int, block: int) -> int:
        """Blocks of one side."""
        size = sizes[dim] if dim >= 0 else 1
        return prod(sizes) // size * -(-size // block)

    def _group(self, room: int, column: int) -> int:
        """Tiles of rows that are staged together: those of a resident result, if lhs comes from HBM with k apart."""
        lanes, group = self.m_dim, self.m_dim - 1
        if (
            group < 0
            or self.m_block < self.m_sizes[lanes]
            or not self.out_m[lanes].partition
            or self.addend is not None
        ):
            return 1
        side = self.lhs
        if side.on_chip or side.rows_on_lanes or side.data is not None or side.resident is not None:
            return 1
        if side.free[group].stride != side.free[lanes].stride * side.free[lanes].size:
            return 1
        most = min(GROUPED_ROWS, room // (self.lhs_buffers * column)) // self.m_block
        return max((size for size in range(1, most + 1) if self.m_sizes[group] % size == 0), default=1)

    def _budget_beside(self, room: int, column: int) -> None:
        """As ``_budget`` where one operand is resident: blocks of the other one stream past all of it."""
        m_size, n_size = self.tiled_rows, self.tiled_columns
        self.rhs_outside = self.lhs.resident is not None
        self.m_block, self.n_block, self.lhs_buffers, self.rhs_buffers = m_size, n_size, 1, 1
        if self.rhs_outside:
            self.n_block, self.rhs_buffers = _outer_block(n_size, room, column, TILE_COLUMNS)
        else:
            self.m_block, self.lhs_buffers = _outer_block(m_size, room, column, TILE_ROWS)
        self.builder.sbuf.make_room(room)

    def _together(self, chunks: int) -> int:
        """How many of so many chunks are loaded as rows and transposed before the next ones are."""
        if len(self.k_sizes) > 1:
            return chunks
        lanes = max(segment.lanes for segment in self.segments)
        pieces = -(-chunks * lanes * itemsize(self.pe_dtype) // ROW_BYTES)
        return -(-chunks // pieces)

    def _staged_bytes(self, side: Side) -> int:
        """What an element takes in the buffers before its transpose: rows that are loaded or cast, halves of bits."""
        if not side.rows_on_lanes:
            return 0
        size = itemsize(self.pe_dtype)
        rows = 0 if side.on_chip and side.view.dtype == side.dtype else 2 * size
        return rows + (0 if self.fast(self.pe_dtype) else 2 * itemsize(HALVES[size][1]))

    def _keeps_rows(self) -> bool:
        """Whether the columns that are computed together are no neighbours in HBM: then whole rows are stored.

        Only where one tile of rows is all there is, and the columns of a row fill its memory.
        """
        if self.out.in_sbuf or prod(self.m_sizes) != self.tiled_rows:
            return False
        width = itemsize(self.out.dtype)
        nbytes = prod(self.n_sizes) * width
        if prod(self.m_sizes) > TILE_ROWS or nbytes > RESULT_ROW_BYTES or len(self.n_sizes) < 2:
            return False
        strides = sorted((atom.stride, atom.size) for atom in self.out_n)
        filled = all(stride == width * prod(size for _, size in strides[:at]) for at, (stride, _) in enumerate(strides))
        return filled and self.out_n[self.n_dim].stride > width

    def _load_ns(self, side: Side, block: int) -> float:
        """Time of the DMA engines for all of ``side`` of one batch index, in blocks of ``block`` rows."""
        if side.on_chip:
            return 0.0
        width = itemsize(side.view.dtype)
        nbytes = self._elements(side) * width
        if side.data is not None:
            return nbytes / DMA_BYTES_PER_NS
        run = width * (prod(self.k_sizes) if side.rows_on_lanes else block)
        return nbytes * max(1.0, LONG_RUN / run) / DMA_BYTES_PER_NS

    def _turn_ns(self, side: Side) -> float:
        """Time of the engines for the transposes of all of ``side`` of one batch index."""
        if not side.rows_on_lanes:
            return 0.0
        each = TURN_NS if self.fast(side.dtype) else TURN_F32_NS if side.dtype == "f32" else 2 * TURN_NS
        return self._elements(side) / TILE_ROWS * each

    def _elements(self, side: Side) -> int:
        return prod(self.m_sizes if side is self.lhs else self.n_sizes) * prod(self.k_sizes)


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
