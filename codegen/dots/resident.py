"""Operands of contractions that a loop does not change: brought to SBUF once, ahead of the loop, as TensorE wants them.

Before a loop is emitted, ``keep`` looks through its body, and through the loops and branches inside, for contractions
with one operand that is the same in all iterations. Those that save most transfers, and fit, are staged whole, with the
contracted dim on the partitions (``context.staged``); ``dots.stage`` then reads blocks of them where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.plan import PE_DTYPES, TILE_ROWS, Resident, Side, Span, pe_dtype, segments_of
from neuronx_cc.codegen.dots.stage import DotStaging
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.views import Atom, View, align, coalesce, linear
from neuronx_cc.codegen.formation.graph import ELEMENTWISE, base, is_view
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.analysis.trip_count import trip_count

MOST_SHARE = (7, 11)
"""Of a partition of SBUF: what resident values and staged operands may fill together."""
LEAST_SHARE = (3, 11)
"""The same where some kernel of the loop may need much room."""
SHORT_ROW = 512
"""Elements of a reduced row that takes little room."""
WINDOWS = ("dynamic-slice", "dynamic-update-slice")
MODEST = frozenset(["constant", "iota", "tuple", "get-tuple-element", "convert", "dot", "concatenate", *WINDOWS])
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

    @property
    def nbytes(self) -> int:
        """Bytes a partition of the staged operand."""
        dtype = pe_dtype(self.op)
        _, _, contracted = order_of(self.op, self.index)
        dims = hlo.shape_of(self.value).dims
        terms = prod(dims[axis] for axis in contracted)
        chunks = sum(segment.outer for segment in segments_of(terms))
        return prod(dims) // terms * chunks * itemsize(dtype)

    @property
    def saved(self) -> int:
        """Bytes that are not read again."""
        return (self.trips - 1) * hlo.shape_of(self.value).nbytes


def order_of(op: hlo.DotOp, index: int) -> tuple[list[int], list[int], list[int]]:
    """Batch, free and contracted dims of operand ``index``."""
    dims = op.dims.data
    batch, contracted = (dims.lhs_batch, dims.lhs_contracting) if index == 0 else (dims.rhs_batch, dims.rhs_contracting)
    rank = hlo.shape_of(op.operands[index]).rank
    return list(batch), [axis for axis in range(rank) if axis not in (*batch, *contracted)], list(contracted)


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
    found.sort(key=lambda each: (-each.saved / each.nbytes, -each.saved))
    modest = _is_modest(context.module, body)
    most = context.sizes.sbuf_share(MOST_SHARE if modest else LEAST_SHARE)
    known = {value: context.homes[value] for value in bound if value in context.homes}
    context.homes.update(bound)
    shared: dict[tuple[hlo.SSAValue, str, str], tuple[Alloc, Resident]] = {}
    staged = []
    for candidate in found:
        order = order_of(candidate.op, candidate.index)
        key = (candidate.value, str(order), pe_dtype(candidate.op))
        if key not in shared and candidate.saved:
            alloc = context.new_staged(candidate.nbytes, hlo.loc_of(candidate.value).name, most)
            if alloc is not None:
                shared[key] = alloc, _Stager(context, candidate).stage(alloc)
        if key in shared:
            context.staged[candidate.op, candidate.index] = shared[key][1]
            staged.append(candidate)
    for value in bound:
        del context.homes[value]
    context.homes.update(known)
    with context.keeping(context.kept_bytes_limit if modest else context.resident_bytes_limit):
        yield
    for candidate in staged:
        del context.staged[candidate.op, candidate.index]
    for alloc, _ in shared.values():
        context.free_staged(alloc)


def _is_modest(module: hlo.HloModule, body: hlo.ComputationOp) -> bool:
    """Whether all kernels of a body, and of what it calls, do with the room that there is."""
    return all(
        op.opcode in MODEST
        or op.opcode in ELEMENTWISE
        or is_view(op)
        or (isinstance(op, hlo.ReduceOp) and _folded(op) <= SHORT_ROW)
        or (
            isinstance(op, hlo.WhileOp | hlo.ConditionalOp)
            and all(_is_modest(module, module.computation(name)) for name in called_names(op))
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
            if len(same) == 1 and (op, same[0]) not in context.staged and _takes(op, same[0]):
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
    """Whether operand ``index`` is worth staging: several terms of one dim, of a type that TensorE takes."""
    value = op.operands[index]
    shape = hlo.shape_of(value)
    _, _, contracted = order_of(op, index)
    return (
        bool(shape.size) and shape.dtype in PE_DTYPES and [shape.dims[axis] > 1 for axis in contracted].count(True) == 1
    )


class _Stager(DotStaging):
    """Brings one operand of a contraction to SBUF, whole."""

    def __init__(self, context: Context, candidate: Candidate) -> None:
        super().__init__(context, candidate.op, candidate.op.result, None, 0)
        self.candidate = candidate
        self.rhs_buffers = self.lhs_buffers = 2

    def stage(self, alloc: Alloc) -> Resident:
        """Fill ``alloc`` and describe it."""
        batch, free, contracted = order_of(self.op, self.candidate.index)
        value, _ = self._source(self.candidate.value)
        dims = hlo.shape_of(value).dims
        folded = next(axis for axis in contracted if dims[axis] > 1)
        rows = [dims[axis] for axis in free]
        width = itemsize(self.pe_dtype)
        self.segments = segments_of(dims[folded])
        chunk_bytes = prod(rows) * width
        block_bytes = chunk_bytes * sum(segment.outer for segment in self.segments)
        outer = linear(alloc, alloc.lo, self.pe_dtype, [dims[axis] for axis in batch])
        outer = replace(outer, dims=tuple(_scaled(atoms, block_bytes // width) for atoms in outer.dims))
        inner = linear(alloc, alloc.lo, self.pe_dtype, rows)
        sizes = tuple((Atom(dims[axis], 0),) if axis == folded else () for axis in contracted)
        target = replace(inner, dims=(*outer.dims, *inner.dims))

        source = self._source_view(value, [*batch, *free], folded)
        where = replace(source, dims=source.dims[:-1])
        space = align([where, target], [dims[axis] for axis in (*batch, *free)])
        assert space is not None, "a dense array aligns with anything"
        terms = source.dims[-1][0]
        self.k_sizes, self.k_dim = [terms.size], 0
        # the side's dims are those of the source: a block is all terms of some rows
        side = Side("lhs", value, source, self.pe_dtype, [], space.atoms[0], [terms])
        into = Block(alloc, self.pe_dtype, Affine(alloc.lo), tuple(space.atoms[1]))
        if side.rows_on_lanes:
            self._make_transposer()
            for dtype in sorted({self.pe_dtype, source.dtype} & PE_DTYPES):
                self.context.identity(carrier_of(dtype, self.fast(dtype)))
        tiled = max(range(len(space.sizes)), key=lambda dim: (space.sizes[dim], dim), default=-1)
        self._blocks(side, into, tiled, {}, chunk_bytes)
        self.pool.free()
        return Resident(replace(target, dims=(*target.dims, *sizes)), self.segments, chunk_bytes)

    def _source_view(self, value: hlo.SSAValue, others: list[int], folded: int) -> View:
        """A view in HBM with dims [others..., contracted], the contracted one with one stride."""
        for view in (self.context.hbm(value), self.context.dense(value)):
            turned = view.transpose([*others, *(axis for axis in range(len(view.dims)) if axis not in others)])
            last = coalesce(view.dims[folded])
            if len(last) == 1:
                return replace(turned, dims=(*turned.dims[: len(others)], last))
        raise AssertionError("a dim of a dense array has one stride")

    def _blocks(self, side: Side, into: Block, tiled: int, at: dict[int, Affine], chunk_bytes: int) -> None:
        """Stage the rows along dim ``tiled``, for each index of the other dims."""
        left = [dim for dim in range(len(side.free)) if dim != tiled and dim not in at]
        if left:
            for index in self.builder.each(side.free[left[0]].size):
                self._blocks(side, into, tiled, {**at, left[0]: index}, chunk_bytes)
            return
        size = side.free[tiled].size if tiled >= 0 else 1
        offset = into.offset
        for dim, index in at.items():
            offset = offset + index * into.dims[dim].stride
        rows = into.dims[tiled] if tiled >= 0 else Atom(1, 0)
        here = at if tiled < 0 else {**at, tiled: Affine()}
        for segment in self.segments:
            source = self._source_block(side, Span([], here, tiled, size), segment)
            chunk = segment.start // TILE_ROWS * chunk_bytes
            dims = (Atom(segment.lanes, 1, True), Atom(segment.outer, chunk_bytes), rows)
            tile = Block(into.alloc, self.pe_dtype, offset + chunk, dims)
            stage = self._transposed if side.rows_on_lanes else self._loaded
            stage(side, source, size, segment, tile)


def _scaled(atoms: tuple[Atom, ...], factor: int) -> tuple[Atom, ...]:
    return tuple(replace(atom, stride=atom.stride * factor) for atom in atoms)
