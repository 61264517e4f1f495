"""Training steps of plain JAX, with the shardings of each kind of parallelism; for ``sharding.py``.

A step takes weights and a batch (both as arrays or as shapes) and gives new weights and the loss. Sizes are such that
32 devices have something to do each, and no more.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

Tree = Any


@dataclass(frozen=True)
class Step:
    """A training step and how its arrays are split over the axis ``d``."""

    function: Callable[[Tree, Tree], Any]
    weights: Callable[[np.random.Generator], Tree]
    batch: Callable[[np.random.Generator], Tree]
    weight_specs: Callable[[str, tuple[int, ...]], P]
    """From the name and shape of a weight."""
    batch_specs: Callable[[str, tuple[int, ...]], P]


def _normal(random: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return (random.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)


def _train(loss: Callable[..., Any], pieces: int, weights: Tree, batch: Tree) -> tuple[Tree, Any]:
    """One step of gradient descent; gradients are accumulated over ``pieces`` of the batch."""
    if pieces == 1:
        value, gradients = jax.value_and_grad(loss)(weights, batch)
    else:
        parts = jax.tree.map(lambda x: x.reshape(x.shape[0] // pieces, pieces, *x.shape[1:]).swapaxes(0, 1), batch)

        def piece(state: Tree, part: Tree) -> Any:
            value, gradients = jax.value_and_grad(loss)(weights, part)
            return jax.tree.map(jnp.add, state, (value, gradients)), None

        start = jnp.float32(0), jax.tree.map(jnp.zeros_like, weights)
        (value, gradients), _ = lax.scan(piece, start, parts)
        value, gradients = jax.tree.map(lambda x: x / pieces, (value, gradients))
    return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients), value


# a decoder: layers in a scan, rematerialised, with dropout

VOCABULARY, WIDTH, HEADS, LAYERS = 512, 256, 32, 2


def _transformer_weights(random: np.random.Generator) -> Tree:
    layer = {
        "qkv": _normal(random, LAYERS, WIDTH, 3 * WIDTH).reshape(LAYERS, WIDTH, 3, HEADS, -1),
        "out": _normal(random, LAYERS, WIDTH, WIDTH).reshape(LAYERS, HEADS, -1, WIDTH),
        "up": _normal(random, LAYERS, WIDTH, 4 * WIDTH),
        "down": _normal(random, LAYERS, 4 * WIDTH, WIDTH),
    }
    return {"table": _normal(random, VOCABULARY, WIDTH), "head": _normal(random, WIDTH, VOCABULARY), **layer}


def _tokens(rows: int, length: int, random: np.random.Generator) -> Tree:
    return {"tokens": random.integers(0, VOCABULARY, (rows, length)).astype(np.int32)}


def _normed(x: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _dropped(key: Any, x: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0)


def _attention(layer: Tree, x: Any) -> Any:
    q, k, v = jnp.moveaxis(jnp.einsum("bsw,wthd->bsthd", _normed(x), layer["qkv"]), 2, 0)
    scores = jnp.einsum("bshd,bthd->bhst", q, k) / np.sqrt(q.shape[-1])
    causal = jnp.arange(x.shape[1])[:, None] >= jnp.arange(x.shape[1])
    chances = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("bhst,bthd,hdw->bsw", chances, v, layer["out"])


def _transformer_loss(weights: Tree, batch: Tree, spread: P | None = None) -> Any:
    tokens = batch["tokens"]
    keys = jax.random.split(jax.random.key(7), LAYERS)

    @jax.checkpoint
    def layer(x: Any, given: Any) -> tuple[Any, None]:
        weights, key = given
        if spread is not None:
            x = lax.with_sharding_constraint(x, spread)
        x = x + _dropped(key, _attention(weights, x))
        return x + jax.nn.gelu(_normed(x) @ weights["up"]) @ weights["down"], None

    layers = {name: weights[name] for name in ("qkv", "out", "up", "down")}
    x, _ = lax.scan(layer, weights["table"][tokens], (layers, keys))
    chances = jax.nn.log_softmax(_normed(x) @ weights["head"])[:, :-1]
    return -jnp.take_along_axis(chances, tokens[:, 1:, None], -1).mean()


# a mixture of experts: every token goes to its best expert, as far as that has room

EXPERTS, EXPERT_WIDTH = 32, 256


def _moe_weights(random: np.random.Generator) -> Tree:
    return {
        "table": _normal(random, VOCABULARY, WIDTH),
        "router": _normal(random, WIDTH, EXPERTS),
        "expert_up": _normal(random, EXPERTS, WIDTH, EXPERT_WIDTH),
        "expert_down": _normal(random, EXPERTS, EXPERT_WIDTH, WIDTH),
        "head": _normal(random, WIDTH, VOCABULARY),
    }


def _moe_loss(weights: Tree, batch: Tree, spread: P, within: P) -> Any:
    """``spread`` is how activations lie, ``within`` how those of the experts do: expert, row, slot, feature."""
    tokens = batch["tokens"]
    x = lax.with_sharding_constraint(weights["table"][tokens], spread)
    room = 2 * tokens.shape[1] // EXPERTS
    chances = jax.nn.softmax(_normed(x) @ weights["router"])
    best = chances.argmax(-1)
    chosen = jax.nn.one_hot(best, EXPERTS)
    place = (chosen.cumsum(1) - 1) * chosen
    sent = chosen[..., None] * jax.nn.one_hot(place.astype(np.int32), room)
    given = jnp.einsum("bsec,bsw->ebcw", sent, x)
    made = jax.nn.relu(jnp.einsum("ebcw,ewf->ebcf", given, weights["expert_up"]))
    made = lax.with_sharding_constraint(made, within)
    made = jnp.einsum("ebcf,efw->ebcw", made, weights["expert_down"])
    x = x + jnp.einsum("ebcw,bsec->bsw", made, sent * chances.max(-1)[..., None, None])
    scores = jax.nn.log_softmax(_normed(x) @ weights["head"])[:, :-1]
    return -jnp.take_along_axis(scores, tokens[:, 1:, None], -1).mean()


# a convolutional net: residual blocks, normalised, pooled

FEATURES, BLOCKS, CLASSES = 64, 2, 32


def _net_weights(random: np.random.Generator) -> Tree:
    blocks = {f"block{n}": _normal(random, 3, 3, FEATURES, FEATURES) / 3 for n in range(2 * BLOCKS)}
    return {"stem": _normal(random, 3, 3, 4, FEATURES), "head": _normal(random, FEATURES, CLASSES), **blocks}


def _images(rows: int, size: int, random: np.random.Generator) -> Tree:
    images = random.standard_normal((rows, size, size, 4)).astype(np.float32)
    return {"images": images, "labels": random.integers(0, CLASSES, (rows,)).astype(np.int32)}


def _convolved(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _net_loss(weights: Tree, batch: Tree) -> Any:
    x = _convolved(batch["images"], weights["stem"])
    x = lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for n in range(BLOCKS):
        y = jax.nn.relu(_convolved(x, weights[f"block{2 * n}"]))
        y = (y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + 1e-5)
        x = x + _convolved(y, weights[f"block{2 * n + 1}"])
    scores = jax.nn.log_softmax(x.mean((1, 2)) @ weights["head"])
    return -jnp.take_along_axis(scores, batch["labels"][:, None], -1).mean()


def _first(_: str, shape: tuple[int, ...]) -> P:
    return P("d")


def _whole(_: str, shape: tuple[int, ...]) -> P:
    return P()


def _longest(_: str, shape: tuple[int, ...]) -> P:
    """Fully sharded: the longest dim, of layers not that of the layers."""
    start = 1 if len(shape) > 2 and shape[0] == LAYERS else 0
    longest = max(range(start, len(shape)), key=lambda dim: shape[dim])
    return P(*("d" if dim == longest else None for dim in range(len(shape))))


_TENSOR = {"qkv": P(None, None, None, "d"), "out": P(None, "d"), "up": P(None, None, "d"), "down": P(None, "d")}
_TENSOR |= {"table": P("d"), "head": P(None, "d"), "expert_up": P(None, None, "d"), "expert_down": P(None, "d")}


def _tensor(name: str, shape: tuple[int, ...]) -> P:
    return _TENSOR.get(name, P())


def _features(name: str, shape: tuple[int, ...]) -> P:
    """Kernels make parts of the features, those that end a block take parts of them."""
    ends = name in [f"block{2 * n + 1}" for n in range(BLOCKS)]
    return P("d") if name == "head" else P(None, None, "d") if ends else P(None, None, None, "d")


def _experts(name: str, shape: tuple[int, ...]) -> P:
    return P("d") if name.startswith("expert") else P()


def _second(_: str, shape: tuple[int, ...]) -> P:
    return P(None, "d") if len(shape) > 1 else P()


_transformer = partial(_train, _transformer_loss, 2)
_by_rows = partial(_train, partial(_transformer_loss, spread=P("d")), 2)
_in_sequence = partial(_train, partial(_transformer_loss, spread=P(None, "d")), 2)
_ROWS, _LENGTHS = P("d"), P(None, "d")
_moe_by_rows, _moe_by_features, _moe_in_sequence, _moe_by_experts = (
    partial(_train, partial(_moe_loss, spread=spread, within=within), 2)
    for spread, within in (
        (_ROWS, P(None, "d")),
        (_ROWS, P(None, None, None, "d")),
        (_LENGTHS, P(None, None, "d")),
        (_ROWS, P("d")),
    )
)
_net = partial(_train, _net_loss, 1)
_rows, _long = partial(_tokens, 64, 64), partial(_tokens, 4, 1024)
_pictures = partial(_images, 32, 32)

STEPS = {
    "transformer, batch": Step(_transformer, _transformer_weights, _rows, _whole, _first),
    "transformer, fully sharded": Step(_by_rows, _transformer_weights, _rows, _longest, _first),
    "transformer, tensor": Step(_transformer, _transformer_weights, _rows, _tensor, _whole),
    "transformer, sequence": Step(_in_sequence, _transformer_weights, _long, _whole, _second),
    "experts, batch": Step(_moe_by_rows, _moe_weights, _rows, _whole, _first),
    "experts, fully sharded": Step(_moe_by_rows, _moe_weights, _rows, _longest, _first),
    "experts, tensor": Step(_moe_by_features, _moe_weights, _rows, _tensor, _first),
    "experts, sequence": Step(_moe_in_sequence, _moe_weights, _long, _whole, _second),
    "experts, expert": Step(_moe_by_experts, _moe_weights, _rows, _experts, _first),
    "convolutions, batch": Step(_net, _net_weights, _pictures, _whole, _first),
    "convolutions, fully sharded": Step(_net, _net_weights, _pictures, _longest, _first),
    "convolutions, tensor": Step(_net, _net_weights, _pictures, _features, _whole),
    "convolutions, space": Step(_net, _net_weights, partial(_images, 4, 128), _whole, _second),
}
