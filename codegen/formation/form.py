"""Kernel formation: which ops of a computation run as one tile program.

Input: a computation that the passes have prepared. Output: its kernels in execution order. Elementwise ops and
reductions of trailing dims over one iteration space form a *map* kernel; every other computing op is a kernel of its
own. A kernel depends only on kernels of smaller number: an op joins the newest kernel among its operands' (or a newer
one that reads the same large operand), and that kernel takes in the others' that nothing else reads yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from math import prod

from neuronx_cc.codegen.attention.masks import dead_with
from neuronx_cc.codegen.attention.pattern import Attention
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.formation import columns, inner_rows, recompute
from neuronx_cc.codegen.formation.graph import (
    ELEMENTWISE,
    Kernel,
    base,
    computes_elementwise,
    counts_itself,
    is_view,
    operands_of,
    reads,
    same_order,
    squeeze,
    suffix_reduction,
    trace,
)
from neuronx_cc.codegen.maps import crossing
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import copy_for, erase, ops_of, replace, users
from neuronx_cc.ir.scans import Scan, scan_of
from neuronx_cc.ir.types import NARROW
from neuronx_cc.passes.analysis.effects import has_effects
from neuronx_cc.passes.analysis.stored import is_given
from neuronx_cc.passes.cse import key_of

MAX_SHARED_OPS, MAX_SUMMED_OPS = 24, 40
"""Ops of a kernel that takes in another chain because it reads the same operand; its tiles must fit SBUF. More where
it is column sums, which have no tiles.
"""
MANY = 32
"""Rows that are folded side by side, at least, unless they are short."""
SHORT = 2048
"""Elements of a row that is folded where it lies, however few there are."""
LEAST_CAST = 1 << 16
"""Elements from which a given array is cast again as it is loaded: a smaller one often stays on chip in 16 bits."""
AHEAD = 32
"""Steps of the longest chain by which kernels that wait for nothing are ahead of what reads them."""


def form(
    context: Context,
    computation: hlo.ComputationOp,
    without: Set[hlo.Operation],
    together: Sequence[tuple[Sequence[hlo.HloOp], object]],
    inside: Set[hlo.Operation],
    epilogues: Mapping[hlo.HloOp, Sequence[hlo.HloOp]],
    late: Set[hlo.Operation],
    made: Set[hlo.Operation],
) -> list[Kernel]:
    """Kernels of ``computation`` in execution order, but of the ops ``without``.

    ``together``: ops that are a kernel, and what they are together; they are ``inside``, as is what only they need. So
    are contractions with their ``epilogues``. ``late``: see ``recompute.spread``. ``made``: what contractions make
    their operands by as they come.
    """
    last: dict[hlo.HloOp, tuple[Sequence[hlo.HloOp], object]] = {ops[-1]: (ops, what) for ops, what in together}
    last |= {ops[-1]: ((op, *ops), None) for op, ops in epilogues.items()}
    inside = inside | {op for ops, _ in last.values() for op in ops}
    loads = {op for op in late if op.results[0] in context.load_casts}
    formation = _Formation(context, late - inside - loads)
    for op in ops_of(computation.block):
        if op in last:
            formation.place_together(*last[op])
        if op in inside or is_view(op) or op.opcode in ("tuple", "constant"):
            continue
        if op in made or (op.result in context.load_casts and not formation.folds_casts(op)):
            formation.stand_for(op)
        elif op not in without and op not in formation.late:
            formation.place(op)
    formation.cast_again()
    return _by_depth([kernel for kernel in formation.kernels if kernel.ops], formation.member, context.effectful)


def inside_of(attentions: Sequence[Attention], tails: Set[hlo.Operation]) -> set[hlo.Operation]:
    """Ops that are part of an attention, or ``tails``, or that nothing but these needs."""
    inside: set[hlo.Operation] = {op for each in attentions for op in each.ops}
    counting = {step.op for each in attentions for step in each.steps if step.band is not None}
    return inside | tails | dead_with(counting | tails)


class _Formation:
    """The kernels so far. ``place`` takes the ops in order, but those of ``late``, which come with their users."""

    def __init__(self, context: Context, late: Set[hlo.Operation]) -> None:
        self.context = context
        self.late = late
        self.kernels: list[Kernel] = []
        self.member: dict[hlo.SSAValue, Kernel] = {}
        self.readers: dict[hlo.SSAValue, list[Kernel]] = {}
        """Base value -> map kernels with a large iteration space that read it."""

    def place(self, op: hlo.HloOp) -> None:
        """Add ``op`` to a kernel, or make one of it."""
        self._place_late(op)
        if isinstance(op, hlo.GetTupleElementOp):
            if op.operand in self.member:
                self.member[op.result] = self.member[op.operand]
        elif op.opcode == "iota":
            if _needs_array(op.result):
                self._new(op, True, squeeze(op.shape.dims))
        else:
            self._compute(op)

    def stand_for(self, cast: hlo.HloOp) -> None:
        """``cast`` belongs to no kernel; what reads it waits for what it casts."""
        newest = self._newest(cast)
        if newest is not None:
            self.member[cast.results[0]] = newest

    def cast_again(self) -> None:
        """Let each map cast what it loads of large given arrays that another one casts, too, as it would load FP32:
        what the first one makes would be stored for the others.
        """
        for kernel in self.kernels:
            for op in [op for op in kernel.ops if kernel.is_map and _narrows_given(op)]:
                readers = [each for each in dict.fromkeys(users(op.results[0])) if isinstance(each, hlo.HloOp)]
                homes = [self.member.get(each.results[0]) for each in readers]
                if any(home is None or not home.is_map or home.dims != kernel.dims for home in homes):
                    continue
                for other in dict.fromkeys(home for home in homes if home is not None and home is not kernel):
                    self._copy_into(op, other, [each for each in readers if each in other.ops])
                if op.results[0].first_use is None:
                    kernel.ops.remove(op)
                    del self.member[op.results[0]]
                    erase(op)

    def _copy_into(self, op: hlo.HloOp, kernel: Kernel, readers: Sequence[hlo.HloOp]) -> None:
        """Give ``readers``, of ``kernel``, the result of an ``op`` of their own."""
        ordered = sorted(readers, key=kernel.ops.index)
        copy = copy_for(op, ordered)
        kernel.ops.insert(0, copy)
        self.member[copy.results[0]] = kernel

    def folds_casts(self, cast: hlo.HloOp) -> bool:
        """Whether maps fold what ``cast`` gives, as they would fold what it casts; it is one of their ops then."""
        readers = [use.operation for use in cast.results[0].uses]
        source = self.context.load_casts.pop(cast.results[0])
        folds = all(isinstance(op, hlo.ReduceOp) for op in readers) and any(
            inner_rows.folded_by(self.context, op, None) or columns.folded_by(self.context, op) for op in readers
        )
        if not folds:
            self.context.load_casts[cast.results[0]] = source
        return folds

    def place_together(self, ops: Sequence[hlo.HloOp], what: object) -> None:
        """Make one kernel of all ``ops``, which may be an attention or a chain."""
        for op in ops:
            self._place_late(op)
        kernel = self._new(ops[0], False)
        kernel.together = what
        for op in ops[1:]:
            self._join(op, kernel)

    def _place_late(self, *users: hlo.HloOp) -> None:
        for operand in dict.fromkeys(users[0].operands):
            if operand.owner in self.late and operand not in self.member:
                self._recompute(operand.owner, *users)  # type: ignore[arg-type]  # HLO ops only

    def _compute(self, op: hlo.HloOp) -> None:
        kernel = self._newest(op)
        if (scan := scan_of(op)) is not None:
            self._scan(op, scan, kernel)
        elif op.opcode in ELEMENTWISE:
            self._compute_in(op, self._home(op, kernel))
        elif isinstance(op, hlo.ReduceOp) and self._folds(op):
            self._reduce(op, (), kernel)
        elif isinstance(op, hlo.ReduceOp) and (order := inner_rows.folded_by(self.context, op, kernel)):
            self._reduce(op, order, kernel)
        elif isinstance(op, hlo.ReduceOp) and (count := columns.folded_by(self.context, op)):
            self._sum_columns(op, count, kernel)
        else:
            self._new(op, False)

    def _recompute(self, op: hlo.HloOp, *users: hlo.HloOp) -> None:
        """Add late ``op`` where its user (and the user of that) will be; one that is there already is taken for it."""
        self._place_late(op, *users)
        home = self._home(op, self._newest(op, *users))
        for twin in home.ops if home is not None else []:
            if key_of(twin) == key_of(op):
                replace(op, twin.result)
                return
        self._compute_in(op, home)

    def _scan(self, op: hlo.HloOp, scan: Scan, kernel: Kernel | None) -> None:
        dims, axis = squeeze(op.shape.dims), len(squeeze(op.shape.dims[: scan.axis]))
        alike = kernel is not None and kernel.is_map and kernel.shape == dims and _one_scanned(kernel, axis)
        alike = alike and kernel is not None and not kernel.folded and not kernel.order
        if kernel is not None and alike and self._may_join(op, kernel, op.sources):
            self._absorb(op, kernel)
            self._join(op, kernel)
        else:
            kernel = self._new(op, True, dims)
        kernel.scanned = axis

    def _home(self, op: hlo.HloOp, kernel: Kernel | None) -> Kernel | None:
        """The kernel that elementwise ``op`` joins: the newest of its producers, or a newer one that reads the same."""
        dims = squeeze(op.shape.dims)
        joins = (
            kernel is not None
            and kernel.is_map
            and dims in (kernel.dims, kernel.rows)
            and (dims == kernel.dims or not self._ends_in_rows(op, kernel))
            and self._may_join(op, kernel, op.sources)
        )
        return kernel if joins else self._sibling(op, dims, kernel)

    def _ends_in_rows(self, op: hlo.HloOp, kernel: Kernel) -> bool:
        """Whether ``op`` reads other arrays of one value for each of the few rows of ``kernel``, and only such arrays
        come of it, as where running means are brought up to date: tiles of whole rows wait for none of that.
        """
        given = (base(operand) for operand in op.sources)
        others = [x for x in given if self.member.get(x) is not kernel and hlo.shape_of(x).size > 1]
        if not others or prod(kernel.rows) >= recompute.STREAMED_ELEMENTS:
            return False
        made = [op]
        for each in made:  # grows
            users = [use.operation for use in reads(each.result) if not isinstance(use.operation, hlo.ReturnOp)]
            if not all(computes_elementwise(user) and squeeze(user.shape.dims) == kernel.rows for user in users):
                return False
            made += [user for user in dict.fromkeys(users) if user not in made]
        return True

    def _compute_in(self, op: hlo.HloOp, home: Kernel | None) -> None:
        if home is None:
            self._absorb(op, self._new(op, True, squeeze(op.shape.dims)))
            return
        self._absorb(op, home)
        self._join(op, home)
        self._note_reads(op, home)

    def _folds(self, op: hlo.ReduceOp) -> bool:
        """Whether a map kernel folds trailing dims for ``op``."""
        count = suffix_reduction(op)
        dims = squeeze(hlo.shape_of(op.sources[0]).dims)
        row = prod(dims[len(dims) - count :])
        fits = count > 0 and row > 0 and op.to_apply.data[0] in self.context.combiners
        if not fits:
            return False
        return _have_partitions(dims, count) or crossing.takes(self.context, op, prod(dims) // row, row)

    def _reduce(self, op: hlo.ReduceOp, order: tuple[int, ...], kernel: Kernel | None) -> None:
        """Fold the last axes, in ``order``."""
        dims = squeeze(hlo.shape_of(op.sources[0]).dims)
        count = len(dims) - len(squeeze(op.shape.dims))
        shape = tuple(dims[dim] for dim in order) or dims
        joins = (
            kernel is not None
            and kernel.is_map
            and kernel.dims == dims
            and (kernel.reduced, kernel.order) in ((0, ()), (count, order))
            and not (
                order and (kernel.folded or kernel.scanned >= 0 or any(map(inner_rows.reads_transposed, kernel.ops)))
            )
            and columns.takes_rows(self.context, kernel)
            and (_have_partitions(shape, count) or kernel.scanned < 0)
            and trace(op.sources[0], kernel, self.member) is not None
            and self._may_join(op, kernel, op.sources[1:])
        )
        if joins and kernel is not None:
            kernel.shape, kernel.reduced, kernel.order = shape, count, order
            self._join(op, kernel)
        else:
            self._new(op, True, shape, count, order)

    def _sum_columns(self, op: hlo.ReduceOp, count: int, producer: Kernel | None) -> None:
        """Add ``op`` to the kernel that makes, or streams, what it adds up over ``count`` leading dims."""
        operand = op.sources[0]
        dims = squeeze(hlo.shape_of(operand).dims)
        kernel = producer
        source = None if kernel is None else trace(operand, kernel, self.member)
        if source is None:
            if operand in self.context.load_casts or not same_order(operand, base(operand)):
                self._new(op, False)
                return
            kernel = self._sibling(op, dims, producer, MAX_SUMMED_OPS)
        elif squeeze(hlo.shape_of(source).dims) != dims:
            self._new(op, False)  # what is repeated along a row
            return
        alone = kernel is None or (kernel.reduced > 0 and not _have_partitions(dims, kernel.reduced))
        if kernel is not None and not alone and columns.takes(self.context, kernel, op, count, dims):
            self._join(op, kernel)
        else:
            kernel = self._new(op, True, dims)
        kernel.folded = count

    def _new(
        self,
        op: hlo.HloOp,
        is_map: bool,
        shape: tuple[int, ...] = (),
        reduced: int = 0,
        order: tuple[int, ...] = (),
    ) -> Kernel:
        given = is_map and self._newest(op) is None
        number = (-1 if given else 1) * (len(self.kernels) + 1)
        kernel = Kernel(number, [op], shape, reduced, is_map, order=order)
        self.kernels.append(kernel)
        for result in op.results:
            self.member[result] = kernel
        self._note_reads(op, kernel)
        return kernel

    def _join(self, op: hlo.HloOp, kernel: Kernel) -> None:
        kernel.ops.append(op)
        self.member[op.results[0]] = kernel

    def _note_reads(self, op: hlo.HloOp, kernel: Kernel) -> None:
        if kernel.is_map and prod(kernel.shape) >= recompute.STREAMED_ELEMENTS:
            for operand in op.sources:
                self.readers.setdefault(base(operand), []).append(kernel)

    def _newest(self, *ops: hlo.HloOp) -> Kernel | None:
        read = [base(operand) for op in ops for operand in operands_of(op)]
        found = [self.member[source] for source in read if source in self.member]
        return max(found, key=lambda kernel: kernel.number, default=None)

    def _may_join(self, op: hlo.HloOp, kernel: Kernel, operands: Sequence[hlo.SSAValue]) -> bool:
        inside = [operand for operand in operands if self.member.get(base(operand)) is kernel]
        return all(trace(operand, kernel, self.member) is not None for operand in inside)

    def _sibling(
        self, op: hlo.HloOp, dims: tuple[int, ...], producer: Kernel | None, most: int = MAX_SHARED_OPS
    ) -> Kernel | None:
        """A kernel of at most ``most`` ops, after all of ``op``'s producers, that streams one of its operands."""
        least = producer.number if producer is not None else -len(self.kernels) - 1
        for operand in op.sources:
            for kernel in reversed(self.readers.get(base(operand), [])):
                fits = kernel.number > least and kernel.dims == dims and len(kernel.ops) < most
                if fits and self._may_join(op, kernel, op.sources):
                    return kernel
        return None

    def _absorb(self, op: hlo.HloOp, kernel: Kernel) -> None:
        """Move the kernels of ``op``'s other operands into ``kernel`` where nothing else reads them yet."""
        member = self.member
        for operand in op.sources:
            other = member.get(base(operand))
            if other is None or other is kernel or not other.is_map or other.folded:
                continue
            if other.reduced and not _folds_alike(kernel, other):
                continue
            if other.shape not in (kernel.dims, kernel.rows):
                continue
            if len(other.ops) + len(kernel.ops) > MAX_SHARED_OPS or not _one_scanned(kernel, other.scanned):
                continue
            if (kernel.folded or kernel.order) and other.scanned >= 0:
                continue
            if kernel.order and any(map(inner_rows.reads_transposed, other.ops)):
                continue
            users = (use.operation for part in other.ops for use in reads(part.results[0]))
            if any(_kernel_of(user, member) not in (None, other, kernel) for user in users):
                continue
            own = {part.results[0] for part in other.ops}
            for value in own:
                member[value] = kernel
            read = [x for part in (op, *kernel.ops, *other.ops) for x in part.operands if base(x) in own]
            if all(trace(x, kernel, member) is not None for x in read):
                kernel.ops[:0] = other.ops
                if other.reduced:
                    kernel.shape, kernel.reduced = other.shape, other.reduced
                kernel.scanned = max(kernel.scanned, other.scanned)
                for part in other.ops:
                    self._note_reads(part, kernel)
                other.ops = []
            else:
                for value in own:
                    member[value] = other


def _needs_array(value: hlo.SSAValue) -> bool:
    """Whether a user of a counting ``value`` reads it from memory."""
    return any(not computes_elementwise(use.operation) and not counts_itself(use) for use in value.uses)


def _one_scanned(kernel: Kernel, axis: int) -> bool:
    """Whether scans along ``axis`` (-1: none) fit the scans of ``kernel``, and the rows that it folds."""
    apart = kernel.reduced > 0 and not _have_partitions(kernel.shape, kernel.reduced)
    return axis < 0 or (kernel.scanned in (-1, axis) and not apart)


def _folds_alike(kernel: Kernel, other: Kernel) -> bool:
    """Whether ``kernel`` had better fold the rows of ``other`` as well: both load what does not stay on chip."""
    plain = not (kernel.order or other.order or kernel.folded) and max(kernel.scanned, other.scanned) < 0
    alike = kernel.dims == other.dims and kernel.reduced in (0, other.reduced)
    return plain and alike and prod(other.shape) >= recompute.STREAMED_ELEMENTS


def _narrows_given(op: hlo.HloOp) -> bool:
    """Whether the DMA casts a large given array to 16 bits as it comes."""
    if not isinstance(op, hlo.ConvertOp) or op.shape.dtype not in NARROW or op.shape.size < LEAST_CAST:
        return False
    return hlo.shape_of(op.operand).dtype == "f32" and is_given(base(op.operand))


def _have_partitions(dims: tuple[int, ...], count: int) -> bool:
    """Whether rows of the last ``count`` dims, which are folded, may be on a partition each: many of them, or short."""
    row = prod(dims[len(dims) - count :])
    return prod(dims) // row >= MANY or row <= SHORT


def _kernel_of(op: hlo.Operation, member: dict[hlo.SSAValue, Kernel]) -> Kernel | None:
    return member.get(op.results[0]) if op.results else None


def _by_depth(kernels: list[Kernel], member: dict[hlo.SSAValue, Kernel], effectful: Set[str]) -> list[Kernel]:
    """Kernels in order of their longest chain of producers: independent ones stand together and overlap.

    Those with effects stay in order. What reads given values only, and what alone is made of that, stands ``AHEAD`` of
    its first reader: early enough to run beside others, late enough that its results take no room long before, and that
    engines which wait for them have done what comes before.
    """
    depth: dict[Kernel, int] = {}
    makers: dict[Kernel, set[Kernel]] = {}
    readers: dict[Kernel, list[Kernel]] = {}
    latest = 0
    ordered = sorted(kernels, key=lambda kernel: kernel.number)
    for kernel in ordered:
        found = (member.get(base(operand)) for op in kernel.ops for operand in operands_of(op))
        producers = {producer for producer in found if producer is not None and producer is not kernel}
        for producer in producers:
            readers.setdefault(producer, []).append(kernel)
        depth[kernel] = 1 + max((depth[producer] for producer in producers), default=0)
        if has_effects(kernel.ops[0], effectful):
            latest = depth[kernel] = max(depth[kernel], latest + 1)
        makers[kernel] = producers
    early = dict(depth)
    apart: set[Kernel] = set()
    for kernel in ordered:
        alone = all(early[each] == 1 or (each in apart and len(readers[each]) == 1) for each in makers[kernel])
        if alone and not has_effects(kernel.ops[0], effectful):
            apart.add(kernel)
    for kernel in reversed(ordered):
        if kernel in apart and kernel in readers:
            depth[kernel] = max(early[kernel], min(depth[reader] for reader in readers[kernel]) - AHEAD)
    ordered = sorted(kernels, key=depth.__getitem__)
    for number, kernel in enumerate(ordered):
        kernel.number = number
    return ordered
