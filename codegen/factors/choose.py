"""Whether matrices are factorised one in each partition, or one after the other, each across the partitions."""

from __future__ import annotations

from collections.abc import Iterable

from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, Timing

SHARE = 0.9
"""Of the room on chip: what the matrices may take that lie in the partitions."""
HOPS = 16
"""From Vector to TensorE and back, before the first column of a matrix and after the last one."""


def are_choleskys_side_by_side(timing: Timing, batch: int, size: int, room: int) -> bool:
    """For ``room`` bytes a partition."""
    if 4 * size * size > SHARE * room:
        return False
    rows = (max(1, size - at - 1) for at in range(size))
    each = sum(
        3 * _row(timing, rest) + min(rest * _row(timing, rest) * 0.625, 2 * _row(timing, rest * rest)) for rest in rows
    )
    each += size * 8 * timing.dependent(Stream.VECTOR)
    ends = HOPS * (timing.latency(Stream.VECTOR) + timing.latency(Stream.TENSOR))
    return _groups(timing, batch) * each < batch * (size * _step(timing, size, size, 2, 1) + ends)


def are_lus_side_by_side(timing: Timing, batch: int, rows: int, columns: int, room: int) -> bool:
    """For ``room`` bytes a partition."""
    if batch == 1 or 8 * rows * columns + 64 * (rows + columns) > SHARE * room:
        return False
    steps = min(rows, columns)
    beyond: Iterable[int] = (columns - at for at in range(steps))
    each = sum(13 * _row(timing, rows) + rest * 2.5 * _row(timing, rows) for rest in beyond)
    each += steps * 8 * timing.dependent(Stream.VECTOR)
    return _groups(timing, batch) * each < batch * steps * _step(timing, rows, columns, 9, 16)


def _groups(timing: Timing, batch: int) -> int:
    return -(-batch // timing.sizes.partitions)


def _row(timing: Timing, size: int) -> float:
    """An instruction of two rows."""
    return timing.engine("scalar_tensor_tensor", Stream.VECTOR, size, (F32,), (F32, F32)).vector


def _step(timing: Timing, rows: int, columns: int, waiting: int, instructions: int) -> float:
    """A column across the partitions: ``instructions`` of Vector, of which ``waiting`` wait for the one before."""
    around = timing.latency(Stream.VECTOR) + timing.latency(Stream.TENSOR)
    around += timing.product(columns, rows, "f32").tensor
    one = timing.engine("scalar_tensor_tensor", Stream.VECTOR, rows, (F32,), (F32_PSUM, F32)).vector
    return around + waiting * timing.dependent(Stream.VECTOR) + instructions * one * 0.75
