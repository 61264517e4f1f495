"""Kernels of every kind whose operands are views, many of what lies on chip: a few of those that the soak draws."""

import pytest
import soak_kinds
from view_readers import READERS, reader

ROUND = len(READERS)


@pytest.mark.parametrize("seed", range(ROUND), ids=reader)
def test_each_kind_of_reader(seed: int) -> None:
    assert soak_kinds.judge("views", seed) == ("right", "")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000 * ROUND, 1020 * ROUND))
def test_more(seed: int) -> None:
    outcome, detail = soak_kinds.judge("views", seed)
    assert outcome in ("right", "refused"), detail
