"""The executor that leaves what it can to the native core; everything else is carried out as ``values`` does.

Instructions, loops and regions become code of the core, which notes what regions did. For an instruction that the core
cannot carry out, or not just now (an address out of bounds, operands that overlap), it calls the step that ``values``
makes of the record, which raises the fault.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from math import prod
from operator import attrgetter

import numpy as np

from neuronx_cc.ir import collector
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.blas import one_thread
from neuronx_cc.ir.isa.elements import Array
from neuronx_cc.ir.isa.program import DECIDER, Branch, Else, End, Instr, Loop, Program, Space, While
from neuronx_cc.runtime.course import Course
from neuronx_cc.runtime.memory import PARTITIONS, Memory, address_of
from neuronx_cc.runtime.native import encode, library, patterns
from neuronx_cc.runtime.native.literals import LITERAL, Literals
from neuronx_cc.runtime.native.patterns import NotNative, as_words
from neuronx_cc.runtime.values import REGISTERS, STREAMS, Executor, Scope, Step, register_place

SLICE_NS = 50_000_000
"""So long the core runs before Python gets the chance to handle signals."""

EMPTY = patterns.Pattern(as_words(), [])
"""Of instructions whose operands have no elements."""
UNKNOWN = patterns.Pattern(as_words(), [])
"""Of those not seen yet."""
_form = attrgetter("space", "dtype", "dims")


class Stretch:
    """A step: code of the core, with what it leaves to ``fall_back``. Makes no cycle: an executor that nobody needs any
    more takes its memory with it at once."""

    def __init__(
        self, core: ctypes.CDLL, context: ctypes.c_void_p, code: ctypes.c_void_p, fall_back: Callable[[int], None]
    ) -> None:
        self._core, self._run = core, core.core_run
        self._context, self._code, self._fall_back = context, code, weakref.WeakMethod(fall_back)

    def __call__(self) -> None:
        run, context = self._run, self._context
        number = run(context, self._code, SLICE_NS)
        while number != library.DONE:
            if number == library.FOREIGN:
                raise RunError("ERUN914", "the core was given code of another program")
            if number >= 0:
                carry_out = self._fall_back()
                assert carry_out is not None
                carry_out(number)
            number = run(context, None, SLICE_NS)

    def regions(self) -> Iterator[list[int]]:
        """What the regions did: entries of their course (``course.h``), and last the outcomes of those outside."""
        words = array("q", bytes(8 * self._core.core_course(self._context, None, 0)))
        self._core.core_course(self._context, words.buffer_info()[0], len(words))
        at = 0
        while at < len(words):
            end = at + 1 + words[at]
            yield words[at + 1 : end].tolist()
            at = end


class NativeExecutor(Executor):
    """As ``Executor``, without stochastic rounding. Raises NotNative for a program that the core cannot run."""

    def __init__(
        self,
        program: Program,
        memory: Memory,
        level: str = "",
        stops: Mapping[int, Step] | None = None,
        observed: bool = True,
    ) -> None:
        """``observed``: somebody looks at the memories on chip after a run; else what nothing needs may be left out."""
        self._library = library.required()
        self._bound = list(enumerate(memory.regions.values(), len(Space)))
        self._shown: list[Array | None] = [None] * (len(Space) + len(self._bound))
        self._has_regions = any(isinstance(record, While | Branch) for record in program.records)
        self._literals = Literals(program, memory.size[Space.HBM])
        self._base_at = _bases_of(memory, self._literals)
        self._owned: dict[int, frozenset[int]] = {}
        self._python_steps: dict[int, Step] = {}
        self._slots: dict[int, int] = {}
        self._patterns: dict[object, patterns.Pattern | None] = {}
        self._codes: list[int] = []
        self._falls_back = False
        bases = array("q", _geometry(memory, self._literals))
        self._context = self._library.core_new(
            level.encode(), len(bases) // 4, bases.buffer_info()[0], REGISTERS * (STREAMS + 1), observed
        )
        super().__init__(program, memory, stops=stops)
        self._patterns.clear()
        self._counts = array("q", bytes(8 * (len(self._slots) + 1)))
        registers = self.state.registers
        assert isinstance(registers, array)
        self._places = (registers.buffer_info()[0], *self._counts.buffer_info())
        self._addresses = (ctypes.c_void_p * (len(bases) // 4))()
        self._sizes = (ctypes.c_int64 * len(self._addresses))()
        fixed = {int(space): memory.bytes[space] for space in Space} | {len(self._addresses) - 1: self._literals.data}
        for number, data in fixed.items():
            self._addresses[number], self._sizes[number] = address_of(data), data.nbytes

    def __del__(self) -> None:
        for code in getattr(self, "_codes", ()):
            self._library.core_code_free(code)
        if getattr(self, "_context", None):
            self._library.core_free(self._context)

    def run(self) -> None:
        """Execute everything once. Raises RunError on a fault."""
        addresses, sizes, shown = self._addresses, self._sizes, self._shown
        for number, region in self._bound:
            now = region.array
            if now is not shown[number]:
                shown[number], addresses[number] = now, region.address
                sizes[number] = 0 if now is None else now.nbytes
        self.state.run += 1
        if self._has_regions:
            self.course, self._taken = Course(), []
        small = self._library.core_start(self._context, self.state.run, addresses, sizes, *self._places)
        if small >= 0:
            raise RunError("ERUN914", f"base {small} of the program's memory has only {sizes[small]} bytes")
        with _as_numpy() if self._falls_back else nullcontext():
            for step in self._steps:
                step()
        if self._has_regions:
            self.course.root = self.course.path(self._taken)

    def end(self) -> None:
        super().end()
        self._python_steps.clear()

    # binding --------------------------------------------------------------------------------------------------

    def _take_over(self, number: int, scope: Scope) -> int:
        """Makes code of the records from ``number`` on, up to the next stop or the end."""
        records, owned, at = self.program.records, scope.owned, number
        words = as_words()
        outer: list[frozenset[int]] = []
        regions = False
        while at < len(records) and (outer or at == number or at not in self._stops):
            record = records[at]
            if outer and at in self._stops:
                words.extend((encode.FALLBACK, len(records) + at, 0, 0, 0, 0, 0))
            if isinstance(record, Instr):
                words += self._instruction(at, record, owned)
            elif isinstance(record, Loop):
                outer.append(owned)
                owned = owned | {record.register, *(register for register, _ in record.phases)}
                words += as_words(self._loop_words(at, record))
            elif isinstance(record, While | Branch):
                outer.append(owned)
                owned = owned | ({record.register} if isinstance(record, While) and record.count else set())
                words += as_words(self._region_words(at, record))
                regions = True
            elif isinstance(record, Else):
                words.extend((encode.ELSE, at, 0, 0, 0, 0))
            elif outer:
                owned = outer.pop()
                words.extend((encode.END, at, 0, 0, 0, 0))
            else:
                break
            at += 1
        if outer:
            raise RunError("EBIR902", "a loop has no end")
        if at > number:
            code = self._code(words)
            scope.steps.append(self._noting(code) if regions else code)
        return at

    def _loop_words(self, number: int, loop: Loop) -> list[int]:
        slot = self._slots.setdefault(id(loop), len(self._slots)) if loop.phases else -1
        params = [loop.count, loop.register, slot, *(value for phase in loop.phases for value in phase)]
        return [encode.LOOP, number, 0, len(params), *params, 0, 0]

    def _region_words(self, number: int, region: While | Branch) -> list[int]:
        """The counters of the loops inside, but not inside another region, begin anew each time."""
        slots, depth, at = [], 1, number + 1
        opened: list[Loop | While | Branch] = []
        while depth and at < len(self.program.records):
            record = self.program.records[at]
            if isinstance(record, Loop) and record.phases and depth == 1:
                slots.append(self._slots.setdefault(id(record), len(self._slots)))
            if isinstance(record, Loop | While | Branch):
                opened.append(record)
                depth += not isinstance(record, Loop)
            elif isinstance(record, End):
                depth -= not (opened and isinstance(opened.pop(), Loop))
            at += 1
        decider = register_place(region.register, DECIDER, frozenset())
        if isinstance(region, Branch):
            params = [region.cases, decider, *slots]
        else:
            params = [region.count, region.register if region.count else 0, decider, *slots]
        kind = encode.BRANCH if isinstance(region, Branch) else encode.WHILE
        return [kind, number, 0, len(params), *params, 0, 0]

    def _instruction(self, number: int, instr: Instr, owned: frozenset[int]) -> array[int]:
        if instr.op == "nop":
            return as_words()
        self._owned[number] = owned
        region = self._base_at
        if instr.op in LITERAL:
            same = self._literals.rewritten(number, instr)
            made = [self._pattern(each, False) for each in same] if same != [instr] else []
            if made and None not in made:
                pairs = [(each, found) for each, found in zip(same, made, strict=True) if found is not None]
                return sum((patterns.item(found, each, number, region, owned) for each, found in pairs), as_words())
        moving = instr.op == "multiply_moving"
        turns = moving and _may_be_identity(instr)
        found = self._pattern(instr, turns and (number, instr.ins[0]) in self._constant)
        if found is EMPTY:
            return as_words()
        if instr.op == "reg_load" and instr.ins[0].dtype in encode.WHOLE:
            target = register_place(int(instr.imm[0]), instr.stream, frozenset())
            form = encode.Form(encode.REG_LOAD, (int(instr.imm[1]), int(instr.imm[2]), target))
            found = patterns.pattern(instr, form, self.memory.pitch)
        if found is not None:
            return patterns.item(found, instr, number, region, owned)
        if moving or instr.op == "load_stationary":
            raise NotNative(f"record {number}: {instr.op}")
        self._falls_back = True
        found = patterns.pattern(instr, encode.left_to_python(instr), self.memory.pitch)
        return patterns.item(found, instr, number, region, owned)

    def _pattern(self, instr: Instr, constant_tile: bool) -> patterns.Pattern | None:
        """How the core carries the instruction out, found once for all that differ in addresses alone; None if it does
        not, ``EMPTY`` where there is nothing to do."""
        refs = (*instr.outs, *instr.ins)
        operands, moved = tuple(map(_form, refs)), tuple([len(ref.coefs) for ref in refs])
        # by their text, zeros of both signs are different constants
        text = repr(instr.imm) if instr.imm else ""
        key = (instr.op, instr.alu, text, instr.flags, constant_tile, len(instr.outs), operands, moved)
        found = self._patterns.get(key, UNKNOWN)
        if found is UNKNOWN:
            empty = any(0 in ref.counts for ref in refs)
            form = None if empty else encode.form(instr, constant_tile)
            made = None if form is None else patterns.pattern(instr, form, self.memory.pitch)
            found = self._patterns[key] = EMPTY if empty else made
        return found

    def _code(self, words: array[int]) -> Stretch:
        code = self._library.core_code(self._context, words.buffer_info()[0], len(words))
        if not code:
            raise NotNative("a product or a loop that the core cannot carry out")
        self._codes.append(code)
        return Stretch(self._library, self._context, code, self.fall_back)

    def _noting(self, code: Stretch) -> Step:
        """Runs code and notes in the course what its regions did. Without a cycle, as the code itself."""
        executor = weakref.ref(self)

        def run() -> None:
            code()
            this = executor()
            assert this is not None
            *entries, outcomes = code.regions()
            numbers: list[int] = []
            for kind, *of in entries:
                if kind == library.TAKEN:
                    numbers.append(this.course.path([numbers[outcome] for outcome in of]))
                elif kind == library.CHOSEN:
                    numbers.append(this.course.chosen(of[0], numbers[of[1]]))
                else:
                    runs = zip(of[::2], of[1::2], strict=True)
                    numbers.append(this.course.repeated([(numbers[path], times) for path, times in runs]))
            this._taken += [numbers[outcome] for outcome in outcomes]

        return run

    # what the core leaves to Python -----------------------------------------------------------------------------

    def fall_back(self, number: int) -> None:
        """Carries out one record, or what is called ahead of one, for numbers beyond them. Raises RunError."""
        if number >= len(self.program.records):
            self._stops[number - len(self.program.records)]()
            return
        step = self._python_steps.get(number)
        if step is None:
            instr = self.program.records[number]
            if not isinstance(instr, Instr):
                raise RunError("ERUN914", f"record {number}: there is no such case")
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
        self._library.core_weights(self._context, shape, address_of(values))
        return values


def _may_be_identity(product: Instr) -> bool:
    """Whether a product may be a transpose, for which the core looks at what is multiplied."""
    if product.flags:
        return False
    lanes, *free = product.ins[0].counts
    return prod(free) == lanes


def _geometry(memory: Memory, literals: Literals) -> Iterator[int]:
    """For each base its first offset, the bytes of all of it or of a partition, the partitions' pitch and number."""
    for space in Space:
        partitions = 0 if space is Space.HBM else PARTITIONS
        yield from (0, memory.size[space], memory.pitch[space] if partitions else 0, partitions)
    for region in memory.regions.values():
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


@contextmanager
def _as_numpy() -> Iterator[None]:
    with np.errstate(all="ignore"), one_thread():
        yield


@collector.paused()
def make_executor(
    program: Program,
    memory: Memory,
    seed: int | None,
    stops: Mapping[int, Step] | None = None,
    observed: bool = True,
) -> Executor:
    """What runs a program: the core unless it is missing, not wanted (``library.chosen``) or unable to."""
    if library.chosen(seed) == "native":
        with suppress(NotNative):
            return NativeExecutor(program, memory, stops=stops, observed=observed)
    return Executor(program, memory, seed, stops)
