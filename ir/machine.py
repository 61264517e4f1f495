"""Machine descriptions: every hardware number with its unit, evidence grade and source.

A description is a TOML file of sections of entries, ``rate_limit = {value = 1.0, unit = "1", grade = "X", source =
"..."}``. ``inherits = "other.toml"`` takes over what a file next to it says. Grades: D documented by the vendor, M
measured by the vendor, T measured by a third party, X derived, A assumed. Values are looked up by dotted key,
``machine["pe.rate_limit"]``; ``with_settings(["pe.rate_limit=0.87"])`` replaces some.
"""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from neuronx_cc.ir.errors import UsageError

Value = float | int | str
GRADES = "DMTXA"
POSITIVE = (
    *("clock.", "memory.", "dma.engines", "dma.bw", "dma.packet", "hbm.bw", "sram.min_align"),
    *("pe.rate_limit", "pe.rows", "pe.columns", "pe.max_moving", "pe.ls_speedup"),
)
"""Keys (by prefix) whose numbers must be above 0; all other numbers must not be below."""
CHOICES: dict[str, tuple[str, ...]] = {
    "excl.vec_pool_sbuf": ("arbitrate", "ignore"),
    "excl.vec_act_psum": ("arbitrate", "ignore"),
    "sram.stride16_policy": ("slow", "fast"),
}
"""Policies with alternatives. All others only name what the simulator does."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One value with its evidence."""

    value: Value
    unit: str
    grade: str
    source: str


PLANNED_FOR = ("run.", "num.", "throttle.")
"""Keys (by prefix) of what no plan depends on."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a program may use of one core: its memories and its matrix engine."""

    partitions: int
    sbuf_bytes: int
    """Of a partition, without what the runtime keeps for itself."""
    psum_bytes: int
    """Of a partition."""
    bank_bytes: int
    """Of a partition of one PSUM bank, which no instruction's operand leaves; half of it where there is a single one,
    since products need room beside what they transpose."""
    hbm_bytes: int
    rows: int
    """Of the matrix engine: longest contraction of one product."""
    columns: int
    """Of the matrix engine: most partitions of a product's result."""
    moving: int
    """Most columns of one product's moving operand."""
    row_tiles: int
    """Equal parts of those rows, at each of which the operands of a short contraction may begin."""
    alignment: int
    """Bytes to which pieces of memory on chip are aligned."""

    def aligned(self, nbytes: int) -> int:
        """``nbytes`` of a partition as memory is handed out."""
        return -(-nbytes // self.alignment) * self.alignment

    def sbuf_share(self, share: tuple[int, int]) -> int:
        """Bytes a partition of so many (first) of so many equal parts (second) of SBUF."""
        return self.sbuf_bytes * share[0] // share[1]

    @property
    def banks(self) -> int:
        """PSUM banks."""
        return self.psum_bytes // self.bank_bytes

    @property
    def bank_columns(self) -> int:
        """FP32 elements a partition of one PSUM bank, as far as one product fills it."""
        return min(self.bank_bytes // 4, self.moving)


@dataclass(frozen=True, slots=True)
class Machine(Mapping[str, Value]):
    """A frozen machine description. ``machine[key]`` raises UsageError EARG907 for a key that it lacks."""

    name: str
    entries: Mapping[str, Entry]

    def __getitem__(self, key: str) -> Any:
        entry = self.entries.get(key)
        if entry is None:
            raise UsageError(
                "EARG907",
                f"the machine description {self.name} has no key {key!r}",
                "add it, or start from a whole description with inherits",
            )
        return entry.value

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def with_settings(self, settings: Iterable[str]) -> "Machine":
        """A copy with ``key=value`` settings. Raises UsageError EARG907 for unknown keys and unfit values."""
        entries = dict(self.entries)
        for setting in settings:
            key, separator, text = setting.partition("=")
            key = key.strip()
            if not separator:
                raise UsageError("EARG907", f"expected key=value, found {setting!r}", "for example pe.rate_limit=0.87")
            if key not in entries:
                raise _unknown(key, entries)
            entries[key] = replace(
                entries[key], value=_parse(key, text.strip(), entries[key].value), grade="A", source="set by the user"
            )
        return replace(self, entries=entries)

    def sizes(self) -> Sizes:
        """The sizes that plans are cut to."""
        names = ("partitions", "psum_partition_bytes", "psum_bank_bytes", "hbm_bytes")
        partitions, psum, bank, hbm = (int(self[f"memory.{name}"]) for name in names)
        sbuf = int(self["memory.sbuf_partition_bytes"] - self["sbuf.reserved_bytes"])
        rows, columns, moving, tiles = (
            int(self[f"pe.{name}"]) for name in ("rows", "columns", "max_moving", "row_tiles")
        )
        bank = min(bank, psum // 2)
        return Sizes(partitions, sbuf, psum, bank, hbm, rows, columns, moving, tiles, int(self["sram.min_align"]))

    def differences(self, base: "Machine") -> tuple[str, ...]:
        """The ``key=value`` settings that make this machine of ``base``."""
        shared = ((key, entry.value) for key, entry in self.entries.items() if key in base.entries)
        return tuple(f"{key}={value}" for key, value in shared if value != base.entries[key].value)

    def digest(self) -> str:
        """Of all numbers that plans may depend on: 16 hexadecimal digits."""
        chosen = {key: entry.value for key, entry in self.entries.items() if not key.startswith(PLANNED_FOR)}
        numbers = {key: float(value) for key, value in chosen.items() if not isinstance(value, str)}
        return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]

    def key(self) -> tuple[tuple[str, Value], ...]:
        """All values, as a hashable key for caches of results."""
        return tuple((key, entry.value) for key, entry in self.entries.items())


def load(path: str | PathLike[str]) -> Machine:
    """Read and check a description. Raises UsageError EFIL901 (unreadable) or EARG907 (not a valid description)."""
    return Machine(Path(path).stem, _entries(Path(path), ()))


def _entries(path: Path, seen: tuple[Path, ...]) -> dict[str, Entry]:
    if path in seen:
        raise UsageError("EARG907", f"{path.name}: the description inherits from itself")
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError("EFIL901", f"cannot read the machine description {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError("EARG907", f"{path.name}: not a TOML file: {error}") from None
    base = document.pop("inherits", None)
    entries = _entries(path.parent / str(base), (*seen, path)) if base is not None else {}
    for key, table in _flatten(document, path.name):
        entry = _entry(path.name, key, table)
        known = entries[key].value if key in entries else None
        if known is not None and isinstance(entry.value, str) != isinstance(known, str):
            raise UsageError("EARG907", f"{path.name}: {key} has the value {entry.value!r}, which is of another kind")
        if known is not None and isinstance(entry.value, str):
            _check_policy(key, entry.value, known)
        entries[key] = _as_whole(path.name, key, entry) if isinstance(known, int) else entry
    return entries


def _as_whole(where: str, key: str, entry: Entry) -> Entry:
    """``entry`` of a key that takes whole numbers."""
    if isinstance(entry.value, float) and not entry.value.is_integer():
        raise UsageError("EARG907", f"{where}: {key} takes a whole number, found {entry.value}")
    return replace(entry, value=int(entry.value))


def _flatten(document: dict[str, Any], where: str, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, table in document.items():
        if not isinstance(table, dict):
            raise UsageError("EARG907", f"{where}: {prefix}{name} is not {{value, unit, grade, source}}")
        if "value" in table:
            yield prefix + name, table
        else:
            yield from _flatten(table, where, f"{prefix}{name}.")


def _entry(where: str, key: str, table: dict[str, Any]) -> Entry:
    if set(table) != {"value", "unit", "grade", "source"}:
        raise UsageError("EARG907", f"{where}: {key} needs value, unit, grade and source, found {', '.join(table)}")
    if table["grade"] not in set(GRADES):
        raise UsageError("EARG907", f"{where}: {key} has grade {table['grade']!r}, expected one of {', '.join(GRADES)}")
    value = table["value"]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError("EARG907", f"{where}: {key} has the value {value!r}, expected a number or a name")
    _check(key, value)
    return Entry(value, str(table["unit"]), table["grade"], str(table["source"]))


def _parse(key: str, text: str, like: Value) -> Value:
    if isinstance(like, str):
        _check_policy(key, text, like)
        return text
    try:
        value: Value = int(text) if isinstance(like, int) else float(text)
    except ValueError:
        kind = "a whole number" if isinstance(like, int) else "a number"
        raise UsageError("EARG907", f"{key} takes {kind}, found {text!r}") from None
    _check(key, value)
    return value


def _check(key: str, value: Value) -> None:
    if isinstance(value, str):
        _check_policy(key, value, value)
        return
    least = "above 0" if key.startswith(POSITIVE) else "0 or more"
    if not 0 <= value < float("inf") or (value == 0 and least == "above 0"):
        raise UsageError("EARG907", f"{key} is {value}, expected a number {least}")


def _check_policy(key: str, value: str, known: Value) -> None:
    choices = CHOICES.get(key, (str(known),))
    if value not in choices:
        raise UsageError("EARG907", f"{key} is {value!r}, expected {' or '.join(choices)}")


def _unknown(key: str, entries: Mapping[str, Entry]) -> UsageError:
    close = get_close_matches(key, entries, 1)
    hint = f"did you mean {close[0]}?" if close else f"keys: {', '.join(list(entries)[:8])}, ..."
    return UsageError("EARG907", f"the machine description has no key {key!r}", hint)
