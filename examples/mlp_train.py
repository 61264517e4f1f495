"""A training step of a multilayer perceptron: forward, cross-entropy loss, gradients and the Adam update.

The default is a 784-1024-1024-10 classifier with a batch of 128. Parameters and both Adam moments are donated,
as training loops do, so the module's outputs alias its inputs.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from lowering import Array, Model

LEARNING_RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class Config:
    """Sizes of the network."""

    widths: tuple[int, ...] = (784, 1024, 1024, 10)
    """Features of the input, of each hidden layer, and the number of classes."""
    batch: int = 128
    seed: int = 0


def loss(parameters: list[dict[str, Any]], images: Any, labels: Any) -> Any:
    """Mean cross-entropy of images [batch, features] f32 against labels [batch] s32."""
    x = images
    for layer in parameters[:-1]:
        x = jax.nn.relu(x @ layer["weight"] + layer["bias"])
    logits = x @ parameters[-1]["weight"] + parameters[-1]["bias"]
    one_hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(one_hot * jax.nn.log_softmax(logits), axis=-1))


def train_step(state: dict[str, Any], images: Any, labels: Any) -> tuple[dict[str, Any], Any]:
    """One Adam step (Kingma and Ba, algorithm 1); returns the new state and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(state["parameters"], images, labels)
    step = state["step"] + 1
    first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, state["second"], gradients)
    count = step.astype(jnp.float32)
    rate = LEARNING_RATE * jnp.sqrt(1 - BETA2**count) / (1 - BETA1**count)
    update = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + EPSILON), state["parameters"], first, second)
    return {"parameters": update, "first": first, "second": second, "step": step}, value


def build(config: Config = Config()) -> Model:
    """The step in the middle of training: both moments are as large as the gradients that made them.

    In the very first step the update is the sign of the gradient, which no two implementations need agree on.
    """
    random = np.random.default_rng(config.seed)

    def normal(*shape: int, scale: float) -> Array:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    parameters, first, second = [], [], []
    for fan_in, fan_out in zip(config.widths, config.widths[1:], strict=False):
        shapes = {"weight": (fan_in, fan_out), "bias": (fan_out,)}
        scale = {"weight": np.sqrt(2.0 / fan_in), "bias": 0.1}
        parameters.append({key: normal(*shape, scale=scale[key]) for key, shape in shapes.items()})
        first.append({key: normal(*shape, scale=1e-3) for key, shape in shapes.items()})
        second.append({key: (1e-6 + normal(*shape, scale=1e-3) ** 2) for key, shape in shapes.items()})
    state = {"parameters": parameters, "first": first, "second": second, "step": np.int32(100)}
    state = jax.tree.map(np.asarray, state)
    images = random.random((config.batch, config.widths[0]), np.float32)
    labels = random.integers(0, config.widths[-1], config.batch, np.int32)
    return Model("mlp_train", train_step, state, (images, labels), donate=(0,))


if __name__ == "__main__":
    from running import main

    def from_arguments(arguments: Any) -> Model:
        return build(Config((784, *[arguments.width] * arguments.layers, 10), arguments.batch))

    main(__doc__, from_arguments, {"layers": 2, "width": 1024, "batch": 128})
