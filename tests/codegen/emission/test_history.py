"""Histories of many accesses: what an access may meet is found, in order, with little else."""

import random
from collections.abc import Iterator

import pytest

from neuronx_cc.codegen.emission.accesses import Alloc, hull, interleaved, remember
from neuronx_cc.codegen.emission.frames import Access, Rows
from neuronx_cc.codegen.emission.history import FEW
from neuronx_cc.ir.isa.program import Space, Stream

STREAMS = (Stream.DMA_LOAD, Stream.DMA_STORE, Stream.VECTOR)


def access(write: bool, lo: int, hi: int, rows: Rows = (), count: int = 0, stream: int = 0) -> Access:
    place = (STREAMS[stream], ())
    coefs = ((3, 64),) if count % 17 == 16 else ()
    return Access(STREAMS[stream], write, lo, hi, (0, 1), coefs, count, place, 0, rows)


def draw(chance: random.Random, span: int, count: int) -> Access:
    """Rows of one of two distances, or some bytes, seldom all of them."""
    kind, write, stream = chance.randrange(10), chance.random() < 0.5, chance.randrange(3)
    if kind == 0:
        return access(write, 0, span, count=count, stream=stream)
    if kind < 5:
        pitch = chance.choice((64, 256))
        run, start = chance.randrange(1, pitch // 4), chance.randrange(pitch)
        rows = chance.randrange(2, span // pitch)
        return access(write, start, min(span, start + (rows - 1) * pitch + run), ((pitch, run),), count, stream)
    lo = chance.randrange(span - 1)
    return access(write, lo, min(span, lo + chance.choice((1, 8, 500))), count=count, stream=stream)


def meets(one: Access, other: Access) -> bool:
    if one.coefs or other.coefs:
        return True
    return one.lo < other.hi and other.lo < one.hi and not interleaved(one, other, 0, ())


def histories() -> Iterator[tuple[Alloc, random.Random, int]]:
    for seed in range(30):
        chance = random.Random(seed)
        span = chance.choice((2048, 1 << 14))
        alloc = Alloc(Space.HBM, 4096, 4096 + span)
        for count in range(chance.choice((FEW // 2, FEW * 3, FEW * 12))):
            remember(alloc, draw(chance, span, count))
        yield alloc, chance, span


def test_what_may_meet_is_found() -> None:
    for alloc, chance, span in histories():
        for number in range(40):
            new = draw(chance, span, number)
            found = list(alloc.accesses.conflicting(new, Stream.GPSIMD, {}))
            assert [old.number for old in found] == sorted((old.number for old in found), reverse=True)
            wanted = {old.number for old in alloc.accesses if (old.write or new.write) and meets(old, new)}
            assert wanted <= {old.number for old in found}


def test_last_counts_are_those_of_what_is_left() -> None:
    for alloc, _, _ in histories():
        last = alloc.accesses.last()
        assert set(last) == {old.place for old in alloc.accesses}
        assert all(max(old.count for old in alloc.accesses if old.place == place) == last[place] for place in last)


def test_what_is_known_is_not_looked_at_again() -> None:
    alloc = Alloc(Space.HBM, 0, 1 << 14)
    for count in range(100):
        remember(alloc, access(True, count * 64, count * 64 + 64, count=count + 1, stream=0))
    whole = access(False, 0, 1 << 14, stream=1)
    assert len(list(alloc.accesses.conflicting(whole, Stream.DMA_STORE, {}))) == 100
    assert not list(alloc.accesses.conflicting(whole, Stream.DMA_STORE, {(Stream.DMA_LOAD, ()): 100}))


@pytest.mark.parametrize("by_rows", [False, True])
def test_pieces_of_a_long_array_meet_few_others(by_rows: bool) -> None:
    """Neighbouring rows, or neighbouring columns of many rows."""
    count, width = 3000, 16
    alloc = Alloc(Space.HBM, 0, count * width * 64)
    pitch = count * width
    most = 0
    for number in range(count):
        lo = number * width
        if by_rows:
            piece = access(True, lo * 64, (lo + width) * 64, count=1)
        else:
            piece = access(True, lo, lo + 63 * pitch + width, ((pitch, width),), 1)
        most = max(most, len(list(alloc.accesses.conflicting(piece, Stream.DMA_LOAD, {}))))
        remember(alloc, piece)
    assert most <= 2 * FEW


def operand(chance: random.Random, whole: float = 0.0) -> tuple[Access, set[int]]:
    """A box of up to three dims somewhere in an array of 4 x 5 x 6 rows of 8 bytes, and its bytes.

    ``whole``: how likely all of a dim is in it.
    """
    dims, lo, places = [], 0, {0}
    for size, stride in ((4, 240), (5, 48), (6, 8)):
        step = chance.choice((1, 1, 1, 2))
        count = chance.randint(1, -(-size // step))
        if chance.random() < whole:
            step, count = 1, size
        first = chance.randint(0, size - (count - 1) * step - 1)
        dims.append((count, stride * step))
        lo += first * stride
        places = {place + number * stride * step for place in places for number in range(count)}
    width = {"f32": 4, "u8": 1}[dtype := chance.choice(("f32", "u8"))]
    lo += chance.randrange(8 // width) * width
    touched = hull(Space.HBM, dtype, tuple(dims))
    found = access(chance.random() < 0.5, lo + touched.low, lo + touched.high, touched.rows)
    return found, {lo + place + byte for place in places for byte in range(width)}


def test_boxes_of_one_array_meet_where_they_have_bytes_in_common() -> None:
    """Never told apart where they meet, and nearly always where they do not."""
    chance, missed, apart = random.Random(0), 0, 0
    for _ in range(20_000):
        (one, bytes_of_one), (other, bytes_of_other) = operand(chance), operand(chance)
        if bytes_of_one & bytes_of_other:
            assert meets(one, other)
        else:
            apart += 1
            missed += meets(one, other)
    assert missed < 0.02 * apart


def test_boxes_are_forgotten_for_what_is_met_by_all_that_has_bytes_of_them() -> None:
    chance, forgotten = random.Random(1), 0
    for _ in range(2_000):
        alloc = Alloc(Space.HBM, 0, 1000)
        (old, bytes_of_old), (new, _) = operand(chance), operand(chance, whole=0.7)
        new.write = True
        remember(alloc, old)
        remember(alloc, new)
        if old not in list(alloc.accesses):
            forgotten += 1
            others = [operand(chance) for _ in range(200)]
            assert all(meets(new, each) for each, bytes_of_each in others if bytes_of_old & bytes_of_each)
    assert forgotten > 100
