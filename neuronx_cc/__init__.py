"""The open Neuron compiler: XLA HLO to NeuronCore-v2 instruction streams, and a simulator for them.

``compile(module, **options)`` and ``load(path)`` compile and load programs, ``load_model(x)`` takes models of other
frameworks; options are the command line's names with
underscores (``auto_cast="matmult"``). ``last_run()`` and ``recording()`` tell the simulated time of what JAX has run
with ``JAX_PLATFORMS=neuron``. Every error is a ``NeuronError`` with a code, a place and a remedy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neuronx_cc.driver.api import compare, compile, load, quantize, tune
    from neuronx_cc.driver.compare import Comparison
    from neuronx_cc.driver.frontends.door import load_model
    from neuronx_cc.driver.frontends.model import Model
    from neuronx_cc.driver.jax_backend.report import Run, last_run, recording, write_xprof
    from neuronx_cc.driver.tuning.results import Tuning
    from neuronx_cc.ir.errors import CompileError, NeuronError, RunError, UsageError
    from neuronx_cc.runtime.executable import Executable, RunResult
    from neuronx_cc.runtime.report import RunReport

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "CompileError",
    "Executable",
    "Model",
    "NeuronError",
    "Run",
    "RunError",
    "RunReport",
    "RunResult",
    "Tuning",
    "UsageError",
    "__version__",
    "compare",
    "compile",
    "last_run",
    "load",
    "load_model",
    "quantize",
    "recording",
    "tune",
    "write_xprof",
]

_HOMES = {
    "neuronx_cc.driver.api": ("compare", "compile", "load", "quantize", "tune"),
    "neuronx_cc.driver.compare": ("Comparison",),
    "neuronx_cc.driver.frontends.door": ("load_model",),
    "neuronx_cc.driver.frontends.model": ("Model",),
    "neuronx_cc.driver.tuning.results": ("Tuning",),
    "neuronx_cc.driver.jax_backend.report": ("Run", "last_run", "recording", "write_xprof"),
    "neuronx_cc.ir.errors": ("CompileError", "NeuronError", "RunError", "UsageError"),
    "neuronx_cc.runtime.executable": ("Executable", "RunResult"),
    "neuronx_cc.runtime.report": ("RunReport",),
}


def __getattr__(name: str) -> Any:
    """Import the API on first use, so that ``import neuronx_cc`` costs nothing."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'neuronx_cc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
