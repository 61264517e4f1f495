"""Computes scans of many states step range by step range, where rows of them do not fit on chip.

Input: canonical hlo. A state space expands its inputs to many states a feature, scans these along time, and folds them
again: ``[batch, time, features]`` becomes ``[batch, time, features, states]``, and the fold and the scan want all of
both dims on one partition. Output: a loop over ranges of time does what lies between the small arrays, for the state
after one range is all that the next one needs, so no array of states leaves the chip.

Only where rows, time x states, are longer than a partition holds of all that is alive; for recurrences and folds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from dataclasses import replace as replace_in
from itertools import islice
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, insert_before, ops_of, replace, users
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.scans import Scan, scan_of
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.values import computation_kind, splat_number
from neuronx_cc.passes.expansions import scans
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

ALIVE = 7
"""Arrays of states that are alive at once, of which a partition must hold whole rows."""
PART = 16
"""How many times the steps of a range, with their states, fit a partition."""
LEAST = 16
"""Steps of a range."""
FOLDS = frozenset(["add", "maximum", "minimum"])
"""Combiners of scans of one array."""


@only_for(hlo.CustomCallOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        done = set[hlo.Operation]()
        for op in ops_of(computation.block):
            scan = scan_of(op)
            if scan is None or op in done or not _is_known(op, scan):
                continue
            region = _Region.of(module, op, scan)
            if region.length(context.timing) and (apart := _unflattened(module, op, scan)) is not None:
                op, scan = apart
                region = _Region.of(module, op, scan)
            if length := region.length(context.timing):
                done |= region.chunk(module, length)


def _is_known(op: hlo.HloOp, scan: Scan) -> bool:
    """Whether the scan ``op`` goes on from one element alone."""
    if not scan.body:
        return False
    body = scans.body_of(op)
    if scans.recurrence(body) is not None:
        return scan.result == 1
    return len(op.operands) == 1 + scan.initial and computation_kind(body) in FOLDS


def _unflattened(module: HloModule, op: hlo.HloOp, scan: Scan) -> tuple[hlo.HloOp, Scan] | None:
    """The scan of what the operands of ``op`` are reshapes of, which is reshaped then; None where that is no scan."""
    makers = [defining_op(operand) for operand in op.operands]
    sources = [maker.operands[0] for maker in makers if isinstance(maker, hlo.ReshapeOp)]
    dims = {hlo.shape_of(source).dims for source in sources}
    found = _reshaped(op.shape.dims, next(iter(dims)), scan.axis) if dims else None
    if len(sources) < len(makers) or len(dims) > 1 or found is None:
        return None
    b = Build.before(module, op)
    arrays, initial = (sources[:-1], sources[-1]) if scan.initial else (sources, None)
    made = scans.insert(b, arrays, scan.body, found[0], scan.reverse, scan.result, initial)
    replace(op, b.reshape(made, op.shape.dims))
    return made.owner, replace_in(scan, axis=found[0])  # type: ignore[return-value]


@dataclass(slots=True)
class _Region:
    """What is computed of arrays of states, between smaller arrays."""

    steps: int
    reverse: bool
    axes: dict[Value, int]
    """The dim of time of each value, inside and around; -1 of those that are the same at all times."""
    ops: list[hlo.HloOp]
    """Inside, in the order of the program; the first scan is among them."""
    given: list[Value]
    """Arrays around that these read."""
    made: list[Value] = field(default_factory=list)
    """Results that others read."""
    later: list[hlo.HloOp] = field(default_factory=list)
    """Ops outside that stand between those inside and need what these make."""

    @classmethod
    def of(cls, module: HloModule, op: hlo.HloOp, scan: Scan) -> _Region:
        """Around the scan ``op``; that alone where an array that is read needs what is made."""
        found = cls._around(module, op, scan)
        if found is not None:
            return found
        axes = dict.fromkeys((op.results[0], *op.operands), scan.axis)
        given = [x for x in dict.fromkeys(op.operands) if splat_number(x, module) is None]
        steps = hlo.shape_of(op.results[0]).dims[scan.axis]
        return cls(steps, scan.reverse, axes, [op], given, [op.results[0]])

    @classmethod
    def _around(cls, module: HloModule, op: hlo.HloOp, scan: Scan) -> _Region | None:
        block = op.parent
        assert block is not None, "a scan stands in a computation"
        place = {each: at for at, each in enumerate(ops_of(block))}
        axes: dict[Value, int] = {op.results[0]: scan.axis}
        inside, size = {op}, op.shape.size
        pending: list[hlo.HloOp] = [op]
        while pending:
            current = pending.pop()
            found = _operand_axes(current, axes[current.results[0]])
            for operand, axis in zip(current.operands, found or (), strict=True):
                known = axes.setdefault(operand, axis)
                if known != axis:
                    return None
                maker = defining_op(operand)
                wide = isinstance(maker, hlo.HloOp) and axis >= 0 and hlo.shape_of(operand).size >= size
                if wide and maker not in inside and _is_inside(maker, axis, scan):  # type: ignore[arg-type]
                    inside.add(maker)  # type: ignore[arg-type]
                    pending.append(maker)  # type: ignore[arg-type]
            for user in _wide_users(current, size):
                axis = _result_axis(user, current.results[0], axes[current.results[0]])
                if user not in inside and axis >= 0 and _is_inside(user, axis, scan):
                    axes[user.results[0]] = axis
                    inside.add(user)
                    pending.append(user)
        ops = sorted(inside, key=place.__getitem__)
        own = {each.results[0] for each in ops}
        given = dict.fromkeys(
            x for each in ops for x in each.operands if x not in own and splat_number(x, module) is None
        )
        region = cls(hlo.shape_of(op.results[0]).dims[scan.axis], scan.reverse, axes, ops, [*given])
        region.made = [each for each in own if any(user not in inside for user in users(each))]
        region.made.sort(key=lambda value: place[value.owner])  # type: ignore[index]
        region.later = _dependents(place, inside, ops)
        makers = {defining_op(x) for x in region.given}
        return None if makers & {*region.later} else region

    def length(self, timing: Timing) -> int:
        """Steps of a range; 0 where rows fit as they are, or too few steps do."""
        states = 1
        for op in self.ops:
            if isinstance(op, hlo.ReduceOp):
                states = max(states, hlo.shape_of(op.operands[0]).size // max(1, op.shape.size))
        row = itemsize("f32") * states
        if ALIVE * row * self.steps <= timing.sizes.sbuf_bytes:
            return 0
        most = timing.sizes.sbuf_bytes // (PART * row)
        length = 1 << max(0, most.bit_length() - 1)
        return length if LEAST <= length < self.steps else 0

    def chunk(self, module: HloModule, length: int) -> set[hlo.Operation]:
        """Replace the region by a loop over ranges of ``length`` steps; the ops that are gone."""
        after = self.ops[-1].next_op
        assert isinstance(after, hlo.Operation), "a computation ends with a return"
        block = self.ops[0].parent
        assert block is not None, "a scan stands in a computation"
        for op in self.later:
            block.detach_op(op)
            block.insert_op_before(op, after)
        b = Build(module, self.later[0] if self.later else after, self.ops[0].loc)
        count, first = divmod(self.steps - 1, length)
        first += 1  # what is left comes first, and needs no state
        ends = [self._ends(value) for value in self.made]
        stacked = [value for value, taken in zip(self.made, ends, strict=True) if not all(taken.values())]
        start = self.steps - first if self.reverse else 0
        parts, states = self._part(b, lambda value: b.slice(value, self.axes[value], start, start + first), first, [])
        whole = [
            b.dynamic_update_slice(b.number_like(0, value), part, self._starts(b, value, b.number(start, "s32")))
            for value, part in ((value, parts[value]) for value in stacked)
        ]
        scans_in = [op for op in self.ops if scan_of(op) is not None]

        def step(inner: Build, index: Value, state: list[Value]) -> list[Value]:
            carried, made, given = (
                state[: len(scans_in)],
                state[len(scans_in) : len(scans_in) + len(stacked)],
                dict(zip(self.given, state[len(scans_in) + len(stacked) :], strict=True)),
            )
            moved = inner.mul(index, inner.number(-length if self.reverse else length, "s32"))
            at = inner.add(moved, inner.number(self.steps - first - length if self.reverse else first, "s32"))

            def cut(value: Value) -> Value:
                axis, dims = self.axes[value], list(hlo.shape_of(value).dims)
                dims[axis] = length
                return inner.dynamic_slice(given[value], self._starts(inner, value, at), dims)

            found, following = self._part(inner, cut, length, carried, given)
            filled = [
                inner.dynamic_update_slice(array, found[value], self._starts(inner, value, at))
                for value, array in zip(stacked, made, strict=True)
            ]
            return [*following, *filled, *given.values()]

        done = b.loop(count, [*states, *whole, *self.given], step)
        arrays = dict(zip(stacked, done[len(scans_in) :], strict=False))
        lasts: dict[Value, Value] = dict(zip((op.results[0] for op in scans_in), done, strict=False))
        for value, taken in zip(self.made, ends, strict=True):
            for user, is_end in taken.items():
                if is_end:
                    assert isinstance(user, hlo.SliceOp), "an end is a slice"
                    replace(user, Build(module, user, user.loc).reshape(lasts[value], user.shape.dims))
                else:
                    user.operands = [arrays[value] if x is value else x for x in user.operands]
        return set(self.ops)

    def _ends(self, value: Value) -> dict[hlo.Operation, bool]:
        """Of each user outside: whether it takes the state after the last step, and nothing else."""
        inside, axis, found = set(self.ops), self.axes[value], dict[hlo.Operation, bool]()
        last = 0 if self.reverse else self.steps - 1
        for user in (x for x in users(value) if x not in inside):
            end = False
            if isinstance(user, hlo.SliceOp) and scan_of(value.owner) is not None:  # type: ignore[arg-type]
                whole = [(cut.start, cut.limit, cut.stride) for cut in user.slice.data]
                want = [(0, size, 1) for size in hlo.shape_of(value).dims]
                want[axis] = (last, last + 1, 1)
                end = whole == want
            found[user] = end
        return found

    def _starts(self, b: Build, value: Value, at: Value) -> list[Value]:
        zero = b.number(0, "s32")
        return [at if axis == self.axes[value] else zero for axis in range(hlo.shape_of(value).rank)]

    def _part(
        self,
        b: Build,
        cut: Callable[[Value], Value],
        length: int,
        states: Sequence[Value],
        given: dict[Value, Value] | None = None,
    ) -> tuple[dict[Value, Value], list[Value]]:
        """A range of ``length`` steps of all values inside, and the states after it; ``cut`` takes it of an array."""
        made: dict[Value, Value] = {}
        following: list[Value] = []

        def part(value: Value, type_: hlo.Shape) -> Value:
            number = splat_number(value, b.module)
            if value not in made and number is not None:
                return b.number(number, type_.dtype, type_.dims)
            if value not in made:
                made[value] = cut(value) if self.axes[value] >= 0 else (given or {value: value})[value]
            return made[value]

        for op in self.ops:
            operands = [part(x, self._shape(x, length)) for x in op.operands]
            scan = scan_of(op)
            if scan is None:
                shape = self._shape(op.results[0], length)
                type_ = hlo.array_type(shape.dtype, shape.dims)
                made[op.results[0]] = insert_before(b.anchor, type(op), operands, type_, op.loc, op.properties)
                continue
            arrays = operands[: len(operands) - scan.initial]
            initial = operands[-1] if scan.initial else None
            if states:
                initial = _before(b, arrays[-1], scan.axis, states[len(following)])
            done = scans.insert(b, arrays, scan.body, scan.axis, scan.reverse, scan.result, initial)
            made[op.results[0]] = done
            last = 0 if scan.reverse else length - 1
            following.append(b.slice(done, scan.axis, last, last + 1))
        return made, following

    def _shape(self, value: Value, length: int) -> hlo.Shape:
        """Of a range of ``value``."""
        shape, axis = hlo.shape_of(value), self.axes.get(value, -1)
        dims = tuple(length if at == axis else size for at, size in enumerate(shape.dims))
        return hlo.Shape(shape.dtype, dims)


def _dependents(place: Mapping[hlo.HloOp, int], inside: Set[hlo.HloOp], ops: Sequence[hlo.HloOp]) -> list[hlo.HloOp]:
    """The ops between the first and the last of ``ops`` that need results of these, and are none of them."""
    found: dict[hlo.Operation, None] = {}
    for op in islice(place, place[ops[0]], place[ops[-1]]):
        makers = {defining_op(x) for x in op.operands}
        if op not in inside and (not makers.isdisjoint(inside) or not makers.isdisjoint(found)):
            found[op] = None
    return [*found]  # type: ignore[list-item]


def _before(b: Build, like: Value, axis: int, state: Value) -> Value:
    """``state``, [.., 1, ..], at all steps of ``like``."""
    dims = hlo.shape_of(like).dims
    others = [each for each in range(len(dims)) if each != axis]
    return b.broadcast(b.reshape(state, [dims[each] for each in others]), dims, others)


def _is_inside(op: hlo.HloOp, axis: int, scan: Scan) -> bool:
    """Whether ``op`` computes a range of its result, along ``axis``, of the same range of its operands."""
    other = scan_of(op)
    if other is not None:
        return _is_known(op, other) and (other.axis, other.reverse) == (axis, scan.reverse)
    return _operand_axes(op, axis) is not None and not isinstance(op, hlo.ConstantOp)


def _operand_axes(op: hlo.HloOp, axis: int) -> list[int] | None:
    """The dim of time of each operand, -1 where it has none, for that of the result; None where they do not match."""
    if scan_of(op) is not None or isinstance(op, hlo.ElementwiseOp):
        return [axis] * len(op.operands)
    if isinstance(op, hlo.TransposeOp):
        return [op.dimensions.data[axis]]
    if isinstance(op, hlo.BroadcastOp):
        places = op.dimensions.data
        return [places.index(axis) if axis in places else -1]
    if isinstance(op, hlo.ReduceOp) and len(op.operands) == 2:
        kept = [dim for dim in range(hlo.shape_of(op.operands[0]).rank) if dim not in op.dimensions.data]
        return [kept[axis], -1]
    if isinstance(op, hlo.ReshapeOp):
        return _reshaped(op.shape.dims, hlo.shape_of(op.operands[0]).dims, axis)
    return None


def _result_axis(op: hlo.HloOp, operand: Value, axis: int) -> int:
    """The dim of time of the result for that of ``operand``; -1 where it has none."""
    if isinstance(op, hlo.ReshapeOp):
        return next(iter(_reshaped(hlo.shape_of(operand).dims, op.shape.dims, axis) or (-1,)))
    for found in range(op.shape.rank if len(op.results) == 1 and isinstance(op.results[0].type, hlo.ArrayType) else 0):
        axes = _operand_axes(op, found)
        if axes is not None and all(at == axis for x, at in zip(op.operands, axes, strict=True) if x is operand):
            return found
    return -1


def _reshaped(dims: Sequence[int], others: Sequence[int], axis: int) -> list[int] | None:
    """The dim of ``others`` that is dim ``axis`` of ``dims``, an array of as many elements."""
    ahead = prod(dims[:axis])
    for at, size in enumerate(others):
        if size == dims[axis] and prod(others[:at]) == ahead:
            return [at]
    return None


def _wide_users(op: hlo.HloOp, size: int) -> list[hlo.HloOp]:
    """What reads the result of ``op``, if that has ``size`` elements at least."""
    if op.shape.size < size:
        return []
    return [user for user in users(op.results[0]) if isinstance(user, hlo.HloOp)]
