"""Elements in short rows, with gaps between them, repeated, or every other one, by the core's kernels and by NumPy.

Patterns and types are drawn, for instructions of each kind that works element by element; all bits are compared.
"""

from math import prod

import numpy as np
import pytest
from core_agreement import INTEGERS, agree, built, values
from one_instruction import Bench

from neuronx_cc.ir.isa.elements import STORAGE
from neuronx_cc.ir.isa.program import Instr, Ref, Space, Stream

V, G = Stream.VECTOR, Stream.GPSIMD
FLOATS = ("f32", "bf16", "f16")
LANES = 5
ROOM = 9000
"""Bytes of a partition for each operand."""
WHOLE = ("add", "subtract", "multiply", "maximum", "minimum", "xor", "shift-left", "divide")
ORDER = ("compare-eq", "compare-ne", "compare-lt", "compare-le", "compare-gt", "compare-ge")


def drawn_counts(rng):
    """Of the free dims: at least two, the last one short."""
    while True:
        counts = [int(rng.choice([1, 2, 3, 7, 40])) for _ in range(rng.integers(1, 4))]
        counts.append(int(rng.choice([1, 2, 3, 5, 8, 16, 31, 33])))
        if prod(counts) <= 1500:
            return counts


def drawn_strides(rng, counts, size, repeats):
    """From the last dim on: dense, with gaps, or (``repeats``) the same elements again."""
    strides, step = [], size * int(rng.choice([1, 1, 1, 2]))
    for count in reversed(counts):
        strides.append(0 if repeats and rng.random() < 0.3 else step)
        step *= count
        step += size * int(rng.choice([0, 0, 0, 1, 3]))
    return strides[::-1], step


def operand(rng, dtype, slot, counts, repeats):
    size = STORAGE[dtype].itemsize
    while True:
        strides, reach = drawn_strides(rng, counts, size, repeats)
        if reach <= ROOM:
            return Ref(Space.SBUF, dtype, slot * ROOM, ((LANES, 0), *zip(counts, strides, strict=True)))


class Drawn:
    """One program: sources of each type, and instructions on patterns of them."""

    def __init__(self, rng):
        self.rng, self.bench, self.slot = rng, Bench(), 0
        self.outs = []

    def source(self, dtype, counts):
        ref = operand(self.rng, dtype, self.slot, counts, True)
        size = STORAGE[dtype].itemsize
        data = values(self.rng, dtype, (LANES, ROOM // size))
        inside = Ref(Space.SBUF, dtype, ref.offset, ((LANES, 0), (ROOM // size, size)))
        loaded = self.bench.variable("input", dtype, data.shape, len(self.bench.inputs))
        self.bench.inputs.append(data)
        self.bench.emit(Instr("dma_copy", Stream.DMA_LOAD, (inside,), (loaded,)))
        self.slot += 1
        return ref

    def result(self, dtype, counts):
        self.outs.append(operand(self.rng, dtype, self.slot, counts, False))
        self.slot += 1
        return self.outs[-1:]

    def emit(self, op, stream, outs, ins, alu=(), imm=(), flags=()):
        self.bench.emit(Instr(op, stream, tuple(outs), tuple(ins), tuple(alu), tuple(imm), frozenset(flags)))

    def floats(self):
        rng, counts = self.rng, drawn_counts(self.rng)
        sources = [self.source(str(rng.choice(FLOATS)), counts) for _ in range(2)]
        for alu in rng.choice(["add", "multiply", "max", "is_ge", "subtract"], 2):
            target = "pred" if alu == "is_ge" and rng.random() < 0.5 else str(rng.choice(FLOATS))
            self.emit("tensor_tensor", V, self.result(target, counts), sources, (alu,))
        chain = tuple(rng.choice(["add", "multiply", "min"], 2))
        self.emit("tensor_scalar", V, self.result(str(rng.choice(FLOATS)), counts), sources[:1], chain, (0.5, -2.0))

    def whole(self):
        rng, counts = self.rng, drawn_counts(self.rng)
        dtype = str(rng.choice(INTEGERS))
        sources = [self.source(dtype, counts) for _ in range(2)]
        for alu in (*rng.choice(WHOLE, 2), rng.choice(ORDER)):
            target, flags = "pred" if alu in ORDER else dtype, ["reverse"] * int(rng.integers(2))
            self.emit("int_tensor_tensor", G, self.result(target, counts), sources, (alu,), (), flags)
            self.emit("int_tensor_tensor", G, self.result(target, counts), sources[:1], (alu,), (3,), flags)
        self.emit("tensor_tensor", V, self.result(dtype, counts), sources, ("bitwise_xor",))
        self.emit("program_unary", G, self.result(dtype, counts), sources[:1], ("not",))

    def moved(self):
        rng, counts = self.rng, drawn_counts(self.rng)
        dtype = str(rng.choice([*FLOATS, "u8", "s16"]))
        self.emit("tensor_copy", V, self.result(dtype, counts), [self.source(dtype, counts)])

    def ordered(self):
        rng, counts = self.rng, drawn_counts(self.rng)
        sources = [self.source(str(rng.choice(["f32", "bf16"])), counts)] * 2
        sources[1] = self.source(sources[0].dtype, counts)
        alu, flags = str(rng.choice(ORDER)).replace("-", "-totalorder-"), ["reverse"] * int(rng.integers(2))
        self.emit("program_binary", G, self.result("pred", counts), sources, (alu,), (), flags)

    def rounded(self):
        rng, counts = self.rng, drawn_counts(self.rng)
        source = self.source(str(rng.choice(FLOATS)), counts)
        for alu in ("round-nearest-even", "floor"):
            self.emit("program_unary", G, self.result(str(rng.choice(FLOATS)), counts), [source], (alu,))
        self.emit("convert", G, self.result(str(rng.choice(["s8", "u16", "s32"])), counts), [source])


@built
@pytest.mark.parametrize("kind", ["floats", "whole", "moved", "ordered", "rounded"])
@pytest.mark.parametrize("seed", range(12))
def test_short_rows(kind, seed):
    drawn = Drawn(np.random.default_rng([seed, len(kind)]))
    for _ in range(2 if kind != "moved" else 5):
        getattr(drawn, kind)()
    agree(drawn.bench, drawn.outs)
