"""What a number is on each device. No pass: passes that change collectives ask it."""

from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.types import NUMPY_DTYPE

MOST_ELEMENTS = 4096
"""Of a table that is looked up."""
_FOLLOWED = (hlo.ConstantOp, hlo.DeviceNumberOp, hlo.ElementwiseOp, hlo.ViewOp, hlo.DynamicSliceOp)


def device_counts(module: HloModule) -> tuple[int, int]:
    """Replicas and partitions, as the module's header states them; (1, 1) when it does not."""
    header = dict(module.header)
    return int(header.get("replica_count", 1)), int(header.get("num_partitions", 1))


def state_counts(module: HloModule, replicas: int | None, partitions: int | None) -> None:
    """Writes the counts that are given into the header. Raises CompileError EVRF001 where it states others."""
    header = dict(module.header)
    for name, count in (("replica_count", replicas), ("num_partitions", partitions)):
        if count is None:
            continue
        if header.setdefault(name, str(count)) != str(count):
            raise CompileError(
                "EVRF001", f"the module states {name}={header[name]}, not {count}", "drop the option, or the statement"
            )
    module.header = tuple(header.items())


def numbers_of(value: hlo.SSAValue, module: HloModule) -> list[int] | None:
    """The integer that ``value``, an array of one element, is on each device; None where that does not show.

    Device = replica * partitions + partition.
    """
    ops = _after(value)
    if ops is None:
        return None
    from neuronx_cc.ir.reference import evaluator

    apply = evaluator(module).apply
    replicas, partitions = device_counts(module)
    found = []
    for device in range(replicas * partitions):
        known: dict[hlo.SSAValue, Any] = {}
        for op in ops:
            if isinstance(op, hlo.DeviceNumberOp):
                number = device % partitions if isinstance(op, hlo.PartitionIdOp) else device // partitions
                made: Any = np.asarray(number, NUMPY_DTYPE["u32"])
            elif isinstance(op, hlo.ConstantOp):
                made = module.constants[op.value.data]
            else:
                try:
                    made = apply(op, [known[operand] for operand in op.operands])
                except CompileError:
                    return None
            known[op.results[0]] = made
        found.append(int(np.asarray(known[value]).reshape(())))
    return found


def _after(value: hlo.SSAValue) -> list[hlo.HloOp] | None:
    """The ops that make ``value`` from constants and device numbers, in order."""
    order: dict[hlo.HloOp, None] = {}
    waiting: list[tuple[hlo.SSAValue, bool]] = [(value, False)]
    while waiting:
        value, ready = waiting.pop()
        op = defining_op(value)
        if not isinstance(op, hlo.HloOp) or not isinstance(op.results[0].type, hlo.ArrayType):
            return None
        if hlo.shape_of(op.results[0]).size > MOST_ELEMENTS:
            return None
        if ready:
            order[op] = None
        elif op not in order:
            if not isinstance(op, _FOLLOWED):
                return None
            waiting.append((value, True))
            waiting += [(operand, False) for operand in op.operands]
    return list(order)
