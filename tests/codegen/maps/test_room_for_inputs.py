"""Map kernels whose inputs lie far apart, are repeated in part, or lie across the partitions."""

import jax
import jax.numpy as jnp
import numpy as np
from generated import check_function


def numbers(*dims, dtype=np.int32):
    return np.random.default_rng(len(dims)).integers(-3, 4, dims).astype(dtype)


def test_the_rest_of_a_dim_uses_the_tiles_of_the_whole():
    def function(x, i):
        return jnp.take_along_axis(x.transpose([0, 2, 1]), jnp.abs(i.transpose([2, 0, 1])) % 32, 0)

    check_function(function, numbers(32, 7, 127, dtype=np.uint32), numbers(127, 7, 7))


def test_inputs_that_are_repeated_in_part_and_lie_apart():
    def function(x, i):
        found = jnp.take_along_axis((x * x).transpose([3, 1, 0, 2]), jnp.abs(i * i) % 3, 3)
        tiled = jnp.tile(found, (2, 1, 3, 2))
        return jnp.concatenate([tiled, jnp.flip(tiled, 2)], 3)

    check_function(function, numbers(32, 12, 3, 5, dtype=np.float32), numbers(5, 12, 32, 2))


def test_a_column_of_more_rows_than_partitions():
    def function(x, i):
        rows = jax.nn.softmax(jnp.take(x.T, (jnp.abs(i) * 7 + 1) % 3, axis=1).T, 0)
        return jax.lax.reduce_window(rows.reshape(-1), -3.0, jax.lax.max, (1,), (1,), [(0, 0)])

    check_function(function, numbers(3, 130, dtype=np.float32), numbers(257))
