"""Every transcendental function stays within 2 units in the last place (``benchmarks/accuracy.py``, sampled)."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

_PATH = Path(__file__).parents[2] / "benchmarks" / "accuracy.py"
_SPEC = importlib.util.spec_from_file_location("accuracy", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
accuracy = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(accuracy)


@pytest.mark.parametrize("opcode", sorted(accuracy.FUNCTIONS))
def test_within_two_units(opcode: str) -> None:
    errors, arguments = accuracy.measure(opcode, 20_000)
    worst = int(np.argmax(errors))
    assert errors[worst] <= accuracy.GOAL, [x[worst] for x in arguments]


def test_units_count_rounding_overflow_and_nan() -> None:
    tiny = 2.0**-149
    exact = np.array([1.0, 1.0 + 2.0**-24, 3 * tiny, 1e39, np.nan, 0.0])
    got = np.array([1 + 2.0**-23, 1.0, 4 * tiny, np.inf, np.nan, -0.0], np.float32)
    np.testing.assert_allclose(accuracy.units(got, exact), [1, 0.5, 1, 0, 0, 0])
    assert accuracy.units(np.array([np.nan], np.float32), np.array([1.0]))[0] == np.inf
