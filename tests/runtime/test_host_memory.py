"""The host's memory behind simulated memories: checked before it is taken, given back by idle programs."""

import numpy as np
import pytest

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.runtime import host_memory
from neuronx_cc.runtime.memory import Memory


@pytest.fixture
def kept(monkeypatch):
    made = host_memory.Kept()
    monkeypatch.setattr(host_memory, "KEPT", made)
    return made


def test_more_than_the_host_has_is_refused(kept):
    with pytest.raises(RunError, match=r"a large program needs 1048576.00 GiB of the host's memory") as error:
        host_memory.require(1 << 50, lambda: "a large program")
    assert error.value.code == "EMEM901"
    host_memory.require(4096, lambda: "a small program")


def test_idle_memories_are_emptied_before_refusing(kept, monkeypatch):
    free = [1 << 20, 8 << 20]
    monkeypatch.setattr(host_memory, "available_bytes", lambda: free.pop(0))
    memory = Memory(4 << 20)
    kept.put(memory)
    host_memory.require(6 << 20, lambda: "a program")
    assert memory not in kept


def test_pages_that_are_not_written_cost_nothing():
    memory = Memory(1 << 42)
    memory.bytes[Space.HBM][1 << 41] = 7
    assert memory.array(1 << 41, 1, "u8", (1,))[0] == 7


def test_oldest_memories_lose_their_pages_but_not_what_is_fixed(kept, monkeypatch):
    monkeypatch.setattr(host_memory, "KEPT_BYTES", 5 << 20)
    memories = [Memory(2 << 20, fixed=[(0, 65536)]) for _ in range(3)]
    for memory in memories:
        memory.bytes[Space.HBM][:] = 5
        kept.put(memory)
    assert [memory in kept for memory in memories] == [False, True, True]
    first, second = memories[0].bytes[Space.HBM], memories[1].bytes[Space.HBM]
    assert np.all(first[:65536] == 5)
    assert not np.any(first[65536:] == 5)
    assert np.all(second == 5)
    assert kept.take(memories[1])
    assert not kept.take(memories[0])


def test_pages_of_memories_that_are_gone_are_used_again():
    """Fresh pages made first runs of small programs slow. What a view still shows belongs to nobody else."""
    spares = host_memory.Spares(1)
    first, second = spares.take(2 << 20), spares.take(2 << 20)
    places = [array.__array_interface__["data"][0] for array in (first, second)]
    assert places[0] != places[1]
    view = first[100:200].reshape(2, 50).view(np.uint16)
    del first
    third = spares.take(2 << 20)
    assert third.__array_interface__["data"][0] not in places
    del view
    again = spares.take(2 << 20)
    assert again.__array_interface__["data"][0] == places[0]
    del second, third, again
    assert len(spares._blocks) == 1
