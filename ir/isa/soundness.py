"""Whether a program is one at all: what has to hold before it is checked for races, timed or executed.

Input: a program, however it came about. ``check`` holds its memory map against the size of HBM, its records against the
limits of the format (``encoding``, ``validate``), and each instruction against the instruction table (``rules``). What
passes can be wrong, but every address is inside its memory, every register is set, and every operand is what its
instruction takes. Failure is a NeuronError: EBIR901, EBIR902 or ENEF901.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from operator import attrgetter

from neuronx_cc.ir.errors import Loc, NeuronError, RunError
from neuronx_cc.ir.isa.encoding import encode
from neuronx_cc.ir.isa.program import Instr, Program, Variable, in_donated_memory
from neuronx_cc.ir.isa.rules import structure
from neuronx_cc.ir.isa.validate import check as check_tables
from neuronx_cc.ir.neff_archive import malformed
from neuronx_cc.ir.types import NUMPY_DTYPE, itemsize

NUMBERED = ("input", "output", "constant")
"""Kinds of variables that are numbered from 0."""
_form = attrgetter("space", "dtype", "dims")


def check(program: Program) -> None:
    """Raises NeuronError for a program that is none. The result is kept with it, so that only the first time costs."""
    if program.sound:
        return
    check_variables(program.variables, program.hbm_bytes)
    try:
        encoded = encode(program.records)
        check_tables(encoded, len(program.debug), program.hbm_bytes)
    except NeuronError:
        raise
    except Exception as error:  # of a record that holds what is no number, or no string
        raise RunError("EBIR902", f"malformed instruction stream: {error}", "compile the module again") from error
    check_instructions(program)


def check_instructions(program: Program) -> None:
    """The instructions alone, where the tables have been checked. Raises RunError EBIR902."""
    known: set[object] = set()
    for row, instr in enumerate(program.records):
        if not isinstance(instr, Instr):
            continue
        refs = tuple(map(_form, (*instr.outs, *instr.ins)))
        form = (instr.op, instr.stream, instr.alu, instr.flags, len(instr.imm), len(instr.outs), refs)
        if form in known:
            continue
        broken = next(structure(instr), None)
        if broken is not None:
            debug = program.debug[instr.debug] if instr.debug < len(program.debug) else None
            loc = Loc(debug.hlo, debug.op_name, debug.source_file, debug.source_line) if debug else Loc()
            message = f"malformed instruction stream: record {row} ({instr.op}, {instr.stream.name.lower()}): {broken}"
            raise RunError("EBIR902", message, "compile the module again", loc)
        known.add(form)
    program.sound = True


def check_variables(variables: Sequence[Variable], hbm_bytes: int) -> None:
    """The memory map. Raises RunError ENEF901."""
    for variable in variables:
        what = f"variable {variable.name!r}"
        if variable.dtype not in NUMPY_DTYPE or any(dim < 0 for dim in variable.dims):
            raise malformed(f"{what}: element type or dims")
        if not 0 <= variable.offset <= hbm_bytes - variable.nbytes or variable.nbytes < 0:
            raise malformed(f"{what} is outside of the {hbm_bytes} bytes of HBM")
        size = prod(variable.dims) * itemsize(variable.dtype)
        if size > variable.nbytes or (size < variable.nbytes and variable.kind != "scratch"):
            raise malformed(f"{what}: its shape takes {size} bytes, and it has {variable.nbytes}")
    for kind in NUMBERED:
        found = of_kind(variables, kind)
        if [variable.index for variable in found] != list(range(len(found))):
            raise malformed(f"the {kind}s are not numbered from 0")
    inputs = len(of_kind(variables, "input"))
    for variable in variables:
        if variable.alias >= inputs or (variable.alias >= 0 and variable.kind != "output"):
            raise malformed(f"variable {variable.name!r} reuses an input that does not exist")
    _check_overlaps(variables)


def _check_overlaps(variables: Sequence[Variable]) -> None:
    """Only an output may lie in another variable's memory: as the only one, in that of the input it is an alias of."""
    shared = in_donated_memory(variables)
    taken = [variable.alias for variable in shared]
    if len(set(taken)) != len(taken):
        raise malformed("two outputs lie in the memory of one input")
    spans = sorted((v.offset, v.offset + v.nbytes, v.name) for v in variables if v.nbytes and v not in shared)
    for (_, end, name), (start, _, other) in pairwise(spans):
        if start < end:
            raise malformed(f"variables {name!r} and {other!r} share memory")


def of_kind(variables: Sequence[Variable], kind: str) -> list[Variable]:
    """The variables of one kind, by their index."""
    return sorted((variable for variable in variables if variable.kind == kind), key=lambda variable: variable.index)
