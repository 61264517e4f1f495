"""Arenas: no overlaps, alignment, and the earlier owners that a new allocation has to wait for."""

from hypothesis import given, settings
from hypothesis import strategies as st

from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.frames import Access
from neuronx_cc.codegen.emission.memory import Arena
from neuronx_cc.ir.isa.program import Space, Stream

CAPACITY = 4096
ALIGNMENT = 64


def touch(alloc: Alloc, part: int, count: int) -> None:
    """Write one part of ``alloc`` with the ``count``-th instruction of VECTOR."""
    size = (alloc.hi - alloc.lo) // alloc.parts
    place = (Stream.VECTOR, ())
    alloc.accesses.add(Access(Stream.VECTOR, True, part * size, (part + 1) * size, (0, 1), (), count, place, 0))


@settings(max_examples=150)
@given(data=st.data())
def test_random_lifetimes(data: st.DataObject) -> None:
    arena = Arena(Space.SBUF, CAPACITY, ALIGNMENT)
    live: list[Alloc] = []
    written = [0] * (CAPACITY // ALIGNMENT)
    """The last instruction that wrote each piece."""
    count = 0
    for _ in range(data.draw(st.integers(1, 40))):
        if live and data.draw(st.booleans()):
            alloc = live.pop(data.draw(st.integers(0, len(live) - 1)))
            size = (alloc.hi - alloc.lo) // alloc.parts // ALIGNMENT
            for part in data.draw(st.sets(st.integers(0, alloc.parts - 1))):
                count += 1
                touch(alloc, part, count)
                first = alloc.lo // ALIGNMENT + part * size
                written[first : first + size] = [count] * size
            arena.free(alloc)
            continue
        parts = data.draw(st.integers(1, 4))
        nbytes = parts * ALIGNMENT * data.draw(st.integers(1, 6))
        gap = arena.largest_gap()
        new = arena.allocate(nbytes, from_top=data.draw(st.booleans()))
        if new is None:
            assert gap < -(-nbytes // ALIGNMENT) * ALIGNMENT, "it would have fitted"
            continue
        assert new.hi - new.lo >= nbytes
        assert new.lo % ALIGNMENT == 0
        assert new.hi <= CAPACITY
        assert all(new.hi <= other.lo or other.hi <= new.lo for other in live)
        new.parts = parts
        # piece by piece, the last access to it is known
        for piece in range(new.lo // ALIGNMENT, new.hi // ALIGNMENT):
            at = piece * ALIGNMENT
            known = [each.counts[Stream.VECTOR, ()] for each in new.inherited if each.lo <= at < each.hi]
            assert max(known, default=0) >= written[piece]
        live.append(new)
    assert arena.used == sum(alloc.hi - alloc.lo for alloc in live)
    assert arena.peak >= max((alloc.hi for alloc in live), default=0)


def test_a_buffer_waits_for_its_own_bytes_only() -> None:
    arena = Arena(Space.SBUF, CAPACITY, ALIGNMENT)
    ring = arena.allocate(4 * ALIGNMENT, from_top=True)
    assert ring is not None
    ring.parts = 4
    for part in range(4):
        touch(ring, part, 10 + part)
    arena.free(ring)
    again = arena.allocate(2 * ALIGNMENT, from_top=True)
    assert again is not None
    assert [(each.lo - ring.lo, each.counts[Stream.VECTOR, ()]) for each in again.inherited] == [
        (2 * ALIGNMENT, 12),
        (3 * ALIGNMENT, 13),
    ]


def test_freed_bytes_are_reused_late() -> None:
    arena = Arena(Space.SBUF, 4 * ALIGNMENT, ALIGNMENT)
    places = []
    for _ in range(6):
        alloc = arena.allocate(ALIGNMENT)
        assert alloc is not None
        places.append(alloc.lo // ALIGNMENT)
        arena.free(alloc)
    assert places == [0, 1, 2, 3, 0, 1]


def test_hbm_is_reused_before_more_of_it_is_taken() -> None:
    arena, places = Arena(Space.HBM, CAPACITY, ALIGNMENT), []
    for _ in range(3):
        held = [arena.allocate(size * ALIGNMENT) for size in (1, 2, 1)]
        for alloc in held:
            assert alloc is not None
            places.append(alloc.lo // ALIGNMENT)
            arena.free(alloc)
    assert max(places) + 2 <= 6
    assert arena.peak <= 6 * ALIGNMENT, "twice what was ever held"
    peak = arena.peak
    fixed = arena.allocate(ALIGNMENT, unused=True)
    assert fixed is not None
    assert fixed.lo == peak, "what the program finds there at its start nothing has written"


def test_small_arrays_leave_large_gaps_in_hbm_alone() -> None:
    arena = Arena(Space.HBM, 1 << 20, ALIGNMENT)
    large, kept = arena.allocate(64 << 10), arena.allocate(64 << 10)
    assert large is not None
    assert kept is not None
    arena.free(large)
    small = arena.allocate(1 << 10)
    assert small is not None
    assert small.lo == kept.hi
    again = arena.allocate(60 << 10)
    assert again is not None
    assert again.lo == large.lo


def test_full() -> None:
    arena = Arena(Space.PSUM, 2048, 2048)
    assert arena.allocate(1) is not None
    assert arena.largest_gap() == 0
    assert arena.allocate(1) is None
    assert arena.allocate(1, from_top=True) is None
