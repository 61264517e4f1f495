"""What a worker does: one job, in the process that calls."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from neuronx_cc.driver.errors import render
from neuronx_cc.driver.jobs import Job, Outcome
from neuronx_cc.ir.errors import NeuronError, RunError


def do(job: Job) -> Outcome:
    """Compile and time one job, in this process; what ends a job ends no other."""
    import neuronx_cc

    options: dict[str, Any] = {"auto_cast": "matmult", "int64": "truncate", **dict(job.options)}
    if job.output:
        options["output"] = job.output
    try:
        if job.data:
            return _tried(job)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # what options leave as it is, of one of many modules
            executable = neuronx_cc.compile(Path(job.path), **options)
        return Outcome(executable.run([], timing_only=True).report.time_ns / 1e3)
    except NeuronError as error:
        return _failed(error)
    except MemoryError:
        return _failed(RunError("EMEM901", f"the host ran out of memory for {job.path}"))
    except OSError as error:
        return _failed(RunError("EFIL902", f"{job.path}: {error.strerror or error}", "free space, or set TMPDIR"))


def _failed(error: NeuronError) -> Outcome:
    return Outcome(None, render(error), error.exit_status)


def _tried(job: Job) -> Outcome:
    """One of many of a module, which this process keeps as it comes to the casts."""
    from neuronx_cc.driver.policy_file import policy_of
    from neuronx_cc.driver.tuning.bench import bench_of

    options = dict(job.options)
    policy = options.pop("precision_policy")
    assert isinstance(policy, str)
    found = bench_of(job.path, job.data, tuple(options.items())).trial(policy_of(policy, (), None))
    return Outcome(found.microseconds, difference=found.error, nbytes=found.nbytes)
