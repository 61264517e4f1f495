"""Which ops share a kernel."""

from typing import Any

import numpy as np
from generated import check_function
from jax import lax


def kernels(function: Any, *inputs: Any) -> list[str]:
    return check_function(function, *inputs).program.kernels


def test_a_chain_joins_what_waits_for_a_later_row(random: np.random.Generator) -> None:
    """The differences come first, the rows that scale them after: one kernel of rows, one of the image."""

    def function(x: Any, mean: Any, variance: Any, scale: Any) -> Any:
        centred = x - mean[:, None]
        return centred * (lax.rsqrt(variance + 1e-3) * scale)[:, None]

    x, mean, scale = (random.standard_normal(dims, np.float32) for dims in ((96, 1000), (96,), (96,)))
    assert len(kernels(function, x, mean, scale * scale, scale)) == 2


def test_what_others_read_stays_apart(random: np.random.Generator) -> None:
    """The differences feed a contraction, which the rows wait for: they are computed before, once."""

    def function(x: Any, mean: Any, w: Any) -> Any:
        centred = x - mean[:, None]
        rows = lax.rsqrt((centred @ w).max(1) + 50)
        return centred * rows[:, None]

    x, mean, w = (random.standard_normal(dims, np.float32) for dims in ((96, 300), (96,), (300, 8)))
    names = [name.split(".")[1] for name in kernels(function, x, mean, w)]
    assert names.count("dot") == 1
    assert names.index("map") < names.index("dot")


def test_running_means_are_brought_up_to_date_apart(random: np.random.Generator) -> None:
    """What only becomes one value a row, with others that are read, is no part of the tiles of whole rows."""

    def function(x: Any, running: Any) -> Any:
        mean = x.mean(1)
        return x - mean[:, None], running * 0.9 + mean * 0.1

    x, running = (random.standard_normal(dims, np.float32) for dims in ((96, 1000), (96,)))
    assert len(kernels(function, x, running)) == 2


def test_given_rows_are_scaled_where_they_are_read(random: np.random.Generator) -> None:
    def function(x: Any, scale: Any) -> Any:
        return x * (x.sum(1) * (scale * 3 + 1))[:, None]

    assert len(kernels(function, *(random.standard_normal(dims, np.float32) for dims in ((96, 1000), (96,))))) == 1
