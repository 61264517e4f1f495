"""What a terminal is for: its width, colours, and a line that says how far a command is.

None of it reaches a pipe or a file: there lines are as long as they are, and nothing is coloured or redrawn.
``NO_COLOR`` (https://no-color.org) and ``TERM=dumb`` turn colours off.
"""

import os
import shutil
import sys
import threading
import time
from contextlib import suppress
from typing import TextIO

from neuronx_cc.ir import progress

STYLES = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2"}
SHOWN_AFTER = 2.0
"""Seconds that a command may take without a word."""
REDRAWN = 0.2
"""Seconds between two looks at what is being done."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at ``stream``."""
    with suppress(ValueError, OSError):
        return stream.isatty() and os.environ.get("TERM", "") != "dumb"
    return False


def styled(text: str, style: str, stream: TextIO) -> str:
    """``text`` in a style of ``STYLES`` where ``stream`` shows colours, else as it is."""
    if not text or os.environ.get("NO_COLOR") or not is_terminal(stream):
        return text
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def width(stream: TextIO) -> int | None:
    """Columns of a terminal; None where lines may be as long as they are."""
    return shutil.get_terminal_size((100, 24)).columns if is_terminal(stream) else None


class Progress:
    """One line on stderr, from two seconds on: the stage, how far it is, and the time so far.

    A thread draws it, so that no work waits for it. Nothing is drawn unless stderr is a terminal.
    """

    def __init__(self) -> None:
        self.stage = ""
        self._shown = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, name: str) -> None:
        """Begin to watch; ``name`` stands first on the line."""
        if self._thread is None and is_terminal(sys.stderr):
            self._thread = threading.Thread(target=self._watch, args=(name, sys.stderr), daemon=True)
            self._thread.start()

    def enter(self, stage: str) -> None:
        """The next stage begins."""
        self.stage = stage
        progress.forget()

    def clear(self) -> None:
        """Take the line away, ahead of anything else that is printed."""
        with self._lock:
            if self._shown:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
                self._shown = 0

    def stop(self) -> None:
        """Watch no longer."""
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(1)
            self.clear()

    def _watch(self, name: str, stream: TextIO) -> None:
        started = time.monotonic()
        if self._stop.wait(SHOWN_AFTER):
            return
        while True:
            line = self.line(name, time.monotonic() - started)
            columns = shutil.get_terminal_size((100, 24)).columns
            with self._lock, suppress(OSError, ValueError):
                stream.write("\r" + styled(line[: columns - 1], "dim", stream) + "\x1b[K")
                stream.flush()
                self._shown = len(line)
            if self._stop.wait(REDRAWN):
                return

    def line(self, name: str, seconds: float) -> str:
        """What stands there after ``seconds``."""
        done, total, what = progress.now()
        far = f" ({what + ' ' if what else ''}{done} of {total})" if total else ""
        return f"{name}: {self.stage}{far}, {seconds:.0f} s"
