"""Transfers of several queues share the DMA engines."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronx_cc.runtime.transfers import Issue, Transfer, Transfers

NOW = Issue(0.0, 0.0, None, 0)
NODE: Any = None


def transfer(queue: int, work: float, posted: float = 0.0, reads: float = 0.0, writes: float = 0.0) -> Transfer:
    return Transfer(queue, NODE, NOW, posted, work, reads, writes)


def serve(*posted: Transfer) -> list[tuple[Transfer, float]]:
    """All of them, in the order in which they end, and when they do."""
    transfers, ended = Transfers(), []
    for each in sorted(posted, key=lambda each: each.posted):
        ended += transfers.advance(each.posted)
        transfers.post(each)
    while (end := transfers.next_end()) is not None:
        ended += transfers.advance(end)
    return ended


def test_a_short_transfer_is_not_kept_by_a_long_one_of_another_queue() -> None:
    long, short = transfer(0, 1000.0), transfer(1, 10.0, posted=100.0)
    assert [(each is short, end) for each, end in serve(long, short)] == [(True, 120.0), (False, 1010.0)]


def test_a_queue_serves_one_after_the_other() -> None:
    first, second, other = transfer(0, 100.0), transfer(0, 10.0), transfer(1, 300.0)
    assert [end for _, end in serve(first, second, other)] == [200.0, 220.0, 410.0]
    assert (first.begun, second.begun, other.begun) == (0.0, 200.0, 0.0)


def test_reads_alone_are_slower_than_reads_beside_writes() -> None:
    ((_, alone),) = serve(transfer(0, 100.0, reads=1.1))
    both = serve(transfer(0, 100.0, reads=1.1), transfer(1, 100.0, writes=1.1))
    assert alone == pytest.approx(110.0)
    assert [end for _, end in both] == pytest.approx([200.0, 200.0])
    reads = serve(transfer(0, 100.0, reads=1.1), transfer(1, 100.0, reads=1.1))
    assert [end for _, end in reads] == pytest.approx([220.0, 220.0])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.0, 1e4), st.floats(0.0, 1e4)), min_size=1, max_size=30))
def test_the_engines_never_idle_while_there_is_work(drawn: list[tuple[int, float, float]]) -> None:
    posted = [transfer(queue, work, at) for queue, work, at in drawn]
    work = {id(each): each.work for each in posted}
    ended = serve(*posted)
    assert len(ended) == len(posted)
    assert [end for _, end in ended] == sorted(end for _, end in ended)
    busy = 0.0
    for each in sorted(posted, key=lambda each: each.posted):
        busy = max(busy, each.posted) + work[id(each)]
    assert ended[-1][1] == pytest.approx(busy, abs=1e-3)
    for each, end in ended:
        assert each.begun >= each.posted - 1e-6
        assert end - each.begun >= work[id(each)] - 1e-3
    for queue in range(5):
        order = [each.posted for each, _ in ended if each.stream == queue]
        assert order == sorted(order)
