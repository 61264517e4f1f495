"""The time that a contraction takes with given blocks, as a pure function of the machine's timing.

Work is added up for each resource of the core; the busiest one sets the time. To that comes what nothing hides: the
first blocks of both operands, blocks of a single buffer that are loaded after the work on the one before, the last
tiles of the result, and a part of what the other resources do, for no schedule overlaps perfectly.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from neuronx_cc.codegen.movement.halves import HALVES
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import NOTHING, Tile, Timing, Work, total
from neuronx_cc.ir.types import itemsize

if TYPE_CHECKING:
    from neuronx_cc.codegen.dots.budget import Blocks, DotBudget, KBlocks
    from neuronx_cc.codegen.dots.plan import Side

UNHIDDEN = 0.15
"""Part of the second busiest resource's work that takes time nevertheless."""
UNHIDDEN_IN_LOOPS = 0.8
"""Part of all other engines' work where blocks of k are loops, in which transposes and products wait for each other."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Asks about one plan on one machine."""

    plan: DotBudget
    timing: Timing

    def time(self, blocks: Blocks) -> float:
        """Nanoseconds."""
        plan = self.plan
        batches = prod(plan.b_sizes)
        m_blocks, n_blocks = plan.blocks_of(blocks)
        outer, inner = (plan.rhs, plan.lhs) if blocks.rhs_outside else (plan.lhs, plan.rhs)
        passes, others = (n_blocks, m_blocks) if blocks.rhs_outside else (m_blocks, n_blocks)
        outer_load, inner_load = self._load(outer, blocks), self._load(inner, blocks)
        outer_turn, inner_turn = self._transposes(outer), self._transposes(inner)
        again = inner_load + inner_turn
        work = [outer_load, outer_turn, inner_load, inner_turn, self._products(), self._results(blocks)]
        if passes > 1 and plan.keeps_blocks(blocks):
            nbytes = plan.elements(inner) * itemsize(inner.dtype)
            kept = self.timing.transfer(nbytes, self.timing.long_run)
            work += [kept, kept.times(passes - 1)]
        else:
            work.append(again.times(passes - 1))
        all_ = total(work).times(batches)
        buffers = blocks.rhs_buffers if blocks.rhs_outside else blocks.lhs_buffers
        alone = 0.0 if buffers > 1 else outer_load.dma / passes * (batches * passes - 1)
        first = outer_load.dma / passes + inner_load.dma / others + (outer_turn.bound / passes if others > 1 else 0.0)
        ranked = sorted(all_, reverse=True)
        return ranked[0] + UNHIDDEN * ranked[1] + alone + first + self._tile().bound

    def time_of_k_blocks(self, cut: KBlocks) -> float:
        """Nanoseconds where k is cut: both operands come anew for each pair of blocks, Vector adds the sums in SBUF."""
        plan = self.plan
        m_blocks, n_blocks = plan.blocks_of(cut.blocks)
        columns = min(max(1, cut.blocks.n), self.timing.sizes.bank_columns)
        sums, bank = Tile("f32"), Tile(psum=True)
        add = self.timing.engine("tensor_tensor", Stream.VECTOR, columns, (sums,), (sums, bank), ("add",))
        rows, all_columns = (max(1, prod(each)) for each in (plan.m_sizes, plan.n_sizes))
        tiles = -(-rows // min(cut.blocks.m, self.timing.sizes.columns)) * -(-all_columns // columns)
        count = sum(
            prod(-(-size // part) for size, part in zip(plan.chunk_sizes(segment), box, strict=True))
            for segment, box in zip(plan.segments, cut.boxes, strict=True)
        )
        work = [self._products(), self._results(cut.blocks), add.times(tiles * count)]
        for side, times in ((plan.lhs, n_blocks), (plan.rhs, m_blocks)):
            work += [self._load(side, cut.blocks).times(times), self._transposes(side).times(times)]
        batches = prod(plan.b_sizes)
        whole = total(work).times(batches)
        others = whole.tensor + whole.vector + whole.scalar + whole.dma - whole.bound
        starts = batches * m_blocks * n_blocks * count * self.timing.transfer_latency
        return whole.bound + UNHIDDEN_IN_LOOPS * others + (starts + whole.dma if cut.blocks.lhs_buffers == 1 else 0.0)

    def _load(self, side: Side, blocks: Blocks) -> Work:
        """Of all of one side of one batch index, once."""
        if side.on_chip or side.resident is not None:
            return NOTHING
        width = itemsize(side.view.dtype)
        rows = self.plan.rows_together(side, blocks)
        dim = self.plan.m_dim if side is self.plan.lhs else self.plan.n_dim
        nbytes = self.plan.elements(side) * max(width, itemsize(side.dtype))
        if side.data is not None:
            return self.timing.transfer(nbytes, self.timing.long_run)
        if side.rows_on_lanes:
            run = min(self.plan.row_bytes, prod(self.plan.k_sizes) * width)
        else:
            near = dim < 0 or side.free[dim].stride == width
            run = width * (rows if near else 1)
            if not near and side.free[-1].stride == width:
                run = width * side.free[-1].size
        return self.timing.transfer(nbytes, max(width, run))

    def _transposes(self, side: Side) -> Work:
        """Of all of one side of one batch index, once."""
        if not side.rows_on_lanes:
            return NOTHING
        plan, sizes = self.plan, self.timing.sizes
        squares = plan.elements(side) / (sizes.rows * sizes.rows)
        per_bank = max(1, sizes.bank_columns // sizes.rows)
        parts, carrier = 1, side.dtype
        extract = NOTHING
        if not plan.fast(side.dtype):
            part, carrier = HALVES[itemsize(side.dtype)]
            parts = itemsize(side.dtype) // itemsize(part)
            tiles = (Tile(carrier),), (Tile(part, stride=itemsize(side.dtype)),)
            extract = self.timing.engine("tensor_copy", Stream.VECTOR, sizes.bank_columns, *tiles)
        product = self.timing.product(sizes.rows, sizes.rows, carrier).times(per_bank)
        bank = product + self._leave(sizes.bank_columns, side.dtype) + extract
        return bank.times(parts * squares / per_bank)

    def _products(self) -> Work:
        """Of one batch index."""
        plan, sizes = self.plan, self.timing.sizes
        chunks = sum(prod(plan.chunk_sizes(segment)) for segment in plan.segments)
        rows, columns = (max(1, prod(each)) for each in (plan.m_sizes, plan.n_sizes))
        columns_of = min(columns, sizes.bank_columns)
        flags = ("tf32",) if plan.tf32 and plan.pe_dtype == "f32" else ()
        each = self.timing.product(min(rows, sizes.columns), columns_of, plan.pe_dtype, flags=flags)
        return each.times(-(-rows // sizes.columns) * columns / columns_of * chunks)

    def _results(self, blocks: Blocks) -> Work:
        """Of one batch index: the sums leave PSUM, and are stored where they do not stay on chip."""
        plan, sizes = self.plan, self.timing.sizes
        rows, columns = (max(1, prod(each)) for each in (plan.m_sizes, plan.n_sizes))
        work = self._tile().times(-(-rows // sizes.columns) * columns / min(columns, sizes.bank_columns))
        if plan.out.in_sbuf:
            return work
        width = itemsize(plan.out.dtype)
        near = plan.n_dim < 0 or plan.out_n[plan.n_dim].stride == width
        run = width * (min(blocks.n, plan.tiled_columns, plan.result_columns) if near else 1)
        return work + self.timing.transfer(rows * columns * width, run)

    def _tile(self) -> Work:
        """One tile of sums leaves PSUM."""
        columns = min(max(1, prod(self.plan.n_sizes)), self.timing.sizes.bank_columns)
        return self._leave(columns, self.plan.out.dtype)

    def _leave(self, columns: int, dtype: str) -> Work:
        return self.timing.engine("activation", Stream.SCALAR, columns, (Tile(dtype),), (Tile(psum=True),), ("copy",))
