"""The open Neuron compiler: XLA HLO to NeuronCore-v2 instruction streams, and a simulator for them.

``compile(module, **options)`` and ``load(path)`` compile and load programs; options are the command line's names with
underscores (``auto_cast="matmult"``). ``last_run()`` and ``recording()`` tell the simulated time of what JAX has run
with ``JAX_PLATFORMS=neuron``.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "compile", "last_run", "load", "recording", "write_xprof"]

if TYPE_CHECKING:
    from neuronx_cc.driver.api import compile, load
    from neuronx_cc.driver.jax_backend.report import last_run, recording
    from neuronx_cc.driver.jax_backend.xprof import write_xprof


def __getattr__(name: str) -> Any:
    """Import the API on first use, so that ``import neuronx_cc`` costs nothing."""
    if name in ("compile", "load"):
        from neuronx_cc.driver import api

        return getattr(api, name)
    if name in ("last_run", "recording"):
        from neuronx_cc.driver.jax_backend import report

        return getattr(report, name)
    if name == "write_xprof":
        from neuronx_cc.driver.jax_backend import xprof

        return xprof.write_xprof
    raise AttributeError(f"module 'neuronx_cc' has no attribute {name!r}")
