"""Trains a small GPT or a small ResNet with plain JAX, on whatever platform JAX is told to use, and prints the losses.

    JAX_PLATFORMS=neuron,cpu python examples/train.py gpt --steps 40
    NEURON_CC_FLAGS="--auto-cast matmult" JAX_PLATFORMS=neuron,cpu python examples/train.py resnet
    NEURON_RT_NUM_CORES=8 JAX_PLATFORMS=neuron,cpu python examples/train.py gpt --devices 8

Nothing in it knows of the platform. With ``--devices`` the batch is split over as many and the gradients are summed by
all-reduces that the partitioner puts in; the losses are the same. The text is this project's own documentation; the
images are noisy patterns of ten classes.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ROOT = Path(__file__).resolve().parent.parent
RATE, BETA1, BETA2 = 3e-3, 0.9, 0.99


def norm(x: Any, gain: Any) -> Any:
    """Root-mean-square normalisation of the last dim."""
    return x * lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-5) * gain


def gpt_logits(weights: Any, tokens: Any) -> Any:
    """Logits [batch, sequence, vocabulary] of tokens [batch, sequence] s32; the layers are scanned."""
    batch, sequence = tokens.shape
    x = weights["tokens"][tokens] + weights["positions"][:sequence]
    mask = jnp.tril(jnp.ones((sequence, sequence), bool))

    def layer(x: Any, part: Any) -> tuple[Any, None]:
        query, key, value = jnp.split(norm(x, part["gain1"]) @ part["mix"], 3, axis=-1)
        heads = 4
        split = [y.reshape(batch, sequence, heads, -1).transpose(0, 2, 1, 3) for y in (query, key, value)]
        scores = split[0] @ split[1].swapaxes(-1, -2) / np.float32(np.sqrt(split[0].shape[-1]))
        mixed = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1) @ split[2]
        x = x + mixed.transpose(0, 2, 1, 3).reshape(x.shape) @ part["out"]
        return x + jax.nn.gelu(norm(x, part["gain2"]) @ part["up"]) @ part["down"], None

    x, _ = lax.scan(layer, x, weights["layers"])
    return norm(x, weights["gain"]) @ weights["tokens"].T


def gpt(key: Any, width: int = 64, layers: int = 2, sequence: int = 64) -> tuple[Any, Callable[..., Any], Any]:
    """Weights, loss and batches of a character-level GPT."""
    text = np.frombuffer((ROOT / "ARCHITECTURE.md").read_bytes(), np.uint8)
    text = np.minimum(text, 127).astype(np.int32)
    keys = iter(jax.random.split(key, 8))

    def normal(*shape: int) -> Any:
        return jax.random.normal(next(keys), shape) * shape[-2] ** -0.5

    weights = {
        "tokens": normal(128, width) * 0.2,
        "positions": normal(sequence, width) * 0.2,
        "layers": {
            "gain1": jnp.ones((layers, width)),
            "mix": normal(layers, width, 3 * width),
            "out": normal(layers, width, width),
            "gain2": jnp.ones((layers, width)),
            "up": normal(layers, width, 4 * width),
            "down": normal(layers, 4 * width, width),
        },
        "gain": jnp.ones(width),
    }

    def loss(weights: Any, batch: tuple[Any, Any]) -> Any:
        scores = jax.nn.log_softmax(gpt_logits(weights, batch[0]))
        return -jnp.mean(jnp.take_along_axis(scores, batch[1][..., None], axis=-1))

    def batches(size: int) -> Iterator[tuple[Any, Any]]:
        random = np.random.default_rng(0)
        while True:
            starts = random.integers(0, len(text) - sequence - 1, size)
            rows = np.stack([text[start : start + sequence + 1] for start in starts])
            yield rows[:, :-1], rows[:, 1:]

    return weights, loss, batches


def resnet_logits(weights: Any, images: Any) -> Any:
    """Logits [batch, 10] of images [batch, 16, 16, 3] f32, with batch statistics."""

    def convolve(x: Any, kernel: Any, stride: int = 1) -> Any:
        return lax.conv_general_dilated(x, kernel, (stride,) * 2, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def normed(x: Any, part: Any) -> Any:
        mean, variance = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        return (x - mean) * lax.rsqrt(variance + 1e-5) * part["gain"] + part["bias"]

    x = jax.nn.relu(normed(convolve(images, weights["stem"]["kernel"]), weights["stem"]))
    for block in weights["blocks"]:
        stride = 2 if "project" in block else 1
        y = jax.nn.relu(normed(convolve(x, block["first"]["kernel"], stride), block["first"]))
        y = normed(convolve(y, block["second"]["kernel"]), block["second"])
        shortcut = convolve(x, block["project"]["kernel"], stride) if "project" in block else x
        x = jax.nn.relu(y + shortcut)
    return jnp.mean(x, (1, 2)) @ weights["head"]


def resnet(key: Any, width: int = 16) -> tuple[Any, Callable[..., Any], Any]:
    """Weights, loss and batches of a ResNet of three stages of one block."""
    keys = iter(jax.random.split(key, 16))

    def unit(size: int, fan_in: int, fan_out: int) -> dict[str, Any]:
        kernel = jax.random.normal(next(keys), (size, size, fan_in, fan_out)) * np.sqrt(2 / (size * size * fan_in))
        return {"kernel": kernel, "gain": jnp.ones(fan_out), "bias": jnp.zeros(fan_out)}

    blocks = [{"first": unit(3, width, width), "second": unit(3, width, width)}]
    for stage in (1, 2):
        fan_in, fan_out = width << (stage - 1), width << stage
        blocks.append(
            {
                "first": unit(3, fan_in, fan_out),
                "second": unit(3, fan_out, fan_out),
                "project": unit(1, fan_in, fan_out),
            }
        )
    head = jax.random.normal(next(keys), (width << 2, 10)) * 0.1
    weights = {"stem": unit(3, 3, width), "blocks": blocks, "head": head}

    def loss(weights: Any, batch: tuple[Any, Any]) -> Any:
        scores = jax.nn.log_softmax(resnet_logits(weights, batch[0]))
        return -jnp.mean(jnp.take_along_axis(scores, batch[1][:, None], axis=-1))

    def batches(size: int) -> Iterator[tuple[Any, Any]]:
        random = np.random.default_rng(0)
        patterns = random.standard_normal((10, 16, 16, 3), np.float32)
        while True:
            labels = random.integers(0, 10, size, np.int32)
            yield patterns[labels] + 1.5 * random.standard_normal((size, 16, 16, 3), np.float32), labels

    return weights, loss, batches


def start(model: str) -> tuple[Any, Callable[..., Any], Any]:
    """State, the Adam step (state, batch) -> (new state, loss before it), and the batches of a model."""
    weights, loss, batches = {"gpt": gpt, "resnet": resnet}[model](jax.random.key(0))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = {
        "weights": weights,
        "first": zeros,
        "second": jax.tree.map(jnp.copy, zeros),
        "step": jnp.zeros((), jnp.int32),
    }

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        value, gradients = jax.value_and_grad(loss)(state["weights"], batch)
        count = state["step"] + 1
        first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state["first"], gradients)
        second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, state["second"], gradients)
        scale = RATE * jnp.sqrt(1 - BETA2**count) / (1 - BETA1**count)
        weights = jax.tree.map(lambda w, m, v: w - scale * m / (jnp.sqrt(v) + 1e-8), state["weights"], first, second)
        return {"weights": weights, "first": first, "second": second, "step": count}, value

    return state, step, batches


def train(model: str, steps: int, batch: int, devices: int) -> list[float]:
    """The loss before each step."""
    state, step, batches = start(model)
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    state = jax.device_put(state, everywhere)
    compiled = jax.jit(step, donate_argnums=0, out_shardings=(everywhere, everywhere))
    losses = []
    for _, rows in zip(range(steps), batches(batch), strict=False):
        state, value = compiled(state, jax.device_put(rows, split))
        losses.append(float(value))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("gpt", "resnet"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the losses as one JSON list")
    arguments = parser.parse_args()
    losses = train(arguments.model, arguments.steps, arguments.batch, arguments.devices)
    if arguments.json:
        json.dump(losses, sys.stdout)
        return
    print(f"{arguments.model} on {arguments.devices} x {jax.devices()[0].device_kind}")
    for number, value in enumerate(losses):
        print(f"step {number:4d}  loss {value:.4f}")


if __name__ == "__main__":
    main()
