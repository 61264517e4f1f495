"""Runs compilations on a thread of our own with a large stack.

jaxlib compiles on C++ threads whose stacks have 2 MiB, which deep recursion would overflow; and Python state of such a
thread is torn down when it returns.
"""

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

STACK_BYTES = 256 << 20


class _Job:
    __slots__ = ("arguments", "done", "error", "function", "result")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments
        self.done = threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None


class Service:
    """One worker: compilations hold Python's lock nearly all the time, so that more would not help."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[_Job] | None = None
        self._worker = 0
        os.register_at_fork(after_in_child=self._forget)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(*arguments)`` on the worker; its exception is raised here."""
        if threading.get_ident() == self._worker:
            return function(*arguments)
        job = _Job(function, arguments)
        self._queue().put(job)
        job.done.acquire()
        if job.error is not None:
            error, job.error = job.error, None
            raise error
        return job.result

    def _queue(self) -> "SimpleQueue[_Job]":
        with self._lock:
            if self._jobs is None:
                self._jobs = SimpleQueue()
                before = threading.stack_size(STACK_BYTES)
                try:
                    threading.Thread(target=self._work, args=(self._jobs,), name="neuron-compile", daemon=True).start()
                finally:
                    threading.stack_size(before)
            return self._jobs

    def _work(self, jobs: "SimpleQueue[_Job]") -> None:
        self._worker = threading.get_ident()
        while True:
            job = jobs.get()
            try:
                job.result = job.function(*job.arguments)
            except BaseException as error:
                job.error = error
            job.done.release()
            del job

    def _forget(self) -> None:
        """In a forked child there is no worker, and the lock may be held by a thread that is gone."""
        self._lock, self._jobs, self._worker = threading.Lock(), None, 0


SERVICE = Service()
