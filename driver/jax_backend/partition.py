"""One device's module of a program for several devices.

Sharded programs arrive whole, with Shardy annotations; jaxlib's passes partition them in a process of their own
(``partition_worker``). A module without annotations is every device's module as it is. Nothing is computed here.
"""

import atexit
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from neuronx_cc.driver.jax_backend.program import DEVICE_MEMORY
from neuronx_cc.driver.jax_backend.settings import LOGGER
from neuronx_cc.ir.errors import CompileError


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


def localize(code: bytes, partitions: int) -> Local:
    """The local module of the portable artifact ``code``. Raises CompileError EJAX901 when it cannot be partitioned."""
    if partitions == 1 and b"manual_computation" not in code:
        return Local(code, _kinds(code))
    if b"sdy" not in code:
        if b"mhlo.sharding" in code:
            raise CompileError(
                "EJAX901",
                "the program has GSPMD shardings, and only Shardy's are partitioned",
                "leave jax_use_shardy_partitioner on",
            )
        return Local(code, _kinds(code))
    failures = []
    for careful in (False, True):
        try:
            facts, local = _WORKER.partition(code, careful)
        except _Failed as failure:
            failures.append(str(failure))
            continue
        if careful:
            LOGGER.info("a sharded program is computed whole on every device: %s", failures[0])
        kinds = tuple(kind or DEVICE_MEMORY for kind in facts["kinds"])
        inspections = tuple(
            (number, manual() if own else _op_sharding(facts["meshes"], sharding))
            for number, sharding, own in facts["inspections"]
        )
        return Local(local, kinds, _shardings(facts, "arguments"), _shardings(facts, "results"), inspections)
    raise CompileError(
        "EJAX901", f"jaxlib's passes cannot partition the program: {failures[-1]}", "use jax.shard_map for this part"
    )


def _kinds(code: bytes) -> tuple[str, ...]:
    """Memory kinds of the results of an unpartitioned module."""
    if b"mhlo.memory_kind" not in code:
        return ()
    from jaxlib import _jax  # type: ignore[attr-defined,unused-ignore]

    from neuronx_cc.driver.jax_backend.partition_worker import describe, make_context

    context = make_context()
    with context:
        facts = describe(_jax.mlir.deserialize_portable_artifact(code, context))
    return tuple(kind or DEVICE_MEMORY for kind in facts["kinds"])


def _shardings(facts: dict[str, Any], key: str) -> tuple[bytes, ...]:
    return tuple(_op_sharding(facts["meshes"], each) for each in facts[key])


def replicated() -> bytes:
    """The OpSharding of a value that every device has whole."""
    return _serialized((), ())


def _op_sharding(meshes: dict[str, Any], sharding: dict[str, Any] | None) -> bytes:
    if sharding is None:
        return replicated()
    mesh = meshes[sharding["mesh"]]
    return tiled(mesh["axes"], mesh["ids"], sharding["dims"], sharding.get("unreduced", ()))


def tiled(axes: list[Any], ids: list[int], dims: list[Any], unreduced: Collection[str] = ()) -> bytes:
    """OpSharding of dims that are split over mesh axes, or parts (pre_size, size) of them, outermost first.

    ``unreduced`` names whole axes.
    """
    sizes: list[int] = []
    place: dict[tuple[str, int], int] = {}
    cuts = {name: {1, size} for name, size in axes}
    used = [axis for dim in dims for axis in dim]
    for name, part in used:
        if part is not None:
            cuts[name] |= {part[0], part[0] * part[1]}
    for name, _ in axes:
        ends = sorted(cuts[name])
        for low, high in pairwise(ends):
            place[name, low] = len(sizes)
            sizes.append(high // low)
    sizes = sizes or [1]
    devices = np.array(ids or range(prod(sizes)), np.int64).reshape(sizes)
    order: list[int] = []
    tiles: list[int] = []
    for dim in dims:
        count = 1
        for name, part in dim:
            low = 1 if part is None else part[0]
            high = dict(axes)[name] if part is None else part[0] * part[1]
            for start in [cut for cut in sorted(cuts[name]) if low <= cut < high]:
                order.append(place[name, start])
                count *= sizes[place[name, start]]
        tiles.append(count)
    sums = [at for (name, _), at in place.items() if name in unreduced]
    if prod(tiles) == 1 and not sums:
        return replicated()
    rest = [axis for axis in range(len(sizes)) if axis not in order and axis not in sums]
    subgroups = []
    for name, group in (("REPLICATED", rest), ("UNREDUCED", sums)):
        spare = prod(sizes[axis] for axis in group)
        if spare > 1:
            tiles.append(spare)
            subgroups.append(name)
    return _serialized(
        tuple(tiles), tuple(devices.transpose(order + rest + sums).reshape(-1).tolist()), tuple(subgroups)
    )


@cache
def _serialized(tiles: tuple[int, ...], devices: tuple[int, ...], subgroups: tuple[str, ...] = ()) -> bytes:
    from jaxlib import _hlo  # type: ignore[attr-defined,unused-ignore]

    sharding = _hlo.OpSharding()
    if tiles:
        sharding.type = _hlo.OpSharding_Type.OTHER
        sharding.tile_assignment_dimensions = list(tiles)
        sharding.tile_assignment_devices = list(devices)
        if subgroups == ("REPLICATED",):
            sharding.replicate_on_last_tile_dim = True
        else:
            sharding.last_tile_dims = [getattr(_hlo.OpSharding_Type, name) for name in subgroups]
    else:
        sharding.type = _hlo.OpSharding_Type.REPLICATED
    serialized: bytes = sharding.SerializeToString()
    return serialized


def manual() -> bytes:
    """The OpSharding of a value that each device has its own of."""
    from jaxlib import _hlo  # type: ignore[attr-defined,unused-ignore]

    sharding = _hlo.OpSharding()
    sharding.type = _hlo.OpSharding_Type.MANUAL
    serialized: bytes = sharding.SerializeToString()
    return serialized


class _Failed(Exception):
    """Why a module was not partitioned."""


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

    def partition(self, code: bytes, careful: bool) -> tuple[dict[str, Any], bytes]:
        with self._lock:
            answer = self._ask((b"C" if careful else b"N") + code)
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
        raise _Failed(f"they aborted (status {status}): {_summary(said)}")

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
