"""Damaged programs in memory, run with the race check and without: faults in words, whatever the native core is given.

An input is the seed of a piece of damage. Some programs go unchecked to the race check and to the executor, as no
user can: there any exception will do, for what counts is that the native code reads and writes nothing it must not.
"""

import random
from dataclasses import replace

import numpy as np
from generated import ON_CHIP
from mutation import limit
from small_programs import compiled, time_limit, zeros

from neuronx_cc.ir.errors import NeuronError, RunError
from neuronx_cc.ir.isa.elements import STORAGE
from neuronx_cc.ir.isa.program import Branch, Instr, Loop, Program, Record, Ref, Space, Stream, Variable, Wait, While
from neuronx_cc.ir.isa.table import TABLE
from neuronx_cc.runtime import Executable

DTYPES = sorted(STORAGE)
OPS = sorted(TABLE)


def seeds() -> list[bytes]:
    return [f"{number}".encode() for number in range(300)]


def mutate(data: bytes, draw: random.Random) -> bytes:
    return str(draw.getrandbits(64)).encode()


def run(data: bytes) -> None:
    draw = random.Random(data)
    chosen = draw.choice(compiled())
    program = damaged(chosen.program, draw)
    inputs = [np.asarray(array) for array in zeros(program.variables)]
    program.sound = unchecked = draw.random() < 0.6
    try:
        executable = Executable(program, chosen.constants, on_chip=ON_CHIP)
        with time_limit(4):
            executable.run(inputs, check_races=draw.random() < 0.3)
    except Exception as error:
        if isinstance(error, NeuronError) or not unchecked:
            raise
        raise RunError("EBIR902", f"unchecked: {error!r}") from None


def damaged(program: Program, draw: random.Random) -> Program:
    """The program with one to three pieces of damage."""
    program = replace(
        program, records=list(program.records), variables=list(program.variables), race_summary=None, sound=False
    )
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        kind = draw.random()
        if kind < 0.05 and program.variables:
            at = draw.randrange(len(program.variables))
            program.variables[at] = _variable(program.variables[at], draw)
        elif kind < 0.07:
            program.hbm_bytes = draw.choice((0, 1, program.hbm_bytes // 2, program.hbm_bytes - 1))
        elif kind < 0.1:
            del program.records[draw.randrange(len(program.records))]
        elif kind < 0.13:
            program.records.insert(draw.randrange(len(program.records)), draw.choice(program.records))
        else:
            at = draw.randrange(len(program.records))
            program.records[at] = _record(program.records[at], program, draw)
    return program


def _small(draw: random.Random) -> int:
    return draw.choice((-1, 0, 1, 2, 3, 5, 64, 127, 128, 129, 1000))


def _register(draw: random.Random) -> int:
    return draw.choice((0, 1, 5, 63, 64, 65, 200, 10**6, -1, -5, 2**31, 2**40, limit(draw)))


def _variable(variable: Variable, draw: random.Random) -> Variable:
    number = draw.choice((0, 1, variable.offset + 64, limit(draw)))
    size = draw.choice((0, 1, variable.nbytes // 2, variable.nbytes * 2))
    change = draw.choice(({"offset": number}, {"nbytes": size}, {"dims": variable.dims[:-1]}, {"dtype": "u8"}))
    return replace(variable, **change)


def _record(record: Record, program: Program, draw: random.Random) -> Record:
    if isinstance(record, Loop):
        phases = tuple((_register(draw), _small(draw)) for _ in range(draw.randrange(3)))
        change = draw.choice(({"count": _small(draw)}, {"register": _register(draw)}, {"phases": phases}))
        return replace(record, **change)
    if isinstance(record, While):
        return replace(record, register=_register(draw), count=draw.choice((0, _small(draw))))
    if isinstance(record, Branch):
        return replace(record, register=_register(draw), cases=_small(draw))
    return _instr(record, program, draw) if isinstance(record, Instr) else record


def _instr(instr: Instr, program: Program, draw: random.Random) -> Instr:
    refs = [ref for each in program.records if isinstance(each, Instr) for ref in (*each.outs, *each.ins)]
    if draw.random() < 0.7 and instr.outs + instr.ins:
        sides = [side for side in ("outs", "ins") if getattr(instr, side)]
        side = draw.choice(sides)
        operands = list(getattr(instr, side))
        at = draw.randrange(len(operands))
        operands[at] = _ref(operands[at], draw) if draw.random() < 0.85 else draw.choice(refs)
        return replace(instr, **{side: tuple(operands)})
    other = draw.choice([each for each in program.records if isinstance(each, Instr)])
    flag = draw.choice(("accumulate", "tf32", "ap0", "ap1", "reverse0", "reverse", "bias", "scale_ap", "clamp", "odd"))
    change = draw.choice(
        (
            {"op": draw.choice((other.op, draw.choice(OPS), "no_such"))},
            {"outs": draw.choice((instr.outs[:-1], instr.outs * 2, other.outs))},
            {"ins": draw.choice((instr.ins[:-1], instr.ins * 2, other.ins))},
            {"alu": draw.choice((instr.alu[:-1], instr.alu * 2, other.alu, ("no_such",)))},
            {
                "imm": draw.choice(
                    (instr.imm[:-1], (*instr.imm, 1.0), other.imm, (float("nan"), float("inf"), limit(draw)))
                )
            },
            {"flags": instr.flags ^ {flag}},
            {"stream": draw.choice(list(Stream))},
            {"waits": (Wait(draw.choice(list(Stream)), limit(draw), ((_register(draw), limit(draw)),)),)},
        )
    )
    return replace(instr, **change)


def _ref(ref: Ref, draw: random.Random) -> Ref:
    dims = list(ref.dims)
    what = draw.randrange(7)
    if what == 0:
        return replace(ref, space=draw.choice(list(Space)))
    if what == 1:
        return replace(ref, dtype=draw.choice(DTYPES))
    if what == 2:
        return replace(ref, offset=draw.choice((ref.offset + draw.choice((-4, 1, 4, 4096, 1 << 18)), limit(draw))))
    if what == 3:
        return replace(ref, partition=draw.choice((-1, 1, 64, 127, 128, 1000, limit(draw))))
    if what == 4:
        return replace(ref, coefs=(*ref.coefs[1:], (_register(draw), draw.choice((4, -4, 1 << 20, limit(draw))))))
    if what == 5 and dims:
        at = draw.randrange(len(dims))
        count, stride = dims[at]
        if draw.random() < 0.5:
            count = draw.choice((count * 2, count - 1, count + 1, _small(draw), 10**6))
        else:
            stride = draw.choice((-stride, 0, stride * 2, stride + 1, 1 << 20, limit(draw)))
        dims[at] = count, stride
        return replace(ref, dims=tuple(dims))
    shape = draw.choice((dims[:-1], [*dims, (draw.choice((1, 2)), 4)], dims[::-1], [], dims[1:], [(1, 0), *dims]))
    return replace(ref, dims=tuple(shape))
