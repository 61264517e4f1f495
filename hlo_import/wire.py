"""Protocol-buffer wire format: messages decoded by a table of fields, large arrays left where they are.

Everything is checked against the end of its enclosing message before it is read; unknown fields are skipped.
Format: protobuf.dev/programming-guides/encoding.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_DEPTH = 100

Message = dict[str, Any]
Span = tuple[int, int]
"""Start and end of bytes in the file."""


class WireError(Exception):
    """What is wrong at byte ``position``."""

    def __init__(self, position: int, message: str):
        super().__init__(message)
        self.position = position
        self.message = message


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """``kind``: int, bool, float, double, str, bytes, span, or the name of a message."""

    name: str
    kind: str
    repeated: bool = False


Schema = dict[str, dict[int, FieldSpec]]


def varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The unsigned varint at ``position`` and the position after it."""
    value = shift = 0
    for scan in range(position, min(end, position + 10)):
        byte = data[scan]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, scan + 1
        shift += 7
    raise WireError(position, "expected the end of a number, found more bytes of it or the end of its message")


def signed(value: int) -> int:
    """An unsigned 64-bit value as int64."""
    return value - (1 << 64) if value >> 63 else value


def decode(schema: Schema, name: str, data: bytes, start: int, end: int, depth: int = 0) -> Message:
    """Message ``name`` in ``data[start:end]`` as a dict; absent fields are absent. Raises ``WireError``."""
    if depth > MAX_DEPTH:
        raise WireError(start, f"expected at most {MAX_DEPTH} nested messages")
    fields = schema[name]
    message: Message = {}
    position = start
    while position < end:
        tag = data[position]
        if tag < 0x80:
            key_end = position + 1
        else:
            tag, key_end = varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        if wire == 2:
            size = data[key_end] if key_end < end else 0x80
            if size < 0x80:
                value_start = key_end + 1
            else:
                size, value_start = varint(data, key_end, end)
            position_after = value_start + size
        elif wire == 0:
            value, position_after = varint(data, key_end, end)
        elif wire in (1, 5):
            value_start, position_after = key_end, key_end + (8 if wire == 1 else 4)
        else:
            raise WireError(position, f"expected a field of {name}, found wire type {wire}")
        if position_after > end:
            raise WireError(
                position, f"expected a field of {name} to end with its message, found {position_after - end} bytes more"
            )
        if number == 0:
            raise WireError(position, f"expected a field of {name}, found field number 0")
        spec = fields.get(number)
        position = position_after
        if spec is None:
            continue
        if wire == 2:
            _delimited(schema, spec, message, data, value_start, position_after, depth)
            continue
        if wire == 0:
            if spec.kind not in ("int", "bool"):
                raise WireError(key_end, f"expected {spec.name} of {name} as {spec.kind}, found a number")
            item: Any = bool(value) if spec.kind == "bool" else (value if value < 1 << 63 else value - (1 << 64))
        else:
            if spec.kind == "span":
                message.setdefault(spec.name, []).append((value_start, position_after))
                continue
            if spec.kind != ("double" if wire == 1 else "float"):
                raise WireError(key_end, f"expected {spec.name} of {name} as {spec.kind}, found a fixed-size number")
            item = struct.unpack_from("<d" if wire == 1 else "<f", data, value_start)[0]
        if spec.repeated:
            message.setdefault(spec.name, []).append(item)
        else:
            message[spec.name] = item
    return message


def _delimited(
    schema: Schema, spec: FieldSpec, message: Message, data: bytes, start: int, end: int, depth: int
) -> None:
    kind = spec.kind
    if kind == "str":
        value: Any = data[start:end].decode("utf-8", "replace")
    elif kind == "bytes":
        value = data[start:end]
    elif kind == "span":
        value = (start, end)
    elif kind in schema:
        value = decode(schema, kind, data, start, end, depth + 1)
    elif kind in ("int", "bool") and spec.repeated:
        values = message.setdefault(spec.name, [])
        while start < end:
            number, start = varint(data, start, end)
            values.append(signed(number))
        return
    else:
        raise WireError(start, f"expected {spec.name} as {kind}, found bytes")
    if spec.repeated or kind == "span":
        message.setdefault(spec.name, []).append(value)
    else:
        message[spec.name] = value


def varints(data: bytes, start: int, end: int) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """All varints in ``data[start:end]``, decoded at once."""
    raw = np.frombuffer(data, np.uint8, end - start, start)
    if raw.size == 0:
        return np.zeros(0, np.uint64)
    last = raw < 0x80
    if last.all():
        return raw.astype(np.uint64)
    ends = np.flatnonzero(last)
    if not last[-1]:
        raise WireError(end, "expected the end of a number, found the end of its message")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if int(lengths.max()) > 10:
        raise WireError(start, "expected numbers of at most 10 bytes")
    values = np.zeros(ends.size, np.uint64)
    for index in range(int(lengths.max())):
        part = np.flatnonzero(lengths > index)
        values[part] |= (raw[starts[part] + index] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * index)
    return values
