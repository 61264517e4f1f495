"""jaxlib's CPU client as the oracle: runs HLO text and gives back NumPy arrays."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jax._src.lib import _jax, xla_client
from jaxlib import _hlo
from jaxlib.mlir import ir as mlir_ir


@functools.cache
def _client() -> Any:
    return jax.devices("cpu")[0].client


@functools.cache
def _context() -> Any:
    """Of all modules; making one takes as long as compiling a small module."""
    return jax_mlir.make_ir_context()


def compile_text(text: str) -> Any:
    """Loaded executable of HLO text."""
    return compile_proto(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())


def compile_proto(module: bytes) -> Any:
    """Loaded executable of a HloModuleProto. LLVM does little, which compiles three times as fast.

    XLA's emitters are its default ones: without those of fusions it compiles faster still, but the others reach beside
    arrays where indices are of 8 bits, and compute (-1) ** -1 of integers wrongly.
    """
    computation = _hlo.XlaComputation(module)
    stablehlo = xla_client._xla.mlir.xla_computation_to_mlir_module(computation)
    options = xla_client.CompileOptions()
    options.executable_build_options.debug_options.xla_backend_optimization_level = 0
    with _context():
        parsed = mlir_ir.Module.parse(stablehlo)
        return _client().compile_and_load(parsed, _jax.DeviceList(tuple(_client().devices()[:1])), options)


def run_text(text: str, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Flat outputs of HLO text on the CPU."""
    return _run(compile_text(text), inputs)


def run_proto(module: bytes, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Flat outputs of a HloModuleProto on the CPU."""
    return _run(compile_proto(module), inputs)


def _run(executable: Any, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    with jax.enable_x64(True):
        buffers = [jax.device_put(np.array(array, order="C"), jax.devices("cpu")[0]) for array in inputs]
    results = executable.execute_sharded(buffers)
    return [np.asarray(shards[0]) for shards in results.disassemble_into_single_device_arrays()]
