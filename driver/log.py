"""The log: every line to the log file, lines of the chosen severity to the console.

Severities are Python's logging numbers plus 35, "user": what a caller always wants to read, such as
``Compiler status PASS``. Debug, info and user lines go to stdout, warnings and errors to stderr.
"""

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from neuronx_cc.driver.options import LEVELS
from neuronx_cc.driver.terminal import styled
from neuronx_cc.ir.errors import UsageError

_NAMES = {number: name.upper() for name, number in LEVELS.items()}


class Log:
    """Console level ``level``; ``open`` adds the file, which also receives the lines logged before."""

    def __init__(self, level: int = LEVELS["warning"]) -> None:
        self.level = level
        self.path = ""
        self.ahead: Callable[[], None] = lambda: None
        """Called ahead of every line for the console."""
        self._file: TextIO | None = None
        self._early: list[str] = []

    def open(self, path: str, required: bool) -> None:
        """Append to ``path``. A file that cannot be opened is a ``UsageError`` if ``required``, else a warning."""
        try:
            self._file = open(path, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        except OSError as error:
            if required:
                raise UsageError(
                    "EFIL902", f"cannot write the log file {path}: {error.strerror}", "choose another --logfile"
                ) from None
            self.warning(f"no log file: cannot write {path}: {error.strerror}")
            return
        self.path = os.path.abspath(path)
        early, self._early = self._early, []
        for line in early:
            self._write(line)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                self.path = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def debug(self, text: str) -> None:
        self.log(LEVELS["debug"], text)

    def info(self, text: str) -> None:
        self.log(LEVELS["info"], text)

    def user(self, text: str) -> None:
        self.log(LEVELS["user"], text)

    def warning(self, text: str) -> None:
        self.log(LEVELS["warning"], text)

    def error(self, text: str) -> None:
        self.log(LEVELS["error"], text)

    def file_only(self, text: str) -> None:
        """A line for the log file alone."""
        self._record("DEBUG", text)

    def log(self, level: int, text: str) -> None:
        name = _NAMES[level]
        self._record(name, text)
        if level < self.level:
            return
        self.ahead()
        if level >= LEVELS["warning"] and level != LEVELS["user"]:
            label = f"{styled(f'{name}:', 'yellow', sys.stderr)} " if level == LEVELS["warning"] else ""
            print(f"{label}{text}", file=sys.stderr)
        else:
            print(text)

    def _record(self, name: str, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {name} {os.getpid()} {text}\n"
        if self._file is None:
            self._early.append(line)
        else:
            self._write(line)

    def _write(self, line: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            # a full disk must not fail the compile for the sake of its log
            self._file = None
            print(f"WARNING: log file {self.path} abandoned: {error.strerror}", file=sys.stderr)
            self.path = ""
