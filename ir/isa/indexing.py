"""What GpSimd's gather and scatter programs compute: one small NumPy function each, as in ``programs``.

Each of the eight processors sees the 16 SBUF partitions of its *group* (hardware sheet 3.7). A group's table has
16 F rows of E elements: row r lies in partition ``r // F`` of the group, at place ``r % F``. Its list has 16 M entries:
entry n lies in partition ``n // M``, at place ``n % M``.
"""

import numpy as np

from neuronx_cc.ir.combiners import COMBINERS, OF_PREDICATES
from neuronx_cc.ir.extremes import Extreme
from neuronx_cc.ir.isa.elements import Array, State, raw
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.ir.isa.semantics import Kernel

LANES = 16
"""Partitions of a group."""

COMBINE: dict[str, np.ufunc | Extreme | None] = {"assign": None, **COMBINERS}
"""How an update joins the row that it meets; results are rounded to the row's type each time."""


def _elements(table: Array) -> tuple[Array, int]:
    """All elements from the tile's first to its last as a flat view, and how many lie between two partitions.

    Places of one partition must be dense, as code generation makes them.
    """
    partitions, slots, width = table.shape
    size = table.itemsize
    pitch = table.strides[0] if partitions > 1 else slots * width * size
    if pitch % size or (slots > 1 and table.strides[1] != width * size) or (width > 1 and table.strides[2] != size):
        raise ValueError("a table that is not dense")
    length = ((partitions - 1) * pitch) // size + slots * width
    flat = np.lib.stride_tricks.as_strided(raw(table), (length,), (size,))  # which knows no small floats
    return flat.view(table.dtype), pitch // size


def _places(index: Array, table: Array, pitch: int) -> tuple[Array, Array]:
    """Where in the flat view the row of each entry starts, and whether it lies in its group's table."""
    _, slots, width = table.shape
    rows = index.reshape(len(index), -1)
    inside = rows.view(np.uint32) < LANES * slots
    if not inside.all():
        rows = np.where(inside, rows, 0)
    partition = rows // slots if slots > 1 else rows
    group = np.arange(len(rows)).reshape(-1, 1) // LANES
    return rows * np.intp(width) + partition * np.intp(pitch - slots * width) + group * (LANES * pitch), inside


def _row(places: Array, width: int) -> Array:
    """The places of all elements of the rows, [..., width]."""
    return places[..., None] + np.arange(width) if width > 1 else places[..., None]


def group_gather(i: Instr, state: State) -> Kernel:
    keep = "keep" in i.flags

    def run(y: Array, x: Array, index: Array) -> None:
        flat, pitch = _elements(raw(x))
        places, inside = _places(index, x, pitch)
        found, target = flat.take(_row(places, x.shape[2])), raw(y)
        if keep:
            np.copyto(target, found, where=inside[..., None])
            return
        if not inside.all():
            found[~inside] = 0
        target[...] = found

    return run


def group_scatter(i: Instr, state: State) -> Kernel:
    kind, dtype = i.alu[0], i.outs[0].dtype
    ufunc = COMBINE[OF_PREDICATES.get(kind, kind) if dtype == "pred" else kind]

    def run(y: Array, x: Array, index: Array) -> None:
        flat, pitch = _elements(y)
        places, inside = _places(index, y, pitch)
        if not inside.all():
            places, x = places[inside], x[inside]
        elements, updates = _row(places, y.shape[2]).reshape(-1), x.reshape(-1)
        if ufunc is None:
            flat[elements] = updates  # NumPy assigns in order: the last of equal places stays
        else:
            ufunc.at(flat, elements, updates)

    return run
