"""Compilation for topologies, without their devices: ``jax.experimental.topologies`` and ``lower(...).compile()``.

jaxlib 0.10 compiles for a topology on a thread of its own and waits for it with Python's lock held, so that thread
cannot enter Python. Here the program is compiled first, and the C++ library hands it over when jaxlib asks.
"""

import threading
from typing import Any

from neuronx_cc.driver.jax_backend.client import client_options

_lock = threading.Lock()


def register(platform: str, library: Any) -> None:
    """Let JAX compile for topologies of ``platform``, whose devices the C++ ``library`` describes."""
    from jax._src import compiler, xla_bridge
    from jaxlib import _jax  # type: ignore[attr-defined,unused-ignore]

    compile_and_load = compiler.backend_compile_and_load

    def compile_for_platform(backend: Any, module: Any, devices: Any, options: Any, host_callbacks: Any) -> Any:
        if backend.platform != platform or not isinstance(backend, _jax.CompileOnlyPyClient):
            return compile_and_load(backend, module, devices, options, host_callbacks)
        with _lock:
            library.prepare(_compiled(module, options, len(backend.devices())))
            try:
                return compile_and_load(backend, module, devices, options, host_callbacks)
            finally:
                library.prepare(None)

    compiler.backend_compile_and_load = compile_for_platform

    def topology(name: str = "", **options: Any) -> Any:
        return _jax.get_default_c_api_topology(platform, name, {**client_options(), **options})

    xla_bridge._topology_factories[platform] = topology


def _compiled(module: Any, options: Any, device_count: int) -> Any:
    from jaxlib import _jax  # type: ignore[attr-defined,unused-ignore]
    from jaxlib.mlir.dialects import stablehlo

    from neuronx_cc.driver.jax_backend.compiler import compile
    from neuronx_cc.driver.jax_backend.failure import PluginError

    code = _jax.mlir.serialize_portable_artifact(module, stablehlo.get_current_version(), True)
    try:
        return compile(code, "mlir", options.SerializeAsString(), device_count)
    except PluginError as error:
        raise _jax.JaxRuntimeError(str(error)) from None
