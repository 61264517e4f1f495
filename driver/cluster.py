"""Jobs on the workers of a Dask cluster, wherever they are: no folder is shared.

Files go there as bytes, named by their digests, each once; outcomes come back as JSON, NEFFs as bytes with their
digests. Nothing is pickled here, but Dask's own protocol is: who can reach its scheduler can run code on every worker
and on this machine. So a cluster is one that is trusted, behind ``tls://`` where the network is not.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from neuronx_cc.driver import files
from neuronx_cc.driver.jobs import TRIES, Job, Outcome, died
from neuronx_cc.driver.version import COMPILER_VERSION
from neuronx_cc.driver.work import do
from neuronx_cc.ir.errors import CompileError, NeuronError, RunError, UsageError

PATIENCE = 10.0
"""Seconds in which a scheduler must answer."""


class Cluster:
    """The scheduler at ``address``. Raises UsageError EARG914 without ``distributed``, RunError ERUN923."""

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise UsageError(
                "EARG914", "--scheduler needs the package distributed", "pip install 'open-neuronx-cc[cluster]'"
            ) from None
        self._address = address
        self._files: dict[str, Any] = {}
        """What the workers hold, by digest."""
        try:
            self._client: Any = Client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:  # addresses of unknown kinds among them
            raise RunError("ERUN923", f"no scheduler answers at {address}: {error or type(error).__name__}") from None

    def outcomes(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome]]:
        todo = dict.fromkeys(jobs, TRIES)
        while todo:
            for job, outcome in self._round(list(todo)):
                todo[job] -= 1
                if outcome is not None or not todo[job]:
                    del todo[job]
                    yield job, outcome or died(job)

    def close(self) -> None:
        self._client.close(timeout=1)

    def _round(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Outcome | None]]:
        """None for those whose files went with a worker."""
        from distributed import as_completed

        with self._reached():
            futures = {}
            for job in jobs:
                try:
                    parts = [self._held(path) if path else None for path in (job.path, job.data)]
                except NeuronError as error:
                    from neuronx_cc.driver.errors import render

                    yield job, Outcome(None, render(error), error.exit_status)
                    continue
                future = self._client.submit(perform, _request(job), *parts, pure=False, retries=TRIES)
                futures[future] = job
            for future in as_completed(list(futures), loop=self._client.loop):
                yield futures[future], self._outcome(futures[future], future)

    def _held(self, path: str) -> Any:
        """The file on every worker; equal files once, as long as a worker that has them lives."""
        data = files.read(path, "model file")
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._files or self._files[digest].status != "finished":
            # under a new name each time: one that is released meanwhile would take the other along
            self._files[digest] = self._client.scatter(data, broadcast=True, hash=False)
        return self._files[digest]

    def _outcome(self, job: Job, future: Any) -> Outcome | None:
        from concurrent.futures import CancelledError

        from distributed import KilledWorker

        try:
            text, neff = future.result()
        except KilledWorker:
            return died(job)
        except CancelledError:  # what it read, or made, went with a worker, perhaps while it was asked for
            self._check()
            return None
        outcome, digest = _read(text)
        if job.output and neff:
            if hashlib.sha256(neff).hexdigest() != digest:
                return Outcome(None, f"the NEFF of {job.path} was damaged on its way", 1)
            files.write_bytes(job.output, neff, CompileError)
        return outcome

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """What Dask raises when its scheduler is gone, as an error of ours."""
        from concurrent.futures import CancelledError

        from distributed.comm import CommClosedError

        try:
            yield
        except (CommClosedError, CancelledError, TimeoutError, OSError) as error:
            raise self._lost() from error
        except RuntimeError as error:  # a client that was closed for good
            if self._client.status == "running":
                raise
            raise self._lost() from error

    def _check(self) -> None:
        if self._client.status != "running":
            raise self._lost()

    def _lost(self) -> RunError:
        return RunError("ERUN923", f"the scheduler at {self._address} is gone, with what its workers had in hand")


def _request(job: Job) -> str:
    """``job`` without the folders of its files."""
    return json.dumps(
        {
            "version": COMPILER_VERSION,
            "name": Path(job.path).name,
            "options": job.options,
            "neff": bool(job.output),
        }
    )


def _read(text: str) -> tuple[Outcome, str]:
    """An outcome, and the digest of its NEFF."""
    found = json.loads(text)
    numbers = {key: float(found[key]) if found[key] is not None else None for key in ("microseconds", "difference")}
    said, status, nbytes = str(found["error"]), int(found["status"]), float(found["nbytes"])
    return Outcome(error=said, status=status, nbytes=nbytes, **numbers), str(found["digest"])


def perform(request: str, module: bytes, data: bytes | None) -> tuple[str, bytes]:
    """On a worker: one job, whose files are these. An outcome as JSON, and the NEFF if one is wanted."""
    from neuronx_cc.driver.jax_backend.service import SERVICE

    found: tuple[str, bytes] = SERVICE.run(_perform, request, module, data)  # workers' threads have small stacks
    return found


def _perform(request: str, module: bytes, data: bytes | None) -> tuple[str, bytes]:
    asked = json.loads(request)
    options = tuple((key, tuple(value) if isinstance(value, list) else value) for key, value in asked["options"])
    path = str(_kept(module, Path(asked["name"]).name))
    job = Job(path, options, data="" if data is None else str(_kept(data, "arrays.npz")))
    neff = b""
    if asked["version"] != COMPILER_VERSION:
        said = f"the worker has version {COMPILER_VERSION} of the compiler, {asked['version']} was asked for"
        outcome = Outcome(None, said, 1)
    elif asked["neff"]:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "out.neff")
            outcome = do(replace(job, output=str(output)))
            neff = output.read_bytes() if output.exists() else b""
    else:
        outcome = do(job)
    return json.dumps({**asdict(outcome), "digest": hashlib.sha256(neff).hexdigest()}), neff


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """What this worker was sent, as long as it lives."""
    return tempfile.TemporaryDirectory(prefix="neuronx-cc-")


def _kept(data: bytes, name: str) -> Path:
    path = Path(_folder().name, hashlib.sha256(data).hexdigest(), name)
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        files.write_bytes(str(path), data, RunError)
    return path
