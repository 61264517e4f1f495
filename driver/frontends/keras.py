"""Keras 3 models, traced on its JAX backend; weights become constants. Files are loaded in Keras' safe mode."""

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

    def main(*given: Any) -> Any:
        return jax.tree.leaves(model(given[0] if len(given) == 1 else list(given), training=False))

    main.__name__ = "".join(c if c.isalnum() else "_" for c in model.name)
    lowered = jax.jit(main, keep_unused=True).trace(*shapes).lower(lowering_platforms=("cpu",))
    module = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    outputs = tuple(each.name for each in model.outputs)
    return Model("Keras", bytes(module), names, outputs, source, importer=True)
