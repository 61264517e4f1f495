"""Runs compiled programs on the simulated devices, for the C++ side.

A launch is one program with the arguments of all its devices. It runs on the calling thread; launches of different
threads take turns, since the simulator's arithmetic holds Python's lock.
"""

import os
import threading
from collections.abc import Sequence

from numpy import ndarray

from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.jax_backend.failure import plugin_error
from neuronx_cc.driver.jax_backend.program import DeviceProgram, Unit
from neuronx_cc.ir.isa.elements import Array
from neuronx_cc.runtime.devices import compute_devices

_lock = threading.Lock()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


# a thread of the parent process may hold the lock at the fork
os.register_at_fork(after_in_child=_new_lock)


def execute(
    program: DeviceProgram,
    launch_id: int,
    device_ids: Sequence[int],
    inputs: Sequence[Sequence[memoryview]],
    outputs: Sequence[Sequence[memoryview]],
) -> None:
    """Compute ``outputs[d][j]`` from ``inputs[d][i]``; the memory behind them is valid during this call only.

    Raises PluginError for faults.
    """
    unit = program.unit
    arguments, results = unit.arguments, unit.results
    rows = [[ndarray(dims, kind, m) for m, (dims, kind) in zip(row, arguments, strict=True)] for row in inputs]
    targets = [[ndarray(dims, kind, m) for m, (dims, kind) in zip(row, results, strict=True)] for row in outputs]
    try:
        with _lock:
            _compute(unit, rows, targets)
    except BaseException as error:
        raise plugin_error(error, Session("jax", [])) from None


def _compute(unit: Unit, inputs: Sequence[Sequence[Array]], outputs: Sequence[Sequence[Array]]) -> None:
    if len(unit.executables) > 1:
        compute_devices(unit.executables, inputs, outputs)
        return
    for number, (row, target) in enumerate(zip(inputs, outputs, strict=True)):
        unit.executables[0].compute(row, target, device=number)
