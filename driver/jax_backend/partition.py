"""One device's module of a program for several devices.

Sharded programs arrive whole, with annotations; XLA's partitioner divides them in a process of its own
(``partition_worker``). A module without annotations is every device's module as it is. Nothing is computed here.
"""

import atexit
import base64
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from neuronx_cc.driver.jax_backend.program import DEVICE_MEMORY
from neuronx_cc.ir.errors import CompileError


@dataclass(frozen=True, slots=True)
class Division:
    """Over which devices a program is to be divided, and how free XLA is in it."""

    replicas: int = 1
    partitions: int = 1
    to_parameters: tuple[bool, ...] = ()
    """Whether it may choose the shardings of parameters without annotations: one answer for all, or one each."""
    to_results: tuple[bool, ...] = ()

    @classmethod
    def of(cls, replicas: int, partitions: int, options: Any) -> "Division":
        """What ``options``, jaxlib's CompileOptions, say."""
        build = options.executable_build_options
        return cls(
            replicas,
            partitions,
            tuple(map(bool, build.allow_spmd_sharding_propagation_to_parameters)),
            tuple(map(bool, build.allow_spmd_sharding_propagation_to_output)),
        )


@dataclass(frozen=True, slots=True)
class Local:
    """The module that each device runs."""

    code: bytes
    result_kinds: tuple[str, ...] = ()
    """Memory kinds of the results; empty when all lie in device memory."""
    parameter_shardings: tuple[bytes, ...] | None = None
    """Serialized OpShardings; None for a module without annotations, whose values every device has whole."""
    result_shardings: tuple[bytes, ...] | None = None
    inspections: tuple[tuple[int, bytes], ...] = ()
    """Number of a function, and the OpSharding of the value that it asks about."""


def localize(code: bytes, division: Division) -> Local:
    """The local module of the portable artifact ``code``. Raises CompileError EJAX901 when it cannot be partitioned."""
    kinds = _kinds(code)
    shardy = b"sdy" in code
    if not (shardy or b"mhlo.sharding" in code) or (division.partitions == 1 and b"manual_computation" not in code):
        return Local(code, kinds)
    facts, local = _partitioned(code, asdict(division), shardy)
    parameters, results = (tuple(map(base64.b64decode, facts[key])) for key in ("parameters", "results"))
    inspections = tuple((number, base64.b64decode(sharding)) for number, sharding in facts["inspections"])
    return Local(local, kinds, parameters, results, inspections)


def localize_stated(code: bytes) -> tuple[bytes, tuple[int, int]]:
    """One device's module of the StableHLO or HLO ``code``, and the replicas and partitions that it states.

    As JAX would, XLA chooses the shardings of parameters and results without annotations. Raises as ``localize``.
    """
    facts, local = _partitioned(code, {}, b"sdy" in code)
    replicas, partitions = facts["devices"]
    return local, (replicas, partitions)


def _partitioned(code: bytes, wanted: dict[str, Any], shardy: bool) -> tuple[dict[str, Any], bytes]:
    request = {**wanted, "shardy": shardy}
    try:
        with suppress(_Aborted):
            return _WORKER.partition(code, {**request, "spread": shardy})
        return _WORKER.partition(code, {**request, "spread": False})
    except _Failed as failure:
        raise CompileError(
            "EJAX901", f"XLA cannot partition the program: {failure}", "use jax.shard_map for this part"
        ) from None


def _kinds(code: bytes) -> tuple[str, ...]:
    """Memory kinds of the results of an unpartitioned module."""
    if b"mhlo.memory_kind" not in code:
        return ()
    from jaxlib import _jax  # type: ignore[attr-defined,unused-ignore]
    from jaxlib.mlir import ir

    from neuronx_cc.driver.jax_backend.partition_worker import make_context

    context = make_context()
    with context:
        module = _jax.mlir.deserialize_portable_artifact(code, context)
        (main,) = (op for op in module.body.operations if "main" in str(op.attributes["sym_name"]))
        results = [ir.DictAttr(each) for each in ir.ArrayAttr(main.attributes["res_attrs"])]
        kinds = [
            ir.StringAttr(each["mhlo.memory_kind"]).value if "mhlo.memory_kind" in each else "" for each in results
        ]
    return tuple(kind or DEVICE_MEMORY for kind in kinds)


@cache
def replicated() -> bytes:
    """The OpSharding of a value that every device has whole."""
    from jaxlib import _hlo  # type: ignore[attr-defined,unused-ignore]

    serialized: bytes = _hlo.HloSharding.replicate().to_proto().SerializeToString()
    return serialized


class _Failed(Exception):
    """Why a module was not partitioned."""


class _Aborted(_Failed):
    """The process has ended."""


class _Worker:
    """The partitioning process, started when it is needed and again after it has died."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)
        atexit.register(self._stop)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None

    def partition(self, code: bytes, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        with self._lock:
            answer = self._ask(json.dumps(request).encode() + b"\n" + code)
        if not answer.startswith(b"+"):
            raise _Failed(_summary(answer[1:].decode("utf-8", "replace")))
        line, local = answer[1:].split(b"\n", 1)
        return json.loads(line), local

    def _ask(self, request: bytes) -> bytes:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(struct.pack("<I", len(request)) + request)
            process.stdin.flush()
            head = process.stdout.read(4)
            if len(head) == 4:
                return process.stdout.read(struct.unpack("<I", head)[0])
        except OSError:
            pass
        status = process.wait()
        self._process = None
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip()
        raise _Aborted(f"they aborted (status {status}): {_summary(said)}")

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115
            self._process = subprocess.Popen(
                [sys.executable, "-m", "neuronx_cc.driver.jax_backend.partition_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)


def _summary(text: str) -> str:
    """The line of a diagnostic that says what is wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("error:") or "LLVM ERROR" in line or "Check failed" in line]
    return " ".join((telling or lines or ["no message"])[:1])[:400]


_WORKER = _Worker()
