"""Neighbouring axes of a map's space as one, where that leaves fewer partitions without work.

Candidates are the space as its ops have it, the space with as many axes joined as all arrays allow, and each of the
two without regard to what lies on chip already; ``estimate`` is the time of each, what has to move included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.views import Atom, View, coalesce, unplaced
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps import crossing, inner_rows
from neuronx_cc.codegen.maps.ahead import along_rows
from neuronx_cc.codegen.maps.axes import axes_view, full_view, is_small, varying
from neuronx_cc.codegen.maps.estimate import counted_ops, estimate, problem_of
from neuronx_cc.codegen.maps.lifetimes import Member
from neuronx_cc.codegen.maps.plan import (
    MapPlan,
    choose_partitions,
    counted_axes,
    external_operands,
    lies_across,
    only_stored,
    residents,
    results_of,
)
from neuronx_cc.codegen.maps.spread import Partitions, in_runs, partition_divisor, streaming_partitions
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

GAIN, GAIN_ON_CHIP = 1.02, 1.3
"""How many times less an estimate is for which the space of the ops is left; where arrays are on chip, so that kernels
to come expect them as the ops have them."""


def choose_plan(context: Context, kernel: Kernel, member: Member, step: int) -> tuple[MapPlan, list[hlo.SSAValue]]:
    """The plan that takes least by estimate, whose kernel its ops become members of; and the arrays that it reads."""
    first = MapPlan(kernel)
    external = external_operands(context, first, member)
    first.along = along_rows(context, kernel, external)
    results = results_of(context, kernel, member)
    stored = only_stored(context, results, step)
    first.partitions = choose_partitions(context, first, external, stored)
    others = list(candidates(context, first, external, stored))
    if not others:
        return first, external
    counts = counted_ops(context, kernel, member, external)
    problems = [problem_of(context, plan, first, external, results, step, counts) for plan in (first, *others)]
    times = [estimate(problem, context.timing) for problem in problems]
    best = first
    expected = first.partitions is not None and problems[0].on_chip
    if min(times) * (GAIN_ON_CHIP if expected else GAIN) < times[0]:
        best = others[times.index(min(times)) - 1]
        member.update({op.results[0]: best.kernel for op in kernel.ops})
    return best, external


def candidates(context: Context, first: MapPlan, external: Sequence[hlo.SSAValue], stored: bool) -> Iterator[MapPlan]:
    """Plans of spaces with fewer axes, and of other partitions than what is on chip has."""
    kernel = first.kernel
    if (first.partitions is None and not kernel.reduced) or kernel.scanned >= 0:
        return
    seen = {(kernel.shape, first.partitions)}
    views = [axes_view(context.views(value)[0], kernel) for value in external]
    dense = [_dense(view, kernel) for view in views]
    whole = axes_view(unplaced("u8", kernel.dims), kernel)  # as what is computed lies in HBM
    repeated = [_repeated(view) if is_small(view, kernel) else view for view in dense]
    large = [value for value, view in zip(external, views, strict=True) if not is_small(view, kernel)]
    counted, spaces = counted_axes(first), set[tuple[object, ...]]()
    for kept, arrays in ((external if views != dense else [], views), ([], dense), ([], repeated)):
        for last in (0, 1):
            joined = _joined(kernel, [*arrays, whole], counted, last)
            space = joined.shape, joined.joined, bool(kept)
            if space in spaces:
                continue
            spaces.add(space)
            iotas = {value: _counted(joined, value) for value in first.iotas}
            plan = MapPlan(joined, iotas, along=along_rows(context, joined, external))
            for partitions in (
                choose_partitions(context, plan, kept, stored),
                *(partitions for _, partitions in residents(context, plan, large if kept else [])),
                *_in_runs(context.timing, joined),
                *(inner_rows.options(context.timing, joined) if joined.order else ()),
                *_along_columns(joined),
                *crossing.candidates(context, joined),
                *(_grouped(context, joined, counted_axes(plan)) if plan.along < 0 or joined.order else ()),
            ):
                if partitions is None or (joined.shape, partitions) in seen:
                    continue
                seen.add((joined.shape, partitions))
                found = replace(plan, partitions=partitions)
                if not any(_across(context, found, value) for value in external):
                    yield found


def _in_runs(timing: Timing, kernel: Kernel) -> Iterator[Partitions]:
    """Runs as long as may be on each partition, where column sums leave it at one result."""
    if 0 < kernel.folded < len(kernel.shape):
        yield streaming_partitions(timing, kernel.shape, range(min(len(kernel.rows), kernel.folded)))


def _along_columns(kernel: Kernel) -> Iterator[Partitions]:
    """Runs of the last axis on the partitions, where few rows would leave most of them without work: equal ones, or as
    many as there are partitions and a rest.
    """
    if not kernel.reduced and kernel.folded in (0, len(kernel.shape)) and len(kernel.shape) > 1:
        axis, columns = len(kernel.shape) - 1, kernel.shape[-1]
        size = partition_divisor(columns)
        yield Partitions(axis, size, columns // size)
        yield in_runs(axis, columns)


def _grouped(context: Context, kernel: Kernel, counted: Set[int]) -> Iterator[Partitions]:
    """Two axes of rows on the partitions, of what is neither counted along nor added up across these."""
    if not kernel.folded:
        rows = range(len(kernel.rows) if kernel.reduced else len(kernel.shape) - 1)
        axes = [axis for axis in rows if axis not in counted]
        yield from inner_rows.grouped(context.timing, kernel, axes)


def _counted(kernel: Kernel, value: hlo.SSAValue) -> int:
    assert isinstance(value.owner, hlo.IotaOp), "what counts is an iota"
    return kernel.axis_of(value.owner.shape.dims, value.owner.iota_dimension.data)


def _joined(kernel: Kernel, views: Sequence[View], counted: set[int], last: int) -> Kernel:
    """``kernel`` with neighbouring axes as one wherever all ``views`` go on from one to the next.

    ``last``: axes at the end of a space without reductions that stay as they are.
    """
    rows, axes = len(kernel.rows), len(kernel.shape)
    fences = {rows, kernel.folded, axes - last} | counted | {axis + 1 for axis in counted}
    groups: list[list[int]] = []
    for axis in range(axes):
        if groups and axis not in fences and all(_goes_on(view, [*groups[-1], axis]) for view in views):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if len(groups) == axes:
        return kernel
    reduced = sum(group[0] >= rows for group in groups) if kernel.reduced else 0
    shape = tuple(prod(kernel.shape[axis] for axis in group) for group in groups)
    folded = sum(group[0] < kernel.folded for group in groups)
    return replace(kernel, shape=shape, reduced=reduced, folded=folded, joined=tuple(map(len, groups)))


def _goes_on(view: View, axes: Sequence[int]) -> bool:
    """Whether the ``axes`` of ``view`` are one step in memory; a row has no axes that are reduced."""
    atoms = tuple(atom for axis in axes if axis < len(view.dims) for atom in view.dims[axis])
    return len(coalesce(atoms)) <= 1


def _dense(view: View, kernel: Kernel) -> View:
    """``view`` as it lies in HBM once it has been stored there, if it is on chip."""
    if not view.in_sbuf:
        return view
    stride, dims = itemsize(view.dtype), list(view.dims)
    inmost_first = sorted(range(len(dims)), key=lambda axis: -(kernel.order or range(len(dims)))[axis])
    for axis in inmost_first:
        size = prod(atom.size for atom in dims[axis])
        moves = any(atom.stride for atom in dims[axis])
        dims[axis] = (Atom(size, stride if moves else 0),) if size > 1 else ()
        stride *= size if moves else 1
    return view.of(tuple(dims))


def _repeated(view: View) -> View:
    """A dense ``view`` that is repeated along an axis ahead of one along which it varies, as a copy has it."""
    last = max(varying(view), default=-1)
    stride, dims = itemsize(view.dtype), []
    for axis, atoms in reversed(list(enumerate(view.dims))):
        size = prod(atom.size for atom in atoms)
        dims.append((Atom(size, stride if axis <= last else 0),) if size > 1 else ())
        stride *= size if axis <= last else 1
    return view.of(tuple(reversed(dims)))


def _across(context: Context, plan: MapPlan, value: hlo.SSAValue) -> bool:
    assert plan.partitions is not None, "a candidate has partitions"
    view = full_view(context.views(value)[0], plan.kernel)
    return not view.in_sbuf and lies_across(view, plan.partitions, context.timing)
