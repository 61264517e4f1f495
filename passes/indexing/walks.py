"""Gathers whose places are known at compile time and advance evenly: windows of the table, one after the other.

Biases by the difference of two positions, tables of relative positions in one or two dims, diagonals, and shifts of
the rows of scores by their number read a table at places that are sums of steps along the dims of the result. What a
table has at the difference of two positions by any function (buckets) is first gathered for each difference. Then no
index is looked at when the program runs: code generation finds windows at known, even places as a view of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.indexing.costs import Costs
from neuronx_cc.passes.indexing.places import known_places
from neuronx_cc.passes.indexing.rows import Label, Windows, gather_rows, gather_tables, weights

Value = hlo.SSAValue
Array = np.ndarray[Any, Any]
SHORT = 8
"""Windows of fewer runs of a DMA that are worth their bytes are brought together in two steps."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Rows ``first`` and on of a table, by (count, step) of each dim of a result from the outermost to the last."""

    first: int
    steps: tuple[tuple[int, int], ...]

    @property
    def window(self) -> int:
        """Neighbouring rows that are taken together."""
        return self.steps[-1][0] if self.steps and self.steps[-1][1] == 1 else 1

    def reversed(self, height: int) -> Walk:
        """The same of the table from its last row of ``height`` to its first."""
        return Walk(height - 1 - self.first, tuple((count, -step) for count, step in self.steps))


@dataclass(frozen=True, slots=True)
class Known:
    """A gather whose places are known: tables [lead, rows, trail], and the rows of each element of the result."""

    before: tuple[int, ...]
    """Dims of the operand that stand before the places in the result."""
    reached: tuple[int, ...]
    after: tuple[int, ...]
    """The other dims that are taken whole."""
    lead: int
    height: int
    trail: int
    walk: Walk
    differences: tuple[int, ...] = ()
    """Rows that are gathered ahead, of each of ``lead`` tables; the walk is one through these."""

    @property
    def order(self) -> tuple[int, ...]:
        return (*self.before, *self.reached, *self.after)


def found(b: Build, windows: Windows, wanted: Sequence[Label]) -> Known | None:
    """The walk of a gather with ``windows`` whose result has the dims ``wanted``, if there is one."""
    many = [label for label in wanted if windows.size(label) > 1]
    placed = [at for at, (kind, dim) in enumerate(many) if kind == "batch" or dim in windows.reached]
    if not placed or placed != list(range(placed[0], placed[-1] + 1)):
        return None
    before = [dim for _, dim in many[: placed[0]]]
    after = [dim for _, dim in many[placed[-1] + 1 :]]
    after += [dim for dim in range(len(windows.dims)) if dim not in (*windows.reached, *before, *after)]
    labels = [many[at] for at in placed]
    numbers = _rows(b, windows, labels)
    if numbers is None:
        return None
    rows, even = numbers
    lengths = [windows.size(label) for label in labels]
    sizes = [prod(windows.dims[dim] for dim in each) for each in (before, windows.reached, after)]
    dims = tuple(before), tuple(windows.reached), tuple(after)
    walk = walk_of(rows, lengths, even)
    if walk is not None:
        return Known(*dims, sizes[0], sizes[1], sizes[2], walk)
    differences = _differences(rows) if [*rows.shape] == lengths else None
    if differences is None:
        return None
    table, walk = differences
    return Known(*dims, sizes[0], sizes[1], sizes[2], walk, tuple(table.tolist()))


def _rows(b: Build, windows: Windows, labels: Sequence[Label]) -> tuple[Array, dict[int, int]] | None:
    """The row of the table, counted over the reached dims, of each place along ``labels``.

    Along those that the second result names it is so much more from one place to the next, and the array is of size 1.
    """
    weight = weights(windows.dims, windows.reached)
    total = np.zeros((1,) * len(windows.batch), np.int64)
    for dim, start in windows.starts.items():
        starts = known_places(start, b.module)
        if starts is None:
            return None
        starts = np.clip(starts.astype(np.int64), 0, windows.dims[dim] - windows.sizes[dim])
        total = total + starts * weight[dim]
    even: dict[int, int] = {}
    for dim, axis in windows.paired.items():
        if windows.batch[axis] == 1:
            continue
        if total.shape[axis] == 1:
            even[labels.index(("batch", axis))] = weight[dim]
        else:
            counts = np.arange(windows.batch[axis]) * weight[dim]
            total = total + counts.reshape([-1 if each == axis else 1 for each in range(total.ndim)])
    for dim in windows.spread:
        even[labels.index(("window", dim))] = weight[dim]
    axes = [axis for kind, axis in labels if kind == "batch"]
    total = total.transpose([*axes, *(axis for axis in range(total.ndim) if axis not in axes)])
    sizes = iter(total.shape)
    return total.reshape([next(sizes) if kind == "batch" else 1 for kind, _ in labels]), even


def walk_of(rows: Array, sizes: Sequence[int], even: Mapping[int, int]) -> Walk | None:
    """``rows`` as sums of even steps along its dims of ``sizes``.

    Along dims of which ``rows`` has one place, the step is that of ``even``, or none.
    """
    steps: list[tuple[int, int]] = []
    left = rows
    for axis in reversed(range(rows.ndim)):
        if left.shape[-1] == 1:
            steps.insert(0, (sizes[axis], even.get(axis, 0)))
        while (last := left.shape[-1]) > 1:
            line = left.reshape(-1, last)
            step = int(line[0, 1] - line[0, 0])
            uneven = np.flatnonzero(np.diff(line[0]) != step)
            count = gcd(last, int(uneven[0]) + 1) if uneven.size else last
            pieces = line.reshape(-1, count)
            if count == 1 or (pieces != pieces[:, :1] + step * np.arange(count)).any():
                return None
            steps.insert(0, (count, step))
            left = pieces[:, 0].reshape(*left.shape[:-1], last // count)
        left = left[..., 0]
    merged: list[tuple[int, int]] = []
    for count, step in steps:
        if merged and merged[-1][1] == step * count:
            merged[-1] = (merged[-1][0] * count, step)
        else:
            merged.append((count, step))
    return Walk(int(left), tuple(merged))


def _differences(rows: Array) -> tuple[Array, Walk] | None:
    """``rows`` of two dims as what a list has at the difference of two numbers: the list, and the walk through it."""
    if rows.ndim != 2 or (rows[1:, 1:] != rows[:-1, :-1]).any():
        return None
    height, width = rows.shape
    return np.concatenate([rows[:0:-1, 0], rows[0]]), Walk(height - 1, ((height, -1), (width, 1)))


def walk_ns(costs: Costs, plan: Known, size: int, forward: bool) -> float:
    """How long it takes until the windows are together. ``forward``: the dims of the table are in ``order`` already."""
    walk, row = plan.walk, plan.trail * size
    height = len(plan.differences) or plan.height
    total = plan.lead * row * prod(count for count, _ in walk.steps)
    ahead = costs.transposed(plan.lead * height * row) if plan.differences else 0.0
    backward = bool(walk.steps) and walk.steps[-1][1] < 0
    if backward:
        walk = walk.reversed(height)
    if backward or not forward:
        ahead += costs.transposed(plan.lead * height * row)
    first, last = _stages(costs, walk, row)
    if first is not None:
        ahead += _moved(costs, first, row, plan.lead)
    return ahead + costs.timing.transfer(total, last.window * row, "copy").bound + 2 * costs.timing.transfer_latency


def _moved(costs: Costs, walk: Walk, row: int, lead: int) -> float:
    nbytes = lead * row * prod(count for count, _ in walk.steps)
    return 2 * costs.timing.transfer_latency + costs.timing.transfer(nbytes, walk.window * row, "copy").bound


def _stages(costs: Costs, walk: Walk, row: int) -> tuple[Walk | None, Walk]:
    """``walk`` as one through an array in which each of the steps before the last ones is made once, if that is less.

    Steps (y of one place), (x of one place), (y of another), (x of another) through a table over (y, x): the array has
    (x of one place), all y that sums of both reach, and (x of the other), in which windows go over y and x at once.
    """
    if len(walk.steps) < 2 or walk.window == 1 or walk.window * row >= costs.timing.long_run // SHORT:
        return None, walk
    *outer, (count, unit), (width, _) = walk.steps
    same = [each for each in outer if abs(each[1]) == unit]
    others = [each for each in outer if abs(each[1]) != unit]
    if unit <= 0 or not same:
        return None, walk
    before = sum((size - 1) for size, step in same if step < 0)
    lines = count + sum(size - 1 for size, _ in same)
    first = Walk(walk.first - before * unit, (*others, (lines, unit), (width, 1)))
    length, lengths = lines * width, list[int]()
    for size, _ in reversed(others):
        lengths.insert(0, length)
        length *= size
    further = iter(lengths)
    steps = [
        (size, width if step > 0 else -width) if abs(step) == unit else (size, next(further)) for size, step in outer
    ]
    return first, Walk(before * width, (*steps, (count * width, 1)))


def taken(b: Build, operand: Value, plan: Known, costs: Costs) -> Value:
    """The elements [lead, places, trail]."""
    walk, height = plan.walk, plan.height
    if plan.differences:
        rows = (*plan.reached, *plan.before, *plan.after)
        whole = b.reshape(b.transpose(operand, rows), (1, height, plan.lead * plan.trail))
        height = len(plan.differences)
        numbers = b.array(np.array([plan.differences]), "s32")
        found = b.reshape(gather_tables(b, whole, numbers), (height, plan.lead, plan.trail))
        table = b.reshape(b.transpose(found, (1, 0, 2)), (plan.lead * height, plan.trail))
    else:
        table = b.reshape(b.transpose(operand, plan.order), (plan.lead * height, plan.trail))
    if walk.steps and walk.steps[-1][1] < 0:
        tables = b.reverse(b.reshape(table, (plan.lead, height, plan.trail)), (1,))
        table, walk = b.reshape(tables, (plan.lead * height, plan.trail)), walk.reversed(height)
    first, last = _stages(costs, walk, plan.trail * itemsize(hlo.shape_of(operand).dtype))
    if first is not None:
        table = _windows(b, table, first, plan.lead, height)
        height = prod(count for count, _ in first.steps)
    return _windows(b, table, last, plan.lead, height)


def _windows(b: Build, table: Value, walk: Walk, lead: int, height: int) -> Value:
    """The rows [lead * places, trail] of ``lead`` tables of ``height`` rows."""
    steps = walk.steps[:-1] if walk.window > 1 else walk.steps
    starts = np.array(walk.first + np.arange(lead) * height)
    for count, step in steps:
        starts = starts[..., None] + step * np.arange(count)
    rows = gather_rows(b, table, b.array(starts.reshape(-1), "s32"), walk.window)
    return b.reshape(rows, (starts.size * walk.window, hlo.shape_of(table).dims[1]))
