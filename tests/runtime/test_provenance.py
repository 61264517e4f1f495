"""The provenance check finds programs that use memory for two things; defects are put into code generation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of
from large_modules import large_module

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import Instr, Loop, Program, Space
from neuronx_cc.runtime import provenance, races


def network(x, w):
    for _ in range(2):
        x = jax.nn.softmax(jnp.tanh(x @ w) * 3 + x, -1)
    return x


X, W = np.ones((300, 200), np.float32), np.ones((200, 200), np.float32)


def program(function=network, *inputs) -> Program:
    return compile_text(text_of(function, *(inputs or (X, W)))).program


def elementwise(x, y):
    return jnp.tanh(x * y) + jnp.exp(-x) * y


LONG = np.ones((128, 60_000), np.float32)


def blamed(made: Program) -> str:
    with pytest.raises(RunError) as caught:
        provenance.check(made)
    assert caught.value.code == "ERUN910"
    return caught.value.message


def test_programs_are_right() -> None:
    for made in (program(), program(elementwise, LONG, LONG), compile_text(large_module(7, 200, 300)).program):
        assert made.owners
        provenance.check(made)


def test_programs_from_files_tell_nothing() -> None:
    made = program()
    made.owners.clear()
    provenance.check(made)


def test_a_tile_that_is_reused_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TilePool.tile

    def tile(self, sizes, dtype, lanes):
        made = original(self, sizes, dtype, lanes)
        self.give_back(made)
        return made

    monkeypatch.setattr(TilePool, "tile", tile)
    made = program(elementwise, LONG, LONG)
    races.check(made)
    assert "another tile in it" in blamed(made)


def test_a_value_that_is_freed_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Context.note_use

    def note_use(self, value, step):
        original(self, value, min(step, 1))

    monkeypatch.setattr(Context, "note_use", note_use)
    with pytest.raises(AssertionError, match="used after it was freed"):
        program(lambda x, w: (jnp.tanh(x) @ w + jnp.tanh(x)) @ w - jnp.tanh(x))


def test_swapped_operands() -> None:
    made = program(elementwise, LONG, LONG)
    row, instr = next(
        (row, record)
        for row, record in enumerate(made.records)
        if isinstance(record, Instr) and record.op == "tensor_tensor" and record.ins[0] != record.ins[1]
    )
    made.records[row] = replace(instr, ins=instr.ins[::-1])
    assert "reads SBUF" in blamed(made)


def _with_buffers(made: Program) -> int:
    """A read through a rotating buffer in a loop."""
    phases = {phase for record in made.records if isinstance(record, Loop) for phase, _ in record.phases}
    for row, record in enumerate(made.records):
        source = record.ins[0] if isinstance(record, Instr) and record.ins else None
        if source and source.space is Space.SBUF and phases & {register for register, _ in source.coefs}:
            return row
    raise LookupError


def test_a_dropped_turn_of_a_buffer() -> None:
    made = program(elementwise, LONG, LONG)
    row = _with_buffers(made)
    instr = made.records[row]
    assert isinstance(instr, Instr)
    made.records[row] = replace(instr, ins=(replace(instr.ins[0], coefs=()), *instr.ins[1:]))
    assert "tile" in blamed(made)


def test_an_offset_beyond_the_memory() -> None:
    made = program(elementwise, LONG, LONG)
    row = _with_buffers(made)
    instr = made.records[row]
    assert isinstance(instr, Instr)
    owner = made.owners[instr.origins[len(instr.outs)][0]]
    made.records[row] = replace(instr, ins=(replace(instr.ins[0], offset=owner.hi - 4), *instr.ins[1:]))
    assert "outside of" in blamed(made)
