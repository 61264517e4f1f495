"""What estimates of few rows say beside the clock, so that the choices between schedules rest on something."""

import math
from collections import defaultdict
from typing import Any

import pytest

import neuronx_cc
from neuronx_cc.codegen import choose
from neuronx_cc.codegen.dots import placement
from neuronx_cc.codegen.dots.problem import Problem
from neuronx_cc.codegen.dots.schedule import Schedule, Sums
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.passes import thin_dots

SHAPES = ((1, 512, 1024), (3, 768, 300), (4, 512, 512), (8, 1024, 256), (16, 2048, 768), (2, 300, 2048))
TYPES: tuple[dict[str, Any], ...] = (
    {"auto_cast": "none"},
    {"auto_cast": "matmult"},
    {"auto_cast": "matmult", "auto_cast_type": "tf32"},
)
MEAN, LEAST, MOST = 0.04, 0.9, 1.1
"""How far the geometric mean may be from 1, and each estimate of its time, where k comes in blocks to open banks."""


def text(m: int, k: int, n: int) -> str:
    """HLO of one product."""
    return f"""HloModule product
ENTRY main {{
  x = f32[{m},{k}] parameter(0)
  w = f32[{k},{n}] parameter(1)
  ROOT dot = f32[{m},{n}] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}"""


def test_open_banks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All schedules of that kind, of both ways in which lhs may come."""
    wanted, found = {"statement": 0, "candidate": 0}, list[tuple[Schedule, float, int]]()

    def chosen(problem: Problem, timing: Timing, level: int = 2) -> Schedule:
        family = choose.FAMILIES[type(problem)]
        candidates = list(family.candidates(problem, timing))
        schedule = candidates[min(wanted["candidate"], len(candidates) - 1)]
        found.append((schedule, family.estimate(problem, schedule, timing), len(candidates)))
        return schedule

    monkeypatch.setattr(choose, "choose", chosen)
    monkeypatch.setattr(choose.Planner, "easiest", lambda _, problems: problems[wanted["statement"] % len(problems)])
    monkeypatch.setattr(placement, "home_across", lambda *_: None)
    monkeypatch.setattr(placement, "copies_of", lambda *_: ((), 0.0))
    ratios = defaultdict(list)
    for number, (shape, options) in enumerate((shape, options) for shape in SHAPES for options in TYPES):
        for statement in (0, 1):
            count = 8
            for candidate in range(number % 3, count, 3):
                wanted |= {"statement": statement, "candidate": candidate}
                found.clear()
                program = neuronx_cc.compile(text(*shape), **options)
                schedule, estimate, count = found[-1]
                if candidate < count and schedule.sums is Sums.BANKS:
                    time = program.run([], timing_only=True, check_races=False).report.kernel_ns
                    ratios[statement].append((estimate / time, shape, options, candidate))
    for rows in ratios.values():
        values = [ratio for ratio, *_ in rows]
        assert len(values) > 10
        assert abs(math.exp(sum(map(math.log, values)) / len(values)) - 1) < MEAN
        assert not [row for row in rows if not LEAST < row[0] < MOST]


BATCHES = ((1000, 64, 32, 16), (2048, 24, 6, 64), (256, 48, 8, 48), (144, 32, 32, 16), (100, 16, 12, 64))
LEAST_OF_BATCHES, MOST_OF_BATCHES = 0.6, 1.3


@pytest.mark.parametrize("sizes", BATCHES)
def test_batches(sizes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of small matrices: loops take several of them in an iteration."""
    found, choosing = list[float](), choose.Planner.choose

    def chosen(planner: choose.Planner, problem: Problem) -> Any:
        found.append(planner.time(problem))
        return choosing(planner, problem)

    monkeypatch.setattr(choose.Planner, "choose", chosen)
    monkeypatch.setattr(thin_dots, "_is_narrow", lambda *_: False)
    (b, m, k, n), dims = sizes, "lhs_contracting_dims={1}, rhs_contracting_dims={1}"
    text = f"""HloModule products
ENTRY main {{
  x = f32[{b},{k},{m}] parameter(0)
  y = f32[{b},{k},{n}] parameter(1)
  ROOT dot = f32[{b},{m},{n}] dot(x, y), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, {dims}
}}"""
    program = neuronx_cc.compile(text, auto_cast="none")
    time = program.run([], timing_only=True, check_races=False).report.kernel_ns
    assert LEAST_OF_BATCHES < found[-1] / time < MOST_OF_BATCHES
