"""Estimates of how long a gather or scatter takes in each of its forms, for choosing between them. Times in ns.

*Rows*: the DMA moves whole rows, with one descriptor an index made by GpSimd software. *Groups*: each of GpSimd's
processors holds a table in its SBUF partitions and walks a list of indices.
"""

from __future__ import annotations

from math import ceil

from neuronx_cc.ir.isa.indexing import LANES
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.indexing.tables import GROUPS, TABLE_SHARE, Tables, gather_ns

ROW_SHARE = (1, 44)
"""Of a partition of SBUF: the longest row that a group moves."""
COMPARED = 5
"""Passes of Vector over what is compared: a comparison, a selection of two streams, a fold."""
MOVING, GROUPED, COMPARING, COUNTING, SUMMING = 3, 5, 4, 7, 14
"""Transfers that follow one another in each form, besides those that hide behind work."""
STACKING = 3
"""The same to make the numbers of a stack."""
VISIT = 2
"""The same for the tables of all processors."""


def costs_of(b: Build) -> Costs:
    """The estimates for the machine that ``b`` builds for."""
    assert b.timing is not None, "made with the timing of a pass's context"
    return Costs(b.timing)


class Costs:
    """The estimates on one machine."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        machine, sizes = timing.machine, timing.sizes
        self.row_bytes = sizes.sbuf_share(ROW_SHARE)
        """Of the longest row that a group moves."""
        self.table_bytes = LANES * sizes.sbuf_share(TABLE_SHARE)
        """What a group's table can usually take."""
        self._descriptor = float(machine["dma.swdge_descriptor_ns"])
        self._rate, self._run, self._transfer = timing.dma_rate, timing.run_ns, timing.transfer_latency
        self._vector, self._scalar = timing.cycle(Stream.VECTOR), timing.cycle(Stream.SCALAR)
        cycle = timing.cycle(Stream.GPSIMD)
        self._walk = {
            kind: tuple(float(machine[f"pool.cost.{kind}_{part}"]) * cycle for part in ("row", "word"))
            for kind in ("gather", "scatter")
        }

    def rows(self, count: int, run_bytes: int, runs: int = 1) -> float:
        """``count`` indices, each of ``runs`` contiguous runs of ``run_bytes``, one way between HBM and SBUF."""
        return MOVING * self._transfer + count * max(self._descriptor, runs * max(self._run, run_bytes / self._rate))

    @staticmethod
    def copies(groups: int) -> int:
        """How many processors share one table's list."""
        return max(1, GROUPS // groups)

    def shares(self, tables: Tables) -> int:
        """How many processors have the same table and divide its list, where that takes least time."""
        choices = range(1, self.copies(tables.count) + 1)
        return min(choices, key=lambda shares: gather_ns(self.timing, tables, shares))

    def side(self, t: Tables) -> int:
        """How many tables lie one upon the other as one, where their rows and lists do so in HBM."""
        most = min(t.count // GROUPS, self.table_bytes // max(1, t.height * t.row))
        if t.before > 1 or t.lead > 1 or most < 1:
            return 1
        return min((side for side in range(1, most + 1) if t.count % side == 0), key=lambda side: self._stack(t, side))

    def _stack(self, t: Tables, side: int) -> float:
        # the numbers of each become those of a stack, list by list
        numbers = STACKING * self._transfer + 2 * t.count * self._run if side > 1 else 0.0
        stack = t.stack(side)
        return numbers + gather_ns(self.timing, stack, self.shares(stack))

    def gathered(self, t: Tables) -> float:
        """A gather from ``t``, of which some may lie one upon the other."""
        return self._stack(t, self.side(t))

    def chunks(self, table_rows: int, row_bytes: int) -> int:
        """Parts of a table that are on chip one after the other."""
        return ceil(table_rows / max(1, self.table_bytes // max(1, row_bytes)))

    def groups(
        self, count: int, table_rows: int, row_bytes: int, entries: int, scatter: bool = False, shared: int = 1
    ) -> float:
        """``count`` tables with ``entries`` indices each; ``shared`` processors work on each list.

        Tables of a pass are moved while those of another one are worked on.
        """
        words = ceil(row_bytes / 4)
        row, word = self._walk["scatter" if scatter else "gather"]
        each = row + words * word
        passes = ceil(count * shared / GROUPS)
        traffic = count * shared * table_rows * row_bytes * (2 if scatter else 1)
        visits = passes * self.chunks(table_rows, row_bytes)
        lists = count * entries * row_bytes
        work, moved = visits * (VISIT * self._transfer + entries / shared * each), (traffic + lists) / self._rate
        return GROUPED * self._transfer + max(work, moved) + min(work, moved) / passes

    def stacked(self, count: int, table_rows: int, row_bytes: int, entries: int, scatter: bool = False) -> int:
        """How many of ``count`` tables lie one upon the other as a table of their own: there are fewer visits then."""
        most = min(count // GROUPS, self.table_bytes // max(1, table_rows * row_bytes))
        heights = [height for height in range(1, most + 1) if count % height == 0]
        return min(
            heights or [1],
            key=lambda height: self.groups(count // height, height * table_rows, row_bytes, height * entries, scatter),
        )

    def stacks(self, count: int, table_rows: int, row_bytes: int, entries: int, scatter: bool = False) -> float:
        """``groups`` with tables ``stacked``: the numbers of each become those of a stack, list by list."""
        height = self.stacked(count, table_rows, row_bytes, entries, scatter)
        numbers = 2 * count * self._run if height > 1 else 0.0
        return numbers + self.groups(count // height, height * table_rows, row_bytes, height * entries, scatter)

    def moved(self, nbytes: int) -> float:
        """``nbytes`` in long runs."""
        return nbytes / self._rate

    def compared(self, elements: int, nbytes: int) -> float:
        """``elements`` compared, selected and folded on Vector, with ``nbytes`` moved under that."""
        return COMPARING * self._transfer + max(elements / PARTITIONS * COMPARED * self._vector, nbytes / self._rate)

    def lower_digits(self, height: int) -> int:
        """Values of the lower digit of ``height`` bins, a power of two, for which counting them takes least."""
        return min((1 << bits for bits in range(10)), key=lambda lower: self._counted_row(height, lower))

    def _counted_row(self, height: int, lower: int) -> float:
        """One integer in each partition: Vector has the lower digit, ScalarE the upper one."""
        upper = -(-height // lower)
        return max((lower + 4) * self._vector, (upper + 1) * self._scalar) if upper < PARTITIONS else float("inf")

    def counted(self, height: int, entries: int) -> float:
        """``entries`` integers counted in ``height`` bins by products of their digits; see ``count_kernel``."""
        if entries >= 1 << 24:
            return float("inf")
        each = self._counted_row(height, self.lower_digits(height))
        return COUNTING * self._transfer + entries / PARTITIONS * 1.1 * each

    def lower_sums(self, height: int, width: int) -> int:
        """Values of the lower digit of ``height`` row numbers, for which adding up takes least; 1 for wide rows."""
        choices = [1 << bits for bits in range(9)] if width == 1 else [1]
        return min(choices, key=lambda lower: self._summed_row(height, width, lower))

    def _summed_row(self, height: int, width: int, lower: int) -> float:
        """One row in each partition: Vector makes ones and zeros, TensorE multiplies, the DMA brings the row."""
        upper, columns = -(-height // lower), lower * width
        sizes = self.timing.sizes
        blocks, pieces = ceil(upper / sizes.partitions), ceil(columns / sizes.bank_columns)
        if blocks * pieces > sizes.banks:
            return float("inf")
        vector = (upper + (2 * lower if lower > 1 else 0) + 6) * 1.15 * self._vector
        product = self.timing.product(min(upper, sizes.columns), min(columns, sizes.bank_columns), "f32")
        return max(vector, product.times(blocks * pieces).tensor, PARTITIONS * 4 * (width + 1) / self._rate)

    def summed(self, height: int, width: int, entries: int) -> float:
        """``entries`` FP32 rows added up by their numbers, after a look whether all are finite: ``sum_kernel``."""
        each = self._summed_row(height, width, self.lower_sums(height, width))
        return SUMMING * self._transfer + entries / PARTITIONS * each + entries * 4 * width / self._rate

    def transposed(self, nbytes: int) -> float:
        """An array read, its dims brought into another order, and written."""
        return 2 * self._transfer + 3 * nbytes / self._rate
