"""Registers the backend with JAX: the module that the entry point group ``jax_plugins`` names.

``initialize`` runs in every process that uses JAX where this package is installed, whatever platform is asked for; it
loads the C++ library and no compiler. The compiler is imported when the first program arrives.
"""

import dataclasses
import importlib
import os
from contextlib import suppress
from typing import Any

from neuronx_cc.driver.jax_backend.client import client_options

PRIORITY = -100
"""Below the CPU's 0: never the default unless ``JAX_PLATFORMS`` names it."""
MISSING = (
    "the neuron backend of open-neuronx-cc needs its C++ library, which was not built: install a C++17 compiler and "
    "install open-neuronx-cc again"
)


def initialize() -> None:
    """Register the platform ``neuron``; JAX calls this once. Without the C++ library, asking for it says why not."""
    from jax._src import xla_bridge

    try:
        _pjrt: Any = importlib.import_module("neuronx_cc.driver.jax_backend._pjrt")
    except ImportError:
        xla_bridge.register_backend_factory("neuron", _unavailable, priority=PRIORITY, fail_quietly=True)
        return
    _pjrt.configure(
        {
            "compile": _compile,
            "deserialize": _deserialize,
            "serialize": _serialize,
            "execute": _execute,
            "cost": _cost,
            "optimized": _optimized,
            "start_profile": _start_profile,
            "stop_profile": _stop_profile,
            "collect_profile": _collect_profile,
        }
    )
    xla_bridge.register_plugin(
        "neuron", priority=PRIORITY, library_path=os.path.abspath(_pjrt.__file__), options=client_options
    )
    # lowerings can only be registered for platforms that exist; another JAX may keep its primitive elsewhere
    with suppress(ImportError, AttributeError):
        from neuronx_cc.driver.jax_backend import eigh, householder, schur, sparse_solve, tridiagonal

        eigh.register("neuron")
        householder.register("neuron")
        tridiagonal.register("neuron")
        schur.register("neuron")
        sparse_solve.register("neuron")
    with suppress(ImportError, AttributeError):
        from neuronx_cc.driver.jax_backend import custom_partitioning

        custom_partitioning.register("neuron")
    with suppress(ImportError, AttributeError):
        from neuronx_cc.driver.jax_backend import host_calls

        host_calls.register("neuron")
    with suppress(ImportError, AttributeError):
        from neuronx_cc.driver.jax_backend import ahead

        ahead.register("neuron", _pjrt)
    with suppress(ImportError, AttributeError):
        from neuronx_cc.driver.jax_backend import dlpack

        dlpack.register("neuron")
    # a process that does not ask for this platform shall neither be warned about it nor fail because of it
    with suppress(AttributeError, KeyError, TypeError):
        registration = xla_bridge._backend_factories["neuron"]
        quiet = dataclasses.replace(registration, experimental=False, fail_quietly=True)
        xla_bridge._backend_factories["neuron"] = quiet


def _unavailable() -> Any:
    raise RuntimeError(MISSING)


def _compile(*arguments: Any) -> Any:
    from neuronx_cc.driver.jax_backend.compiler import compile

    return compile(*arguments)


def _execute(*arguments: Any) -> None:
    from neuronx_cc.driver.jax_backend.launch import execute

    execute(*arguments)


def _serialize(program: Any) -> bytes:
    from neuronx_cc.driver.jax_backend.artifact import serialize

    return serialize(program)


def _deserialize(data: bytes, options: bytes) -> Any:
    from neuronx_cc.driver.jax_backend.artifact import deserialize

    return deserialize(data, options)


def _cost(program: Any) -> Any:
    from neuronx_cc.driver.jax_backend.analysis import cost

    return cost(program)


def _optimized(program: Any) -> bytes:
    from neuronx_cc.driver.jax_backend.analysis import optimized

    return optimized(program)


def _start_profile() -> int:
    from neuronx_cc.driver.jax_backend.profiler import start

    return start()


def _stop_profile(session: int) -> None:
    from neuronx_cc.driver.jax_backend.profiler import stop

    stop(session)


def _collect_profile(session: int) -> bytes:
    from neuronx_cc.driver.jax_backend.profiler import collect

    return collect(session)
