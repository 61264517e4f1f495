"""Gives the core 32-bit words for 64-bit integers: exactly (``--int64 exact``), or cut off (``truncate``).

Input: a flat module (``flatten_control``). Output: no s64 or u64 value but the entry's parameters and results, which
keep their types: they are read and made by ``bitcast-convert`` of their u32 words or, where the low word is all, by
``convert``; and what functions of the host take and give.

Values that provably fit (``analysis.ranges``) become s32 and u32. Exactly, the others become two u32 arrays: what moves
elements is done for each, what computes follows ``passes.wide_integers``. Cut off, only parameters and constants whose
words the program asks for stay whole; what may not fit is warned about (ESFH002).
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, erase, has_dtype, ops_of, replace, retype, values_of, with_dtypes
from neuronx_cc.passes import fold_constants
from neuronx_cc.passes.analysis.intervals import NARROW, inside, is_integer, narrow_range
from neuronx_cc.passes.analysis.ranges import COMBINING, Ranges
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.dce import remove_uncalled
from neuronx_cc.passes.expansions.bodies import split_parameters
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext
from neuronx_cc.passes.wide_integers import combining, elementwise, preparing
from neuronx_cc.passes.wide_integers.arithmetic import Pair
from neuronx_cc.passes.wide_integers.words import Words, flat_types, is_wide, word


def run(module: HloModule, context: PassContext) -> None:
    if not any(has_dtype(value.type, NARROW) for c in module.computations() for value in values_of(c)):
        return
    exact = context.options.int64 == "exact"
    fold_constants.run(module, context)
    preparing.run(module, exact)
    remove_uncalled(module)
    splitter = Splitter(module, Ranges(module, not exact), exact)
    splitter.warnings.of_ops(context)
    for computation in list(module.computations()):
        splitter.computation(computation)
    splitter.warnings.of_values(context)


class Splitter(Words):
    """Rewrites computations, callees first."""

    def __init__(self, module: HloModule, ranges: Ranges, exact: bool):
        super().__init__(module, ranges, exact)
        self.tuples: dict[Value, tuple[Value, list[bool]]] = {}
        """Tuples -> what they have become, and which of their elements are two now."""
        self.appliers: dict[str, hlo.HloOp] = {}
        """Computations on scalars -> the op that applies them."""
        self.loops: dict[str, hlo.HloOp] = {}
        self.branches: dict[str, hlo.HloOp] = {}
        for op in [op for computation in module.computations() for op in ops_of(computation.block)]:
            if isinstance(op, hlo.WhileOp):
                self.loops |= dict.fromkeys((*op.condition.data, *op.body.data), op)
            elif isinstance(op, hlo.ConditionalOp):
                self.branches |= dict.fromkeys(op.branches.data, op)
            elif hasattr(op, "to_apply"):
                self.appliers |= dict.fromkeys(cast(Any, op).to_apply.data, op)
                if isinstance(op, hlo.ReduceOp) and len(op.operands) == 4:
                    self.pairs[op] = combining.kind_of(op, module)
        for name, op in self.appliers.items():
            self.kinds[name] = combining.kind_of(op, module)
            combining.whole_elements(self, op)

    # computations

    def computation(self, computation: hlo.ComputationOp) -> None:
        ops = list(ops_of(computation.block))
        old = self._parameters(computation)
        for op in ops:
            if op in self.done:
                continue
            operands = [operand for operand in op.operands if has_dtype(operand.type, NARROW) or operand in self.tuples]
            if operands or has_dtype(op.results[0].type, NARROW):
                self._op(op)
        self._root(computation)
        while self.dead:
            erase(self.dead.pop())
        for arg in old:
            computation.block.erase_arg(arg)

    def _parameters(self, computation: hlo.ComputationOp) -> list[Any]:
        """The parameters in words; returns those that are to go when nothing uses them any more."""
        block, first = computation.block, computation.block.first_op
        assert first is not None
        name = computation.computation_name
        if computation.is_entry.data:
            for index, arg in enumerate(block.args):
                if is_wide(arg.type) and arg.first_use is not None and (self.exact or arg in self.asked):
                    self.words[arg] = self.given(Build(self.module, first, computation.parameter_loc(index)), arg)
            return []
        if name in self.appliers:
            return (
                self._scalar_parameters(computation) if any(has_dtype(arg.type, NARROW) for arg in block.args) else []
            )
        for arg in block.args:
            if has_dtype(arg.type, NARROW):
                assert isinstance(arg.type, hlo.TupleType)
                whole = self.state(name, arg.type)
                retype(arg, hlo.tuple_type(flat_types(arg.type.data, whole)))
                self.tuples[arg] = (arg, whole)
        return []

    def state(self, key: str | hlo.HloOp, type_: hlo.TupleType) -> list[bool]:
        """Which elements of a tuple that a loop's computations, a branch or an op has are two words."""
        state = self.ranges.states.get(self.loops.get(key, key) if isinstance(key, str) else key)
        whole = []
        for index, part in enumerate(type_.data):
            bound = state[index] if state is not None else None
            dtype = part.data.dtype if isinstance(part, hlo.ArrayType) else ""
            fits = bound is not None and inside(bound, narrow_range(dtype))
            whole.append(dtype in NARROW and self.exact and not fits)
        return whole

    def _scalar_parameters(self, computation: hlo.ComputationOp) -> list[Any]:
        """Two parameters for each whole one; a comparator's come in pairs (left, right) of the same word."""
        args = list(computation.block.args)
        group = 2 if isinstance(self.appliers[computation.computation_name], hlo.SortOp) else 1

        def types(index: int) -> list[hlo.Attribute]:
            first = args[index - index % group]
            whole = is_wide(first.type) and self.is_whole(first)
            return [hlo.array_type("u32", ())] * 2 if whole else [with_dtypes(args[index].type, NARROW)]

        made = split_parameters(computation, group, types)
        for index, arg in enumerate(args):
            if not is_wide(arg.type):
                arg.replace_all_uses_with(made[index][0])
            elif len(made[index]) == 2:
                self.words[arg] = made[index][0], made[index][1]
            else:
                self.short[arg] = made[index][0]
        return list(args)

    def _root(self, computation: hlo.ComputationOp) -> None:
        root, last = computation.root, computation.block.last_op
        assert last is not None
        made = defining_op(root)
        pack = made if isinstance(made, hlo.TupleOp) else None
        values = list(pack.operands) if pack is not None else [root]
        if not any(is_wide(value.type) for value in values):
            return
        b = Build(self.module, last, hlo.loc_of(root))
        if computation.is_entry.data:
            user = pack or last
            b = Build(self.module, user, hlo.loc_of(root))
            user.operands = [self.stored(b, value) if is_wide(value.type) else value for value in values]
        else:
            whole = self._returned(computation, values)
            flat = self.flattened(b, values, whole)
            if pack is not None or len(flat) > 1:
                flat = [b.typed(hlo.TupleOp, flat, hlo.tuple_type(tuple(value.type for value in flat)))]
            last.operands = flat

    def _returned(self, computation: hlo.ComputationOp, values: Sequence[Value]) -> Sequence[bool]:
        """Which results of a computation other than the entry are two words: those that its callers take so."""
        name = computation.computation_name
        if name in self.appliers:
            return combining.whole_elements(self, self.appliers[name])[: len(values)]
        caller = self.branches.get(name) or self.loops[name]
        return self.state(caller, cast(hlo.TupleType, caller.results[0].type))

    # ops

    def _op(self, op: hlo.HloOp) -> None:
        kind = type(op)
        b = Build.before(self.module, op)
        if kind in STRUCTURE:
            STRUCTURE[kind](self, b, op)
        elif isinstance(op, (*COMBINING, hlo.ReducingOp)):
            combining.rewrite(self, b, op)
        elif (result := self._result(b, op)) is None:
            self.dead.append(op)  # a constant, made where it is read
        elif is_wide(op.results[0].type):
            self.becomes(b, op, result)
        else:
            assert not isinstance(result, tuple)
            replace(op, result)

    def _result(self, b: Build, op: hlo.HloOp) -> Pair | Value | None:
        kind = type(op)
        if is_wide(op.results[0].type) and (
            isinstance(op, hlo.ConstantOp) or splat_number(op.results[0], self.module) is not None
        ):
            return None
        bounds = self.ranges.of(op.results[0]) if is_integer(op.results[0]) else (0, 1)
        if isinstance(op, hlo.CompareOp) and bounds[0] == bounds[1]:
            return b.number(bounds[0], "pred", op.shape.dims)
        if isinstance(op, hlo.MovementOp | hlo.ExchangeOp):  # each word depends on the same word of what moves
            start = op.PLACES if isinstance(op, hlo.MovementOp) else None
            places = [] if start is None else [self.saturated(b, x) for x in op.operands[start:]]
            return self._apart(b, op, op.operands[:start], places)
        whole = any(is_wide(x.type) and self.is_whole(x) for x in (*op.operands, op.results[0]))
        if whole or elementwise.needs_words(self, op):
            rule = elementwise.RULES.get(kind)
            if rule is None:
                raise CompileError(
                    "EVRF001",
                    f"{op.opcode} on 64-bit integers is not supported",
                    "compile with --int64 truncate",
                    op.loc,
                )
            return rule(self, b, op)
        return b.typed(
            kind, [self.low(b, x) for x in op.operands], with_dtypes(op.results[0].type, NARROW), **op.properties
        )

    def _apart(self, b: Build, op: hlo.HloOp, operands: Sequence[Value], others: Sequence[Value]) -> Pair | Value:
        """``op`` done for each word where its result is whole; ``others``: operands after, of 32 bits."""
        result = op.results[0]
        if not is_wide(result.type) or not self.is_whole(result):
            taken = [*(self.low(b, x) for x in operands), *others]
            return b.typed(type(op), taken, with_dtypes(result.type, NARROW), **op.properties)
        pairs = [self.pair(b, x) if is_wide(x.type) else (x, x) for x in operands]
        low, high = (
            b.typed(type(op), [*(pair[half] for pair in pairs), *others], word(result.type), **op.properties)
            for half in (0, 1)
        )
        return low, high

    # structure

    def _element(self, b: Build, op: hlo.HloOp) -> None:
        assert isinstance(op, hlo.GetTupleElementOp)
        if op.operand not in self.tuples:  # of what a function of the host gives
            self.words[op.result] = self.given(Build(self.module, cast(Any, op.next_op), op.loc), op.result)
            return
        value, whole = self.tuples[op.operand]
        index = op.index.data
        at = index + sum(whole[:index])
        if whole[index]:
            self.becomes(b, op, (b.element(value, at), b.element(value, at + 1)))
        elif is_wide(op.result.type):
            self.becomes(b, op, b.element(value, at))
        else:
            replace(op, b.element(value, at))

    def _loop(self, b: Build, op: hlo.HloOp) -> None:
        """A loop or branch: each operand that is a tuple is made anew."""
        operands = []
        keys: list[str | hlo.HloOp] = [op]
        if isinstance(op, hlo.ConditionalOp):
            keys += op.branches.data
        for key, operand in zip(keys, op.operands, strict=True):
            made = defining_op(operand)
            if isinstance(made, hlo.TupleOp) and has_dtype(made.results[0].type, NARROW):
                flat = self.flattened(b, made.operands, self.state(key, cast(hlo.TupleType, operand.type)))
                types = hlo.tuple_type(tuple(value.type for value in flat))
                operand = Build(self.module, op, made.loc).typed(hlo.TupleOp, flat, types)
            elif is_wide(operand.type):
                operand = self.saturated(b, operand)
            operands.append(operand)
        self.replace_packed(b, op, operands)

    def replace_packed(self, b: Build, op: hlo.HloOp, operands: Sequence[Value]) -> None:
        """``op`` on other operands; its result is a tuple, from which elements are taken later."""
        type_ = op.results[0].type
        assert isinstance(type_, hlo.TupleType)
        whole = self.state(op, type_)
        made = b.typed(type(op), operands, hlo.tuple_type(flat_types(type_.data, whole)), **op.properties)
        self.tuples[op.results[0]] = made, whole
        self.dead.append(op)

    def pack(self, op: hlo.HloOp) -> None:
        """A tuple with 64-bit elements: whoever takes it makes it anew."""
        if has_dtype(op.results[0].type, NARROW) and op.results[0] is not self.module.entry.root:
            self.dead.append(op)

    def _call(self, b: Build, op: hlo.HloOp) -> None:
        """A function of the host: it takes and gives 64 bits, or what is left of them."""
        if self.exact:
            op.operands = [self.stored(b, x) if is_wide(x.type) else x for x in op.operands]
            return
        self.replace_packed(b, op, [self.low(b, x) for x in op.operands])


STRUCTURE: dict[type, Callable[[Splitter, Build, Any], None]] = {
    hlo.ConditionalOp: Splitter._loop,
    hlo.CustomCallOp: Splitter._call,
    hlo.GetTupleElementOp: Splitter._element,
    hlo.TupleOp: lambda splitter, b, op: splitter.pack(op),
    hlo.WhileOp: Splitter._loop,
}
