"""Damaged NEFF files: refused in words, or loaded, checked for races and executed.

Most damage gets past size, hash and archive: members are changed, and the file is put together around them.
"""

import io
import json
import random
import tarfile
import zlib
from typing import Any

import mutation
import numpy as np
import structure
from generated import ON_CHIP
from mutation import limit
from small_programs import neffs, time_limit, zeros

from neuronx_cc.ir import neff_archive
from neuronx_cc.ir.isa.format import OPERAND, RECORD, WAIT
from neuronx_cc.ir.neff import Neff
from neuronx_cc.runtime import Executable, races

TABLES = {"records": RECORD, "operands": OPERAND, "waits": WAIT}


def seeds() -> list[bytes]:
    return neffs()


def run(data: bytes) -> None:
    neff = Neff.from_bytes(data)
    executable = Executable(neff.program, neff.constants, neff.target, on_chip=ON_CHIP)
    races.check(neff.program)
    if sum(each.nbytes for each in neff.inputs) < 1 << 24:
        with time_limit(4):
            executable.run(zeros(neff.program.variables))


def mutate(data: bytes, draw: random.Random) -> bytes:
    members = members_of(data)
    if not members or draw.random() < 0.1:
        return mutation.mutate(data, draw)
    for _ in range(draw.choice((1, 1, 2, 3))):
        name = draw.choice(sorted(members))
        members[name] = member(name, members[name], draw)
    if "sg00/def.json" in members and draw.random() < 0.9:
        members["signature.json"], members["sg00/def.json"] = agreeing(members)
    return assembled(members, compress=draw.random() < 0.2)


def assembled(members: dict[str, bytes], compress: bool = False) -> bytes:
    """The file of these members."""
    constants = {name: content for name, content in members.items() if name.startswith("constants/")}
    texts = {name: content for name, content in members.items() if name.endswith(".json")}
    tables = {name: content for name, content in members.items() if name not in constants and name not in texts}
    file = io.BytesIO()
    neff_archive.write(file, texts, tables, constants, "1", "small", compress=compress)
    return file.getvalue()


def members_of(data: bytes) -> dict[str, bytes]:
    """The members by name; none if it is no archive."""
    payload = data[neff_archive.HEADER_SIZE :]
    try:
        if payload[:2] == b"\x1f\x8b":
            payload = inflated(payload)
        with tarfile.open(fileobj=io.BytesIO(payload)) as archive:
            return {each.name: archive.extractfile(each).read(1 << 20) for each in archive if each.isreg()}
    except (tarfile.TarError, zlib.error, OSError, ValueError, AttributeError):
        return {}


def inflated(payload: bytes) -> bytes:
    result = b""
    while payload and len(result) < 1 << 22:
        inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
        result += inflate.decompress(payload, 1 << 22)
        payload = inflate.unused_data
    return result


def member(name: str, content: bytes, draw: random.Random) -> bytes:
    """One member with a piece of damage."""
    table = TABLES.get(name.rsplit(".", 1)[-1])
    if name.endswith(".json"):
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            return mutation.mutate(content, draw)
        if draw.random() < 0.3:
            value = draw.choice([part for _, part in structure.retyped(value)])
        else:
            value = changed(value, draw)
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    if table is not None and len(content) % table.itemsize == 0 and draw.random() < 0.95:
        return row(np.frombuffer(content, table).copy(), draw)
    return mutation.mutate(content, draw)


def row(table: np.ndarray, draw: random.Random) -> bytes:
    """The table with one number changed, or one row gone or doubled."""
    if not len(table):
        return table.tobytes()
    at = draw.randrange(len(table))
    if draw.random() < 0.05:
        return np.delete(table, at).tobytes()
    if draw.random() < 0.05:
        return np.insert(table, at, table[draw.randrange(len(table))]).tobytes()
    field = draw.choice(table.dtype.names)
    numbers = table[field][at : at + 1].reshape(-1)
    place = draw.randrange(len(numbers))
    near = int(numbers[place]) + draw.choice((-4, -1, 1, 4, 64)) if np.isfinite(numbers[place]) else 0
    value = draw.choice((limit(draw), near, near, 0, 1, 10**6))
    if numbers.dtype.kind == "f":
        numbers[place] = draw.choice((float(value), np.nan, np.inf, 0.5))
    else:
        numbers[place] = value % (1 << 8 * numbers.dtype.itemsize) & 0xFFFFFFFF if numbers.dtype.kind == "u" else near
    return table.tobytes()


def changed(value: Any, draw: random.Random) -> Any:
    """A JSON value with one of its parts changed."""
    if isinstance(value, dict) and value and draw.random() < 0.95:
        key = draw.choice(sorted(value))
        if draw.random() < 0.03:
            return {name: part for name, part in value.items() if name != key}
        return {**value, key: changed(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.95:
        at = draw.randrange(len(value))
        instead = draw.choice(([changed(value[at], draw)],) * 8 + ([], [value[at]] * 2))
        return [*value[:at], *instead, *value[at + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and draw.random() < 0.9:
        return draw.choice((value + draw.choice((-64, -1, 1, 64)), value * 2, limit(draw)))
    return draw.choice((0, 1, -1, 1.5, "", "x", "f32", "u8", "\ud800", None, [], {}, True, 10**30, value, [value]))


def agreeing(members: dict[str, bytes]) -> tuple[bytes, bytes]:
    """Signature and memory map that agree with each other and with the sizes of the tables."""
    signature, definition = members.get("signature.json", b"{}"), members["sg00/def.json"]
    try:
        value = json.loads(definition)
        for stream, sizes in value["streams"].items():
            for name, table in TABLES.items():
                sizes[name] = len(members[f"sg00/{stream}.{name}"]) // table.itemsize
        keys = ("name", "dtype", "dims")
        given: dict[str, list[dict[str, Any]]] = {"inputs": [], "outputs": []}
        for each in sorted(value["var"], key=lambda each: each["index"]):
            if each["kind"] + "s" in given:
                entry = {**{key: each[key] for key in keys}, "bytes": each["nbytes"]}
                given[each["kind"] + "s"].append(entry | ({"alias": each["alias"]} if each["alias"] >= 0 else {}))
        dump = {"sort_keys": True, "separators": (",", ":")}
        return json.dumps(given, **dump).encode(), json.dumps(value, **dump).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return signature, definition
