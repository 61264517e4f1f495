"""Reference semantics of a module that several devices share: each on a thread of its own, which meet in collectives.

Input: a module whose collectives are in the one form (``passes.resolve_collectives``), something to do on each device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.isa.blas import one_thread
from neuronx_cc.ir.isa.outside import Exchange, Meeting
from neuronx_cc.ir.reference.devices import Device, Groups, groups_of, on_device
from neuronx_cc.passes.analysis.devices import device_counts
from neuronx_cc.runtime.fabric import Fabric

Array = np.ndarray[Any, np.dtype[Any]]
Result = TypeVar("Result")


def side_by_side(module: hlo.HloModule, work: Callable[[int], Result]) -> list[Result]:
    """``work(i)`` of each device i, in which ops of ``module`` may be evaluated: the same ones in the same order on
    all devices, as far as collectives are among them.

    Raises the first device's error; RunError ERUN915 when devices wait for each other for ever, ERUN922 when they come
    to different collectives.
    """
    count = prod(device_counts(module))
    if count == 1:
        return [work(0)]
    groups = groups_in(module)
    fabric = Fabric([groups] * count)

    def device(number: int) -> Result:
        with on_device(device_at(fabric, number, module, groups)):
            return work(number)

    with one_thread():
        return fabric.run(device)


def groups_in(module: hlo.HloModule) -> list[Groups]:
    """What the collectives of ``module`` connect, and all devices."""
    ops = [op for each in module.computations() for op in ops_of(each.block) if isinstance(op, hlo.CollectiveOp)]
    return list(dict.fromkeys([*map(groups_of, ops), (tuple(range(prod(device_counts(module)))),)]))


def device_at(fabric: Fabric, number: int, module: hlo.HloModule, groups: list[Groups], first: int = 0) -> Device:
    """Device ``number``, whose collectives meet in ``fabric``, of which ``groups`` are those from ``first`` on."""

    def meet(exchange: Exchange, among: Groups, source: Array) -> Meeting:
        return fabric.meet(number, exchange, first + groups.index(among), source)

    return Device(number, prod(device_counts(module)), device_counts(module)[1], meet)


def joined(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Of each output what all devices have, as one array; ``parts``: the outputs of each device."""
    return list(parts[0]) if len(parts) == 1 else [np.stack(arrays) for arrays in zip(*parts, strict=True)]
