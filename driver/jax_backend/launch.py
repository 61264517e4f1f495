"""Runs compiled programs on the simulated devices, for the C++ side.

A launch is one program with the arguments of all its devices. It runs on the calling thread; launches of different
threads take turns, since the simulator's arithmetic holds Python's lock.
"""

import os
import threading
from collections.abc import Sequence

import numpy as np

from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.jax_backend.failure import plugin_error
from neuronx_cc.driver.jax_backend.program import DeviceProgram
from neuronx_cc.ir.isa.elements import Array
from neuronx_cc.ir.types import Shape
from neuronx_cc.runtime.devices import run_devices

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
    try:
        with _lock:
            _run(program, inputs, outputs)
    except BaseException as error:
        raise plugin_error(error, Session("jax", [])) from None


def _run(
    program: DeviceProgram, inputs: Sequence[Sequence[memoryview]], outputs: Sequence[Sequence[memoryview]]
) -> None:
    signature = program.unit.signature
    executables = program.unit.executables
    arrays = [[_array(m, shape) for m, shape in zip(row, signature.parameters, strict=True)] for row in inputs]
    if len(executables) == 1:
        results = [executables[0].run(row).outputs for row in arrays]
    else:
        results = [result.outputs for result in run_devices(executables, arrays)]
    for row, computed in zip(outputs, results, strict=True):
        for memory, shape, result in zip(row, signature.results, computed, strict=True):
            _array(memory, shape)[...] = result


def _array(memory: memoryview, shape: Shape) -> Array:
    return np.ndarray(shape.dims, shape.numpy_dtype, memory)
