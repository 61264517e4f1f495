"""Jobs on a Dask cluster of this machine: results as without one, workers and schedulers that die, other versions."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.driver import cli, cluster
from neuronx_cc.driver.cluster import Cluster
from neuronx_cc.driver.jobs import Job, Outcome, Processes
from neuronx_cc.driver.work import do
from neuronx_cc.ir.errors import RunError, UsageError

distributed = pytest.importorskip("distributed", reason="needs the extra cluster")
dask = pytest.importorskip("dask")
TEXT = """HloModule m
ENTRY main {
  x = f32[64,64] parameter(0)
  ROOT a = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


@pytest.fixture(scope="module")
def local() -> Iterator["distributed.LocalCluster"]:
    """Two workers, processes of their own, which are started anew when they die."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster_:
        yield cluster_


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    made = []
    for size in (32, 64, 96, 128):
        path = tmp_path / f"m{size}.hlo"
        path.write_text(TEXT.replace("64", str(size)))
        made.append(Job(str(path), (("auto_cast", "none"),), str(tmp_path / f"m{size}.neff")))
    return [*made, Job(str(tmp_path / "missing.hlo"))]


def in_order(outcomes: Iterator[tuple[Job, Outcome]], jobs: list[Job]) -> list[Outcome]:
    found = dict(outcomes)
    return [found[job] for job in jobs]


def test_outcomes_and_neffs_are_those_of_this_process(local, jobs: list[Job]) -> None:
    here = in_order(Processes(1, do).outcomes(jobs), jobs)
    neffs = [Path(job.output).read_bytes() for job in jobs[:-1]]
    for job in jobs[:-1]:
        Path(job.output).unlink()
    there = Cluster(local.scheduler_address)
    assert in_order(there.outcomes(jobs), jobs) == here
    there.close()
    assert [Path(job.output).read_bytes() for job in jobs[:-1]] == neffs
    assert "missing.hlo" in here[-1].error


def test_a_result_that_goes_while_it_is_asked_for_is_made_again(local, jobs: list[Job]) -> None:
    """It was finished when it was looked at, and its worker was killed then."""
    from concurrent.futures import CancelledError

    class Gone:
        status = "finished"

        def result(self) -> None:
            raise CancelledError("already forgotten")

    there = Cluster(local.scheduler_address)
    assert there._outcome(jobs[0], Gone()) is None
    there.close()


def test_a_worker_that_is_killed_loses_nothing(local, jobs: list[Job]) -> None:
    here = in_order(Processes(1, do).outcomes(jobs), jobs)
    there = Cluster(local.scheduler_address)
    outcomes = there.outcomes(jobs)
    found = dict([next(outcomes)])
    os.kill(next(iter(there._client.run(os.getpid).values())), signal.SIGKILL)
    found |= dict(outcomes)
    there._client.wait_for_workers(2, timeout=60)  # a cluster does not end well while one is started anew
    there.close()
    assert [found[job] for job in jobs] == here


def layers(x, w):
    for _ in range(3):
        x = x + jnp.tanh(x @ w / 8) @ w / 8
    return x


def test_a_tuning_finds_the_same_on_workers(local) -> None:
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((160, 160)).astype(np.float32) for _ in range(2)]
    here, there = (
        neuronx_cc.tune(jax.jit(layers), inputs, 1e-3, types=("bf16",), scheduler=scheduler, front=2)
        for scheduler in (None, local.scheduler_address)
    )
    assert here.trials > 2, "mixed assignments among them"
    assert (there.chosen, there.points, there.policy) == (here.chosen, here.points, here.policy)


def test_the_command_and_a_scheduler_that_is_not_there(local, jobs: list[Job], tmp_path: Path, capsys) -> None:
    words = ["sweep", jobs[0].path, "--option", "auto-cast=none,matmult", "--json"]
    assert cli.main([*words, "--scheduler", local.scheduler_address]) == 0
    there = json.loads(capsys.readouterr().out)
    assert cli.main([*words, "--workers", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == there
    for address in ("tcp://127.0.0.1:9", "nonsense://x"):
        cluster_patience, cluster.PATIENCE = cluster.PATIENCE, 0.5
        try:
            assert cli.main([*words, "--scheduler", address]) != 0
        finally:
            cluster.PATIENCE = cluster_patience
        said = capsys.readouterr().err
        assert "ERUN923" in said
        assert "Traceback" not in said


def test_a_cluster_that_goes_away_in_the_middle(tmp_path: Path) -> None:
    """What was measured before stays in the workspace, and the tuning goes on without the cluster."""
    random = np.random.default_rng(0)
    inputs = [random.standard_normal((64, 64)).astype(np.float32) for _ in range(2)]

    def tuned(**how) -> neuronx_cc.Tuning:
        return neuronx_cc.tune(jax.jit(layers), inputs, 1e-3, types=("bf16",), workspace=tmp_path, **how)

    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as short:
        tuned(scheduler=short.scheduler_address, max_trials=2)
        engine = Cluster(short.scheduler_address)
    started = time.monotonic()
    short_waits = dask.config.set({"distributed.comm.timeouts.connect": "2s", "distributed.comm.timeouts.tcp": "2s"})
    with short_waits, pytest.raises(RunError) as caught:
        list(engine.outcomes([Job(__file__)]))
    assert caught.value.code == "ERUN923"
    assert time.monotonic() - started < 60
    engine.close()
    rest = tuned()
    assert rest.resumed > 0
    assert rest.complete


def test_a_worker_with_another_version_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "m.hlo"
    path.write_text(TEXT)
    request = cluster._request(Job(str(path)))
    monkeypatch.setattr(cluster, "COMPILER_VERSION", "0.0.1")
    outcome, _ = cluster._read(cluster.perform(request, path.read_bytes(), None)[0])
    assert "version 0.0.1" in outcome.error
    assert outcome.status == 1


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(UsageError, match="cluster") as caught:
        Cluster("tcp://127.0.0.1:8786")
    assert caught.value.code == "EARG914"
