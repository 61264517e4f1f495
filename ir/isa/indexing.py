"""What GpSimd's gather and scatter programs compute: one small NumPy function each, as in ``programs``.

Each of the eight processors sees the 16 SBUF partitions of its *group* (hardware sheet 3.7). A group's table has
16 F rows of E elements: row r lies in partition ``r // F`` of the group, at place ``r % F``. Its list has 16 M entries:
entry n lies in partition ``n // M``, at place ``n % M``.
"""

from collections.abc import Callable

import numpy as np

from neuronx_cc.ir.isa.elements import Array, State, raw
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.ir.isa.semantics import Kernel

LANES = 16
"""Partitions of a group."""

COMBINE: dict[str, np.ufunc | None] = {
    "assign": None,
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
"""How an update joins the row that it meets; results are rounded to the row's type each time."""

_OF_PREDICATES = {"add": np.bitwise_or, "maximum": np.bitwise_or, "multiply": np.bitwise_and, "minimum": np.bitwise_and}


def _places(index: Array, slots: int) -> tuple[Array, Array]:
    """Row of the whole tile [P * slots] that each entry names, and whether it lies in its group's table."""
    rows = index.reshape(len(index), -1).astype(np.int64)
    inside = (rows >= 0) & (rows < LANES * slots)
    group = np.arange(len(rows)).reshape(-1, 1) // LANES
    return np.where(inside, rows, 0) + group * (LANES * slots), inside


def group_gather(i: Instr, state: State) -> Kernel:
    keep = "keep" in i.flags

    def run(y: Array, x: Array, index: Array) -> None:
        slots = x.shape[1]
        rows, inside = _places(index, slots)
        found = raw(x[rows // slots, rows % slots])
        target = raw(y)
        if inside.all():
            target[...] = found
        else:
            target[...] = np.where(inside[..., None], found, target if keep else target.dtype.type(0))

    return run


def group_scatter(i: Instr, state: State) -> Kernel:
    kind, dtype = i.alu[0], i.outs[0].dtype
    ufunc = _OF_PREDICATES.get(kind, COMBINE[kind]) if dtype == "pred" else COMBINE[kind]

    def run(y: Array, x: Array, index: Array) -> None:
        _, slots, width = y.shape
        rows, inside = _places(index, slots)
        rows, updates = rows[inside], x[inside]
        if not len(rows):
            return
        if ufunc is None:
            y[rows // slots, rows % slots] = updates  # NumPy assigns in order: the last of equal rows stays
            return
        table = np.ascontiguousarray(y).reshape(-1)
        ufunc.at(table, (rows[:, None] * width + np.arange(width)).reshape(-1), updates.reshape(-1))
        y[...] = table.reshape(y.shape)

    return run


INDEXING: dict[str, Callable[[Instr, State], Kernel]] = {
    "group_gather": group_gather,
    "group_scatter": group_scatter,
}
