"""The forms of one gather, each with its estimated time; the quickest is taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from neuronx_cc.passes.indexing import compare as indexing_compare
from neuronx_cc.passes.indexing.costs import Costs
from neuronx_cc.passes.indexing.rows import Label, Windows, table_labels
from neuronx_cc.passes.indexing.tables import Tables


@dataclass(frozen=True, slots=True)
class Plan:
    """One way, and how long it takes."""

    ns: float
    form: str
    """``rows``, ``transposed`` (rows after a transpose), ``groups`` or ``compare``."""
    tables: tuple[int, ...] = ()
    """Operand dims that count tables."""
    across: int = 1
    """Elements of the last of these dims that lie in a row together instead: they share the list."""
    lead: int = 0
    """Of the dims before and after the rows, how many stand before the entries in the result."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a gather wants, beyond its windows."""

    windows: Windows
    wanted: list[Label]
    """The dims of the result."""
    dtype: str
    size: int
    """Bytes of an element."""
    made: bool
    """The operand is a result, which rows and groups read from HBM, while comparisons may take it from the chip."""

    @property
    def steps(self) -> int:
        """Indices, one for each row of a window."""
        w = self.windows
        return w.count * prod(w.sizes[dim] for dim in (*w.spread, *w.between))

    def turned(self, costs: Costs, labels: Sequence[Label]) -> float:
        """What it takes to bring the dims of a result in the order ``labels`` into that of ``wanted``."""
        before, after = ([x for x in order if self.windows.size(x) > 1] for order in (labels, self.wanted))
        common = [x for x in before if x in after]
        nbytes = self.size * prod(self.windows.size(x) for x in self.wanted)
        return 0.0 if common == [x for x in after if x in before] else costs.transposed(nbytes)


def choose(costs: Costs, asked: Asked) -> Plan:
    """The candidate that takes least time."""
    return min(candidates(costs, asked), key=lambda plan: plan.ns)


def candidates(costs: Costs, asked: Asked) -> list[Plan]:
    """All ways."""
    return [*_rows(costs, asked), *_tables(costs, asked)]


def _rows(costs: Costs, asked: Asked) -> Iterator[Plan]:
    """By DMA, one descriptor a row."""
    w = asked.windows
    row = asked.size * prod(w.dims[dim] for dim in w.after)
    runs = prod(w.sizes[dim] for dim in (*w.spread[:-1], *w.between))
    contiguous = row * (w.sizes[w.spread[-1]] if w.spread else 1)
    labels: list[Label] = [("batch", axis) for axis in range(len(w.batch))]
    labels += [("window", dim) for dim in (*w.spread, *w.between, *w.after)]
    first = costs.timing.transfer_latency  # of numbers, before there is a row
    yield Plan(first + costs.rows(w.count, contiguous, runs) + asked.turned(costs, labels), "rows")
    if w.between:
        total = contiguous * runs
        nbytes = asked.size * prod(w.dims)
        transposed = costs.transposed(nbytes + total * w.count) + costs.rows(w.count, total)
        yield Plan(first + transposed, "transposed")


def _tables(costs: Costs, asked: Asked) -> Iterator[Plan]:
    w = asked.windows
    nbytes = asked.size * prod(w.dims)
    after = prod(w.dims[dim] for dim in w.after)
    for tables in w.tables:
        count = prod(w.dims[dim] for dim in tables)
        height = prod(w.dims[dim] for dim in w.reached if dim not in tables)
        entries = asked.steps // count
        shared = prod(w.dims[dim] for dim in tables if dim not in w.paired)
        for across in (size for size in range(1, shared + 1) if shared % size == 0):
            if across * after * asked.size > costs.row_bytes:
                break
            order = in_order(w, tables, across)
            for lead in range(3):
                labels = result_labels(w, order, across, lead)
                if labels is None:
                    continue
                leading = (1, across, across * after)[lead]
                problem = Tables(count // across, across, height, after, entries, leading, asked.size)
                ns = costs.gathered(problem) + asked.turned(costs, labels)
                yield Plan(ns, "groups", order, across, lead)
        compare = indexing_compare.gather_ns(costs, count, height, after * asked.size, entries, asked.dtype)
        compare += asked.turned(costs, result_labels(w, tables, 1, 0) or ())
        yield Plan(compare - costs.transposed(nbytes) * asked.made, "compare", tuple(tables))


def in_order(windows: Windows, tables: Sequence[int], across: int) -> tuple[int, ...]:
    """``tables`` with those that share lists last, where they lie in rows."""
    apart = [dim for dim in tables if dim in windows.paired]
    return tuple(tables) if across == 1 else (*apart, *(dim for dim in tables if dim not in windows.paired))


def inner_labels(windows: Windows, tables: Sequence[int]) -> list[Label]:
    """Labels of the entries of one list."""
    labels: list[Label] = [("batch", axis) for axis in range(len(windows.batch))]
    labels += [("window", dim) for dim in windows.spread]
    outer = table_labels(windows, tables)
    return [label for label in labels if label not in outer]


def result_labels(windows: Windows, tables: Sequence[int], across: int, lead: int) -> list[Label] | None:
    """The dims of the result of tables in a row's order; None where it has no such form."""
    outer, inner = table_labels(windows, tables), inner_labels(windows, tables)
    after: list[Label] = [("window", dim) for dim in windows.after]
    shared = [label for dim, label in zip(tables, outer, strict=True) if dim not in windows.paired]
    if lead == 2:
        return [*outer, *after, *inner]
    if lead == 1:
        return [*outer, *inner, *after] if across > 1 else None
    if across == 1:
        return [*outer, *inner, *after]
    whole = across == windows.elements(tables)
    return [*(label for label in outer if label not in shared), *inner, *shared, *after] if whole else None
