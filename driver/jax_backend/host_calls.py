"""Host callbacks inside ``jit``: JAX lowers them to custom calls that carry the number of a registered function.

``jax.debug.print``, ``jax.debug.callback``, ``jax.pure_callback``, ``io_callback`` and ``checkify.check`` all emit
their call through one function of JAX, which knows JAX's own platforms only; for this one it is ``_emit``. A function
lives as long as JAX keeps what it has lowered or compiled, and as long as a compiled program holds it.
"""

import dataclasses
import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from neuronx_cc.driver.jax_backend.turns import TURNS
from neuronx_cc.ir.isa.elements import Array
from neuronx_cc.ir.isa.host import HOST_CALL
from neuronx_cc.ir.isa.program import Program

_numbers = itertools.count()
_inspections: "weakref.WeakValueDictionary[int, Inspection]" = weakref.WeakValueDictionary()
_functions: "weakref.WeakValueDictionary[int, HostFunction]" = weakref.WeakValueDictionary()
NO_CPU = "JAX hands arrays on a CPU device to callbacks and prints, and there is none: set JAX_PLATFORMS=neuron,cpu"


class HostFunction:
    """A callback with the shapes that JAX knows; it is called with arrays as device memory holds them."""

    def __init__(self, callback: Callable[..., Sequence[Any]], operands: Iterable[Any], results: Iterable[Any]) -> None:
        """``operands`` and ``results``: JAX's abstract arrays."""
        self._callback = callback
        self._operands = [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in operands]
        self._results = [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in results]
        self.number = next(_numbers)
        _functions[self.number] = self

    def __call__(self, stored: Sequence[Array]) -> list[Array]:
        """Complex arrays are two, ``bool[0]`` is none (``passes.resolve_host_calls``); 64-bit integers that are
        truncated have 32 bits."""
        given = iter(stored)
        operands = [_given(shape, dtype, given) for shape, dtype in self._operands]
        with TURNS.call():
            return [part for array in self._checked(self._callback(*operands)) for part in _parts(array)]

    def _checked(self, results: Sequence[Any]) -> list[Array]:
        from jax._src import dtypes

        if len(results) != len(self._results):
            raise RuntimeError(
                f"Mismatched number of outputs from callback. Expected: {len(self._results)}, Actual: {len(results)}"
            )
        arrays = [np.asarray(dtypes.canonicalize_value(np.asarray(result))) for result in results]
        for number, (array, (shape, dtype)) in enumerate(zip(arrays, self._results, strict=True)):
            if array.shape != shape:
                raise RuntimeError(
                    f"Incorrect output shape for return value #{number}: Expected: {shape}, Actual: {array.shape}"
                )
            if array.dtype != dtype:
                raise RuntimeError(
                    f"Incorrect output dtype for return value #{number}: Expected: {dtype}, Actual: {array.dtype}"
                )
        return arrays


class Inspection:
    """A function of jaxlib's HloSharding, to call when the program that it stands in is partitioned."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        self._function = function
        self.number = next(_numbers)
        _inspections[self.number] = self

    def __call__(self, sharding: bytes) -> None:
        from jaxlib import _hlo  # type: ignore[attr-defined,unused-ignore]

        given = _hlo.OpSharding()
        given.ParseFromString(sharding)
        self._function(_hlo.HloSharding.from_proto(given))


def inspect(found: Iterable[tuple[int, bytes]]) -> None:
    """Tell the functions of these numbers the shardings (serialized OpShardings) that they ask for."""
    for number, sharding in found:
        inspection = _inspections.get(number)
        if inspection is not None:
            inspection(sharding)


def _is_nothing(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return shape == (0,) and dtype == np.bool_


def _given(shape: tuple[int, ...], dtype: np.dtype[Any], stored: Iterable[Array]) -> Array:
    """An operand as JAX knows it, from the next of the arrays that memory holds."""
    if _is_nothing(shape, dtype):
        return np.zeros(shape, dtype)
    array = next(iter(stored))
    if dtype.kind != "c":
        return array.astype(dtype, copy=False)
    whole = np.empty(shape, dtype)
    whole.real, whole.imag = array, next(iter(stored))
    return whole


def _parts(array: Array) -> list[Array]:
    """A result as memory holds it."""
    if _is_nothing(array.shape, array.dtype):
        return []
    return [array.real, array.imag] if array.dtype.kind == "c" else [array]


def functions_of(program: Program) -> dict[int, HostFunction]:
    """The functions that ``program`` calls, as far as they are still there."""
    found = ((call.function, _functions.get(call.function)) for call in program.host_calls)
    return {number: function for number, function in found if function is not None}


def register(platform: str) -> None:
    """Let JAX lower callbacks for this platform."""
    from jax._src import callback, checkify, debugging
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    emit = callback.emit_python_callback

    def emit_for_platform(ctx: Any, *arguments: Any, **keywords: Any) -> Any:
        chosen = _emit if tuple(ctx.module_context.platforms) == (platform,) else emit
        return chosen(ctx, *arguments, **keywords)

    callback.emit_python_callback = emit_for_platform
    for primitive, rule in (
        (debugging.debug_callback_p, debugging.debug_callback_lowering),
        (debugging.debug_print_p, debugging.debug_print_lowering_rule),
        (checkify.check_p, checkify.check_lowering_rule),
    ):
        mlir.register_lowering(primitive, rule, platform=platform, cacheable=False)

    def inspect(ctx: Any, value: Any, *, callback: Callable[[Any], None]) -> Any:
        """JAX's rule, with the number of a function in the place of its address."""
        kept = len(ctx.module_context.keepalives)
        results = debugging._inspect_sharding_lowering_rule(ctx, value, callback=callback)
        if len(ctx.module_context.keepalives) > kept:
            inspection = Inspection(ctx.module_context.keepalives[-1])
            ctx.module_context.add_keepalive(inspection)
            *_, op = ir.InsertionPoint.current.block.operations
            op.attributes["backend_config"] = ir.StringAttr.get(str(inspection.number))
        return results

    mlir.register_lowering(debugging.inspect_sharding_p, inspect, platform=platform, cacheable=False)


def _emit(
    ctx: Any,
    callback: Callable[..., Sequence[Any]],
    token: Any,
    operands: Sequence[Any],
    operand_avals: Sequence[Any],
    result_avals: Sequence[Any],
    *,
    has_side_effect: bool,
    returns_token: bool = True,
    partitioned: bool = False,
    sharding: Any = None,
) -> tuple[list[Any], Any, None]:
    """The operation (results, token, None) for one callback; arguments are those of JAX's function of this purpose."""
    from jax._src import core, xla_bridge
    from jax._src.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    try:
        xla_bridge.local_devices(backend="cpu")
    except RuntimeError:
        raise RuntimeError(NO_CPU) from None
    device = _only_device(sharding)
    if partitioned and getattr(ctx.module_context.axis_context, "num_devices", 1) > 1:
        raise NotImplementedError("callbacks on the parts of sharded arrays are not there: partitioned=True")
    operand_avals, result_avals = (
        [core.physical_aval(aval) for aval in avals] for avals in (operand_avals, result_avals)
    )
    function = HostFunction(callback, operand_avals, result_avals)
    ctx.module_context.add_host_callback(function)
    types = [mlir.aval_to_ir_type(ctx.module_context, aval) for aval in result_avals]
    op = mlir.custom_call(
        HOST_CALL,
        result_types=[stablehlo.TokenType.get(), *types] if token else types,
        operands=[token, *operands] if token else list(operands),
        backend_config=str(function.number) if device is None else f"{function.number} {device}",
        has_side_effect=has_side_effect,
    )
    _annotate(ctx.module_context, op, sharding)
    results = list(op.results)
    if token:
        token, *results = results
    return results, token, None


def _annotate(module_context: Any, op: Any, sharding: Any) -> None:
    """Give ``op`` Shardy's ``sharding`` of its results, of which a token is the first."""
    from jax._src.interpreters import mlir

    parts = getattr(sharding, "shardings", ())
    if not parts:
        return
    missing = max(1, len(op.results)) - len(parts)
    token = dataclasses.replace(parts[0], dim_shardings=())
    mlir.set_sharding(module_context, op, type(sharding)((*(token for _ in range(missing)), *parts)))


def _only_device(sharding: Any) -> int | None:
    """The only partition that is to call, if ``sharding`` (a list of Shardy's shardings) names one."""
    parts = getattr(sharding, "shardings", ())
    devices = tuple(parts[0].logical_device_ids) if parts else ()
    return int(devices[0]) if len(devices) == 1 else None
