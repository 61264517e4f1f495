"""Modules out of JAX's own objects: jitted, traced, lowered and exported functions, and XLA computations.

They are told apart by what they can do, so that JAX is not imported here: whoever has one has imported it.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from neuronx_cc.ir.errors import UsageError
from neuronx_cc.runtime.arguments import Structure

_PLUGIN = "neuronx_cc.driver.jax_backend._pjrt"


@dataclass(frozen=True, slots=True)
class Source:
    """A module that JAX has written."""

    data: bytes
    structure: Structure | None = None


def module_of(given: Any, arguments: tuple[Any, ...]) -> Source | None:
    """The module of ``given``, or None when that is none of JAX's objects.

    A jitted function is lowered for ``arguments``: arrays, or ``jax.ShapeDtypeStruct``s. Raises what JAX raises then,
    and UsageError EARG906 for objects that hold no module any more or not one.
    """
    traced = callable(getattr(given, "lower", None)) and hasattr(given, "jaxpr")
    if callable(given) and callable(getattr(given, "trace", None)):
        given = lower(given.trace(*arguments))
    elif callable(given) and callable(getattr(given, "lower", None)) and not traced:
        given = given.lower(*arguments)
    elif arguments:
        raise UsageError(
            "EARG906",
            f"arguments are for jitted functions, not for a {type(given).__name__}",
            "pass options by name; models of other frameworks: neuronx_cc.compile(neuronx_cc.load_model(model, x))",
        )
    elif traced:
        given = lower(given)
    if hasattr(given, "mlir_module_serialized"):
        return _exported(given)
    if callable(getattr(given, "compiler_ir", None)):
        return Source(_lowered(given), _structure(given))
    serialize = getattr(given, "as_serialized_hlo_module_proto", None)
    if callable(serialize):
        return Source(bytes(serialize()))
    if hasattr(given, "runtime_executable"):
        raise UsageError("EARG906", "JAX has compiled this already", "pass what was compiled: jax.jit(f).lower(...)")
    if callable(given):
        raise UsageError(
            "EARG906",
            f"cannot compile a {type(given).__name__}",
            "jit it and give it arguments: neuronx_cc.compile(jax.jit(f), x, y), or neuronx_cc.load_model(model, x)",
        )
    return None


def lower(traced: Any) -> Any:
    """``traced`` lowered for this platform, which has factorisations that the CPU leaves to LAPACK.

    Where the plug-in, whose lowerings these are, is not built, for the process's own.
    """
    return traced.lower(lowering_platforms=("neuron",)) if find_spec(_PLUGIN) else traced.lower()


def _lowered(given: Any) -> bytes:
    """HLO, or StableHLO of several partitions: HLO does not say how many."""
    module = given.compiler_ir("stablehlo")
    stated = getattr(getattr(module, "operation", None), "attributes", {})
    if "mhlo.num_partitions" in stated and stated["mhlo.num_partitions"].value > 1:
        code = BytesIO()
        module.operation.write_bytecode(code)
        return code.getvalue()
    return bytes(given.compiler_ir("hlo").as_serialized_hlo_module_proto())


def _exported(given: Any) -> Source:
    if len(given.platforms) != 1:
        raise UsageError(
            "EARG906",
            f"the function is exported for {', '.join(given.platforms)}, and its module chooses when it runs",
            "export it for one platform",
        )
    kept = tuple(given.module_kept_var_idx)
    return Source(bytes(given.mlir_module_serialized), Structure(given.in_tree, kept, given.out_tree))


def _structure(lowered: Any) -> Structure | None:
    """As far as JAX tells: which arguments it has dropped is not in its public interface."""
    arguments, results = getattr(lowered, "in_tree", None), getattr(lowered, "out_tree", None)
    if arguments is None or results is None:
        return None
    known = getattr(getattr(lowered, "_lowering", None), "compile_args", None) or {}
    kept = known.get("kept_var_idx", range(arguments.num_leaves))
    return Structure(arguments, tuple(sorted(kept)), results)
