"""ResNet-50 on 224 x 224 images: the forward pass with running statistics, or a training step with batch statistics.

Bottleneck blocks with the stride on the 3 x 3 convolution, batch normalisation after every convolution. The training
step is SGD with momentum on the cross-entropy; parameters, momentum and running statistics are donated.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from lowering import Array, Model

EPSILON, DECAY, LEARNING_RATE, MOMENTUM = 1e-5, 0.9, 0.1, 0.9
BRANCH = 0.1
"""Gain of the last normalisation of a block: with 1, the gradients of so deep a network are mostly noise in FP32."""
LAYOUT = ("NHWC", "HWIO", "NHWC")


@dataclass(frozen=True)
class Config:
    """Sizes of the network; the defaults are ResNet-50's."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000
    image: int = 224
    batch: int = 1
    seed: int = 0


def convolve(x: Any, kernel: Any, stride: int = 1) -> Any:
    """A convolution of x [batch, rows, columns, features] without bias; the padding keeps rows / stride rows."""
    border = (kernel.shape[0] - 1) // 2
    return lax.conv_general_dilated(x, kernel, (stride, stride), [(border, border)] * 2, dimension_numbers=LAYOUT)


def batch_norm(x: Any, weights: Any, statistics: Any, training: bool) -> tuple[Any, Any]:
    """Normalised features, and the running mean and variance after this batch."""
    if not training:
        mean, variance, updated = statistics["mean"], statistics["variance"], statistics
    else:
        mean = jnp.mean(x, axis=(0, 1, 2))
        variance = jnp.mean(jnp.square(x - mean), axis=(0, 1, 2))
        batch = {"mean": mean, "variance": variance}
        updated = jax.tree.map(lambda old, new: DECAY * old + (1 - DECAY) * new, statistics, batch)
    return (x - mean) * (lax.rsqrt(variance + EPSILON) * weights["gain"]) + weights["bias"], updated


def bottleneck(x: Any, weights: Any, statistics: Any, stride: int, training: bool) -> tuple[Any, Any]:
    """1 x 1, 3 x 3 with the stride, 1 x 1, and the shortcut, projected where the shape changes."""
    updated = {}

    def unit(y: Any, name: str, step: int = 1) -> Any:
        y = convolve(y, weights[name]["kernel"], step)
        y, updated[name] = batch_norm(y, weights[name], statistics[name], training)
        return y

    y = jax.nn.relu(unit(x, "reduce"))
    y = jax.nn.relu(unit(y, "middle", stride))
    y = unit(y, "expand")
    shortcut = unit(x, "project", stride) if "project" in weights else x
    return jax.nn.relu(y + shortcut), updated


def forward(weights: Any, statistics: Any, images: Any, training: bool) -> tuple[Any, Any]:
    """Logits [batch, classes] of images [batch, rows, columns, 3] f32, and the running statistics afterwards."""
    x = convolve(images, weights["stem"]["kernel"], 2)
    x, stem = batch_norm(x, weights["stem"], statistics["stem"], training)
    x = lax.reduce_window(
        jax.nn.relu(x), -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (1, 1), (0, 0)]
    )
    stages = []
    for number, stage in enumerate(weights["stages"]):
        blocks = []
        for index, block in enumerate(stage):
            stride = 2 if number and not index else 1
            x, updated = bottleneck(x, block, statistics["stages"][number][index], stride, training)
            blocks.append(updated)
        stages.append(blocks)
    features = jnp.mean(x, axis=(1, 2))
    logits = features @ weights["head"]["kernel"] + weights["head"]["bias"]
    return logits, {"stem": stem, "stages": stages}


def train_step(state: dict[str, Any], images: Any, labels: Any) -> tuple[dict[str, Any], Any]:
    """One step of SGD with momentum; returns the new state and the loss before it."""

    def loss(weights: Any) -> tuple[Any, Any]:
        logits, statistics = forward(weights, state["statistics"], images, training=True)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=-1)
        return -jnp.mean(chosen), statistics

    (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(state["weights"])
    momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, state["momentum"], gradients)
    weights = jax.tree.map(lambda w, m: w - LEARNING_RATE * m, state["weights"], momentum)
    return {"weights": weights, "momentum": momentum, "statistics": statistics}, value


def parameters(config: Config) -> tuple[Any, Any]:
    """Random weights at the scale of He's initialisation, and running statistics."""
    random = np.random.default_rng(config.seed)

    def unit(size: int, fan_in: int, fan_out: int, scale_of_gain: float = 1) -> tuple[Any, Any]:
        scale = np.float32(np.sqrt(2 / (size * size * fan_in)))
        kernel = random.standard_normal((size, size, fan_in, fan_out), np.float32) * scale
        gain = (scale_of_gain * (1 + 0.1 * random.standard_normal(fan_out))).astype(np.float32)
        bias = (0.1 * random.standard_normal(fan_out)).astype(np.float32)
        mean = (0.1 * random.standard_normal(fan_out)).astype(np.float32)
        variance = random.uniform(0.5, 1.5, fan_out).astype(np.float32)
        return {"kernel": kernel, "gain": gain, "bias": bias}, {"mean": mean, "variance": variance}

    def block(fan_in: int, width: int) -> tuple[Any, Any]:
        units = {
            "reduce": unit(1, fan_in, width),
            "middle": unit(3, width, width),
            "expand": unit(1, width, 4 * width, BRANCH),
        }
        if fan_in != 4 * width:
            units["project"] = unit(1, fan_in, 4 * width)
        return {name: pair[0] for name, pair in units.items()}, {name: pair[1] for name, pair in units.items()}

    stem = unit(7, 3, config.width)
    stages, statistics, fan_in = [], [], config.width
    for number, count in enumerate(config.blocks):
        pairs = []
        for _ in range(count):
            pairs.append(block(fan_in, config.width << number))
            fan_in = 4 * config.width << number
        stages.append([pair[0] for pair in pairs])
        statistics.append([pair[1] for pair in pairs])
    head: dict[str, Array] = {
        "kernel": random.standard_normal((fan_in, config.classes), np.float32) * np.float32(fan_in**-0.5),
        "bias": np.zeros(config.classes, np.float32),
    }
    return {"stem": stem[0], "stages": stages, "head": head}, {"stem": stem[1], "stages": statistics}


def build(config: Config = Config(), mode: Literal["forward", "train"] = "forward") -> Model:
    """The model with random weights on random images; ``train``: a step in the middle of training."""
    weights, statistics = parameters(config)
    random = np.random.default_rng(config.seed + 1)
    images = random.standard_normal((config.batch, config.image, config.image, 3), np.float32)
    labels = random.integers(0, config.classes, config.batch, np.int32)
    if mode == "train":
        momentum = jax.tree.map(lambda w: np.float32(1e-3) * random.standard_normal(w.shape, np.float32), weights)
        state = {"weights": weights, "momentum": momentum, "statistics": statistics}
        return Model("resnet_train", train_step, state, (images, labels), donate=(0,))

    def infer(state: tuple[Any, Any], images: Any) -> Any:
        return forward(*state, images, training=False)[0]

    return Model("resnet", infer, (weights, statistics), (images,))


if __name__ == "__main__":
    from running import main

    def from_arguments(arguments: Any) -> Model:
        blocks = Config.blocks[: arguments.stages]
        config = Config(blocks, width=arguments.width, image=arguments.image, batch=arguments.batch)
        return build(config, arguments.mode)

    sizes = {"stages": len(Config.blocks), "width": 64, "image": 224, "batch": 1}
    main(__doc__, from_arguments, sizes, {"mode": ("forward", "train")})
