"""Schedules of running folds: tiles fit the room that is left, and none is much faster than the one that is chosen."""

from typing import Any

import jax
import numpy as np
import pytest
from generated import TRN1
from jax import lax

import neuronx_cc
from neuronx_cc.codegen.reductions import scan_kernel
from neuronx_cc.codegen.reductions.scan_plan import Problem, Schedule, candidates, choose, estimate, nbytes
from neuronx_cc.ir.isa.timing import Timing

TIMING = Timing(TRN1)
SIZES = [1, 2, 127, 128, 129, 511, 513, 4097, 60_013]


@pytest.mark.parametrize("room", [512, 1024, 5000, 24_576, 180_000])
@pytest.mark.parametrize("dtype", ["f32", "s32", "u8"])
def test_tiles_fit(dtype: str, room: int) -> None:
    for rows in SIZES:
        for length in SIZES:
            problem = Problem(rows, length, dtype, "add", room)
            found = list(candidates(problem, TIMING))
            assert all(nbytes(problem, schedule) <= room for schedule in found)
            assert all(estimate(problem, schedule, TIMING) > 0 for schedule in found)
            assert all(schedule.blocks * rows <= TIMING.sizes.partitions for schedule in found)
            assert (choose(problem, TIMING) in found) if found else room == 512, (rows, length)


@pytest.mark.parametrize("dims", [(1, 60_013), (3, 9001), (63, 3000), (130, 3000), (4000, 12), (1000, 400)], ids=str)
def test_no_other_schedule_is_much_faster(dims: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(dims, np.float32)
    asked: list[Problem] = []

    def measured(forced: Schedule | None) -> float:
        def chosen(problem: Problem, timing: Timing) -> Schedule | None:
            asked.append(problem)
            return forced or choose(problem, timing)

        monkeypatch.setattr(scan_kernel, "choose", chosen)
        lowered: Any = jax.jit(lambda x: lax.cumsum(x, 1)).lower(x)
        return float(neuronx_cc.compile(lowered).run([], timing_only=True).report.time_ns)

    taken = measured(None)
    assert taken <= 1.25 * min(measured(schedule) for schedule in candidates(asked[0], TIMING))
