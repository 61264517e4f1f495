"""``metadata={...}`` and the tables of file names and stack frames that newer dumps put before the computations."""

import re
from dataclasses import dataclass, field

from neuronx_cc.hlo_import.attributes import integers, unquote
from neuronx_cc.hlo_import.lexer import QUOTED, SourceText

TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
LOC_FIELDS = frozenset(["op_name", "source_file", "source_line", "stack_frame_id"])
"""Metadata that ``Loc`` carries; the rest stays text."""
FORMER = "preserve_layout"
"""A field of older dumps that XLA's parser does not read any more; it is read and left out."""

STRINGS = ("deduplicated_name", "metadata_payload", "op_name", "op_type", "scheduling_name", "source_file")
NUMBERS = ("source_column", "source_end_column", "source_end_line", "source_line", "stack_frame_id")
_FIELD = re.compile(
    rf"\s*,?\s*(?:({'|'.join(STRINGS)})=\s*({QUOTED.pattern})|({'|'.join(NUMBERS)})=\s*(-?\d{{1,10}})(?![\w.])"
    rf"|(profile_type)=\s*(\{{[-\d,\s]*\}})|({FORMER})=(true|false))",
    re.DOTALL,
)
_ENTRY = re.compile(r"(\w+)\s*=\s*(\d+)")
_STRING_ROW = re.compile(rf"\s*(\d{{1,9}})\s+({QUOTED.pattern})", re.DOTALL)
_FIELD_ROW = re.compile(r"\s*(\d{1,9})\s+\{([^{}]*)\}")


@dataclass(slots=True)
class StackFrames:
    """The tables: frame id -> location id, location id -> (file id, line), file id -> name."""

    files: dict[int, str] = field(default_factory=dict)
    locations: dict[int, tuple[int, int]] = field(default_factory=dict)
    frames: dict[int, int] = field(default_factory=dict)

    def resolve(self, frame: int) -> tuple[str, int]:
        """File and line of a frame id; ("", 0) when the tables do not say."""
        file, line = self.locations.get(self.frames.get(frame, 0), (0, 0))
        return self.files.get(file, ""), line


@dataclass(frozen=True, slots=True)
class Metadata:
    op_name: str = ""
    source_file: str = ""
    source_line: int = 0
    rest: str = ""
    """Other metadata fields, as text."""


def read_metadata(text: str, frames: StackFrames) -> Metadata:
    """The fields of ``{op_name="..." source_file="..." source_line=3 ...}``. Raises ValueError."""
    fields = _fields(text) if text else {}
    line = fields.get("source_line", "0")
    source_file, source_line = _string(fields, "source_file"), int(line) if _small(line) else 0
    frame = fields.get("stack_frame_id", "0")
    if not source_file and _small(frame):
        source_file, source_line = frames.resolve(int(frame))
    rest = " ".join(f"{key}={value}" for key, value in fields.items() if key not in LOC_FIELDS | {FORMER})
    return Metadata(_string(fields, "op_name"), source_file, source_line, rest)


def _fields(text: str) -> dict[str, str]:
    """Name -> text of what stands in the braces."""
    fields: dict[str, str] = {}
    position = 1
    while text[0] == "{" and (match := _FIELD.match(text, position)):
        name, value = filter(None, match.groups())
        if name in fields:
            raise ValueError(f"expected {name} once, found it twice")
        fields[name], position = value, match.end()
    if text[position:].strip() != "}":
        raise ValueError(f'expected metadata such as {{op_name="f" source_line=1}}, found {text[:60]!r}')
    for name in fields.keys() - LOC_FIELDS:
        if fields[name][0] in "\"'":
            unquote(fields[name])
        elif fields[name][0] == "{":
            integers(fields[name])
    if not all(-(2**31) <= int(value) < 2**31 for value in fields.values() if value[0] in "-0123456789"):
        raise ValueError(f"expected 32-bit numbers, found {text[:60]!r}")
    return fields


def _string(fields: dict[str, str], name: str) -> str:
    return unquote(fields[name]) if name in fields else ""


def _small(text: str) -> bool:
    return text.isdecimal() and len(text) < 10


def read_table(name: str, source: SourceText, position: int, frames: StackFrames) -> int:
    """Reads the rows of table ``name`` that start at ``position``; returns the position after them."""
    row = _STRING_ROW if name in ("FileNames", "FunctionNames") else _FIELD_ROW
    while match := row.match(source.text, source.skip(position)):
        number = int(match.group(1))
        position = match.end()
        if name == "FileNames":
            frames.files[number] = unquote(match.group(2))
            continue
        if name == "FunctionNames":
            continue
        fields = {key: int(value) for key, value in _ENTRY.findall(match.group(2)) if _small(value)}
        if name == "FileLocations":
            frames.locations[number] = (fields.get("file_name_id", 0), fields.get("line", 0))
        else:
            frames.frames[number] = fields.get("file_location_id", 0)
    return position
