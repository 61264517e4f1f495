"""Collectives and device numbers: one ``collective`` instruction each, between dense arrays in HBM.

Input: ops as ``passes.resolve_collectives`` leaves them. Where a dim of the result or of the source is cut into one
block for each member of the group, the access pattern puts that cut first.
"""

from __future__ import annotations

from math import prod
from typing import Any

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.ir import hlo
from neuronx_cc.ir.combiners import OF_PREDICATES
from neuronx_cc.ir.isa.collectives import REDUCING, SHORT
from neuronx_cc.ir.isa.program import Stream


def lower(context: Context, op: hlo.HloOp, step: int) -> None:
    """Any collective; sums over devices lie where their operand did, if nothing else reads that."""
    operand, result = op.operands[0], op.results[0]
    source = context.dense(operand)
    if isinstance(op, hlo.AllReduceOp) and context.takes_over(result, operand, source, step):
        target = source
    else:
        target = context.new_hbm(result)
    context.homes[result] = [target]
    groups = _groups(op)
    kind, size = kind_of(op), members_of(op)
    axis = _axis(op)
    if kind == "all_gather":
        blocks = _cut(target, axis, size), _plain(source, axis)
    elif kind == "reduce_scatter":
        blocks = _plain(target, axis), _cut(source, axis, size)
    elif kind == "all_to_all":
        blocks = _cut(target, axis, size), _cut(source, axis, size)
    else:
        blocks = _flat(target), _flat(source)
    alu = [kind, _reduction(context, op)] if kind in REDUCING else [kind]
    context.builder.emit(
        "collective", Stream.COLLECTIVE, [blocks[0]], [blocks[1]], alu, [context.builder.group(groups), size]
    )


def device_number(context: Context, op: hlo.HloOp, step: int) -> None:
    """``replica-id`` and ``partition-id``: words of a variable that the runtime writes."""
    del step
    numbers = context.device_numbers
    word = numbers.slice(0, int(isinstance(op, hlo.PartitionIdOp)), 1)
    assert word is not None, "a dense array slices"
    scalar = word.reshape(())
    assert scalar is not None, "one element"
    context.homes[op.results[0]] = [scalar]


def kind_of(op: hlo.HloOp) -> str:
    """What the instruction calls it."""
    return op.opcode.removeprefix("collective-").replace("-", "_")


def members_of(op: hlo.HloOp) -> int:
    """Devices of the largest group (of permutes: of a pair)."""
    return max(len(group) for group in _groups(op))


def _groups(op: Any) -> tuple[tuple[int, ...], ...]:
    groups: tuple[tuple[int, ...], ...] = (
        op.source_target_pairs.data if isinstance(op, hlo.CollectivePermuteOp) else op.replica_groups.data
    )
    return groups


def _axis(op: hlo.HloOp) -> int:
    """The dim that is cut."""
    for name in ("all_gather_dimension", "scatter_dimension", "split_dimension"):
        attr = op.properties.get(name)
        if isinstance(attr, hlo.IntAttr):
            return attr.data
    return 0


def _reduction(context: Context, op: Any) -> str:
    kind = context.combiners[op.to_apply.data[0]]
    return (OF_PREDICATES if hlo.shape_of(op.operands[0]).dtype == "pred" else SHORT).get(kind, kind)


def _flat(view: View) -> Block:
    """[elements] of a dense array."""
    size = hlo.itemsize(view.dtype)
    return Block(view.alloc, view.dtype, view.start, (Atom(prod(view.shape), size),))


def _plain(view: View, axis: int) -> Block:
    """[outer, run] of a dense array, cut before ``axis``."""
    size, outer = hlo.itemsize(view.dtype), prod(view.shape[:axis])
    run = prod(view.shape[axis:])
    return Block(view.alloc, view.dtype, view.start, (Atom(outer, run * size), Atom(run, size)))


def _cut(view: View, axis: int, members: int) -> Block:
    """[members, outer, run] of a dense array whose dim ``axis`` is ``members`` blocks."""
    size, outer = hlo.itemsize(view.dtype), prod(view.shape[:axis])
    run = prod(view.shape[axis:]) // members
    dims = (Atom(members, run * size), Atom(outer, members * run * size), Atom(run, size))
    return Block(view.alloc, view.dtype, view.start, dims)
