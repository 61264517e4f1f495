"""In which order the tiles of a map kernel hold the dims of its space."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import permutations
from math import prod

from neuronx_cc.codegen.emission.views import Atom, IterSpace, View, run_of
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.axes import SMALL_SHARE
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

LEAST_SCANNED = 16
"""Elements of a scanned row from which it pays to have two rows of a reduced dim side by side."""

CLEARLY = 1.5
"""How many times less the DMA has to take for tiles in another order than that of the space, or
cut in another way."""


def partition_dims(space: IterSpace) -> list[int]:
    """The dims that the template, the first view of ``space``, has on the partitions: groups first."""
    return [dim for dim, atom in enumerate(space.atoms[0]) if atom.partition]


def paired(space: IterSpace, views: Sequence[View], kernel: Kernel, rows: int) -> tuple[IterSpace, int]:
    """``space`` with a reduced dim cut in pairs, and the dim within the pairs; -1 where nothing is cut.

    Tiles then hold [reduced / 2, scanned, 2]: scans walk in steps of two elements and reductions read neighbours, both
    at the full rate of the memory ports, where one of them would lie too far apart otherwise (hardware sheet 1.7).
    ``views`` are those after the template. ``rows``: axes that are not reduced.
    """
    partitions = partition_dims(space)
    scanned = [dim for dim in range(len(space.sizes)) if space.axes[dim] == kernel.scanned]
    reduced = [dim for dim in range(len(space.sizes)) if space.axes[dim] >= rows and dim not in partitions]
    if len(scanned) != 1 or not reduced or scanned[0] in reduced or space.sizes[scanned[0]] < LEAST_SCANNED:
        return space, -1
    cut, along = reduced[-1], scanned[0]
    moved = any(
        atoms[cut].stride and atoms[along].stride and not repeats_row(view, atoms, partitions)
        for view, atoms in zip(views, space.atoms[1:], strict=True)
    )
    if not moved and space.sizes[cut] == 2 and cut - 1 in reduced and space.axes[cut - 1] == space.axes[cut]:
        return space, cut  # an array lies in pairs
    if moved or space.sizes[cut] % 2 or space.sizes[cut] == 2:
        return space, -1
    half = space.sizes[cut] // 2
    sizes = [*space.sizes[:cut], half, 2, *space.sizes[cut + 1 :]]
    axes = [*space.axes[:cut], space.axes[cut], *space.axes[cut:]]
    atoms = [
        [*each[:cut], Atom(half, 2 * each[cut].stride), Atom(2, each[cut].stride), *each[cut + 1 :]]
        for each in space.atoms
    ]
    return IterSpace(sizes, axes, atoms), cut + 1


def repeats_row(view: View, atoms: Sequence[Atom], partitions: Sequence[int]) -> bool:
    """Whether ``view`` is a row in HBM that all partitions read."""
    return not view.in_sbuf and bool(partitions) and not any(atoms[dim].stride for dim in partitions)


def order(
    timing: Timing, space: IterSpace, views: Sequence[View], kernel: Kernel, pair: int, turned: Container[int] = ()
) -> list[int]:
    """The free dims; neighbours in HBM last, so that DMAs move large arrays there in runs, or most bytes of them.

    ``turned``: numbers of ``views`` whose tiles may have any order.
    """
    partitions = partition_dims(space)
    free = [dim for dim in range(len(space.sizes)) if dim not in partitions]
    large = _large(timing, space, views, kernel, turned)
    minor = {next((dim for dim in free if abs(atoms[dim].stride) == size), -1) for atoms, size, _ in large}
    inner = [*minor] if len(minor) == 1 else []
    if kernel.scanned >= 0:
        inner = sorted(minor - {-1})
        if len(inner) != 1 or pair >= 0:
            inner = [dim for dim in free if space.axes[dim] == kernel.scanned and dim != pair]
        if pair >= 0:
            return [*(dim for dim in free if dim not in inner and dim != pair), *inner, pair]
    elif kernel.reduced:
        rows = len(kernel.rows)
        inner = [dim for dim in inner if dim >= 0 and space.axes[dim] < rows]
    lasts = [inner]
    if kernel.scanned >= 0 or not kernel.reduced:
        lasts += map(list, permutations(sorted(minor - {-1})))
    orders = [[*(dim for dim in free if dim not in last), *(dim for dim in last if dim >= 0)] for last in lasts]
    best = min(orders, key=lambda dims: sum(nbytes for atoms, size, nbytes in large if not _in_runs(atoms, size, dims)))
    if kernel.scanned >= 0 or not large:
        return best

    def time(dims: Sequence[int]) -> float:
        moved = (
            (nbytes, run_of([atoms[dim] for dim in dims if atoms[dim].stride], size)) for atoms, size, nbytes in large
        )
        return sum(timing.transfer(nbytes, min(run, timing.long_run)).bound for nbytes, run in moved)

    moving = (atoms for atoms, _, _ in large if _moves(atoms, free))
    stored = dict.fromkeys(tuple(sorted(free, key=lambda dim: -abs(atoms[dim].stride))) for atoms in moving)
    other = list(min(stored, key=time, default=best))
    return other if CLEARLY * time(other) < time(best) else best


def _large(
    timing: Timing, space: IterSpace, views: Sequence[View], kernel: Kernel, turned: Container[int]
) -> list[tuple[Sequence[Atom], int, int]]:
    """Of each large array in HBM: atoms, bytes of an element, and of all. Rows that partitions share are none."""
    taken = [
        prod(atom.size for atom in atoms if atom.stride) * itemsize(v.dtype)
        for v, atoms in zip(views, space.atoms[1:], strict=True)
    ]
    partitions, found = partition_dims(space), list[tuple[Sequence[Atom], int, int]]()
    for number, (view, atoms, nbytes) in enumerate(zip(views, space.atoms[1:], taken, strict=True)):
        spread = kernel.scanned >= 0 and repeats_row(view, atoms, partitions)
        size = itemsize(view.dtype)
        large = timing.transfer(nbytes, size).bound > timing.transfer_latency and nbytes * SMALL_SHARE > max(taken)
        if large and not view.in_sbuf and not spread and number not in turned:
            found.append((atoms, size, nbytes))
    return found


def _moves(atoms: Sequence[Atom], dims: Sequence[int]) -> bool:
    """Whether an array varies along all of ``dims``."""
    return all(atoms[dim].stride for dim in dims)


def _in_runs(atoms: Sequence[Atom], size: int, dims: Sequence[int]) -> bool:
    """Whether the last one of ``dims`` along which an array varies has its neighbours, if any has."""
    varying = [dim for dim in dims if atoms[dim].stride]
    units = [dim for dim in varying if abs(atoms[dim].stride) == size]
    return not units or varying[-1] in units
