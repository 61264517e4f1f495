"""Estimates of contractions beside the clock, and what choosing by them costs.

``tests/support/contraction_times.py`` draws and times them, as many as one likes as a script.
"""

from statistics import median

import pytest
from contraction_times import accuracy, draw, regret

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
