"""Values of a chain that are an array times, and plus, numbers of its rows, so that one instruction makes them.

Softmax and its gradient have such: ``exp(x * factor - most)``, and ``(x - delta) / sums`` times exponentials. Factors
of rows leave the sums of these, and positive constants the greatest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neuronx_cc.codegen.chains.bands import needless_selects
from neuronx_cc.codegen.chains.pattern import Chain, made_by
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.formation.graph import base, computes_elementwise, is_view, reads, squeeze
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.hlo.editing import copy_op, erase, ops_of, users
from neuronx_cc.ir.hlo.editing import replace as replace_op
from neuronx_cc.passes.expansions.build import Build

Value = hlo.SSAValue


class Number(NamedTuple):
    """``constant`` times a value with one element a row, if there is one."""

    constant: float = 1.0
    row: Value | None = None


ONE = Number()


@dataclass(frozen=True, slots=True)
class Linear:
    """``array * factor + summand``, computed by so many ``ops``."""

    array: Value
    factor: Number = ONE
    summand: Number | None = None
    ops: int = 0


def simpler(context: Context, chain: Chain) -> Chain:
    """``chain``, whose ops nothing else reads, with fewer passes over its arrays."""
    rewrite = _Rewrite(context, chain)
    for select, value in needless_selects(context, chain):
        replace_op(select, value)
    chain = replace(chain, inner=tuple(op for op in chain.inner if op.parent is not None))
    for op in chain.inner:
        if isinstance(op, hlo.ReduceOp) and op.shape.dtype == "f32":
            rewrite.fold(op)
    for op in reversed(chain.inner):
        if op.parent is not None and not isinstance(op, hlo.ReduceOp):
            rewrite.root(op)
    return rewrite.ordered()


class _Rewrite:
    """Changes the ops of one chain."""

    def __init__(self, context: Context, chain: Chain) -> None:
        self._context, self._chain, self._dims = context, chain, chain.dims
        self._given = set(chain.read)
        self._inverses: dict[Value, Value] = {}
        block = chain.sources[0].parent
        assert block is not None
        self._before = set(ops_of(block))
        own = set(chain.ops)
        self._readers = [op for x in chain.stored for op in (use.operation for use in reads(x)) if op not in own]

    def fold(self, op: hlo.ReduceOp) -> None:
        """Let factors of rows follow their sum, or positive ones of all their greatest."""
        combiner, product = self._context.combiners[op.to_apply.data[0]], op.operands[0].owner
        if combiner == "maximum":
            inner = self._linear(op.operands[0])
            if inner.ops and inner.summand is None and inner.factor.row is None and inner.factor.constant > 0:
                self._refold(op, inner.array, inner.factor)
        elif combiner == "add" and isinstance(product, hlo.MultiplyOp) and self._is_alone(op.operands[0]):
            one, other = (self._linear(x, inner=True) for x in product.operands)
            factor = self._times(Build.before(self._context.module, op), one.factor, other.factor)
            if one.summand is other.summand is None and factor.row is not None:
                build = Build.before(self._context.module, op)
                pair = (build.reshape(x.array, product.shape.dims) for x in (one, other))
                self._refold(op, build.mul(*pair), factor)

    def _refold(self, op: hlo.ReduceOp, array: Value, factor: Number) -> None:
        """``op`` of ``array``, times ``factor``."""
        build = Build.before(self._context.module, op)
        array = build.reshape(array, hlo.shape_of(op.operands[0]).dims)
        fold, block = copy_op(op, (array, op.operands[1])), op.parent
        assert block is not None
        block.insert_op_before(fold, op)
        made = self._times(build, Number(row=self._row(build, fold.results[0])), factor)
        op.result.replace_all_uses_with(build.reshape(self._made(build, made), op.shape.dims))
        erase(op)

    def root(self, op: hlo.HloOp) -> None:
        """Rewrite what several ops compute of one array and numbers of its rows."""
        found = self._linear(op.results[0])
        if found.ops == 1 and isinstance(op, hlo.MultiplyOp) and found.factor.row is None:
            self._scale_one(op, found)
            return
        alone = isinstance(op, hlo.DivideOp) or (isinstance(op, hlo.SubtractOp) and self._is_exponent(op))
        if found.ops < 2 and not (found.ops and alone):
            return
        build, value = Build.before(self._context.module, op), found.array
        if found.factor != ONE:
            value = build.mul(value, self._wide(build, found.factor, value))
        if found.summand is not None:
            value = build.add(value, self._wide(build, found.summand, value))
        op.results[0].replace_all_uses_with(build.reshape(value, op.shape.dims))

    @staticmethod
    def _is_exponent(op: hlo.HloOp) -> bool:
        return all(isinstance(use.operation, hlo.ExponentialOp) for use in reads(op.results[0]))

    def _scale_one(self, op: hlo.HloOp, found: Linear) -> None:
        """A constant times a product of arrays: times that of them which is linear in another."""
        product = found.array.owner
        if not isinstance(product, hlo.MultiplyOp) or not self._is_alone(found.array):
            return
        for one, other in (product.operands, reversed(product.operands)):
            if self._linear(one, inner=True).ops:
                build = Build.before(self._context.module, op)
                scaled = build.mul(one, self._wide(build, found.factor, one))
                value = build.mul(scaled, build.reshape(other, hlo.shape_of(one).dims))
                op.results[0].replace_all_uses_with(build.reshape(value, op.shape.dims))
                made = scaled.owner
                assert isinstance(made, hlo.HloOp)
                self.root(made)
                return

    def ordered(self) -> Chain:
        """All that leads to the last contractions, in the order of the program; what nothing reads is erased."""
        made, waiting = set[hlo.HloOp](), [sink.value for sink in self._chain.sinks]
        own = {op for op in self._chain.inner if op.parent is not None}
        read = (base(x) for op in self._readers for x in op.operands)
        waiting += (x for x in read if x.owner in own or x.owner not in self._before)
        while waiting:
            value = made_by(waiting.pop(), self._dims)
            op = value.owner
            if value in self._given or not isinstance(op, hlo.HloOp) or op in made:
                continue
            if isinstance(op, hlo.ReduceOp) or computes_elementwise(op):
                made.add(op)
                waiting += op.operands
        block = self._chain.sources[0].parent
        assert block is not None
        self._erase([op for op in ops_of(block) if op not in self._before or op in self._chain.inner])
        return replace(self._chain, inner=tuple(op for op in ops_of(block) if op in made))

    @staticmethod
    def _erase(ops: Sequence[hlo.HloOp]) -> None:
        """Those of ``ops`` that nothing reads, and what they alone read through views."""
        waiting = list(ops)
        while waiting:
            op = waiting.pop()
            if op.parent is not None and not users(op.results[0]):
                waiting += [x.owner for x in op.operands if isinstance(x.owner, hlo.HloOp) and is_view(x.owner)]
                erase(op)

    # ---- what values are -------------------------------------------------------------------------------------------

    def _linear(self, value: Value, inner: bool = False) -> Linear:
        """``value`` of the array that it is computed of; an ``inner`` one that others read as well is one itself."""
        value = made_by(value, self._dims)
        op = value.owner
        wide = hlo.shape_of(value).dtype == "f32" and squeeze(hlo.shape_of(value).dims) == self._dims
        if value in self._given or not wide or (inner and not self._is_alone(value)):
            return Linear(value)
        if isinstance(op, hlo.NegateOp):
            return self._scaled(op, 0, Number(-1.0))
        if not isinstance(op, hlo.MultiplyOp | hlo.DivideOp | hlo.AddOp | hlo.SubtractOp):
            return Linear(value)
        numbers = [self._number(op, x) for x in op.operands]
        for place in (0, 1):
            number = numbers[1 - place]
            if number is None or numbers[place] is not None:
                continue
            if isinstance(op, hlo.MultiplyOp):
                return self._scaled(op, place, number)
            if isinstance(op, hlo.DivideOp) and place == 0 and number.row is not None:
                return self._scaled(op, place, Number(1 / number.constant, self._inverse(number.row)))
            if isinstance(op, hlo.AddOp | hlo.SubtractOp) and number.row is not None:
                minus = [isinstance(op, hlo.SubtractOp) and at == 1 for at in (place, 1 - place)]
                found = self._scaled(op, place, Number(-1.0 if minus[0] else 1.0))
                return self._plus(op, found, number._replace(constant=number.constant * (-1) ** minus[1]))
        return Linear(value)

    def _scaled(self, op: hlo.HloOp, place: int, number: Number) -> Linear:
        """Operand ``place`` of ``op`` times ``number``."""
        found, build = self._linear(op.operands[place], inner=True), Build.before(self._context.module, op)
        factor = self._times(build, found.factor, number)
        summand = None if found.summand is None else self._times(build, found.summand, number)
        return Linear(found.array, factor, summand, found.ops + 1)

    def _plus(self, op: hlo.HloOp, found: Linear, number: Number) -> Linear:
        if found.summand is None:
            return replace(found, summand=number)
        build = Build.before(self._context.module, op)
        return replace(found, summand=Number(row=build.add(*(self._made(build, x) for x in (found.summand, number)))))

    def _is_alone(self, value: Value) -> bool:
        return len(reads(value)) == 1

    def _number(self, op: hlo.HloOp, value: Value) -> Number | None:
        """What ``op`` reads, if it is a constant or has one element a row."""
        splat, made = self._context.splat(value), made_by(value, self._dims)
        if splat is not None:
            return Number(splat) if splat else None
        if hlo.shape_of(made).dtype != "f32" or squeeze(hlo.shape_of(made).dims) != self._dims[:-1]:
            return None
        return self._signed(Build.before(self._context.module, op), made)

    def _signed(self, build: Build, row: Value) -> Number:
        """``row`` without what it is multiplied with everywhere."""
        op = row.owner
        if isinstance(op, hlo.SubtractOp) and self._context.splat(op.operands[0]) == 0:
            return self._times(build, Number(-1.0), self._signed(build, made_by(op.operands[1], self._dims)))
        if isinstance(op, hlo.MultiplyOp):
            for place in (0, 1):
                splat = self._context.splat(op.operands[1 - place])
                if splat:
                    inner = self._signed(build, made_by(op.operands[place], self._dims))
                    return self._times(build, Number(splat), inner)
        return Number(row=self._row(build, row))

    def _inverse(self, row: Value) -> Value:
        """One by ``row``, once for all; by a product, the product of these."""
        made = made_by(row, self._dims)
        if made not in self._inverses:
            op = made.owner
            anchor = op.next_op if isinstance(op, hlo.HloOp) else self._chain.sources[0]
            assert anchor is not None, "others follow"
            build = Build(self._context.module, anchor, self._chain.sources[0].loc)
            if isinstance(op, hlo.MultiplyOp) and made not in self._given:
                one, other = (self._inverse(x) for x in op.operands)
                self._inverses[made] = build.mul(one, other)
            else:
                own = self._row(build, made)
                self._inverses[made] = build.div(build.number_like(1.0, own), own)
        return self._inverses[made]

    # ---- building --------------------------------------------------------------------------------------------------

    def _row(self, build: Build, value: Value) -> Value:
        return build.reshape(value, self._dims[:-1])

    @staticmethod
    def _times(build: Build, one: Number, other: Number) -> Number:
        rows = [number.row for number in (one, other) if number.row is not None]
        return Number(one.constant * other.constant, build.mul(*rows) if len(rows) == 2 else rows[0] if rows else None)

    @staticmethod
    def _made(build: Build, number: Number) -> Value:
        """A row of ``number``; what folds make comes last, for which others wait."""
        value, constant = number.row, number.constant
        assert value is not None, "constants are splats"
        if constant == 1.0:
            return value
        made = value.owner
        if isinstance(made, hlo.MultiplyOp) and any(isinstance(base(x).owner, hlo.ReduceOp) for x in made.operands):
            late, early = sorted(made.operands, key=lambda x: not isinstance(base(x).owner, hlo.ReduceOp))
            return build.mul(late, build.mul(early, build.number_like(constant, early)))
        return build.mul(value, build.number_like(constant, value))

    def _wide(self, build: Build, number: Number, like: Value) -> Value:
        """``number`` repeated along the rows of ``like``."""
        dims = hlo.shape_of(like).dims
        if number.row is None:
            return build.number(number.constant, "f32", dims)
        kept = [axis for axis, size in enumerate(dims) if size != 1]
        return build.broadcast(self._made(build, number), dims, kept[:-1])
