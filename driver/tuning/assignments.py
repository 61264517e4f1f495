"""Which type each group of ops should have: the fastest under a bound of error, solved exactly.

Squared errors of casts of different values add up, so does, nearly, the time that they save: a knapsack with one
choice a group. scipy's mixed-integer solver (HiGHS) finds the least time under each bound.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]

Assignment = tuple[str, ...]
"""A type for each group."""


def fastest(
    errors: Sequence[Mapping[str, float]], times: Sequence[Mapping[str, float]], tolerance: float
) -> Assignment:
    """For each group one of its types, such that the errors' root of squares is at most ``tolerance``.

    ``errors`` and ``times`` have the same types for a group, FP32 with error 0 among them; types with infinite errors
    are never chosen. Of assignments equally fast that of the least error is taken.
    """
    names = [[name for name in row if np.isfinite(row[name])] for row in errors]
    flat = [(group, name) for group, row in enumerate(names) for name in row]
    scale = max(tolerance, 1e-30) ** 2
    squares = np.array([errors[group][name] ** 2 / scale for group, name in flat])
    cost = np.array([times[group][name] for group, name in flat])
    allowed = squares <= 1
    # among equally fast ones the more accurate: a millionth of the largest time for the whole tolerance
    weight = 1e-6 * max(float(np.abs(cost).max()), 1e-3)
    one_each = np.zeros((len(names), len(flat)))
    for column, (group, _) in enumerate(flat):
        one_each[group, column] = 1
    constraints = [
        LinearConstraint(one_each, 1, 1),
        LinearConstraint(np.where(allowed, squares, 0)[None, :], -np.inf, 1),
    ]
    found = milp(
        cost + weight * np.where(allowed, squares, 0),
        integrality=np.ones(len(flat)),
        bounds=Bounds(0, allowed.astype(float)),
        constraints=constraints,
    )
    assert found.x is not None, "all in FP32 is always a solution"
    chosen = {flat[column][0]: flat[column][1] for column in np.flatnonzero(found.x > 0.5)}
    return tuple(chosen[group] for group in range(len(names)))
