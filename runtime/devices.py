"""Runs programs on several simulated devices at once, each with memories of its own, connected by a fabric."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.collectives import Groups
from neuronx_cc.ir.isa.elements import Array
from neuronx_cc.ir.machine import Machine
from neuronx_cc.runtime.course import Course
from neuronx_cc.runtime.executable import Executable, RunResult
from neuronx_cc.runtime.fabric import Fabric
from neuronx_cc.runtime.host import Functions
from neuronx_cc.runtime.host_memory import require
from neuronx_cc.runtime.meetings import problem
from neuronx_cc.runtime.memory import Memory
from neuronx_cc.runtime.races import check as prove_ordered


def replicate(executable: Executable) -> list[Executable]:
    """One executable for each device of the program; they share its constants."""
    return together([executable] * device_count(executable))


def together(executables: Sequence[Executable]) -> list[Executable]:
    """One for each device, in order: what stands there again has memories of its own.

    Raises RunError ERUN001 for programs of another number of devices, ERUN922 for those that do not meet.
    """
    for number, each in enumerate(executables):
        if each.program.devices != executables[0].program.devices:
            first, other = executables[0].program.devices, each.program.devices
            raise RunError(
                "ERUN001",
                f"program 0 is for {first[0]} replicas of {first[1]} partitions, program {number} for {other[0]} of "
                f"{other[1]}",
                "compile them together: neuronx-cc compile RANK0 RANK1 ...",
            )
    if len(executables) != (count := device_count(executables[0])):
        raise RunError("ERUN001", f"programs for {count} devices, {len(executables)} given", "give one for each device")
    found = problem([each.program for each in executables])
    if found:
        raise RunError("ERUN922", found)
    seen: set[int] = set()
    made = []
    for each in executables:
        made.append(each.on_another_device() if id(each) in seen else each)
        seen.add(id(each))
    return made


def device_count(executable: Executable) -> int:
    """How many devices run the program together."""
    replicas, partitions = executable.program.devices
    return replicas * partitions


def run_devices(
    executables: Sequence[Executable],
    inputs: Sequence[Sequence[Array]],
    *,
    stochastic_rounding_seed: int | None = None,
    machine: Machine | str | None = None,
) -> list[RunResult]:
    """Run ``executables[i]`` on ``inputs[i]``, device i = replica * partitions + partition; results in that order.

    Values do not depend on the threads' timing. Where one device's inputs need the exact program, all devices run it.
    Raises the first device's RunError; ERUN915 when devices wait for each other for ever, ERUN001 for a wrong number of
    devices.
    """
    relying = [each for each in zip(executables, inputs, strict=False) if each[0].relies_on_codes]
    wrong = next(filter(None, (each.undefined(each.check_inputs(row)) for each, row in relying)), None)
    if wrong is not None:
        executables = [each.exact_for(wrong) if each.relies_on_codes else each for each in executables]
    fabric = _fabric(executables, len(inputs))

    def work(number: int) -> RunResult:
        return executables[number].run(
            inputs[number],
            stochastic_rounding_seed=stochastic_rounding_seed,
            machine=machine,
            device=number,
            port=fabric.port(number),
        )

    _prove_ordered(executables)
    _require_memory(executables)
    return fabric.run(work)


def observe_devices(
    executables: Sequence[Executable],
    inputs: Sequence[Sequence[Array]],
    groups: Sequence[Groups],
    stops: Callable[[int, Fabric, int], Mapping[int, Callable[[Memory], None]]],
) -> list[list[Array]]:
    """The outputs of each device.

    On the way ``stops(i, fabric, first)`` of device i are called (``Executable.observe``), which may meet in
    ``fabric``, where ``groups`` are numbered from ``first`` on.
    """
    first = len(executables[0].program.groups)
    fabric = Fabric([[*executable.program.groups, *groups] for executable in executables])

    def work(number: int) -> list[Array]:
        executable = executables[number]
        return executable.observe(inputs[number], stops(number, fabric, first), number, fabric.port(number))

    return fabric.run(work)


def compute_devices(
    executables: Sequence[Executable],
    inputs: Sequence[Sequence[Array]],
    outputs: Sequence[Sequence[Array]],
    *,
    stochastic_rounding_seed: int | None = None,
    functions: Functions | None = None,
) -> list[Course]:
    """Values alone, into arrays of the caller (``Executable.compute``); otherwise as ``run_devices``."""
    fabric = _fabric(executables, len(inputs))

    def work(number: int) -> Course:
        return executables[number].compute(
            inputs[number],
            outputs[number],
            stochastic_rounding_seed=stochastic_rounding_seed,
            device=number,
            port=fabric.port(number),
            functions=functions,
        )

    _prove_ordered(executables)
    _require_memory(executables)
    return fabric.run(work)


def _prove_ordered(executables: Sequence[Executable]) -> None:
    for program in {id(each.program): each.program for each in executables}.values():
        prove_ordered(program)


def run_apart(executables: Sequence[Executable], batches: Sequence[Sequence[Array]]) -> list[RunResult]:
    """Run a program of one device once for each of ``batches``, on as many devices as there are ``executables``.

    Device i runs batches i, i + n, ... one after the other, and knows nothing of the others. Results are in the order
    of ``batches``. Raises the first failing device's RunError; ERUN001 for programs of several devices.
    """
    busy = executables[: len(batches)]
    for executable in busy:
        _require_devices(executable, 1)
    if len(busy) < 2:
        return [busy[0].run(batch) for batch in batches]
    prove_ordered(busy[0].program)
    _require_memory(busy)

    def work(number: int) -> list[RunResult]:
        return [busy[number].run(batch) for batch in batches[number :: len(busy)]]

    with ThreadPoolExecutor(len(busy)) as pool:
        dealt = list(pool.map(work, range(len(busy))))
    return [dealt[number % len(busy)][number // len(busy)] for number in range(len(batches))]


def _require_memory(executables: Sequence[Executable]) -> None:
    """All devices write at the same time. Raises RunError EMEM901."""
    nbytes = sum(executable.fresh_bytes for executable in executables)
    require(nbytes, lambda: f"on each of {len(executables)} devices {executables[0].describe()}")


def _fabric(executables: Sequence[Executable], given: int) -> Fabric:
    for count in (given, len(executables)):
        _require_devices(executables[0], count)
    return Fabric([executable.program.groups for executable in executables])


def _require_devices(executable: Executable, given: int) -> None:
    count = device_count(executable)
    if given != count:
        raise RunError(
            "ERUN001",
            f"the program runs on {count} devices, inputs for {given} given",
            f"run it with --devices {count}",
        )
