"""How a contraction is cut into blocks that fit SBUF, and which operand's blocks stay while the other's stream past."""

from __future__ import annotations

from math import prod

from neuronx_cc.codegen.dot_plan import HALVES, TILE_COLUMNS, TILE_ROWS, DotPlan, Side
from neuronx_cc.codegen.map_plan import LONG_RUN
from neuronx_cc.ir.types import itemsize

RESULT_COLUMNS = 2048
"""Columns of a result row that are stored together."""
RESULT_BUFFERS = 3
RESULT_ROW_BYTES = 16384
"""Bytes of a result row that is kept whole where its columns are computed in another order than they lie in."""
GROUPED_ROWS = 512
"""Rows of lhs that are staged together where they are neighbours in memory: runs that a DMA moves well."""
TRANSPOSE_BYTES = 0.15
"""Cost of transposing a byte on TensorE at one cycle a row, in bytes of DMA."""


class DotBudget(DotPlan):
    """Sizes of the blocks of both operands."""

    m_group = 1
    """Tiles of rows that are staged together, neighbours along the dim of the rows outside the tiled one."""
    accumulate_in_sbuf = False
    """Whether k is cut into blocks, whose products add up in SBUF."""

    def _budget(self) -> None:
        """Block sizes: k whole if possible; then the loop order and blocks that move and transpose least."""
        size = itemsize(self.pe_dtype)
        others = prod(count for dim, count in enumerate(self.k_sizes) if dim != self.k_dim)
        outers = [segment.outer for segment in self.segments]
        depth = max(1, max(outers) if len(self.k_sizes) <= 1 else others * sum(outers))
        lanes = max(segment.lanes for segment in self.segments)
        m_size = self.m_sizes[self.m_dim] if self.m_dim >= 0 else 1
        n_size = self.n_sizes[self.n_dim] if self.n_dim >= 0 else 1
        results = RESULT_BUFFERS * min(n_size, RESULT_COLUMNS) * itemsize(self.out.dtype)
        self.keeps_rows = self._keeps_rows()
        if self.keeps_rows:
            results = 2 * prod(self.n_sizes) * itemsize(self.out.dtype)
        room = int(self.builder.sbuf.largest_gap() * 0.95) - (0 if self.out.in_sbuf else results)
        if self.addend is not None and not self.add.in_sbuf:
            room -= RESULT_BUFFERS * min(n_size, RESULT_COLUMNS) * 4
        natural = lanes * sum(self._staged_bytes(side) for side in (self.lhs, self.rhs))
        least = [min(free, 128) for side, free in ((self.lhs, m_size), (self.rhs, n_size)) if side.resident is None]
        one = size * 2 * sum(least) + natural
        self.k_block = depth if len(self.k_sizes) > 1 else max(1, min(depth, room // one))
        self.accumulate_in_sbuf = self.k_block < depth
        self.rhs_outside = False
        if self.accumulate_in_sbuf:
            self.keeps_rows = False
            # the sums take room too: two buffers of four rows of tiles
            room -= 2 * 4 * min(n_size, TILE_COLUMNS) * 4
            self.k_block = max(1, room // one)
            self.rhs_buffers = self.lhs_buffers = 2
            each = (room - natural * self.k_block) // (4 * self.k_block * size)
            self.m_block = min(_block(m_size, max(1, each), TILE_ROWS), 4 * TILE_ROWS)
            self.n_block = min(_block(n_size, max(1, each), TILE_COLUMNS), TILE_COLUMNS)
            least_m, least_n = min(m_size, TILE_ROWS), min(n_size, TILE_ROWS)
            if self.m_block < least_m or self.n_block < least_n:
                # these fit, by the choice of k_block; rows that lie on the partitions of a result are never cut
                self.m_block, self.n_block = least_m, least_n
            self.builder.sbuf.make_room(room)
            return
        column = self.k_block * size
        room -= natural * self.k_block
        if self.lhs.resident is not None or self.rhs.resident is not None:
            self._budget_beside(room, column, m_size, n_size)
            return
        small_m = min(m_size, TILE_ROWS)
        # rhs inside: a large block of lhs stays while blocks of rhs stream by
        wide = max((room - small_m * column) // 3, column)
        n_inner = _block(n_size, min(wide, max(room // 5, TILE_COLUMNS * column)) // column, TILE_COLUMNS)
        m_outer, m_buffers = _outer_block(m_size, room - 3 * n_inner * column, column, TILE_ROWS)
        # rhs outside: the other way round
        m_inner = small_m
        n_outer, n_buffers = _outer_block(n_size, room - 3 * m_inner * column, column, TILE_COLUMNS)
        m_others, n_others = prod(self.m_sizes) // m_size, prod(self.n_sizes) // n_size
        inside = self._traffic(self.lhs, m_size) + self._traffic(self.rhs, n_inner) * m_others * -(-m_size // m_outer)
        outside = self._traffic(self.rhs, n_outer) + self._traffic(self.lhs, m_size) * n_others * -(-n_size // n_outer)
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
        self.m_group = self._group(room - self.rhs_buffers * self.n_block * column, column)
        staged = (self.lhs_buffers * self.m_block * self.m_group + self.rhs_buffers * self.n_block) * column
        self.builder.sbuf.make_room(staged + natural * self.k_block + results)

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

    def _budget_beside(self, room: int, column: int, m_size: int, n_size: int) -> None:
        """As ``_budget`` where one operand is resident: blocks of the other one stream past all of it."""
        self.rhs_outside = self.lhs.resident is not None
        self.m_block, self.n_block, self.lhs_buffers, self.rhs_buffers = m_size, n_size, 1, 1
        if self.rhs_outside:
            self.n_block, self.rhs_buffers = _outer_block(n_size, room, column, TILE_COLUMNS)
        else:
            self.m_block, self.lhs_buffers = _outer_block(m_size, room, column, TILE_ROWS)
        self.builder.sbuf.make_room(room)

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
        if self.out.in_sbuf or prod(self.m_sizes) != (self.m_sizes[self.m_dim] if self.m_dim >= 0 else 1):
            return False
        width = itemsize(self.out.dtype)
        nbytes = prod(self.n_sizes) * width
        if prod(self.m_sizes) > TILE_ROWS or nbytes > RESULT_ROW_BYTES or len(self.n_sizes) < 2:
            return False
        strides = sorted((atom.stride, atom.size) for atom in self.out_n)
        filled = all(stride == width * prod(size for _, size in strides[:at]) for at, (stride, _) in enumerate(strides))
        return filled and self.out_n[self.n_dim].stride > width

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
