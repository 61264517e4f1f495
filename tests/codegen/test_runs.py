"""Map kernels move arrays between HBM and the partitions in runs, not element by element."""

from typing import Any

import jax
import numpy as np
import pytest
from generated import check_function, compile_text, text_of

from neuronx_cc.runtime.executable import Executable


def halves(x: Any) -> Any:
    """Odd and even rows of an array of short rows."""
    return x[1::2] * x[::2]


def windows_and_rows(x: Any, kernel: Any, gain: Any) -> Any:
    """A value with its features on the partitions, and one with its rows there."""
    y = jax.lax.conv_general_dilated(
        x[None], kernel, (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=x.shape[-1]
    )[0]
    return (y * gain) * (x / jax.numpy.sum(x * x, axis=-1, keepdims=True)) + y


CASES = [
    (halves, [(64, 1536, 16)], [(12, 256, 3)], 0.2e-3),
    (windows_and_rows, [(128, 1536), (4, 1, 1536), (1536,)], [(40, 256), (4, 1, 256), (256,)], 0.4e-3),
]
"""Function, large and small dims of its arguments, seconds on the device."""


@pytest.mark.parametrize(("function", "large", "small", "limit"), CASES, ids=lambda item: getattr(item, "__name__", ""))
def test_runs(function: Any, large: Any, small: Any, limit: float, random: np.random.Generator) -> None:
    compiled = compile_text(text_of(function, *(np.zeros(dims, np.float32) for dims in large)))
    report = Executable.from_program(compiled.program, compiled.constants).run([], timing_only=True).report
    assert report.time_ns * 1e-9 < limit
    check_function(function, *(random.standard_normal(dims).astype(np.float32) for dims in small))
