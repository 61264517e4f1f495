"""Whose turn it is to use the memories on chip that all programs share.

Launches take turns. While the program that has its turn waits for a function of the host, other launches do not wait
for it, since that function may wait for them: they run on memories of their own.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Turns of the threads of a process."""

    def __init__(self) -> None:
        self._start()
        # a thread of the parent process may have its turn at the fork
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._taken = False
        self._calls = 0

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Waits for a turn and yields True, or False at once when the shared memories wait for the host."""
        with self._changed:
            while self._taken and not self._calls:
                self._changed.wait()
            mine, self._taken = not self._taken, True
        try:
            yield mine
        finally:
            if mine:
                with self._changed:
                    self._taken = False
                    self._changed.notify()

    @contextmanager
    def call(self) -> Iterator[None]:
        """While a function of the host runs."""
        with self._changed:
            self._calls += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1


TURNS = Turns()
