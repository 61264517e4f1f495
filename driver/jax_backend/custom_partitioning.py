"""``jax.experimental.custom_partitioning``, whose own partitioning functions only XLA's partitioner can call.

They say how each device computes its part of what the function computes as a whole, so the function itself is
lowered: it is partitioned like everything else (``partition``), to the same values.
"""

from typing import Any


def register(platform: str) -> None:
    """Give JAX this lowering of its primitive ``custom_partitioning``."""
    from jax._src import core, custom_partitioning
    from jax._src.interpreters import mlir

    def rule(context: Any, *arguments: Any, call: Any, **_: Any) -> Any:
        return mlir.lower_fun(core.jaxpr_as_fun(call), multiple_results=True)(context, *arguments)

    mlir.register_lowering(custom_partitioning.custom_partitioning_p, rule, platform=platform)
