"""Sets of integers and of intervals [start, end) of them, as arrays."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def distinct(values: Array) -> Array:
    """The values, ascending, once each. (``np.unique`` puts them into a hash table first, which takes longer.)"""
    ordered = np.sort(values)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def union(starts: Array, ends: Array) -> Array:
    """Disjoint ascending [start, end) rows that cover the same as the intervals given."""
    rows = np.stack([starts, ends], axis=1)
    rows = rows[rows[:, 1] > rows[:, 0]]
    if not len(rows):
        return rows
    rows = rows[np.argsort(rows[:, 0])]
    reach = np.maximum.accumulate(rows[:, 1])
    fresh = np.concatenate([[True], rows[1:, 0] > reach[:-1]])
    return np.stack([rows[fresh, 0], reach[np.append(fresh[1:], True)]], axis=1)


def touches(covered: Array, starts: Array, ends: Array) -> Array:
    """Whether each [start, end) shares a number with the union ``covered``."""
    if not len(covered):
        return np.zeros(len(starts), bool)
    after = np.minimum(np.searchsorted(covered[:, 1], starts, side="right"), len(covered) - 1)
    touching: Array = (covered[after, 0] < ends) & (covered[after, 1] > starts)
    return touching


def inside(covered: Array, starts: Array, ends: Array) -> Array:
    """Whether each [start, end) lies in one interval of the union ``covered``."""
    if not len(covered):
        return np.zeros(len(starts), bool)
    at = np.maximum(np.searchsorted(covered[:, 0], starts, side="right") - 1, 0)
    contained: Array = (covered[at, 0] <= starts) & (ends <= covered[at, 1])
    return contained


def numbers(starts: Array, ends: Array) -> Array:
    """The numbers of all intervals, one interval after the other."""
    sizes = ends - starts
    every: Array = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
    return every
