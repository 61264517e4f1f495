"""Carries out the host calls of a program: arrays out of HBM, a Python function, its results into HBM."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.elements import Array
from neuronx_cc.ir.isa.host import HostCall
from neuronx_cc.ir.isa.program import Program

Functions = Mapping[int, Callable[[Sequence[Array]], Sequence[Array]]]
"""Number -> function, which takes and gives arrays as memory holds them (``STORAGE``)."""


class HostCalls:
    """The host of one device (``ir.isa.host.Host``)."""

    def __init__(self, program: Program, functions: Functions, device: int) -> None:
        self._calls = program.host_calls
        self._functions = functions
        self._partition = device % program.devices[1]

    def call(self, number: int, results: Array, operands: Array) -> None:
        """See ``ir.isa.host.Host.call``."""
        call = self._calls[number]
        if call.partition not in (-1, self._partition):
            results[:] = 0
            return
        function = self._functions.get(call.function)
        if function is None:
            raise RunError("ERUN918", f"host function {call.function} is not there", "run the program through JAX")
        # the function may keep what it is given, and may run other programs on these memories
        given = [slot.of(operands).copy() for slot in call.operands]
        for slot, array in zip(call.results, _called(function, given, call), strict=True):
            slot.of(results)[...] = array


def _called(
    function: Callable[[Sequence[Array]], Sequence[Array]], given: Sequence[Array], call: HostCall
) -> Sequence[Array]:
    try:
        with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
            return function(given)
    except Exception as error:
        told = "".join(traceback.format_exception(error)).rstrip()
        raise RunError("ERUN919", f"a function of the host raised:\n{told}", loc=call.loc) from error
