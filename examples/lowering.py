"""What the examples share: a model of plain JAX, lowered to HLO and evaluated by jaxlib's CPU client.

A ``Model`` is a function of (weights, *inputs) with the arrays to call it on. ``Model.proto`` is what
``neuronx_cc.compile`` and ``neuronx-cc compile`` take, ``Model.arguments`` the arrays its entry parameters
take in order, ``Model.expected`` the values that jaxlib computes.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from jaxlib import _hlo

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Model:
    """``function(weights, *inputs)`` and the arrays it is called with.

    With ``constants`` the weights become literals of the module and only ``inputs`` stay parameters.
    ``donate`` numbers the arguments (0 is ``weights``) whose buffers the outputs may reuse.
    """

    name: str
    function: Callable[..., Any]
    weights: Any
    inputs: tuple[Array, ...]
    constants: bool = False
    donate: tuple[int, ...] = ()

    @property
    def arguments(self) -> list[Array]:
        """One array per entry parameter of the lowered module, in order."""
        return jax.tree.leaves(self.inputs if self.constants else (self.weights, *self.inputs))

    @cached_property
    def lowered(self) -> Any:
        """What ``jax.jit(...).lower`` gives for these arrays."""
        if self.constants:
            weights = jax.tree.map(jax.numpy.asarray, self.weights)
            return jax.jit(lambda *inputs: self.function(weights, *inputs), keep_unused=True).lower(*self.inputs)
        jitted = jax.jit(self.function, keep_unused=True, donate_argnums=self.donate)
        return jitted.lower(self.weights, *self.inputs)

    @cached_property
    def proto(self) -> bytes:
        """A serialized ``HloModuleProto``."""
        return serialize(self.lowered)

    @property
    def text(self) -> str:
        """HLO text, literals included."""
        return text(self.lowered)

    @cached_property
    def jitted(self) -> Callable[[], Any]:
        """A call of the function on jaxlib's CPU client, its arrays on that device already."""
        # Weights stay parameters here even where the module has them as literals: the values are the same, and
        # XLA would spend minutes folding hundreds of megabytes of them.
        weights, inputs = jax.device_put((self.weights, self.inputs), jax.devices("cpu")[0])
        compiled = jax.jit(self.function, keep_unused=True).lower(weights, *inputs).compile()
        return lambda: jax.block_until_ready(compiled(weights, *inputs))

    @cached_property
    def expected(self) -> list[Array]:
        """The outputs that jaxlib computes, flat."""
        return [np.asarray(leaf) for leaf in jax.tree.leaves(self.jitted())]

    @cached_property
    def exact(self) -> list[Array]:
        """The outputs that jaxlib computes when every FP32 array and operation is FP64 instead, flat."""

        def wide(leaf: Array) -> Array:
            return leaf.astype(np.float64) if leaf.dtype == np.float32 else leaf

        with jax.enable_x64(True):
            outputs = jax.jit(self.function)(*jax.tree.map(wide, (self.weights, *self.inputs)))
            return [np.asarray(leaf) for leaf in jax.tree.leaves(outputs)]


def lower(function: Callable[..., Any], arguments: Sequence[Any], **jit_options: Any) -> bytes:
    """Lower ``function(*arguments)`` to a serialized ``HloModuleProto``, one parameter per array in ``arguments``."""
    return serialize(jax.jit(function, keep_unused=True, **jit_options).lower(*arguments))


def serialize(lowered: Any) -> bytes:
    """The ``HloModuleProto`` of what ``jax.jit(...).lower`` gave: literals are raw bytes there, so it loads fast."""
    data: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return data


def text(lowered: Any) -> str:
    """The HLO text of what ``jax.jit(...).lower`` gave, with source lines and every literal in full."""
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    printed: str = lowered.compiler_ir("hlo").as_hlo_module().to_string(options)
    return printed


class Difference(NamedTuple):
    """How far an output is from what was expected; both are relative to the expected array's size."""

    largest: float
    """Largest absolute difference over the largest absolute expected value."""
    norm: float
    """2-norm of the difference over the 2-norm of the expected array."""


def difference(actual: Array, expected: Array) -> Difference:
    """Compare two arrays of the same shape and dtype; a NaN or infinity on one side only is an infinite difference."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise ValueError(f"{actual.dtype}{actual.shape} compared with {expected.dtype}{expected.shape}")
    left, right = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    finite = np.isfinite(right)
    same = np.where(np.isnan(right), np.isnan(left), left == right)
    if not np.all(same | (finite & np.isfinite(left))):
        return Difference(np.inf, np.inf)
    left, right = np.where(finite, left, 0.0), np.where(finite, right, 0.0)
    error = left - right
    if not error.any():
        return Difference(0.0, 0.0)
    # an all-zero expected array has no scale of its own, so the difference itself is reported
    scale = float(np.abs(right).max()) or 1.0
    norm = float(np.linalg.norm(right)) or 1.0
    return Difference(float(np.abs(error).max()) / scale, float(np.linalg.norm(error)) / norm)


def differences(actual: Sequence[Array], expected: Sequence[Array]) -> Difference:
    """The worst ``difference`` over all outputs, each number for itself."""
    each = [difference(a, e) for a, e in zip(actual, expected, strict=True)]
    return Difference(max(d.largest for d in each), max(d.norm for d in each))
