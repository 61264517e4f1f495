"""The open Neuron compiler: XLA HLO to NeuronCore-v2 instruction streams, and a simulator for them.

``compile(module, **options)`` and ``load(path)`` are the whole Python interface; both take the
command line's option names with underscores (``auto_cast="matmult"``).
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "compile", "load"]

if TYPE_CHECKING:
    from neuronx_cc.driver.api import compile, load


def __getattr__(name: str) -> Any:
    """Import the API on first use, so that ``import neuronx_cc`` costs nothing."""
    if name in ("compile", "load"):
        from neuronx_cc.driver import api

        return getattr(api, name)
    raise AttributeError(f"module 'neuronx_cc' has no attribute {name!r}")
