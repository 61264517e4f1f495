"""AttributeProto -> Python values, and values -> TypeProto, which functions that depend on types ask for."""

from collections.abc import Callable
from typing import Any

import numpy as np

from neuronx_cc.driver.frontends.onnx import library
from neuronx_cc.driver.frontends.onnx.table import Value, refusal
from neuronx_cc.driver.frontends.onnx.tensors import array_of
from neuronx_cc.driver.frontends.onnx.types import CODES

_PLAIN = {1: "f", 2: "i", 6: "floats", 7: "ints"}
"""AttributeProto.AttributeType -> field, of numbers."""


def value_of(attribute: Any, body: Callable[[Any], Any], folder: str | None) -> Any:
    """The value of an attribute: numbers, text, arrays, tuples of them; graphs become what ``body`` makes of them."""
    kind = attribute.type
    if kind in _PLAIN:
        value = getattr(attribute, _PLAIN[kind])
        return tuple(value) if kind > 5 else value
    if kind == 3:
        return attribute.s.decode("utf-8", "replace")
    if kind == 4:
        return array_of(attribute.t, folder)
    if kind == 5:
        return body(attribute.g)
    if kind == 8:
        return tuple(text.decode("utf-8", "replace") for text in attribute.strings)
    if kind == 9:
        return tuple(array_of(tensor, folder) for tensor in attribute.tensors)
    if kind == 11:
        return _dense(attribute.sparse_tensor, folder)
    if kind == 13:
        return attribute.tp
    raise refusal(f"attribute {attribute.name!r} is of a kind (number {kind}) that is not supported", code="EVRF064")


def _dense(sparse: Any, folder: str | None) -> np.ndarray[Any, Any]:
    values, indices = array_of(sparse.values, folder), array_of(sparse.indices, folder)
    made = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        made.reshape(-1)[indices] = values
    else:
        made[tuple(indices.T)] = values
    return made


def typed(value: Value) -> Any:
    """The TypeProto of a value."""
    onnx = library.library()
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, list):
        element = typed(value[0]) if value else onnx.helper.make_tensor_type_proto(1, None)
        return onnx.helper.make_sequence_type_proto(element)
    return onnx.helper.make_tensor_type_proto(CODES[np.dtype(value.dtype)], tuple(value.shape))
