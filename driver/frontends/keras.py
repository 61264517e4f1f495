"""Keras 3 models in inference, traced by the backend that Keras runs on: JAX, TensorFlow or PyTorch.

Files are loaded in Keras' safe mode; they are the same for each backend.
"""

import inspect
import os
import struct
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from neuronx_cc.driver.frontends.model import Fixed, Model, fixed_dims
from neuronx_cc.driver.jax_objects import lower
from neuronx_cc.ir.errors import CompileError, UsageError

Inputs = Mapping[str, tuple[tuple[int, ...], str]]
"""Name -> dimensions and type, in order."""
MOST_UNPACKED, SPARE_BYTES = 8, 1 << 20
"""How many times its size, and beyond, an archive may unpack to."""


def of_file(path: str, fixed: Fixed) -> Model:
    """The ``.keras`` file at ``path``. Raises CompileError EVRF064 when it is damaged or holds Python code."""
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "jax")
    try:
        keras = import_module("keras")
    except (ImportError, ValueError) as error:
        asked = os.environ.get("KERAS_BACKEND", "")
        raise UsageError(
            "EARG914", f"Keras cannot run on KERAS_BACKEND={asked!r} ({error})", "set KERAS_BACKEND=jax"
        ) from None
    _check_sizes(path)
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        # Keras raises whatever its layers, h5py and zipfile do
        raise CompileError("EVRF064", f"{path}: Keras cannot load it: {_line(error)}", "save it again") from None
    return of_model(model, (), fixed, path)


def _check_sizes(path: str) -> None:
    """Refuse archives that unpack to far more than they are; Keras itself stores its members as they are."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, struct.error) as error:
        raise CompileError("EVRF064", f"{path}: Keras cannot load it: {_line(error)}", "save it again") from None
    most = MOST_UNPACKED * os.path.getsize(path) + SPARE_BYTES
    if size > most:
        raise CompileError(
            "EVRF064", f"{path}: expected a Keras model; it unpacks to {size} bytes, more than {most}", "save it again"
        )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def of_model(model: Any, arguments: Sequence[Any], fixed: Fixed, source: str = "") -> Model:
    """A model or layer for ``arguments``: arrays, or what has a shape and a type; without them for its own inputs.

    Raises UsageError EARG906 when its inputs are not known, EARG914 on other backends; CompileError EMOD025.
    """
    backend = import_module("keras").backend.backend()
    if backend not in _TRACES:
        known = ", ".join(_TRACES)
        raise UsageError("EARG914", f"Keras runs on {backend}; models are traced on {known}", "set KERAS_BACKEND=jax")
    inputs = _given(model, arguments) if arguments else _declared(model, fixed)
    traced = _Traced(model, structured=not arguments)
    made = _TRACES[backend](traced, inputs, fixed.inline_weights)
    names = _unique(traced.outputs)
    return replace(made, framework="Keras", inputs=tuple(inputs), outputs=names, source=source, importer=True)


@dataclass
class _Traced:
    """The model as a function of arrays alone, whose results are a list; tracing it tells their names."""

    model: Any
    structured: bool
    """Its one argument is nested as its inputs are."""
    outputs: list[str] = field(default_factory=list)

    def __call__(self, *arrays: Any) -> list[Any]:
        results = self.model(*self._nested(arrays), training=False)
        return self.leaves(results)

    def stateless(self, values: Mapping[int, Any], arrays: Sequence[Any]) -> list[Any]:
        """The same with other values of variables, by their ids."""
        kinds = (self.model.trainable_variables, self.model.non_trainable_variables)
        state = [[values.get(id(each), each.value) for each in kind] for kind in kinds]
        results, _ = self.model.stateless_call(*state, *self._nested(arrays), training=False)
        return self.leaves(results)

    def leaves(self, results: Any) -> list[Any]:
        """Results in order; named by their keys, by the layers that made them, or by number."""
        tree = import_module("keras").tree
        found = tree.flatten_with_path(results)
        layers = getattr(self.model, "output_names", None) or []
        names = layers if len(layers) == len(found) else [f"out{number}" for number in range(len(found))]
        self.outputs[:] = [
            "/".join(path) if path and all(isinstance(key, str) for key in path) else name
            for (path, _), name in zip(found, names, strict=True)
        ]
        return [value for _, value in found]

    def _nested(self, arrays: Sequence[Any]) -> Sequence[Any]:
        if not self.structured or len(arrays) == 1:
            return arrays
        return [import_module("keras").tree.pack_sequence_as(self.model.input, list(arrays))]


def _declared(model: Any, fixed: Fixed) -> Inputs:
    """The inputs that a functional or sequential model has been made of, all dimensions fixed."""
    # layers, and models that are classes of their own, have none; sequential ones do not before they are built
    inputs = getattr(model, "inputs", None)
    if inputs is None:
        raise UsageError(
            "EARG906",
            f"the inputs of {type(model).__name__} {model.name!r} are not known",
            "give load_model the model and arrays of their shapes, or make it a keras.Model(inputs, outputs)",
        )
    # by the layers, as a file of the model has them: tensors without a name of their own are numbered by the process
    names = [each._keras_history.operation.name for each in inputs]
    for name in (*fixed.shapes, *fixed.values):
        if name not in names or name in fixed.values:
            raise UsageError("EARG915", f"{name!r} cannot be set", f"--shape takes {', '.join(names)}")
    return {
        name: (fixed_dims(name, list(each.shape), fixed), str(each.dtype))
        for name, each in zip(names, inputs, strict=True)
    }


def _given(model: Any, arguments: Sequence[Any]) -> Inputs:
    """The arguments by the names that the model's ``call`` has for them."""
    parameters = [name for name in inspect.signature(model.call).parameters if name not in ("args", "kwargs")]
    names = [*parameters, *(f"arg{number}" for number in range(len(parameters), len(arguments)))]
    standardize = import_module("keras").backend.standardize_dtype
    return {name: (tuple(each.shape), standardize(each.dtype)) for name, each in zip(names, arguments, strict=False)}


def _with_jax(traced: _Traced, inputs: Inputs, inline_weights: bool) -> Model:
    import jax
    import numpy as np

    weights = {} if inline_weights else _weights(traced.model)
    shapes = [*inputs.values(), *((each.value.shape, each.value.dtype) for each in weights.values())]

    def main(*given: Any) -> Any:
        values = dict(zip(map(id, weights.values()), given[len(inputs) :], strict=True))
        return traced.stateless(values, given[: len(inputs)])

    main.__name__ = "".join(c if c.isalnum() else "_" for c in traced.model.name)
    arguments = [jax.ShapeDtypeStruct(dims, np.dtype(dtype)) for dims, dtype in shapes]  # type: ignore[no-untyped-call]
    lowered = lower(jax.jit(main, keep_unused=True).trace(*arguments))
    module = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return Model("", bytes(module), (), (), weights={name: np.asarray(each.value) for name, each in weights.items()})


def _with_tensorflow(traced: _Traced, inputs: Inputs, inline_weights: bool) -> Model:
    tf = import_module("tensorflow")
    # the bridge orders inputs by their names
    specs = [tf.TensorSpec(dims, dtype, f"x{place:04}") for place, (dims, dtype) in enumerate(inputs.values())]
    bridge = import_module("neuronx_cc.driver.frontends.tensorflow")
    made: Model = bridge.of_function(tf.function(traced), specs, Fixed(inline_weights=inline_weights))
    return made


def _with_torch(traced: _Traced, inputs: Inputs, inline_weights: bool) -> Model:
    torch = import_module("torch")
    weights = _weights(traced.model)

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        """Keras reads its variables around torch's modules, so that export would take them for constants."""

        def __init__(self) -> None:
            super().__init__()
            values = (each.value.detach() for each in weights.values())
            self.weights = torch.nn.ParameterList(torch.nn.Parameter(each, requires_grad=False) for each in values)

        def forward(self, *arrays: Any) -> Any:
            return traced.stateless(dict(zip(map(id, weights.values()), self.weights, strict=True)), arrays)

    examples = tuple(torch.zeros(dims, dtype=getattr(torch, dtype)) for dims, dtype in inputs.values())
    program = torch.export.export(Module(), examples)
    bridge = import_module("neuronx_cc.driver.frontends.torch.export")
    made: Model = bridge.of_program(program, "", Fixed(inline_weights=inline_weights))
    by_path = {f"weights.{number}": path for number, path in enumerate(weights)}
    return replace(made, weights={by_path[name]: value for name, value in made.weights.items()})


_TRACES: dict[str, Callable[[_Traced, Inputs, bool], Model]] = {
    "jax": _with_jax,
    "tensorflow": _with_tensorflow,
    "torch": _with_torch,
}


def _weights(model: Any) -> dict[str, Any]:
    """Name -> variable; states of random generators and metrics are no weights."""
    return dict(zip(_unique([each.path for each in model.weights]), model.weights, strict=True))


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    """Names, those that come again with a number."""
    found: dict[str, None] = {}
    for base in names:
        name, count = base, 1
        while name in found:
            name, count = f"{base}_{count}", count + 1
        found[name] = None
    return tuple(found)
