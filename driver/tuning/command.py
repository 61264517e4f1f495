"""``tune``: finds a precision policy, prints what was chosen and the Pareto front, writes the policy."""

import importlib
import json
import math
import os
import sys
from typing import cast

from neuronx_cc.driver import files
from neuronx_cc.driver.engines import engine
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.frontends.door import fixed_by, load_module, read
from neuronx_cc.driver.parse import Parsed
from neuronx_cc.driver.policy_file import written
from neuronx_cc.driver.tensors import parameters_of, random_inputs, read_device_inputs
from neuronx_cc.driver.tuning.chart import chart
from neuronx_cc.driver.tuning.model import Evaluate, Metric, model_of, tune_model
from neuronx_cc.driver.tuning.tuner import Goal
from neuronx_cc.ir.errors import CompileError, UsageError
from neuronx_cc.passes.precision.policy import NO_RULES


def tune_command(session: Session) -> int:
    """Body of ``neuronx-cc tune``."""
    parsed = session.parsed
    assert parsed is not None
    session.open_logfile()
    path = parsed.files[0]
    files.check_writable(parsed.text("output"), "--output", [path])
    image = parsed.text_or_none("chart")
    if image is not None:
        files.check_writable(image, "--chart", [path])
    bounds = parsed.integer("max_trials"), float(parsed.integer("timeout")), parsed.integer("front")
    objective = parsed.text("objective")
    goal = Goal(_share(parsed, "tolerance"), None, *bounds, objective)
    metric = _metric(parsed)
    session.enter("reading the module")
    data = read(path)
    session.module = (path, data)
    fixed = fixed_by(parsed)
    settings = {"machine": parsed.text_or_none("machine"), "set": parsed.names("set")}
    model = model_of(lambda: load_module(data, path, fixed), {key: value for key, value in settings.items() if value})
    session.enter("compiling in FP32")
    parameters = parameters_of(model.neff(NO_RULES))
    session.enter("reading the inputs")
    given = parsed.text_or_none("inputs")
    if given is not None:
        inputs = read_device_inputs([given], [parameters] * model.devices)
    else:
        inputs = [random_inputs(parameters, parsed.integer("seed") + number) for number in range(model.devices)]
    if given is None and metric is None:
        session.log.warning("tuned on random inputs: errors of real ones may differ; give some with --inputs")
    session.enter("tuning")

    def progress(what: str, done: int, of: int) -> None:
        session.progress.enter(f"tuning, {what} {done} of {of}" if what != "trial" else f"tuning, trial {done}")

    elsewhere = parsed.integer("workers") != 1 or parsed.text_or_none("scheduler") is not None
    workers = engine(parsed) if elsewhere else None
    try:
        found = tune_model(
            model,
            inputs,
            goal,
            metric,
            parsed.names("types"),
            parsed.text("strategy"),
            parsed.text_or_none("workspace"),
            progress,
            workers,
        )
    finally:
        if workers is not None:
            workers.close()
    output = parsed.text("output")
    files.write_text(output, written(found.policy, output), CompileError)
    if image is not None:
        files.write_text(image, chart(found), CompileError)
    if parsed.flag("json"):
        session.show(json.dumps(found.to_json(), indent=1))
    else:
        session.show(str(found).rstrip("\n"))
        print(f"To compile so: {_to_compile(parsed)}")
    return 0


def _to_compile(parsed: Parsed) -> str:
    """The command that compiles with what was found."""
    constants = parsed.text_or_none("constants")
    also = f" --constants {constants}" if constants is not None else ""
    return f"compile {parsed.files[0]} --auto-cast none --precision-policy {parsed.text('output')}{also}"


def _share(parsed: Parsed, key: str) -> float:
    try:
        value = float(parsed.text(key))
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        option = f"--{key.replace('_', '-')}"
        raise UsageError("EARG902", f"{option} takes a number of 0 or more, found {parsed.text(key)[:40]!r}")
    return value


def _metric(parsed: Parsed) -> Metric | None:
    """The function that ``--evaluate`` names, found from the working directory too."""
    word = parsed.text_or_none("evaluate")
    if word is None:
        return None
    module, _, name = word.partition(":")
    if not module or not name:
        raise UsageError("EARG902", f"--evaluate takes MODULE:FUNCTION, found {word!r}")
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:
        raise UsageError("EARG912", f"--evaluate {word}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(function):
        raise UsageError("EARG912", f"--evaluate {word} is no function")
    loss = _share(parsed, "tolerable_loss")
    return Metric(cast(Evaluate, function), loss, not parsed.flag("absolute_loss"), not parsed.flag("lower_is_better"))
