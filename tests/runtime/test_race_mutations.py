"""Compiled programs with a wait left out, weakened or redirected: the check says what a model of graphs says."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from generated import compile_text
from race_model import unrolled, verdict
from race_twins import check

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import Debug, Instr, Program, Record, Ref, Space, Stream

PROGRAMS = {
    "dense": """
ENTRY main {
  x = bf16[1300,24] parameter(0)
  w = bf16[24,10] parameter(1)
  y = bf16[1300,10] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT z = bf16[1300,10] tanh(y)
}""",
    "products of batches": """
ENTRY main {
  x = bf16[12,20,24] parameter(0)
  w = bf16[12,24,10] parameter(1)
  ROOT y = bf16[12,20,10] dot(x, w), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2},
    rhs_contracting_dims={1}
}""",
    "transposes": """
ENTRY main {
  x = f32[3,40,50] parameter(0)
  y = f32[50,3,40] transpose(x), dimensions={2,0,1}
  e = f32[50,3,40] exponential(y)
  ROOT z = f32[40,50,3] transpose(e), dimensions={2,0,1}
}""",
    "convolution": """
ENTRY main {
  x = bf16[6,14,14,40] parameter(0)
  w = bf16[3,3,40,50] parameter(1)
  ROOT y = bf16[6,14,14,50] convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
}""",
    "sums": """
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  x = f32[40,130] parameter(0)
  zero = f32[] constant(0)
  rows = f32[40] reduce(x, zero), dimensions={1}, to_apply=add
  columns = f32[130] reduce(x, zero), dimensions={0}, to_apply=add
  r = f32[40,130] broadcast(rows), dimensions={0}
  c = f32[40,130] broadcast(columns), dimensions={1}
  ROOT y = f32[40,130] multiply(r, c)
}""",
    "join": """
ENTRY main {
  x = bf16[130,40] parameter(0)
  y = bf16[130,24] parameter(1)
  xy = bf16[130,64] concatenate(x, y), dimensions={1}
  p = bf16[130,64] negate(xy)
  s = bf16[130,31] slice(p), slice={[0:130], [1:63:2]}
  t = bf16[31,130] transpose(s), dimensions={1,0}
  ROOT z = (bf16[130,64], bf16[31,130]) tuple(p, t)
}""",
}
MUTATIONS = 14


def named(records: Sequence[Record], like: Program) -> Program:
    """The records as a program whose messages name the record of each instruction."""
    numbered = [replace(each, debug=row) if isinstance(each, Instr) else each for row, each in enumerate(records)]
    debug = [Debug("kernel", f"record.{row}") for row in range(len(records))]
    return replace(like, records=numbered, debug=debug, race_summary=None)


def weakened(instr: Instr, draw: random.Random) -> Instr:
    """The instruction without one of its waits, or with one for less, or for another stream."""
    place = draw.randrange(len(instr.waits))
    wait = instr.waits[place]
    instead = draw.choice(
        [
            (),
            (),
            (replace(wait, count=wait.count - draw.choice([1, 2])),),
            (replace(wait, stream=draw.choice(list(Stream))),),
        ]
    )
    return replace(instr, waits=instr.waits[:place] + instead + instr.waits[place + 1 :])


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_mutation_breaks_is_found(name: str) -> None:
    program = compile_text(f"HloModule mutated\n{PROGRAMS[name]}").program
    defined = [
        Ref(Space.HBM, "u8", each.offset, ((each.nbytes, 1),))
        for each in program.variables
        if each.kind in ("input", "constant")
    ]
    waiting = [row for row, each in enumerate(program.records) if isinstance(each, Instr) and each.waits]
    draw = random.Random(name)
    outcomes: Counter[str] = Counter()
    for _ in range(MUTATIONS):
        row = draw.choice(waiting)
        records = list(program.records)
        record = records[row]
        assert isinstance(record, Instr)
        records[row] = weakened(record, draw)
        mutant = named(records, program)
        instrs = unrolled(mutant.records)
        expected, at = verdict(instrs, defined)
        found, message = "", ""
        try:
            check(mutant)
        except RunError as error:
            found, message = error.code, str(error)
        outcomes[expected] += 1
        if "ERUN913" not in (expected, found):  # deadlocks are named ahead of races
            assert (found != "") == (expected != "")
            assert not found or message.find(f"%record.{instrs[at].debug})") == message.find("%record.")
        assert (found == "") == (expected == "")
    assert outcomes["ERUN911"] >= 3
