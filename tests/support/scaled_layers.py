"""Layers whose weights have scales of groups: a program of one layer, a loop over more, and what both should give."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import neuronx_cc

Array = np.ndarray[Any, Any]


class ScaledLayers:
    """``layers`` layers, of which the first operand is ``x`` and each other has a row of its stack."""

    layers: int

    layer: Callable[..., Any]
    """One layer of ``x``, weights, scales, zero points and biases, in ``jax.numpy`` or in what ``np`` names."""

    def function(self, x: Any, *stacks: Any) -> Any:
        if self.layers == 1:
            return self.layer(x, *(each[0] for each in stacks))
        step = lambda x, each: (jnp.clip(self.layer(x, *each), -1, 1).astype(x.dtype), None)  # noqa: E731
        return jax.lax.scan(step, x, stacks)[0].astype(jnp.float32)

    def expected(self, x: Array, *stacks: Array) -> Array:
        x, stacks = x.astype(np.float64), tuple(each.astype(np.float64) for each in stacks)
        for each in zip(*stacks, strict=True):
            sums = self.layer(x, *each, np=np)
            x = np.clip(sums, -1, 1)
        return sums if self.layers == 1 else x

    def run(self, given: list[Array], **options: Any) -> Array:
        lowered = jax.jit(self.function, keep_unused=True).lower(*given)
        program = neuronx_cc.compile(lowered, **{"auto_cast": "none", **options})
        (result,) = program.run(given).outputs
        return np.asarray(result, np.float64)
