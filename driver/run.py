"""``run``: load a NEFF, execute it on the simulated device, write outputs, report, trace, check.

Input: a NEFF, and an ``.npz`` of inputs or a seed for random ones. Output: an ``.npz`` of outputs, a report.
"""

import hashlib
import json
from pathlib import Path

from neuronx_cc.driver import files
from neuronx_cc.driver.check import Check, check
from neuronx_cc.driver.compile import MODULE_DIGEST, MODULE_NAME, generate
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.log import Log
from neuronx_cc.driver.options import COMPILE
from neuronx_cc.driver.parse import Parsed, from_keywords
from neuronx_cc.driver.pipeline import run_pipeline
from neuronx_cc.driver.tensors import Array, random_inputs, read_inputs, write_outputs
from neuronx_cc.ir.errors import NO_LOC, RunError, UsageError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.types import shape
from neuronx_cc.runtime import RunResult, load


def run_command(session: Session) -> int:
    """Body of ``neuronx-cc run``. Exit status 1 when ``--check`` finds a divergence."""
    parsed = session.parsed
    assert parsed is not None
    if parsed.text_or_none("logfile"):
        session.log.open(parsed.text("logfile"), required=True)
        session.log_command()
    _check_options(parsed)
    path = parsed.files[0]
    session.enter("loading the NEFF")
    data = files.read(path, "NEFF")
    session.module = (path, data)
    neff = Neff.from_bytes(data)
    source = find_module(neff, path, parsed.text_or_none("module")) if parsed.flag("check") else None
    session.enter("reading the inputs")
    inputs = _inputs(parsed, neff)
    session.enter("running")
    result = load(neff).run(
        inputs,
        timing_only=parsed.flag("timing_only"),
        stochastic_rounding_seed=parsed.integer_or_none("stochastic_rounding"),
        trace=parsed.text_or_none("trace") is not None,
    )
    session.enter("writing the results")
    if parsed.text_or_none("outputs"):
        write_outputs(parsed.text("outputs"), result.outputs)
    if parsed.text_or_none("trace"):
        files.write_text(parsed.text("trace"), json.dumps(result.trace), RunError)
    outcome = None
    if source is not None:
        session.enter("checking against the reference semantics")
        outcome = _check(neff, source, inputs, result.outputs, session)
    _print(parsed, result, outcome)
    if outcome is not None and not outcome.passed:
        loc = outcome.divergence.loc if outcome.divergence else NO_LOC
        raise RunError("ERUN902", outcome.summary, loc=loc)
    return 0


def _print(parsed: Parsed, result: RunResult, outcome: Check | None) -> None:
    """The report, as text or JSON, and the outcome of the check."""
    report = result.report.to_json() if result.report is not None else {}
    if parsed.flag("json"):
        if outcome is not None:
            report["check"] = {"passed": outcome.passed, "error": outcome.error, "summary": outcome.summary}
        print(json.dumps(report, indent=1))
        return
    if result.report is not None:
        print(result.report)
    if outcome is not None and outcome.passed:
        print(f"check: {outcome.summary}")


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
    if parsed.flag("check") and parsed.values["stochastic_rounding"] is not None:
        raise UsageError("EARG905", "--check compares with rounding to nearest, not --stochastic-rounding", "drop one")


def _inputs(parsed: Parsed, neff: Neff) -> list[Array]:
    """From ``--inputs``, else random; none for a run without values."""
    parameters = [(variable.name, shape(variable.dtype, variable.dims)) for variable in neff.inputs]
    path = parsed.text_or_none("inputs")
    if path is not None:
        return read_inputs(path, parameters)
    return [] if parsed.flag("timing_only") else random_inputs(parameters, parsed.integer("seed"))


def find_module(neff: Neff, path: str, explicit: str | None) -> tuple[str, bytes]:
    """The file that ``neff`` was compiled from, told by its digest: ``explicit``, or by name beside the NEFF or here.

    Raises ``RunError`` ERUN903 when it is not found or is another one.
    """
    name, digest = neff.options.get(MODULE_NAME), neff.options.get(MODULE_DIGEST)
    if not isinstance(name, str) or not isinstance(digest, str):
        raise RunError("ERUN903", "the NEFF does not say which module it was compiled from", "compile it from a file")
    if explicit is not None:
        data = files.read(explicit, "module")
        if hashlib.sha256(data).hexdigest() != digest:
            raise RunError("ERUN903", f"{explicit} is not the module that the NEFF was compiled from ({name})")
        return explicit, data
    for folder in (Path(path).parent, Path()):
        candidate = folder / name
        if name and candidate.is_file():
            data = files.read(str(candidate), "module")
            if hashlib.sha256(data).hexdigest() == digest:
                return str(candidate), data
    raise RunError("ERUN903", f"--check needs the module that the NEFF was compiled from; {name!r} is not found")


def _check(neff: Neff, source: tuple[str, bytes], inputs: list[Array], outputs: list[Array], session: Session) -> Check:
    """Repeat import and passes with the recorded options, and judge ``outputs``."""
    from neuronx_cc.hlo_import import load_module

    known = {option.key for option in COMPILE.options}
    parsed = from_keywords(COMPILE, {key: value for key, value in neff.options.items() if key in known})
    module = load_module(source[1], source[0])
    # what the passes warn of was said when the NEFF was compiled
    run_pipeline(module, parsed, Session(session.program, session.argv, Log(level=100), parsed))

    def rerun(changed: HloModule) -> list[Array]:
        return load(generate(changed, parsed, [])).run(inputs).outputs

    return check(module, inputs, outputs, rerun)
