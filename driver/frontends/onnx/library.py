"""The ``onnx`` package, imported when the first ONNX model arrives; all that is used of it is reached through here."""

from importlib import import_module
from typing import Any

from neuronx_cc.ir.errors import UsageError

REMEDY = "pip install 'open-neuronx-cc[onnx]'"


def library() -> Any:
    """The package ``onnx``. Raises UsageError EARG914 when it is not installed."""
    try:
        return import_module("onnx")
    except ImportError as problem:
        raise UsageError("EARG914", f"ONNX models need the package onnx ({problem})", REMEDY) from None


def schema(name: str, version: int, domain: str) -> Any:
    """The definition of an operator in an opset, or None."""
    defs = import_module("onnx.defs")
    try:
        return defs.get_schema(name, version, domain)
    except defs.SchemaError:
        return None


def newest() -> int:
    """The newest opset that the installed package defines."""
    return int(import_module("onnx.defs").onnx_opset_version())
