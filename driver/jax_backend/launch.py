"""Runs compiled programs on the simulated devices, for the C++ side.

A launch is one program with the arguments of all its devices. It runs on the calling thread; launches take turns, since
programs share the memories on chip, but for those that come while one waits for a function of the host (``turns``).

A program that transposes 16- and 8-bit values says in one more result whether all were finite; if not, infinities and
NaNs have spread, and the launch computes once more with a program that moves bit patterns. Arguments in 8-bit floats
with NaNs where the program relies on it that there are none go to that one at once.
"""

import time
import warnings
from collections.abc import Sequence
from functools import cache

import numpy as np

from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.jax_backend.compiler import careful_unit
from neuronx_cc.driver.jax_backend.failure import plugin_error
from neuronx_cc.driver.jax_backend.program import DeviceProgram, Unit
from neuronx_cc.driver.jax_backend.records import Record, recorders
from neuronx_cc.driver.jax_backend.settings import DeviceSettings, device_settings
from neuronx_cc.driver.jax_backend.turns import TURNS
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.elements import Array
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.runtime.course import Course
from neuronx_cc.runtime.devices import compute_devices
from neuronx_cc.runtime.memory import OnChip

last: "Record | None" = None
"""The last launch of this process."""


def execute(
    program: DeviceProgram,
    launch_id: int,
    device_ids: tuple[int, ...],
    inputs: Sequence[Sequence[memoryview]],
    outputs: Sequence[Sequence[memoryview]],
) -> None:
    """Compute ``outputs[d][j]`` from ``inputs[d][i]``; the memory behind them is valid during this call only.

    Raises PluginError for faults.
    """
    global last
    unit = program.unit
    arguments, results = unit.arguments, unit.results
    rows = [[np.ndarray(dims, kind, m) for m, (dims, kind) in zip(row, arguments, strict=True)] for row in inputs]
    targets = [[np.ndarray(dims, kind, m) for m, (dims, kind) in zip(row, results, strict=True)] for row in outputs]
    try:
        settings = _settings()
        seed = settings.stochastic_rounding_seed
        with TURNS.turn() as mine:
            begun = time.time_ns()
            if any(unit.executables[0].undefined(row) is not None for row in rows):
                unit = careful_unit(unit)
            found = [[np.zeros(1, np.float32)] for _ in rows] if unit.watched else [[] for _ in rows]
            course = _compute(unit, mine, rows, [[*row, *more] for row, more in zip(targets, found, strict=True)], seed)
            if np.isnan(found).any():
                unit = careful_unit(unit)
                course = _compute(unit, mine, rows, targets, seed)
            last = record = (unit, device_ids, course, begun)
            for recorder in recorders:
                recorder.append(record)
        if settings.fail_on_nan:
            _refuse_nan(unit, targets)
        said = [unit.executables[0].overflow(*each) for each in zip(rows, targets, strict=True)]
        for warning in filter(None, dict.fromkeys(said)):
            warnings.warn(warning, RuntimeWarning, stacklevel=1)
    except BaseException as error:
        raise plugin_error(error, Session("jax", [])) from None


def _compute(
    unit: Unit,
    mine: bool,
    inputs: Sequence[Sequence[Array]],
    outputs: Sequence[Sequence[Array]],
    seed: int | None,
) -> Course:
    """What the regions of the first device did. ``mine``: no other launch is under way."""
    functions, executables = unit.functions, unit.executables
    if not mine:
        executables = [each.on_another_device(OnChip()) for each in executables]
    if len(executables) > 1:
        return compute_devices(executables, inputs, outputs, stochastic_rounding_seed=seed, functions=functions)[0]
    courses = [
        executables[0].compute(row, target, stochastic_rounding_seed=seed, device=number, functions=functions)
        for number, (row, target) in enumerate(zip(inputs, outputs, strict=True))
    ]
    return courses[0]


@cache
def _settings() -> DeviceSettings:
    return device_settings()


def _refuse_nan(unit: Unit, outputs: Sequence[Sequence[Array]]) -> None:
    """``NEURON_FAIL_ON_NAN``. Raises RunError ERUN904."""
    for row in outputs:
        for number, (array, shape) in enumerate(zip(row, unit.signature.results, strict=True)):
            if shape.dtype in FLOATS and np.isnan(array.astype(np.float32)).any():
                raise RunError(
                    "ERUN904",
                    f"result {number} ({shape}) of program {unit.signature.name} has NaNs",
                    "find the operation with jax_debug_nans, or unset NEURON_FAIL_ON_NAN",
                )
