"""Where jobs are done: on processes of this machine, or on a cluster's."""

from __future__ import annotations

import os

from neuronx_cc.driver.jobs import Engine, Processes
from neuronx_cc.driver.parse import Parsed
from neuronx_cc.driver.work import do
from neuronx_cc.ir.errors import UsageError


def engine(parsed: Parsed) -> Engine:
    """That of ``--workers`` and ``--scheduler``."""
    return engine_of(parsed.integer_or_none("workers"), parsed.text_or_none("scheduler"))


def engine_of(workers: int | None, scheduler: str | None) -> Engine:
    """So many processes, or as many as there are processors; a cluster.

    Raises UsageError EARG902 for less than one process, and what ``Cluster`` raises.
    """
    if workers is not None and workers < 1:
        raise UsageError("EARG902", f"--workers takes 1 or more processes, found {workers}", "see --help")
    if scheduler is None:
        return Processes(workers or len(os.sched_getaffinity(0)), do)
    from neuronx_cc.driver.cluster import Cluster

    return Cluster(scheduler)
