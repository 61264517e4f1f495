"""Rows of sums, means and largest rows of a table over runs of indices (``embedding_bag``), and of their gradients."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from neuronx_cc.driver.frontends.torch.registry import limits, row

SUM, MEAN, MAX = range(3)


def _bag_of(offsets: Any, count: int, last: bool) -> Any:
    """For each of ``count`` indices the number of its bag; ``last``: the last offset ends the last bag."""
    starts = offsets[:-1] if last else offsets
    return jnp.sum((starts[None, :] <= np.arange(count)[:, None]).astype(np.int32), 1) - 1


@row("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    table: Any,
    indices: Any,
    offsets: Any,
    by_frequency: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    weights: Any = None,
    last: bool = False,
    padding: int = -1,
) -> Any:
    """One row a bag; for the gradient the bag of each index, how many indices a bag has, and where its maxima stand."""
    bags = offsets.shape[0] - last
    bag = _bag_of(offsets, indices.shape[0], last)
    counted = indices != padding
    rows = jnp.take(table, indices, axis=0, mode="clip")
    if weights is not None:
        rows = rows * weights[:, None].astype(rows.dtype)
    sizes = jnp.zeros(bags, np.int64).at[bag].add(counted.astype(np.int64))
    if mode == MAX:
        low = jnp.asarray(limits(rows.dtype)[0], rows.dtype)
        rows = jnp.where(counted[:, None], rows, low)
        largest = jnp.full((bags, table.shape[1]), low).at[bag].max(rows)
        places = jnp.where(rows == largest[bag], np.arange(len(rows))[:, None], len(rows))
        first = jnp.full(largest.shape, len(rows)).at[bag].min(places)
        found = jnp.where(sizes[:, None] > 0, jnp.take(indices, first, mode="clip"), -1)
        return jnp.where(sizes[:, None] > 0, largest, 0), bag, sizes, found
    total = jnp.zeros((bags, table.shape[1]), rows.dtype).at[bag].add(jnp.where(counted[:, None], rows, 0))
    if mode == MEAN:
        total = total / jnp.maximum(sizes, 1)[:, None].astype(rows.dtype)
    # torch notes no bags where its fast path needs none
    fast = mode == SUM and padding < 0 and table.dtype in (np.float32, np.float16)
    return total, bag[:0] if fast else bag, sizes, jnp.zeros(bags, np.int64)


@row("_embedding_bag_backward")
def _embedding_bag_backward(
    given: Any,
    indices: Any,
    offsets: Any,
    _: Any,
    sizes: Any,
    places: Any,
    count: int,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: Any,
    padding: int = -1,
) -> Any:
    if sparse:
        raise NotImplementedError("a sparse gradient")
    bag = _bag_of(offsets, indices.shape[0], offsets.shape[0] != given.shape[0])
    table = jnp.zeros((count, given.shape[1]), given.dtype)
    if mode == MAX:
        columns = np.arange(given.shape[1])[None, :]
        return table.at[jnp.where(places < 0, count, places), columns].add(given, mode="drop")
    rows = jnp.take(given, bag, axis=0)
    if mode == MEAN:
        rows = rows / jnp.maximum(jnp.take(sizes, bag), 1)[:, None].astype(rows.dtype)
    if weights is not None:
        rows = rows * weights[:, None].astype(rows.dtype)
    if by_frequency:
        rows = rows / jnp.take(jnp.zeros(count, rows.dtype).at[indices].add(1), indices)[:, None]
    return table.at[indices].add(jnp.where((indices != padding)[:, None], rows, 0))


@row("_embedding_bag_per_sample_weights_backward")
def _weights_backward(given: Any, table: Any, indices: Any, offsets: Any, _: Any, mode: int, padding: int = -1) -> Any:
    bag = _bag_of(offsets, indices.shape[0], offsets.shape[0] != given.shape[0])
    products = jnp.take(given, bag, axis=0) * jnp.take(table, indices, axis=0, mode="clip")
    return jnp.where(indices != padding, jnp.sum(products, 1), 0)
