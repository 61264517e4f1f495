"""Schedules of contractions: values that fit the machine, print, and are chosen without emitting code."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from generated import TRN1

from neuronx_cc.codegen.choose import Planner, choose
from neuronx_cc.codegen.dots.candidates import candidates
from neuronx_cc.codegen.dots.estimate import bound, estimate
from neuronx_cc.codegen.dots.problem import Home, Operand, Problem, Result, segments_of
from neuronx_cc.codegen.dots.schedule import Leaves, Schedule, Sums, Way, footprint
from neuronx_cc.codegen.emission.tiles import room_of
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

TIMING = Timing(TRN1)
LIMITS = (1, 2, 127, 128, 129, 511, 512, 513, 1021, 4096, 12_288)


def problem(m: int, k: int, n: int, dtype: str = "f32", form: str = "mk,kn", timing: Timing = TIMING) -> Problem:
    """A contraction of two matrices in HBM, each with the last letter's dim contiguous."""
    sizes, width = {"m": m, "k": k, "n": n}, itemsize(dtype)

    def atom(letters: str, letter: str) -> Atom:
        near = letters[-1] == letter
        return Atom(sizes[letter], width if near else width * sizes[letters[-1]])

    def operand(name: str, letters: str, free: str) -> Operand:
        return Operand(name, Home.HBM, dtype, dtype, (), (atom(letters, free),), (atom(letters, "k"),))

    left, right = form.split(",")
    return Problem(
        b=(),
        m=(m,),
        n=(n,),
        k=(k,),
        m_dim=0,
        n_dim=0,
        k_dim=0,
        segments=segments_of(k, timing.sizes),
        dtype=dtype,
        flags=(),
        moves_values=True,
        lhs=operand("lhs", left, "m"),
        rhs=operand("rhs", right, "n"),
        out=Result(False, dtype, (), (atom("mn", "m"),), (atom("mn", "n"),)),
        epilogue=None,
        bias=False,
        room=timing.sizes.sbuf_bytes,
    )


def grid(values: Sequence[int] = LIMITS) -> list[Problem]:
    sizes = [each for number, each in enumerate(product(values, values, values)) if number % 17 == 0]
    return [problem(*each, dtype, form) for each in sizes for dtype, form in (("f32", "mk,kn"), ("bf16", "km,nk"))]


def test_candidates_fit_and_are_different() -> None:
    for each in grid():
        found = list(candidates(each, TIMING))
        assert found, each
        assert len(set(found)) == len(found)
        for schedule in found:
            assert room_of(footprint(each, schedule, TIMING.sizes)) <= each.room
            assert 0 < schedule.lhs.rows <= each.m_tiled
            assert 0 < schedule.rhs.rows <= each.n_tiled
            assert (schedule.boxes == each.all_chunks) == (schedule.sums is Sums.PSUM)


def test_candidates_with_columns_on_the_partitions_fit() -> None:
    for rows, terms, columns in ((1, 128, 128), (1, 4096, 11_008), (16, 1021, 2048), (64, 512, 512)):
        posed = problem(rows, terms, columns, "bf16")
        posed = replace(posed, out=replace(posed.out, on_chip=True, across=128))
        found = list(candidates(posed, TIMING))
        assert found, posed
        for schedule in found:
            assert schedule.sums is Sums.BANKS
            assert room_of(footprint(posed, schedule, TIMING.sizes)) <= posed.room


def test_the_chosen_one_takes_least() -> None:
    for each in grid((1, 128, 513, 4096)):
        times = [estimate(each, schedule, TIMING) for schedule in candidates(each, TIMING)]
        chosen = choose(each, TIMING)
        assert chosen is not None
        assert estimate(each, chosen, TIMING) == min(times)


def test_quick_compilation_takes_a_good_one() -> None:
    good = problem(1024, 1024, 1024, "bf16", "km,kn")
    first = choose(good, TIMING, 1)
    assert first is not None
    assert first in candidates(good, TIMING)
    assert estimate(good, first, TIMING) <= 2 * bound(good, TIMING)


def test_equal_problems_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(TIMING)
    first = planner.choose(problem(64, 256, 32))
    monkeypatch.setattr("neuronx_cc.codegen.choose.choose", None)
    assert planner.choose(problem(64, 256, 32)) is first


def test_rooms_of_one_schedule_are_planned_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels find ever more or less room, in which small contractions have one schedule: it fits each of them."""
    planned: list[int] = []

    def counted(each: Problem, timing: Timing, level: int) -> Schedule | None:
        planned.append(each.room)
        return choose(each, timing, level)

    monkeypatch.setattr("neuronx_cc.codegen.choose.choose", counted)
    whole = TIMING.sizes.sbuf_bytes
    for step in (whole // 64, -whole // 64):
        planner, small, large = Planner(TIMING), problem(64, 256, 32), problem(512, 4096, 4096)
        for room in range(whole // 2, whole, abs(step))[:: step // abs(step)]:
            for each in (replace(small, room=room), replace(large, room=room)):
                found = planner.choose(each)
                assert found is not None
                assert room_of(footprint(each, found, TIMING.sizes)) <= room
            assert planner.choose(replace(small, room=room)) == choose(replace(small, room=room), TIMING)
        assert len(planned) <= 32 + 2 + 4, "the small one four times at most, the large one wherever rooms differ"
        planned.clear()


def test_nothing_fits() -> None:
    assert choose(replace(problem(512, 4096, 512), room=256), TIMING) is None


@pytest.mark.parametrize("share", [1, 2, 4, 8])
def test_little_room(share: int) -> None:
    for m, k, n in [(1, 50_000, 1), (4096, 4096, 4096), (129, 20_001, 513)]:
        each = replace(problem(m, k, n), room=TIMING.sizes.sbuf_bytes // share)
        chosen = choose(each, TIMING)
        assert chosen is not None
        assert room_of(footprint(each, chosen, TIMING.sizes)) <= each.room


def test_a_slower_dma_changes_plans() -> None:
    slow = Timing(TRN1.with_settings(["dma.bw_per_engine=1.7"]))
    assert any(choose(each, TIMING) != choose(each, slow) for each in grid((128, 513, 1021, 4096, 12_288)))


def test_line() -> None:
    each = problem(1024, 1024, 512, "bf16", "mk,kn")
    chosen = choose(each, TIMING)
    assert isinstance(chosen, Schedule)
    line = chosen.line(each)
    assert line.startswith("m 1024 n 512 k 1024p bf16: ")
    assert all(word in line for word in ("transposed", "loaded", "summed in PSUM"))
    assert "\n" not in line


def test_ways() -> None:
    each = problem(256, 1024, 512, "bf16", "mk,kn")
    assert {schedule.lhs.ways for schedule in candidates(each, TIMING)} == {(Way.TRANSPOSED,)}
    assert {schedule.rhs.ways for schedule in candidates(each, TIMING)} == {(Way.LOADED,)}
    assert {schedule.leaves for schedule in candidates(each, TIMING)} == {Leaves.TILES}


@pytest.mark.parametrize("room", range(60_000, 180_000, 8_000))
@pytest.mark.parametrize(("tiles", "k", "n"), [(12, 1024, 4096), (12, 768, 3072), (12, 512, 4096), (32, 512, 8192)])
def test_rows_beside_a_block_leave_room_for_it(tiles: int, k: int, n: int, room: int) -> None:
    """What the epilogue reads with each column of a block counts before the block's size is fixed."""
    each = problem(128 * tiles, k, n, "bf16", "mk,kn")
    lhs = replace(each.lhs, free=(Atom(tiles, 256 * k), Atom(128, 2 * k)))
    out = replace(each.out, m=(Atom(tiles, 256 * n), Atom(128, 2 * n)))
    each = replace(each, m=(tiles, 128), m_dim=1, lhs=lhs, out=out, room=room)
    row = Result(False, "f32", (), (Atom(tiles, 0), Atom(128, 0)), (Atom(n, 4),))
    without, beside = map(Planner(TIMING).time, (each, replace(each, arrays=(row,))))
    assert beside < 1.25 * without
