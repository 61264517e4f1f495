"""Loops and branches: regions of the instruction stream around the kernels of the called computations.

The state of a loop has homes for as long as it runs. An element that the body hands on unchanged stays where it is. For
every other there is one buffer: the body reads it, and at the end of the iteration the new value is in it. A kernel
writes it there itself when nothing later in the body reads the old value (an elementwise one, of a large array, also
when it reads the old value itself); what updates the old value in place (``dynamic-update-slice``, an inner loop) needs
no copy at all; the rest is copied at the end, all at once. A counter that only says where windows start has no home at
all.

The condition is computed before the loop and at the end of each iteration; the sync engine loads it into the register
that decides the region. A loop whose trip count is known needs neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Protocol

from neuronx_cc.codegen import parts
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.control import counters
from neuronx_cc.codegen.control.residence import (
    assign,
    contracted_states,
    given_homes,
    make_identities,
    origin,
    result_home,
    state_home,
)
from neuronx_cc.codegen.dots.resident import kept
from neuronx_cc.codegen.emission.builder import Affine
from neuronx_cc.codegen.emission.iterations import iterations
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.codegen.formation.graph import base
from neuronx_cc.codegen.left import State
from neuronx_cc.codegen.movement.concatenate_kernel import put
from neuronx_cc.codegen.sharing import is_free
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import DECIDER, Branch, While
from neuronx_cc.passes.analysis.trip_count import Count, count


class Lowered(parts.Lowered, Protocol):
    """A computation as kernels (``blocks.Block``)."""

    def note_uses(self, results: Sequence[hlo.SSAValue]) -> None: ...
    def overwrites(self, old: hlo.SSAValue, result: hlo.SSAValue) -> bool: ...
    def lower(self) -> None: ...


class Former(Protocol):
    """Forms the kernels of a computation, but of the ops ``without``."""

    def __call__(
        self, context: Context, computation: hlo.ComputationOp, without: Set[hlo.Operation] = frozenset()
    ) -> Lowered: ...


def lower_while(context: Context, op: hlo.WhileOp, step: int, name: str, form: Former) -> None:
    """Emit the loop, and give the elements of its result homes."""
    module = context.module
    body, condition = module.computation(op.body.data[0]), module.computation(op.condition.data[0])
    initial = _packed(op.operand)
    after = context.elements(op.result)
    counting = count(op, module)
    trips = None if counting is None else counting.trips
    register = context.builder.new_register()
    inner = _Body(context, body, name, form)
    if counting is not None and counting.trips > 0:
        inner.count(counting, register, counting.index in after)
    inner.pass_on(initial)
    homes: list[list[View]] = []
    filled: set[int] = set()
    handed = Counter(base(value) for value in initial)
    changed, contracted = frozenset(inner.carried), contracted_states(context, op)
    for index, value in enumerate(initial):
        if index in inner.dropped:
            homes.append([])
        elif index in changed and trips != 0:
            dead = context.last_use(value) <= step and handed[base(value)] == 1
            if inner.fills(index, trips):
                filled.add(index)
            found, fills = after.get(index, []), index in filled
            homes.append([state_home(context, op, index, found, value, dead, fills, contracted)])
        else:
            homes.append(given_homes(context, op, index, value, trips))
            for element in after.get(index, ()):
                context.lies_within(element, value)
    if trips != 0:
        make_identities(context, body)
    if trips is None:
        _decide(context, condition, homes, register, f"{name}.condition", form)
    if trips != 0:
        with kept(context, op, homes, inner.carried, trips), _repeated(context, register, trips):
            start = len(context.builder.program.records)
            inner.lower(homes)
            if trips is None:
                _decide(context, condition, homes, register, f"{name}.condition", form)
        if context.left is not None and not context.prefix:
            views = {index: homes[index][0] for index in inner.carried}
            context.left.append(State(_first(context, start, register), op, views, filled))
    context.builder.release_register(register)
    for index, found in after.items():
        for element in found:
            context.homes[element] = list(homes[index])


def _repeated(context: Context, register: int, trips: int | None) -> AbstractContextManager[None]:
    """Around the body of a loop: iterations that may overlap where their number is known."""
    if trips is None or trips < 2:
        return context.builder.region(While(register, trips or 0))
    others = context.recovery.count  # what is done otherwise is a region of its own
    return iterations(context.builder, trips, register, lambda: context.recovery.count == others)


def _first(context: Context, start: int, register: int) -> int:
    """The first record of an iteration emitted from ``start`` on: iterations that overlap are in one region."""
    region = context.builder.program.records[start - 1]
    return start + (isinstance(region, While) and region.register != register)


def _packed(value: hlo.SSAValue) -> list[hlo.SSAValue]:
    assert isinstance(value, hlo.OpResult)
    assert isinstance(value.op, hlo.TupleOp), "flatten_control left another form"
    return list(value.op.operands)


def _bind(context: Context, computation: hlo.ComputationOp, homes: Sequence[Sequence[View]]) -> None:
    for index, found in context.elements(computation.block.args[0]).items():
        for element in found:
            context.homes[element] = list(homes[index])


def _decide(
    context: Context,
    condition: hlo.ComputationOp,
    homes: Sequence[Sequence[View]],
    register: int,
    name: str,
    form: Former,
) -> None:
    """Compute the condition and load it into the register that decides."""
    with context.scope(name):
        _bind(context, condition, homes)
        block = form(context, condition)
        block.note_uses([condition.root])
        block.lower()
        context.builder.at(name, hlo.loc_of(condition.root))
        context.builder.load_register(context.views(condition.root)[0], 0, 1, DECIDER, register)


class _Body:
    """The body of a loop: which elements of the state it changes, and its emission."""

    def __init__(self, context: Context, computation: hlo.ComputationOp, name: str, form: Former) -> None:
        self.context, self.computation, self.name, self.form = context, computation, name, form
        self.results = _packed(computation.root)
        self.old = context.elements(computation.block.args[0])
        self.carried = [i for i, result in enumerate(self.results) if result not in self.old.get(i, ())]
        """Elements that have a buffer of the loop."""
        self.dropped: set[int] = set()
        """Elements that need no home at all: the counter, when only addresses depend on it."""
        self.without: set[hlo.Operation] = set()

    def count(self, counting: Count, register: int, used_after: bool) -> None:
        """The loop counts in ``register``: note what is affine in it, and what need not be computed for that."""
        context, index = self.context, counting.index
        context.builder.sync.register_range[register] = counting.trips
        for element in self.old.get(index, ()):
            context.counted[element] = Affine(counting.start, ((register, counting.step),))
        counters.note(context, self.computation)
        result = self.results[index]
        alone = not used_after and self.results.count(result) == 1
        self.without = counters.unneeded(context, self.computation, result if alone else None)
        if alone and all(element.owner in self.without for element in self.old.get(index, ())):
            self.dropped.add(index)
            self.carried.remove(index)
        elif alone:
            self.without = counters.unneeded(context, self.computation, None)

    def fills(self, index: int, trips: int | None) -> bool:
        """Whether the iterations write all of element ``index``, window by window, and read nothing of it."""
        op = parts.update_of(self.context, self.old.get(index, ()), self.results[index])
        return op is not None and trips is not None and counters.covers(self.context, op, trips)

    def pass_on(self, initial: Sequence[hlo.SSAValue]) -> None:
        """What is affine in the counts of loops around this one stays so inside."""
        found = False
        changed = frozenset(self.carried)
        for index, value in enumerate(initial):
            if index not in changed and value in self.context.counted:
                for element in self.old.get(index, ()):
                    self.context.counted[element] = self.context.counted[value]
                    found = True
        if found:
            counters.note(self.context, self.computation)

    def lower(self, homes: Sequence[Sequence[View]]) -> None:
        """Emit one iteration, which leaves the new state in ``homes``."""
        context, results = self.context, self.results
        counts = Counter(results)
        with context.scope(self.name):
            _bind(context, self.computation, homes)
            for index in self.carried:
                for element in self.old.get(index, ()):
                    context.carried[element] = homes[index][0]
            block = self.form(context, self.computation, self.without)
            block.note_uses([result for index, result in enumerate(results) if index not in self.dropped])
            for index in self.carried:
                made, result, home = block.step_of(results[index]), results[index], homes[index][0]

                def meets(old: hlo.SSAValue, result: hlo.SSAValue = result, home: View = home) -> bool:
                    return not home.in_sbuf and block.overwrites(old, result)

                free = all(is_free(context, old, made, {result}, meets) for old in self.old.get(index, ()))
                if made >= 0 and free and counts[result] == 1:
                    context.outputs[result] = home
                update = parts.update_of(context, self.old.get(index, ()), result)
                if update is not None and not home.in_sbuf:
                    parts.stack(context, block, home, update)
            block.lower()
            context.builder.at(f"{self.name}/state", hlo.loc_of(self.computation.root))
            write_back(context, [(results[index], homes[index][0]) for index in self.carried])


def write_back(context: Context, pairs: Sequence[tuple[hlo.SSAValue, View]]) -> None:
    """Let every value be in its home, all at once: what lies in a buffer that is written goes aside first."""
    pending = [(value, home) for value, home in pairs if hlo.shape_of(value).size and not context.lies_in(value, home)]
    written = {home.alloc for _, home in pending}
    aside: dict[int, View] = {}
    for place, (value, _) in enumerate(pending):
        inside = context.splat(value) is None and any(view.alloc in written for view in context.views(value))
        if inside:
            aside[place] = context.own_hbm(value, hlo.shape_of(value))
            put(context, aside[place], value)
    for place, (value, home) in enumerate(pending):
        if place in aside:
            context.homes[value] = [aside[place]]
        assign(context, home, value)


def lower_conditional(context: Context, op: hlo.ConditionalOp, step: int, name: str, form: Former) -> None:
    """Emit the branches as cases of one region, and give the elements of the result homes.

    A result that some branch hands on or updates in place takes over the buffer of the operand, if that is dead.
    """
    selector, *operands = op.operands
    after = context.elements(op.result)
    branches = [
        (context.module.computation(branch), _packed(operand))
        for branch, operand in zip(op.branches.data, operands, strict=True)
    ]
    if hlo.shape_of(selector).dtype == "pred":
        branches.reverse()  # the first branch is for true
    taken = _taken_over(context, branches, after, step)
    targets = {index: view for index, (_, view) in taken.items()}
    for index, found in after.items():
        for element in found:
            context.lies_within(element, found[0])
        if index not in targets:
            targets[index] = result_home(context, found)
    homes = [[list(context.views(value)) for value in values] for _, values in branches]
    register = context.builder.load_register(context.views(selector)[0], 0, len(branches) - 1, DECIDER)
    with context.builder.region(Branch(register, len(branches))):
        for case, (branch, values) in enumerate(branches):
            if case:
                context.builder.next_case()
            lent = {values.index(value): view for value, view in taken.values() if value in values}
            _case(context, branch, homes[case], lent, targets, f"{name}.{branch.computation_name}", form)
    context.builder.release_register(register)
    for index, (value, _) in taken.items():
        context.adopt(after[index][0], value)
    for index, found in after.items():
        for element in found:
            context.homes[element] = [targets[index]]


Branches = Sequence[tuple[hlo.ComputationOp, list[hlo.SSAValue]]]
"""Each branch with the elements of its operand."""


def _taken_over(
    context: Context, branches: Branches, after: Mapping[int, Sequence[hlo.SSAValue]], step: int
) -> dict[int, tuple[hlo.SSAValue, View]]:
    """Result -> the dead value whose buffer it takes over, and the buffer."""
    found: dict[int, tuple[hlo.SSAValue, View]] = {}
    given: set[hlo.SSAValue] = set()
    handed = [Counter(base(each) for each in values) for _, values in branches]
    for index, users in after.items():
        sources = [(values, origin(branch, index)) for branch, values in branches]
        value = next((values[place] for values, place in sources if place is not None), None)
        if value is None or users[0] in context.outputs or context.last_use(value) > step:
            continue
        if value in given or any(counts[base(value)] > 1 for counts in handed):
            continue
        lent = context.carried.get(value)
        own = [view for view in context.homes.get(value, ()) if context.may_overwrite(value, view)]
        view = lent if lent is not None else next(iter(own), None)
        if view is not None and base(value) is value and value not in context.outputs:
            found[index] = (value, view)
            given.add(value)
    return found


def _case(
    context: Context,
    branch: hlo.ComputationOp,
    homes: Sequence[Sequence[View]],
    lent: Mapping[int, View],
    targets: Mapping[int, View],
    name: str,
    form: Former,
) -> None:
    """Emit one branch, which leaves its results in ``targets``; it may overwrite the elements ``lent`` to it."""
    results = _packed(branch.root)
    old = context.elements(branch.block.args[0])
    with context.scope(name):
        _bind(context, branch, homes)
        for index, view in lent.items():
            for element in old.get(index, ()):
                context.homes[element] = [view]
                context.carried[element] = view
        block = form(context, branch)
        block.note_uses([results[index] for index in targets])
        counts = Counter(results[index] for index in targets)
        for index, target in targets.items():
            readers = [e for place, view in lent.items() if view.alloc is target.alloc for e in old.get(place, ())]
            result = results[index]
            made = block.step_of(result)
            free = all(is_free(context, reader, made, {result}, lambda value: False) for reader in readers)
            if made >= 0 and free and counts[result] == 1:
                context.outputs[result] = target
        block.lower()
        context.builder.at(f"{name}/results", hlo.loc_of(branch.root))
        write_back(context, [(results[index], target) for index, target in targets.items()])
