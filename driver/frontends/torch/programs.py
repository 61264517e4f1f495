"""Compiled programs as an operator of torch, ``neuronx_cc::run``: a NEFF in a tensor of bytes, and its inputs.

So scripted modules can hold programs; a process that has imported ``neuronx_cc.torch`` can load and call them.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch

from neuronx_cc import runtime
from neuronx_cc.driver.frontends.torch.arrays import to_numpy, to_torch
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.neff_archive import HEADER_SIZE
from neuronx_cc.runtime import Executable, RunResult
from neuronx_cc.runtime.devices import run_apart

LOADED = 64
"""Programs that stay loaded; others are loaded again when they are called."""
_programs: OrderedDict[bytes, Executable] = OrderedDict()
_lock = Lock()
_busy: WeakKeyDictionary[Executable, Lock] = WeakKeyDictionary()
_last: list[RunResult] = []


def loaded(neff: torch.Tensor) -> Executable:
    """The program in a tensor of bytes, whose header has the digest of the rest. Raises RunError ENEF901 or EBIR902."""
    key = neff[:HEADER_SIZE].numpy().tobytes()
    with _lock:
        if key not in _programs:
            _programs[key] = runtime.load(neff.numpy().tobytes())
            while len(_programs) > LOADED:
                _programs.popitem(last=False)
        _programs.move_to_end(key)
        return _programs[key]


def keep(neff: torch.Tensor, program: Executable) -> None:
    """Take ``program`` for what would be loaded from ``neff``."""
    with _lock:
        _programs[neff[:HEADER_SIZE].numpy().tobytes()] = program


def execute(program: Executable, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """The results of a run on tensors or arrays. Raises RunError ERUN001 for inputs that do not fit."""
    return execute_apart([program], [inputs])[0]


def execute_apart(programs: Sequence[Executable], batches: Sequence[Sequence[Any]]) -> list[list[torch.Tensor]]:
    """The same for each of ``batches``, on as many devices as there are ``programs``, which have one NEFF.

    A device runs for one thread at a time.
    """
    given = [[to_numpy(each) if isinstance(each, torch.Tensor) else each for each in batch] for batch in batches]
    with ExitStack() as held:
        for program in programs[: len(given)]:
            held.enter_context(_lock_of(program))
        results = run_apart(programs, given)
    _last[:] = results[-1:]
    return [[to_torch(array) for array in result.outputs] for result in results]


def _lock_of(program: Executable) -> Lock:
    with _lock:
        return _busy.setdefault(program, Lock())


def with_fixed(results: Sequence[Any], fixed: Mapping[int, Any]) -> list[Any]:
    """All results of a graph: those of its program, and what is no tensor, by place."""
    whole = list(results)
    for place in sorted(fixed):
        whole.insert(place, fixed[place])
    return whole


def last_run() -> RunResult:
    """The last run of a program from PyTorch: its ``report`` has the simulated time.

    Raises UsageError ERUN905 when nothing has run.
    """
    if not _last:
        raise UsageError("ERUN905", "no program from PyTorch has run", "call a traced or compiled module first")
    return _last[0]


@torch.library.custom_op("neuronx_cc::run", mutates_args=())
def run(neff: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of the program in ``neff``."""
    return execute(loaded(neff), inputs)


@run.register_fake
def _shapes(neff: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    # the bytes are known only where torch does not look for shapes alone
    raise UsageError(
        "EARG906", "a compiled program cannot be exported or compiled once more", "export the module that it came from"
    )


def bytes_of(neff: Neff) -> torch.Tensor:
    """A NEFF as a tensor of bytes."""
    return torch.frombuffer(bytearray(neff.to_bytes()), dtype=torch.uint8)
