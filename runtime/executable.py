"""A loaded program: takes input arrays, runs the simulator, gives output arrays and a report.

``Executable.from_program`` takes an in-memory ``Program``; ``runtime.load`` reads a NEFF.
"""

from __future__ import annotations

import os
import warnings
import weakref
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from neuronx_cc.ir import progress
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa import soundness
from neuronx_cc.ir.isa.elements import STORAGE, Array, in_bytes
from neuronx_cc.ir.isa.outside import Port
from neuronx_cc.ir.isa.program import Instr, Program, Space, Variable
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.neff import Neff, PlannedFor
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.runtime.arguments import Name, Structure, arrange, by_name
from neuronx_cc.runtime.course import Course, assumed
from neuronx_cc.runtime.host import Functions, HostCalls
from neuronx_cc.runtime.host_memory import KEPT, LARGE_BYTES, require
from neuronx_cc.runtime.infinities import narrow_type, overflow
from neuronx_cc.runtime.memory import Memory, OnChip, complement
from neuronx_cc.runtime.native.executor import make_executor
from neuronx_cc.runtime.profiling.analysis import analyse
from neuronx_cc.runtime.profiling.execution import Execution
from neuronx_cc.runtime.profiling.page import make_page
from neuronx_cc.runtime.provenance import check as check_provenance
from neuronx_cc.runtime.provenance import wanted as provenance_wanted
from neuronx_cc.runtime.races import check as prove_ordered
from neuronx_cc.runtime.report import RunReport
from neuronx_cc.runtime.values import Executor


@dataclass(slots=True)
class RunResult:
    """``outputs`` in the order of the program's results (empty after a timing-only run)."""

    outputs: list[Array]
    report: RunReport
    execution: Execution
    """The run as the clock sees it, of which traces and reports are made."""
    structure: Structure | None = None
    """How the JAX function that was compiled returns its results."""
    overflow: str = ""
    """Where results are not finite because of a type of small range: what ``run`` warned of."""

    @property
    def tree(self) -> Any:
        """``outputs`` nested as the JAX function returns them; as they are where the function is not known."""
        return self.outputs if self.structure is None else self.structure.results.unflatten(self.outputs)


@dataclass(slots=True)
class _Io:
    inputs: list[Variable] = field(default_factory=list)
    outputs: list[Variable] = field(default_factory=list)
    constants: list[Variable] = field(default_factory=list)
    devices: list[Variable] = field(default_factory=list)


class Executable:
    """One program with its constants, on one machine description."""

    def __init__(
        self,
        program: Program,
        constants: Sequence[Array],
        machine: Machine | str = "trn1",
        on_chip: OnChip | None = None,
        planned_for: PlannedFor | None = None,
        name: str = "",
        make_exact: Callable[[], Neff] | None = None,
    ) -> None:
        """``machine`` is the description to run on when ``run`` names none; ``name`` is that of the module.

        ``on_chip`` is shared with other executables that never run at the same time; None: memories of its own.
        ``make_exact``: ``Neff.exact``.
        Raises NeuronError for a program that is none (``ir.isa.soundness``).
        """
        soundness.check(program)
        self.name = name
        self.program = program
        self._on_chip = on_chip
        self.machine = find_machine(machine)
        self._planned_for = planned_for
        self._constants = list(constants)
        self._io = _io(program)
        self.structure: Structure | None = None
        """How the arguments and results of the JAX function are nested, where it was compiled in this process."""
        self._make_exact = make_exact
        self._exact: Executable | None = None
        self._bound = _only_read(program, [*self._io.inputs, *self._io.constants])
        self._own = {variable.offset for variable in _alone(program, self._io.outputs) if variable.nbytes}
        """Offsets of the results that can be computed where the caller wants them."""
        self._memory: Memory | None = None
        self._executors: dict[int | None, Executor] = {}
        weakref.finalize(self, _end, self._executors).atexit = False
        self._reports: dict[object, RunReport] = {}
        self._results = [(variable.offset, variable.offset + variable.nbytes) for variable in self._io.outputs]
        self._volatile = complement(
            [(v.offset, v.offset + v.nbytes) for v in (*self._io.inputs, *self._io.constants)], program.hbm_bytes
        )

    @classmethod
    def from_program(cls, program: Program, constants: Sequence[Array], machine: Machine | str = "trn1") -> Executable:
        """An executable from a program in memory; ``constants[i]`` is the data of the constant with index i."""
        return cls(program, constants, machine)

    @classmethod
    def of(cls, neff: Neff, on_chip: OnChip | None = None) -> Executable:
        """The executable of a NEFF, on the machine that it was planned for."""
        return cls(neff.program, neff.constants, neff.machine(), on_chip, neff.planned_for, neff.name, neff.exact)

    def run(
        self,
        inputs: Sequence[Any] | Mapping[str, Any],
        *,
        timing_only: bool = False,
        stochastic_rounding_seed: int | None = None,
        machine: Machine | str | None = None,
        check_races: bool = True,
        device: int = 0,
        port: Port | None = None,
        functions: Functions | None = None,
    ) -> RunResult:
        """Run once: check for races, compute the values (unless ``timing_only``), and time the program.

        ``inputs`` are one array a parameter, the arguments of the JAX function that was compiled (arrays in nested
        dictionaries, tuples and objects), or values by name (``runtime.arguments``).
        ``machine`` is a description, or the name of a known one or a path; the default is the machine planned for.
        ``device`` is this device's number and ``port`` its connection to the others (``runtime.devices``);
        ``functions`` are those of the host that the program may call, by number (``runtime.host``).
        Memory is all ones at the start; of HBM only results, if it is proved that nothing undefined is read.
        Inputs with NaNs where the program relies on it that there are none are computed by another one (``exact_for``).
        Warns of results that are not finite where a type of small range may be why. Raises RunError for wrong inputs,
        faults, races and deadlocks.
        """
        progress.note(0, 3, "race check")
        proved = check_races and prove_ordered(self.program).exact
        if check_races and provenance_wanted():
            check_provenance(self.program)
        progress.note(1 + timing_only, 3, "timing" if timing_only else "values")
        if timing_only:
            return self._timed([], self.execution(machine=machine, device=device))
        arrays = self.check_inputs(inputs)
        wrong = self.undefined(arrays)
        if wrong is not None:
            return self.exact_for(wrong).run(
                inputs,
                stochastic_rounding_seed=stochastic_rounding_seed,
                machine=machine,
                check_races=check_races,
                device=device,
                port=port,
                functions=functions,
            )
        executor = self._executor(stochastic_rounding_seed)
        try:
            self._place_results(executor.memory)
            executor.memory.poison(self._results if proved else self._volatile)
            self._execute(executor, arrays, device, port, functions)
            outputs = [self._result(executor.memory, variable) for variable in self._io.outputs]
        finally:
            KEPT.put(executor.memory)
        progress.note(2, 3, "timing")
        result = self._timed(outputs, self.execution(executor.course, machine, device))
        result.overflow = self.overflow(arrays, outputs)
        if result.overflow:
            warnings.warn(result.overflow, RuntimeWarning, stacklevel=2)
        return result

    def observe(
        self,
        inputs: Sequence[Any] | Mapping[str, Any],
        stops: Mapping[int, Callable[[Memory], None]],
        device: int = 0,
        port: Port | None = None,
    ) -> list[Array]:
        """The outputs; on the way what ``stops`` has for a record is called with the memory as it is ahead of that
        record, each time that it comes to be run, or after the last one."""
        prove_ordered(self.program)
        memory = self._executor(None).memory
        executor = make_executor(self.program, memory, None, {row: partial(see, memory) for row, see in stops.items()})
        try:
            self._place_results(memory)
            memory.poison(self._volatile)
            self._execute(executor, self.check_inputs(inputs), device, port, None)
            return [self._result(memory, variable) for variable in self._io.outputs]
        finally:
            executor.end()
            KEPT.put(memory)

    def compute(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        *,
        stochastic_rounding_seed: int | None = None,
        device: int = 0,
        port: Port | None = None,
        functions: Functions | None = None,
    ) -> Course:
        """Values alone, into arrays of the caller, for callers that run a program again and again.

        All arrays have the signature's dims and storage types (``STORAGE``) and are not checked, nor are codes
        (``undefined``). Memory is not poisoned: the race check proves before the first run that nothing undefined is
        read. Returns what regions did, by which ``execution`` tells the time. Raises RunError for faults, races
        and deadlocks.
        """
        prove_ordered(self.program)
        executor = self._executor(stochastic_rounding_seed)
        memory = executor.memory
        try:
            elsewhere = []
            for variable, target in zip(self._io.outputs, outputs, strict=True):
                apart = not any([np.may_share_memory(target, array) for array in inputs])
                if not self._place_result(memory, variable, target if apart else None):
                    elsewhere.append((variable, target))
            self._execute(executor, inputs, device, port, functions)
            for variable, target in elsewhere:
                stored = memory.array(variable.offset, variable.nbytes, variable.dtype, variable.dims)
                np.copyto(target, stored != 0 if variable.dtype == "pred" else stored)
        finally:
            KEPT.put(memory)
        return executor.course

    def execution(
        self, course: Course | None = None, machine: Machine | str | None = None, device: int = 0
    ) -> Execution:
        """A run whose regions did ``course``, for the clock; without one, loops without a trip count run once."""
        description = self.machine if machine is None else find_machine(machine)
        known, guesses = (course, 0) if course is not None else assumed(self.program)
        return Execution(self.program, description, known, guesses, self._planned_for, device, self.name)

    def report(self, execution: Execution) -> RunReport:
        """The timing depends on data only through the course of the regions: each is simulated once a machine."""
        machine = execution.machine
        key = (machine.name, machine.key(), execution.course.key(), execution.assumed_regions)
        if key not in self._reports:
            self._reports[key] = execution.report()
        return self._reports[key]

    def report_html(self, path: str | os.PathLike[str] | None = None, machine: Machine | str | None = None) -> str:
        """A page that explains where the time of a run goes, without a network; with ``path`` it is also written there.

        No values are computed: loops whose trip count run-time values decide are taken as run once. Raises OSError.
        """
        page = make_page(analyse(self.execution(machine=machine)).document)
        if path is not None:
            Path(path).write_text(page, "utf-8")
        return page

    def _timed(self, outputs: list[Array], execution: Execution) -> RunResult:
        return RunResult(outputs, self.report(execution), execution, self.structure if outputs else None)

    def _execute(
        self, executor: Executor, inputs: Sequence[Array], device: int, port: Port | None, functions: Functions | None
    ) -> None:
        memory = executor.memory
        for variable, array in zip(self._io.inputs, inputs, strict=True):
            self._place(memory, variable, array)
        for variable in self._io.devices:
            numbers = np.array(divmod(device, self.program.devices[1]), np.uint32)
            self._place(memory, variable, numbers)
        executor.state.port = port
        executor.state.host = HostCalls(self.program, functions, device) if functions else None
        executor.run()

    @cached_property
    def _narrow(self) -> str:
        return narrow_type(self.program)

    def overflow(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> str:
        """What to warn of after a run: results that are not finite where a type of small range may be why."""
        return overflow(self._narrow, inputs, outputs)

    @cached_property
    def relies_on_codes(self) -> bool:
        """Whether some input must have no codes that are NaN."""
        return any(variable.defined for variable in self._io.inputs)

    def undefined(self, inputs: Sequence[Array]) -> str | None:
        """The first input with NaNs among codes of which the program relies on it that there are none."""
        for variable, array in zip(self._io.inputs, inputs, strict=True):
            if variable.defined:
                every, codes = np.arange(1 << 8, dtype=np.uint8), array.view(np.uint8)
                nans = every[np.isnan(every.view(STORAGE[variable.dtype]).astype(np.float32))]
                # comparing is many times as fast as looking each code up
                if any((codes == nan).any() for nan in nans):
                    return f"input {variable.index} ({Name(variable.name, variable.argument)})"
        return None

    def exact_for(self, wrong: str) -> Executable:
        """The program that also computes what ``wrong``, an input with NaNs among its codes, means; warns of that.

        It is compiled when it is first asked for. Raises RunError ERUN906 where that cannot be, as for a NEFF's file.
        """
        if self._make_exact is None:
            raise RunError(
                "ERUN906",
                f"{wrong} has codes that are NaN, and the program was compiled for inputs without",
                "compile it with --nan-codes",
            )
        if self._exact is None:
            self._exact = Executable.of(self._make_exact())
            self._exact.structure = self.structure
        said = f"{wrong} has codes that are NaN: a program that looks for them computes this, which takes longer"
        warnings.warn(said, RuntimeWarning, stacklevel=3)
        return self._exact

    @property
    def fresh_bytes(self) -> int:
        """What the next run may take of the host's memory for what it writes."""
        if self._memory is not None:
            return 0 if self._memory in KEPT else self._memory.scratch_bytes
        fixed = {variable.offset: variable.nbytes for variable in (*self._bound, *self._io.constants)}
        return self.program.hbm_bytes - sum(fixed.values())

    def describe(self) -> str:
        """The program by its largest variables, for messages."""
        ranked = sorted(self.program.variables, key=lambda variable: -variable.nbytes)[:3]
        texts = [f"{v.name} {v.dtype}[{','.join(map(str, v.dims))}] ({v.nbytes / 2**20:.2f} MiB)" for v in ranked]
        return f"a program with {', '.join(texts)}"

    def on_another_device(self, on_chip: OnChip | None = None) -> Executable:
        """The same program with memories of its own."""
        other = Executable(
            self.program, self._constants, self.machine, on_chip, self._planned_for, self.name, self._make_exact
        )
        other.structure = self.structure
        return other

    def __call__(self, *arguments: Any, **keywords: Any) -> list[Array]:
        """The outputs, in order, for one array a parameter or for the arguments of the JAX function."""
        return self.run(arrange(self._io.inputs, self.structure, arguments, keywords)).outputs

    @property
    def input_names(self) -> list[str]:
        """What the inputs are called: by the arguments of the JAX function where they are known, else as in HLO."""
        return [str(Name(variable.name, variable.argument)) for variable in self._io.inputs]

    def check_inputs(self, inputs: Sequence[Any] | Mapping[str, Any]) -> list[Array]:
        """Inputs (``run``) as arrays of the signature's storage types. Raises RunError with the parameter's name."""
        expected = self._io.inputs
        if isinstance(inputs, Mapping):
            values = by_name(expected, inputs)
        else:
            values = arrange(expected, self.structure, inputs, {})
        arrays = []
        for position, (variable, given) in enumerate(zip(expected, values, strict=True)):
            array = np.asarray(given)
            wanted = NUMPY_DTYPE[variable.dtype]
            where = f"input {position} ({Name(variable.name, variable.argument)})"
            if array.shape != variable.dims:
                raise RunError("ERUN001", f"{where} has shape {list(array.shape)}, expected {list(variable.dims)}")
            if array.dtype != wanted:
                raise RunError(
                    "ERUN001", f"{where} has element type {array.dtype}, expected {wanted} ({variable.dtype})"
                )
            arrays.append(array.view(STORAGE[variable.dtype]) if variable.dtype == "pred" else array)
        return arrays

    def _executor(self, seed: int | None) -> Executor:
        if self._memory is None:
            bound = [(variable.offset, variable.offset + variable.nbytes) for variable in self._bound]
            fixed = [(variable.offset, variable.offset + variable.nbytes) for variable in self._io.constants]
            results = [(v.offset, v.offset + v.nbytes) for v in self._io.outputs if v.offset in self._own]
            self._memory = Memory(self.program.hbm_bytes, bound, self._on_chip, fixed, results)
            for variable in self._io.constants:
                self._place(self._memory, variable, self._constant(variable))
        if self._memory.scratch_bytes >= LARGE_BYTES and not KEPT.take(self._memory):
            require(self._memory.scratch_bytes, self.describe)
        if seed not in self._executors:
            self._executors[seed] = make_executor(self.program, self._memory, seed, observed=False)
        return self._executors[seed]

    def _constant(self, variable: Variable) -> Array:
        if not 0 <= variable.index < len(self._constants):
            raise RunError("ENEF901", f"the data of constant {variable.name} is missing")
        data = self._constants[variable.index]
        if data.nbytes != variable.nbytes:
            raise RunError("ENEF901", f"constant {variable.name} has {data.nbytes} bytes, expected {variable.nbytes}")
        return np.ascontiguousarray(data).view(STORAGE[variable.dtype]).reshape(variable.dims)

    def _place(self, memory: Memory, variable: Variable, array: Array) -> None:
        """Make ``array`` the content of a variable: by binding where the program only reads it, else by copying."""
        array = in_bytes(array, variable.dtype)
        region = memory.regions.get(variable.offset)
        if region is not None and array.size:
            region.bind(np.ascontiguousarray(array))
        elif array.size:
            memory.array(variable.offset, variable.nbytes, variable.dtype, variable.dims)[...] = array

    def _place_results(self, memory: Memory) -> None:
        for variable in self._io.outputs:
            self._place_result(memory, variable, None)

    def _place_result(self, memory: Memory, variable: Variable, target: Array | None) -> bool:
        """Let the program compute a result in the array ``target`` where that can be, else in HBM; whether it can."""
        if variable.offset not in self._own:
            return False
        fits = target is not None and target.flags.c_contiguous and target.flags.writeable
        if target is None or not fits or variable.dtype == "pred" or target.dtype != STORAGE[variable.dtype]:
            fits, target = False, memory.bytes[Space.HBM][variable.offset : variable.offset + variable.nbytes]
        memory.regions[variable.offset].bind(target)
        return fits

    def _result(self, memory: Memory, variable: Variable) -> Array:
        stored = memory.array(variable.offset, variable.nbytes, variable.dtype, variable.dims)
        result: Array = stored != 0 if variable.dtype == "pred" else stored.copy()
        return result


def _end(executors: Mapping[int | None, Executor]) -> None:
    for executor in executors.values():
        executor.end()


def _io(program: Program) -> _Io:
    io = _Io()
    for variable in program.variables:
        group = {"input": io.inputs, "output": io.outputs, "constant": io.constants, "device": io.devices}.get(
            variable.kind
        )
        if group is not None:
            group.append(variable)
    io.inputs.sort(key=lambda variable: variable.index)
    io.outputs.sort(key=lambda variable: variable.index)
    return io


def _only_read(program: Program, variables: Sequence[Variable]) -> list[Variable]:
    """The variables that no instruction writes and that share no bytes with another one."""
    written = [
        ref.offset
        for record in program.records
        if isinstance(record, Instr)
        for ref in record.outs
        if ref.space is Space.HBM
    ]
    written.sort()
    result = []
    for variable in _alone(program, variables):
        if bisect_left(written, variable.offset) == bisect_left(written, variable.offset + variable.nbytes):
            result.append(variable)
    return result


def _alone(program: Program, variables: Sequence[Variable]) -> list[Variable]:
    """Those that share no bytes with another variable."""
    spans = sorted((variable.offset, variable.offset + variable.nbytes) for variable in program.variables)
    shared: set[tuple[int, int]] = set()
    widest = (0, 0)
    for span in spans:
        if span[0] < widest[1]:
            shared |= {span, widest}
        widest = max(widest, span, key=itemgetter(1))
    return [variable for variable in variables if (variable.offset, variable.offset + variable.nbytes) not in shared]
