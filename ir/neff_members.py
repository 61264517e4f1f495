"""The inside of a NEFF: its JSON members and binary tables, to and from the parts of a program.

Writers give canonical JSON (sorted keys, ASCII). Parsers accept what the writers give, of any content that keeps the
rules; everything else is RunError ENEF901.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import prod
from typing import Any

import numpy as np

from neuronx_cc.ir.isa import limits
from neuronx_cc.ir.isa.format import OPERAND, RECORD, WAIT, Encoded, Names, StreamTables, Table
from neuronx_cc.ir.isa.program import ORDER, Debug, Program, Stream, Variable
from neuronx_cc.ir.isa.soundness import check_variables, of_kind
from neuronx_cc.ir.neff_archive import Reader, malformed
from neuronx_cc.ir.types import NUMPY_DTYPE

KINDS = ("input", "output", "constant", "scratch", "device")
_TABLES = {"records": RECORD, "operands": OPERAND, "waits": WAIT}
_MAX_RECORDS = 1 << 24


@dataclass(slots=True)
class Info:
    compiler: str
    target: str
    planned_for: tuple[str, str]
    """Name and digest of a machine description."""
    name: str
    warnings: list[str]
    names: Names


@dataclass(slots=True)
class Definition:
    """Memory map, and the sizes of each stream's tables."""

    variables: list[Variable]
    hbm_bytes: int
    sbuf_peak: int
    streams: dict[Stream, dict[str, int]]
    devices: tuple[int, int]
    groups: list[tuple[tuple[int, ...], ...]]


@dataclass(slots=True)
class DebugMap:
    entries: list[Debug]
    kernels: list[str]
    schedules: dict[str, str]
    """Kernel -> what was decided about it."""


def stream_member(stream: Stream, table: str) -> str:
    return f"sg00/{stream.name.lower()}.{table}"


def constant_member(index: int) -> str:
    return f"constants/{index:06d}.bin"


def tables_of(tables: StreamTables) -> dict[str, Table]:
    return {name: getattr(tables, name) for name in _TABLES}


def _dump(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def info_json(
    compiler: str, target: str, planned_for: tuple[str, str], name: str, warnings: Sequence[str], names: Names
) -> bytes:
    texts = {"compiler": compiler, "target": target, "name": name}
    return _dump({**texts, "planned_for": planned_for, "warnings": list(warnings), "names": asdict(names)})


def signature_json(variables: Sequence[Variable]) -> bytes:
    def describe(variable: Variable) -> dict[str, Any]:
        entry = {"name": variable.name, "dtype": variable.dtype, "dims": variable.dims, "bytes": variable.nbytes}
        entry |= {"argument": variable.argument} if variable.argument else {}
        entry |= {"defined": True} if variable.defined else {}
        return {**entry, "alias": variable.alias} if variable.alias >= 0 else entry

    return _dump({f"{kind}s": [describe(variable) for variable in of_kind(variables, kind)] for kind in KINDS[:2]})


def options_json(options: Mapping[str, Any]) -> bytes:
    return _dump(dict(options))


def definition_json(program: Program, encoded: Encoded) -> bytes:
    return _dump(
        {
            "devices": program.devices,
            "groups": program.groups,
            "hbm_bytes": program.hbm_bytes,
            "sbuf_peak": program.sbuf_peak,
            "streams": {
                stream.name.lower(): {name: len(table) for name, table in tables_of(tables).items()}
                for stream, tables in encoded.streams.items()
            },
            "var": [{key: getattr(variable, key) for key in _VARIABLE_COLUMNS} for variable in program.variables],
        }
    )


_VARIABLE_COLUMNS = tuple(column.name for column in fields(Variable))
_DEBUG_COLUMNS = ("kernel", "hlo", "op_name", "source_file", "source_line", "opcode", "shape")


def debug_json(program: Program) -> bytes:
    columns: dict[str, Any] = {name: [getattr(entry, name) for entry in program.debug] for name in _DEBUG_COLUMNS}
    return _dump({**columns, "kernels": program.kernels, "schedules": program.schedules})


def parse_info(data: bytes) -> Info:
    value = _object(data, "info.json", {"compiler", "target", "planned_for", "name", "warnings", "names"})
    planned_for = _texts(value["planned_for"], "machine planned for")
    if len(planned_for) != 2:
        raise malformed("info.json: planned_for")
    names = value["names"]
    groups = ("opcodes", "alu", "flags", "dtypes")
    if not isinstance(names, dict) or set(names) != set(groups):
        raise malformed("info.json: names")
    return Info(
        _text(value["compiler"], "compiler version"),
        _text(value["target"], "target"),
        (planned_for[0], planned_for[1]),
        _text(value["name"], "module name"),
        _texts(value["warnings"], "warnings"),
        Names(*(tuple(_texts(names[group], f"names of {group}")) for group in groups)),
    )


def parse_options(data: bytes) -> dict[str, Any]:
    options = _object(data, "options.json", None)
    for key, value in options.items():
        _text(key, "option")
        if isinstance(value, list):
            _texts(value, f"option {key}")
        elif isinstance(value, str):
            _text(value, f"option {key}")
        elif not (value is None or isinstance(value, int | float)) or value != value or abs(value or 0) == float("inf"):
            raise malformed(f"option {key}")
    return options


def parse_definition(data: bytes) -> Definition:
    value = _object(data, "sg00/def.json", {"devices", "groups", "hbm_bytes", "sbuf_peak", "streams", "var"})
    devices = _devices(value["devices"])
    groups = [_groups(entry, devices[0] * devices[1]) for entry in _list(value["groups"])]
    hbm_bytes = _number(value["hbm_bytes"], "HBM size", limits.HBM_BYTES)
    sbuf_peak = _number(value["sbuf_peak"], "SBUF peak", limits.SBUF_PARTITION_BYTES)
    if not isinstance(value["streams"], dict) or not isinstance(value["var"], list):
        raise malformed("sg00/def.json: streams or var")
    by_name = {stream.name.lower(): stream for stream in Stream}
    streams: dict[Stream, dict[str, int]] = {}
    for name, sizes in value["streams"].items():
        if name not in by_name or not isinstance(sizes, dict) or set(sizes) != set(_TABLES):
            raise malformed(f"unknown stream {name!r}, or bad table sizes")
        streams[by_name[name]] = {
            table: _number(size, f"{name} {table}", _MAX_RECORDS) for table, size in sizes.items()
        }
    variables = [_variable(entry, hbm_bytes) for entry in value["var"]]
    check_variables(variables, hbm_bytes)
    return Definition(variables, hbm_bytes, sbuf_peak, dict(sorted(streams.items())), devices, groups)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise malformed("sg00/def.json: groups")
    return value


def _devices(value: Any) -> tuple[int, int]:
    """Replicas and partitions."""
    counts = [_number(count, "device count", limits.DEVICES) for count in _list(value)]
    if len(counts) != 2 or not 1 <= counts[0] * counts[1] <= limits.DEVICES:
        raise malformed("sg00/def.json: devices")
    return counts[0], counts[1]


def _groups(value: Any, devices: int) -> tuple[tuple[int, ...], ...]:
    """Groups or pairs of device numbers."""
    return tuple(tuple(_number(number, "device", devices - 1) for number in _list(group)) for group in _list(value))


def _variable(entry: Any, hbm_bytes: int) -> Variable:
    if isinstance(entry, dict):
        entry = {"argument": "", "defined": False} | entry  # which files of the first versions have not
    if not isinstance(entry, dict) or set(entry) != set(Variable.__dataclass_fields__):
        raise malformed("sg00/def.json: a variable with unknown fields")
    name = _text(entry["name"], "variable name")
    what = f"variable {name!r}"
    kind, dtype = (_text(entry[key], f"{what}: {key}") for key in ("kind", "dtype"))
    if kind not in KINDS or dtype not in NUMPY_DTYPE:
        raise malformed(f"{what}: kind or element type")
    dims = entry["dims"]
    if not isinstance(dims, list) or len(dims) > 64:
        raise malformed(f"{what}: dims")
    dims = tuple(_number(dim, f"{what}: dim", 1 << 40) for dim in dims)
    offset = _number(entry["offset"], f"{what}: offset", hbm_bytes)
    nbytes = _number(entry["nbytes"], f"{what}: size", hbm_bytes - offset)
    index = _number(entry["index"] + 1 if type(entry["index"]) is int else None, f"{what}: index", 1 << 24) - 1
    alias = _number(entry["alias"] + 1 if type(entry["alias"]) is int else None, f"{what}: alias", 1 << 24) - 1
    argument, defined = _text(entry["argument"], f"{what}: argument"), entry["defined"]
    if type(defined) is not bool:
        raise malformed(f"{what}: defined")
    return Variable(name, kind, offset, nbytes, dtype, dims, index, alias, argument, defined)


def parse_debug(data: bytes) -> DebugMap:
    value = _object(data, "sg00/debug.json", {*_DEBUG_COLUMNS, "kernels", "schedules"})
    columns = {name: _texts(value[name], name) for name in _DEBUG_COLUMNS if name != "source_line"}
    lines = value["source_line"]
    if not isinstance(lines, list) or any(len(column) != len(lines) for column in columns.values()):
        raise malformed("sg00/debug.json: columns of different length")
    lines = [_number(line, "source line", 1 << 31) for line in lines]
    columns["source_line"] = lines
    entries = [Debug(*row) for row in zip(*(columns[name] for name in _DEBUG_COLUMNS), strict=True)]
    kernels, schedules = _texts(value["kernels"], "kernels"), value["schedules"]
    if not isinstance(schedules, dict) or not {x for x in schedules if not x.endswith(ORDER)} <= set(kernels):
        raise malformed("sg00/debug.json: schedules of kernels that there are not")
    lines = _texts(list(schedules.values()), "schedules")
    return DebugMap(entries, kernels, dict(zip(schedules, lines, strict=True)))


def read_streams(reader: Reader, names: Names, definition: Definition) -> Encoded:
    """The binary tables, unchecked but for their sizes."""
    streams = {}
    for stream, sizes in definition.streams.items():
        tables = []
        for name, dtype in _TABLES.items():
            data = reader.table(stream_member(stream, name), sizes[name] * dtype.itemsize)
            tables.append(np.frombuffer(data, dtype))
        streams[stream] = StreamTables(*tables)
    return Encoded(names, streams)


def read_constant(reader: Reader, variable: Variable) -> np.ndarray[Any, np.dtype[Any]]:
    """The data of a constant, of the variable's dims."""
    dtype = NUMPY_DTYPE[variable.dtype]
    size = prod(variable.dims) * dtype.itemsize
    data = reader.constant(constant_member(variable.index), size)
    if dtype == np.bool_ and (data > 1).any():
        raise malformed(f"constant {variable.name!r} holds truth values other than 0 and 1")
    array: np.ndarray[Any, np.dtype[Any]] = data.view(dtype).reshape(variable.dims)
    array.flags.writeable = False
    return array


def _object(data: bytes, name: str, keys: set[str] | None) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise malformed(f"{name} is not JSON") from None
    if not isinstance(value, dict) or (keys is not None and set(value) != keys):
        raise malformed(f"{name} does not hold what it should")
    return value


def _number(value: Any, what: str, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise malformed(f"{what}: {str(value)[:40]} is not in 0..{most}")
    return value


def _text(value: Any, what: str) -> str:
    if type(value) is not str:
        raise malformed(f"{what} is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise malformed(f"{what} is not Unicode text") from None
    return value


def _texts(value: Any, what: str) -> list[str]:
    if not isinstance(value, list):
        raise malformed(f"{what} is not a list")
    return [_text(item, what) for item in value]
