"""Running sums, products, maxima and minima along the last dim: ``reduce-window`` over all elements up to each one.

Input: dense arrays [rows, n]. Rows lie on the partitions, several a partition when they are short; Vector scans them in
FP32, GpSimd integers exactly, in place, in tiles chained through the last column of the one before. A few long rows are
cut into a block for each partition: every block is scanned, the blocks' totals are scanned on one partition (moved
there and back by Vector's 32 x 32 transposes, which are bit exact), and each block takes up what came before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter, Splat
from neuronx_cc.codegen.emission.tiles import TilePool, no_room
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.maps import elementwise
from neuronx_cc.codegen.maps.plan import load_stream
from neuronx_cc.codegen.movement.fill import load_scalar
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.codegen.reductions.scan_plan import Problem, by_columns, choose, rows_each
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.rules import SQUARE
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.analysis.values import identity_of, same_number


def lower(context: Context, op: hlo.ReduceWindowOp, opcode: str, reverse: bool) -> None:
    """Emit the scan of the last dim of ``op``'s operand; ``reverse`` starts at its end."""
    target = context.new_hbm(op.results[0])
    context.homes[op.results[0]] = [target]
    scan = _Scan(context, op, opcode, reverse)
    scan.emit()
    scan.pool.free()


@dataclass(frozen=True, slots=True)
class _Piece:
    """``count`` equal parts of a dim from ``start`` on, ``size`` long."""

    start: int
    count: int
    size: int


class _Scan:
    def __init__(self, context: Context, op: hlo.ReduceWindowOp, opcode: str, reverse: bool) -> None:
        self.context, self.builder, self.reverse = context, context.builder, reverse
        operand, self.init = op.operands
        self.length = max(dim.size for dim in op.window.data)  # dims after the one that is scanned hold one element
        self.rows = hlo.shape_of(operand).size // self.length
        self.source = context.dense(operand)
        self.target = context.homes[op.results[0]][0]
        self.stream = load_stream(operand)
        self.dtype = "f32" if self.source.dtype in FLOATS else self.source.dtype
        self.opcode = opcode
        if self.source.dtype == "pred":
            self.opcode = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}.get(opcode, opcode)
        self.problem = Problem(self.rows, self.length, self.dtype, self.opcode, self.builder.sbuf.planned_room())
        schedule = choose(self.problem, self.builder.timing)
        if schedule is None:
            raise no_room("scan", self.problem.room, op.loc)
        self.schedule, self.engine = schedule, self.problem.engine
        self.partitions = self.builder.sizes.partitions
        self.pool = TilePool(self.builder, "scan", schedule.buffers)
        self.emitter = Emitter(self.builder, self._scratch)
        self.neutral = identity_of(self.opcode, self.dtype)
        self.start = self._start()
        self.ones: Block | None = None
        if self.problem.is_float:
            self.ones = self._fixed(1)
            self.builder.emit("memset", Stream.VECTOR, [self.ones], [], imm=[1.0])

    def emit(self) -> None:
        if self.schedule.blocks:
            self._in_blocks()
        else:
            self._in_rows()

    # tiles

    def _fixed(self, size: int, partitions: int = 0) -> Block:
        """A tile that stays where it is in every iteration, on all partitions unless it is told otherwise."""
        return self.pool.apart([size], self.dtype, partitions or self.partitions)

    def _scratch(self, like: Block, dtype: str) -> Block:
        return self.pool.like(like, dtype)

    def _start(self) -> float | Block:
        """The initial value: a constant, or its copies on all partitions."""
        constant = self.context.splat(self.init)
        if constant is not None:
            return constant
        block = self._fixed(1)
        load_scalar(self.builder, block, self.context.hbm(self.init))
        return block

    def _set(self, block: Block, value: float | Block) -> None:
        if isinstance(value, Block):
            self._copy(block, value)
        else:
            self.builder.emit("memset", self.engine, [block], [], imm=[value])

    def _copy(self, out: Block, source: Block) -> None:
        self.builder.emit("tensor_copy", self.engine, [out], [source])

    def _scan(self, tile: Block, start: float | Block) -> None:
        """Scan ``tile`` [partitions, n] in place."""
        walked = self._walked(tile)
        partitions = walked.dims[0]
        scalars = [start.on_partitions(partitions.size)] if isinstance(start, Block) else []
        imm = [] if isinstance(start, Block) else [start]
        flags = ["ap0"] if scalars else []
        if self.ones is None:
            self.builder.emit("int_scan", Stream.GPSIMD, [walked], [walked, *scalars], [self.opcode], imm, flags)
            return
        ones = self.ones.repeated(walked)
        alu = [elementwise.ARITHMETIC[self.opcode], "multiply"]
        self.builder.emit("tensor_tensor_scan", Stream.VECTOR, [walked], [walked, ones, *scalars], alu, imm, flags)

    def _walked(self, block: Block, dim: int = 1) -> Block:
        """``block`` in the direction of the scan."""
        return block.backwards([dim]) if self.reverse else block

    def _combine(self, out: Block, lhs: Block, rhs: Block | Splat) -> None:
        elementwise.emit_binary(self.emitter, self.opcode, self.dtype, out, lhs, rhs)

    def _load(self, tile: Block, source: Block) -> None:
        copy(self.builder, tile, source, self.stream)

    # rows on the partitions

    def _in_rows(self) -> None:
        most = self.partitions
        several = rows_each(self.problem, self.schedule, self.builder.timing)
        each = several or 1
        whole, left = divmod(self.rows, most * each)
        pieces = [(_Piece(0, whole, most * each), most, each)] if whole else []
        for partitions, deep in ((most, left // most), (left % most, 1)):
            if partitions and deep:
                pieces.append((_Piece(self.rows - left, 1, partitions * deep), partitions, deep))
                left -= partitions * deep
        carry = None if several else self._fixed(1)
        for piece, partitions, deep in pieces:
            with self.builder.loop(piece.count) as index:
                row = index * piece.size + piece.start
                if carry is None:
                    self._short_rows(row, partitions, deep)
                else:
                    self._long_rows(row, partitions, carry)

    def _short_rows(self, row: Affine, partitions: int, deep: int) -> None:
        tile = self.pool.tile([deep, self.length], self.dtype, partitions)
        source, target = (self._area(row, partitions, deep, view) for view in (self.source, self.target))
        self._load(tile, source)
        if by_columns(self.problem, deep):
            self._by_columns(tile)
        else:
            with self.builder.loop(deep) as place:
                self._scan(tile.index(1, place), self.start)
        copy(self.builder, target, tile, Stream.DMA_STORE)
        self.pool.give_back(tile)

    def _area(self, row: Affine, partitions: int, deep: int, view: View) -> Block:
        size = itemsize(view.dtype)
        atoms = (Atom(partitions, deep * self.length * size), Atom(deep, self.length * size), Atom(self.length, size))
        return Block(view.alloc, view.dtype, row * (self.length * size) + view.start, atoms)

    def _by_columns(self, tile: Block) -> None:
        walked = self._walked(tile, 2)
        first = walked.index(2, Affine(0))
        if isinstance(self.start, Block):
            self._combine(first, first, self.start.repeated(first))
        elif not same_number(self.start, self.neutral):
            self._combine(first, first, Splat(self.start, self.dtype))
        for place in range(1, self.length):
            column = walked.index(2, Affine(place))
            self._combine(column, walked.index(2, Affine(place - 1)), column)

    def _long_rows(self, row: Affine, partitions: int, carry: Block) -> None:
        carry = carry.on_partitions(partitions)
        self._set(carry, self.start.on_partitions(partitions) if isinstance(self.start, Block) else self.start)
        for piece in self._pieces(self.length, self.schedule.width):
            with self.builder.loop(piece.count) as index:
                at = self._position(piece, index)
                tile = self.pool.tile([piece.size], self.dtype, partitions)
                areas = [self._strip(view, row, at, partitions, piece.size) for view in (self.source, self.target)]
                self._load(tile, areas[0])
                self._scan(tile, carry)
                self._copy(carry, self._walked(tile).index(1, Affine(piece.size - 1), 1))
                copy(self.builder, areas[1], tile, Stream.DMA_STORE)
                self.pool.give_back(tile)

    def _strip(self, view: View, row: Affine, column: Affine, partitions: int, width: int) -> Block:
        size = itemsize(view.dtype)
        offset = row * (self.length * size) + column * size + view.start
        return Block(view.alloc, view.dtype, offset, (Atom(partitions, self.length * size), Atom(width, size)))

    def _pieces(self, total: int, step: int) -> list[_Piece]:
        pieces = [_Piece(start, count, size) for start, count, size in self.builder.tiles(total, step)]
        return pieces[::-1] if self.reverse else pieces

    def _position(self, piece: _Piece, index: Affine) -> Affine:
        if self.reverse:
            return index * -piece.size + (piece.start + (piece.count - 1) * piece.size)
        return index * piece.size + piece.start

    # rows cut into blocks

    def _in_blocks(self) -> None:
        most, widest = self.schedule.blocks, self.schedule.width
        carry = self._fixed(self.rows, 1)
        self._set(carry, self.start.repeated(carry) if isinstance(self.start, Block) else self.start)
        pieces: list[tuple[_Piece, int]] = []
        done = 0
        while done < self.length:
            left = self.length - done
            count = -(-left // (most * widest)) if left > 2 * most else 1
            blocks = most if left > 2 * most else 1
            size = min(left // (count * blocks), widest) * blocks
            pieces.append((_Piece(done, count, size), blocks))
            done += count * size
        for piece, blocks in reversed(pieces) if self.reverse else pieces:
            with self.builder.loop(piece.count) as index:
                self._chunk(self._position(piece, index), piece.size // blocks, blocks, carry)

    def _chunk(self, at: Affine, width: int, blocks: int, carry: Block) -> None:
        """Scan ``blocks`` blocks of ``width`` columns of every row; ``carry`` [1, rows] is what came before."""
        partitions = self.rows * blocks
        tile = self.pool.tile([width], self.dtype, partitions)
        for row in range(self.rows):
            self._load(tile.on_partitions(blocks, row * blocks), self._blocks(self.source, row, at, width, blocks))
        assert self.neutral is not None, "simple combiners have an identity"
        self._scan(tile, self.neutral)
        totals = self.pool.tile([partitions], self.dtype, 1)
        self._turn(totals, self._walked(tile).index(1, Affine(width - 1), 1), partitions, to_row=True)
        before = self.pool.tile([partitions], self.dtype, 1)
        for row in range(self.rows):
            first = carry.index(1, Affine(row), 1)
            own = totals.index(1, Affine(row * blocks), blocks)
            total, offset = self._walked(own), self._walked(before.index(1, Affine(row * blocks), blocks))
            self._copy(offset.index(1, Affine(0), 1), first)
            self._scan(own, first)
            if blocks > 1:
                self._copy(offset.index(1, Affine(1), blocks - 1), total.index(1, Affine(0), blocks - 1))
            self._copy(first, total.index(1, Affine(blocks - 1), 1))
        offsets = self.pool.tile([1], self.dtype, partitions)
        self._turn(before, offsets, partitions, to_row=False)
        self._combine(tile, tile, offsets.repeated(tile))
        for row in range(self.rows):
            area = self._blocks(self.target, row, at, width, blocks)
            copy(self.builder, area, tile.on_partitions(blocks, row * blocks), Stream.DMA_STORE)
        for block in (tile, totals, before, offsets):
            self.pool.give_back(block)

    def _blocks(self, view: View, row: int, at: Affine, width: int, blocks: int) -> Block:
        size = itemsize(view.dtype)
        offset = at * size + row * self.length * size + view.start
        return Block(view.alloc, view.dtype, offset, (Atom(blocks, width * size), Atom(width, size)))

    def _turn(self, row: Block, column: Block, partitions: int, to_row: bool) -> None:
        """Move one element a partition to a row on partition 0, or back."""
        for first in range(0, partitions, SQUARE):
            count = min(SQUARE, partitions - first)
            flat = row.index(1, Affine(first), count)
            tall = column.on_partitions(count, first)
            outs, ins = ([flat], [tall]) if to_row else ([tall], [flat])
            self.builder.emit("transpose", Stream.VECTOR, outs, ins)
