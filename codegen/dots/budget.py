"""How a contraction is cut into blocks that fit SBUF, and which operand's blocks stay while the other's stream past."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from types import MappingProxyType

from neuronx_cc.codegen.dots.estimate import Estimate
from neuronx_cc.codegen.dots.plan import PE_DTYPES, TILE_COLUMNS, TILE_ROWS, DotPlan, Side
from neuronx_cc.codegen.movement.halves import HALVES
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.types import itemsize

RESULT_COLUMNS = 2048
RESULT_BUFFERS = 3
RESULT_ROW_BYTES = 16384
"""Bytes of a result row that is kept whole where its columns are computed in another order than they lie in."""
ROW_BYTES = 4096
GROUPED_ROWS = 512
"""Rows of lhs that are staged together where they are neighbours in memory: runs that a DMA moves well."""
ENOUGH = 512
"""Rows and columns of blocks from which on k is not cut."""
K_BLOCKS = (
    (1024, 1024),
    (512, 1024),
    (1024, 512),
    (512, 512),
    (256, 512),
    (128, 512),
    (128, 256),
    (128, 128),
    (64, 64),
    (32, 32),
    (8, 8),
    (1, 1),
)
"""Rows and columns of a block whose products over blocks of k add up in SBUF."""
ROUNDING = 2048
"""Bytes a partition that go into the alignment of tiles, at most."""
UNROLLED_BLOCKS = 4
"""Blocks along one dim that are written out."""
UNROLLED_BANKS = 8
"""Banks of transposes of one tile that are written out."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of lhs and of rhs that are staged together, in how many buffers, and whose blocks stay."""

    rhs_outside: bool
    m: int
    n: int
    lhs_buffers: int
    rhs_buffers: int


@dataclass(frozen=True, slots=True)
class KBlocks:
    """Blocks of a contraction whose k is cut as well."""

    blocks: Blocks
    boxes: tuple[tuple[int, ...], ...]
    """For each segment of k, how many along each dim of its chunks make a block."""


class DotBudget(DotPlan):
    """Sizes of the blocks of both operands."""

    m_group = 1
    """Tiles of rows that are staged together, neighbours along the dim of the rows outside the tiled one."""
    keeps_turned = False
    """Whether blocks of the operand that streams past are transposed once, and kept in HBM."""
    row_bytes = ROW_BYTES
    """Bytes of a row that are loaded together where its elements are transposed."""
    result_columns = RESULT_COLUMNS
    """Columns of a result row that are stored together."""
    planned: Mapping[str, int] = MappingProxyType({})
    """Bytes of a buffer of each ring of tiles, the most that will be asked for."""
    bias_whole = True
    """Whether all of the bias is on chip."""
    k_boxes: Sequence[Sequence[int]] = ()
    """For each segment of k, how many along each dim of its chunks make a block, where k is cut into blocks."""
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
        self.keeps_rows = self._keeps_rows()
        room = int(self.builder.sbuf.largest_gap() * 0.95)
        self.row_bytes = max(itemsize(self.pe_dtype) * TILE_ROWS, min(ROW_BYTES, room // 24))
        self.bias_whole = 4 * prod(self.n_sizes) <= room // 4
        stored = sum(not view.in_sbuf for view in ((self.out, self.add) if self.addend is not None else (self.out,)))
        wide = stored * RESULT_BUFFERS * RESULT_COLUMNS * 4
        self.result_columns = RESULT_COLUMNS if 2 * wide <= room else TILE_COLUMNS
        whole = [self.chunk_sizes(segment) for segment in self.segments]
        column = sum(map(prod, whole)) * itemsize(self.pe_dtype)
        left = room - sum(self._rings(Blocks(False, 0, 0, 1, 1), whole, False).values()) - ROUNDING
        fitting = [each for each in self._choices(left, column) if self._fits(each, whole, room)] if left > 0 else []
        estimate = Estimate(self, self.context.timing)
        blocks = min(fitting, key=estimate.time, default=None)
        if blocks is None or self._is_small(blocks):
            cut = min(self._k_choices(room), key=estimate.time_of_k_blocks, default=None)
            if cut is not None and (blocks is None or estimate.time_of_k_blocks(cut) < estimate.time(blocks)):
                self._take_k_blocks(cut)
                return
        if blocks is None:
            raise CompileError(
                "EXSP001",
                f"SBUF has no room for the smallest tiles of a contraction: {room} bytes a partition are left",
                "a smaller batch may fit",
                self.op.loc,
            )
        self.rhs_outside, self.m_block, self.n_block = blocks.rhs_outside, blocks.m, blocks.n
        self.keeps_turned = self.lhs.resident is None and self.rhs.resident is None and self.keeps_blocks(blocks)
        m_blocks, n_blocks = (prod(self.b_sizes) * count for count in self.blocks_of(blocks))
        self.lhs_buffers = min(blocks.lhs_buffers, m_blocks * (n_blocks if self.rhs_outside else 1))
        self.rhs_buffers = min(blocks.rhs_buffers, n_blocks * (1 if self.rhs_outside else m_blocks))
        blocks = replace(blocks, lhs_buffers=self.lhs_buffers, rhs_buffers=self.rhs_buffers)
        spare = room - sum(self._rings(replace(blocks, lhs_buffers=0), whole, False).values())
        self.m_group = self._group(blocks, spare // (self.lhs_buffers * column))
        self._plan_rings(replace(blocks, m=blocks.m * self.m_group), whole, False)

    def _is_small(self, blocks: Blocks) -> bool:
        """Whether blocks of all of k are so small that shorter ones may move less."""
        cut = blocks.m < min(self.tiled_rows, ENOUGH) or blocks.n < min(self.tiled_columns, ENOUGH)
        return cut and self.lhs.resident is None and self.rhs.resident is None

    def _plan_rings(self, blocks: Blocks, chunks: Sequence[Sequence[int]], sums: bool) -> None:
        """Say how large the buffers of all tiles are, and make one gap for them."""
        rings = self._rings(blocks, chunks, sums)
        self.planned = {name: nbytes // count for (name, count), nbytes in rings.items() if count}
        self.builder.sbuf.make_room(sum(rings.values()))

    def _fits(self, blocks: Blocks, chunks: Sequence[Sequence[int]], room: int, sums: bool = False) -> bool:
        """Whether no dim on the partitions is cut and all tiles together find room."""
        if (self.rows_whole and blocks.m < self.tiled_rows) or (self.columns_whole and blocks.n < self.tiled_columns):
            return False
        return sum(self._rings(blocks, chunks, sums).values()) <= room

    def _rings(self, blocks: Blocks, chunks: Sequence[Sequence[int]], sums: bool) -> dict[tuple[str, int], int]:
        """Bytes a partition of all tiles that are asked for: (name, buffers) -> bytes.

        ``chunks``: sizes of the chunk dims of each segment that are staged together; ``sums``: in SBUF.
        """
        rings: dict[tuple[str, int], int] = {}
        width = itemsize(self.pe_dtype)
        lanes = max(segment.lanes for segment in self.segments)
        taken = max(prod(self._together(each)) for each in chunks) * lanes
        for side, rows, buffers in ((self.lhs, blocks.m, blocks.lhs_buffers), (self.rhs, blocks.n, blocks.rhs_buffers)):
            if side.resident is not None:
                continue
            for segment, sizes in zip(self.segments, chunks, strict=True):
                if not self._is_in_place(side, sizes):
                    rings[f"{side.name} block {segment.start}", buffers] = prod(sizes) * rows * width
            if side.rows_on_lanes and not side.on_chip:
                rings[f"{side.name} rows", 2] = taken * width
            elif side.rows_on_lanes and side.view.dtype != side.dtype:
                rings[f"{side.name} cast", 1] = taken * width
            if side.rows_on_lanes and not (self.fast(side.dtype) and self.fast(side.view.dtype)):
                rings["bits", 2] = taken * max(itemsize(HALVES[itemsize(dtype)][1]) for dtype in self._moved(side))
        columns = min(blocks.n if sums else self.tiled_columns, self.result_columns)
        if self.keeps_rows and not sums:
            rings["rows", 2] = prod(self.n_sizes) * itemsize(self.out.dtype)
        elif not self.out.in_sbuf:
            rings["result", RESULT_BUFFERS] = columns * itemsize(self.out.dtype)
        if self.addend is not None and not self.add.in_sbuf:
            rings["addend", RESULT_BUFFERS] = columns * itemsize(self.add.dtype)
        if self.bias is not None:
            rings["bias", 1 if self.bias_whole else 2] = 4 * (prod(self.n_sizes) if self.bias_whole else TILE_COLUMNS)
        if sums:
            rings["sums", 2] = -(-blocks.m // TILE_ROWS) * blocks.n * 4
        return {
            (name, count): count * -(-nbytes // self.builder.sbuf.alignment) * self.builder.sbuf.alignment
            for (name, count), nbytes in rings.items()
        }

    def _moved(self, side: Side) -> list[str]:
        """Types in which rows of a side may be transposed."""
        return [dtype for dtype in (side.dtype, side.view.dtype) if dtype in PE_DTYPES]

    def _is_in_place(self, side: Side, chunks: Sequence[int]) -> bool:
        """Whether a side is read where it lies: [lanes, chunks, rows] on chip."""
        counted = [size for size in chunks if size > 1]
        return side.on_chip and not side.rows_on_lanes and side.view.dtype == side.dtype and len(counted) <= 1

    def _take_k_blocks(self, chosen: KBlocks) -> None:
        """Cut k into blocks."""
        blocks = chosen.blocks
        self.accumulate_in_sbuf, self.keeps_rows, self.rhs_outside = True, False, False
        self.m_block, self.n_block, self.k_boxes = blocks.m, blocks.n, chosen.boxes
        self.lhs_buffers, self.rhs_buffers = blocks.lhs_buffers, blocks.rhs_buffers
        self._plan_rings(blocks, chosen.boxes, True)

    def _k_choices(self, room: int) -> Iterator[KBlocks]:
        """Blocks of rows and columns whose products over blocks of k add up in SBUF, each with as much of k as fits."""
        sizes = [self.chunk_sizes(segment) for segment in self.segments]
        for (rows, columns), buffers in product(K_BLOCKS, (2, 1)):
            m = self.tiled_rows if self.rows_whole else min(self.tiled_rows, rows)
            n = self.tiled_columns if self.columns_whole else min(self.tiled_columns, columns)
            blocks = Blocks(False, m, n, buffers, buffers)
            for count in _halves(max(map(prod, sizes))):
                boxes = tuple(tuple(_box(each, count)) for each in sizes)
                if self._fits(blocks, boxes, room, True):
                    yield KBlocks(blocks, boxes)
                    break

    def _choices(self, room: int, column: int) -> Iterator[Blocks]:
        """Blocks of one operand stay while those of the other stream by, through two or three buffers.

        ``column``: bytes a partition of one row of an operand.
        """
        m_size, n_size = self.tiled_rows, self.tiled_columns
        if self.lhs.resident is not None or self.rhs.resident is not None:
            for buffers in (2, 1):
                each = room // (buffers * column)
                if self.lhs.resident is not None:
                    yield Blocks(True, m_size, self._columns(each), 1, buffers)
                else:
                    yield Blocks(False, self._rows(each), n_size, buffers, 1)
            return
        m_inner = self._rows(TILE_ROWS)
        wide = max((room - m_inner * column) // 3, column)
        n_inner = self._columns(min(wide, max(room // 5, TILE_COLUMNS * column)) // column)
        for m_buffers in (2, 1):
            yield Blocks(
                False, self._rows((room - 3 * n_inner * column) // (m_buffers * column)), n_inner, m_buffers, 3
            )
        for m_inner in sorted({self._rows(rows) for rows in (TILE_ROWS, 2 * TILE_ROWS, 4 * TILE_ROWS)}):
            for inner_buffers, n_buffers in product((3, 2), (2, 1)):
                n_outer = self._columns((room - inner_buffers * m_inner * column) // (n_buffers * column))
                if n_outer >= min(n_size, TILE_ROWS):
                    yield Blocks(True, m_inner, n_outer, inner_buffers, n_buffers)
        for n_inner in sorted({self._columns(columns) for columns in (TILE_COLUMNS, 2 * TILE_COLUMNS)}):
            for inner_buffers, outer_buffers in product((3, 2), (2, 1)):
                m_outer = self._rows((room - inner_buffers * n_inner * column) // (outer_buffers * column))
                if m_outer >= min(m_size, TILE_ROWS):
                    yield Blocks(False, m_outer, n_inner, outer_buffers, inner_buffers)

    def _rows(self, room: int) -> int:
        """Rows of a block, of which ``room`` fit."""
        return self.tiled_rows if self.rows_whole else _block(self.tiled_rows, max(1, room), TILE_ROWS)

    def _columns(self, room: int) -> int:
        """Columns of a block, of which ``room`` fit."""
        return self.tiled_columns if self.columns_whole else _block(self.tiled_columns, max(1, room), TILE_COLUMNS)

    def blocks_of(self, blocks: Blocks) -> tuple[int, int]:
        """Blocks of rows and of columns of one batch index."""
        rows, columns = max(1, self.tiled_rows), max(1, self.tiled_columns)
        m_blocks = prod(self.m_sizes) // rows * -(-rows // blocks.m)
        return m_blocks, prod(self.n_sizes) // columns * -(-columns // blocks.n)

    def rows_together(self, side: Side, blocks: Blocks) -> int:
        """Rows of a side that are staged together along its tiled dim, or neighbours of that dim's."""
        return blocks.m * self._group(blocks, GROUPED_ROWS) if side is self.lhs else blocks.n

    def elements(self, side: Side) -> int:
        """Of one batch index."""
        return prod(self.m_sizes if side is self.lhs else self.n_sizes) * prod(self.k_sizes)

    def keeps_blocks(self, blocks: Blocks) -> bool:
        """Whether blocks that are transposed stay in HBM, for when the next block of the other operand wants them."""
        sizes, dim, block, side = self.m_sizes, self.m_dim, blocks.m, self.rhs
        if blocks.rhs_outside:
            sizes, dim, block, side = self.n_sizes, self.n_dim, blocks.n, self.lhs
        size = sizes[dim] if dim >= 0 else 1
        return side.rows_on_lanes and not side.on_chip and prod(sizes) == size > block

    def _group(self, blocks: Blocks, room: int) -> int:
        """Tiles of rows that are staged together: those of a resident result, if lhs comes from HBM with k apart.

        ``room``: rows that fit.
        """
        lanes, group = self.m_dim, self.m_dim - 1
        if group < 0 or blocks.m < self.m_sizes[lanes] or not self.out_m[lanes].partition or self.addend is not None:
            return 1
        side = self.lhs
        if side.on_chip or side.rows_on_lanes or side.data is not None or side.resident is not None:
            return 1
        if side.free[group].stride != side.free[lanes].stride * side.free[lanes].size:
            return 1
        most = min(GROUPED_ROWS, room) // blocks.m
        return max((size for size in range(1, most + 1) if self.m_sizes[group] % size == 0), default=1)

    def _together(self, chunks: Sequence[int]) -> list[int]:
        """How many along each of these dims of chunks are loaded as rows and transposed before the next ones are."""
        lanes = max(segment.lanes for segment in self.segments)
        together, left = list(chunks), max(1, self.row_bytes // (lanes * itemsize(self.pe_dtype)))
        for dim in reversed(range(len(chunks))):
            pieces = -(-chunks[dim] // left)
            together[dim] = -(-chunks[dim] // pieces)
            left = max(1, left // chunks[dim]) if pieces == 1 else 1
        return together

    def _keeps_rows(self) -> bool:
        """Whether the columns that are computed together are no neighbours in HBM: then whole rows are stored.

        Only where one tile of rows is all there is, and the columns of a row fill its memory.
        """
        if self.out.in_sbuf or prod(self.m_sizes) != self.tiled_rows:
            return False
        width = itemsize(self.out.dtype)
        nbytes = prod(self.n_sizes) * width
        most = min(RESULT_ROW_BYTES, self.builder.sbuf.largest_gap() // 8)
        if prod(self.m_sizes) > TILE_ROWS or nbytes > most or len(self.n_sizes) < 2:
            return False
        strides = sorted((atom.stride, atom.size) for atom in self.out_n)
        filled = all(stride == width * prod(size for _, size in strides[:at]) for at, (stride, _) in enumerate(strides))
        return filled and self.out_n[self.n_dim].stride > width


def _block(size: int, room: int, tile: int) -> int:
    """Block of at most ``room`` elements, in whole tiles if it is cut at all."""
    if size <= room:
        return size
    if room >= tile:
        blocks = -(-size // (room // tile * tile))
        return -(-size // (blocks * tile)) * tile
    return next((part for part in (256, 128, 64) if part <= room), max(1, room))


def _halves(count: int) -> Iterator[int]:
    """``count``, and half as many each time."""
    while count > 1:
        yield count
        count = -(-count // 2)
    yield count


def _box(sizes: Sequence[int], count: int) -> list[int]:
    """At most about ``count`` elements of dims of these sizes, of the last ones most."""
    box = list(sizes)
    for dim in reversed(range(len(sizes))):
        box[dim] = min(sizes[dim], max(1, count))
        count //= box[dim]
    return box
