"""Estimates of how long a gather or scatter takes in each of its forms, for choosing between them. Times in ns.

*Rows*: the DMA moves whole rows, with one descriptor an index made by GpSimd software. *Groups*: each of GpSimd's eight
processors holds a table in its 16 SBUF partitions and walks a list of indices. The constants are those of the machine
description (``runtime/machines``, hardware sheet 1.8.2 and 3.3), rounded; only their ratios matter here.
"""

from math import ceil

GROUPS = 8
"""GpSimd processors."""
TABLE_BYTES = 1600 << 10
"""What a group's table can usually take of its 16 partitions."""
ROW_BYTES = 4096
"""Longest row that a group moves."""

_DESCRIPTOR = 20.0
_RUN, _ENGINES = 140.0, 16
_BYTES = 272.0
_CLOCK = 1.4
LANES, _VECTOR_CLOCK = 128, 1.12
_COMPARE_CYCLES = 5.0
"""A comparison, a selection of two streams, a fold."""
_VISIT = 2500.0
"""Of eight tables: their transfers are short."""
_ROWS_START, _GROUPS_START, _COMPARE_START, _COUNT_START = 4000.0, 7000.0, 5000.0, 9000.0
_SUM_START = 18000.0
_BANKS = 8
"""Of PSUM."""
_TENSOR_CLOCK = 2.8


def rows(count: int, run_bytes: int, runs: int = 1) -> float:
    """``count`` indices, each of ``runs`` contiguous runs of ``run_bytes``, one way between HBM and SBUF."""
    return _ROWS_START + count * max(_DESCRIPTOR, runs * max(_RUN / _ENGINES, run_bytes / _BYTES))


def copies(groups: int) -> int:
    """How many processors share one table's list."""
    return max(1, GROUPS // groups)


def chunks(table_rows: int, row_bytes: int) -> int:
    """Parts of a table that are on chip one after the other."""
    return ceil(table_rows / max(1, TABLE_BYTES // max(1, row_bytes)))


def groups(count: int, table_rows: int, row_bytes: int, entries: int, scatter: bool = False, shared: int = 1) -> float:
    """``count`` tables with ``entries`` indices each; ``shared`` processors work on each list.

    Tables of a pass are moved while those of another one are worked on.
    """
    words = ceil(row_bytes / 4)
    each = (14 + 2 * words if scatter else 7 + words) / _CLOCK
    passes = ceil(count * shared / GROUPS)
    traffic = count * shared * table_rows * row_bytes * (2 if scatter else 1)
    visits = passes * chunks(table_rows, row_bytes)
    lists = count * entries * row_bytes
    work, moved = visits * (_VISIT + entries / shared * each), (traffic + lists) / _BYTES
    return _GROUPS_START + max(work, moved) + min(work, moved) / passes


def stacked(count: int, table_rows: int, row_bytes: int, entries: int, scatter: bool = False) -> int:
    """How many of ``count`` tables lie one upon the other as a table of their own, so that there are fewer visits."""
    most = min(count // GROUPS, TABLE_BYTES // max(1, table_rows * row_bytes))
    heights = [height for height in range(1, most + 1) if count % height == 0]
    return min(
        heights or [1],
        key=lambda height: groups(count // height, height * table_rows, row_bytes, height * entries, scatter),
    )


def stacks(count: int, table_rows: int, row_bytes: int, entries: int, scatter: bool = False) -> float:
    """``groups`` with tables ``stacked``: the numbers of each become those of a stack, list by list."""
    height = stacked(count, table_rows, row_bytes, entries, scatter)
    numbers = 2 * count * _RUN / _ENGINES if height > 1 else 0.0
    return numbers + groups(count // height, height * table_rows, row_bytes, height * entries, scatter)


def compared(elements: int, nbytes: int) -> float:
    """``elements`` compared, selected and folded on Vector, with ``nbytes`` moved under that."""
    return _COMPARE_START + max(elements / LANES * _COMPARE_CYCLES / _VECTOR_CLOCK, nbytes / _BYTES)


def lower_digits(height: int) -> int:
    """Values of the lower digit of ``height`` bins, a power of two, for which counting them takes least."""
    return min((1 << bits for bits in range(10)), key=lambda lower: _counted_row(height, lower))


def _counted_row(height: int, lower: int) -> float:
    """One integer in each partition: Vector has the lower digit, ScalarE the upper one."""
    upper = -(-height // lower)
    return max((lower + 4) / _VECTOR_CLOCK, (upper + 1) / _CLOCK) if upper < LANES else float("inf")


def counted(height: int, entries: int) -> float:
    """``entries`` integers counted in ``height`` bins by products of their digits; see ``count_kernel``."""
    if entries >= 1 << 24:
        return float("inf")
    return _COUNT_START + entries / LANES * 1.1 * _counted_row(height, lower_digits(height))


def lower_sums(height: int, width: int) -> int:
    """Values of the lower digit of ``height`` row numbers, for which adding up takes least; 1 for rows of several."""
    choices = [1 << bits for bits in range(9)] if width == 1 else [1]
    return min(choices, key=lambda lower: _summed_row(height, width, lower))


def _summed_row(height: int, width: int, lower: int) -> float:
    """One row in each partition: Vector makes ones and zeros, TensorE multiplies in FP32, the DMA brings the row."""
    upper, columns = -(-height // lower), lower * width
    blocks = ceil(upper / LANES)
    if blocks * ceil(columns / 512) > _BANKS:
        return float("inf")
    vector = (upper + (2 * lower if lower > 1 else 0) + 6) * 1.15 / _VECTOR_CLOCK
    tensor = 4 * (blocks * max(min(64, upper), columns) + upper / 4) / _TENSOR_CLOCK
    return max(vector, tensor, LANES * 4 * (width + 1) / _BYTES)


def summed(height: int, width: int, entries: int) -> float:
    """``entries`` FP32 rows added up by their numbers, after a look whether all are finite: ``sum_kernel``."""
    each = _summed_row(height, width, lower_sums(height, width))
    return _SUM_START + entries / LANES * each + entries * 4 * width / _BYTES


def turned(nbytes: int) -> float:
    """An array read, its dims brought into another order, and written."""
    return 2000.0 + 3 * nbytes / _BYTES
