"""Estimates of contractions beside the clock, and what choosing by them costs.

``tests/support/contraction_times.py`` draws and times them, as many as one likes as a script.
"""

from statistics import median

import numpy as np
import pytest
from contraction_times import TIMING, Drawn, accuracy, draw, planned, regret

from neuronx_cc.codegen.dots.estimate import bound

SMALL = 3 * 10**8
"""Products that compile and simulate in a moment."""


def near(count: int, seed: int, most: int) -> float:
    """The part of the chosen schedules whose estimate is within 20 % of the clock."""
    ratios = [found for drawn in draw(count, seed, most) if (found := accuracy(drawn)) is not None]
    return sum(0.8 <= ratio <= 1.2 for ratio in ratios) / len(ratios)


def regrets(count: int, seed: int, most: int) -> list[float]:
    return [found for drawn in draw(count, seed, most) if (found := regret(drawn)) is not None]


def test_estimates_are_near_the_clock() -> None:
    assert near(30, 1, SMALL) >= 0.8


@pytest.mark.slow
def test_estimates_of_large_contractions_are_near_the_clock() -> None:
    assert near(100, 2, 10**10) >= 0.9


def test_the_chosen_schedule_is_near_the_best() -> None:
    assert median(regrets(5, 3, SMALL)) <= 1.05


@pytest.mark.slow
def test_chosen_schedules_of_large_contractions_are_near_the_best() -> None:
    found = regrets(25, 4, 10**10)
    assert median(found) <= 1.05
    assert sum(each > 1.2 for each in found) <= 2


@pytest.mark.parametrize(("m", "k", "n"), [(1500, 3, 3000), (1000, 1, 2500), (2050, 64, 2600), (4096, 64, 3000)])
def test_columns_that_tiles_do_not_divide_rotate_buffers_too(m: int, k: int, n: int) -> None:
    """The rest of a row took the buffer that its full tiles were being stored from."""
    found = planned(Drawn("km,kn", m, k, n, np.float32).text)
    assert found is not None
    assert found[2] <= 1.4 * bound(found[0], TIMING)
