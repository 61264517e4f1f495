"""Arenas: no overlaps, alignment, and the earlier owners that a new allocation has to wait for."""

from hypothesis import given, settings
from hypothesis import strategies as st

from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.frames import Access
from neuronx_cc.codegen.emission.memory import Arena
from neuronx_cc.ir.isa.program import Space, Stream

CAPACITY = 4096
ALIGNMENT = 64


def touch(alloc: Alloc, count: int) -> None:
    """Write all of ``alloc`` with the ``count``-th instruction of VECTOR."""
    alloc.accesses.add(Access(Stream.VECTOR, True, 0, alloc.hi - alloc.lo, (0, 1), (), count, (Stream.VECTOR, ()), 0))


@settings(max_examples=150)
@given(data=st.data())
def test_random_lifetimes(data: st.DataObject) -> None:
    arena = Arena(Space.SBUF, CAPACITY, ALIGNMENT)
    live: list[Alloc] = []
    owners: list[Alloc] = []
    for _ in range(data.draw(st.integers(1, 40))):
        if live and data.draw(st.booleans()):
            alloc = live.pop(data.draw(st.integers(0, len(live) - 1)))
            if data.draw(st.integers(0, 3)):
                owners.append(alloc)
                touch(alloc, len(owners))
            arena.free(alloc)
            continue
        nbytes = data.draw(st.integers(1, 1500))
        gap = arena.largest_gap()
        new = arena.allocate(nbytes, from_top=data.draw(st.booleans()))
        if new is None:
            assert gap < -(-nbytes // ALIGNMENT) * ALIGNMENT, "it would have fitted"
            continue
        assert new.hi - new.lo >= nbytes
        assert new.lo % ALIGNMENT == 0
        assert new.hi <= CAPACITY
        assert all(new.hi <= other.lo or other.hi <= new.lo for other in live)
        # byte by byte, the last owner that was accessed is known
        for byte in range(new.lo, new.hi, ALIGNMENT):
            last = next((old for old in reversed(owners) if old.lo <= byte < old.hi), None)
            assert last is None or new.inherited[Stream.VECTOR, ()] >= last.accesses.last()[Stream.VECTOR, ()]
        live.append(new)
    assert arena.used == sum(alloc.hi - alloc.lo for alloc in live)
    assert arena.peak >= max((alloc.hi for alloc in live), default=0)


def test_freed_bytes_are_reused_late() -> None:
    arena = Arena(Space.SBUF, 4 * ALIGNMENT, ALIGNMENT)
    places = []
    for _ in range(6):
        alloc = arena.allocate(ALIGNMENT)
        assert alloc is not None
        places.append(alloc.lo // ALIGNMENT)
        arena.free(alloc)
    assert places == [0, 1, 2, 3, 0, 1]


def test_full() -> None:
    arena = Arena(Space.PSUM, 2048, 2048)
    assert arena.allocate(1) is not None
    assert arena.largest_gap() == 0
    assert arena.allocate(1) is None
    assert arena.allocate(1, from_top=True) is None
