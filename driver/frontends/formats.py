"""Tells the formats of model files apart by content: HLO and StableHLO, ONNX, exported programs, saved models."""

import zipfile
from collections.abc import Iterator
from enum import Enum
from io import BytesIO


class Format(Enum):
    """Formats that a framework reads; HLO stands for all that ``hlo_import`` tells apart."""

    HLO = "HLO or StableHLO"
    ONNX = "an ONNX model"
    PT2 = "an exported program of PyTorch (.pt2)"
    PICKLE = "a pickle, PyTorch checkpoint or TorchScript archive"
    KERAS = "a Keras model (.keras)"
    SAVED_MODEL = "a SavedModel of TensorFlow"
    JAX_EXPORT = "an artifact of jax.export"


BY_NAME = {".onnx": Format.ONNX, ".pt2": Format.PT2, ".keras": Format.KERAS}
"""What files should hold by the ends of their names, for errors alone."""
_VARINT, _BYTES = 0, 2
_SIZES = {1: 8, 5: 4}
BYTECODE = b"ML\xefR"
"""How StableHLO bytecode begins."""
_MARKS = (b"HloModule", b"ML\xefR", b"\x1f\x8b", b"\x7fELF", b"\x89PNG", b"\x93NUMPY")


def detect(data: bytes) -> Format:
    """The format of a file's content; what is nothing known is left to the reader of HLO, who says so."""
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _archive(data)
    if data.startswith(b"\x80") and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return Format.PICKLE
    if data.startswith(_MARKS) or not data:
        return Format.HLO
    fields = dict(_fields(data))
    first = data[:1] == b"\x08"
    if first and (not set(fields) - {1, 2} and fields.get(2) == _BYTES and data[1:2] == b"\x01"):
        return Format.SAVED_MODEL
    if fields.get(1) == _VARINT and ((first and len(fields) > 1) or fields.get(7) == _BYTES):
        return Format.ONNX
    if 1 not in fields and 3 not in fields and fields.get(7) == fields.get(8) == _BYTES:
        return Format.ONNX
    if BYTECODE in data and int.from_bytes(data[:4], "little") < min(len(data), 4096) and b"\0" in data[:64]:
        return Format.JAX_EXPORT
    return Format.HLO


def _fields(data: bytes) -> Iterator[tuple[int, int]]:
    """(number, wire type) of a proto's own fields, as far as the bytes are those of one."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if at < 0 or not 0 < number < 64 or kind not in (_VARINT, _BYTES, *_SIZES):
            return
        yield number, kind
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
            at = at + size if at >= 0 else at
        else:
            at += _SIZES[kind]
        if at < 0:
            return


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place and the place after it, which is -1 when there is none."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return 0, -1
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return 0, -1


def _archive(data: bytes) -> Format:
    """Which framework wrote a zip archive: by the names of its members, none of which is read."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            names = [name.partition("/")[2] or name for name in archive.namelist()]
            whole = set(archive.namelist())
            if whole and all(each.header_offset for each in archive.infolist()):
                raise zipfile.BadZipFile  # the directory of an archive within, for that of the whole is lost
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError):
        # the directory stands at the end and is lost first; the first member's name stands at the front
        first = data[30 : 30 + int.from_bytes(data[26:28], "little")]
        return Format.KERAS if first in (b"metadata.json", b"config.json") else Format.PT2
    if {"config.json", "metadata.json"} <= whole:
        return Format.KERAS
    if "data.pkl" in names:
        return Format.PICKLE
    if any(name.startswith(("models/", "archive_format", "serialized_exported_program")) for name in (*names, *whole)):
        return Format.PT2
    return Format.HLO
