"""The executor that leaves what it can to the native core; everything else is carried out as ``values`` does.

Stretches of instructions and whole counted loops become code of the core, which also repeats a ``while`` whose body is
one stretch; other regions (``branch``, and what holds one) stay with Python, with the core's code in between. For an
instruction that the core cannot carry out, or not just now (an address out of bounds, operands that overlap), it calls
the step that ``values`` makes of the record, which raises the fault.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.blas import one_thread
from neuronx_cc.ir.isa.elements import Array
from neuronx_cc.ir.isa.program import DECIDER, End, Instr, Loop, Program, Space, While
from neuronx_cc.runtime.course import Course
from neuronx_cc.runtime.memory import PARTITIONS, Memory, Region
from neuronx_cc.runtime.native import encode, library
from neuronx_cc.runtime.native.literals import Literals
from neuronx_cc.runtime.values import REGISTERS, STREAMS, Executor, Scope, Step, register_place

SLICE_NS = 50_000_000
"""So long the core runs before Python gets the chance to handle signals."""


class NotNative(Exception):
    """The core cannot run this program at all."""


class _Counters(dict[int, int]):
    """Iterations begun of loops that Python runs; forgetting a loop that the core runs works, too."""

    def __init__(self, slots: dict[int, int], counts: array[int]) -> None:
        super().__init__()
        self._slots, self._counts = slots, counts

    def pop(self, key: int, *default: int | None) -> int | None:  # type: ignore[override]
        slot = self._slots.get(key)
        if slot is not None:
            self._counts[slot] = 0
        return super().pop(key, *default)


class Stretch:
    """A step: code of the core, with what it leaves to ``fall_back``. Makes no cycle: an executor that nobody needs any
    more takes its memory with it at once."""

    def __init__(
        self, core: ctypes.CDLL, context: ctypes.c_void_p, code: ctypes.c_void_p, fall_back: Callable[[int], None]
    ) -> None:
        self._core, self._begin, self._run = core, core.core_begin, core.core_run
        self._context, self._code, self._fall_back = context, code, weakref.WeakMethod(fall_back)

    def __call__(self) -> None:
        self._finish(self._begin(self._context, self._code))

    def repeat(self, count: int, index_register: int, decider: int, counters: array[int]) -> int:
        """Run as a region's body: ``count`` times, or while the decider's register is not 0. Returns how often."""
        of_loops = counters.buffer_info()
        places = (count, index_register, decider)
        self._finish(self._core.core_repeat(self._context, self._code, *places, *of_loops))
        return int(self._core.core_trips(self._context))

    def _finish(self, begun: int) -> None:
        if not begun:
            raise RunError("ERUN914", "the core was given code of another program")
        run, context = self._run, self._context
        while (number := run(context, SLICE_NS)) != library.DONE:
            if number >= 0:
                carry_out = self._fall_back()
                assert carry_out is not None
                carry_out(number)


class NativeExecutor(Executor):
    """As ``Executor``, without stochastic rounding. Raises NotNative for a program that the core cannot run."""

    def __init__(
        self, program: Program, memory: Memory, level: str = "", stops: Mapping[int, Step] | None = None
    ) -> None:
        self._library = library.required()
        self._regions = list(memory.regions.values())
        self._literals = Literals(program, memory.size[Space.HBM])
        self._bases = encode.Bases(memory.pitch, _bases_of(memory, self._literals))
        self._owned: dict[int, frozenset[int]] = {}
        self._python_steps: dict[int, Step] = {}
        self._slots: dict[int, int] = {}
        self._forms: dict[object, encode.Form | None] = {}
        self._codes: list[int] = []
        self._falls_back = False
        bases = array("q", _geometry(memory, self._regions, self._literals))
        registers = REGISTERS * (STREAMS + 1)
        self._context = self._library.core_new(level.encode(), len(bases) // 4, bases.buffer_info()[0], registers)
        super().__init__(program, memory, stops=stops)
        self._forms.clear()
        self._counts = array("q", bytes(8 * (len(self._slots) + 1)))
        self._counters = _Counters(self._slots, self._counts)
        self._addresses = (ctypes.c_void_p * (len(bases) // 4))()
        self._sizes = (ctypes.c_int64 * len(self._addresses))()
        for space in Space:
            self._bind_base(space, memory.bytes[space])
        self._bind_base(len(self._addresses) - 1, self._literals.data)

    def __del__(self) -> None:
        for code in getattr(self, "_codes", ()):
            self._library.core_code_free(code)
        if getattr(self, "_context", None):
            self._library.core_free(self._context)

    def run(self) -> None:
        """Execute everything once. Raises RunError on a fault."""
        for number, region in enumerate(self._regions, len(Space)):
            self._bind_base(number, region.bytes)
        self.state.run += 1
        registers = self.state.registers
        assert isinstance(registers, array)
        for values in (registers, self._counts):
            values[:] = array("q", bytes(8 * len(values)))
        self._counters.clear()
        self.course, self._taken = Course(), []
        places = (registers.buffer_info()[0], *self._counts.buffer_info())
        small = self._library.core_start(self._context, self.state.run, self._addresses, self._sizes, *places)
        if small >= 0:
            raise RunError("ERUN914", f"base {small} of the program's memory has only {self._sizes[small]} bytes")
        with _as_numpy() if self._falls_back else nullcontext():
            for step in self._steps:
                step()
        self.course.root = self.course.path(self._taken)

    def _bind_base(self, number: int, data: Array | None) -> None:
        self._addresses[number] = None if data is None else _address(data)
        self._sizes[number] = 0 if data is None else data.nbytes

    # binding --------------------------------------------------------------------------------------------------

    def _take_over(self, number: int, scope: Scope) -> int:
        """Makes code of the records from ``number`` on, up to the end of the scope or a loop with a region inside."""
        records, owned, at = self.program.records, scope.owned, number
        words: list[int] = []
        loops: list[int] = []
        outer: list[frozenset[int]] = []
        end, end_words, end_loops = number, 0, 0
        while at < len(records) and (outer or at == number or at not in self._stops):
            record = records[at]
            if isinstance(record, Instr):
                words += self._instruction(at, record, owned)
            elif isinstance(record, Loop):
                outer.append(owned)
                owned = owned | {record.register, *(register for register, _ in record.phases)}
                loops.append(id(record))
                words += self._loop_words(at, record)
            elif isinstance(record, End) and outer:
                owned = outer.pop()
                words += (encode.END, at, 0, 0, 0, 0, 0)
            else:
                break
            at += 1
            if not outer:
                end, end_words, end_loops = at, len(words), len(loops)
        if end > number:
            scope.steps.append(self._code(words[:end_words]))
            scope.loops += loops[:end_loops]
        return end

    def _loop_words(self, number: int, loop: Loop) -> list[int]:
        slot = self._slots.setdefault(id(loop), len(self._slots)) if loop.phases else -1
        params = [loop.count, loop.register, slot, *(value for phase in loop.phases for value in phase)]
        return [encode.LOOP, number, 0, 0, len(params), *params, 0, 0]

    def _instruction(self, number: int, instr: Instr, owned: frozenset[int]) -> list[int]:
        if instr.op == "nop" or any([not all([count for count, _ in ref.dims]) for ref in (*instr.outs, *instr.ins)]):
            return []
        self._owned[number] = owned

        def place(register: int) -> int:
            return register_place(register, instr.stream, owned)

        same = self._literals.rewritten(number, instr)
        forms = [self._form(each, False) for each in same] if same != [instr] else []
        if forms and None not in forms:
            return [
                word
                for each, found in zip(same, forms, strict=True)
                if found is not None
                for word in encode.item(each, number, found, self._bases, place)
            ]
        moving = instr.op == "multiply_moving"
        form = self._form(instr, moving and (number, instr.ins[0]) in self._constant)
        if instr.op == "reg_load" and instr.ins[0].dtype in encode.WHOLE:
            target = register_place(int(instr.imm[0]), instr.stream, frozenset())
            form = encode.Form(encode.REG_LOAD, (int(instr.imm[1]), int(instr.imm[2]), target))
        if form is not None:
            return encode.item(instr, number, form, self._bases, place)
        if moving or instr.op == "load_stationary":
            raise NotNative(f"record {number}: {instr.op}")
        self._falls_back = True
        writes_sbuf = any(ref.space is Space.SBUF for ref in instr.outs)
        return [encode.FALLBACK, number, int(writes_sbuf), 0, 0, 0, 0]

    def _form(self, instr: Instr, constant_tile: bool) -> encode.Form | None:
        """``encode.form``, once for all instructions that differ in addresses alone."""
        patterns = tuple([(ref.space, ref.dtype, ref.dims, len(ref.coefs)) for ref in (*instr.outs, *instr.ins)])
        # by their text, zeros of both signs are different constants
        key = (instr.op, instr.alu, repr(instr.imm), instr.flags, constant_tile, len(instr.outs), patterns)
        if key not in self._forms:
            self._forms[key] = encode.form(instr, constant_tile)
        return self._forms[key]

    def _code(self, words: list[int]) -> Step:
        encoded = _as_words(words)
        code = self._library.core_code(self._context, encoded.buffer_info()[0], len(encoded))
        if not code:
            raise NotNative("a product or a loop that the core cannot carry out")
        self._codes.append(code)
        return Stretch(self._library, self._context, code, self.fall_back)

    def _while(self, region: While, steps: list[Step], loops: list[int]) -> Step:
        """A body that is all code of the core is repeated there."""
        if len(steps) != 1 or not isinstance(steps[0], Stretch):
            return super()._while(region, steps, loops)
        body = steps[0]
        counters = array("q", [self._slots[key] for key in loops if key in self._slots])
        decider = register_place(region.register, DECIDER, frozenset())
        places = (region.register, -1) if region.count else (-1, decider)

        def run() -> None:
            trips = body.repeat(region.count, *places, counters)
            runs = [(self.course.path(()), trips)] if trips else []
            self._taken.append(self.course.repeated(runs))

        return run

    # what the core leaves to Python -----------------------------------------------------------------------------

    def fall_back(self, number: int) -> None:
        """Carries out one record. Raises RunError on a fault."""
        step = self._python_steps.get(number)
        if step is None:
            instr = self.program.records[number]
            assert isinstance(instr, Instr)
            step = self._python_steps[number] = self._step(number, instr, self._owned[number])
        if self.program.records[number].op == "multiply_moving":  # type: ignore[union-attr]
            self.state.weights = self._weights()
        if self._falls_back:
            step()
        else:
            with _as_numpy():
                step()

    def _weights(self) -> Array:
        """The stationary tile of the core."""
        shape = (ctypes.c_int64 * 2)()
        self._library.core_weights(self._context, shape, None)
        values = np.empty((shape[0], shape[1]), np.float32)
        self._library.core_weights(self._context, shape, _address(values))
        return values


def _geometry(memory: Memory, regions: Sequence[Region], literals: Literals) -> Iterator[int]:
    """For each base its first offset, the bytes of all of it or of a partition, the partitions' pitch and number."""
    for space in Space:
        partitions = 0 if space is Space.HBM else PARTITIONS
        yield from (0, memory.size[space], memory.pitch[space] if partitions else 0, partitions)
    for region in regions:
        yield from (region.lo, region.hi - region.lo, 0, 0)
    yield from (literals.start, literals.data.nbytes, 0, 0)


def _bases_of(memory: Memory, literals: Literals) -> Callable[[int], int | None]:
    numbers = {lo: number for number, lo in enumerate(memory.regions, len(Space))}
    last = len(Space) + len(numbers)

    def base_at(offset: int) -> int | None:
        if offset >= literals.start:
            return last
        region = memory.region(offset)
        return None if region is None else numbers[region.lo]

    return base_at


def _as_words(numbers: list[int]) -> array[int]:
    try:
        return array("q", numbers)
    except (OverflowError, TypeError):
        raise NotNative("a number that is no 64-bit integer") from None


@contextmanager
def _as_numpy() -> Iterator[None]:
    with np.errstate(all="ignore"), one_thread():
        yield


def _address(values: Array) -> int:
    return int(values.__array_interface__["data"][0])


def make_executor(
    program: Program, memory: Memory, seed: int | None, stops: Mapping[int, Step] | None = None
) -> Executor:
    """What runs a program: the core unless it is missing, not wanted (``library.chosen``) or unable to."""
    if library.chosen(seed) == "native":
        with suppress(NotNative):
            return NativeExecutor(program, memory, stops=stops)
    return Executor(program, memory, seed, stops)
