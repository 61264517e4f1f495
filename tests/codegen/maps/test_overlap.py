"""How tiles of a map follow each other, without code that does so."""

from dataclasses import replace

import pytest
from generated import TRN1

from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.overlap import Tiles, overlap_of
from neuronx_cc.ir.isa.timing import Timing

TIMING = Timing(TRN1)
SHORT = Tiles(
    Kernel(0, [], (128, 64, 256)), ((0, 8),), (64, 256), (8, 256), (False, False), 2, 1024, True, *(8192,) * 7
)


@pytest.mark.parametrize(("tiles", "buffers"), [(1, 1), (2, 2), (4, 2), (6, 3), (100, 3)])
def test_as_many_buffers_as_fit(tiles: int, buffers: int) -> None:
    found = overlap_of(replace(SHORT, room=tiles * SHORT.aligned), TIMING)
    assert max(found.buffers, found.loading) == buffers


def test_a_few_tiles_are_interleaved() -> None:
    few = replace(SHORT, sizes=(32, 256), room=100 * SHORT.aligned)
    assert overlap_of(few, TIMING).interleaved
    assert not overlap_of(replace(few, room=7 * SHORT.aligned), TIMING).interleaved


def test_tiles_that_wait_for_their_rows_are_staggered() -> None:
    rows = replace(SHORT, kernel=Kernel(0, [], (128, 64, 256), reduced=1), reduced=(False, True), ops=8, streamed=256)
    found = overlap_of(replace(rows, room=20 * SHORT.aligned), TIMING)
    assert found.under_way > 1
    assert overlap_of(replace(rows, room=20 * SHORT.aligned, independent=False), TIMING).under_way == 1


def test_the_more_room_the_more_tiles_are_under_way() -> None:
    rows = replace(SHORT, kernel=Kernel(0, [], (128, 64, 256), reduced=1), reduced=(False, True), ops=8, streamed=256)
    found = [overlap_of(replace(rows, room=count * SHORT.aligned), TIMING) for count in (1, 16, 24, 60)]
    assert [each.under_way for each in found] == sorted(each.under_way for each in found)
    assert found[0].under_way == 1
    assert (found[-1].under_way, found[-1].buffers, found[-1].storing) == (4, 2, 3)


def test_dims_around_the_rows_make_no_difference() -> None:
    nested = replace(
        SHORT,
        kernel=Kernel(0, [], (128, 12, 8, 1024), reduced=1),
        loops=((0, 1), (1, 1)),
        sizes=(12, 8, 1024),
        steps=(1, 1, 1024),
        reduced=(False, False, True),
        ops=8,
        streamed=256,
        room=100 * SHORT.aligned,
    )
    flat = replace(nested, loops=((0, 1),), sizes=(96, 1024), steps=(1, 1024), reduced=(False, True))
    assert overlap_of(nested, TIMING) == overlap_of(flat, TIMING)
