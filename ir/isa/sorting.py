"""What GpSimd's sorting programs compute and cost: small functions as in ``programs`` and ``cost``.

An element of a sort is a few 32-bit words at the same place of neighbouring planes of one tile. The cost is that of a
bitonic network (Batcher, "Sorting networks and their applications", 1968), which needs no address that depends on data:
n / 2 compare-exchanges of a partition in each of L (L + 1) / 2 stages for n = 2**L elements. Sorts are stable: unless
all words are keys, the position travels along as one more word and key.
"""

import numpy as np

from neuronx_cc.ir.isa.elements import Array, State
from neuronx_cc.ir.isa.integers import total_order_key
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.ir.isa.semantics import Kernel
from neuronx_cc.ir.machine import Machine


def order(keys: Array) -> Array:
    """Indices [..., n] that sort stably by the s32 words [keys, ..., n], the first one first."""
    if len(keys) == 1:
        packed = (keys[0].astype(np.int64) << 32) | np.arange(keys.shape[-1])
        packed.sort(axis=-1)
        places: Array = packed & 0xFFFFFFFF
        return places
    places = np.lexsort(keys[::-1], axis=-1)
    return places


def sort(i: Instr, state: State) -> Kernel:
    """[P, W, R, n] words: rows of n elements, or with ``across`` one row that goes on from partition to partition."""
    keys, across = int(i.imm[0]), "across" in i.flags

    def run(y: Array, x: Array) -> None:
        planes = np.moveaxis(x, 1, 0)
        shape = planes.shape
        if across:
            planes = planes.reshape(shape[0], -1)
        if keys == len(planes) == 1:
            done = np.sort(planes, axis=-1)
        else:
            places = order(planes[:keys])
            done = np.stack([np.take_along_axis(plane, places, -1) for plane in planes])
        y[...] = np.moveaxis(done.reshape(shape), 0, 1)

    return run


def topk(i: Instr, state: State) -> Kernel:
    """Values and places [P, R, K] of the K largest of each row of [P, R, n] in total order, equal ones in theirs."""
    is_float = i.ins[0].dtype == "f32"

    def run(values: Array, places: Array, x: Array) -> None:
        wanted = values.shape[-1]
        rows = x.reshape(-1, x.shape[-1])
        found = _few(rows, wanted, is_float)
        if found is None:
            key = (total_order_key(rows) if is_float else rows).astype(np.int64)
            packed = (~key << 32) | np.arange(rows.shape[-1])
            found = np.sort(packed, axis=-1)[:, :wanted] & 0xFFFFFFFF
        found = found.reshape(places.shape)
        places[...] = found
        values[...] = np.take_along_axis(x, found, -1)

    return run


FEW, LEAST = 64, 4
"""Elements of a piece of a row: the k-th largest of the pieces' largest is no larger than the row's k-th."""


def _few(rows: Array, wanted: int, is_float: bool) -> Array | None:
    """Places [rows, wanted] of the largest by way of the pieces' largest; None for short rows and for NaNs."""
    count = rows.shape[-1]
    few = min(FEW, count // (4 * max(wanted, 1)))
    if few < LEAST:
        return None
    pieces = count // few
    # pieces' elements lie apart, so that neighbours are compared side by side
    best = rows[:, : pieces * few].reshape(len(rows), few, pieces).max(1)
    if is_float and (np.isnan(best).any() or np.isnan(rows[:, pieces * few :]).any()):
        return None
    least = np.partition(best, pieces - wanted, axis=-1)[:, pieces - wanted, None]
    row, place = np.nonzero(rows >= least)
    chosen = rows[row, place]
    key = (total_order_key(chosen) if is_float else chosen).astype(np.int64)
    order = np.lexsort((place, ~key, row))
    starts = np.searchsorted(row, np.arange(len(rows)))
    found: Array = place[order][starts[:, None] + np.arange(wanted)]
    return found


def _levels(count: int) -> int:
    return max(0, count - 1).bit_length()


def _exchange(machine: Machine, keys: int, words: int) -> float:
    """Cycles of one compare-exchange."""
    if keys < words:
        keys, words = keys + 1, words + 1
    return float(keys * machine["pool.cost.sort_compare"] + words * machine["pool.cost.sort_move"])


def network(count: int, keys: int, words: int, machine: Machine) -> float:
    """Cycles in which a partition sorts ``count`` elements."""
    levels = _levels(count)
    return (1 << levels) / 2 * levels * (levels + 1) / 2 * _exchange(machine, keys, words)


def sort_cost(i: Instr, machine: Machine) -> float:
    """Each partition sorts its rows; across L partitions follow L merges, of 1 to L stages between partitions and
    one in each partition.
    """
    partitions, words, rows, count = i.ins[0].counts
    keys = int(i.imm[0])
    cycles = machine["pool.start_cycles"] + rows * network(count, keys, words, machine)
    if "across" in i.flags:
        merges, inside = _levels(partitions), _levels(count)
        stages = merges * (merges + 1) / 2
        cycles += (stages + merges * inside) * (1 << inside) / 2 * _exchange(machine, keys, words)
        cycles += stages * count * words * machine["pool.cost.partition_broadcast"]
    return float(cycles)


def topk_cost(i: Instr, machine: Machine) -> float:
    """4 n to find the K largest (hardware sheet 3.3), then a sort of K pairs of words."""
    rows, count = i.ins[0].counts[1:]
    each = machine["pool.cost.topk"] * count + network(i.outs[0].counts[2], 2, 2, machine)
    return float(machine["pool.start_cycles"] + rows * each)
