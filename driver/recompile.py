"""A module that is compiled again and again with other precision policies: what ``compare`` and ``tune`` share.

Input: a module as imported, the options it is compiled with. Output: NEFFs, their simulated times, and the module as it
comes to the casts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from neuronx_cc import runtime
from neuronx_cc.driver.compile import generate
from neuronx_cc.driver.machines import planned_machine
from neuronx_cc.driver.pipeline import pass_options
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.manager import PassContext, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names
from neuronx_cc.passes.precision.policy import Policy

if TYPE_CHECKING:
    from neuronx_cc.driver.parse import Parsed
    from neuronx_cc.ir.neff import Neff


class Model:
    """``load`` gives the module as imported, anew at each call."""

    def __init__(self, load: Callable[[], hlo.HloModule], parsed: Parsed) -> None:
        self.load, self._parsed = load, parsed
        self.machine, self.options = planned_machine(parsed), pass_options(parsed)

    def before_casts(self) -> tuple[hlo.HloModule, frozenset[str]]:
        """The module as it comes to the choice of types, and the names of the ops that it was imported with."""
        module, names = self.load(), pass_names(DEFAULT_PIPELINE)
        imported = frozenset(op.loc.name for computation in module.computations() for op in ops_of(computation.block))
        run_passes(
            module, names[: names.index("quantize_weights")], PassContext(self.options, self.machine, timed=False)
        )
        return module, imported

    def neff(self, policy: Policy) -> Neff:
        """Compiled under ``policy`` in place of the options' own."""
        module, options = self.load(), replace(self.options, policy=policy)
        run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(options, self.machine, timed=False))
        return generate(module, self._parsed, self.machine, [])

    def executable(self, policy: Policy) -> runtime.Executable:
        """The same, ready to run."""
        return runtime.load(self.neff(policy))

    def microseconds(self, policy: Policy) -> float:
        """Simulated, on the machine that it is planned for."""
        return float(self.executable(policy).run([], timing_only=True, machine=self.machine).report.time_ns) / 1e3
