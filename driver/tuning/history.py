"""What a tuning has measured, one JSON object a line, so that one that was stopped goes on where it was.

The first line names the module, its inputs and options; a history of others is begun anew. A line that was cut off is
forgotten. No line is ever changed.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neuronx_cc.ir.errors import RunError

LONGEST_LINE = 1 << 20
LARGEST = 64 << 20
"""Bytes of a history that is read."""


class History:
    """Measurements by key."""

    def __init__(self, path: Path | None, identity: Mapping[str, str]) -> None:
        self._path = path
        self._known: dict[str, tuple[float, ...]] = {}
        self.resumed = 0
        """Measurements that were there already."""
        if path is not None:
            self._open(path, {"tuning": dict(identity)})

    def _open(self, path: Path, header: dict[str, Any]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_bytes()[:LARGEST].split(b"\n") if path.is_file() else []
            if not lines or _parsed(lines[0]) != header:
                path.write_text(json.dumps(header) + "\n")
                return
            for line in lines[1:]:
                entry = _parsed(line)
                if isinstance(entry, dict) and isinstance(entry.get("key"), str):
                    values = entry.get("values")
                    if isinstance(values, list) and all(type(value) in (int, float) for value in values):
                        self._known[entry["key"]] = tuple(map(float, values))
            if lines[-1]:  # cut off in the middle
                with path.open("ab") as file:
                    file.write(b"\n")
        except OSError as error:
            raise RunError("EFIL902", f"the workspace cannot be used: {path}: {error.strerror}") from None
        self.resumed = len(self._known)

    def measured(self, key: str, measure: Callable[[], float]) -> float:
        """What ``measure`` gives, or gave when it was called for ``key`` before."""
        if key not in self._known:
            self.add(key, (measure(),))
        return self._known[key][0]

    def add(self, key: str, values: Sequence[float]) -> None:
        """Keep numbers that were measured together."""
        self._known[key] = tuple(values)
        if self._path is not None:
            self._append({"key": key, "values": list(values)})

    def get(self, key: str) -> tuple[float, ...] | None:
        """Those that ``add`` was given; None for what was not measured."""
        return self._known.get(key)

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def _append(self, entry: dict[str, Any]) -> None:
        assert self._path is not None
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError("EFIL902", f"the history cannot be written: {self._path}: {error.strerror}") from None


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line[:LONGEST_LINE])
    except (ValueError, RecursionError):
        return None
