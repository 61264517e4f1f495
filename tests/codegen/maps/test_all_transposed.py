"""Maps whose operands all lie across their result."""

from typing import Any

import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of

from neuronx_cc.runtime.clock_regions import simulate


def both(x: Any, y: Any) -> Any:
    return x.swapaxes(-1, -2) + y.swapaxes(-1, -2)


def one(x: Any, y: Any) -> Any:
    return x.swapaxes(-1, -2) + y


@pytest.mark.parametrize("dims", [(2, 129, 1000), (3, 255, 255), (600, 500)], ids=str)
def test_results_are_stored_in_runs(dims: tuple[int, ...], random: np.random.Generator) -> None:
    x, y = (random.standard_normal(dims).astype(np.float32) for _ in range(2))
    check_function(both, x, y)
    times = [
        simulate(compile_text(text_of(*each)).program, TRN1).total
        for each in ((both, x, y), (one, x, y.swapaxes(-1, -2)))
    ]
    assert times[0] < 1.5 * times[1]
