"""Which ops a contraction computes as its sums leave PSUM: those that take less time there than in a kernel of theirs.

Contractions are dots and convolutions, but kernels' gradients and those that Vector computes.
Input: a computation that the passes have prepared. Output: for each contraction with an epilogue the ops of both,
first the contraction, then elementwise ops of its shape in order. The last one's result is all that others read. What
the ops read beside is there before them: constants, arrays of the same shape, rows, columns, results of other
contractions. What makes such an array of one other, for this alone, is part of the epilogue as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import prod
from typing import TypeGuard

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.codegen.epilogues.chain import Chain
from neuronx_cc.codegen.epilogues.contraction import Contraction
from neuronx_cc.codegen.epilogues.work import leave
from neuronx_cc.codegen.formation.graph import base, computes_elementwise, repeats, squeeze
from neuronx_cc.codegen.formation.recompute import STREAMED_ELEMENTS
from neuronx_cc.codegen.maps.elementwise import ACTIVATION, ARITHMETIC
from neuronx_cc.codegen.view_ops import as_stored, seen_by
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.hlo.editing import copy_op, ops_of
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import NOTHING, Tile, Timing, Work, total
from neuronx_cc.ir.types import WIDE_FLOATS, itemsize
from neuronx_cc.passes.analysis.stored import RESIDENT_VALUE_SHARE, is_stored
from neuronx_cc.passes.late_rounding import MOST

TAKEN = frozenset(["clamp", "compare", "convert", "divide", "negate", "not", "select", *ARITHMETIC, *ACTIVATION])
"""Opcodes of instructions of Vector and Scalar, of floats and truth values."""
ROOM = 6
"""Tiles of an epilogue take at most one part in so many of SBUF."""
BUFFERS = 2
LONG = 4
"""Banks that a tile of a map is as wide as, at most."""
LOOKED_AT = 16
"""Ops after an epilogue of which a map is taken to consist."""

Grown = tuple[hlo.HloOp, ...]


def worthwhile(context: Context, computation: hlo.ComputationOp, apart: Set[hlo.Operation]) -> dict[hlo.HloOp, Grown]:
    """Contraction -> its epilogue, in order, but of the ops ``apart``, which are no part of any."""
    ops = list(ops_of(computation.block))
    if not any(isinstance(op, hlo.DotOp | hlo.ConvolutionOp) for op in ops):
        return {}
    place: dict[hlo.Operation, int] = {op: at for at, op in enumerate(ops)}
    taken = set(apart)
    found: dict[hlo.HloOp, Grown] = {}
    for op in ops:
        contraction = Contraction.of(op) if op not in taken else None
        if contraction is not None:
            best = _best(context, contraction, list(_Growth(context, contraction.op, place, taken).grown()))
            if best:
                best = _apart(best, place)
                found[contraction.op] = best
                taken.update(best)
    return found


def _apart(epilogue: Grown, place: dict[hlo.Operation, int]) -> Grown:
    """``epilogue`` with casts of its own for those that others read as well."""
    own: dict[hlo.HloOp, hlo.HloOp] = {}
    for op in epilogue[:-1]:
        if _is_large_cast(op) and any(use.operation not in epilogue for use in op.results[0].uses):
            own[op] = copy = copy_op(op, op.sources)
            place[copy] = place[op]
            block = op.parent
            assert block is not None
            block.insert_op_after(copy, op)
    for op in epilogue:
        if any(operand.owner in own for operand in op.operands):
            op.operands = [own[x.owner].results[0] if x.owner in own else x for x in op.operands]  # type: ignore[index]
    return tuple(own.get(op, op) for op in epilogue)


def _is_large_cast(op: object) -> TypeGuard[hlo.ConvertOp]:
    """Whether ``op`` is a cast to FP32 of a large array, of which whoever reads it loads half the bytes without."""
    if not isinstance(op, hlo.ConvertOp) or op.shape.dtype != "f32" or op.shape.size < STREAMED_ELEMENTS:
        return False
    return hlo.shape_of(op.operand).dtype in WIDE_FLOATS


# ---- ops that may be part of it -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Growth:
    """The ops after one contraction, as far as they may be its epilogue."""

    context: Context
    op: hlo.HloOp
    place: dict[hlo.Operation, int]
    """In the order of the computation."""
    apart: Set[hlo.Operation]
    inside: dict[hlo.HloOp, None] = field(default_factory=dict)

    def grown(self) -> Iterator[Grown]:
        """Epilogues, each longer than the one before."""
        open_: set[hlo.SSAValue] = {self.op.result}
        pending: list[tuple[int, hlo.HloOp]] = []
        self._await(self.op.result, pending)
        while pending and len(self.inside) < MOST:
            _, op = heappop(pending)
            if op in self.inside:
                continue
            more = self._with(op)
            if more is None:
                continue
            self.inside |= dict.fromkeys(more)
            # casts of what is read beside are made for others as well
            open_ |= {each.results[0] for each in more if each is op or not _is_large_cast(each)}
            open_ = {value for value in open_ if any(use.operation not in self.inside for use in value.uses)}
            self._await(op.results[0], pending)
            if open_ == {op.results[0]} and op.shape.dtype in WIDE_FLOATS:
                yield tuple(sorted(self.inside, key=self.place.__getitem__))

    def _await(self, value: hlo.SSAValue, pending: list[tuple[int, hlo.HloOp]]) -> None:
        for use in value.uses:
            if use.operation in self.place and use.operation not in self.inside:
                heappush(pending, (self.place[use.operation], use.operation))

    def _with(self, op: hlo.HloOp) -> list[hlo.HloOp] | None:
        """``op`` and what is computed for it alone, in order; None if it is no part."""
        if not self._fits(op):
            return None
        found: list[hlo.HloOp] = []
        for operand in op.sources:
            owner = operand.owner
            if operand is self.op.result or owner in self.inside or owner in found:
                continue
            made = self._made_for(operand)
            if made is not None:
                found += made
            elif not self._readable(operand):
                return None
        return [*found, op]

    def _made_for(self, operand: hlo.SSAValue) -> list[hlo.HloOp] | None:
        """The ops that make ``operand`` for one op, of one array or of what repeats smaller ones; None if there are
        none, or of what cannot be read: to read several takes longer than to read what another kernel makes of them.
        """
        op = operand.owner
        alone = operand.has_one_use() or _is_large_cast(op)
        if op in self.inside or not self._fits(op) or not alone or _is_cast_on_load(op):
            return None
        assert isinstance(op, hlo.HloOp)
        made: list[hlo.HloOp] = []
        for each in op.sources:
            if self.context.splat(each) is not None:
                continue
            if each is self.op.result:
                return None
            more = self._made_for(each)
            if more is None and not self._readable(each):
                return None
            made += more or []
        made.append(op)
        sources = {each for other in made for each in other.sources if each.owner not in made}
        arrays = [each for each in sources if self.context.splat(each) is None]
        return made if len(made) <= MOST and (len(arrays) == 1 or all(map(repeats, arrays))) else None

    def _fits(self, op: object) -> bool:
        """Whether ``op`` is of a kind that an epilogue has, and of the contraction's shape."""
        if not isinstance(op, hlo.HloOp) or op not in self.place or op in self.apart:
            return False
        if not computes_elementwise(op) or op.opcode not in TAKEN:
            return False
        shapes = [hlo.shape_of(value) for value in (*op.sources, op.results[0])]
        kinds = WIDE_FLOATS | {"pred"} if op.opcode in ("compare", "not", "select") else WIDE_FLOATS
        return shapes[-1].dims == self.op.shape.dims and all(shape.dtype in kinds for shape in shapes)

    def _readable(self, operand: hlo.SSAValue) -> bool:
        """Whether ``operand`` is a constant, or an array whose parts are loaded as tiles of the result are."""
        if self.context.splat(operand) is not None:
            return True
        view = _lies(operand)
        if view is None or any(len(atoms) > 1 for atoms in view.dims):
            return False
        near = [atoms[-1].stride for atoms in view.dims if atoms][-1:]
        return near in ([], [0], [itemsize(view.dtype)])


def _lies(value: hlo.SSAValue) -> View | None:
    """``value`` as a view of what it is made of, or of what is cast as it is loaded, if that lay in HBM; None if it is
    none, or counts.
    """
    source = base(value)
    if isinstance(source.owner, hlo.IotaOp) or not isinstance(source.type, hlo.ArrayType):
        return None
    if _is_cast_on_load(source.owner):
        stored = as_stored(source.owner.operand)
        return None if stored is None else seen_by(value, stored)
    return as_stored(value)


def _is_cast_on_load(op: object) -> TypeGuard[hlo.ConvertOp]:
    return isinstance(op, hlo.ConvertOp) and is_stored(op.operand) and hlo.shape_of(op.operand).dtype in WIDE_FLOATS


# ---- whether it is worth it -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Option:
    """A contraction with some of the ops after it, or none: work of its kernel, and what a map of these would have."""

    ops: Grown
    fits: bool
    inside: Work
    """Of all tiles as sums leave PSUM."""
    apart: Work
    across: Work
    """The same on all partitions, which what lies on few reaches through HBM."""
    read: Work
    """Arrays that the ops read."""
    moved: Work
    """The result, to or from HBM."""
    tiles: float
    """Of a map of the result."""


def _best(context: Context, contraction: Contraction, grown: Sequence[Grown]) -> Grown:
    """The epilogue that leaves least time to the contraction and what follows; of equal ones the longest."""
    if not grown:
        return ()
    timing = context.timing
    options = [_option(context, contraction, ops) for ops in ((), *grown)]
    own, last = contraction.work(timing), options[-1]
    result = last.ops[-1]
    after = _after(last.ops, timing, context.sizes.partitions)
    shape = last.ops[-1].shape
    crossing = timing.transfer(shape.size * itemsize(shape.dtype), timing.long_run).times(2)
    kept = any(not _in_shape(use.operation, result) for use in result.results[0].uses)

    def time(option: _Option) -> float:
        kernel = (own + option.inside + option.read + option.moved).bound
        if option is last and not after.bound:
            return kernel
        rest = [option.moved, after, _less(last.read, option.read)]
        rest += [last.moved] * (bool(after.bound) + (option is not last and (kept or not after.bound)))
        near = total([*rest, _less(last.apart, option.apart)])
        far = total([*rest, _less(last.across, option.across), crossing])
        times = _time(near, last.tiles), _time(far, last.tiles) + 2 * timing.transfer_latency
        return kernel + min(times) + timing.transfer_latency

    return min((option for option in options if option.fits), key=lambda each: (time(each), -len(each.ops))).ops


def _time(work: Work, tiles: float) -> float:
    """Nanoseconds of a map of so many tiles: engines and transfers wait for the first one, and for the last."""
    stages = work.vector + work.scalar + work.gpsimd + work.dma
    return work.bound + (stages - work.bound) / max(1.0, tiles)


def _less(whole: Work, part: Work) -> Work:
    return Work(*(max(0.0, a - b) for a, b in zip(whole, part, strict=True)))


def _option(context: Context, contraction: Contraction, ops: Grown) -> _Option:
    """That of ``ops``; of equal ones, which read what lies alike, found once."""
    chain = Chain.of(context, contraction.op.result, ops)
    views = [_lies(array) for array in chain.arrays] if chain is not None else []
    lies = tuple([None if view is None else view.dims for view in views])
    key = contraction.kind, None if chain is None else chain.spelling, lies
    known: dict[Hashable, _Option] = context.planner.options
    if key not in known:
        known[key] = _found(context, contraction, ops, chain, views)
    return replace(known[key], ops=ops)


def _found(
    context: Context, contraction: Contraction, ops: Grown, chain: Chain | None, views: Sequence[View | None]
) -> _Option:
    timing, sizes, shape = context.timing, context.sizes, (ops[-1] if ops else contraction.op).shape
    partitions = contraction.partitions(timing)
    outside = not partitions or shape.size * 4 > partitions * sizes.sbuf_share(RESIDENT_VALUE_SHARE)
    partitions = sizes.partitions if outside else partitions
    moved = timing.transfer(shape.size * itemsize(shape.dtype), timing.long_run) if outside else NOTHING
    wide = contraction.wide(timing)
    tiles = contraction.tiles(timing)
    # a map has tiles of other sizes, on as many partitions
    long, every = (
        max(wide, min(LONG * sizes.bank_columns, shape.size // count)) for count in (partitions, sizes.partitions)
    )
    count = shape.size / (partitions * long)
    if chain is None:
        inside = leave(wide, shape.dtype, timing).times(tiles)
        return _Option(ops, True, inside, NOTHING, NOTHING, NOTHING, moved, count)
    read, repeats = NOTHING, []
    for array, view in zip(chain.arrays, views, strict=True):
        dims = () if view is None else view.dims
        repeats.append(not any(atom.stride for axis in contraction.along for atom in (dims[axis] if dims else ())))
        elements = 1 if view is None else prod(a.size for dim in view.dims for a in dim if a.stride)
        if outside:
            read += timing.transfer(elements * hlo.itemsize(hlo.shape_of(array).dtype), timing.long_run)
    dtypes = [hlo.shape_of(array).dtype for array in chain.arrays]
    epilogue = chain.epilogue(repeats, dtypes, shape.dtype, 1.0)
    room = BUFFERS * ROOM * sizes.bank_bytes * (epilogue.tiles + len(repeats) - sum(repeats))
    inside = epilogue.work(wide, timing).times(tiles)
    apart = epilogue.work(long, timing).times(count)
    across = epilogue.work(every, timing).times(shape.size / (sizes.partitions * every))
    return _Option(ops, room <= sizes.sbuf_bytes, inside, apart, across, read, moved, count)


def _in_shape(user: hlo.Operation, op: hlo.HloOp) -> bool:
    """Whether ``user`` computes with the result of ``op`` in its own shape, as maps do."""
    if isinstance(user, hlo.ReduceOp):
        return True
    return computes_elementwise(user) and squeeze(user.shape.dims) == squeeze(op.shape.dims)  # type: ignore[attr-defined]


def _after(ops: Grown, timing: Timing, partitions: int) -> Work:
    """What a map has to do that reads the result; nothing if there is none."""
    made, size = [ops[-1]], max(1, ops[-1].shape.size // partitions)
    for each in made:  # grows
        users = [use.operation for use in each.results[0].uses if _in_shape(use.operation, ops[-1])]
        made += [user for user in dict.fromkeys(users) if user not in made and len(made) < LOOKED_AT]
    wide = min(size, LONG * timing.sizes.bank_columns)
    one = timing.engine("tensor_tensor", Stream.VECTOR, wide, (Tile(),), (Tile(), Tile()), ("add",))
    return one.times((len(made) - 1) * size / wide)
