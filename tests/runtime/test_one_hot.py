"""Comparisons of consecutive numbers with a value a partition, and of a list of numbers with one value after another,
are put off (``one_hot.h``), and so are equal rows of products (``loans.h``): drawn programs of such comparisons, of
products of parts of them and of equal columns, and of whatever else reads or writes what they touch leave the bytes
that NumPy leaves."""

import numpy as np
import pytest
from core_runs import LEVELS, memory_after

from neuronx_cc.ir.isa.program import End, Instr, Loop, Program, Ref, Space, Stream, Variable
from neuronx_cc.runtime.native import library

V, T, L, S, A = Stream.VECTOR, Stream.TENSOR, Stream.DMA_LOAD, Stream.DMA_STORE, Stream.SCALAR
HBM_BYTES = 1 << 20
ROW = 4096
"""Bytes of a partition of a place. Tiles begin at multiples of it, results of comparisons at those of half of it."""
NUMBERS, VALUES, MOVING, TILES = 0, 2, 4, 6
"""First places: two rows of numbers, two tiles of values, two tiles that move, and what is compared."""
LISTS, FACTORS, STEPS, FAMILIES, PLACES = 12, 14, 15, 16, 24
"""The same: two lists, their factors, values that follow each other, and two sets of comparisons with all of these."""
MEMBERS = 40

pytestmark = pytest.mark.skipif(library.load() is None, reason="the native core was not built")


class Draw:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.records: list[Instr | Loop | End] = []
        self.inside = False
        self.count = int(self.rng.choice([32, 70, 128, 200]))
        self.entries = int(self.rng.choice([1, 2, 8, 50]))
        self.first = float(self.rng.choice([0, 0, 0, -3, 7]))
        self.made: dict[int, tuple[int, str, int, tuple[int, int]]] = {}
        self.data = np.zeros(HBM_BYTES // 4, np.float32)

    def below(self, high: int) -> int:
        return int(self.rng.integers(high))

    def sbuf(self, dtype: str, at: int, count: int, lanes: tuple[int, int] = (0, 128), step: int = 0) -> Ref:
        size = 2 if dtype == "bf16" else 4
        coefs = ((0, step),) if self.inside and step else ()
        return Ref(Space.SBUF, dtype, at, ((lanes[1], 0), (count, size)), lanes[0], coefs)

    def load(self, place: int, values: np.ndarray) -> None:
        """Brings an array, the same for each run of a loop, to a place; HBM has room for eight of each kind."""
        at = self.below(8) * 128 * 256
        self.data[at : at + values.size] = values.ravel()
        rows, columns = values.shape
        source = Ref(Space.HBM, "f32", 4 * at, ((rows, 4 * columns), (columns, 4)))
        self.records.append(Instr("dma_copy", L, (self.sbuf("f32", ROW * place, columns, (0, rows)),), (source,)))

    def numbers(self) -> None:
        first = float(self.rng.choice([0, -7, 1000, 0.5, 2.0**24]))
        rows = np.broadcast_to(first + np.arange(self.count, dtype=np.float32), (128, self.count)).copy()
        if self.below(6) == 0:
            rows[self.below(128), self.below(self.count)] += 1
        self.load(NUMBERS + self.below(2), rows)

    def values(self) -> None:
        found = self.rng.integers(-3, self.count + 3, (128, 4)).astype(np.float32)
        odd = self.rng.random((128, 4)) < 0.1
        special = self.rng.choice([np.nan, np.inf, 0.5, -0.0, 1007], (128, 4))
        self.load(VALUES + self.below(2), np.where(odd, special, found))

    def moving(self) -> None:
        tile = self.rng.integers(-9, 9, (128, 64)).astype(np.float32)
        if self.below(4) == 0:
            tile[self.below(128), self.below(64)] = self.rng.choice([np.nan, np.inf, -0.0])
        self.load(MOVING + self.below(2), tile)

    def lists(self) -> None:
        """Two lists, as FP32 or integers, and their factors."""
        shape = (128, self.entries)
        found = self.rng.integers(-3, MEMBERS + 5, (2, *shape)).astype(np.float32)
        for k in range(2):
            odd = self.rng.choice([0.5, np.nan, 1e9, -1e9], shape) if self.below(5) == 0 else found[k]
            self.load(
                LISTS + k,
                np.where(self.rng.random(shape) < 0.1, odd, found[k])
                if k
                else found[k].astype(np.int32).view(np.float32),
            )
        factors = self.rng.standard_normal(shape).astype(np.float32)
        if self.below(3) == 0:
            factors[self.below(128), 0] = self.rng.choice([np.inf, np.nan, -0.0])
        self.load(FACTORS, factors)

    def steps(self) -> None:
        """Values one after the other, up in the first half of the place and down in the other."""
        rows = np.zeros((128, 200), np.float32)
        rows[:, :MEMBERS] = self.first + np.arange(MEMBERS)
        rows[:, 100 : 100 + MEMBERS] = 0.5 - self.first - np.arange(MEMBERS)
        if self.below(5) == 0:
            rows[self.below(128), self.below(MEMBERS) + 100 * self.below(2)] += 1
        self.load(STEPS, rows)

    def family(self) -> None:
        """A loop of comparisons of a list with values, or of consecutive numbers with the list's."""
        n, side = self.entries, self.below(2)
        slot, kind = FAMILIES + 4 * side, (0, 0, 1, 3, 2, 1, 1, 2)[4 * side + self.below(4)]
        dtype = "f32" if kind == 2 or self.below(2) else "bf16"
        size = 2 if dtype == "bf16" else 4
        lanes = (0, 128) if self.below(6) else (32, 64)
        which = self.below(2)

        def at(place: int, step: int, count: int, kind: str = "f32", offset: int = 0) -> Ref:
            width = 2 if kind == "bf16" else 4
            dims = ((lanes[1], 0), (count, width))
            return Ref(Space.SBUF, kind, ROW * place + offset, dims, lanes[0], ((3, step),) if step else ())

        numbers = at(LISTS + which, 0, n, ("s32", "f32")[which])
        members = MEMBERS - self.below(3)
        if kind == 3:  # numbers of a list, each in a row of its own
            members, row = n, self.count
            ins = (at(NUMBERS, 0, row), at(LISTS + which, 4, 1, ("s32", "f32")[which]))
            made = Instr(
                "tensor_scalar", V, (at(slot, size * row, row, dtype),), ins, ("is_equal",), (), frozenset(["ap0"])
            )
        else:
            out, value = at(slot, size * n, n, dtype), at(STEPS, 4, 1, offset=400 if kind == 0 else 0)
            if kind == 0:
                made = Instr("activation", A, (out,), (numbers, value), ("sign",), (1.0,), frozenset(["bias"]))
            elif kind == 1:
                made = Instr("tensor_scalar", V, (out,), (numbers, value), ("is_equal",), (), frozenset(["ap0"]))
            else:
                ins = (numbers, at(FACTORS, 0, n), value)
                made = Instr("scalar_tensor_tensor", V, (out,), ins, ("is_equal", "multiply"), (), frozenset(["ap0"]))
        self.records += [Loop(members, 3, (), frozenset([L, S, V, T, A])), made, End()]
        self.made[slot] = (kind, dtype, members, lanes)

    def products(self) -> None:
        """Of comparisons with each other, or with a tile in memory."""
        n = self.entries

        def window(slot: int) -> tuple[Ref, int] | None:
            if slot not in self.made:
                return None
            kind, dtype, members, lanes = self.made[slot]
            size = 2 if dtype == "bf16" else 4
            if kind == 3:
                first = self.below(self.count - 20)
                count, step, offset = (
                    1 + self.below(min(64, self.count - first)),
                    size,
                    size * (first + self.count * self.below(n)),
                )
            else:
                first = self.below(members)
                count, step, offset = 1 + self.below(members - first), size * n, size * (self.below(n) + n * first)
            return Ref(Space.SBUF, dtype, ROW * slot + offset, ((lanes[1], 0), (count, step)), lanes[0]), lanes[1]

        place = 1024 + 256 * self.below(2) if self.below(3) else 256 * self.below(3)
        for _ in range(1 + self.below(4)):
            side = 4 * (self.below(5) == 0)
            tile, other = window(FAMILIES + side), window(FAMILIES + 4 - side)
            if tile is None or other is None or tile[1] != other[1]:
                return
            moving = other[0] if self.below(8) else self.sbuf("f32", ROW * MOVING, 64, (other[0].partition, other[1]))
            out = Ref(Space.PSUM, "f32", place, ((tile[0].counts[1], 0), (moving.counts[1], 4)))
            flags = frozenset(["accumulate"] if self.below(8) else [])
            self.records += [Instr("load_stationary", T, (), (tile[0],))]
            self.records += [Instr("multiply_moving", T, (out,), (moving,), (), (), flags)] * (1 + self.below(3))

    def one(self) -> None:
        emit, kind = self.records.append, self.below(28)
        if kind >= 14:
            (self.lists, self.steps, self.family, self.family, self.family, *[self.products] * 9)[kind - 14]()
            return
        lanes = (0, 128) if self.below(6) else ((32, 64), (64, 40))[self.below(2)]
        dtype = ("f32", "bf16")[self.below(8) == 0]
        at, step = ROW * TILES + ROW // 2 * self.below(6), ROW // 2 * self.below(3)
        if kind == 0:
            (self.numbers, self.values, self.moving)[self.below(3)]()
        elif kind <= 4:
            row = self.sbuf("f32", ROW * (NUMBERS + self.below(2)), self.count, lanes)
            value = self.sbuf("f32", ROW * (VALUES + self.below(2)) + 4 * self.below(4), 1, lanes)
            out = self.sbuf(dtype, at, self.count, lanes, step)
            emit(Instr("tensor_scalar", V, (out,), (row, value), ("is_equal",), (), frozenset(["ap0"])))
        elif kind <= 9:
            first = self.below(self.count - 20)
            rows = 1 + self.below(min(128, self.count - first))
            size = 2 if dtype == "bf16" else 4
            tile = self.sbuf(dtype, at + size * first, rows, lanes, step)
            if self.below(4) == 0:  # the same column throughout
                column = ROW * self.below(TILES) + 4 * self.below(30)
                tile = Ref(Space.SBUF, "f32", column, ((lanes[1], 0), (rows, 0)), lanes[0])
            out = Ref(Space.PSUM, "f32", 256 * self.below(3), ((rows, 0), (64, 4)))
            emit(Instr("load_stationary", T, (), (tile,)))
            for _ in range(1 + self.below(3)):
                source = self.sbuf("f32", ROW * (MOVING + self.below(2)), 64, lanes)
                flags = frozenset(["accumulate"] if self.below(4) else [])
                emit(Instr("multiply_moving", T, (out,), (source,), (), (), flags))
        elif kind == 10:  # something else reads or writes there
            first = ROW * (TILES, TILES, FAMILIES, FAMILIES + 4)[self.below(4)] + 4 * self.below(9)
            source, out = (self.sbuf("f32", first + ROW // 2 * self.below(6), 40) for _ in range(2))
            emit(Instr("tensor_scalar", V, (out,), (source,), ("max",), (float(self.below(2)),)))
        elif kind == 11:
            source = self.sbuf("f32", ROW * TILES + ROW // 2 * self.below(6), 64, lanes)
            emit(Instr("tensor_copy", V, (self.sbuf("f32", ROW * self.below(TILES), 64, lanes),), (source,)))
        elif kind == 12:
            first, count, columns = self.below(64), 1 + self.below(64), (1, 64)[self.below(2)]
            sums = Ref(Space.PSUM, "f32", 256 * self.below(3), ((count, 0), (columns, 4)), first)
            target = self.sbuf("f32", ROW * self.below(TILES), columns, (first, count))
            emit(Instr("tensor_scalar", V, ((sums, target)[self.below(2)],), (sums,), ("multiply",), (-1.0,)))
        else:
            emit(Instr("memset", V, (self.sbuf("f32", at, self.count, lanes, step),), (), (), (float(self.below(3)),)))

    def program(self) -> Program:
        whole = Ref(Space.SBUF, "f32", 0, ((128, 0), (PLACES * ROW // 4, 4)))
        sums = Ref(Space.PSUM, "f32", 0, ((128, 0), (4096 // 4, 4)))
        self.records += [Instr("memset", V, (each,), (), (), (0.0,)) for each in (whole, sums)]
        for start in (
            self.numbers,
            self.numbers,
            self.values,
            self.values,
            self.moving,
            self.moving,
            self.lists,
            self.steps,
        ):
            start()
        while len(self.records) < 80:
            if self.inside and self.below(10) == 0:
                self.records.append(End())
                self.inside = False
            elif not self.inside and self.below(16) == 0:
                self.inside = True
                self.records.append(Loop(2, 0, (), frozenset([L, S, V, T, A])))
            else:
                self.one()
        if self.inside:
            self.records.append(End())
        variable = Variable("x", "input", 0, HBM_BYTES, "f32", (HBM_BYTES // 4,), 0)
        return Program(self.records, variables=[variable], hbm_bytes=HBM_BYTES)


def after(program: Program, data: np.ndarray, level: str | None) -> tuple[np.ndarray, ...]:
    """The bits of SBUF and PSUM after a run by NumPy or the kernels of a level; NaNs are all alike."""
    memory, found = memory_after(program, data, level), []
    for space, columns in ((Space.SBUF, PLACES * ROW // 4), (Space.PSUM, 1024)):
        strides = (memory.pitch[space], 4)
        bits = np.ndarray((128, columns), np.uint32, memory.bytes[space], 0, strides).copy()
        found.append(np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint32(0x7FC00000), bits))
    return tuple(found)


@pytest.mark.parametrize("seed", range(100))
def test_comparisons_that_are_put_off_leave_what_numpy_leaves(seed: int) -> None:
    draw = Draw(seed)
    program = draw.program()
    expected = after(program, draw.data, None)
    for level in LEVELS:
        for want, got in zip(expected, after(program, draw.data, level), strict=True):
            np.testing.assert_array_equal(got, want, level)
