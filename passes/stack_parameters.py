"""What layers make of small parameters of theirs, such as batch norms of running statistics, is made once for all.

Input: hlo without constants to fold. Output: elementwise ops of vectors that are parameters or constants, whose results
are read as columns of larger arrays, are computed side by side where several sets of such ops are alike but for the
vectors' lengths: each vector is a part of one array, and what is read a slice. A kernel for each set would take the
latency of its transfers and of a handful of instructions, and vectors that lie across partitions come element by
element.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.analysis.values import constant_of, splat_of
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext

LEAST_OPS = 2
"""Of a set: one is done where its result is read."""


def run(module: HloModule, context: PassContext) -> None:
    alike: dict[Hashable, list[_Set]] = {}
    for each in _sets(module):
        if len(each.ops) >= LEAST_OPS and each.is_read_as_columns():
            alike.setdefault(each.key(module), []).append(each)
    place = {op: at for at, op in enumerate(ops_of(module.entry.block))}
    for sets in alike.values():
        if len(sets) > 1:
            _stack(module, sets, min((op for each in sets for op in each.ops), key=place.__getitem__))


@dataclass(eq=False, slots=True)
class _Set:
    """Ops that are connected, in order; they read ``leaves`` and constants."""

    ops: deque[hlo.HloOp] = field(default_factory=deque)
    leaves: dict[Value, None] = field(default_factory=dict)

    def join(self, other: _Set) -> _Set:
        """One set of both, the ops of ``other`` last, in the time of the smaller one."""
        if len(self.ops) < len(other.ops):
            other.ops.extendleft(reversed(self.ops))
            return other
        self.ops += other.ops
        return self

    @property
    def size(self) -> int:
        return self.ops[0].shape.size

    def read(self) -> Iterator[hlo.HloOp]:
        """Those whose results others read."""
        inside = set(self.ops)
        return (op for op in self.ops if any(use.operation not in inside for use in op.results[0].uses))

    def is_read_as_columns(self) -> bool:
        inside, kinds = set(self.ops), (hlo.BroadcastOp, hlo.ReshapeOp)
        users = {use.operation for op in self.ops for use in op.results[0].uses} - inside
        return bool(users) and all(isinstance(user, kinds) for user in users)

    def key(self, module: HloModule) -> Hashable:
        """Equal for sets that do the same, and have the same results read."""
        number: dict[Value, Hashable] = {leaf: ("leaf", at) for at, leaf in enumerate(self.leaves)}
        number |= {op.results[0]: ("op", at) for at, op in enumerate(self.ops)}
        found = []
        for op in self.ops:
            operands = tuple(number.get(value) or ("splat", _number(value, module)) for value in op.sources)
            found.append((type(op), operands, tuple(sorted(op.properties.items(), key=lambda pair: pair[0]))))
        return tuple(found), tuple(number[op.results[0]] for op in self.read())


def _sets(module: HloModule) -> Iterable[_Set]:
    block = module.entry.block
    member = dict[Value, _Set]()

    def given(value: Value) -> bool:
        return value.owner is block or isinstance(value.owner, hlo.ConstantOp)

    for op in ops_of(block):
        if not isinstance(op, hlo.ElementwiseOp) or not isinstance(op.results[0].type, hlo.ArrayType):
            continue
        arrays = [value for value in op.sources if splat_of(value, module) is None]
        whole = (op.shape.dtype, op.shape.rank) == ("f32", 1) and all(
            value.type == op.results[0].type for value in arrays
        )
        if not arrays or not whole or not all(given(value) or value in member for value in arrays):
            continue
        joined = _Set()
        for other in dict.fromkeys(member[value] for value in arrays if value in member):
            smaller = min(other, joined, key=lambda each: len(each.ops))
            joined = joined.join(other)
            member |= {each.results[0]: joined for each in smaller.ops}
        joined.ops.append(op)
        member[op.results[0]] = joined
    found = dict.fromkeys(member.values())
    for each in found:
        read = (value for op in each.ops for value in op.sources)
        each.leaves = dict.fromkeys(value for value in read if given(value) and splat_of(value, module) is None)
    return found


def _stack(module: HloModule, sets: list[_Set], anchor: hlo.HloOp) -> None:
    """Compute ``sets``, which are alike, side by side, ahead of ``anchor``, the first of all their ops."""
    first = sets[0]
    b = Build.before(module, anchor)
    dims = [sum(each.size for each in sets)]
    made: dict[Value, Value] = {}
    for leaf, *several in zip(first.leaves, *(each.leaves for each in sets), strict=True):
        arrays = [constant_of(value, module) for value in several]
        known = [array for array in arrays if array is not None]
        if len(known) == len(arrays):
            made[leaf] = b.array(np.concatenate(known))
        else:  # constants may stand after the anchor
            pairs = zip(several, arrays, strict=True)
            made[leaf] = b.concatenate([value if array is None else b.array(array) for value, array in pairs], 0)
    for op in first.ops:
        operands = [
            made[value] if value in made else b.number(_number(value, module), "f32", dims) for value in op.sources
        ]
        made[op.results[0]] = b.typed(type(op), operands, hlo.array_type("f32", tuple(dims)), **op.properties)
    start, read = 0, [{*each.read()} for each in sets]
    for each, wanted in zip(sets, read, strict=True):
        for op, like in zip(each.ops, first.ops, strict=True):
            if op in wanted:
                op.results[0].replace_all_uses_with(b.slice(made[like.results[0]], 0, start, start + each.size))
        start += each.size


def _number(value: Value, module: HloModule) -> float:
    number = splat_of(value, module)
    assert number is not None
    return float(number)
