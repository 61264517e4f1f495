"""``run --check`` around ``check.py``: finds the module of a NEFF and repeats its passes.

Input: a NEFF with the options and the digest of the module it was compiled from, inputs and simulated outputs.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from pathlib import Path

from neuronx_cc import runtime
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.codegen.left import Left, State
from neuronx_cc.driver.check import Array, Check, Rerun, Watcher, check
from neuronx_cc.driver.compare import Comparison, compare_module
from neuronx_cc.driver.compile import MODULE_DIGEST, MODULE_NAME, generate
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.fp64 import FromFp64, from_fp64
from neuronx_cc.driver.frontends.door import fixed_by, is_saved_model, load_module, read
from neuronx_cc.driver.log import Log
from neuronx_cc.driver.machines import planned_machine
from neuronx_cc.driver.options import COMPILE
from neuronx_cc.driver.parse import Parsed, from_keywords
from neuronx_cc.driver.pipeline import run_pipeline
from neuronx_cc.driver.recompile import Model
from neuronx_cc.driver.search import found_in
from neuronx_cc.driver.side_by_side import device_at, groups_in
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.reference.devices import Device, on_device
from neuronx_cc.runtime.devices import observe_devices, replicate
from neuronx_cc.runtime.fabric import Fabric
from neuronx_cc.runtime.memory import Memory
from neuronx_cc.runtime.native import library

Rows = list[list[Array]]
"""Of each device."""


def find_module(neff: Neff, path: str, explicit: str | None) -> tuple[str, bytes]:
    """The file that ``neff`` was compiled from, told by its digest: ``explicit``, or by name beside the NEFF or here.

    Raises ``RunError`` ERUN903 when it is not found or is another one.
    """
    name, digest = neff.options.get(MODULE_NAME), neff.options.get(MODULE_DIGEST)
    if not isinstance(name, str) or not isinstance(digest, str):
        raise RunError("ERUN903", "the NEFF does not say which module it was compiled from", "compile it from a file")
    if explicit is not None:
        data = read(explicit)
        if hashlib.sha256(data).hexdigest() != digest:
            raise RunError("ERUN903", f"{explicit} is not the module that the NEFF was compiled from ({name})")
        return explicit, data
    for folder in (Path(path).parent, Path()):
        candidate = folder / name
        if name and (candidate.is_file() or is_saved_model(str(candidate))):
            data = read(str(candidate))
            if hashlib.sha256(data).hexdigest() == digest:
                return str(candidate), data
    raise RunError("ERUN903", f"--check needs the module that the NEFF was compiled from; {name!r} is not found")


def compiled_with(neff: Neff) -> Parsed:
    """The options that ``neff`` records."""
    known = {option.key for option in COMPILE.options}
    return from_keywords(COMPILE, {key: value for key, value in neff.options.items() if key in known})


def compare_neff(neff: Neff, source: tuple[str, bytes], inputs: Rows, outputs: Rows) -> Comparison:
    """How far ``outputs`` are from FP32 semantics, and by which ops."""
    parsed = compiled_with(neff)
    model = Model(lambda: load_module(source[1], source[0], fixed_by(parsed)), parsed)
    return compare_module(model, inputs, outputs, Progress())


def compare_fp64(neff: Neff, source: tuple[str, bytes], inputs: Rows, outputs: Rows) -> FromFp64:
    """How far ``outputs`` and FP32 semantics are from FP64."""
    parsed = compiled_with(neff)
    module, _ = Model(lambda: load_module(source[1], source[0], fixed_by(parsed)), parsed).before_casts()
    return from_fp64(module, inputs, outputs)


def check_neff(neff: Neff, source: tuple[str, bytes], inputs: Rows, outputs: Rows, session: Session) -> Check:
    """Repeat import and passes with the recorded options, and judge ``outputs``."""
    parsed = compiled_with(neff)
    module = load_module(source[1], source[0], fixed_by(parsed))
    # what the passes warn of was said when the NEFF was compiled
    machine = planned_machine(parsed)
    run_pipeline(module, parsed, Session(session.program, session.argv, Log(level=100), parsed), machine)

    def rerun() -> Rerun:
        left: list[Left | State] = []
        planner = found_in(neff.options, machine)
        executables = replicate(runtime.load(generate(module, parsed, machine, [], left=left, planner=planner)))
        states = [each for each in left if isinstance(each, State)]
        kernels = [list(of) for _, of in groupby((e for e in left if isinstance(e, Left)), key=lambda e: e.record)]

        groups = groups_in(module)

        def run(watchers: Sequence[Watcher]) -> Rows:
            def looks(number: int, fabric: Fabric, first: int) -> dict[int, Callable[[Memory], None]]:
                watcher, device = watchers[number], None
                if len(watchers) > 1:
                    device = device_at(fabric, number, module, groups, first)
                found = {of[0].record: partial(_look, of, watcher) for of in kernels}
                found |= {state.record: partial(_look_ahead, state, watcher) for state in states}
                return {record: partial(_there, device, look) for record, look in found.items()}

            return observe_devices(executables, inputs, groups, looks)

        def before(inputs: Sequence[Sequence[Array]]) -> Rows:
            with library.preferring("numpy"):
                return observe_devices(replicate(runtime.load(neff)), inputs, [], lambda number, fabric, first: {})

        return Rerun(module, [[each.value for each in group] for group in kernels], run, before)

    return check(module, inputs, outputs, rerun, Progress())


def _there(device: Device | None, look: Callable[[Memory], None], memory: Memory) -> None:
    """Look as one of several devices."""
    with on_device(device) if device is not None else nullcontext():
        look(memory)


def _look(group: Sequence[Left], watcher: Watcher, memory: Memory) -> None:
    """What the kernel has left."""
    watcher.kernel([_array(each.view, hlo.shape_of(each.value), memory) for each in group])


def _look_ahead(state: State, watcher: Watcher, memory: Memory) -> None:
    """What an iteration begins with."""
    owner = state.loop.operand.owner
    assert isinstance(owner, hlo.TupleOp), "flatten_control left another form"
    shapes = [hlo.shape_of(value) for value in owner.operands]
    found = {index: _array(view, shapes[index], memory) for index, view in state.views.items()}
    watcher.iteration(state.loop, found, state.filled)


def _array(view: View, shape: hlo.Shape, memory: Memory) -> Array:
    atoms = [atom for dim in view.dims for atom in dim]
    dims = [(atom.size, atom.stride, atom.partition) for atom in atoms]
    stored = memory.lying(view.alloc.space, view.dtype, view.start.const, dims).reshape(shape.dims)
    return stored != 0 if shape.dtype == "pred" else stored.astype(shape.numpy_dtype, copy=False)


class Progress:
    """Says every few seconds on stderr how far a check has come."""

    SECONDS = 5.0

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, what: str, done: int, of: int) -> None:
        if time.monotonic() - self._last >= self.SECONDS:
            self._last = time.monotonic()
            print(f"check: {what} {done} of {of}", file=sys.stderr, flush=True)
