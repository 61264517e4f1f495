"""Keras 3 models, traced on its JAX backend. Files are loaded in Keras' safe mode."""

import os
import sys
from importlib import import_module
from typing import Any

from neuronx_cc.driver.frontends.model import Fixed, Model, fixed_dims
from neuronx_cc.ir.errors import CompileError, UsageError


def of_file(path: str, fixed: Fixed) -> Model:
    """The ``.keras`` file at ``path``. Raises CompileError EVRF064 when it is damaged or holds Python code."""
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = import_module("keras")
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        # Keras raises whatever its layers, h5py and zipfile do
        detail = " ".join(str(error).split())[:300]
        raise CompileError("EVRF064", f"{path}: Keras cannot load it: {detail}", "save it again") from None
    return of_model(model, fixed, path)


def of_model(model: Any, fixed: Fixed, source: str = "") -> Model:
    """A model whose inputs are known (built, functional or sequential), in inference."""
    import jax
    import numpy as np

    backend = import_module("keras").backend.backend()
    if backend != "jax":
        raise UsageError(
            "EARG914", f"Keras runs on {backend}; models are traced on its JAX backend", "set KERAS_BACKEND=jax"
        )
    inputs = model.inputs
    if inputs is None:
        raise UsageError("EARG906", "the model's inputs are not known yet", "call it once, or build it")
    names = tuple(each.name for each in inputs)
    for name in (*fixed.shapes, *fixed.values):
        if name not in names or name in fixed.values:
            raise UsageError("EARG915", f"{name!r} cannot be set", f"--shape takes {', '.join(names)}")
    shapes = [
        jax.ShapeDtypeStruct(fixed_dims(each.name, list(each.shape), fixed), np.dtype(each.dtype))  # type: ignore[no-untyped-call]
        for each in inputs
    ]

    weights = {} if fixed.inline_weights else _weights(model)

    def main(*given: Any) -> Any:
        arrays = list(given[: len(names)])
        replaced = dict(zip(map(id, weights.values()), given[len(names) :], strict=True))
        state = [[replaced.get(id(each), each.value) for each in kind] for kind in _variables(model)]
        results, _ = model.stateless_call(*state, arrays[0] if len(arrays) == 1 else arrays, training=False)
        return jax.tree.leaves(results)

    main.__name__ = "".join(c if c.isalnum() else "_" for c in model.name)
    shapes += map(_shape_of, weights.values())
    lowered = jax.jit(main, keep_unused=True).trace(*shapes).lower(lowering_platforms=("cpu",))
    module = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    outputs = tuple(each.name for each in model.outputs)
    values = {name: np.asarray(each.value) for name, each in weights.items()}
    return Model("Keras", bytes(module), names, outputs, source, values, importer=True)


def _variables(model: Any) -> tuple[list[Any], list[Any]]:
    return model.trainable_variables, model.non_trainable_variables


def _weights(model: Any) -> dict[str, Any]:
    """Name -> variable; states of random generators and metrics are no weights."""
    found: dict[str, Any] = {}
    for each in model.weights:
        name, count = each.path, 1
        while name in found:
            name, count = f"{each.path}_{count}", count + 1
        found[name] = each
    return found


def _shape_of(variable: Any) -> Any:
    import jax

    return jax.ShapeDtypeStruct(variable.value.shape, variable.value.dtype)  # type: ignore[no-untyped-call]
