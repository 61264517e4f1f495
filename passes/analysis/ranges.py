"""Bounds of every integer value of a module, found by running it on intervals from the entry on.

Loops are run until their state grows no more: bounds that still grow after a few rounds jump to the next power of two
that matters, and what each trip adds to an element is counted where the number of trips shows. The condition holds in
the body. What a computation on scalars (of a reduction, window, scatter, sort) is given are the elements it is applied
to, and what it returns. Nothing here changes the module, which must be flat (``flatten_control``), with computations
that serve one op each.
"""

from collections.abc import Sequence

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import argument_block, defining_op, ops_of
from neuronx_cc.passes.analysis import intervals
from neuronx_cc.passes.analysis.argument_reductions import argument_kind
from neuronx_cc.passes.analysis.devices import device_counts
from neuronx_cc.passes.analysis.intervals import Interval, inside, is_integer, type_range, union
from neuronx_cc.passes.analysis.trip_count import element_of, trip_count
from neuronx_cc.passes.analysis.values import computation_kind, splat_number

State = list[Interval | None]
"""Of a tuple: bounds of its integer elements."""

ROUNDS = 3
"""Runs of a body before what still grows jumps."""
STEPS_PER_OP = 24
"""Visits, for each op of the module, beyond which loops jump at once: those inside others are run again and again."""
MOST = 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1
LEAST = 0, -(2**31), -(2**63)


class Ranges:
    """Bounds before wrapping (``raw``, of ops) and of values (``of``)."""

    def __init__(self, module: HloModule, truncated: bool):
        """``truncated``: 64-bit parameters and whatever leaves 32 bits are taken to have wrapped to 32 bits."""
        self.module = module
        self.limit = intervals.narrow_range if truncated else type_range
        self.raw: dict[hlo.HloOp, Interval] = {}
        self.states: dict[str | hlo.HloOp, State] = {}
        """Bounds of what a loop's computations, or a branch, take as their tuple; and of what an op of several results
        gives."""
        self._known: dict[hlo.SSAValue, Interval] = {}
        self._bodies = {c.computation_name: c for c in module.computations()}
        self._devices = device_counts(module)
        size = sum(1 for c in module.computations() for _ in ops_of(c.block))
        self._left = STEPS_PER_OP * size
        self._run(module.entry)

    def of(self, value: hlo.SSAValue) -> Interval:
        return self._known.get(value) or self.limit(hlo.shape_of(value).dtype)

    # computations

    def _run(self, computation: hlo.ComputationOp) -> None:
        for op in ops_of(computation.block):
            self._left -= 1
            self._visit(op)

    def _visit(self, op: hlo.HloOp) -> None:
        if isinstance(op, hlo.WhileOp):
            self._loop(op)
        elif isinstance(op, hlo.ConditionalOp):
            self._branches(op)
        elif isinstance(op, hlo.GetTupleElementOp):
            self._element(op)
        elif isinstance(op.results[0].type, hlo.TupleType):
            if not isinstance(op, hlo.TupleOp) and type(op) in COMBINING:
                self.states[op] = list(self._combined(op))
        elif is_integer(op.results[0]):
            self._set(op, self._array(op))

    def _array(self, op: hlo.HloOp) -> Interval | None:
        if type(op) in COMBINING:
            return self._combined(op)[0]
        if isinstance(op, hlo.DeviceNumberOp):
            return 0, self._devices[isinstance(op, hlo.PartitionIdOp)] - 1
        if isinstance(op, hlo.ReducingOp):
            devices = max(1, self._devices[0] * self._devices[1])
            kind = computation_kind(self._bodies[op.to_apply.data[0]])
            value = self.of(op.operands[0])
            return intervals.folded(kind, value, value, 0, devices - 1, op.shape.dtype) if kind else None
        if isinstance(op, hlo.CollectivePermuteOp):
            return union([self.of(op.operands[0]), (0, 0)])
        return intervals.bounds(self.of, op, self.module)

    def _set(self, op: hlo.HloOp, found: Interval | None) -> None:
        limit = self.limit(op.shape.dtype)
        if found is None:
            found = type_range(op.shape.dtype)
        if splat_number(op.results[0], self.module) is not None:
            limit = type_range(op.shape.dtype)  # constants stay what they are until they are used
        self.raw[op] = found
        self._known[op.results[0]] = found if inside(found, limit) else limit

    def _fit(self, found: Interval, type_: hlo.Attribute) -> Interval:
        assert isinstance(type_, hlo.ArrayType)
        limit = self.limit(type_.data.dtype)
        return found if inside(found, limit) else limit

    def _element(self, op: hlo.GetTupleElementOp) -> None:
        if not is_integer(op.result):
            return
        block = argument_block(op.operand)
        caller = defining_op(op.operand) if block is None else block.parent_op()
        state: State | None = None
        if isinstance(caller, hlo.ComputationOp):
            state = self.states.get(caller.computation_name)
        elif isinstance(caller, hlo.HloOp):
            state = self.states.get(caller)
        found = state[op.index.data] if state is not None else None
        self._known[op.result] = found or self.limit(op.shape.dtype)

    def _tuple(self, value: hlo.SSAValue) -> State:
        made = defining_op(value)
        assert isinstance(made, hlo.TupleOp), "control flow takes tuples of arrays"
        return [self.of(operand) if is_integer(operand) else None for operand in made.operands]

    # control flow

    def _branches(self, op: hlo.ConditionalOp) -> None:
        found: State | None = None
        for name, operand in zip(op.branches.data, op.operands[1:], strict=True):
            branch = self._bodies[name]
            self.states[name] = self._tuple(operand)
            self._run(branch)
            found = _joined(found, self._tuple(branch.root)) if found is not None else self._tuple(branch.root)
        assert found is not None
        self.states[op] = found

    def _loop(self, op: hlo.WhileOp) -> None:
        """The state of the condition and of the result are ``states[condition]``, that of the body holds it."""
        condition, body = self._bodies[op.condition.data[0]], self._bodies[op.body.data[0]]
        start = self._tuple(op.operand)
        trips = trip_count(op, self.module)
        state, before = start, _nothing(start)
        rounds = 0
        while True:
            self._iterate(condition, body, state, before)
            following, ahead = self._following(body, start, trips)
            if _covers(state, following) and _within(before, ahead):
                break
            rounds += 1
            jump = rounds > ROUNDS or self._left < 0
            state, before = self._grown(state, following, body) if jump else _joined(state, following), ahead
        # once more from what the body gives, which may be less than what was jumped to
        if self._left >= 0 and not _covers(following, state):
            state = following
            self._iterate(condition, body, state, before)
        self.states[op] = self.states[op.condition.data[0]] = state

    def _iterate(self, condition: hlo.ComputationOp, body: hlo.ComputationOp, state: State, before: State) -> None:
        """Run both on ``state``; ``before``: tighter bounds of elements that the body takes."""
        self.states[condition.computation_name] = state
        self._run(condition)
        held = self._held(condition, condition.root, list(state))
        for index, (bound, tighter) in enumerate(zip(held, before, strict=True)):
            if bound is not None and tighter is not None and inside(tighter, bound):
                held[index] = tighter
        self.states[body.computation_name] = held
        self._run(body)

    def _following(self, body: hlo.ComputationOp, start: State, trips: int | None) -> tuple[State, State]:
        """Bounds of the state after the body, and for elements to which each of ``trips`` adds something, ahead of it.

        Such an element is the sum of at most so many additions, and at most one less ahead of the last.
        """
        root = defining_op(body.root)
        assert isinstance(root, hlo.TupleOp)
        found, ahead = self._tuple(body.root), _nothing(start)
        for index, (value, first) in enumerate(zip(root.operands, start, strict=True)):
            step = self._step(value, index, body) if trips is not None and first is not None else None
            if step is None or first is None or trips is None:
                continue
            dtype = hlo.shape_of(value).dtype
            whole = intervals.folded("add", step, first, 0, trips, dtype)
            if inside(whole, self.limit(dtype)):
                found[index] = whole
                ahead[index] = intervals.folded("add", step, first, 0, max(trips - 1, 0), dtype)
        return _joined(start, found), ahead

    def _held(self, condition: hlo.ComputationOp, value: hlo.SSAValue, state: State) -> State:
        """``state`` where ``value``, a comparison of its elements or several such, holds."""
        op = defining_op(value)
        if isinstance(op, hlo.AndOp):
            return self._held(condition, op.rhs, self._held(condition, op.lhs, state))
        if isinstance(op, hlo.CompareOp) and is_integer(op.lhs):
            direction = op.direction.data
            for side, other, way in ((op.lhs, op.rhs, direction), (op.rhs, op.lhs, intervals.MIRRORED[direction])):
                index = element_of(side, condition)
                if index is not None:
                    bound = state[index]
                    assert bound is not None
                    state[index] = intervals.refined(bound, self.of(other), way)
        return state

    def _step(self, value: hlo.SSAValue, index: int, body: hlo.ComputationOp) -> Interval | None:
        op = defining_op(value)
        if isinstance(op, hlo.AddOp):
            for own, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
                if element_of(own, body) == index:
                    return self.of(other)
        if isinstance(op, hlo.SubtractOp) and element_of(op.lhs, body) == index:
            low, high = self.of(op.rhs)
            return -high, -low
        return None

    def _grown(self, state: State, following: State, body: hlo.ComputationOp) -> State:
        """Both, with the ends that are new moved as far as the next of the ends that matter, or as far as can be."""
        grown: State = []
        type_ = body.block.args[0].type
        assert isinstance(type_, hlo.TupleType)
        for old, new, part in zip(state, following, type_.data, strict=True):
            if old is None or new is None:
                grown.append(None)
                continue
            ends = (LEAST, MOST) if self._left >= 0 else ((-(2**64),), (2**64,))
            low = old[0] if new[0] >= old[0] else max((x for x in ends[0] if x <= new[0]), default=new[0])
            high = old[1] if new[1] <= old[1] else min((x for x in ends[1] if x >= new[1]), default=new[1])
            grown.append(self._fit((low, high), part))
        return grown

    # computations on scalars

    def _combined(self, op: hlo.HloOp) -> State:
        """Bounds of each result; what the op's computation takes is set on the way."""
        body = self._bodies[op.to_apply.data[0]]  # type: ignore[attr-defined]
        if isinstance(op, hlo.SortOp):
            taken = [self._bound(x) for x in op.operands]
            self._apply(body, [bound for bound in taken for _ in range(2)])
            return taken
        if isinstance(op, hlo.ScatterOp):
            count = len(op.operands) // 2
            pairs = list(zip(op.operands[:count], op.operands[count + 1 :], strict=True))
            least, most = 0, 1
            if len(pairs) == 1 and computation_kind(body) == "add":
                most = hlo.shape_of(op.operands[2]).size
            firsts, others = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        else:
            count = len(op.operands) // 2
            firsts, others = list(op.operands[count:]), list(op.operands[:count])
            least, most = self._elements(op)
        if count == 1 and (kind := computation_kind(body)) and is_integer(firsts[0]):
            dtype = hlo.shape_of(firsts[0]).dtype
            return [intervals.folded(kind, self.of(others[0]), self.of(firsts[0]), least, most, dtype)]
        joined = [
            union([self.of(first), self.of(other)]) if is_integer(first) else None
            for first, other in zip(firsts, others, strict=True)
        ]
        if isinstance(op, hlo.ReduceOp) and argument_kind(op, self.module):
            values = [
                self._bound(other) if least and place == 0 else joined[place] for place, other in enumerate(others)
            ]
            self._apply(body, values * 2)
            return values
        results = self._apply(body, joined * 2)
        if not _covers(joined, results):
            types = [arg.type for arg in body.block.args[:count]]
            joined = [
                None if x is None else self._fit((-(2**64), 2**64), t) for x, t in zip(joined, types, strict=True)
            ]
            self._apply(body, joined * 2)
        return joined

    def _elements(self, op: hlo.HloOp) -> Interval:
        """Least and largest number of elements that a result is folded of."""
        dims = hlo.shape_of(op.operands[0]).dims
        count = 1
        if isinstance(op, hlo.ReduceOp):
            for axis in op.dimensions.data:
                count *= dims[axis]
            return count, count
        assert isinstance(op, hlo.ReduceWindowOp)
        always = True
        for dim in op.window.data:
            count *= dim.size
            plain = dim.lhs_dilation == dim.rhs_dilation == 1
            always = always and plain and max(dim.pad_low, dim.pad_high) < dim.size
        return int(always), count

    def _bound(self, value: hlo.SSAValue) -> Interval | None:
        return self.of(value) if is_integer(value) else None

    def _apply(self, body: hlo.ComputationOp, bounds: Sequence[Interval | None]) -> State:
        for arg, bound in zip(body.block.args, bounds, strict=True):
            if bound is not None:
                self._known[arg] = bound
        self._run(body)
        root = defining_op(body.root)
        roots = root.operands if isinstance(root, hlo.TupleOp) else [body.root]
        return [self._bound(value) for value in roots]


COMBINING = (hlo.ReduceOp, hlo.ReduceWindowOp, hlo.ScatterOp, hlo.SortOp)


def _nothing(state: State) -> State:
    return [None] * len(state)


def _joined(one: State, other: State) -> State:
    return [union([a, b]) if a is not None and b is not None else None for a, b in zip(one, other, strict=True)]


def _covers(outer: State, inner: State) -> bool:
    return all(a is None or b is None or inside(b, a) for a, b in zip(outer, inner, strict=True))


def _within(used: State, found: State) -> bool:
    """Whether what was taken to hold holds: elements without a bound were not bounded."""
    return all(a is None or (b is not None and inside(b, a)) for a, b in zip(used, found, strict=True))
