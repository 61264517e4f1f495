"""Optimisers of ``ai.onnx.preview.training``: each takes tensors in groups, one after the other."""

import jax.numpy as jnp
import numpy as np

from neuronx_cc.driver.frontends.onnx.table import Value, op, refusal

_DOMAIN = "ai.onnx.preview.training"


def _groups(tensors: tuple[Value, ...], kinds: int) -> list[tuple[Value, ...]]:
    """Of each tensor to be trained: itself, its gradient, and what the optimiser keeps."""
    if len(tensors) % kinds:
        raise refusal(f"{len(tensors)} tensors are no groups of {kinds}", code="EVRF064")
    number = len(tensors) // kinds
    return [tuple(tensors[i::number]) for i in range(number)]


def _by_kind(made: list[tuple[Value, ...]]) -> tuple[Value, ...]:
    return tuple(value for kind in zip(*made, strict=True) for value in kind)


def _decayed(rate: Value, step: Value, decay: float) -> Value:
    return rate.reshape(()) / (1 + step.reshape(()).astype(np.float32) * np.float32(decay))


@op("Adagrad", domain=_DOMAIN)
def adagrad(
    r: Value, t: Value, *tensors: Value, decay_factor: float = 0.0, epsilon: float = 0.0, norm_coefficient: float = 0.0
) -> Value:
    rate, made = _decayed(r, t, decay_factor), []
    for x, gradient, total in _groups(tensors, 3):
        slope = norm_coefficient * x + gradient
        summed = total + slope * slope
        made.append((x - rate * slope / (jnp.sqrt(summed) + epsilon), summed))
    return _by_kind(made)


@op("Adam", domain=_DOMAIN)
def adam(
    r: Value, t: Value, *tensors: Value, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 0.0,
    norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0,
) -> Value:  # fmt: skip
    step = t.reshape(()).astype(np.float32)
    corrected = r.reshape(()) * jnp.sqrt(1 - np.float32(beta) ** step) / (1 - np.float32(alpha) ** step)
    rate, made = jnp.where(step > 0, corrected, r.reshape(())), []
    for x, gradient, mean, square in _groups(tensors, 4):
        slope = norm_coefficient * x + gradient
        mean = alpha * mean + (1 - alpha) * slope
        square = beta * square + (1 - beta) * slope * slope
        moved = x - rate * mean / (jnp.sqrt(square) + epsilon)
        made.append(((1 - norm_coefficient_post) * moved, mean, square))
    return _by_kind(made)


@op("Momentum", domain=_DOMAIN)
def momentum(
    r: Value, t: Value, *tensors: Value, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> Value:
    rate, made = r.reshape(()), []
    factor = jnp.where(t.reshape(()) > 0, np.float32(beta), np.float32(1))
    for x, gradient, speed in _groups(tensors, 3):
        slope = norm_coefficient * x + gradient
        speed = alpha * speed + factor * slope
        made.append((x - rate * (slope + alpha * speed if mode == "nesterov" else speed), speed))
    return _by_kind(made)
