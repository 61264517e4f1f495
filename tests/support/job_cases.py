"""Jobs for workers that die: importable by the processes that do them."""

import os
from pathlib import Path

from neuronx_cc.driver.jobs import Job, Outcome


def once_deadly(job: Job) -> Outcome:
    """The first process that does the job named deadly ends at once, the second lives."""
    mark = Path(job.output)
    if job.path == "deadly" and not mark.exists():
        mark.touch()
        os._exit(9)
    return Outcome(float(len(job.path)))


def deadly(job: Job) -> Outcome:
    """Every process that does the job named deadly ends at once."""
    if job.path == "deadly":
        os._exit(9)
    return Outcome(float(len(job.path)))
