"""Maps over an axis that the partitions do not divide: its last elements are a box of their own."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import compile_text, text_of


def _whole(seed, dims, dtype=np.float32):
    return np.random.default_rng(seed).integers(-3, 4, dims).astype(dtype)


def _right(function, *arrays):
    found = compile_text(text_of(function, *arrays)).run(list(arrays))
    for result, want in zip(found, jax.tree.leaves(function(*arrays)), strict=True):
        np.testing.assert_array_equal(np.asarray(result, np.float32), np.asarray(want, np.float32))


@pytest.mark.parametrize("rows", [2, 3, 5, 12])
@pytest.mark.parametrize("columns", [129, 131, 157, 263])
def test_what_does_not_nest_with_the_rest_is_copied_and_cut(rows, columns):
    x, y = _whole(rows, (rows, columns)), _whole(columns, (rows * columns,))
    _right(lambda x, y: (jnp.maximum(x.T.reshape(-1), 0), x.T[::-1].reshape(-1) * 2 - y), x, y)


def test_the_same_in_16_bits():
    _right(lambda x: jax.nn.relu(x.T.reshape(1, 393)), _whole(0, (3, 131), ml_dtypes.bfloat16))
