"""Copies from HBM that the native core puts off (``loans.h``): drawn programs of copies, reads and writes of everything
near them leave the same bytes on chip and in HBM as NumPy does, which makes each copy at once."""

import numpy as np
import pytest
from core_runs import LEVELS, memory_after

from neuronx_cc.ir.isa.program import End, Instr, Loop, Program, Ref, Space, Stream, Variable
from neuronx_cc.runtime.native import library

V, G, T, L, S = Stream.VECTOR, Stream.GPSIMD, Stream.TENSOR, Stream.DMA_LOAD, Stream.DMA_STORE
HBM_BYTES = 1 << 21
COLUMNS = 3072
"""Bytes of a partition that the programs use: few, so that everything meets everything."""

pytestmark = pytest.mark.skipif(library.load() is None, reason="the native core was not built")


class Draw:
    """Draws a program."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.records: list[Instr | Loop | End] = []
        self.turns = 0
        """Iterations of the open loop, of which some operands depend on the register."""
        self.loads: list[Ref] = []
        """Where the last few copies from HBM went."""

    def below(self, high: int) -> int:
        return int(self.rng.integers(high))

    def coefs(self, stride: int) -> tuple[tuple[int, int], ...]:
        return ((0, stride * self.below(2)),) if self.turns else ()

    def source(self, lanes: tuple[int, int], counts: list[int], dtype: str = "f32") -> Ref:
        """A tile, more often than not inside of what was loaded last."""
        anywhere = self.on_chip(lanes, counts, dtype)
        length = 4 * int(np.prod(counts))
        load = self.loads[self.below(len(self.loads))] if self.loads else anywhere
        room = 4 * int(np.prod(load.counts[1:])) - length
        if self.below(4) == 0 or room < 0:
            return anywhere
        step = 4 * load.counts[-1] if self.below(2) else 64
        offset = load.offset + min(room, step * self.below(room // step + 1))
        dims = ((length // 4, 4),) if self.below(2) else tuple(load.dims[1:]) if room == 0 else ((counts[-1], 4),)
        if len(load.dims) == 3 and room >= 0 and self.below(2):  # parts of rows, which may reach into the next ones
            (rows, apart), (row, _) = load.dims[1:]
            dims, offset = ((max(1, rows - 1), apart), (row // 2, 4)), load.offset + 4 * self.below(row)
        return Ref(Space.SBUF, dtype, offset, ((lanes[1], 0), *dims), lanes[0], load.coefs)

    def stationary(self) -> Ref:
        found = self.source((0, 128), [32])
        return found if found.counts == (128, 32) else self.on_chip((0, 128), [32])

    def on_chip(self, lanes: tuple[int, int], counts: list[int], dtype: str = "f32") -> Ref:
        """A tile, dense or with a gap between its rows."""
        gap = 4 * self.below(9) if len(counts) == 2 and self.below(2) else 0
        dims = [(counts[-1], 4)] if len(counts) == 1 else [(counts[0], 4 * counts[1] + gap), (counts[1], 4)]
        extent = sum((count - 1) * stride for count, stride in dims) + 4
        offset = 4 * self.below((COLUMNS - extent - 64) // 4)
        return Ref(Space.SBUF, dtype, offset, ((lanes[1], 0), *dims), lanes[0], self.coefs(16))

    def outside(self, lanes: int, counts: list[int]) -> Ref:
        """Rows in HBM, at any distance, or one row for all partitions."""
        pitch = int(self.rng.choice([0, 2048, 2560, 4 * counts[-1]]))
        apart = int(self.rng.choice([4 * counts[-1], 1024, 300_000]))
        parts = [(count, apart) for count in counts[:-1]]
        return Ref(Space.HBM, "f32", 4 * self.below(4096), ((lanes, pitch), *parts, (counts[-1], 4)), 0, self.coefs(64))

    def store(self, lanes: int, counts: list[int]) -> Ref:
        pitch = 4 * int(np.prod(counts)) + 64
        inner = [(counts[0], 4 * counts[1])] if len(counts) == 2 else []
        return Ref(Space.HBM, "f32", 4 * self.below(200_000), ((lanes, pitch), *inner, (counts[-1], 4)))

    def lanes(self) -> tuple[int, int]:
        return [(0, 128), (0, 128), (0, 64), (64, 64), (32, 96), (5, 40)][self.below(6)]

    def counts(self) -> list[int]:
        return [[256], [512], [128], [2, 128], [3, 64], [2, 256], [1], [4, 64], [4, 128], [4, 64]][self.below(10)]

    def one(self) -> None:
        lanes, counts, kind = self.lanes(), self.counts(), self.below(10)
        emit = self.records.append
        if kind < 4:
            self.loads = [*self.loads[-2:], self.on_chip(lanes, counts)]
            emit(Instr("dma_copy", L, (self.loads[-1],), (self.outside(lanes[1], counts),)))
        elif kind == 4:
            a = self.source(lanes, counts)
            emit(Instr("dma_copy", S, (self.store(lanes[1], list(a.counts[1:])),), (a,)))
        elif kind == 5:
            a, b = self.source(lanes, counts), self.source(lanes, counts)
            out = self.on_chip(lanes, list(a.counts[1:])) if self.below(3) else a
            emit(Instr("tensor_tensor", V, (out,), (a, b if b.counts == a.counts else out), ("max",)))
        elif kind == 6:
            a, total = self.source(lanes, counts), self.on_chip(lanes, [1])
            out = self.on_chip(lanes, list(a.counts[1:]))
            emit(Instr("activation", Stream.SCALAR, (out, total), (a,), ("sign",), (1.0,), frozenset(["accumulate"])))
        elif kind == 7:
            out, a = self.on_chip(lanes, [1]), self.source(lanes, [counts[-1]])
            emit(Instr("tensor_reduce", V, (out,), (a,), ("max",)))
        elif kind == 8:
            weights, moving = self.stationary(), self.source((0, 128), [[1], [64], [128]][self.below(3)])
            sums = Ref(Space.PSUM, "f32", 512 * self.below(2), ((32, 0), (int(np.prod(moving.counts[1:])), 4)))
            emit(Instr("load_stationary", T, (), (weights,)))
            if self.below(2):
                self.one()
            emit(Instr("multiply_moving", T, (sums,), (moving,)))
        else:
            a = self.source(lanes, counts, "s32")
            out = self.on_chip(lanes, list(a.counts[1:]), "s32")
            emit(Instr("int_scan", G, (out,), (a,), ("maximum",), (0,)))

    def program(self) -> Program:
        while len(self.records) < 30:
            if self.turns and self.below(4) == 0:
                self.records.append(End())
                self.turns = 0
            elif not self.turns and self.below(6) == 0:
                self.turns = 2 + self.below(3)
                self.records.append(Loop(self.turns, 0, (), frozenset([L, S, V, T, G, Stream.SCALAR])))
            else:
                self.one()
        if self.turns:
            self.records.append(End())
        variable = Variable("x", "input", 0, HBM_BYTES, "f32", (HBM_BYTES // 4,), 0)
        return Program(self.records, variables=[variable], hbm_bytes=HBM_BYTES)


def after(program: Program, data: np.ndarray, level: str | None) -> list[bytes]:
    """All memories after a run."""
    memory = memory_after(program, data, level)
    return [memory.bytes[space].tobytes() for space in Space]


@pytest.mark.parametrize("runs", [(2, 2), (2, 4), (4, 2), (1, 4)])
def test_two_sources_in_runs_are_read_as_rows(runs: tuple[int, int]) -> None:
    """The instruction sees none of the runs: they become rows of its nest, the same ones for all operands."""
    loads = []
    for k, parts in enumerate(runs):
        counts = ((128, 0), (parts, 2048 // parts), (512 // parts, 4))
        outside = ((128, 2048 // parts), (parts, 300_000), (512 // parts, 4))
        target = Ref(Space.SBUF, "f32", 2048 * k, counts)
        loads.append(Instr("dma_copy", L, (target,), (Ref(Space.HBM, "f32", 4096 * k, outside),)))
    out, a, b = (Ref(Space.SBUF, "f32", offset, ((128, 0), (512, 4))) for offset in (4096, 0, 2048))
    variable = Variable("x", "input", 0, HBM_BYTES, "f32", (HBM_BYTES // 4,), 0)
    add = Instr("tensor_tensor", V, (out,), (a, b), ("subtract",))
    program = Program([*loads, add], variables=[variable], hbm_bytes=HBM_BYTES)
    data = np.arange(HBM_BYTES // 4, dtype=np.float32) % 1009
    expected = after(program, data, None)
    assert all(after(program, data, level) == expected for level in LEVELS)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_put_off_is_never_missed(seed: int) -> None:
    """Values are small whole numbers, whose sums are exact in any order."""
    program = Draw(seed).program()
    data = np.random.default_rng(seed).integers(-3, 4, HBM_BYTES // 4).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = after(program, data, None)
    for level in LEVELS:
        assert after(program, data, level) == expected
