"""ONNX bytes -> ``Model``: reads and checks the proto, fixes the shapes of its inputs, traces it with JAX, lowers it.

Initialisers become constants of the program. 64-bit types keep their width; the compiler's options say what becomes of
them.
"""

import re
from collections.abc import Mapping
from math import prod
from typing import Any

import jax
import numpy as np

from neuronx_cc.driver.frontends.model import Fixed, Model, fixed_dims
from neuronx_cc.driver.frontends.onnx import library
from neuronx_cc.driver.frontends.onnx.evaluate import Frame, graph_values
from neuronx_cc.driver.frontends.onnx.table import Value, refusal
from neuronx_cc.driver.frontends.onnx.types import checked, dtype_of, folding
from neuronx_cc.ir.errors import CompileError, UsageError


def lower(data: bytes, source: str, folder: str | None, fixed: Fixed) -> Model:
    """The model in ``data``; external data lies in ``folder``.

    Raises UsageError EARG914 without the package ``onnx``, EARG915 for shapes and values that do not fit the inputs;
    CompileError for what is damaged or not supported.
    """
    proto = parse(data, source)
    graph = proto.graph
    initialised = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in initialised]
    _check_names(fixed, inputs)
    values = {value.name: _bound(value, fixed) for value in inputs if value.name in fixed.values}
    free = [value for value in inputs if value.name not in fixed.values]
    arguments = [_argument(value, fixed.shapes) for value in free]
    frame = _frame(proto, folder)
    names: list[str] = []

    def main(*given: Value) -> tuple[Value, ...]:
        scope = {**values, **dict(zip((value.name for value in free), given, strict=True))}
        results = graph_values(graph, scope, frame)
        names.clear()
        flat: list[Value] = []
        for value, result in zip(graph.output, results, strict=True):
            _flatten(value.name, result, names, flat)
        return tuple(flat)

    main.__name__ = re.sub(r"\W", "_", graph.name)[:80] or "model"
    folding.device = _host()
    with jax.enable_x64(True):
        lowered = jax.jit(main, keep_unused=True).trace(*arguments).lower(lowering_platforms=("cpu",))
        module = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return Model("ONNX", bytes(module), tuple(value.name for value in free), tuple(names), source, importer=True)


def parse(data: bytes, source: str = "") -> Any:
    """The ModelProto in ``data``, of an opset that the installed package knows. Raises CompileError EVRF064."""
    onnx = library.library()
    what = source or "the model"
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception as error:
        # protobuf's implementations raise errors of their own
        detail = " ".join(str(error).split())[:120]
        raise refusal(
            f"{what}: expected an ONNX model, found damaged bytes ({detail})", "copy it again", "EVRF064"
        ) from None
    if not _is_text(proto):
        raise refusal(f"{what}: expected names in UTF-8, found other bytes", "copy it again: it is damaged", "EVRF064")
    if not proto.HasField("graph") or not proto.graph.output:
        raise refusal(
            f"{what}: expected an ONNX model, found one without a graph and outputs", "export it again", "EVRF064"
        )
    return proto


def _is_text(proto: Any) -> bool:
    """Whether all strings of a proto are text; those that are not arrive as bytes."""
    waiting = [proto]
    while waiting:
        for descriptor, value in waiting.pop().ListFields():
            if descriptor.type == descriptor.TYPE_STRING:
                if any(isinstance(text, bytes) for text in ([value] if isinstance(value, str | bytes) else value)):
                    return False
            elif descriptor.type == descriptor.TYPE_MESSAGE:
                waiting += [value] if hasattr(value, "ListFields") else value
    return True


def _frame(proto: Any, folder: str | None) -> Frame:
    opsets: dict[str, int] = {}
    for item in proto.opset_import:
        opsets["" if item.domain == "ai.onnx" else item.domain] = item.version
    newest = library.newest()
    version = opsets.get("", newest)
    if version > newest:
        raise refusal(
            f"the model is of opset {version}, the installed onnx knows up to {newest}", "pip install -U onnx"
        )
    if version < 1:
        raise refusal(f"there is no opset {version}", "export the model again", "EVRF064")
    functions = {("" if item.domain == "ai.onnx" else item.domain, item.name): item for item in proto.functions}
    return Frame(opsets, functions, folder)


def _check_names(fixed: Fixed, inputs: list[Any]) -> None:
    names = [value.name for value in inputs]
    symbols = {dim.dim_param for value in inputs for dim in value.type.tensor_type.shape.dim if dim.dim_param}
    for option, given, known in (("--shape", fixed.shapes, {*names, *symbols}), ("--value", fixed.values, {*names})):
        for name in given:
            if name not in known:
                listed = ", ".join(sorted(known)) or "none"
                raise UsageError(
                    "EARG915", f"{option}: the model has no input or dimension {name!r}", f"it has {listed}"
                )


def _argument(value: Any, shapes: Mapping[str, Any]) -> Any:
    """The shape and type of an input, with all dimensions fixed."""
    kind = value.type.WhichOneof("value")
    what = f"input {value.name!r}"
    if kind == "optional_type" and value.type.optional_type.elem_type.WhichOneof("value") == "tensor_type":
        tensor = value.type.optional_type.elem_type.tensor_type
    elif kind == "tensor_type":
        tensor = value.type.tensor_type
    else:
        name = (kind or "no type").removesuffix("_type").replace("_", " ")
        raise refusal(
            f"{what} is a {name}; programs take arrays", "give the elements as inputs of their own", "ESPP004"
        )
    dtype = dtype_of(tensor.elem_type, what)
    declared = list(tensor.shape.dim) if tensor.HasField("shape") else None
    sizes: list[int | None] = []
    for dim in declared or ():
        if dim.HasField("dim_value"):
            sizes.append(dim.dim_value)
        else:
            sizes.append(_single(dim.dim_param, shapes[dim.dim_param]) if dim.dim_param in shapes else None)
    names = [dim.dim_param for dim in declared or () if dim.dim_param and dim.dim_param not in shapes]
    try:
        return _array(fixed_dims(value.name, None if declared is None else sizes, Fixed(shapes)), dtype)
    except CompileError as error:
        if not names:
            raise
        shown = ", ".join(dim.dim_param or str(size or "?") for dim, size in zip(declared or (), sizes, strict=True))
        remedy = f"{error.remedy}, or a size by its name: --shape {names[0]}=8"
        raise type(error)(error.code, f"input {value.name!r} has dimensions {shown}", remedy) from None


def _array(dims: Any, dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(checked(dims), dtype)  # type: ignore[no-untyped-call]


def _single(name: str, sizes: Any) -> int:
    listed = list(np.asarray(sizes).reshape(-1))
    if len(listed) != 1:
        raise UsageError("EARG915", f"dimension {name!r} has one size, --shape gives {len(listed)}")
    return int(listed[0])


def _bound(value: Any, fixed: Fixed) -> Value:
    """The value that the user fixes an input to, in the input's type."""
    given = fixed.values[value.name]
    if isinstance(given, list) and any(not np.isscalar(item) for item in given):
        return [np.asarray(item) for item in given]
    if given is None:
        return None
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return [np.asarray(item) for item in given] if isinstance(given, list) else np.asarray(given)
    tensor = value.type.tensor_type
    array = np.asarray(given).astype(dtype_of(tensor.elem_type, f"input {value.name!r}"))
    if isinstance(given, np.ndarray):
        return array
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    if not tensor.HasField("shape"):
        return array.reshape(-1)
    if dims.count(-1) > 1 or (-1 not in dims and prod(dims) != array.size):
        raise UsageError(
            "EARG915", f"--value: {array.size} numbers are no value of {value.name!r}, of dimensions {dims}"
        )
    return array.reshape(dims)


def _flatten(name: str, result: Value, names: list[str], flat: list[Value]) -> None:
    if result is None:
        raise refusal(f"output {name!r} is an absent optional value; programs give arrays", code="ESPP004")
    if isinstance(result, list):
        for index, item in enumerate(result):
            _flatten(f"{name}[{index}]", item, names, flat)
        return
    names.append(name)
    flat.append(result)


def _host() -> Any:
    """JAX's CPU device, for what is computed at compile time; None where JAX is told to have none."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None
