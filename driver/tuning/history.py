"""What a tuning has measured, one JSON object a line, so that one that was stopped goes on where it was.

A line names the module, its inputs and options, and a digest of them, which stands in every measurement: several may
share a file, also at once. A line that was cut off, or is none of these, is passed over. No line is ever changed.
"""

import errno
import hashlib
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
        self._of = hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).hexdigest()[:16]
        self.resumed = 0
        """Measurements that were there already."""
        if path is not None:
            self._open(path, {"tuning": dict(identity), "of": self._of})

    def _open(self, path: Path, header: dict[str, Any]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_bytes()[:LARGEST].split(b"\n") if path.is_file() else [b""]
        except OSError as error:
            raise RunError("EFIL902", f"the workspace cannot be used: {path}: {error.strerror}") from None
        entries = [_parsed(line) for line in lines]
        for entry in entries:
            if isinstance(entry, dict) and entry.get("of") == self._of and isinstance(entry.get("key"), str):
                values = entry.get("values")
                if isinstance(values, list) and all(type(value) in (int, float) for value in values):
                    self._known[entry["key"]] = tuple(map(float, values))
        self.resumed = len(self._known)
        cut_off = b"\n" if lines[-1] else b""
        if cut_off or header not in entries:
            self._append(cut_off + (b"" if header in entries else _line(header)))

    def measured(self, key: str, measure: Callable[[], float]) -> float:
        """What ``measure`` gives, or gave when it was called for ``key`` before."""
        if key not in self._known:
            self.add(key, (measure(),))
        return self._known[key][0]

    def add(self, key: str, values: Sequence[float]) -> None:
        """Keep numbers that were measured together."""
        self._known[key] = tuple(values)
        if self._path is not None:
            self._append(_line({"key": key, "values": list(values), "of": self._of}))

    def get(self, key: str) -> tuple[float, ...] | None:
        """Those that ``add`` was given; None for what was not measured."""
        return self._known.get(key)

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def _append(self, line: bytes) -> None:
        """At once, so that no other process writes between."""
        assert self._path is not None
        try:
            with self._path.open("ab", buffering=0) as file:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError("EFIL902", f"the history cannot be written: {self._path}: {error.strerror}") from None


def _line(entry: Mapping[str, Any]) -> bytes:
    return (json.dumps(entry) + "\n").encode()


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line[:LONGEST_LINE])
    except (ValueError, RecursionError):
        return None
