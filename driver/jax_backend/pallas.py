"""Pallas kernels: JAX's interpreter lowers them to plain operations; outside interpret mode the error names the remedy.

Pallas has code generators for its own platforms only (TPUs and GPUs).
"""

from typing import Any

NO_KERNELS = (
    "Pallas compiles kernels for TPUs and GPUs only; on the platform neuron they run in interpret mode: "
    "pass interpret=True to pallas_call"
)


def register(platform: str) -> None:
    """Give JAX the lowering of its primitive ``pallas_call``.

    The rule raises NotImplementedError for kernels that are not to be interpreted.
    """
    from jax._src.interpreters import mlir
    from jax._src.pallas import pallas_call

    lower = pallas_call._pallas_call_lowering

    def rule(context: Any, *arguments: Any, interpret: Any, **parameters: Any) -> Any:
        if not interpret:
            raise NotImplementedError(NO_KERNELS)
        return lower(context, *arguments, interpret=interpret, **parameters)

    mlir.register_lowering(pallas_call.pallas_call_p, rule, platform=platform)
