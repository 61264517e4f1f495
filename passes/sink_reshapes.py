"""Lets elementwise ops work in the dims of what they read, so that one kernel does what stands around a reshape.

Input: canonical hlo. Output: ``f(reshape(x), ...)``, where dims of ``x`` merge into those of ``f`` and an elementwise
op makes ``x`` for nobody else, is ``reshape(f(x, ...))`` if the other operands are broadcasts, parameters, or reshapes
of the same kind. So the scale after a group normalisation is applied where rows of groups are normalised.
"""

from collections.abc import Sequence
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, erase, has_one_use, insert_before, ops_of, replace
from neuronx_cc.passes.analysis.stored import is_given
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

MATRIX = 2
"""Dims of one: what follows contractions of rows, as gates of features do, is computed in these."""
Groups = list[list[int]]
"""For each dim of a result the dims that merge into it."""


@only_for(hlo.ReshapeOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.ElementwiseOp) and len(op.results) == 1:
                _sink(module, op)


def _sink(module: HloModule, op: hlo.HloOp) -> None:
    found = next((source for operand in op.operands if (source := _merged(operand)) is not None), None)
    arrays = [operand for operand in op.operands if hlo.shape_of(operand).rank or not op.shape.rank]
    if found is None or not all(_turns(operand, found) for operand in arrays):
        return
    dims = hlo.shape_of(found).dims
    groups = _groups(dims, op.shape.dims)
    assert groups is not None, "dims merge"
    b = Build.before(module, op)
    operands = [_turned(b, operand, dims, groups) if operand in arrays else operand for operand in op.operands]
    made = copy_op(op, operands, hlo.array_type(op.shape.dtype, dims))
    assert op.parent is not None, "an op of a block"
    op.parent.insert_op_before(made, op)
    merged = [each for each in map(defining_op, dict.fromkeys(op.operands)) if isinstance(each, hlo.ReshapeOp)]
    replace(op, insert_before(op, hlo.ReshapeOp, (made.results[0],), op.results[0].type, op.loc))
    for each in merged:
        if each.result.first_use is None:
            erase(each)


def _merged(value: Value) -> Value | None:
    """What an elementwise op makes for ``value`` alone, which merges dims of it, or adds or moves dims of size 1."""
    reshape = defining_op(value)
    if not isinstance(reshape, hlo.ReshapeOp) or not has_one_use(reshape.operand):
        return None
    made, dims, merged = defining_op(reshape.operand), hlo.shape_of(reshape.operand).dims, hlo.shape_of(value).dims
    wide = _without_ones(dims)
    if isinstance(made, hlo.DotOp | hlo.ElementwiseOp) and wide == _without_ones(merged):
        adds = len(wide) <= MATRIX and len(dims) < len(merged)
        return reshape.operand if adds or len(dims) == len(merged) else None
    if not isinstance(made, hlo.ElementwiseOp) or not has_one_use(value):
        return None
    return reshape.operand if _groups(dims, merged) is not None and len(dims) > len(merged) else None


def _without_ones(dims: Sequence[int]) -> list[int]:
    return [size for size in dims if size != 1]


def _groups(dims: Sequence[int], merged: Sequence[int]) -> Groups | None:
    """The dims of ``dims`` that each of ``merged`` is; None where they do not merge."""
    groups: Groups = []
    at = 0
    for size in merged:
        group: list[int] = []
        while prod(dims[index] for index in group) < size and at < len(dims):
            group.append(at)
            at += 1
        if prod(dims[index] for index in group) != size:
            return None
        groups.append(group)
    while groups and at < len(dims) and dims[at] == 1:
        groups[-1].append(at)
        at += 1
    return groups if at == len(dims) else None


def _turns(value: Value, like: Value) -> bool:
    """Whether ``value`` is easily had in the dims of ``like``."""
    op = defining_op(value)
    if isinstance(op, hlo.ReshapeOp) and not is_given(op.operand):
        return hlo.shape_of(op.operand).dims == hlo.shape_of(like).dims
    return isinstance(op, hlo.BroadcastOp | hlo.ReshapeOp) or is_given(value)


def _turned(b: Build, value: Value, dims: Sequence[int], groups: Groups) -> Value:
    op = defining_op(value)
    if isinstance(op, hlo.ReshapeOp) and hlo.shape_of(op.operand).dims == tuple(dims):
        return op.operand
    if not isinstance(op, hlo.BroadcastOp):
        return b.reshape(op.operand if isinstance(op, hlo.ReshapeOp) else value, dims)
    places = [index for place in op.dimensions.data for index in groups[place]]
    return b.broadcast(b.reshape(op.operand, [dims[index] for index in places]), dims, places)
