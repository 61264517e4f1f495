"""How many rows of each group a ragged contraction takes at once, by estimated time. Times in ns.

*Masked*: all rows, once for each group, zero where they are not its own. *First rows*: as many rows of each group are
brought together and multiplied as one batch; what groups have beyond that is left to a loop, which runs as often as the
sizes at run time need it. *Few rows*: each is multiplied with the matrix of its group, which alone is read. *Together*:
several contractions of the first rows. No pass: ``expand_ragged_dots`` asks.
"""

from dataclasses import dataclass, replace
from math import ceil, sqrt

from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.passes.analysis.listed import reads_listed
from neuronx_cc.passes.indexing.costs import Costs

SPARE, SPREAD = 1.25, 3
"""A group is expected to have at most so many times the mean of rows, and so many deviations of a random count."""
FINE, COARSE = 8, 2
"""Rows of a group are brought together in such parts of a tile of rows; in the latter, if they are several tiles."""
NEAR_SHARE = (1, 4)
"""Of SBUF: masked rows that stay there."""
NEAR_PASSES, MASKED_PASSES = 1, 5
"""Of masked rows that stay on chip, or go through HBM: written, put in order, read."""
NUMBERED = 10
"""Passes over a number for each group and row, to find where rows are."""
MASKED_STEPS, STEPS, FEW_STEPS, LINK_STEPS = 10, 18, 20, 3
"""Transfers that follow one another where rows are masked; or brought together: of numbers, rows, products, rows by
number, and the loop, which finds that nothing is left; or of matrices, which wait for their numbers; or from one
contraction to the next, together.
"""


@dataclass(frozen=True, slots=True)
class Grouped:
    """A ragged contraction: rows of ``terms`` in groups, times [terms, columns] each; or the sums over rows of each
    group of the products of its ``terms`` and ``columns``.
    """

    groups: int
    rows: int
    terms: int
    columns: int
    itemsize: int
    dtype: str
    """On TensorE."""
    sums_rows: bool

    @property
    def weights(self) -> int:
        """Bytes of what groups have of their own."""
        return self.groups * self.terms * self.columns * self.itemsize

    def taken(self, rows: int) -> int:
        """Bytes of so many rows, as they are brought together."""
        return rows * (self.terms + self.columns * self.sums_rows) * self.itemsize


@dataclass(frozen=True, slots=True)
class Linked:
    """Contractions of rows of the same groups."""

    products: tuple[Grouped, ...]
    brought: int
    """Bytes a row of what is brought together; twice what is masked as well."""
    back: tuple[int, ...]
    """Bytes a row of each array that is put back."""

    @classmethod
    def alone(cls, work: Grouped) -> "Linked":
        back = () if work.sums_rows else (work.columns * work.itemsize,)
        return cls((work,), (1 + work.sums_rows) * work.taken(1), back)


@dataclass(frozen=True, slots=True)
class Plan:
    """``first``: rows of each group that are taken at once, ``tile``: of what is left; ``few``: whether each row is
    multiplied with its own matrix. Rows are masked where there is none of these.
    """

    ns: float
    first: int = 0
    tile: int = 0
    few: bool = False


def choose(timing: Timing, work: Grouped) -> Plan:
    """The quickest."""
    ways = masked(timing, work), first_rows(timing, Linked.alone(work)), few_rows(timing, work)
    return min(ways, key=lambda plan: plan.ns)


def masked(timing: Timing, work: Grouped) -> Plan:
    """All rows for each group."""
    taken, sizes = work.taken(work.groups * work.rows), timing.sizes
    near = taken <= (1 + work.sums_rows) * sizes.sbuf_share(NEAR_SHARE) * sizes.partitions
    masks = (NEAR_PASSES if near else MASKED_PASSES) * taken / timing.dma_rate
    product = max(_products(timing, work, work.rows), _weights(timing, work))
    return Plan(MASKED_STEPS * timing.transfer_latency + masks + product)


def together(timing: Timing, linked: Linked) -> Plan | None:
    """The plan of several contractions; None where each by itself takes less time, or where there is but one."""
    if len(linked.products) < 2:
        return None
    plan = first_rows(timing, linked)
    return plan if plan.ns <= sum(choose(timing, work).ns for work in linked.products) else None


def first_rows(timing: Timing, linked: Linked) -> Plan:
    """As many rows of each group as it is expected to have."""
    rows, groups = linked.products[0].rows, linked.products[0].groups
    mean, most = rows / groups, timing.sizes.columns
    wanted = SPARE * mean + SPREAD * sqrt(mean)
    unit = most // (FINE if wanted <= most else COARSE)
    first = ceil(wanted / unit) * unit
    if first >= rows:
        return Plan(float("inf"))
    taken = groups * first
    moved = 2 * linked.brought * taken / timing.dma_rate  # through HBM: gathered, and masked
    for work in linked.products:
        operands = work.taken(taken) / timing.dma_rate
        moved += max(_products(timing, work, first), _weights(timing, work) + operands)
    for nbytes in linked.back:
        moved += Costs(timing).rows(rows, nbytes) + (taken + rows) * nbytes / timing.dma_rate
    steps = (STEPS + LINK_STEPS * (len(linked.products) - 1)) * timing.transfer_latency
    steps += NUMBERED * groups * rows / timing.sizes.partitions * timing.cycle(Stream.GPSIMD)
    return Plan(steps + moved, first, min(rows, 4 * most))


def _weights(timing: Timing, work: Grouped) -> float:
    """The DMA of what groups have of their own."""
    return timing.transfer(work.weights, work.columns * work.itemsize).bound


def few_rows(timing: Timing, work: Grouped) -> Plan:
    """A matrix for each row, read where it lies."""
    matrix = work.terms * work.columns * work.itemsize
    if work.sums_rows or work.rows >= work.groups or not reads_listed(timing, matrix):
        return Plan(float("inf"))
    each = replace(work, groups=work.rows)
    product = max(_products(timing, each, 1), timing.found(each.weights, matrix // timing.sizes.rows).bound)
    return Plan(FEW_STEPS * timing.transfer_latency + product, few=True)


def _products(timing: Timing, work: Grouped, rows: int) -> float:
    """TensorE, with so many rows of each group."""
    sizes = timing.sizes
    terms, stationary = (rows, work.terms) if work.sums_rows else (work.terms, rows)
    tiles = ceil(terms / sizes.rows) * ceil(stationary / sizes.columns)
    return work.groups * tiles * work.columns * timing.column(work.dtype)
