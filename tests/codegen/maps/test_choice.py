"""What choosing the space and the partitions of maps by estimate costs.

``tests/support/map_times.py`` draws and times them, as many as one likes as a script.
"""

from statistics import median

import pytest
from map_times import draw, regret


def found(count: int, seed: int, largest: int) -> list[float]:
    return [regret(drawn) for drawn in draw(count, seed, largest)]


def test_the_chosen_plan_is_near_the_best() -> None:
    regrets = found(12, 4, 5 * 10**5)
    assert median(regrets) <= 1.01
    assert sum(each > 1.15 for each in regrets) <= 1


@pytest.mark.slow
def test_chosen_plans_of_many_are_near_the_best() -> None:
    regrets = found(100, 1, 3 * 10**6)
    assert sum(each > 1.15 for each in regrets) <= 3
    assert max(regrets) <= 1.6
