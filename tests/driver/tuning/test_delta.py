"""Delta debugging: minimal sets, within a bound of questions."""

from collections.abc import Sequence

import numpy as np
import pytest

from neuronx_cc.driver.tuning.delta import smallest


@pytest.mark.parametrize("seed", range(40))
def test_what_is_found_holds_and_loses_it_without_any_item(seed: int) -> None:
    random = np.random.default_rng(seed)
    items = list(map(int, random.permutation(int(random.integers(1, 60)))))
    wanted = {int(item) for item in random.choice(items, min(len(items), int(random.integers(1, 4))), replace=False)}

    def holds(part: Sequence[int]) -> bool:
        return wanted <= set(part)

    assert set(smallest(items, holds, 10_000)) == wanted


def test_a_pair_among_many_takes_few_questions() -> None:
    asked = []

    def holds(part: Sequence[int]) -> bool:
        asked.append(part)
        return {17, 91} <= set(part)

    assert set(smallest(range(128), holds, 1000)) == {17, 91}
    assert len(asked) < 100


def test_where_questions_run_out_what_holds_is_kept() -> None:
    asked = []

    def holds(part: Sequence[int]) -> bool:
        asked.append(part)
        return {3, 60} <= set(part)

    found = smallest(range(64), holds, 7)
    assert len(asked) == 7
    assert {3, 60} <= set(found)
