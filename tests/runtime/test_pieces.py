"""Long rows of instructions that are carried out together are cut into pieces (``pieces.h``): drawn programs of
elementwise instructions on tiles that lie over each other in all manners leave the bytes in HBM that NumPy leaves."""

import numpy as np
import pytest
from core_runs import LEVELS, memory_after

from neuronx_cc.ir.isa.program import Instr, Program, Ref, Space, Stream, Variable
from neuronx_cc.runtime.native import library

V, G, L, S = Stream.VECTOR, Stream.GPSIMD, Stream.DMA_LOAD, Stream.DMA_STORE
ELEMENTS = 2048
TILE = 4 * ELEMENTS
"""Bytes of a partition of the tiles."""
TILES = 5
HALF = 1 << 23
"""Bytes of HBM that are read; as many behind them are written."""

pytestmark = pytest.mark.skipif(library.load() is None, reason="the native core was not built")


class Draw:
    """Draws a program whose instructions mostly take whole tiles, else other elements or other bytes."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.records: list[Instr] = []
        self.stored = 0

    def below(self, high: int) -> int:
        return int(self.rng.integers(high))

    def tile(self, dtype: str = "f32", size: int = 4) -> Ref:
        at, kind = TILE * self.below(TILES), self.below(16)
        if kind == 0:  # across two tiles
            return Ref(Space.SBUF, dtype, at + 4 * self.below(64), ((128, 0), (ELEMENTS, size)), 0)
        if kind == 1:  # the other way round
            return Ref(Space.SBUF, dtype, at + size * (ELEMENTS - 1), ((128, 0), (ELEMENTS, -size)), 0)
        if kind == 2:  # one element for all
            return Ref(Space.SBUF, dtype, at, ((128, 0), (ELEMENTS, 0)), 0)
        return Ref(Space.SBUF, dtype, at, ((128, 0), (ELEMENTS, size)), 0)

    def whole(self, dtype: str = "f32", size: int = 4) -> Ref:
        return Ref(Space.SBUF, dtype, TILE * self.below(TILES), ((128, 0), (ELEMENTS, size)), 0)

    def copied(self, at: int) -> tuple[Ref, Ref]:
        """Rows of one tile in HBM, or two halves of rows that are far apart; and a tile on chip."""
        whole = self.whole()
        if self.below(2):
            return Ref(Space.HBM, "f32", at, ((128, TILE), (ELEMENTS, 4))), whole
        halves = Ref(Space.SBUF, "f32", whole.offset, ((128, 0), (2, TILE // 2), (ELEMENTS // 2, 4)), 0)
        return Ref(Space.HBM, "f32", at, ((128, TILE // 2), (2, 64 * TILE), (ELEMENTS // 2, 4))), halves

    def one(self) -> None:
        kind, emit = self.below(12), self.records.append
        if kind < 2:
            source, tile = self.copied(128 * TILE * self.below(4))
            emit(Instr("dma_copy", L, (tile,), (source,)))
        elif kind == 2:
            target, tile = self.copied(HALF + 128 * TILE * self.stored)
            emit(Instr("dma_copy", S, (target,), (tile,)))
            self.stored = (self.stored + 1) % 8
        elif kind == 3:
            emit(Instr("copy_predicated", V, (self.whole(),), (self.tile("pred", 1), self.tile())))
        elif kind == 4:
            emit(Instr("tensor_tensor", V, (self.whole("pred", 1),), (self.tile(), self.tile()), ("is_gt",)))
        elif kind == 5:  # of which no NaN comes
            emit(Instr("int_tensor_tensor", G, (self.whole("s32"),), (self.tile("s32"), self.tile("s32")), ("and",)))
        elif kind == 6:  # every other word or half
            size, dtype = ((8, "f32"), (4, "u16"))[self.below(2)]
            at = TILE * self.below(TILES - 1) + size // 2 * self.below(2)
            made = Ref(Space.SBUF, dtype, at, ((128, 0), (TILE // size, size)), 0)
            source = Ref(Space.SBUF, dtype, TILE * self.below(TILES), ((128, 0), (TILE // size, size // 2)), 0)
            emit(Instr("tensor_copy", V, (made,), (source,)))
        elif kind == 7:
            column = Ref(Space.SBUF, "f32", TILE * self.below(TILES) + 4 * self.below(ELEMENTS), ((128, 0), (1, 4)), 0)
            emit(Instr("tensor_scalar", V, (self.whole(),), (self.tile(), column), ("max",), (), frozenset(["ap0"])))
        elif kind == 8:  # what most selects are: a copy, then others where a predicate says so
            made = self.whole()
            emit(Instr("tensor_copy", V, (made,), (self.whole(),)))
            emit(Instr("copy_predicated", V, (made,), (self.tile("pred", 1), self.tile())))
        else:
            emit(Instr("tensor_tensor", V, (self.whole(),), (self.tile(), self.tile()), (("max", "add")[kind % 2],)))

    def program(self) -> Program:
        while len(self.records) < 40:
            self.one()
        variable = Variable("x", "input", 0, 2 * HALF, "f32", (HALF // 2,), 0)
        return Program(self.records, variables=[variable], hbm_bytes=2 * HALF)


@pytest.mark.parametrize("seed", range(40))
def test_pieces_depend_on_the_same_piece_alone(seed: int) -> None:
    program = Draw(seed).program()
    data = np.random.default_rng(seed).integers(-99, 99, HALF // 2).astype(np.float32)
    wanted = memory_after(program, data, None).bytes[Space.HBM].tobytes()
    for level in LEVELS:
        assert memory_after(program, data, level, False).bytes[Space.HBM].tobytes() == wanted, level
