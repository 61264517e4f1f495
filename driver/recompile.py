"""A module that is compiled again and again with other precision policies: what ``compare`` and ``tune`` share.

Input: a module as imported, the options it is compiled with. Output: NEFFs, their simulated times, and the module as it
comes to the casts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from neuronx_cc import runtime
from neuronx_cc.driver.compile import generate, planner_of
from neuronx_cc.driver.machines import planned_machine
from neuronx_cc.driver.pipeline import pass_options
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.analysis.devices import device_counts
from neuronx_cc.passes.manager import PassContext, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names
from neuronx_cc.passes.precision.policy import Policy, Rule

if TYPE_CHECKING:
    from neuronx_cc.driver.parse import Parsed
    from neuronx_cc.ir.neff import Neff

_PASSES = pass_names(DEFAULT_PIPELINE)
BEFORE_CASTS = _PASSES[: _PASSES.index("quantize_weights")]
CASTS_AND_AFTER = _PASSES[len(BEFORE_CASTS) :]


class Model:
    """``load`` gives the module as imported, anew at each call.

    What comes before the casts is done once, and equal contractions are planned once for all policies.
    """

    def __init__(self, load: Callable[[], hlo.HloModule], parsed: Parsed) -> None:
        self.load, self._parsed = load, parsed
        self.machine, self.options = planned_machine(parsed), pass_options(parsed)
        self._planner = planner_of(parsed, self.machine)
        self._last: tuple[str, Neff] | None = None

    @property
    def recorded(self) -> dict[str, Any]:
        """The options, by keyword."""
        return self._parsed.recorded()

    @cached_property
    def _imported(self) -> tuple[hlo.HloModule, frozenset[str]]:
        module = self.load()
        names = frozenset(op.loc.name for computation in module.computations() for op in ops_of(computation.block))
        run_passes(module, BEFORE_CASTS, PassContext(self.options, self.machine, timed=False))
        return module, names

    def before_casts(self) -> tuple[hlo.HloModule, frozenset[str]]:
        """The module before types are chosen, not to be changed, and the names of the ops it was imported with."""
        return self._imported

    def require_one_device(self, what: str) -> None:
        """Raise UsageError EARG905 for a module that several devices share: ``what`` the program of one device."""
        if self.devices > 1:
            message = f"{what} the program of one device, and {self.devices} share this module"
            raise UsageError(
                "EARG905", message, "give a tolerance, or the function without shardings: casts are the same"
            )

    @property
    def devices(self) -> int:
        """That share the module."""
        return prod(device_counts(self._imported[0]))

    def neff(self, policy: Policy) -> Neff:
        """Compiled under ``policy`` in place of the options' own, which sums in the same types.

        What equals the program made last is not made again.
        """
        assert _sums(policy) == _sums(self.options.policy), "sums get their types before the module is kept"
        module, options = self._imported[0].copy(), replace(self.options, policy=policy)
        run_passes(module, CASTS_AND_AFTER, PassContext(options, self.machine, timed=False))
        digest = digest_of(module)
        if self._last is None or self._last[0] != digest:
            self._last = digest, generate(module, self._parsed, self.machine, [], planner=self._planner)
        return self._last[1]

    def executable(self, policy: Policy) -> runtime.Executable:
        """The same, ready to run."""
        return runtime.load(self.neff(policy))

    def microseconds(self, policy: Policy) -> float:
        """Simulated, on the machine that it is planned for."""
        return float(self.executable(policy).run([], timing_only=True, machine=self.machine).report.time_ns) / 1e3


def _sums(policy: Policy) -> list[Rule]:
    return [rule for rule in policy.rules if rule.accumulate]


def digest_of(module: hlo.HloModule) -> str:
    """The same for equal modules, also by what their text has no place for, as the algorithm of a convolution."""
    text = hashlib.sha256(print_module(module, large_constants=False).encode())
    for computation in module.computations():
        for op in ops_of(computation.block):
            text.update("".join(f"{key} {value}\n" for key, value in op.properties.items()).encode())
    return text.hexdigest()
