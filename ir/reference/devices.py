"""Reference semantics of collectives and device numbers.

On one device, which is what evaluators know of unless they are told otherwise, a collective gives its operands back.
Several devices are evaluated side by side, on a thread each, in ``on_device``; their collectives are in the one form of
``passes.resolve_collectives``: one operand, groups of device numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.outside import Exchange, Meeting
from neuronx_cc.ir.reference.evaluator import Evaluator, unpack
from neuronx_cc.ir.reference.values import Array, Value

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Device:
    """The one whose values a thread computes."""

    number: int
    """replica * partitions + partition"""
    devices: int
    partitions: int
    meet: Callable[[Exchange, Groups, Array], Meeting]
    """Contributes an array to the group that the device is in, and waits for the others."""


_HERE: ContextVar[Device | None] = ContextVar("device", default=None)


@contextmanager
def on_device(device: Device) -> Iterator[None]:
    """What is evaluated inside is evaluated on ``device``."""
    token = _HERE.set(device)
    try:
        yield
    finally:
        _HERE.reset(token)


def on_any(here: bool) -> bool:
    """Whether it is so on any device: all of them ask."""
    device = _HERE.get()
    if device is None:
        return here
    everyone = (tuple(range(device.devices)),)
    asked = device.meet(Exchange("all_gather", "", "pred", (1,)), everyone, np.array([here]))
    return any(bool(part[0]) for part in asked.parts)


def groups_of(op: hlo.HloOp) -> Groups:
    """The devices that a collective connects: groups of them, or pairs."""
    name = "source_target_pairs" if isinstance(op, hlo.CollectivePermuteOp) else "replica_groups"
    attr = op.properties.get(name)
    return attr.data if isinstance(attr, hlo.GroupsAttr) else ()


def _meet(op: hlo.HloOp, operand: Array, reduction: str = "") -> Meeting | None:
    """None on a single device."""
    here = _HERE.get()
    if here is None:
        return None
    kind = op.opcode.removeprefix("collective-").replace("-", "_")
    exchange = Exchange(kind, reduction, hlo.shape_of(op.operands[0]).dtype, operand.shape)
    return here.meet(exchange, groups_of(op), operand)


def _summed(evaluator: Evaluator, op: Any, parts: Sequence[Array]) -> Array:
    """In the order of the group; short floats in FP32, rounded once, as the core does it."""
    dtype, name = parts[0].dtype, op.to_apply.data[0]
    short = dtype.itemsize < 4 and dtype.kind not in "biu" and evaluator.is_elementwise(name)
    total = parts[0].astype(np.float32) if short else parts[0]
    for part in parts[1:]:
        (total,) = evaluator.call_on_arrays(name, total, part.astype(total.dtype))
    return total.astype(dtype)


def all_reduce(evaluator: Evaluator, op: hlo.AllReduceOp, *operands: Array) -> Value:
    """The sum, or what else ``to_apply`` makes of the operands of a group."""
    meeting = _meet(op, operands[0], op.to_apply.data[0])
    return unpack(operands) if meeting is None else _summed(evaluator, op, meeting.parts)


def reduce_scatter(evaluator: Evaluator, op: hlo.ReduceScatterOp, *operands: Array) -> Value:
    """Of such a sum the device's part."""
    meeting = _meet(op, operands[0], op.to_apply.data[0])
    if meeting is None:
        return unpack(operands)
    axis = op.scatter_dimension.data
    return _summed(evaluator, op, [_block(part, meeting, axis) for part in meeting.parts])


def all_gather(op: hlo.AllGatherOp, *operands: Array) -> Value:
    """The operands of a group side by side."""
    meeting = _meet(op, operands[0])
    return unpack(operands) if meeting is None else np.concatenate(meeting.parts, op.all_gather_dimension.data)


def all_to_all(op: Any, *operands: Array) -> Value:
    """The device's part of the operands of a group, side by side."""
    meeting = _meet(op, operands[0])
    if meeting is None:
        return unpack(operands)
    axis = op.split_dimension.data
    return np.concatenate([_block(part, meeting, axis) for part in meeting.parts], axis)


def _block(array: Array, meeting: Meeting, axis: int) -> Array:
    """The device's part of ``array``."""
    return np.split(array, len(meeting.parts), axis)[meeting.place]


def broadcast(op: hlo.HloOp, *operands: Array) -> Value:
    """The operand of the first device of a group; zeros on a device that is in none."""
    meeting = _meet(op, operands[0])
    if meeting is None:
        return unpack(operands)
    return meeting.parts[0] if meeting.parts else np.zeros_like(operands[0])


def permute(op: hlo.CollectivePermuteOp, *operands: Array) -> Value:
    """The operand of the device that sends here, else zeros."""
    meeting = _meet(op, operands[0])
    if meeting is not None:
        return meeting.parts[meeting.place] if meeting.place >= 0 else np.zeros_like(operands[0])
    if (0, 0) in op.source_target_pairs.data:
        return unpack(operands)
    return unpack(np.zeros_like(operand) for operand in operands)


def alone(op: hlo.HloOp, *operands: Value) -> Value:
    """Forms that ``resolve_collectives`` leaves none of, over one device."""
    return unpack(operands)


def partition_id(op: hlo.HloOp) -> Array:
    here = _HERE.get()
    return np.asarray(0 if here is None else here.number % here.partitions, np.uint32)


def replica_id(op: hlo.HloOp) -> Array:
    here = _HERE.get()
    return np.asarray(0 if here is None else here.number // here.partitions, np.uint32)


def ragged_all_to_all(op: hlo.HloOp, sent: Array, output: Array, *numbers: Array) -> Value:
    """Slices of the rows of ``sent`` put into ``output``, on one device."""
    result = output.copy()
    for source, size, target in zip(*numbers[:3], strict=True):
        result[target : target + size] = sent[source : source + size]
    return result


def permute_start(op: hlo.CollectivePermuteStartOp, operand: Array, *rest: Value) -> Value:
    """(operand, result, contexts...)."""
    result = operand if (0, 0) in op.source_target_pairs.data else np.zeros_like(operand)
    return (operand, result)


def start(op: hlo.HloOp, *operands: Value) -> Value:
    """(operands, results) of a collective over one device."""
    return (unpack(operands), unpack(operands))


DEVICES: dict[str, Callable[..., Value]] = {
    "all-gather": all_gather,
    "all-gather-start": start,
    "all-reduce-start": alone,
    "all-to-all": all_to_all,
    "collective-broadcast": broadcast,
    "collective-permute": permute,
    "collective-permute-start": permute_start,
    "collective-reduce": alone,
    "partition-id": partition_id,
    "ragged-all-to-all": ragged_all_to_all,
    "replica-id": replica_id,
}

DEVICES_CALLING: dict[str, Callable[..., Value]] = {"all-reduce": all_reduce, "reduce-scatter": reduce_scatter}
