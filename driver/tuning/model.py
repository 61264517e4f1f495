"""One tuning of one model: what the command and the Python function share.

Input: a module as imported, the machine to plan for, inputs, a goal. Output: a ``Tuning``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neuronx_cc import runtime
from neuronx_cc.driver.check import Progress
from neuronx_cc.driver.compile import generate
from neuronx_cc.driver.machines import planned_machine
from neuronx_cc.driver.options import COMPILE
from neuronx_cc.driver.parse import from_keywords
from neuronx_cc.driver.pipeline import pass_options
from neuronx_cc.driver.tuning.history import History
from neuronx_cc.driver.tuning.tuner import Goal, Runs, Tuner, Tuning
from neuronx_cc.driver.version import COMPILER_VERSION
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import NeuronError, UsageError
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.manager import PassContext, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names
from neuronx_cc.passes.precision.policy import NO_RULES, Policy

if TYPE_CHECKING:
    from neuronx_cc.ir.neff import Neff

Array = np.ndarray[Any, np.dtype[Any]]
Evaluate = Callable[[Runs], float]
"""A number for a program, which takes and gives lists of arrays."""


@dataclass(frozen=True, slots=True)
class Metric:
    """How the user's number is judged."""

    evaluate: Evaluate
    tolerable_loss: float = 0.01
    relative: bool = True
    higher_is_better: bool = True


class Model:
    """A module that is compiled again and again, with other policies."""

    def __init__(self, load: Callable[[], hlo.HloModule], options: dict[str, Any]) -> None:
        self._load = load
        self._parsed = from_keywords(COMPILE, {"auto_cast": "none", "int64": "exact", **options})
        self._machine = planned_machine(self._parsed)

    def neff(self, policy: Policy) -> Neff:
        module = self._load()
        options = replace(pass_options(self._parsed), policy=policy)
        run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(options, self._machine, timed=False))
        return generate(module, self._parsed, self._machine, [])

    def tune(
        self,
        inputs: Sequence[Array],
        goal: Goal,
        metric: Metric | None,
        types: Sequence[str],
        workspace: str | None,
        progress: Progress,
    ) -> Tuning:
        """Raises UsageError EARG912 for an evaluator that fails, EARG913 where nothing meets the goal."""
        module = self._load()
        names = [op.loc.name for computation in module.computations() for op in ops_of(computation.block)]
        passes = pass_names(DEFAULT_PIPELINE)
        context = PassContext(pass_options(self._parsed), self._machine, timed=False)
        identity = {"module": _digest(module), "inputs": _digest_of(inputs), "machine": self._machine.digest()}
        run_passes(module, passes[: passes.index("auto_cast")], context)

        def compiled(policy: Policy) -> runtime.Executable:
            return runtime.load(self.neff(policy))

        if metric is not None:
            goal = replace(goal, tolerance=None, accepts=_judge(metric, compiled(NO_RULES)))
        history = History(
            Path(workspace) / "history.jsonl" if workspace is not None else None,
            {**identity, "compiler": COMPILER_VERSION},
        )
        tuner = Tuner(module, frozenset(names), inputs, compiled, history, types, goal, progress)
        found = tuner.tune()
        if goal.tolerance is not None and found.chosen.error > goal.tolerance:
            raise UsageError(
                "EARG913",
                f"nothing meets a tolerance of {goal.tolerance:.1e}: FP32 has an error of {found.chosen.error:.1e}",
            )
        return found


def _judge(metric: Metric, fp32: runtime.Executable) -> Callable[[Runs], bool]:
    baseline = _number(metric.evaluate, lambda inputs: list(fp32.run(inputs).outputs))
    loss = metric.tolerable_loss * (abs(baseline) if metric.relative else 1.0)

    def accepts(run: Runs) -> bool:
        found = _number(metric.evaluate, run)
        return baseline - found <= loss if metric.higher_is_better else found - baseline <= loss

    return accepts


def _number(evaluate: Evaluate, run: Runs) -> float:
    try:
        value = float(evaluate(run))
    except NeuronError:
        raise
    except Exception as error:
        raise UsageError("EARG912", f"the evaluator raised {type(error).__name__}: {error}") from error
    if not math.isfinite(value):
        raise UsageError("EARG912", f"the evaluator gave {value}", "it must give a finite number")
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
