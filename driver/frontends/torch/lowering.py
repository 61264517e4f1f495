"""From a graph of ATen operators to StableHLO, and to an executable.

``lower_graph`` gives what ``jax.jit(f).lower(...)`` gives; ``compile_lowered`` hands it to ``neuronx_cc.compile``.
"""

import inspect
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from neuronx_cc.driver import api, options
from neuronx_cc.driver.frontends.torch.checks import drop_checks
from neuronx_cc.driver.frontends.torch.interpreter import Interpreter, draws, refuse_unknown, uses_double
from neuronx_cc.driver.frontends.torch.registry import is_array
from neuronx_cc.driver.jax_objects import lower
from neuronx_cc.driver.parse import parse
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.neff import Neff

CompilerArgs = str | Sequence[str] | Mapping[str, Any] | None
_KEY_SHAPE = np.zeros(2, np.uint32)
KEY = "random_key"
"""Name of the parameter that random numbers are drawn for: two words."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph lowered for fixed shapes."""

    module: Any
    """JAX's ``Lowered``."""
    draws: bool
    """Whether a key for random numbers is the last parameter."""
    fixed: dict[int, Any]
    """Results of the graph that are no arrays, by place among all."""
    fp64_as_fp32: bool
    """The graph has no FP64; what JAX computes in it on the way may be FP32."""


def lower_graph(module: torch.fx.GraphModule, values: Sequence[Any], names: Mapping[int, str]) -> Lowered:
    """``module`` for ``values``, one a placeholder: shapes of parameters, and what is fixed.

    ``names``: the parameters' names in order, by place among the placeholders. Results are those of the graph that are
    arrays, flat. Raises CompileError EVRF001 for operators that are not known.
    """
    drop_checks(module)
    refuse_unknown(module)
    drawn = draws(module)
    fixed: dict[int, Any] = {}

    def function(*parameters: Any) -> list[Any]:
        all_values = list(values)
        for place, value in zip(names, parameters, strict=False):
            all_values[place] = value
        key = jax.random.wrap_key_data(parameters[-1], impl="threefry2x32") if drawn else None
        results = Interpreter(module).run(all_values, key)
        fixed.clear()
        fixed.update({i: each for i, each in enumerate(results) if not is_array(each)})
        return [each for each in results if is_array(each)]

    parameters = [(each, values[place]) for place, each in names.items()]
    if drawn:
        parameters.append((KEY, _KEY_SHAPE))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    function.__signature__ = inspect.Signature([inspect.Parameter(each, kind) for each, _ in parameters])  # type: ignore[attr-defined]
    function.__name__ = "forward"
    jax.devices()  # makes JAX register the lowerings of its plug-ins
    with jax.enable_x64(True):
        traced = jax.jit(function, keep_unused=True).trace(*[value for _, value in parameters])
        lowered = lower(traced)
    return Lowered(lowered, drawn, fixed, not uses_double(module))


def compile_lowered(lowered: Lowered, compiler_args: CompilerArgs = None, **defaults: Any) -> Neff:
    """The program. Raises UsageError for wrong options, CompileError with the lines of what does not compile."""
    given = {**defaults, **keywords_of(compiler_args)}
    if lowered.fp64_as_fp32:
        given["fp64_as_fp32"] = True
    return api.compile_neff(lowered.module, **given)[0]


def keywords_of(compiler_args: CompilerArgs) -> dict[str, Any]:
    """Options of ``neuronx-cc compile`` as keywords, from a command line, its words, or keywords."""
    if compiler_args is None:
        return {}
    if isinstance(compiler_args, Mapping):
        return dict(compiler_args)
    words = shlex.split(compiler_args) if isinstance(compiler_args, str) else list(compiler_args)
    parsed = parse(words, options.COMPILE)
    if parsed.files:
        raise UsageError("EARG903", f"compiler_args name no file, found {parsed.files[0]!r}", "give options only")
    return {key: list(value) if isinstance(value, tuple) else value for key, value in _given(parsed).items()}


def _given(parsed: Any) -> dict[str, Any]:
    return {key: parsed.values[key] for key in parsed.given}
