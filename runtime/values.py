"""Computes the values of a program: instructions one after the other in emission order.

Input: a ``Program`` and its memories. Each static instruction is bound once to a closure (types, operators and, where
no register is involved, its operand arrays); loops and regions become closures over their bodies. What regions did is
kept as the run's ``course``. Faults (addresses out of bounds, run-time indices out of range) are RunErrors that name
the instruction, its kernel and its HLO op.
"""

from array import array
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from neuronx_cc.ir.errors import COMPILE_AGAIN, Loc, NeuronError, RunError
from neuronx_cc.ir.isa.blas import one_thread
from neuronx_cc.ir.isa.elements import Array, State, StochasticRounding
from neuronx_cc.ir.isa.program import DECIDER, Branch, Else, End, Instr, Loop, Program, Record, Ref, Stream, While
from neuronx_cc.ir.isa.table import TABLE
from neuronx_cc.runtime.constant_tiles import ConstantTiles
from neuronx_cc.runtime.course import Course
from neuronx_cc.runtime.memory import Memory, View

Step: TypeAlias = Callable[[], None]
Operand: TypeAlias = tuple[View, int, tuple[tuple[int, int], ...]]
"""A pattern, its base offset, and (place in ``State.registers``, stride) pairs."""

MAX_KNOWN = 4096
"""Sets of operand arrays that are kept for one instruction."""
READS_SBUF = frozenset(["load_stationary", "multiply_moving"])
"""Instructions that leave SBUF alone."""
REGISTERS = 64
STREAMS = max(Stream) + 1


@dataclass(slots=True)
class Scope:
    """An open loop or region: its record, the registers that it owns, and the steps of its body."""

    loop: Loop | While | Branch | None
    owned: frozenset[int]
    steps: list[Step]
    closed: list[list[Step]] = field(default_factory=list)
    """Cases before the current one."""
    loops: list[int] = field(default_factory=list)
    """Loops directly inside, by their keys in the counters."""


class Executor:
    """A program bound to memories; ``run`` may be called again and again."""

    def __init__(
        self, program: Program, memory: Memory, seed: int | None = None, stops: Mapping[int, Step] | None = None
    ) -> None:
        """``stops``: what is called ahead of records, each time that they come to be run, or after the last one."""
        self.program = program
        self._stops = stops or {}
        self.memory = memory
        self.state = State(rounding=None if seed is None else StochasticRounding(seed))
        self.state.registers = array("q", bytes(8 * REGISTERS * (STREAMS + 1)))
        self.course = Course()
        """What the regions did in the last run."""
        self._constant = ConstantTiles(program)
        self._taken: list[int] = []
        self._steps = self._bind(program.records)
        self._counters: dict[int, int] = {}

    def run(self) -> None:
        """Execute everything once. Raises RunError on a fault."""
        self.state.registers[:] = array("q", bytes(8 * len(self.state.registers)))
        self.state.weights, self.state.borrowed = np.full((128, 128), np.nan, np.float32), False
        self.state.run += 1
        self._counters.clear()
        self.course, self._taken = Course(), []
        if self.state.rounding is not None:
            self.state.rounding.instruction = 0
        with np.errstate(all="ignore"), one_thread():
            for step in self._steps:
                step()
        self.course.root = self.course.path(self._taken)

    def end(self) -> None:
        """Let go of the steps, which refer to this executor: else its memory would stay until cycles are collected."""
        self._steps = []

    # binding --------------------------------------------------------------------------------------------------

    def _bind(self, records: Sequence[Record]) -> list[Step]:
        scopes = [Scope(None, frozenset(), [])]
        done = 0
        for number, record in enumerate(records):
            if number >= done and number in self._stops:
                scopes[-1].steps.append(self._stops[number])
            if number >= done:
                done = self._take_over(number, scopes[-1])
            if number < done:
                continue
            if isinstance(record, Loop):
                owned = {record.register, *(register for register, _ in record.phases)}
                scopes.append(Scope(record, scopes[-1].owned | owned, []))
            elif isinstance(record, While | Branch):
                owned = {record.register} if isinstance(record, While) and record.count else set()
                scopes.append(Scope(record, scopes[-1].owned | owned, []))
            elif isinstance(record, Else):
                scopes[-1].closed.append(scopes[-1].steps)
                scopes[-1].steps = []
            elif isinstance(record, End):
                scope = scopes.pop()
                if scope.loop is None:
                    raise RunError("EBIR902", f"record {number} ends a loop that is not open")
                scopes[-1].steps.append(self._close(scope))
                if isinstance(scope.loop, Loop):
                    scopes[-1].loops += [id(scope.loop), *scope.loops]
            else:
                if record.op not in READS_SBUF and (number == 0 or not _writes(records[number - 1])):
                    scopes[-1].steps.append(self.state.settle)
                scopes[-1].steps.append(self._step(number, record, scopes[-1].owned))
        if len(scopes) > 1:
            raise RunError("EBIR902", "a loop has no end")
        if len(records) in self._stops:
            scopes[0].steps.append(self._stops[len(records)])
        return scopes[0].steps

    def _take_over(self, number: int, scope: Scope) -> int:
        """The record up to which something else than Python carries records out, by a step that is in the scope."""
        return number

    def _close(self, scope: Scope) -> Step:
        if isinstance(scope.loop, Branch):
            return self._branch(scope.loop, [*scope.closed, scope.steps], scope.loops)
        if isinstance(scope.loop, While):
            return self._while(scope.loop, scope.steps, scope.loops)
        assert scope.loop is not None
        return self._loop(scope.loop, scope.steps)

    def _while(self, region: While, steps: list[Step], loops: list[int]) -> Step:
        registers, count, register = self.state.registers, region.count, region.register
        place = register_place(register, DECIDER, frozenset())

        def run() -> None:
            outer = self._taken
            runs: list[list[int]] = []
            trip = 0
            while trip < count if count else registers[place]:
                if count:
                    registers[register] = trip
                path = self._once(steps, loops)
                if runs and runs[-1][0] == path:
                    runs[-1][1] += 1
                else:
                    runs.append([path, 1])
                trip += 1
            self._taken = outer
            outer.append(self.course.repeated(runs))

        return run

    def _branch(self, region: Branch, cases: list[list[Step]], loops: list[int]) -> Step:
        registers, place = self.state.registers, register_place(region.register, DECIDER, frozenset())

        def run() -> None:
            outer = self._taken
            case = registers[place]
            path = self._once(cases[case], loops)
            self._taken = outer
            outer.append(self.course.chosen(case, path))

        return run

    def _once(self, steps: list[Step], loops: list[int]) -> int:
        """One iteration or case: the counters of the loops inside start anew. Returns the path taken."""
        for key in loops:
            self._counters.pop(key, None)
        taken: list[int] = []
        self._taken = taken
        for step in steps:
            step()
        return self.course.path(taken)

    def _loop(self, loop: Loop, steps: list[Step]) -> Step:
        registers, count, register, phases = self.state.registers, loop.count, loop.register, loop.phases
        key = id(loop)

        def run_plain() -> None:
            for index in range(count):
                registers[register] = index
                for step in steps:
                    step()

        def run_phases() -> None:
            begun = self._counters.get(key, 0)
            for index in range(count):
                registers[register] = index
                for phase, modulus in phases:
                    registers[phase] = (begun + index) % modulus
                for step in steps:
                    step()
            self._counters[key] = begun + count

        return run_phases if phases else run_plain

    def _step(self, number: int, instr: Instr, owned: frozenset[int]) -> Step:
        if instr.op == "nop":
            return lambda: None
        row = TABLE.get(instr.op)
        if row is None:
            raise self.fault(number, instr, f"there is no instruction {instr.op!r}")
        refs = (*instr.outs, *instr.ins)
        if any(count == 0 for ref in refs for count, _ in ref.dims):
            return lambda: None
        if instr.op == "multiply_moving" and (number, instr.ins[0]) in self._constant:
            instr = replace(instr, flags=instr.flags | {"constant"})
        if instr.op == "reg_load":
            place = register_place(int(instr.imm[0]), instr.stream, frozenset())
            instr = replace(instr, imm=(*instr.imm[:3], place))
        try:
            kernel = row.semantics(instr, self.state)
        except (KeyError, ValueError, IndexError) as error:
            raise self.fault(number, instr, f"cannot be carried out: {error!r}") from error
        operands = [self._operand(ref, instr.stream, owned) for ref in refs]
        step = self._call(kernel, operands, number, instr)
        return step if self.state.rounding is None else self._numbered(step, self.state.rounding)

    def _operand(self, ref: Ref, stream: Stream, owned: frozenset[int]) -> Operand:
        coefs = tuple((register_place(register, stream, owned), stride) for register, stride in ref.coefs if stride)
        return View(self.memory, ref), ref.offset, coefs

    def _call(self, kernel: Callable[..., None], operands: list[Operand], number: int, instr: Instr) -> Step:
        """Operand arrays are made once for each value of the registers that they depend on, and kept."""
        known: dict[object, list[Array]] = {}
        for view, _, _ in operands:
            if view.region is not None:
                view.region.forget.append(known.clear)
        registers = self.state.registers
        places = sorted({place for _, _, coefs in operands for place, _ in coefs})
        key: Callable[[MutableSequence[int]], object] = itemgetter(*places) if places else _no_key

        def run() -> None:
            values = key(registers)
            arrays = known.get(values)
            try:
                if arrays is None:
                    arrays = [
                        view.at(offset + sum(registers[place] * stride for place, stride in coefs))
                        for view, offset, coefs in operands
                    ]
                    if len(known) < MAX_KNOWN:
                        known[values] = arrays
                kernel(*arrays)
            except (IndexError, ValueError, TypeError) as error:
                raise self.fault(number, instr, str(error)) from error

        return run

    def _numbered(self, step: Step, rounding: StochasticRounding) -> Step:
        def run() -> None:
            rounding.instruction += 1
            step()

        return run

    def fault(self, number: int, instr: Instr, what: str) -> NeuronError:
        """A RunError about one instruction."""
        debug = self.program.debug[instr.debug] if instr.debug < len(self.program.debug) else None
        kernel = f" of kernel {debug.kernel}" if debug else ""
        loc = Loc(debug.hlo, debug.op_name, debug.source_file, debug.source_line) if debug else Loc()
        where = f"{instr.op} (record {number}, {instr.stream.name}){kernel}"
        return RunError("ERUN914", f"{where}: {what}", COMPILE_AGAIN, loc)


def _writes(record: Record) -> bool:
    """Whether it is an instruction before which borrowed weights have been settled."""
    return isinstance(record, Instr) and record.op not in READS_SBUF


def _no_key(registers: MutableSequence[int]) -> object:
    return None


def register_place(register: int, stream: Stream, owned: frozenset[int]) -> int:
    """Loop registers are shared by all streams; run-time values are in each stream's own file."""
    return register if register in owned else REGISTERS * (1 + stream) + register
