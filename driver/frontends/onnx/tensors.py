"""TensorProto -> NumPy array. Everything in it is checked: sizes, types, and where external data lies.

External data is read from regular files in the model's folder or below it: no absolute path, no ``..``, no link that
leaves the folder.
"""

import os
import stat
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from neuronx_cc.driver.frontends.onnx.table import refusal
from neuronx_cc.driver.frontends.onnx.types import checked, dtype_of
from neuronx_cc.ir.errors import CompileError

Array = Any
"""A NumPy array of any type."""
_EXTERNAL = 1
_BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}


def array_of(tensor: Any, folder: str | None) -> Array:
    """The elements of a TensorProto; ``folder`` holds the model's external data, None where the model has no folder.

    Raises CompileError EVRF064 for sizes that do not fit, ESPP004 for strings, EFIL903 for external data.
    """
    what = f"tensor {tensor.name!r}"
    dtype, dims = dtype_of(tensor.data_type, what), checked(tensor.dims)
    count = prod(dims)
    width = _BITS.get(dtype.name, dtype.itemsize * 8)
    size = -(-count * width // 8)
    if tensor.data_location == _EXTERNAL:
        return _decoded(_external(tensor, size, folder), dtype, dims, width)
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != size:
            raise _malformed(f"{what} of {dtype.name}{list(dims)} takes {size} bytes, found {len(tensor.raw_data)}")
        return _decoded(tensor.raw_data, dtype, dims, width)
    return _listed(tensor, what, dtype, dims, width)


def _decoded(data: bytes, dtype: Any, dims: tuple[int, ...], width: int) -> Array:
    if width < 8:
        return _unpacked(np.frombuffer(data, np.uint8), dtype, dims, width)
    array = np.frombuffer(data, dtype.newbyteorder("<") if dtype.kind != "V" and dtype.itemsize > 1 else dtype)
    return array.astype(dtype, copy=False).reshape(dims)


def _unpacked(packed: Array, dtype: Any, dims: tuple[int, ...], width: int) -> Array:
    """Elements of less than a byte, the first in the lowest bits."""
    import ml_dtypes

    shifts = np.arange(0, 8, width, dtype=np.uint8)
    values = ((packed[:, None] >> shifts) & ((1 << width) - 1)).reshape(-1)[: prod(dims)].astype(np.uint8)
    if dtype.name.startswith("int"):
        values = ((values ^ (1 << (width - 1))).astype(np.int8) - (1 << (width - 1))).astype(np.int8)
    if dtype == np.dtype(ml_dtypes.float4_e2m1fn):
        return values.view(dtype).reshape(dims)
    return values.astype(dtype).reshape(dims)


_LISTS = (
    (("float32", "complex64"), "float_data", np.float32),
    (("float64", "complex128"), "double_data", np.float64),
    (("int64",), "int64_data", np.int64),
    (("uint32", "uint64"), "uint64_data", np.uint64),
)


def _listed(tensor: Any, what: str, dtype: Any, dims: tuple[int, ...], width: int) -> Array:
    """Elements in the typed lists of the proto; everything narrow is in ``int32_data``."""
    field, stored = next(((f, t) for names, f, t in _LISTS if dtype.name in names), ("int32_data", np.int32))
    values = np.array(getattr(tensor, field), stored)
    parts = 2 if dtype.kind == "c" else 1
    expected = -(-prod(dims) * width // 8) if width < 8 else prod(dims) * parts
    if len(values) != expected:
        raise _malformed(f"{what} of {dtype.name}{list(dims)} takes {expected} elements, found {len(values)}")
    if width < 8:
        return _unpacked(values.astype(np.uint8), dtype, dims, width)
    if parts == 2:
        return values.view(dtype).reshape(dims)
    if dtype.name in ("float16", "bfloat16") or dtype.name.startswith("float8"):
        bits = np.uint16 if dtype.itemsize == 2 else np.uint8
        return values.astype(bits).view(dtype).reshape(dims)
    return values.astype(dtype).reshape(dims)


def _external(tensor: Any, size: int, folder: str | None) -> bytes:
    """The bytes of a tensor that lies in another file."""
    what = f"tensor {tensor.name!r}"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise _lost(f"{what} lies in the file {location!r}, and the model came without a folder", "give a path")
    path = _inside(what, location, folder)
    offset, length = _number(what, entries, "offset", 0), _number(what, entries, "length", size)
    if length != size:
        raise _lost(f"{what} takes {size} bytes, the model says that {length} lie in {location!r}", "export it again")
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _lost(f"{what}: {location!r} is no regular file", "export the model again")
            if offset + size > status.st_size:
                raise _lost(
                    f"{what} lies in bytes {offset} to {offset + size} of {location!r}, which has {status.st_size}",
                    "copy the file again: it is cut off, or another model's",
                )
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        raise _lost(f"{what}: cannot read {location!r} beside the model: {error.strerror}", "copy it there") from None


def _inside(what: str, location: str, folder: str) -> Path:
    """The file ``location`` of ``folder``."""
    parts = (*PurePosixPath(location).parts, *PureWindowsPath(location).parts)
    rooted = PurePosixPath(location).is_absolute() or PureWindowsPath(location).drive or location.startswith("\\")
    remedy = "keep external data in the model's folder, named by a relative path"
    if not location:
        raise _lost(f"{what} lies outside the model, which does not say where", "export the model again")
    if "\0" in location or rooted or ".." in parts:
        raise _lost(f"{what}: the path {location!r} leaves the model's folder", remedy)
    root = Path(folder).resolve()
    path = root / location
    try:
        real = path.resolve()
        status = os.stat(real)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a loop of links"
        raise _lost(f"{what}: cannot read {location!r} beside the model: {reason}", "copy it there") from None
    if not real.is_relative_to(root):
        raise _lost(f"{what}: {location!r} is a link that leaves the model's folder", remedy)
    if not stat.S_ISREG(status.st_mode):
        raise _lost(f"{what}: {location!r} is no regular file", "export the model again")
    return real


def _number(what: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise _malformed(f"{what}: expected a number of bytes as {key} of its external data, found {text[:40]!r}")
    return int(text)


def _malformed(message: str) -> CompileError:
    return refusal(message, "export the model again: it is damaged", "EVRF064")


def _lost(message: str, remedy: str) -> CompileError:
    return refusal(message, remedy, "EFIL903")
