"""``run``: load a NEFF, execute it on the simulated device, write outputs, report, trace, check.

Input: a NEFF, and an ``.npz`` of inputs or a seed for random ones. Output: an ``.npz`` of outputs, a report.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuronx_cc import runtime
from neuronx_cc.driver import files
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.neffs import read_neff
from neuronx_cc.driver.parse import Parsed, rows_of
from neuronx_cc.driver.profiles import write_trace
from neuronx_cc.driver.summary import operator_table
from neuronx_cc.driver.tensors import (
    Array,
    parameters_of,
    random_inputs,
    read_device_inputs,
    read_inputs,
    write_device_outputs,
    write_outputs,
)
from neuronx_cc.driver.terminal import width
from neuronx_cc.ir.errors import NO_LOC, RunError, UsageError
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime import RunResult, devices
from neuronx_cc.runtime.native import library
from neuronx_cc.runtime.profiling.analysis import analyse

if TYPE_CHECKING:
    from neuronx_cc.driver.check import Check
    from neuronx_cc.driver.compare import Comparison
    from neuronx_cc.driver.fp64 import FromFp64


def run_command(session: Session) -> int:
    """Body of ``neuronx-cc run``. Exit status 1 when ``--check`` finds a divergence."""
    parsed = session.parsed
    assert parsed is not None
    session.open_logfile()
    _check_options(parsed)
    library.prefer(parsed.text_or_none("simulator"))
    neff, _ = read_neff(parsed.files[0], session)
    machine = _machine(parsed, neff)
    checker = _checker(parsed, neff, session) if parsed.flag("check") else None
    session.enter("reading the inputs")
    inputs = _inputs(parsed, neff)
    if library.load() is None and not (parsed.flag("timing_only") or library.wanted() == "numpy"):
        session.log.warning(f"values are computed by {library.description()}")
    session.enter("running")
    results = _run(parsed, neff, inputs, machine)
    result = max(results, key=lambda each: each.report.time_ns)
    session.enter("writing the results")
    if parsed.text_or_none("outputs") and len(results) == 1:
        write_outputs(parsed.text("outputs"), result.outputs)
    elif parsed.text_or_none("outputs"):
        write_device_outputs(parsed.text("outputs"), [each.outputs for each in results])
    if parsed.text_or_none("trace"):
        session.enter("writing the trace")
        write_trace(parsed.text("trace"), [each.execution for each in results])
    verdicts = None
    if checker is not None:
        session.enter("checking against the reference semantics")
        verdicts = checker(inputs[0], result.outputs)
    _print(session, result, verdicts)
    if verdicts is not None and not verdicts.check.passed:
        divergence = verdicts.check.divergence
        raise RunError("ERUN902", verdicts.check.summary, loc=divergence.loc if divergence else NO_LOC)
    return 0


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """Of ``--check``: how accurate the compiled module is, and whether the simulator computes what it means."""

    comparison: "Comparison"
    check: "Check"
    fp64: "FromFp64 | None"
    """Where it was asked for."""


def _checker(parsed: Parsed, neff: Neff, session: Session) -> Callable[[list[Array], list[Array]], _Verdicts]:
    """Finds the module before time is spent on the simulation; running a NEFF without ``--check`` needs no compiler."""
    from neuronx_cc.driver.check_neff import check_neff, compare_fp64, compare_neff, find_module

    source = find_module(neff, parsed.files[0], parsed.text_or_none("module"))

    def verdicts(inputs: list[Array], outputs: list[Array]) -> _Verdicts:
        comparison = compare_neff(neff, source, inputs, outputs)
        wide = compare_fp64(neff, source, inputs, outputs) if parsed.flag("fp64") else None
        return _Verdicts(comparison, check_neff(neff, source, inputs, outputs, session), wide)

    return verdicts


def _print(session: Session, result: RunResult, verdicts: _Verdicts | None) -> None:
    """The report, as text or JSON, and the outcome of the check."""
    parsed = session.parsed
    assert parsed is not None
    chosen = parsed.values["all"] is True or parsed.values["top"] is not None
    rows = rows_of(parsed, 10)
    if chosen:
        session.enter("explaining the time")
        document = analyse(result.execution).document
    if parsed.flag("json"):
        report = result.report.to_json()
        if not parsed.flag("timing_only"):
            report["simulator"] = library.chosen(parsed.integer_or_none("stochastic_rounding"))
        if verdicts is not None:
            check, wide = verdicts.check, verdicts.fp64
            if wide is not None:
                report["fp64"] = {"outputs": wide.outputs, "fp32": wide.fp32}
            report["accuracy"] = verdicts.comparison.to_json()
            report["check"] = {"passed": check.passed, "error": check.error, "summary": check.summary}
        if chosen:
            report["operators"] = document["operators"][:rows]
        session.show(json.dumps(report, indent=1))
        return
    columns = width(sys.stdout)
    session.show(result.report.to_text(rows, columns, operators=not chosen).rstrip("\n"))
    if chosen:
        print("\n".join(["", *operator_table(document, rows, columns)]))
    if verdicts is not None:
        print(verdicts.comparison, end="")
        if verdicts.fp64 is not None:
            print(verdicts.fp64)
        if verdicts.check.passed:
            print(f"check: {verdicts.check.summary}")


def _check_options(parsed: Parsed) -> None:
    """Refuse combinations that cannot be met, and outputs that cannot be written, before simulating."""
    inputs = [parsed.files[0], *filter(None, [parsed.text_or_none("inputs")])]
    for key in ("outputs", "trace"):
        if parsed.text_or_none(key):
            files.check_writable(parsed.text(key), f"--{key}", inputs)
    if parsed.flag("timing_only"):
        for key in ("outputs", "check", "stochastic_rounding"):
            if parsed.values[key] not in (None, False):
                option = f"--{key.replace('_', '-')}"
                raise UsageError("EARG905", f"--timing-only computes no values, {option} needs them", "drop one")
    if not 1 <= parsed.integer("devices") <= devices.MAX_DEVICES:
        raise UsageError("EARG902", f"--devices takes 1 to {devices.MAX_DEVICES}", "see --help")
    if parsed.flag("fp64") and not parsed.flag("check"):
        raise UsageError("EARG905", "--fp64 is a part of --check", "give both")
    if parsed.flag("check") and parsed.integer("devices") > 1:
        raise UsageError("EARG905", "--check runs the reference semantics of one device", "drop --devices")
    if parsed.flag("check") and parsed.values["stochastic_rounding"] is not None:
        raise UsageError("EARG905", "--check compares with rounding to nearest, not --stochastic-rounding", "drop one")


def _inputs(parsed: Parsed, neff: Neff) -> list[list[Array]]:
    """For each device from ``--inputs``, else random; none for a run without values."""
    parameters = parameters_of(neff)
    path, count = parsed.text_or_none("inputs"), parsed.integer("devices")
    if path is not None:
        return [read_inputs(path, parameters)] if count == 1 else read_device_inputs(path, parameters, count)
    if parsed.flag("timing_only"):
        return [[] for _ in range(count)]
    return [random_inputs(parameters, parsed.integer("seed") + number) for number in range(count)]


def _run(parsed: Parsed, neff: Neff, inputs: list[list[Array]], machine: Machine) -> list[RunResult]:
    """The result of each device; of the first one alone when there is nothing to compute."""
    executable = runtime.load(neff)
    seed = parsed.integer_or_none("stochastic_rounding")
    if parsed.flag("timing_only") or len(inputs) == 1 == devices.device_count(executable):
        return [
            executable.run(
                inputs[0],
                timing_only=parsed.flag("timing_only"),
                stochastic_rounding_seed=seed,
                machine=machine,
            )
        ]
    group = devices.replicate(executable)
    return devices.run_devices(group, inputs, stochastic_rounding_seed=seed, machine=machine)


def _machine(parsed: Parsed, neff: Neff) -> Machine:
    """The machine that the program was planned for, or that of ``--machine``, with the values of ``--set``."""
    given = parsed.text_or_none("machine")
    return (neff.machine() if given is None else find_machine(given)).with_settings(parsed.names("set"))
