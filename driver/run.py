"""``run``: load a NEFF, execute it on the simulated device, write outputs, report, trace, check.

Input: a NEFF, and an ``.npz`` of inputs or a seed for random ones. Output: an ``.npz`` of outputs, a report.
"""

import json
import os
import sys
import warnings
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
    output_names,
    parameters_of,
    random_inputs,
    read_device_inputs,
    write_device_outputs,
    write_outputs,
)
from neuronx_cc.driver.terminal import width
from neuronx_cc.ir.errors import NO_LOC, RunError, UsageError
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.targets import MAX_DEVICES, find_machine
from neuronx_cc.runtime import RunResult, devices
from neuronx_cc.runtime.native import library
from neuronx_cc.runtime.profiling.analysis import analyse
from neuronx_cc.runtime.profiling.together import time_together

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
    neffs = read_neffs(parsed, session)
    neff = neffs[0]
    machine = _machine(parsed, neff)
    checker = _checker(parsed, neff, session) if parsed.flag("check") else None
    session.enter("reading the inputs")
    inputs = _inputs(parsed, neffs)
    if library.load() is None and not (parsed.flag("timing_only") or library.wanted() == "numpy"):
        session.log.warning(f"values are computed by {library.description()}")
    session.enter("running")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # said in the log
        results = _run(parsed, neffs, inputs, machine)
    for warning in dict.fromkeys(each.overflow for each in results if each.overflow):
        session.log.warning(f"[NCC_ERUN907] {warning}")
    result = max(results, key=lambda each: each.report.time_ns)
    session.enter("writing the results")
    if parsed.text_or_none("outputs") and len(results) == 1:
        write_outputs(parsed.text("outputs"), result.outputs, output_names(neff))
    elif parsed.text_or_none("outputs"):
        names = [output_names(each) for each in (neffs if len(neffs) > 1 else neffs * len(results))]
        write_device_outputs(parsed.text("outputs"), [each.outputs for each in results], names)
    if parsed.text_or_none("trace"):
        session.enter("writing the trace")
        write_trace(parsed.text("trace"), [each.execution for each in results])
    verdicts = None
    if checker is not None:
        session.enter("checking against the reference semantics")
        verdicts = checker(inputs, [each.outputs for each in results])
    _print(session, results, result, verdicts)
    if verdicts is not None and not verdicts.check.passed:
        divergence = verdicts.check.divergence
        where = divergence.loc if divergence else NO_LOC
        raise RunError("ERUN902", verdicts.check.summary, verdicts.check.remedy, loc=where)
    return 0


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """Of ``--check``: how accurate the compiled module is, and whether the simulator computes what it means."""

    comparison: "Comparison"
    check: "Check"
    fp64: "FromFp64 | None"
    """Where it was asked for."""


def _checker(
    parsed: Parsed, neff: Neff, session: Session
) -> Callable[[list[list[Array]], list[list[Array]]], _Verdicts]:
    """Finds the module before time is spent on the simulation; running a NEFF without ``--check`` needs no compiler."""
    from neuronx_cc.driver.check_neff import check_neff, compare_fp64, compare_neff, find_module

    source = find_module(neff, parsed.files[0], parsed.text_or_none("module"))

    def verdicts(inputs: list[list[Array]], outputs: list[list[Array]]) -> _Verdicts:
        comparison = compare_neff(neff, source, inputs, outputs)
        wide = compare_fp64(neff, source, inputs, outputs) if parsed.flag("fp64") else None
        return _Verdicts(comparison, check_neff(neff, source, inputs, outputs, session), wide)

    return verdicts


def _print(session: Session, results: list[RunResult], result: RunResult, verdicts: _Verdicts | None) -> None:
    """The report of ``result``, the slowest, as text or JSON, and the outcome of the check."""
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
        if len(parsed.files) > 1:
            report["devices_ns"] = [each.report.time_ns for each in results]
            report["together_ns"] = _together(results)
        session.show(json.dumps(report, indent=1))
        return
    columns = width(sys.stdout)
    session.show(result.report.to_text(rows, columns, operators=not chosen).rstrip("\n"))
    if len(parsed.files) > 1:
        times = ", ".join(f"{each.report.time_ns / 1000:.1f}" for each in results)
        together = _together(results)
        joint = "" if together is None else f"; with waiting for each other at most {together / 1000:.1f}"
        print(f"devices by themselves, us: {times}{joint}; the tables are of the slowest")
    if chosen:
        print("\n".join(["", *operator_table(document, rows, columns)]))
    if verdicts is not None:
        print(verdicts.comparison, end="")
        if verdicts.fp64 is not None:
            print(verdicts.fp64)
        if verdicts.check.passed:
            print(f"check: {verdicts.check.summary}")


def _together(results: list[RunResult]) -> float | None:
    """ns that devices with programs of their own take, waiting for each other; see ``time_together``."""
    time = time_together([each.execution for each in results])
    outside = max(each.report.time_ns - each.report.kernel_ns for each in results)
    return None if time is None else time + outside


def _check_options(parsed: Parsed) -> None:
    """Refuse combinations that cannot be met, and outputs that cannot be written, before simulating."""
    inputs = [*parsed.files, *filter(None, [parsed.text_or_none("inputs")])]
    for key in ("outputs", "trace"):
        if parsed.text_or_none(key):
            files.check_writable(parsed.text(key), f"--{key}", inputs)
    if parsed.flag("timing_only"):
        for key in ("outputs", "check", "stochastic_rounding"):
            if parsed.values[key] not in (None, False):
                option = f"--{key.replace('_', '-')}"
                raise UsageError("EARG905", f"--timing-only computes no values, {option} needs them", "drop one")
    if not 1 <= parsed.integer("devices") <= MAX_DEVICES:
        raise UsageError("EARG902", f"--devices takes 1 to {MAX_DEVICES}", "see --help")
    if len(parsed.files) > 1 and "devices" in parsed.given and parsed.integer("devices") != len(parsed.files):
        raise UsageError(
            "EARG905", f"{len(parsed.files)} programs run on as many devices", "drop --devices, or give one program"
        )
    if parsed.flag("fp64") and not parsed.flag("check"):
        raise UsageError("EARG905", "--fp64 is a part of --check", "give both")
    if parsed.flag("check") and len(parsed.files) > 1:
        remedy = "check each module's function without its exchanges: casts are the same"
        raise UsageError("EARG905", "--check takes one program, also of several devices, but not one for each", remedy)
    if parsed.flag("check") and parsed.values["stochastic_rounding"] is not None:
        raise UsageError("EARG905", "--check compares with rounding to nearest, not --stochastic-rounding", "drop one")


def read_neffs(parsed: Parsed, session: Session) -> list[Neff]:
    """Of each device in order, or one for all of them; equal paths are one program. Raises NeuronError."""
    paths = parsed.files
    if len(paths) == 1 and os.path.isdir(paths[0]):
        paths = parsed.files = files.numbered(paths[0], (".neff",))
        _check_options(parsed)
    if len(paths) > MAX_DEVICES:
        raise UsageError("EARG903", f"{len(paths)} programs, devices are at most {MAX_DEVICES}", "give fewer")
    known: dict[str, Neff] = {}
    for path in paths:
        if path not in known:
            known[path], _ = read_neff(path, session)
    return [known[path] for path in paths]


def _inputs(parsed: Parsed, neffs: list[Neff]) -> list[list[Array]]:
    """For each device from ``--inputs``, else random; none for a run without values."""
    count = max(len(neffs), parsed.integer("devices"))
    parameters = [parameters_of(neff) for neff in neffs] if len(neffs) > 1 else [parameters_of(neffs[0])] * count
    path = parsed.text_or_none("inputs")
    weights = parsed.text_or_none("weights")
    if path is not None or weights is not None:
        return read_device_inputs([each for each in (path, weights) if each is not None], parameters)
    if parsed.flag("timing_only"):
        return [[] for _ in range(count)]
    return [random_inputs(each, parsed.integer("seed") + number) for number, each in enumerate(parameters)]


def _run(parsed: Parsed, neffs: list[Neff], inputs: list[list[Array]], machine: Machine) -> list[RunResult]:
    """The result of each device; of the first one alone when there is nothing to compute and one program."""
    loaded = {id(neff): runtime.load(neff) for neff in neffs}
    executables = [loaded[id(neff)] for neff in neffs]
    seed = parsed.integer_or_none("stochastic_rounding")
    if len(executables) == 1 and (parsed.flag("timing_only") or len(inputs) == 1 == devices.device_count(*executables)):
        return [
            executables[0].run(
                inputs[0],
                timing_only=parsed.flag("timing_only"),
                stochastic_rounding_seed=seed,
                machine=machine,
            )
        ]
    group = devices.together(executables) if len(executables) > 1 else devices.replicate(executables[0])
    if parsed.flag("timing_only"):
        return [each.run([], timing_only=True, machine=machine, device=number) for number, each in enumerate(group)]
    return devices.run_devices(group, inputs, stochastic_rounding_seed=seed, machine=machine)


def _machine(parsed: Parsed, neff: Neff) -> Machine:
    """The machine that the program was planned for, or that of ``--machine``, with the values of ``--set``."""
    given = parsed.text_or_none("machine")
    return (neff.machine() if given is None else find_machine(given)).with_settings(parsed.names("set"))
