"""Collections of garbage around a compilation."""

import gc

import pytest

from neuronx_cc.ir import collector


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.me = self


def alive() -> int:
    return sum(type(thing) is Cycle for thing in gc.get_objects())


@pytest.fixture(autouse=True)
def nothing_pending(monkeypatch):
    monkeypatch.setattr(collector, "_made", 0)
    gc.collect()


def test_no_collections_inside_and_the_state_before_after_it():
    with collector.paused():
        assert not gc.isenabled()
        with collector.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_disabled_collector_stays_disabled():
    gc.disable()
    try:
        with collector.paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_made_inside_is_not_walked_by_a_young_collection():
    with collector.paused():
        Cycle()
    gc.collect(1)
    assert alive() == 1
    gc.collect()
    assert alive() == 0


def test_garbage_of_many_pauses_is_collected(monkeypatch):
    monkeypatch.setattr(collector, "PATIENCE", 3000)
    most = 0
    for _ in range(8):
        with collector.paused():
            for _ in range(1000):
                Cycle()
        most = max(most, alive())
    assert 1000 <= most <= 4000


def test_what_the_user_froze_stays_frozen():
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with collector.paused():
            Cycle()
        assert gc.get_freeze_count() == frozen > 0
    finally:
        gc.unfreeze()


def test_collections_of_others_count():
    with collector.paused():
        for _ in range(1000):
            Cycle()
    assert collector._made >= 1000
    gc.collect()
    assert collector._made == 0
