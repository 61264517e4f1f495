"""Random dimension numbers of gathers and scatters: every attribute that HLO has, small shapes, indices in and out."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from jax import lax

Array = np.ndarray[Any, Any]

DTYPES = [np.float32, np.int32, np.uint8, np.bool_, ml_dtypes.bfloat16, np.int16, np.float16, np.uint32]
INDEX_DTYPES = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32]


def values(random: np.random.Generator, dtype: Any, dims: list[int]) -> Array:
    """Of any element type."""
    if dtype is np.bool_:
        return random.random(dims) < 0.5
    if np.dtype(dtype).kind in "iu":
        return random.integers(0, 100, dims).astype(dtype)
    return np.asarray(random.standard_normal(dims) * 50).astype(dtype)


@dataclass
class Windows:
    """Dimension numbers in the common vocabulary of gather and scatter."""

    operand: Array
    indices: Array
    sizes: list[int]
    offset: list[int]
    collapsed: list[int]
    indexed: list[int]
    batching: list[int]
    index_batching: list[int]
    result: list[int]
    """Dims of a gather's result, or a scatter's updates."""

    def gather_numbers(self) -> lax.GatherDimensionNumbers:
        return lax.GatherDimensionNumbers(*self._numbers())

    def scatter_numbers(self) -> lax.ScatterDimensionNumbers:
        return lax.ScatterDimensionNumbers(*self._numbers())

    def _numbers(self) -> list[tuple[int, ...]]:
        parts = (self.offset, self.collapsed, self.indexed, self.batching, self.index_batching)
        return [tuple(part) for part in parts]


def windows(random: np.random.Generator) -> Windows:
    """Up to three operand dims of up to six elements."""
    dims = random.integers(1, 7, random.integers(1, 4)).tolist()
    rank = len(dims)
    axes = random.permutation(rank).tolist()
    batches = int(random.integers(0, min(2, rank) + 1)) if random.random() < 0.4 else 0
    batching, rest = sorted(axes[:batches]), axes[batches:]
    indexed = rest[: int(random.integers(0, len(rest) + 1))]
    sizes = []
    for dim, size in enumerate(dims):
        kind = random.random()
        one = dim in batching or (dim in indexed and kind < 0.4)
        sizes.append(1 if one else int(random.integers(1, size + 1)) if kind < 0.7 else size)
    collapsed = [dim for dim in range(rank) if dim not in batching and sizes[dim] == 1 and random.random() < 0.6]
    least = 0 if indexed else -1  # XLA drops all but the last of several updates without an index
    loose = random.integers(1, 6, int(random.integers(0, 3)) if least == 0 else 0).tolist()
    batch = [*(dims[dim] for dim in batching), *loose]
    order = random.permutation(len(batch)).tolist()
    batch_dims = [batch[at] for at in order]
    kept = [dim for dim in range(rank) if dim not in collapsed and dim not in batching]
    offset = sorted(random.choice(len(batch) + len(kept), len(kept), replace=False).tolist())
    spread = dict(zip(offset, (sizes[dim] for dim in kept), strict=True))
    remaining = iter(batch_dims)
    result = [spread[axis] if axis in spread else next(remaining) for axis in range(len(batch) + len(kept))]
    index_dtype: Any = INDEX_DTYPES[random.integers(len(INDEX_DTYPES))]
    indices = random.integers(-3, 8, [*batch_dims, len(indexed)])
    if np.dtype(index_dtype).kind == "u":
        indices = np.abs(indices)
    indices = indices.astype(index_dtype)
    if index_dtype is np.uint32 and indices.size:
        indices.flat[0] = 2**31 + 5
    dtype = DTYPES[random.integers(len(DTYPES))]
    operand = values(random, dtype, dims)
    return Windows(
        operand,
        indices,
        sizes,
        offset,
        collapsed,
        indexed,
        batching,
        [order.index(at) for at in range(batches)],
        result,
    )
