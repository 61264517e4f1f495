"""Compilations that depend on nothing but a module and its options, on several processes of this machine.

A job is data, and so is its outcome, so that any process may do it, and do it again: what a worker had in hand when it
died is given to another one, once. Equal jobs are done once.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRIES = 2
"""Times that a job is begun: one that ends its worker twice has failed."""


@dataclass(frozen=True, slots=True)
class Job:
    """One compilation."""

    path: str
    """Of the module."""
    options: tuple[tuple[str, str | tuple[str, ...]], ...] = ()
    """Of ``compile``, by keyword."""
    output: str = ""
    """Of the NEFF; empty: none is written."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: the simulated time, or an error as the command line prints it."""

    microseconds: float | None = None
    error: str = ""
    status: int = 0
    """Exit status that ``compile`` would have had."""


def do(job: Job) -> Outcome:
    """Compile and time one job, in this process."""
    import neuronx_cc
    from neuronx_cc.driver.errors import render

    options: dict[str, Any] = {"auto_cast": "matmult", "int64": "truncate", **dict(job.options)}
    if job.output:
        options["output"] = job.output
    try:
        executable = neuronx_cc.compile(Path(job.path), **options)
        return Outcome(executable.run([], timing_only=True).report.time_ns / 1e3)
    except neuronx_cc.NeuronError as error:
        return Outcome(None, render(error), error.exit_status)


def outcomes(jobs: Sequence[Job], workers: int, do: Callable[[Job], Outcome] = do) -> Iterator[tuple[Job, Outcome]]:
    """Each different job with its outcome, as they come. ``workers`` 1: in this process."""
    todo = dict.fromkeys(jobs, 0)
    if workers <= 1:
        for job in todo:
            yield job, do(job)
        return
    while todo:
        # processes of their own, not copies: this one may have threads
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(workers, len(todo)), mp_context=context) as pool:
            futures: dict[Future[Outcome], Job] = {pool.submit(do, job): job for job in todo}
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
        # nobody says which job it was: each is begun once more, by itself from the second time on
        for job in list(todo):
            todo[job] += 1
            if todo[job] >= TRIES or len(todo) == 1:
                del todo[job]
                yield job, _alone(job, do)


def _alone(job: Job, do: Callable[[Job], Outcome]) -> Outcome:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(do, job).result()
        except BrokenProcessPool:
            return Outcome(None, f"the process that compiled {job.path} died", 1)
