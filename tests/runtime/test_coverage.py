"""The coverage check finds kernels that read the wrong part of the right value; each kind of kernel is in its table."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import Instr, Program, Space
from neuronx_cc.runtime import provenance

X, Y = np.ones((300, 70), np.float32), np.ones((70, 300), np.float32)


def program(function, *inputs) -> Program:
    return compile_text(text_of(function, *inputs)).program


def loads(made: Program) -> list[int]:
    """Transfers from HBM that are no copies inside it."""
    return [
        row
        for row, record in enumerate(made.records)
        if isinstance(record, Instr) and record.ins and record.ins[0].space is Space.HBM
    ]


def blamed(made: Program) -> str:
    with pytest.raises(RunError) as caught:
        provenance.check(made)
    assert caught.value.code == "ERUN921"
    return caught.value.message


def test_programs_are_right() -> None:
    def function(x, y):
        z = jnp.tanh(x) @ y
        return jnp.concatenate([z, jax.nn.softmax(z[::-1], -1)], 1).sum(0)

    made = program(function, X, Y)
    assert len(made.needs) > 4
    provenance.check(made)


@pytest.mark.parametrize(
    ("function", "dims"),
    [
        (lambda x: jnp.tanh(x), (129, 7000)),
        (lambda x: jnp.tanh(x), (131, 3, 1100)),
        (lambda x: jnp.tanh(x).sum(1), (257, 7000)),
        (lambda x: x.sum(0), (3000, 70)),
        (lambda x: x.T @ np.ones((2503, 5), np.float32), (2503, 70)),
    ],
)
def test_every_offset_that_is_dropped(function, dims) -> None:
    """Each load that begins after the first byte of its operand, or moves with a loop, from that byte instead."""
    made = program(function, np.ones(dims, np.float32))
    (given,) = (variable for variable in made.variables if variable.kind == "input")
    moved = 0
    for row in loads(made):
        instr = made.records[row]
        assert isinstance(instr, Instr)
        (source,) = instr.ins
        if made.owners[instr.origins[-1][0]].lo == given.offset and (source.offset > given.offset or source.coefs):
            made.records[row] = replace(instr, ins=(replace(source, offset=given.offset, coefs=()),))
            assert "left out" in blamed(made)
            made.records[row] = instr
            moved += 1
    assert moved
    provenance.check(made)
