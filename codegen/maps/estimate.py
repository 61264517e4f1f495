"""How long a plan of a map takes: what has to move, and the work of its ops, of tiles that follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.views import View, outermost, unplaced
from neuronx_cc.codegen.formation.graph import Kernel, base
from neuronx_cc.codegen.maps import crossing, inner_rows, row_banks
from neuronx_cc.codegen.maps.axes import SMALL_SHARE, axes_view, full_view, is_small, minor_axis, varying
from neuronx_cc.codegen.maps.between import gathered
from neuronx_cc.codegen.maps.lifetimes import Member, last_uses, tiles_alive
from neuronx_cc.codegen.maps.moved import moved
from neuronx_cc.codegen.maps.plan import (
    COPIED,
    MapPlan,
    lies_across,
    lies_along,
    only_stored,
    partitions_of,
    resident_bytes,
)
from neuronx_cc.codegen.maps.space import BUFFERS, streamed_elements
from neuronx_cc.codegen.maps.spread import Partitions
from neuronx_cc.codegen.view_ops import as_stored
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, NOTHING, Stage, Timing, total
from neuronx_cc.ir.types import INTEGERS, itemsize


class Array(NamedTuple):
    """What moves between HBM and the chip, in bytes, and how many of them are neighbours."""

    nbytes: int
    run: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """What engines do with tiles."""

    ops: int
    """Of the whole space."""
    pairs: int
    """Of these, the ones for each element of which an engine reads two, or in steps."""
    row: int
    """Elements of a row that is reduced, whose values of one a row come an instruction each; else 0."""
    least: int
    """Tiles at least, as sums over the partitions, of which a bank holds so many, make them."""
    elements: int
    """Of one on a partition at least, with whole rows of so many neighbours as the runs of arrays have."""
    buffers: int
    """Tiles under way, for which there is room."""
    crossed: Stage
    """Of each tile, where rows lie across the partitions."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a plan has to do."""

    elements: int
    """Of the busiest partitions."""
    loaded: tuple[Array, ...]
    stored: tuple[Array, ...]
    moves: tuple[Array, ...]
    """That leave the chip and come back because they cannot lie there as this plan has them."""
    on_chip: bool
    """Whether others lie there, before or after, in some order that this plan may keep."""
    tiles: Tiles


class Counts(NamedTuple):
    """Ops of a kernel that an engine carries out for all elements of a tile."""

    ops: int
    pairs: int
    """Of these, the ones that read two arrays,"""
    rows: int
    """or an array and values of rows,"""
    folds: int
    """or fold an array,"""
    small: tuple[tuple[hlo.SSAValue, ...], ...]
    """or read an array and one of few elements, or two of these: either way."""
    alive: float
    """Arrays of four bytes of which a tile has elements at once."""


def problem_of(
    context: Context,
    plan: MapPlan,
    first: MapPlan,
    external: Sequence[hlo.SSAValue],
    results: Sequence[hlo.SSAValue],
    step: int,
    counts: Counts,
) -> Problem:
    """The work of ``plan``, whose ops ``counts`` counts; what does not stay on chip with ``first`` moves anyway."""
    kernel, partitions = plan.kernel, plan.partitions or Partitions(-1, 1, 1)
    loaded, stored, moves = list[Array](), list[Array](), list[Array]()
    stay, transposed, again = False, False, None
    for value in external:
        homes = context.views(value)
        elements = prod(atom.size for atoms in homes[0].dims for atom in atoms if atom.stride)
        on_chip, small = [view for view in homes if view.in_sbuf], is_small(full_view(homes[0], kernel), kernel)
        stay |= bool(on_chip) and not small
        if small and not lies_along(full_view(homes[0], kernel), plan):
            axes = varying(full_view(homes[0], kernel))
            nbytes = prod(kernel.shape[axis] for axis in axes) * itemsize(homes[0].dtype)
            run = _repeated_run(full_view(homes[0], kernel)) or hlo.shape_of(base(value)).nbytes
            again = Array(nbytes, run) if again is None else Array(again.nbytes + nbytes, min(again.run, run))
        elif not any(partitions_of(full_view(view, kernel)) == partitions for view in on_chip):
            array, more = _incoming(context, plan, value, elements, counts.alive)
            moves += [array] * more
            transposed |= bool(on_chip) and _is_transposed(kernel, value)
            (moves if on_chip else loaded).append(array)
    for value in results:
        size, there = prod(hlo.shape_of(value).dims), _as_read(plan, value)
        array = _array(context.timing, kernel, partitions, value, size, counts.alive, there)
        alone = first.partitions is None and _stays(context, plan, value, step)
        if only_stored(context, [value], step) or not (alone or _stays(context, first, value, step)):
            stored.append(array)
            continue
        stay |= prod(hlo.shape_of(value).dims) * SMALL_SHARE > prod(kernel.shape)
        if not _stays(context, plan, value, step):
            moves.append(array)
    moves += [again] if again is not None else []  # small ones move side by side
    return Problem(
        _elements(kernel.shape, partitions),
        *(tuple(loaded), tuple(stored), tuple(moves)),
        stay and not transposed,
        _tiles(context, plan, partitions, counts),
    )


def _tiles(context: Context, plan: MapPlan, partitions: Partitions, counts: Counts) -> Tiles:
    """Tiles of whole rows, and what engines do with one."""
    kernel, timing = plan.kernel, context.timing
    row = prod(kernel.shape[len(kernel.rows) :]) if kernel.reduced else 0
    along = dict(partitions.steps).keys()
    pairs = counts.pairs
    pairs += sum(
        all(not along >= {*varying(full_view(context.views(x)[0], kernel))} for x in few) for few in counts.small
    )
    if plan.spreads_rows:
        rows = crossing.tile_rows(kernel, timing)
        pairs += counts.rows * (not row_banks.fits(context.sizes, rows))
        ops, least = crossing.ops_of(kernel, partitions.size, counts.ops), ceil(prod(kernel.rows) / rows)
        return Tiles(ops, pairs, 0, least, 1, BUFFERS, crossing.stage(kernel, partitions.size, timing))
    if not kernel.order:
        return Tiles(counts.ops, pairs, row, 1, 1, BUFFERS, Stage(NOTHING))
    # a partition has several values of rows, side by side
    beside = inner_rows.rows_beside(timing, kernel, partitions, inner_rows.BUFFERS * counts.alive)
    beside = min(beside, ceil(timing.long_run / itemsize("f32")))
    pairs += counts.rows * (not row_banks.fits(context.sizes, beside)) + counts.folds
    buffers = max(1, min(BUFFERS, int(inner_rows.most_elements(timing, counts.alive) / (row * beside))))
    return Tiles(counts.ops, pairs, row, 1, row * beside, buffers, Stage(NOTHING))


def _incoming(context: Context, plan: MapPlan, value: hlo.SSAValue, elements: int, alive: float) -> tuple[Array, int]:
    """``value`` as it comes from HBM, and how often it moves ahead of that to be put in order.

    Tiles have whole rows, in the order of memory where that of all is along rows. What others read as well is put in
    order for these anyway.
    """
    kernel, timing, home = plan.kernel, context.timing, context.views(value)[0]
    partitions, lies = plan.partitions or Partitions(-1, 1, 1), as_stored(value) if home.in_sbuf else home
    lies = None if lies is None else full_view(lies, kernel)
    if lies is not None and plan.spreads_rows and not home.in_sbuf:
        tile = moved(context, plan, [], lies)
        if tile is not None and (extent := gathered(timing, tile.there)) is not None:
            return Array(ceil(extent.nbytes * tile.there.dims[0].size * tile.tiles), extent.run), 0
    if lies is None or not kernel.reduced or max(varying(lies), default=0) < len(kernel.rows):
        return _array(timing, kernel, partitions, value, elements, alive, None if home.in_sbuf else lies), 0
    array = _array(timing, kernel, partitions, value, elements, alive, lies)
    if kernel.order and minor_axis(lies) == plan.along:
        return array, 0  # in runs that suit its tiles
    ordered = array._replace(run=max(array.run, timing.long_run))
    here, there = (timing.transfer(*each).bound for each in (array, ordered))
    slow = here > there + COPIED * (there + timing.transfer_latency)
    slow |= minor_axis(lies) not in (plan.along, len(kernel.shape) - 1)
    across = home.in_sbuf and plan.partitions is not None and lies_across(lies, partitions, timing)
    if across or (slow and not plan.spreads_rows):
        return ordered, COPIED * _reads_alone(kernel, value)
    return array, 0


def _is_transposed(kernel: Kernel, value: hlo.SSAValue) -> bool:
    """Whether rows of ``value``, which nothing else reads, are not what lies side by side in memory."""
    stored = as_stored(value)
    alone = stored is not None and kernel.reduced > 0 and _reads_alone(kernel, value)
    return alone and stored is not None and minor_axis(full_view(stored, kernel)) < len(kernel.rows)


def _reads_alone(kernel: Kernel, value: hlo.SSAValue) -> bool:
    return all(use.operation in kernel.ops for use in value.uses)


def _as_read(plan: MapPlan, value: hlo.SSAValue) -> View | None:
    """A result in HBM, if it comes to lie there in another order than the axes: its ops', or the last one outermost."""
    shape, own = plan.kernel.shape, hlo.shape_of(value)
    if plan.kernel.order and not plan.kernel.is_row(own):
        return axes_view(unplaced(own.dtype, own.dims), plan.kernel)
    dense = unplaced(own.dtype, shape)
    return outermost(dense, (len(shape) - 1,)) if plan.spreads_rows or plan.gives_transposed(value) else None


def counted_ops(context: Context, kernel: Kernel, member: Member, external: Sequence[hlo.SSAValue]) -> Counts:
    """The same for all joined axes."""
    given, small = frozenset(external), list[tuple[hlo.SSAValue, ...]]()
    ops = pairs = rows = folds = 0
    for op in kernel.ops:
        if kernel.sums_columns(op) or all(kernel.is_row(hlo.shape_of(x)) for x in (*op.sources, op.results[0])):
            continue  # TensorE's, or of few elements
        ops += 1
        folds += isinstance(op, hlo.ReduceOp)
        read = {x for x in op.sources if context.splat(x) is None}
        of_rows = {x for x in read if kernel.is_row(hlo.shape_of(base(x)))}
        tiles = [x for x in dict.fromkeys(op.sources) if x in read and x not in of_rows]
        few = tuple(x for x in tiles if x in given and is_small(full_view(context.views(x)[0], kernel), kernel))
        counted = len(few) > 1 and hlo.shape_of(op.operands[0]).dtype in INTEGERS  # GpSimd has no values of a partition
        if len(tiles) - len(few) > 1 or counted:
            pairs += 1
        elif of_rows and not isinstance(op, hlo.ReduceOp):
            rows += 1
        elif few:
            small.append(few)
    loaded = [x for x in external if hlo.shape_of(base(x)).size == prod(kernel.shape)]
    alive = tiles_alive(kernel, loaded, last_uses(kernel, member)).element_bytes / itemsize("f32")
    return Counts(ops, pairs, rows, folds, tuple(small), alive)


def _array(
    timing: Timing,
    kernel: Kernel,
    partitions: Partitions,
    value: hlo.SSAValue,
    elements: int,
    alive: float,
    view: View | None = None,
) -> Array:
    """``elements`` of ``value`` on ``partitions``; neighbours on neighbouring ones move by rows (``column_kernel``).

    ``view``: where it lies, if that is known; it may have other neighbours.
    """
    shape = hlo.shape_of(value)
    dims, width = kernel.rows if kernel.is_row(shape) else kernel.shape, itemsize(shape.dtype)
    run = partitions.inner * prod(dims[partitions.axis + 1 :])
    if view is not None and kernel.reduced and varying(view) != [partitions.axis]:
        run = _run(view, partitions)
        if kernel.order and len(kernel.rows) <= max(varying(view), default=-1):
            run = min(run, width * inner_rows.run(timing, kernel, partitions, inner_rows.BUFFERS * alive))
        return Array(elements * width, run)
    if run > 1:
        return Array(elements * width, run * width)
    strides = [atom.stride for atom in view.dims[partitions.axis]] if view is not None else []
    apart = bool(strides) and strides[-1] not in (0, width)
    return Array(elements * width, width if apart else partitions.size * width)


def _repeated_run(view: View) -> int:
    """Bytes that lie side by side of what a view repeats; 0 where it repeats single elements."""
    atoms = [atom for dims in view.dims for atom in dims if atom.size > 1]
    run = itemsize(view.dtype)
    while atoms and atoms[-1].stride == run:
        run *= atoms.pop().size
    return run if run > itemsize(view.dtype) else 0


def _run(view: View, partitions: Partitions) -> int:
    """Bytes that lie side by side in memory and go to one partition."""
    run, strides = itemsize(view.dtype), dict[int, int]()
    for axis, atoms in enumerate(view.dims):
        if axis != partitions.axis:
            strides |= {atom.stride: atom.size for atom in atoms}
        elif partitions.inner > 1 and atoms:
            strides[atoms[-1].stride] = partitions.inner
    while run in strides:
        run *= strides.pop(run)
    return run


@lru_cache(maxsize=4096)
def estimate(problem: Problem, timing: Timing) -> float:
    """Nanoseconds of tiles that are loaded, worked on and stored, and of what has to move before and after."""
    each = max(problem.tiles.elements, streamed_elements(timing, itemsize("f32")))
    tiles = max(problem.tiles.least, ceil(problem.elements / each))
    worked, crossed = _worked(problem.tiles, ceil(problem.elements / tiles), timing), problem.tiles.crossed
    stages = [Stage(worked.work + crossed.work, worked.latency + crossed.latency)]
    for arrays, way in ((problem.loaded, "read"), (problem.stored, "write")):
        work = total(timing.transfer(ceil(nbytes / tiles), run, way) for nbytes, run in arrays)
        if arrays:
            stages.insert(0 if way == "read" else len(stages), Stage(work, timing.transfer_latency))
    moves = sum(timing.arrival(*array, way) for array in problem.moves for way in ("write", "read"))
    return timing.pipeline(stages, tiles, problem.tiles.buffers) + moves


def _worked(tiles: Tiles, elements: int, timing: Timing) -> Stage:
    """The ops on a tile: what reads two arrays on Vector, the rest on either engine, each after the one before."""
    both = timing.engine("tensor_tensor", Stream.VECTOR, elements, (F32,), (F32, F32), alu=("add",))
    one = timing.engine("tensor_scalar", Stream.VECTOR, elements, alu=("add",))
    if tiles.row:
        rows = timing.engine("tensor_scalar", Stream.VECTOR, min(tiles.row, elements), alu=("add",))
        one = min(both, rows.times(ceil(elements / tiles.row)), key=lambda work: work.bound)
    alone = one.times(tiles.ops - tiles.pairs)
    pairs = both.times(tiles.pairs)
    work = pairs + alone.times(max(0.0, 0.5 - pairs.bound / (2 * alone.bound)) if alone.bound else 0.0)
    return Stage(work, max(1, tiles.ops) * timing.latency(Stream.VECTOR))


def _stays(context: Context, plan: MapPlan, value: hlo.SSAValue, step: int) -> bool:
    nbytes = resident_bytes(context, plan, value, step)
    return nbytes > 0 and context.residents.may_stay(nbytes)


def _elements(shape: Sequence[int], partitions: Partitions) -> int:
    """Elements that the busiest partitions have, boxes of what is left included."""
    size = shape[partitions.axis]
    full, rest = divmod(size, partitions.step)
    along = full * partitions.inner + (rest // partitions.of_rest(shape, partitions.axis, rest).size if rest else 0)
    groups = shape[partitions.group_axis] if partitions.groups > 1 else 1
    return along * ceil(groups / partitions.groups) * (prod(shape) // (size * groups))
