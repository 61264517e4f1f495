"""``jax.lax.ragged_all_to_all``, written with a collective that the devices have.

Every device gathers all operands with their offsets and sizes, and takes the rows that are meant for it: the number of
rows between any two devices is known at run time only, and an exchange of fixed size must have room for all of them.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.jax_backend.eigh import plain_promotion


def register(platform: str) -> None:
    """Give JAX this lowering of its primitive ``ragged_all_to_all``."""
    from jax._src import config, core
    from jax._src.interpreters import mlir
    from jax._src.lax import parallel

    unchecked = config._check_vma
    lowered = mlir.lower_fun(exchange, multiple_results=True)

    def rule(context: Any, *arguments: Any, **parameters: Any) -> Any:
        plain = [core.ShapedArray(aval.shape, aval.dtype) for aval in context.avals_in]
        with unchecked(False):
            return lowered(context.replace(avals_in=plain), *arguments, **parameters)

    mlir.register_lowering(parallel.ragged_all_to_all_p, rule, platform=platform)


@plain_promotion
def exchange(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    axis_index_groups: Any,
) -> tuple[Any]:
    """``output`` [m, ...] with the rows that the group's devices send from their ``operand`` [n, ...].

    Offsets and sizes hold equally many numbers for each device of the group. Those of inputs and outputs are the
    sender's: which rows of its operand go to which rows of the receiver's output.
    """
    del recv_sizes  # the senders' sizes
    place: Any = lax.axis_index(axis_name)
    if axis_index_groups is not None:
        order = np.zeros(sum(map(len, axis_index_groups)), np.int32)
        for group in axis_index_groups:
            order[list(group)] = np.arange(len(group))
        place = jnp.asarray(order)[place]

    def gathered(array: Any) -> Any:
        return lax.all_gather(array, axis_name, axis_index_groups=axis_index_groups)

    rows = gathered(operand)
    senders, count = rows.shape[:2]
    if 0 in (output.size, count):
        return (output,)

    def mine(numbers: Any) -> Any:
        """What each sender says of this device, [senders, slices, 1]."""
        return gathered(numbers).astype(jnp.int32).reshape(senders, senders, -1)[:, place][..., None]

    source, size, target = mine(input_offsets), mine(send_sizes), mine(output_offsets)
    row = jnp.arange(output.shape[0])
    from_row = row - target + source + count * jnp.arange(senders)[:, None, None]
    origin = jnp.max(jnp.where((row >= target) & (row < target + size), from_row, -1), axis=(0, 1))
    found = jnp.take(rows.reshape(senders * count, *operand.shape[1:]), jnp.maximum(origin, 0), axis=0, mode="clip")
    return (jnp.where((origin >= 0).reshape(-1, *[1] * (output.ndim - 1)), found, output),)
