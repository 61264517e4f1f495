"""Finds chains: contractions, elementwise ops and folds of rows on their results, and contractions of what comes of it.

Input: a computation that the passes have prepared. All arrays between have the dims [batch..., row, column], as the
scores of an attention and their gradients have; nothing else reads them. What others read as well, as a forward pass
does the scores, is computed once more for the chain (``separate``), as reading it from HBM takes longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from neuronx_cc.codegen.dots.problem import order_of, pe_dtype
from neuronx_cc.codegen.formation.graph import base, computes_elementwise, is_view, reads, squeeze, suffix_reduction
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.hlo.editing import copy_op, ops_of, users
from neuronx_cc.ir.types import WIDE_FLOATS, itemsize

FOLDS = frozenset(["add", "maximum", "minimum"])
"""What rows are folded by."""
MOST = 128
"""Ops of a chain, and ops that are looked at for one more contraction: a block of rows has an instruction for each."""
TRIED = 32
"""Contractions that are tried for one more."""
FOLLOWED = 1024
"""Ops that may stand between two contractions of a chain."""


@dataclass(frozen=True, slots=True, eq=False)
class Sink:
    """A contraction of what the chain makes."""

    op: hlo.DotOp
    weights: int
    """Its operand that comes from the chain."""
    across: bool
    """Whether it contracts the rows; the columns else."""

    @property
    def value(self) -> hlo.SSAValue:
        """What it contracts of the chain."""
        return made_by(self.op.operands[self.weights], ())

    @property
    def other(self) -> hlo.SSAValue:
        """What that is multiplied with."""
        return self.op.operands[1 - self.weights]

    @property
    def width(self) -> int:
        """Of the other operand's rows."""
        (free,) = long_order(self.op, 1 - self.weights)[1]
        return hlo.shape_of(self.other).dims[free]


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """One chain; its ops in the order of the program."""

    sources: tuple[hlo.DotOp, ...]
    inner: tuple[hlo.HloOp, ...]
    sinks: tuple[Sink, ...]
    dims: tuple[int, ...]
    """Batch dims, rows and columns, but those of size 1."""

    @property
    def ops(self) -> tuple[hlo.HloOp, ...]:
        """All, those that are contracted last."""
        return (*self.sources, *self.inner, *(sink.op for sink in self.sinks))

    @property
    def shared(self) -> set[hlo.HloOp]:
        """Those before the last contractions whose results others read, too."""
        own = set(self.ops)
        return {op for op in (*self.sources, *self.inner) if any(user not in own for user in _readers(op.result))}

    @property
    def stored(self) -> list[hlo.SSAValue]:
        """What others read of it, apart from its last contractions' results: in the end of all that it makes, for which
        they would compute all of it once more.
        """
        return [op.results[0] for op in self.inner if op in self.shared and self._takes_all(op)]

    def _takes_all(self, op: hlo.HloOp) -> bool:
        """Whether ``op`` makes an array of products of every first contraction."""
        if squeeze(op.shape.dims) != self.dims or op.shape.dtype not in WIDE_FLOATS:
            return False
        own, found, waiting = set(self.ops), set[hlo.Operation](), [op]
        while waiting:
            makers = (made_by(x, self.dims).owner for x in waiting.pop().operands)
            more = [each for each in makers if each in own and each not in found and isinstance(each, hlo.HloOp)]
            found.update(more)
            waiting += (each for each in more if not isinstance(each, hlo.DotOp))
        return found.issuperset(self.sources)

    @property
    def needed(self) -> set[hlo.HloOp]:
        """Those that are shared, and not stored, and all that make what these read."""
        own, found = set(self.ops), self.shared - {value.owner for value in self.stored}
        for op in reversed((*self.sources, *self.inner)):
            if op in found:
                makers = (made_by(x, self.dims).owner for x in op.operands)
                found |= {maker for maker in makers if maker in own and isinstance(maker, hlo.HloOp)}
        return found

    @property
    def read(self) -> list[hlo.SSAValue]:
        """What ``inner`` reads that the chain does not make; all of it has the dims of the chain or of its rows."""
        own = {op.result for op in (*self.sources, *self.inner)}
        found = (x for op in self.inner for x in op.operands if made_by(x, self.dims) not in own)
        return list(dict.fromkeys(x for x in found if hlo.shape_of(x).rank))


def long_order(op: hlo.DotOp, index: int) -> tuple[list[int], list[int], list[int]]:
    """The axes of operand ``index``, but those of size 1: batch dims, free ones and contracted ones."""
    dims = hlo.shape_of(op.operands[index]).dims
    batch, free, terms = ([axis for axis in axes if dims[axis] != 1] for axes in order_of(op, index))
    return batch, free, terms


def depth_of(op: hlo.DotOp) -> int:
    """Terms of each sum of a first contraction."""
    (axis,) = long_order(op, 0)[2]
    return hlo.shape_of(op.operands[0]).dims[axis]


def find(
    computation: hlo.ComputationOp, combiners: Mapping[str, str], without: Set[hlo.Operation] = frozenset()
) -> list[Chain]:
    """The chains of ``computation``, of ops that are not ``without``; no two have an op in common.

    ``combiners``: computation -> opcode of a simple combiner.
    """
    search = _Search(computation, combiners, without)
    found: list[Chain] = []
    taken: set[hlo.Operation] = set(without)
    place = {op: at for at, op in enumerate(ops_of(computation.block))}
    for op in reversed(place):
        if isinstance(op, hlo.DotOp) and op not in taken:
            chain = search.chain(op, place, taken)
            if chain is not None:
                found.append(chain)
                taken |= set(chain.ops)
    return found


def made_by(value: hlo.SSAValue, dims: tuple[int, ...]) -> hlo.SSAValue:
    """The value that ``value`` is, but for dims of size 1, or repeats along the columns."""
    op = value.owner
    if isinstance(op, hlo.ReshapeOp) and squeeze(op.shape.dims) == squeeze(hlo.shape_of(op.operand).dims):
        return made_by(op.operand, dims)
    if isinstance(op, hlo.BroadcastOp) and squeeze(op.shape.dims) == dims:
        kept = [axis for axis, size in enumerate(op.shape.dims) if size != 1]
        along = [kept.index(axis) for axis in op.dimensions.data if axis in kept]
        if along == list(range(len(dims) - 1)) and squeeze(hlo.shape_of(op.operand).dims) == dims[:-1]:
            return made_by(op.operand, dims)
    return value


def separate(chain: Chain) -> Chain:
    """The chain with ops of its own for those whose results others read, and all that reads its results after it."""
    own, shared = set(chain.ops), chain.needed
    copies = _Copies({op: op for op in chain.ops if op not in shared})
    ordered = [copies.of(op) for op in (*chain.sources, *chain.inner)]
    for sink in chain.sinks:
        copies.of(sink.op)
    _gather(own - shared | set(ordered), chain)
    count = len(chain.sources)
    sources, inner = ordered[:count], ordered[count:]
    return replace(chain, sources=tuple(sources), inner=tuple(inner))


class _Copies:
    """Copies of ops that are shared; those that are not read the copies."""

    def __init__(self, kept: dict[hlo.HloOp, hlo.HloOp]) -> None:
        self.made = kept
        self._views: dict[hlo.HloOp, hlo.HloOp] = {}

    def of(self, op: hlo.HloOp) -> hlo.HloOp:
        operands = [self._operand(x) for x in op.operands]
        if op in self.made:
            if any(one is not other for one, other in zip(operands, op.operands, strict=True)):
                op.operands = operands
            return op
        copy = copy_op(op, operands)
        block = op.parent
        assert block is not None
        block.insert_op_after(copy, op)
        self.made[op] = copy
        return copy

    def _operand(self, value: hlo.SSAValue) -> hlo.SSAValue:
        op = value.owner
        if not isinstance(op, hlo.HloOp):
            return value
        if op in self.made:
            return self.made[op].result
        if not is_view(op):
            return value
        if op not in self._views:
            operands = [self._operand(x) for x in op.operands]
            same = all(one is other for one, other in zip(operands, op.operands, strict=True))
            self._views[op] = op if same else copy_op(op, operands)
            if not same:
                block = op.parent
                assert block is not None
                block.insert_op_after(self._views[op], op)
        return self._views[op].result


def _gather(own: Set[hlo.Operation], chain: Chain) -> None:
    """Move what needs results of the chain, and stands among its ops, after it."""
    last = chain.sinks[-1].op
    block = last.parent
    assert block is not None
    after: set[hlo.SSAValue] = {*chain.stored, *(sink.op.result for sink in chain.sinks)}
    makers = {value.owner for value in after}
    moved, op = list[hlo.Operation](), next(op for op in block.ops if op in makers).next_op
    while op is not None and op is not last:
        if op not in own and any(x in after for x in op.operands):
            after |= set(op.results)
            moved.append(op)
        op = op.next_op
    for each in reversed(moved):
        each.detach()  # type: ignore[no-untyped-call]
        block.insert_op_after(each, last)


class _Search:
    """Looks for the chain whose last contraction is given."""

    def __init__(
        self, computation: hlo.ComputationOp, combiners: Mapping[str, str], without: Set[hlo.Operation]
    ) -> None:
        self.combiners, self.without = combiners, without
        self._folded = {
            squeeze(hlo.shape_of(op.operands[0]).dims)
            for op in ops_of(computation.block)
            if isinstance(op, hlo.ReduceOp) and self._folds_rows(op)
        }
        """Dims of which a chain may fold rows."""
        self._large: set[hlo.HloOp] = set()
        """Contractions in what is too long for a chain, wherever one begins to look at it."""
        self._lengths: dict[tuple[hlo.HloOp, tuple[int, ...]], int] = {}
        self._sinks: dict[tuple[hlo.DotOp, tuple[int, ...]], tuple[Sink, set[hlo.HloOp]] | None] = {}

    def chain(self, op: hlo.DotOp, place: Mapping[hlo.HloOp, int], taken: Set[hlo.Operation]) -> Chain | None:
        found = self._sink(op, ())
        if found is None:
            return None
        last, ops = found
        dims = squeeze(hlo.shape_of(last.value).dims)
        if not ops.isdisjoint(self._large):
            return None
        sinks = {op: last}
        while more := self._more(ops, sinks, dims, place):
            sink, closure = more
            sinks[sink.op] = sink
            ops = ops | closure
            if len(ops) > MOST:
                self._large |= {op for op in ops if isinstance(op, hlo.DotOp)}
                return None
        ordered = sorted(ops, key=place.__getitem__)
        sources = tuple(op for op in ordered if isinstance(op, hlo.DotOp))
        inner = tuple(op for op in ordered if not isinstance(op, hlo.DotOp))
        if len(sinks) < 2 or not taken.isdisjoint([*ops, *sinks]):
            return None
        given = [*(x for op in sources for x in op.operands), *(sink.other for sink in sinks.values())]
        if any(base(x).owner in ops for x in given):
            return None  # what comes of it is multiplied with what comes of it
        if not any(isinstance(op, hlo.ReduceOp) for op in inner):
            return None  # as above
        return Chain(sources, inner, tuple(sorted(sinks.values(), key=lambda sink: place[sink.op])), dims)

    def _more(
        self,
        ops: Set[hlo.HloOp],
        sinks: Mapping[hlo.DotOp, Sink],
        dims: tuple[int, ...],
        place: Mapping[hlo.HloOp, int],
    ) -> tuple[Sink, set[hlo.HloOp]] | None:
        """One more contraction of what ``ops`` make, or of what comes of it, that they do not wait for; its ops."""
        made: dict[hlo.HloOp, None] = dict.fromkeys(sorted(ops, key=place.__getitem__))
        waiting, tried = list(made), set[hlo.HloOp]()
        while waiting and len(tried) < TRIED and len(made) <= len(ops) + MOST:
            for user in _readers(waiting.pop(0).result):
                if isinstance(user, hlo.DotOp) and user not in sinks and user not in ops and user not in tried:
                    tried.add(user)
                    found = self._sink(user, dims)
                    if found is None:
                        continue
                    sink, closure = found
                    if _leads_to(user, {*ops, *sinks, *closure}, place):
                        continue
                    if not any(_leads_to(other, {user, *closure}, place) for other in sinks):
                        return sink, closure
                elif isinstance(user, hlo.HloOp) and user not in made and self._is_inner(user, dims):
                    made[user] = None
                    waiting.append(user)
        return None

    def _closure(self, value: hlo.SSAValue, dims: tuple[int, ...]) -> set[hlo.HloOp] | None:
        """The ops that make ``value``, up to contractions; None where there are none, or another kind is among them."""
        if self._length(value, dims) > MOST:
            return None
        found: set[hlo.HloOp] = set()
        waiting = [value]
        while waiting and len(found) <= MOST:
            op = made_by(waiting.pop(), dims).owner
            if not isinstance(op, hlo.HloOp) or op in found or op in self.without:
                continue
            if self._is_source(op, dims):
                found.add(op)
            elif self._is_inner(op, dims):
                found.add(op)
                waiting += op.operands
        complete = not waiting and value.owner in found and any(isinstance(op, hlo.DotOp) for op in found)
        return found if complete and self._stays(found, dims) else None

    def _length(self, value: hlo.SSAValue, dims: tuple[int, ...]) -> int:
        """Ops on the longest way to ``value`` in its closure: at most as many as are in it, and found once for all."""
        known, waiting = self._lengths, [value.owner]
        while waiting:
            op = waiting[-1]
            if not isinstance(op, hlo.HloOp) or op in self.without or (op, dims) in known:
                waiting.pop()
                continue
            makers = [made_by(x, dims).owner for x in op.operands] if self._is_inner(op, dims) else []
            looked_at = (maker for maker in makers if isinstance(maker, hlo.HloOp) and maker not in self.without)
            missing = [maker for maker in looked_at if (maker, dims) not in known]
            if not missing:
                known[op, dims] = 1 + max([known.get((maker, dims), 0) for maker in makers], default=0)  # type: ignore[arg-type]
            waiting += missing
        return known.get((value.owner, dims), 0)  # type: ignore[arg-type]

    @staticmethod
    def _stays(ops: Set[hlo.HloOp], dims: tuple[int, ...]) -> bool:
        """Whether what they read of each other stands in its place."""
        return all(
            made_by(x, dims).owner in ops or base(x).owner not in ops
            for op in ops
            if not isinstance(op, hlo.DotOp)
            for x in op.operands
        )

    def _is_source(self, op: hlo.HloOp, dims: tuple[int, ...]) -> bool:
        if not isinstance(op, hlo.DotOp) or squeeze(op.shape.dims) != dims or not _is_narrow(op):
            return False
        orders = [long_order(op, index) for index in (0, 1)]
        return all(len(free) == len(terms) == 1 for _, free, terms in orders)

    def _folds_rows(self, op: hlo.ReduceOp) -> bool:
        alike = hlo.shape_of(op.operands[0]).dtype in WIDE_FLOATS and suffix_reduction(op) == 1
        return alike and self.combiners.get(op.to_apply.data[0]) in FOLDS

    def _is_inner(self, op: hlo.HloOp, dims: tuple[int, ...]) -> bool:
        if isinstance(op, hlo.ReduceOp):
            return squeeze(hlo.shape_of(op.operands[0]).dims) == dims and self._folds_rows(op)
        if not computes_elementwise(op) or squeeze(op.shape.dims) not in (dims, dims[:-1]):
            return False
        return squeeze(op.shape.dims) == dims or op.shape.dtype in WIDE_FLOATS

    def _sink(self, op: hlo.DotOp, dims: tuple[int, ...]) -> tuple[Sink, set[hlo.HloOp]] | None:
        """``_found_sink``, once for all that asks."""
        if (op, dims) not in self._sinks:
            self._sinks[op, dims] = self._found_sink(op, dims)
        return self._sinks[op, dims]

    def _found_sink(self, op: hlo.DotOp, dims: tuple[int, ...]) -> tuple[Sink, set[hlo.HloOp]] | None:
        """``op`` as a last contraction, and what makes the operand that comes from the chain."""
        if not _is_narrow(op):
            return None
        for index in (0, 1):
            value = op.operands[index]
            made, shape = made_by(value, ()).owner, hlo.shape_of(value)
            own = squeeze(shape.dims)
            if not isinstance(made, hlo.HloOp) or is_view(made) or (dims and own != dims) or len(own) < 2:
                continue
            batch, free, terms = long_order(op, index)
            one = len(free) == len(terms) == len(long_order(op, 1 - index)[1]) == 1
            long = [axis for axis, size in enumerate(shape.dims) if size != 1]
            if not one or batch != long[:-2]:
                continue
            folds = own in self._folded  # without folds, contractions take in what lies between as they load and store
            closure = self._closure(made.results[0], own) if folds and self._is_inner(made, own) else None
            if closure is not None:
                return Sink(op, index, terms == long[-2:-1]), closure
        return None


def _is_narrow(op: hlo.DotOp) -> bool:
    """Whether TensorE multiplies it in 16 bits."""
    return itemsize(pe_dtype(op)) == 2 and all(hlo.shape_of(x).dtype in WIDE_FLOATS for x in op.operands)


def _readers(value: hlo.SSAValue) -> Iterator[hlo.Operation]:
    return (use.operation for use in reads(value))


def _leads_to(op: hlo.HloOp, targets: Set[hlo.HloOp], place: Mapping[hlo.HloOp, int]) -> bool:
    """Whether one of ``targets`` needs the result of ``op``, or may: it takes long to find out."""
    latest = max(map(place.__getitem__, targets))
    waiting, seen = [op], set[hlo.Operation]()
    while waiting:
        for user in users(waiting.pop().result):
            if user in targets or len(seen) > FOLLOWED:
                return True
            if user not in seen and isinstance(user, hlo.HloOp) and place.get(user, latest) < latest:
                seen.add(user)
                waiting.append(user)
    return False
