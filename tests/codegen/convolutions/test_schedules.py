"""Schedules of convolutions: values that fit the machine, print, and are chosen without emitting code."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from statistics import median

import pytest
from convolution_times import TIMING, accuracy, draw, regret
from generated import TRN1

from neuronx_cc.codegen.choose import Planner, choose
from neuronx_cc.codegen.convolutions.axis import axis_of, batch_axis
from neuronx_cc.codegen.convolutions.candidates import candidates
from neuronx_cc.codegen.convolutions.estimate import bound, estimate
from neuronx_cc.codegen.convolutions.problem import Home, Operand, Problem, contracted
from neuronx_cc.codegen.convolutions.schedule import footprint
from neuronx_cc.codegen.emission.tiles import room_of
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.epilogues.work import Epilogue, Step
from neuronx_cc.ir.hlo import WindowDim
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Tile, Timing
from neuronx_cc.ir.types import itemsize

SMALL = 3 * 10**8
"""Products that compile and simulate in a moment."""


def problem(side: int, inputs: int, outputs: int, taps: int, dtype: str = "f32", last: bool = False) -> Problem:
    """Two square images in HBM, with their features first or last, and "SAME" padding."""
    sizes, width = TIMING.sizes, itemsize(dtype)

    def lies(counts: tuple[int, ...], order: tuple[int, ...]) -> Operand:
        dims, stride = [Atom(1, 0)] * len(counts), width
        for dim in reversed(order):
            dims[dim] = Atom(counts[dim], stride)
            stride *= counts[dim]
        return Operand(Home.HBM, dtype, tuple(dims))

    order = (0, 2, 3, 1) if last else (0, 1, 2, 3)
    low = (taps - 1) // 2
    axis = axis_of(side, side, WindowDim(taps, pad_low=low, pad_high=taps - 1 - low))
    return Problem(
        axes=(batch_axis(2), axis, axis),
        kernel=(taps, taps),
        groups=1,
        batch_groups=1,
        outputs=outputs,
        features=contracted(inputs, sizes.rows)[0],
        pack=1,
        x=lies((2, inputs, side, side), order),
        w=lies((outputs, inputs, taps, taps), (2, 3, 1, 0) if last else order),
        out=lies((2, outputs, side, side), order),
        dtype=dtype,
        flags=(),
        moves_values=True,
        room=sizes.sbuf_bytes * 9 // 10,
    )


def grid() -> Iterator[Problem]:
    sizes = product((7, 37, 224), (1, 3, 129, 1000), (1, 24, 512), (1, 3, 7))
    for number, each in enumerate(sizes):
        if number % 5 == 0:
            yield problem(*each, ("f32", "bf16")[number % 2], number % 3 == 0)


def neighbours() -> Iterator[Problem]:
    """The grid in less and less room, alone and with sums that are added to images and to one value of each feature."""
    tile = Tile("f32", psum=True)
    step = Step("tensor_tensor", Stream.VECTOR, (tile,), (tile, tile._replace(psum=False)), ("add",))
    for each in grid():
        dims = [Atom(atom.size, atom.stride if at == 1 else 0) for at, atom in enumerate(each.out.dims)]
        images, features = each.out, replace(each.out, dims=tuple(dims))
        for share, arrays in product((1, 3, 7), ((), (images,), (images, features, images, images))):
            epilogue = Epilogue((step,) * len(arrays), 0) if arrays else None
            yield replace(each, room=each.room // share, arrays=arrays, epilogue=epilogue)


def test_candidates_fit_and_are_different() -> None:
    for each in neighbours():
        found = list(candidates(each, TIMING))
        assert found, each
        assert len(set(found)) == len(found)
        for schedule in found:
            assert room_of(footprint(each, schedule, TIMING.sizes)) <= each.room
            solved = each.under(schedule.fold)
            assert 0 < schedule.outputs <= solved.outputs
            assert all(0 < rows <= axis.rows for rows, axis in zip(schedule.rows, solved.axes, strict=True))


def test_the_chosen_one_takes_least_and_more_than_its_bound() -> None:
    for each in grid():
        times = [estimate(each, schedule, TIMING) for schedule in candidates(each, TIMING)]
        chosen = choose(each, TIMING)
        assert chosen is not None
        assert estimate(each, chosen, TIMING) == min(times)
        assert min(times) >= bound(each, TIMING)


def test_equal_problems_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(TIMING)
    first = planner.choose(problem(14, 64, 64, 3))
    monkeypatch.setattr("neuronx_cc.codegen.choose.choose", None)
    assert planner.choose(problem(14, 64, 64, 3)) is first


@pytest.mark.parametrize("share", [2, 4, 8])
def test_little_room(share: int) -> None:
    for sizes in [(224, 3, 64, 7), (14, 1000, 1000, 7), (56, 256, 512, 3)]:
        each = replace(problem(*sizes), room=TIMING.sizes.sbuf_bytes // share)
        chosen = choose(each, TIMING)
        assert chosen is not None
        assert room_of(footprint(each, chosen, TIMING.sizes)) <= each.room


def test_nothing_fits() -> None:
    assert choose(replace(problem(56, 512, 512, 3), room=256), TIMING) is None


def test_kernels_that_do_not_fit_are_streamed_or_cut() -> None:
    chosen = choose(problem(37, 1000, 512, 7), TIMING)
    assert chosen is not None
    assert chosen.streamed is not None or chosen.outputs < 512


def test_a_slower_dma_changes_plans() -> None:
    slow = Timing(TRN1.with_settings(["dma.bw_per_engine=1.7"]))
    assert any(choose(each, TIMING) != choose(each, slow) for each in grid())


def test_line() -> None:
    each = problem(56, 64, 128, 3, "bf16")
    chosen = choose(each, TIMING)
    assert chosen is not None
    line = chosen.line(each)
    assert line.startswith("2x56x56 of 64 features, 3x3 kernel -> 128 bf16: ")
    assert "\n" not in line


def near(count: int, seed: int, most: int) -> float:
    """The part of the chosen schedules whose estimate is within 40 % of the clock."""
    ratios = [found for drawn in draw(count, seed, most) if (found := accuracy(drawn)) is not None]
    return sum(0.6 <= ratio <= 1.4 for ratio in ratios) / len(ratios)


def test_estimates_are_near_the_clock() -> None:
    assert near(16, 1, SMALL) >= 0.8


@pytest.mark.slow
def test_the_chosen_schedule_is_near_the_best() -> None:
    regrets = [found for drawn in draw(4, 3, SMALL) if (found := regret(drawn)) is not None]
    assert median(regrets) <= 1.1
    assert max(regrets) <= 1.6
