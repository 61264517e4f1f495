"""One trial: a module compiled under a policy and run once, for its error and its time.

Input: a model, inputs, and what FP32 gives on them. Output: a relative error and simulated microseconds. The module is
brought to the casts once; a trial is what comes after them, one run of values and one of the clock.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from neuronx_cc import runtime
from neuronx_cc.driver.accuracy import Uncast
from neuronx_cc.driver.check import Progress, evaluated, largest_difference
from neuronx_cc.driver.jobs import Engine, Job
from neuronx_cc.driver.options import COMPILE
from neuronx_cc.driver.parse import from_keywords
from neuronx_cc.driver.recompile import Model
from neuronx_cc.driver.side_by_side import joined, side_by_side
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir.errors import CompileError, RunError
from neuronx_cc.passes.precision.policy import NO_RULES, Policy, entries_of
from neuronx_cc.passes.precision.rounding import casts_of
from neuronx_cc.runtime.devices import replicate, run_devices

Array = np.ndarray[Any, np.dtype[Any]]
IN, OUT, DEVICES = "in", "out", "devices"
"""Names in a file of arrays: those of a device's inputs begin with the first, and have its number."""
DIGITS = 6
"""Of microseconds, after the point."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What one program is worth."""

    error: float
    """Largest relative 2-norm of the difference to an output of FP32; infinite where one is not finite."""
    microseconds: float
    """Infinite where nothing fits the core."""
    nbytes: float
    """Of HBM, for parameters, constants, results and what does not fit on chip; infinite with the time."""


PER_TRIAL = ("precision_policy", "keep_fp32")
FAILED = Trial(math.inf, math.inf, math.inf)


class Bench:
    """Trials of one model in this process."""

    def __init__(
        self,
        model: Model,
        inputs: Sequence[Sequence[Array]],
        expected: Sequence[Array] | None = None,
        progress: Progress = lambda what, done, of: None,
    ) -> None:
        """``inputs``: those of each device; ``expected``: what all of them give together (``side_by_side.joined``)."""
        self.model, self.inputs, self._given, self._progress = model, inputs, expected, progress

    @cached_property
    def expected(self) -> list[Array]:
        """Outputs in FP32, by the reference semantics."""
        if self._given is not None:
            return list(self._given)
        return evaluated(self.model.before_casts()[0], self.inputs, self._progress)

    def executable(self, policy: Policy) -> runtime.Executable:
        """The program, for whom its outputs are not enough."""
        return self.model.executable(policy)

    def trial(self, policy: Policy) -> Trial:
        """Compile and run once. Raises what compiling without any casts raises."""
        executable = self._fitting(policy)
        if executable is None:
            return FAILED
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of infinities, which the error says
            results = run_devices(replicate(executable), self.inputs, machine=self.model.machine)
        error = largest_difference(joined([each.outputs for each in results]), self.expected)
        return Trial(error, max(map(_microseconds, results)), executable.program.hbm_bytes)

    def timed(self, policy: Policy) -> tuple[float, float]:
        """Microseconds and bytes of a trial, without computing values."""
        executable = self._fitting(policy)
        if executable is None:
            return FAILED.microseconds, FAILED.nbytes
        result = executable.run([], timing_only=True, machine=self.model.machine)
        return _microseconds(result), executable.program.hbm_bytes

    def _fitting(self, policy: Policy) -> runtime.Executable | None:
        """None where casts make a program that fits no more."""
        try:
            return self.model.executable(policy)
        except CompileError:
            if policy == NO_RULES or not any(rule.operands not in ("", "fp32") for rule in policy.rules):
                raise
            return None

    def evaluated(self, policy: Policy) -> float:
        """The error of the casts of ``policy``, by the reference semantics: nothing is compiled."""
        module, _ = self.model.before_casts()
        casts, uncast = casts_of(module, replace(self.model.options, policy=policy)), self._uncast
        found = joined(side_by_side(module, lambda device: uncast[device].with_casts(casts)))
        return largest_difference(found, joined([each.expected for each in uncast]))

    @cached_property
    def _uncast(self) -> list[Uncast]:
        module, _ = self.model.before_casts()
        return side_by_side(module, lambda device: Uncast(module, self.inputs[device], self._progress))

    def trials(self, policies: Sequence[Policy]) -> Iterator[tuple[Policy, Trial]]:
        """Each of them, as it is done."""
        for policy in policies:
            yield policy, self.trial(policy)


def _microseconds(result: runtime.RunResult) -> float:
    """Without what the clock has from adding up in another order: of times that differ by that none is less."""
    return round(result.report.time_ns / 1e3, DIGITS)


Measure = Callable[[Sequence[Policy]], Iterator[tuple[Policy, Trial]]]
"""Makes trials, in any order."""


@contextmanager
def sent(bench: Bench, engine: Engine) -> Iterator[Measure]:
    """Trials as jobs of ``engine``, whose processes read the module and the arrays from files that are there meanwhile.

    Raises RunError EFIL902 where these cannot be written.
    """
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True)))
            module, data = folder / "module.hlo", folder / "arrays.npz"
            module.write_text(print_module(bench.model.load()))
            write_arrays(data, bench)
        except OSError as error:
            said = f"what processes read that make trials cannot be written: {error.strerror or error}"
            raise RunError("EFIL902", said, "set TMPDIR to a place with more room, or give --workers 1") from None
        yield _trials(bench, engine, module, data)


def _trials(bench: Bench, engine: Engine, module: Path, data: Path) -> Measure:
    options = tuple((key, value) for key, value in bench.model.recorded.items() if key not in PER_TRIAL)

    def trials(policies: Sequence[Policy]) -> Iterator[tuple[Policy, Trial]]:
        jobs = {}
        for policy in policies:
            text = json.dumps(entries_of(policy))
            jobs[Job(str(module), (*options, ("precision_policy", text)), data=str(data))] = policy
        for job, outcome in engine.outcomes(list(jobs)):
            if outcome.microseconds is None or outcome.difference is None:
                raise RunError("ERUN924", f"a trial failed: {outcome.error.replace(str(module), 'the module')}")
            yield jobs[job], Trial(outcome.difference, outcome.microseconds, outcome.nbytes)

    return trials


@lru_cache(maxsize=1)
def bench_of(path: str, data: str, options: tuple[tuple[str, Any], ...]) -> Bench:
    """That of a module's file and of the arrays beside it, kept in a process that makes trials for another one."""
    from neuronx_cc.hlo_import import load_module

    model = Model(lambda: load_module(Path(path).read_bytes()), from_keywords(COMPILE, dict(options)))
    arrays = read_arrays(data)
    rows = [arrays[key] for key in arrays if key != OUT]
    return Bench(model, rows, arrays[OUT])


def write_arrays(path: Path, bench: Bench) -> None:
    """The inputs of ``bench`` and what is expected: bytes, and type and dims as text."""
    named: dict[str, Array] = {}
    rows = {f"{IN}{device}": row for device, row in enumerate(bench.inputs)}
    for key, arrays in {**rows, OUT: bench.expected}.items():
        for number, array in enumerate(arrays):
            named[f"{key}.{number}"] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
            named[f"{key}.{number}.type"] = np.array([str(array.dtype), *map(str, array.shape)])
    named[DEVICES] = np.array(len(rows))
    np.savez(path, **named)  # type: ignore[arg-type]


def read_arrays(path: str) -> dict[str, list[Array]]:
    """The opposite, without pickle."""
    with np.load(path, allow_pickle=False) as loaded:
        found: dict[str, list[Array]] = {f"{IN}{device}": [] for device in range(int(loaded[DEVICES]))}
        found[OUT] = []
        for key, arrays in found.items():
            while (name := f"{key}.{len(arrays)}") in loaded:
                dtype, *dims = (str(word) for word in loaded[f"{name}.type"])
                stored = np.frombuffer(loaded[name].tobytes(), np.dtype(dtype))
                arrays.append(stored.reshape([int(size) for size in dims]))
    return found
