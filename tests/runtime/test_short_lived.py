"""Tiles that few instructions need are not kept on chip (``short_lived.h``) where nobody looks there after a run: drawn
programs of chains, loops and whatever else meets such tiles leave the same bytes in HBM as where somebody looks."""

import numpy as np
import pytest
from core_runs import LEVELS, memory_after

from neuronx_cc.ir.isa.program import End, Instr, Loop, Program, Ref, Space, Stream, Variable
from neuronx_cc.runtime.native import library

V, G, T, L, S, A = Stream.VECTOR, Stream.GPSIMD, Stream.TENSOR, Stream.DMA_LOAD, Stream.DMA_STORE, Stream.SCALAR
HBM_BYTES = 1 << 22
TILE = 1024
"""Bytes of a partition of the tiles, most of which begin at multiples of it."""
TILES = 7

pytestmark = pytest.mark.skipif(library.load() is None, reason="the native core was not built")


class Draw:
    """Draws a program on few tiles, some of them in a loop at places that its iteration decides."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.records: list[Instr | Loop | End] = []
        self.turns = 0
        self.stored = 0

    def below(self, high: int) -> int:
        return int(self.rng.integers(high))

    def tile(self, dtype: str = "f32", lanes: tuple[int, int] = (0, 128)) -> Ref:
        """A whole tile, most of the time."""
        at, count = TILE * self.below(TILES), TILE // 4
        coefs = ((0, TILE * (self.below(2) + 1)),) if self.turns and self.below(3) == 0 else ()
        kind = self.below(12)
        if kind == 0:
            at += 4 * self.below(TILE // 8)
        if kind == 1:
            return Ref(Space.SBUF, dtype, at, ((lanes[1], 0), (count // 8, 32), (8, 4)), lanes[0], coefs)
        return Ref(Space.SBUF, dtype, at, ((lanes[1], 0), (count, 4)), lanes[0], coefs)

    def outside(self, lanes: int, count: int) -> Ref:
        pitch, stored = int(self.rng.choice([0, TILE, 4096])), self.below(4) == 0
        at = (HBM_BYTES >> 1) + TILE * self.below(8) if stored else 4 * self.below(4096)
        return Ref(Space.HBM, "f32", at, ((lanes, pitch), (count, 4)))

    def part(self, whole: Ref, first: int, count: int) -> Ref:
        """Some elements of a tile."""
        return Ref(
            Space.SBUF, whole.dtype, whole.offset + 4 * first, (whole.dims[0], (count, 4)), whole.partition, whole.coefs
        )

    def half(self, whole: Ref) -> Ref:
        """Every other quarter of a tile."""
        at = whole.offset + TILE // 4 * self.below(2)
        return Ref(
            whole.space, whole.dtype, at, (whole.dims[0], (2, TILE // 2), (TILE // 16, 4)), whole.partition, whole.coefs
        )

    def store(self, tile: Ref) -> None:
        """One after the other, or with rows of four stores side by side."""
        self.stored = (self.stored + 1) % 8
        apart, group = (TILE, self.stored) if self.below(2) else (4 * TILE, self.stored // 4 * 4)
        at = (HBM_BYTES >> 1) + group * 128 * TILE + (self.stored - group) * TILE
        dims = ((tile.counts[0], apart), *tile.dims[1:])
        coefs = ((0, 8 * 128 * TILE),) if self.turns else ()
        self.records.append(Instr("dma_copy", S, (Ref(Space.HBM, "f32", at, dims, 0, coefs),), (tile,)))

    def one(self) -> None:
        lanes = (0, 128) if self.below(8) else [(0, 64), (64, 64), (5, 40)][self.below(3)]
        out, kind, emit = self.tile(lanes=lanes), self.below(16), self.records.append
        a, b = self.tile(lanes=lanes), self.tile(lanes=lanes)
        flat = all(len(ref.dims) == 2 for ref in (out, a, b))
        fits = a.counts == b.counts == out.counts
        if kind == 0:
            emit(
                Instr("dma_copy", L, (out,), (self.outside(lanes[1], TILE // 4),))
                if len(out.dims) == 2
                else Instr("memset", V, (out,), (), (), (2.0,))
            )
        elif kind == 1:
            self.store(a)
        elif kind == 2 and fits:
            emit(Instr("copy_predicated", V, (out,), (a, b)))
        elif kind == 3 and flat:
            emit(
                Instr(
                    "tensor_tensor",
                    V,
                    (self.part(out, 32, 100),),
                    (self.part(a, 0, 100), self.part(b, 7, 100)),
                    ("max",),
                )
            )
        elif kind == 4 and flat:
            emit(
                Instr("tensor_reduce", V, (self.part(out, self.below(200), 1),), (a,), (("max", "min")[self.below(2)],))
            )
        elif kind == 5 and flat:
            total = self.part(self.tile(lanes=lanes), 3, 1)
            function = ("sign", "copy")[self.below(2)]
            emit(Instr("activation", A, (out, total), (a,), (function,), (1.0,), frozenset(["accumulate"])))
        elif kind == 6 and flat:
            emit(
                Instr(
                    "tensor_scalar",
                    V,
                    (out,),
                    (a, self.part(b, self.below(200), 1)),
                    ("subtract",),
                    (),
                    frozenset(["ap0"]),
                )
            )
        elif kind == 7 and flat:
            ints = [Ref(ref.space, "s32", ref.offset, ref.dims, ref.partition, ref.coefs) for ref in (out, a)]
            emit(Instr("int_tensor_tensor", G, (ints[0],), (ints[1],), ("xor",), (0x1000,)))
        elif kind == 8 and flat:
            halves = Ref(
                Space.SBUF, "u16", out.offset + 2 * self.below(2), (out.dims[0], (TILE // 4, 4)), lanes[0], out.coefs
            )
            source = Ref(Space.SBUF, "u16", a.offset, (a.dims[0], (TILE // 4, 4)), lanes[0], a.coefs)
            emit(Instr("tensor_copy", V, (halves,), (source,)))
        elif kind == 9 and flat and self.below(3) == 0:
            ints = [Ref(ref.space, "s32", ref.offset, ref.dims, ref.partition, ref.coefs) for ref in (out, a)]
            emit(Instr("int_scan", G, (ints[0],), (ints[1],), ("maximum",), (0,)))
        elif kind == 10 and self.below(3) == 0:
            sums = Ref(Space.PSUM, "f32", 512 * self.below(2), ((32, 0), (64, 4)))
            weights, moving = self.tile(), self.tile()
            emit(Instr("load_stationary", T, (), (self.part(weights, 16, 32),)))
            emit(Instr("multiply_moving", T, (sums,), (self.part(moving, 64, 64),)))
            emit(
                Instr(
                    "tensor_copy", V, (Ref(Space.SBUF, "f32", out.offset, ((32, 0), (64, 4)), 0, out.coefs),), (sums,)
                )
            )
        elif kind == 11 and flat:
            for _ in range(self.below(2) + 1):
                emit(Instr("tensor_tensor", V, (self.half(out),), (self.half(a), self.half(b)), ("max",)))
        elif fits:
            emit(Instr("tensor_tensor", V, (out,), (a, b), (("max", "min", "is_gt")[self.below(3)],)))

    def program(self) -> Program:
        """The stores of a loop are many times apart, so that none hides another one."""
        while len(self.records) < 60:
            if self.turns and self.below(12) == 0:
                self.records.append(End())
                self.turns = 0
            elif not self.turns and self.below(16) == 0:
                self.turns = 2
                self.records.append(Loop(self.turns, 0, (), frozenset([L, S, V, T, G, A])))
            else:
                self.one()
        if self.turns:
            self.records.append(End())
        self.turns = 0
        for _ in range(2):
            self.store(self.tile())
        variable = Variable("x", "input", 0, HBM_BYTES, "f32", (HBM_BYTES // 4,), 0)
        return Program(self.records, variables=[variable], hbm_bytes=HBM_BYTES)


def after(program: Program, data: np.ndarray, level: str, observed: bool) -> bytes:
    """What is in HBM after a run."""
    return memory_after(program, data, level, observed).bytes[Space.HBM].tobytes()


@pytest.mark.parametrize("seed", range(100))
def test_nobody_misses_what_is_not_kept(seed: int) -> None:
    program = Draw(seed).program()
    data = np.random.default_rng(seed).integers(-99, 99, HBM_BYTES // 4).astype(np.float32)
    for level in LEVELS:
        assert after(program, data, level, False) == after(program, data, level, True), level


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_both_zeros_are_false(dtype: str) -> None:
    """Predicates of floats, which the core sees as bits."""
    counts = ((128, 0), (256, 4))
    source = Ref(Space.HBM, "f32", 0, ((128, 0), (256, 4)))
    zeros, ones, out = (Ref(Space.SBUF, "f32", TILE * k, counts) for k in range(3))
    size = 4 if dtype == "f32" else 2
    predicate = Ref(Space.SBUF, dtype, 3 * TILE, ((128, 0), (256, size)))
    records: list[Instr | Loop | End] = [
        Instr("dma_copy", L, (zeros,), (source,)),
        Instr("tensor_scalar", V, (predicate,), (zeros,), ("multiply",), (-1.0,)),
        Instr("memset", V, (ones,), (), (), (1.0,)),
        Instr("memset", V, (out,), (), (), (5.0,)),
        Instr("copy_predicated", V, (out,), (predicate, ones)),
        Instr("dma_copy", S, (Ref(Space.HBM, "f32", 1 << 20, ((128, TILE), (256, 4))),), (out,)),
    ]
    variable = Variable("x", "input", 0, HBM_BYTES, "f32", (HBM_BYTES // 4,), 0)
    program = Program(records, variables=[variable], hbm_bytes=HBM_BYTES)
    data = np.arange(HBM_BYTES // 4, dtype=np.float32) % 3
    for level in LEVELS:
        result = np.frombuffer(after(program, data, level, False), np.float32)[1 << 18 :][: 128 * 256]
        assert (result.reshape(128, 256) == np.where(np.arange(256) % 3, 1.0, 5.0)).all(), level
