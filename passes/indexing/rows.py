"""What the canonical forms of gather and scatter share: which operand dims an index reaches, and row numbers.

A gather or scatter is a set of windows of the operand. For code generation the operand becomes a table of rows, the
start indices become row numbers, and what lies between two rows of one window becomes more row numbers. Dims of the
windows and of the indices carry *labels*, ``("batch", axis of the indices)`` and ``("window", operand dim)``, by which
results and updates are brought into order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.types import INTEGERS, itemsize
from neuronx_cc.passes.analysis.intervals import type_range
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.indexing.costs import costs_of
from neuronx_cc.passes.indexing.tables import Tables

Value = hlo.SSAValue
Label: TypeAlias = tuple[str, int]
WHOLE = {"f32": 1 << 24, "bf16": 1 << 8, "f16": 1 << 11}
"""Whole numbers from 0 up to which a float type has all."""


@dataclass(slots=True)
class Windows:
    """The windows of one gather or scatter."""

    dims: tuple[int, ...]
    """Of the operand."""
    sizes: tuple[int, ...]
    """Of a window, along each operand dim; a dim that no index reaches is taken whole."""
    starts: dict[int, Value]
    """Operand dim -> its start indices in s32, over ``batch``; only dims along which a window can move."""
    paired: dict[int, int]
    """Operand dim -> axis of ``batch`` that counts along it (the batching dims)."""
    batch: tuple[int, ...]
    """Dims of the indices without the index vector."""

    @property
    def count(self) -> int:
        return prod(self.batch)

    @property
    def reached(self) -> list[int]:
        """Operand dims along which windows lie at different places."""
        return sorted({*self.starts, *self.paired})

    @property
    def between(self) -> list[int]:
        """Dims that are taken whole although a dim after them is reached."""
        return [dim for dim in range(max(self.reached, default=-1) + 1) if dim not in self.reached]

    @property
    def after(self) -> list[int]:
        """Dims after all reached ones: a row."""
        return list(range(max(self.reached, default=-1) + 1, len(self.dims)))

    @property
    def spread(self) -> list[int]:
        """Reached dims along which a window has a size of its own."""
        return [dim for dim in self.starts if self.sizes[dim] > 1]

    @property
    def tables(self) -> list[list[int]]:
        """Choices of operand dims that count tables: all that can, or none, so that the batches share one table."""
        apart = sorted([*self.paired, *self.between])
        return [apart, []] if self.paired and not self.between else [apart]

    def elements(self, tables: Sequence[int]) -> int:
        """Of the dims among ``tables`` that share their lists."""
        return prod(self.dims[dim] for dim in tables if dim not in self.paired)

    def size(self, label: Label) -> int:
        return self.batch[label[1]] if label[0] == "batch" else self.sizes[label[1]]


def table_labels(windows: Windows, tables: Sequence[int]) -> list[Label]:
    """Labels of the operand dims that count tables: batching dims, and dims that are taken whole."""
    return [("batch", windows.paired[dim]) if dim in windows.paired else ("window", dim) for dim in tables]


def vectors(b: Build, indices: Value, vector_dim: int, depth: int) -> list[Value]:
    """The parts of the index vectors, each over the other dims of ``indices``."""
    shape = hlo.shape_of(indices)
    if vector_dim == shape.rank:
        return [indices]
    made = defining_op(indices)
    if isinstance(made, hlo.ConcatenateOp) and made.dimension.data == vector_dim and len(made.operands) == depth:
        return [
            b.reshape(part, [size for axis, size in enumerate(shape.dims) if axis != vector_dim])
            for part in made.operands
        ]
    batch = [size for axis, size in enumerate(shape.dims) if axis != vector_dim]
    return [b.reshape(b.slice(indices, vector_dim, part, part + 1), batch) for part in range(depth)]


def counting_axis(b: Build, start: Value, size: int, batch: Sequence[int], taken: Mapping[int, int]) -> int | None:
    """The axis of ``batch``, as long as the operand's dim of ``size``, along which ``start`` only counts, if any.

    Such an index is a batching dim. ``taken``: those that there are.
    """
    axis = _counts_along(start, b)
    return axis if axis is not None and batch[axis] == size and axis not in taken.values() else None


def _counts_along(value: Value, b: Build) -> int | None:
    """The dim along which integers ``value`` are 0, 1, 2 ..., where that shows."""
    op, dims = defining_op(value), hlo.shape_of(value).dims
    if isinstance(op, hlo.IotaOp):
        return op.iota_dimension.data if _counts_to(op.shape.dtype) >= dims[op.iota_dimension.data] else None
    if isinstance(op, hlo.SelectOp):  # what is negative is counted from the end
        test = defining_op(op.operands[0])
        if not isinstance(test, hlo.CompareOp) or test.direction.data != "LT" or test.lhs is not op.operands[2]:
            return None
        if splat_number(test.rhs, b.module) != 0:
            return None
        return _counts_along(op.operands[2], b)
    if not isinstance(op, hlo.ReshapeOp | hlo.BroadcastOp | hlo.ConvertOp):
        return None
    inner = _counts_along(op.operands[0], b)
    if inner is None:
        return None
    if isinstance(op, hlo.ConvertOp):
        return inner if _counts_to(op.shape.dtype) >= dims[inner] else None
    before = hlo.shape_of(op.operands[0]).dims
    if isinstance(op, hlo.BroadcastOp):
        return op.dimensions.data[inner]
    if [size for size in dims if size > 1] != [size for size in before if size > 1] or before[inner] == 1:
        return None
    many = [axis for axis, size in enumerate(dims) if size > 1]
    return many[[axis for axis, size in enumerate(before) if size > 1].index(inner)]


def _counts_to(dtype: str) -> int:
    """How many whole numbers from 0 on ``dtype`` has, without a gap; 0 of types that no index has."""
    return type_range(dtype)[1] + 1 if dtype in INTEGERS else WHOLE.get(dtype, 0)


def bounded(b: Build, start: Value, limit: int) -> Value:
    """``start`` in s32; where that could wrap to a negative number, no larger than ``limit``."""
    if hlo.shape_of(start).dtype == "u32":
        start = b.each(hlo.MinimumOp, start, b.number_like(limit, start))
    return b.convert(start, "s32")


def clamped(b: Build, start: Value, limit: int) -> Value:
    """s32 ``start`` brought into [0, limit]."""
    above = b.each(hlo.MaximumOp, start, b.number_like(0, start))
    return b.each(hlo.MinimumOp, above, b.number_like(limit, start))


def weights(dims: Sequence[int], order: Sequence[int]) -> dict[int, int]:
    """Row-major weight of each dim of ``order``."""
    found: dict[int, int] = {}
    weight = 1
    for dim in reversed(order):
        found[dim] = weight
        weight *= dims[dim]
    return found


def row_numbers(b: Build, windows: Windows, weight: Mapping[int, int], spread: Sequence[int]) -> Value:
    """Row number of each window's first element, and of those further along ``spread``: s32 [*batch, *spread sizes].

    ``weight``: rows from one element to the next along each dim that counts.
    """
    total: Value | None = None
    parts = [(dim, start) for dim, start in windows.starts.items() if dim in weight]
    parts += [(dim, b.iota(windows.batch, axis)) for dim, axis in windows.paired.items() if dim in weight]
    for dim, part in parts:
        total = _plus(b, total, _times(b, part, weight[dim]))
    if total is None:
        total = b.number(0, "s32", windows.batch)
    sizes = tuple(windows.sizes[dim] for dim in spread)
    if prod(sizes) == 1:
        return b.reshape(total, (*windows.batch, *sizes))
    further: Value | None = None
    for axis, dim in enumerate(spread):
        further = _plus(b, further, _times(b, b.iota(sizes, axis), weight[dim]))
    assert further is not None, "there is a dim to spread over"
    rank = len(windows.batch)
    dims = (*windows.batch, *sizes)
    spaced = b.broadcast(further, dims, range(rank, len(dims)))
    return b.add(b.broadcast(total, dims, range(rank)), spaced)


def _times(b: Build, value: Value, factor: int) -> Value:
    return value if factor == 1 else b.mul(value, b.number_like(factor, value))


def _plus(b: Build, total: Value | None, part: Value) -> Value:
    return part if total is None else b.add(total, part)


def arranged(b: Build, value: Value, windows: Windows, labels: Sequence[Label], wanted: Sequence[Label]) -> Value:
    """``value`` with dims ``labels`` as one with dims ``wanted``; labels that only one side has are of size 1."""
    splat = splat_number(value, b.module)
    if splat is not None:
        return b.number(splat, hlo.shape_of(value).dtype, [windows.size(label) for label in wanted])
    common = [label for label in labels if label in wanted]
    kept = b.reshape(value, [windows.size(label) for label in common])
    order = [label for label in wanted if label in common]
    transposed = b.transpose(kept, [common.index(label) for label in order])
    return b.reshape(transposed, [windows.size(label) for label in wanted])


def whole_labels(rank: int, window_dims: Sequence[int], window: Sequence[int]) -> list[Label]:
    """Labels of a gather's result or a scatter's updates of ``rank``: operand dims ``window`` at ``window_dims``."""
    inside = dict(zip(window_dims, window, strict=True))
    batch = iter(range(rank))
    return [("window", inside[axis]) if axis in inside else ("batch", next(batch)) for axis in range(rank)]


def gather_rows(b: Build, table: Value, numbers: Value, height: int = 1) -> Value:
    """``height`` rows of ``table`` [R, W] from each of ``numbers`` [N] on, clamped so that they fit: [N, height, W]."""
    (count,), (_, width) = hlo.shape_of(numbers).dims, hlo.shape_of(table).dims
    return _gather(b, table, numbers, (count, height, width), hlo.GatherDims((1, 2), (), (0,), 1), (height, width))


def gather_tables(b: Build, tables: Value, numbers: Value) -> Value:
    """Rows ``numbers`` [G, N], clamped, of ``tables`` [G, R, W]: [G, N, W]."""
    count, height, width = hlo.shape_of(tables).dims
    entries, costs, size = hlo.shape_of(numbers).dims[1], costs_of(b), itemsize(hlo.shape_of(tables).dtype)
    walked = costs.gathered(Tables(count, 1, height, width, entries, 1, size))
    if costs.rows(count * entries, width * size) < walked:  # one table of all
        first = b.mul(b.iota((count, entries), 0), b.number(height, "s32", (count, entries)))
        listed = numbers if count == 1 else b.add(clamped(b, numbers, height - 1), first)
        rows = b.reshape(tables, (count * height, width))
        return b.reshape(gather_rows(b, rows, b.reshape(listed, (count * entries,))), (count, entries, width))
    found = gather_turned(b, b.reshape(tables, (count, 1, height, width)), numbers, 0)
    return b.reshape(found, (count, entries, width))


def gather_turned(b: Build, tables: Value, numbers: Value, lead: int) -> Value:
    """Rows ``numbers`` [G, N], clamped, of ``tables`` [G, A, R, B], the first ``lead`` dims of a row ahead of them.

    The result is [G, N, A, B], [G, A, N, B] or [G, A, B, N].
    """
    count, across, height, width = hlo.shape_of(tables).dims
    entries = hlo.shape_of(numbers).dims[1]
    size = itemsize(hlo.shape_of(tables).dtype)
    row, leading = (across, width), (1, across, across * width)[lead]
    problem = Tables(count, across, height, width, entries, leading, size)
    side = costs_of(b).side(problem)
    if side > 1:
        tables = b.reshape(tables, (count // side, 1, side * height, width))
        numbers = stacked_numbers(b, clamped(b, numbers, height - 1), side, height)
    groups, listed = hlo.shape_of(numbers).dims
    shape = (groups, *row[:lead], listed, *row[lead:])
    offset = tuple(dim for dim in (1, 2, 3) if dim != lead + 1)
    dims = hlo.GatherDims(offset, (2,), (2,), 2, (0,), (0,))
    found = _gather(b, tables, numbers, shape, dims, (1, across, 1, width))
    return b.reshape(found, (count, *row[:lead], entries, *row[lead:]))


def stacked_numbers(b: Build, numbers: Value, side: int, height: int) -> Value:
    """Row numbers [G, N] of tables of ``height`` rows in stacks of ``side`` tables: [G / side, side N]."""
    count, entries = hlo.shape_of(numbers).dims
    shape = (count // side, side, entries)
    first = b.broadcast(b.mul(b.iota((side,), 0), b.number(height, "s32", (side,))), shape, (1,))
    return b.reshape(b.add(b.reshape(numbers, shape), first), (shape[0], side * entries))


def _gather(
    b: Build, operand: Value, numbers: Value, shape: tuple[int, ...], dims: hlo.GatherDims, sizes: tuple[int, ...]
) -> Value:
    return b.typed(
        hlo.GatherOp,
        (operand, numbers),
        hlo.array_type(hlo.shape_of(operand).dtype, shape),
        dims=hlo.GatherDimsAttr(dims),
        slice_sizes=hlo.IntsAttr(sizes),
        indices_are_sorted=hlo.BoolAttr(False),
    )
