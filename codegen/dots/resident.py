"""Operands of contractions that a loop does not change: brought to SBUF once, ahead of the loop, as TensorE wants them.

Before a loop is emitted, ``keep`` looks through its body, and through the loops and branches inside, for contractions
with one operand that is the same in all iterations. Those that save most transfers, and fit, are staged whole, with the
contracted dim on the partitions (``Residents.staged``); ``dots.stage`` then reads blocks of them where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.candidates import UNROLLED_TRANSPOSES, rows_beside
from neuronx_cc.codegen.dots.contraction import Bound
from neuronx_cc.codegen.dots.filler import Filler, transposer_of
from neuronx_cc.codegen.dots.problem import (
    DECODED,
    PE_DTYPES,
    Home,
    Operand,
    Problem,
    Result,
    Staged,
    order_of,
    pe_dtype,
    segments_of,
    turnable,
)
from neuronx_cc.codegen.dots.schedule import ROW_BUFFERS
from neuronx_cc.codegen.dots.span import Span
from neuronx_cc.codegen.dots.tiles import Tiles
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom, View, align, coalesce, linear
from neuronx_cc.codegen.formation.graph import ELEMENTWISE, base, is_view
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.analysis.stored import STAGED_SHARE
from neuronx_cc.passes.analysis.trip_count import trip_count

LEAST_SHARE = (3, 11)
"""Of a partition of SBUF: what resident values and staged operands may fill where some kernel of the loop may need much
room (``STAGED_SHARE``: elsewhere).
"""
SHORT_PART = 88
"""A row that is reduced takes little room if it takes at most one part in so many of SBUF, in FP32."""
WINDOWS = ("dynamic-slice", "dynamic-update-slice")
MODEST = frozenset(["constant", "iota", "tuple", "get-tuple-element", "dot", "concatenate", *WINDOWS])
"""Ops whose kernels do with little room, besides elementwise ones and views."""
UNKNOWN_TRIPS = 8
"""Iterations that a loop of run-time trip count is taken to have."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Operand ``index`` of ``op``, which is the same in all iterations."""

    op: hlo.DotOp
    index: int
    trips: int
    """How often the contraction is computed."""

    @property
    def value(self) -> hlo.SSAValue:
        return self.op.operands[self.index]

    def nbytes(self, sizes: Sizes) -> int:
        """Bytes a partition of the staged operand."""
        dtype = pe_dtype(self.op, self.index)
        _, _, contracted = order_of(self.op, self.index)
        dims = hlo.shape_of(self.value).dims
        terms = prod(dims[axis] for axis in contracted)
        chunks = sum(segment.steps for segment in segments_of(terms, sizes))
        return prod(dims) // terms * chunks * itemsize(dtype)

    @property
    def saved(self) -> int:
        """Bytes that are not read again."""
        return (self.trips - 1) * hlo.shape_of(self.value).nbytes


@contextmanager
def kept(
    context: Context, loop: hlo.WhileOp, homes: Sequence[Sequence[View]], carried: Sequence[int], trips: int | None
) -> Iterator[None]:
    """Stage what ``loop`` reads again and again, for as long as the context lasts.

    ``homes``: of each element of the state; ``carried``: the elements that the loop changes.
    """
    body = context.module.computation(loop.body.data[0])
    given = {index: list(views) for index, views in enumerate(homes) if views and index not in carried}
    bound: dict[hlo.SSAValue, list[View]] = {}
    found = list(_candidates(context, body, given, UNKNOWN_TRIPS if trips is None else trips, bound))
    found.sort(key=lambda each: (-each.saved / each.nbytes(context.sizes), -each.saved))
    modest = _is_modest(context.module, body, context.sizes.sbuf_bytes // (4 * SHORT_PART))
    most = context.sizes.sbuf_share(STAGED_SHARE if modest else LEAST_SHARE)
    known = {value: context.homes[value] for value in bound if value in context.homes}
    context.homes.update(bound)
    shared: dict[tuple[hlo.SSAValue, str, str], tuple[Alloc, Staged]] = {}
    staged = []
    for candidate in found:
        order = order_of(candidate.op, candidate.index)
        key = (candidate.value, str(order), pe_dtype(candidate.op, candidate.index))
        if key not in shared and candidate.saved:
            nbytes, name = candidate.nbytes(context.sizes), hlo.loc_of(candidate.value).name
            alloc = context.residents.place_staged(nbytes, name, most)
            if alloc is not None:
                shared[key] = alloc, _stage(context, candidate, alloc)
        if key in shared:
            context.residents.staged[candidate.op, candidate.index] = shared[key][1]
            staged.append(candidate)
    for value in bound:
        del context.homes[value]
    context.homes.update(known)
    with context.residents.at_most(context.residents.kept if modest else context.residents.together):
        yield
    for candidate in staged:
        del context.residents.staged[candidate.op, candidate.index]
    for alloc, _ in shared.values():
        context.residents.free_staged(alloc)


def _is_modest(module: hlo.HloModule, body: hlo.ComputationOp, short: int) -> bool:
    """Whether all kernels of a body, and of what it calls, do with the room that there is.

    ``short``: elements of a reduced row that takes little of it.
    """
    return all(
        op.opcode in MODEST
        or op.opcode in ELEMENTWISE
        or is_view(op)
        or (isinstance(op, hlo.ReduceOp) and _folded(op) <= short)
        or (
            isinstance(op, hlo.RegionOp)
            and all(_is_modest(module, module.computation(name), short) for name in called_names(op))
        )
        for op in ops_of(body.block)
    )


def _folded(op: hlo.ReduceOp) -> int:
    """Elements that make one of the result."""
    dims = hlo.shape_of(op.operands[0]).dims
    return prod(dims[axis] for axis in op.dimensions.data)


def _candidates(
    context: Context,
    computation: hlo.ComputationOp,
    given: Mapping[int, list[View]],
    trips: int,
    bound: dict[hlo.SSAValue, list[View]],
) -> Iterator[Candidate]:
    """Contractions of ``computation`` with one operand among ``given``; their homes are added to ``bound``."""
    for index, found in context.elements(computation.block.args[0]).items():
        if index in given:
            bound.update((element, given[index]) for element in found)
    for op in computation.block.ops:
        if isinstance(op, hlo.DotOp):
            same = [index for index in (0, 1) if _is_same(context, op.operands[index], bound)]
            if len(same) == 1 and (op, same[0]) not in context.residents.staged and _takes(op, same[0]):
                yield Candidate(op, same[0], trips)
        elif isinstance(op, hlo.WhileOp):
            body = context.module.computation(op.body.data[0])
            inner = _handed_on(context, body, _given_elements(op.operand, bound))
            times = trip_count(op, context.module)
            yield from _candidates(context, body, inner, trips * (UNKNOWN_TRIPS if times is None else times), bound)
        elif isinstance(op, hlo.ConditionalOp):
            for name, operand in zip(op.branches.data, op.operands[1:], strict=True):
                inner = _given_elements(operand, bound)
                yield from _candidates(context, context.module.computation(name), inner, trips, bound)


def _given_elements(packed: hlo.SSAValue, bound: Mapping[hlo.SSAValue, list[View]]) -> dict[int, list[View]]:
    """The elements of a tuple that are themselves among ``bound``."""
    source = packed.owner
    if not isinstance(source, hlo.TupleOp):
        return {}
    return {index: bound[value] for index, value in enumerate(source.operands) if value in bound}


def _handed_on(context: Context, body: hlo.ComputationOp, given: dict[int, list[View]]) -> dict[int, list[View]]:
    """Those of ``given`` that an inner loop does not change."""
    root, old = body.root.owner, context.elements(body.block.args[0])
    assert isinstance(root, hlo.TupleOp), "flatten_control gives roots that are tuples"
    return {index: views for index, views in given.items() if root.operands[index] in old.get(index, ())}


def _is_same(context: Context, value: hlo.SSAValue, bound: Mapping[hlo.SSAValue, list[View]]) -> bool:
    """Whether ``value`` is a view of a constant or of what the loop does not change, with a cast at most."""
    value = context.load_casts.get(value, value)
    source = base(value)
    return source in bound or isinstance(source.owner, hlo.ConstantOp)


def _takes(op: hlo.DotOp, index: int) -> bool:
    """Whether operand ``index`` is worth staging: several terms of one dim, of a type that TensorE takes, not of codes
    that it takes decoded."""
    value = op.operands[index]
    shape, made = hlo.shape_of(value), value.owner
    if isinstance(made, hlo.ConvertOp) and hlo.shape_of(made.operand).dtype in DECODED:
        return False
    _, _, contracted = order_of(op, index)
    return (
        bool(shape.size) and shape.dtype in PE_DTYPES and [shape.dims[axis] > 1 for axis in contracted].count(True) == 1
    )


def _stage(context: Context, candidate: Candidate, alloc: Alloc) -> Staged:
    """Bring one operand of a contraction to SBUF, whole: fill ``alloc`` and describe it."""
    batch, free, contracted = order_of(candidate.op, candidate.index)
    value = context.source_of(candidate.value)
    dtype = pe_dtype(candidate.op, candidate.index, hlo.shape_of(value).dtype)
    dims = hlo.shape_of(value).dims
    folded = next(axis for axis in contracted if dims[axis] > 1)
    rows = [dims[axis] for axis in free]
    segments = segments_of(dims[folded], context.sizes)
    chunk_bytes = prod(rows) * itemsize(dtype)
    block_elements = prod(rows) * sum(segment.steps for segment in segments)
    outer = linear(alloc, alloc.lo, dtype, [dims[axis] for axis in batch])
    outer = replace(outer, dims=tuple(_scaled(atoms, block_elements) for atoms in outer.dims))
    inner = linear(alloc, alloc.lo, dtype, rows)
    sizes = tuple((Atom(dims[axis], 0),) if axis == folded else () for axis in contracted)
    target = replace(inner, dims=(*outer.dims, *inner.dims))

    source = _source_view(context, value, [*batch, *free], folded)
    space = align([replace(source, dims=source.dims[:-1]), target], [dims[axis] for axis in (*batch, *free)])
    assert space is not None, "a dense array aligns with anything"
    tiled = max(range(len(space.sizes)), key=lambda dim: (space.sizes[dim], dim), default=-1)
    problem = _problem_of(context, dtype, source, tuple(space.sizes), tuple(space.atoms[0]), tiled)
    problem = replace(problem, segments=segments)
    into = Block(alloc, dtype, Affine(alloc.lo), tuple(space.atoms[1]))
    pool = TilePool(context.builder, f"contraction {candidate.op.loc.name}")
    tiles = Tiles(context.builder, candidate.op.loc.name, {}, pool)
    emitter, transposer = Emitter(context.builder, lambda like, dtype: like), None
    if problem.lhs.transposed:
        banks = tiles.banks(context.sizes.banks // 2, "transposes")
        transposer = transposer_of(context, emitter, tiles, banks, UNROLLED_TRANSPOSES)
        for each in sorted({dtype, turnable(source.dtype)} & PE_DTYPES):
            context.fixed.identity(carrier_of(each, problem.fast(each)))
    filler = Filler(
        problem,
        problem.lhs,
        Bound(value, source),
        2 * context.sizes.bank_bytes,
        ROW_BUFFERS,
        rows_beside(problem, problem.lhs, context.timing),
        emitter,
        tiles,
        transposer,
    )
    _blocks(filler, into, {}, chunk_bytes)
    pool.free()
    return Staged(replace(target, dims=(*target.dims, *sizes)), segments, chunk_bytes)


def _problem_of(
    context: Context, dtype: str, source: View, rows: tuple[int, ...], free: tuple[Atom, ...], tiled: int
) -> Problem:
    """The operand as lhs of a contraction: its dims are those of the source, a block is all terms of some rows."""
    terms = source.dims[-1][0]
    lhs = Operand("lhs", Home.HBM, source.dtype, dtype, (), free, (terms,))
    rhs = Operand("rhs", Home.HBM, dtype, dtype, (), (), (terms,))
    return Problem(
        b=(),
        m=rows,
        n=(),
        k=(terms.size,),
        m_dim=tiled,
        n_dim=-1,
        k_dim=0,
        segments=(),
        dtype=dtype,
        flags=(),
        moves_values=context.moves_values("bf16"),
        lhs=lhs,
        rhs=rhs,
        out=Result(False, dtype, (), free, ()),
        epilogue=None,
        bias=False,
        room=context.builder.sbuf.planned_room(),
    )


def _source_view(context: Context, value: hlo.SSAValue, others: list[int], folded: int) -> View:
    """A view in HBM with dims [others..., contracted], the contracted one with one stride."""
    for view in (context.hbm(value), context.dense(value)):
        ordered = view.transpose([*others, *(axis for axis in range(len(view.dims)) if axis not in others)])
        last = coalesce(view.dims[folded])
        if len(last) == 1:
            return replace(ordered, dims=(*ordered.dims[: len(others)], last))
    raise AssertionError("a dim of a dense array has one stride")


def _blocks(filler: Filler, into: Block, at: dict[int, Affine], chunk_bytes: int) -> None:
    """Stage the rows along the tiled dim, for each index of the other dims."""
    problem, operand = filler.problem, filler.operand
    left = [dim for dim in range(len(operand.free)) if dim != problem.m_dim and dim not in at]
    if left:
        for index in filler.emitter.builder.each(operand.free[left[0]].size):
            _blocks(filler, into, {**at, left[0]: index}, chunk_bytes)
        return
    offset, tiled = into.offset, problem.m_dim
    for dim, index in at.items():
        offset = offset + index * into.dims[dim].stride
    rows = into.dims[tiled] if tiled >= 0 else Atom(1, 0)
    here = at if tiled < 0 else {**at, tiled: Affine()}
    span, tiles = Span([], here, tiled, problem.m_tiled), []
    for segment in problem.segments:
        dims = (Atom(segment.partitions, 1, True), Atom(segment.steps, chunk_bytes), rows)
        tiles.append(Block(into.alloc, operand.dtype, offset, dims))
        offset = offset + segment.steps * chunk_bytes
    if operand.transposed:
        filler.transpose(filler.rows(span, problem.segments), tiles, False)
        return
    for segment, tile in zip(problem.segments, tiles, strict=True):
        filler.load(filler.source(span, segment), tile)


def _scaled(atoms: tuple[Atom, ...], factor: int) -> tuple[Atom, ...]:
    return tuple(replace(atom, stride=atom.stride * factor) for atom in atoms)
