"""One tuning of one model: what the command and the Python function share.

Input: a module as imported, the machine to plan for, inputs, a goal. Output: a ``Tuning``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np

from neuronx_cc import runtime
from neuronx_cc.driver.check import Progress
from neuronx_cc.driver.jobs import Engine
from neuronx_cc.driver.options import COMPILE, TUNE_OBJECTIVES, TUNE_STRATEGIES
from neuronx_cc.driver.parse import from_keywords
from neuronx_cc.driver.recompile import Model
from neuronx_cc.driver.tuning.bench import Bench, sent
from neuronx_cc.driver.tuning.history import History
from neuronx_cc.driver.tuning.mixing import Mixing
from neuronx_cc.driver.tuning.op_wise import BySensitivity, Conservative, OpWise, Rescored
from neuronx_cc.driver.tuning.results import Tuning
from neuronx_cc.driver.tuning.tuner import Goal, Runs, Tuner
from neuronx_cc.driver.version import COMPILER_VERSION
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import NeuronError, UsageError
from neuronx_cc.passes.precision.policy import NO_RULES

Array = np.ndarray[Any, np.dtype[Any]]
STRATEGIES: dict[str, type[Tuner]] = dict(
    zip(TUNE_STRATEGIES, (Mixing, Mixing, OpWise, BySensitivity, Rescored, Conservative), strict=True)
)
Evaluate = Callable[[Runs], float]
"""A number for a program, which takes and gives lists of arrays."""


@dataclass(frozen=True, slots=True)
class Metric:
    """How the user's number is judged."""

    evaluate: Evaluate
    tolerable_loss: float = 0.01
    relative: bool = True
    higher_is_better: bool = True


def model_of(load: Callable[[], hlo.HloModule], options: dict[str, Any]) -> Model:
    """What is tuned: ``load`` gives the module as imported, anew at each call; ``options`` are those of ``compile``."""
    return Model(load, from_keywords(COMPILE, {"auto_cast": "none", "int64": "exact", **options}))


def tune_model(
    model: Model,
    inputs: Sequence[Sequence[Array]],
    goal: Goal,
    metric: Metric | None,
    types: Sequence[str],
    strategy: str,
    workspace: str | None,
    progress: Progress,
    engine: Engine | None = None,
) -> Tuning:
    """Trials are made by ``engine``, or here; ``inputs`` are those of each device.

    Raises UsageError EARG902 for a tolerance that is none, EARG905 for a metric of a program of several devices,
    EARG912 for an evaluator that fails, EARG913 where nothing meets the goal.
    """
    if metric is not None:
        model.require_one_device("an evaluator is given")
    tolerated = goal.tolerance if metric is None else metric.tolerable_loss
    if not tolerated >= 0:
        raise UsageError("EARG902", f"a tolerance of {tolerated}", "give a number that is not negative, such as 0.01")
    if goal.objective not in TUNE_OBJECTIVES:
        remedy = f"one of {', '.join(TUNE_OBJECTIVES)}"
        raise UsageError("EARG902", f"no objective {goal.objective!r} to tune for", remedy)
    if strategy not in STRATEGIES:
        raise UsageError("EARG902", f"no strategy {strategy!r} to tune with", f"one of {', '.join(STRATEGIES)}")
    identity = {
        "module": _digest(model.load()),
        "inputs": _digest_of([array for row in inputs for array in row]),
        "machine": model.machine.digest(),
    }
    bench = Bench(model, inputs, progress=progress)
    if metric is not None:
        goal = _judged(goal, metric, model.executable(NO_RULES))
    elif all(each.size and not np.isfinite(_numbers(each)).any() for each in bench.expected) and bench.expected:
        raise UsageError(
            "EARG913",
            "no result in FP32 is a finite number, so that no error can be told",
            "give inputs whose results are numbers",
        )
    history = History(
        Path(workspace) / f"{strategy}.jsonl" if workspace is not None else None,
        {**identity, "compiler": COMPILER_VERSION},
    )
    with ExitStack() as stack:
        measure = bench.trials if engine is None else stack.enter_context(sent(bench, engine))
        found = STRATEGIES[strategy](bench, measure, history, types, goal, progress).tune()
    if goal.loss is None and found.chosen.error > goal.tolerance:
        raise UsageError(
            "EARG913",
            f"nothing meets a tolerance of {goal.tolerance:.1e}: FP32 has an error of {found.chosen.error:.1e}",
        )
    return found


def _numbers(array: Array) -> Array:
    """What ``numpy.isfinite`` takes; complex numbers are."""
    return array if array.dtype.kind in "biuc" else array.astype(np.float32)


def _judged(goal: Goal, metric: Metric, fp32: runtime.Executable) -> Goal:
    baseline = _number(metric.evaluate, lambda inputs: list(fp32.run(inputs).outputs))
    sign = 1.0 if metric.higher_is_better else -1.0
    tolerable = metric.tolerable_loss * (abs(baseline) if metric.relative else 1.0)
    return replace(goal, tolerance=tolerable, loss=lambda run: sign * (baseline - _number(metric.evaluate, run)))


def _number(evaluate: Evaluate, run: Runs) -> float:
    try:
        given = evaluate(run)
    except NeuronError:
        raise
    except (Exception, SystemExit) as error:
        said, last = " ".join(str(error).split()), extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}"
        raise UsageError("EARG912", f"the evaluator raised {type(error).__name__}: {said} ({where})") from error
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        shown = " ".join(repr(given).split())[:60]
        raise UsageError("EARG912", f"the evaluator gave {shown}", "it must give a finite number")
    return value


def _digest(module: hlo.HloModule) -> str:
    from neuronx_cc.hlo_import.printer import print_module

    return hashlib.sha256(print_module(module).encode()).hexdigest()


def _digest_of(arrays: Sequence[Array]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()
