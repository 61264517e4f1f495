"""Copies of operands that do not nest with the other arrays of a contraction, or lie so that products take long.

A copy is dense in HBM, its dims in their order or as the contraction wants them, or on chip. What lies there already
stays on the same partitions, with rows one after the other: those of windows, which are tiles of a few rows as they
lie, are full tiles then. What lies in HBM with a batch inside of its rows, as heads do, comes whole, in long runs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from math import inf, prod

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.contraction import Bound, Contraction
from neuronx_cc.codegen.dots.estimate import bound as bound_of
from neuronx_cc.codegen.dots.inside import dim_around, in_memory, lying_whole
from neuronx_cc.codegen.dots.problem import DECODED, Home, Problem
from neuronx_cc.codegen.dots.statement import problems_of
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import emit_over
from neuronx_cc.codegen.emission.views import Affine, Atom, View, coalesce, linear, outermost, stride_of, unplaced
from neuronx_cc.codegen.formation.graph import base
from neuronx_cc.codegen.indexing.gather_kernel import bring_together
from neuronx_cc.codegen.maps.plan import partitions_of
from neuronx_cc.codegen.movement.relayout_plan import LEAST_ELEMENTS, is_long
from neuronx_cc.codegen.movement.transfer import blocks_of, nanoseconds, transfer
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.timing import Tile
from neuronx_cc.ir.types import itemsize

SOON = 4
"""Kernels until the last one that reads an array which comes whole: one that stays longer crowds others out."""
SLOW = 2
"""Products take too long if they take so many times as long as they need, and a transfer: copies may be worth it."""
Lies = Home | tuple[int, ...]
"""Where a copy lies: dense in HBM, on chip, or in HBM with the dims [batch, rows, contracted] in another order."""
Copies = tuple[tuple[int, Lies], ...]
"""Which operands are copied, and to where."""


def copies_of(
    context: Context,
    contraction: Contraction,
    bound: Sequence[Bound],
    out: View,
    adds: Sequence[View],
    plain: Sequence[Problem],
    beside: int = 0,
) -> tuple[Copies, float]:
    """Which operands are copied, and to where, and nanoseconds of these copies and the contraction; ``plain`` are the
    problems where none is. ``beside``: bytes a partition that the result will take.
    """
    if plain and any(each.listed is not None or each.scales for each in bound):
        return (), context.planner.time(context.planner.easiest(plain))
    whole = tuple(_whole(context, contraction, bound, beside))
    posed = _posed(contraction, bound, out, plain), whole
    if plain and posed in context.planner.copies:
        return context.planner.copies[posed]
    sizes = [hlo.shape_of(operand).size for operand in contraction.op.operands]
    first, second = sorted((0, 1), key=lambda index: (bound[index].view.in_sbuf, sizes[index]))
    apart = {index for index, each in enumerate(bound) if _lies_apart(context, contraction, index, each)}
    found: dict[Copies, Sequence[Problem]] = {(): plain} if plain else {}
    ways: tuple[Copies, ...] = (((first, Home.HBM),), ((second, Home.HBM),), ((0, Home.HBM), (1, Home.HBM)))
    others: Iterable[Copies] = ()
    if found:
        slow = _is_slow(context, plain)
        near = [index for index in (0, 1) if slow and bound[index].home is Home.CHIP]
        ragged = [index for index in (0, 1) if slow and _is_ragged(contraction, index, bound[index])]
        ways = (
            *(((index, Home.CHIP),) for index in near),
            *(((index, Home.HBM),) for index in (*near, *ragged)),
            *(copies for copies in ways if apart.issuperset(dict(copies))),
        )
        others = (*whole, *_in_other_orders(contraction, bound, out)) if slow else ()

    def pose(copies: Copies) -> bool:
        views = {index: _copied_view(context, contraction, index, bound, lies) for index, lies in copies}
        taken = sum(view.alloc.hi for view in views.values() if view.in_sbuf)
        wanted = [replace(each, view=views.get(index, each.view)) for index, each in enumerate(bound)]
        problems = problems_of(context, contraction, wanted, out, adds)
        if problems:
            found[copies] = [replace(each, room=each.room - taken) for each in problems] if taken else problems
        return bool(problems)

    if made := {index for index, each in enumerate(bound) if each.scales}:  # as they come, and lie nowhere else
        ways, others = tuple(copies for copies in ways if made.isdisjoint(dict(copies))), ()
    for copies in ways:
        if pose(copies) and apart and apart.issubset(dict(copies)):
            break
    for copies in others:
        pose(copies)
    assert found, "dense arrays nest"

    def nanoseconds_of(copies: Copies) -> float:
        made = sum(_copied_ns(context, contraction, index, bound, home) for index, home in copies)
        return made + context.planner.time(context.planner.easiest(found[copies]))

    times = {copies: nanoseconds_of(copies) for copies in found}
    least = min(times, key=times.__getitem__)
    chosen = context.planner.copies[posed] = least, times[least]
    return chosen


def _posed(contraction: Contraction, bound: Sequence[Bound], out: View, plain: Sequence[Problem]) -> Hashable:
    """All that a choice depends on."""
    views = [out, *(each.view for each in bound)]
    lies = tuple((view.in_sbuf, view.dtype, view.start.terms, view.dims) for view in views)
    return tuple(plain), *(tuple(contraction.order(index)) for index in (0, 1)), lies


def _whole(context: Context, contraction: Contraction, bound: Sequence[Bound], beside: int) -> Iterator[Copies]:
    """Each operand in HBM that may come whole, and both, with ``beside`` bytes a partition of the result."""
    views = {index: _rows_on_chip(contraction, index, bound, context.sizes.partitions) for index in (0, 1)}
    found = {index: view.alloc.hi for index, view in views.items() if view is not None}
    ways = [*({index} for index in found), set(found)]
    for way in ways:
        most, total = max((found[index] for index in way), default=0), sum(found[index] for index in way)
        soon = all(is_read_soon(context, bound[index].value, contraction.step) for index in way)
        room = (most, total - most + beside, True) if soon else (most, total)
        if way and context.residents.may_stay(*room):
            yield tuple((index, Home.CHIP) for index in sorted(way))


def is_read_soon(context: Context, value: hlo.SSAValue, step: int) -> bool:
    """Whether few kernels after the one of number ``step`` read ``value``."""
    return context.last_use(value) - step <= SOON


def come_whole(context: Context, op: hlo.DotOp, step: int, ordered: Mapping[int, View], copied: float) -> bool:
    """Whether operands in HBM may come whole, with a batch inside of their rows or terms, beside the result, and the
    contraction takes less time so than with copies in ``ordered`` places, made in ``copied`` nanoseconds.
    """
    contraction, bound = Contraction(op, op.result, step), list[Bound]()
    for index, operand in enumerate(op.operands):
        value = context.source_of(operand)
        given = context.literal(value) is not None or (op, index) in context.residents.staged
        if given or not is_read_soon(context, value, step):
            return False
        bound.append(Bound(value, context.views(value)[0].transpose(contraction.order(index))))
    lies = [
        each.view if each.view.in_sbuf else _rows_on_chip(contraction, index, bound, context.sizes.partitions)
        for index, each in enumerate(bound)
    ]
    wholes = [replace(each, view=view) for each, view in zip(bound, lies, strict=True) if view is not None]
    if len(wholes) < len(bound):
        return False
    dense, order = unplaced(op.shape.dtype, op.shape.dims), [contraction.order(index) for index in (0, 1)]
    wanted, timing = context.permuted.get(op.result) or dense, context.timing
    around = dim_around(wanted, len(contraction.sizes(0)[0]))
    made = lying_whole(wanted, around, context.sizes.columns, None) if around >= 0 else None
    restored = nanoseconds(context.builder, wanted, dense) + timing.transfer_latency if wanted != dense else 0.0

    def least(operands: Sequence[Bound], came: Sequence[View]) -> float:
        times = list[float]()
        for out, more in ((wanted, 0.0), (dense, restored), *([(made, 0.0)] if made is not None and came else [])):
            sizes = sorted((*(view.alloc.hi for view in came), out.alloc.hi if out.in_sbuf else 0))
            found = problems_of(context, contraction, operands, out, ())
            problems = [replace(each, room=each.room - sum(sizes)) for each in found]
            if problems and context.residents.may_stay(sizes[-1], sum(sizes[:-1]), whole=True):
                times.append(context.planner.time(context.planner.easiest(problems)) + more)
        loaded = (timing.arrival(prod(view.shape) * itemsize(view.dtype), timing.long_run) for view in came)
        return min(times, default=inf) + sum(loaded)

    came = [whole.view for whole, each in zip(wholes, bound, strict=True) if not each.view.in_sbuf]
    copies = [replace(x, view=ordered[at].transpose(order[at])) if at in ordered else x for at, x in enumerate(bound)]
    return least(wholes, came) < copied + least(copies, ())


def _rows_on_chip(contraction: Contraction, index: int, bound: Sequence[Bound], most: int) -> View | None:
    """How an operand in HBM with a batch inside of its rows or terms lies where it has come whole: terms on the
    partitions, ``most`` of them, as the other operand has them. None of others, and of codes, decoded as they come.
    """
    view, other = bound[index].view, bound[1 - index].view
    if bound[index].home is not Home.HBM or bound[index].listed is not None or view.start.terms:
        return None
    if view.dtype in DECODED:
        return None
    batch, like = len(contraction.sizes(0)[0]), None
    dim, first = dim_around(view, batch), batch + contraction.free(index)
    if dim < 0 or not _is_dense(view):
        return None
    if dim >= first and other.in_sbuf:
        like = partitions_of(contraction.classes(other, 1 - index)[2])
        if like is not None and like.axis != dim - first:
            return None
    return lying_whole(view, dim, most, like)


def _is_dense(view: View) -> bool:
    order = in_memory(view)
    dense = unplaced(view.dtype, [view.shape[dim] for dim in order])
    return dense.transpose([order.index(dim) for dim in range(len(order))]).dims == view.dims


def _in_other_orders(contraction: Contraction, bound: Sequence[Bound], out: View) -> Iterator[Copies]:
    """Each operand in HBM with what is contracted innermost, and with its rows innermost: batch indices and rows in the
    order of the result, terms in that of the other operand.
    """
    batch, m, _ = map(len, contraction.sizes(0))
    for index, each in enumerate(bound):
        if each.home is not Home.HBM or each.view.start.terms:
            continue
        rows, others = contraction.free(index), contraction.free(1 - index)
        first, offset = batch + rows, index * m
        stored = [*map(stride_of, out.dims[:batch]), *map(stride_of, out.dims[batch + offset : first + offset])]
        strides = [*stored, *map(stride_of, bound[1 - index].view.dims[batch + others :])]
        ahead, free, terms = (
            sorted(dims, key=lambda dim: -strides[dim])
            for dims in (range(batch), range(batch, first), range(first, len(strides)))
        )
        lies = sorted(range(len(strides)), key=lambda dim: -stride_of(each.view.dims[dim]))
        for order in ((*ahead, *free, *terms), (*ahead, *terms, *free)):
            if list(order) != lies:
                yield ((index, order),)


def _is_slow(context: Context, problems: Sequence[Problem]) -> bool:
    """Whether products take far longer than they need, as operands lie: in small tiles, or behind short transfers."""
    timing, problem = context.timing, context.planner.easiest(problems)
    return context.planner.time(problem) > SLOW * (bound_of(problem, timing) + timing.transfer_latency)


def _is_ragged(contraction: Contraction, index: int, bound: Bound) -> bool:
    """Whether the rows of an operand in HBM lie in more dims than a dense array's would: in tiles of a few rows."""
    if bound.home is not Home.HBM or bound.view.start.terms:
        return False
    dense = _dense_view(contraction, index, bound)
    rows, dense_rows = (
        coalesce(tuple(atom for atoms in contraction.classes(view, index)[1].dims for atom in atoms))
        for view in (bound.view, dense)
    )
    return len(rows) > len(dense_rows)


def _lies_apart(context: Context, contraction: Contraction, index: int, bound: Bound) -> bool:
    """Whether a large operand in HBM has no runs along its rows or what is contracted that a DMA moves well."""
    view, size = bound.view, itemsize(bound.view.dtype)
    if view.in_sbuf or bound.data is not None or bound.staged is not None or view.start.terms:
        return False
    if prod(view.shape) < LEAST_ELEMENTS:
        return False
    _, rows, contracted = contraction.classes(view, index)
    last = [coalesce(tuple(atom for atoms in each.dims for atom in atoms))[-1:] for each in (rows, contracted)]
    runs = [atoms[0].size * size for atoms in last if atoms and atoms[0].stride == size]
    return not any(is_long(context.timing, run) for run in runs)


def copied(context: Context, contraction: Contraction, index: int, both: Sequence[Bound], home: Lies | None) -> Bound:
    """Operand ``index`` as a copy there, if anywhere; as it lies where SBUF has no room for one."""
    if home is None:
        return both[index]
    bound = _brought_together(context, contraction, index, both[index])
    if home is Home.HBM:
        return dense_of(context, contraction, index, bound)
    if not isinstance(home, Home):
        order = contraction.order(index)
        kept = outermost(context.own_hbm(bound.value, hlo.shape_of(bound.value)), [order[dim] for dim in home])
        made = transfer(context.builder, kept.transpose(order), bound.view, Stream.DMA_LOAD)
        assert made, "it has a time"
        context.homes.setdefault(bound.value, []).append(kept)
        return replace(bound, view=kept.transpose(order))
    view = _copied_view(context, contraction, index, both, home)
    alloc = context.new_resident(bound.value, view.alloc.hi, whole=bound.home is Home.HBM)
    if alloc is None:
        return bound
    view = replace(view, alloc=alloc, start=view.start + alloc.lo)
    if bound.home is Home.HBM:
        order = in_memory(bound.view)
        transfer(context.builder, view.transpose(order), bound.view.transpose(order), bound.stream, force=True)
    else:
        blocks = blocks_of([view, bound.view], view.shape)
        assert blocks is not None, "dims of one are parts of the other's"
        emit_over(context.builder, "tensor_copy", Stream.VECTOR, blocks[:1], blocks[1:])
    order = contraction.order(index)
    context.homes.setdefault(bound.value, []).append(view.transpose([order.index(axis) for axis in range(len(order))]))
    return replace(bound, view=view)


def _copied_view(context: Context, contraction: Contraction, index: int, both: Sequence[Bound], home: Lies) -> View:
    """How a copy would lie; of what lies on chip on the same partitions, its rows one after the other."""
    bound = both[index]
    if home is Home.CHIP and bound.home is Home.HBM:
        whole = _rows_on_chip(contraction, index, both, context.sizes.partitions)
        assert whole is not None, "it may come whole"
        return whole
    if home is Home.HBM:
        return _dense_view(contraction, index, bound)
    if not isinstance(home, Home):
        sizes = [bound.view.shape[dim] for dim in home]
        return unplaced(hlo.shape_of(bound.value).dtype, sizes).transpose([home.index(dim) for dim in range(len(home))])
    view, stride = bound.view, itemsize(bound.view.dtype)
    batch, rows, _ = (range(len(each)) for each in contraction.sizes(index))
    free = range(len(batch), len(batch) + len(rows))
    contracted = range(free.stop, len(view.dims))
    on_rows = any(atom.partition for axis in free for atom in view.dims[axis])
    inner, outer = (contracted, free) if on_rows else (free, contracted)
    dims = list(view.dims)
    for axis in (*reversed(inner), *reversed(outer), *reversed(batch)):
        atoms: list[Atom] = []
        for atom in reversed(view.dims[axis]):
            if atom.partition:
                atoms.append(atom)
                continue
            if atoms and not atoms[-1].partition:
                atoms[-1] = replace(atoms[-1], size=atoms[-1].size * atom.size)
            else:
                atoms.append(Atom(atom.size, stride))
            stride *= atom.size
        dims[axis] = tuple(reversed(atoms))
    return View(Alloc(Space.SBUF, 0, stride), view.dtype, Affine(), tuple(dims))


def _copied_ns(context: Context, contraction: Contraction, index: int, both: Sequence[Bound], home: Lies) -> float:
    """Nanoseconds of a copy of an operand."""
    timing, bound = context.timing, both[index]
    if home is Home.CHIP and bound.home is Home.HBM:
        return timing.arrival(prod(bound.view.shape) * itemsize(bound.view.dtype), timing.long_run)
    if home is Home.CHIP:
        view = bound.view
        elements = prod(atom.size for atoms in view.dims for atom in atoms if not atom.partition)
        tile = (Tile(view.dtype),)
        return timing.engine("tensor_copy", Stream.VECTOR, elements, tile, tile).vector + timing.latency(Stream.VECTOR)
    if bound.data is not None:
        return timing.transfer_latency
    copy = _copied_view(context, contraction, index, both, home)
    return nanoseconds(context.builder, copy, bound.view) + timing.transfer_latency


def dense_of(context: Context, contraction: Contraction, index: int, bound: Bound) -> Bound:
    """Operand ``index`` as a dense array, unless it was staged."""
    if bound.staged is not None:
        return bound
    bound = _brought_together(context, contraction, index, bound)
    shape, order = hlo.shape_of(bound.value), contraction.order(index)
    if bound.data is None:
        return replace(bound, view=context.dense(bound.value).transpose(order))
    literal = context.literal(bound.value)
    assert literal is not None, "its data was taken"
    view, data = literal
    flat = strided(data, view.start.const, [atom for atoms in view.dims for atom in atoms])
    dense = linear(view.alloc, 0, view.dtype, shape.dims).transpose(order)
    return Bound(bound.value, dense, np.ascontiguousarray(flat.reshape(shape.dims)))


def _brought_together(context: Context, contraction: Contraction, index: int, bound: Bound) -> Bound:
    """Matrices of a table, which a copy is to have side by side."""
    if bound.listed is None:
        return bound
    bring_together(context, base(bound.value))
    return Bound(bound.value, context.hbm(bound.value).transpose(contraction.order(index)))


def _dense_view(contraction: Contraction, index: int, bound: Bound) -> View:
    """How it would lie."""
    if bound.staged is not None:
        return bound.view
    shape = hlo.shape_of(bound.value)
    alloc = bound.view.alloc if bound.data is not None else Alloc(Space.HBM, 0, 0)
    return linear(alloc, 0, shape.dtype, shape.dims).transpose(contraction.order(index))


def strided(data: np.ndarray, offset: int, atoms: Sequence[Atom]) -> np.ndarray:
    """The elements of a constant from byte ``offset`` on, as dims of these atoms."""
    raw = data.reshape(-1)[offset // data.itemsize :]
    sizes, strides = [atom.size for atom in atoms], [atom.stride for atom in atoms]
    # NumPy knows the bytes of each type, and not all types by name
    words = raw.view(f"u{raw.itemsize}")
    return np.lib.stride_tricks.as_strided(words, sizes, strides, writeable=False).view(raw.dtype)
