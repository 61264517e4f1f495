"""Compilations that depend on nothing but files and options, in this process or on several.

A job is data, and so is its outcome, so that any process may do it, and do it again: what a worker had in hand when it
died is given to another one, once. Equal jobs are done once.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Protocol

from neuronx_cc.ir.errors import UsageError

TRIES = 2
"""Times that a job is begun: one that ends its worker twice has failed."""


GUARD = 'put what it does under if __name__ == "__main__":, or leave workers out'


@dataclass(frozen=True, slots=True)
class Job:
    """One compilation."""

    path: str
    """Of the module."""
    options: tuple[tuple[str, str | tuple[str, ...]], ...] = ()
    """Of ``compile``, by keyword."""
    output: str = ""
    """Of the NEFF; empty: none is written."""
    data: str = ""
    """Inputs and expected outputs (``tuning.bench.write_arrays``); empty: the clock alone is asked."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: the simulated time, or an error as the command line prints it."""

    microseconds: float | None = None
    error: str = ""
    status: int = 0
    """Exit status that ``compile`` would have had."""
    difference: float | None = None
    """Largest relative 2-norm of the difference to an expected output, of a job with data."""
    nbytes: float = 0.0
    """Of HBM that the program needs, of a job with data."""


Do = Callable[[Job], Outcome]


class Engine(Protocol):
    """Does jobs."""

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        """Each different job with its outcome, as they come."""

    def close(self) -> None:
        """Nothing is done afterwards."""


class Processes:
    """Processes of this machine, kept until they are closed; a single one is this process."""

    def __init__(self, workers: int, do: Do) -> None:
        self._workers, self._do = workers, do
        self._pool: ProcessPoolExecutor | None = None

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        todo = dict.fromkeys(jobs, 0)
        if self._workers <= 1:
            for job in todo:
                yield job, self._do(job)
            return
        while todo:
            futures: dict[Future[Outcome], Job] = {self._submit(job): job for job in todo}
            broken = False
            for future in as_completed(futures):
                job = futures[future]
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    broken = True
                    continue
                del todo[job]
                yield job, outcome
            if not broken:
                return
            self.close()
            # nobody says which job it was: each is begun once more, by itself from the second time on
            for job in list(todo):
                todo[job] += 1
                if todo[job] >= TRIES or len(todo) == 1:
                    del todo[job]
                    yield job, self._alone(job)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _submit(self, job: Job) -> Future[Outcome]:
        if getattr(multiprocessing.current_process(), "_inheriting", False):  # a worker that runs the user's script
            raise UsageError("EARG902", "a script without a main guard runs again in each worker", GUARD)
        if self._pool is None:
            # processes of their own, not copies: this one may have threads
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._workers, mp_context=context)
        try:
            return self._pool.submit(self._do, job)
        except BrokenProcessPool as error:  # one died while others were still handed out
            failed: Future[Outcome] = Future()
            failed.set_exception(error)
            return failed

    def _alone(self, job: Job) -> Outcome:
        context = multiprocessing.get_context("spawn")
        for _ in range(TRIES):
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                try:
                    return pool.submit(self._do, job).result()
                except BrokenProcessPool:
                    continue
        return died(job)


def died(job: Job) -> Outcome:
    """That of a job which no worker survives."""
    return Outcome(None, f"each process that was given {job.path} died: it was ended, or had no memory left", 1)
