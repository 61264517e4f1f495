"""A transformer layer with its gradients as PyTorch/XLA writes it for the vendor's compiler, on several devices.

Four ways to share the work: tensors (heads and features apart), data, weights fully sharded, and stages of a pipeline
with a module for each rank. No graph says for how many devices it is; collectives of several operands have a scalar
token among arrays. ``reference`` is the same layer on one device, by JAX.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from xla_graphs import EPSILON, Graph, Value

Array = np.ndarray[Any, Any]
TIME, WIDTH, HEADS, HIDDEN = 6, 16, 8, 32
RATE = 0.1
WEIGHTS = {
    "norm1": (WIDTH,), "shift1": (WIDTH,), "query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "value": (WIDTH, WIDTH),
    "project": (WIDTH, WIDTH), "norm2": (WIDTH,), "shift2": (WIDTH,), "up": (WIDTH, HIDDEN), "bias": (HIDDEN,),
    "down": (HIDDEN, WIDTH),
}  # fmt: skip
"""Of one layer, by name."""
SPLIT = {"query": 1, "key": 1, "value": 1, "project": 0, "up": 1, "bias": 0, "down": 0}
"""Dim of the weights that tensor parallelism divides."""


def groups(*rows: Sequence[int]) -> str:
    return "replica_groups={" + ",".join("{" + ",".join(map(str, row)) + "}" for row in rows) + "}"


def summed(graph: Graph, x: Value, over: str) -> Value:
    (value,) = graph.several("all-reduce", [x], [x.dims], f"{over}, constrain_layout=true, to_apply=%AddComputation.1")
    return value


def layer(graph: Graph, x: Value, w: dict[str, Value], share: int = 1, over: str = "") -> Value:
    """Of rows [sequences * TIME, WIDTH]; with a ``share`` of heads and features, summed ``over`` groups of devices."""

    def whole(value: Value) -> Value:
        """The sum of all devices' parts; its gradient is every device's."""
        return graph.recorded(summed(graph, value, over), (value,), lambda g: (g,)) if over else value

    def each(value: Value) -> Value:
        """What every device reads; the parts of its gradient are summed."""
        if not over:
            return value
        copied = graph.emit("copy", value.dims, str(value))
        return graph.recorded(copied, (value,), lambda g: (summed(graph, g, over),))

    count, heads, size = x.dims[0] // TIME, HEADS // share, WIDTH // HEADS

    def by_head(value: Value, order: Sequence[int]) -> Value:
        apart = graph.turned(graph.reshape(value, (count, TIME, heads, size)), order)
        return graph.reshape(apart, (count * heads, *apart.dims[2:]))

    normal = each(graph.norm(x, w["norm1"], w["shift1"]))
    query, key, value = (graph.product(normal, w[name]) for name in ("query", "key", "value"))
    scores = graph.product(by_head(query, (0, 2, 1, 3)), by_head(key, (0, 2, 3, 1)))
    scores = graph.times(scores, graph.number(size**-0.5, scores.dims))
    shares = graph.call("AwsNeuronSoftmax", scores, "AwsNeuronSoftmaxBackward", by_result=True)
    heard = graph.product(shares, by_head(value, (0, 2, 1, 3)))
    rows = graph.turned(graph.reshape(heard, (count, heads, TIME, size)), (0, 2, 1, 3))
    x = graph.add(x, whole(graph.product(graph.reshape(rows, (count * TIME, heads * size)), w["project"])))
    hidden = graph.product(each(graph.norm(x, w["norm2"], w["shift2"])), w["up"])
    hidden = graph.add(hidden, graph.rows(w["bias"], hidden))
    hidden = graph.call("AwsNeuronGelu", hidden, "AwsNeuronGeluBackward", by_result=False)
    return graph.add(x, whole(graph.product(hidden, w["down"])))


def _given(graph: Graph, dims: dict[str, tuple[int, ...]]) -> dict[str, Value]:
    return {name: graph.parameter(each) for name, each in dims.items()}


def tensor(devices: int) -> str:
    """Parameters x, the gradient of the result, weights (parts of some); results y, and gradients of x and weights."""
    graph, rows = Graph(), (2 * TIME, WIDTH)
    x, g = graph.parameter(rows), graph.parameter(rows)
    parts = {name: part(np.empty(dims), name, 0, devices).shape for name, dims in WEIGHTS.items()}
    w = _given(graph, parts)
    y = layer(graph, x, w, devices, groups(range(devices)))
    return graph.text([y, *graph.backward(y, g, [x, *w.values()])])


def part(weight: Array, name: str, device: int, devices: int) -> Array:
    """What a device has of a weight where tensors are divided."""
    return np.split(weight, devices, SPLIT[name])[device] if name in SPLIT else weight


def data(devices: int) -> str:
    """Rows of its own for each device; gradients are averaged, all at once and with the token, a parameter behind."""
    graph, rows = Graph(), (TIME, WIDTH)
    x, g = graph.parameter(rows), graph.parameter(rows)
    w = _given(graph, WEIGHTS)
    token = graph.parameter(())
    y = layer(graph, x, w)
    found = [*graph.backward(y, g, [*w.values()]), token]
    over = f"{groups(range(devices))}, constrain_layout=true, to_apply=%AddComputation.1"
    totals = graph.several("all-reduce", found, [each.dims for each in found], over)
    return graph.text([y, *(graph.pair("multiply", each, graph.number(1 / devices, each.dims)) for each in totals)])


def sharded(devices: int) -> str:
    """Weights in parts along their first dim, gathered all at once; a step of SGD on the parts of their gradients."""
    graph, rows = Graph(), (TIME, WIDTH)
    x, g = graph.parameter(rows), graph.parameter(rows)
    parts = _given(graph, {name: (first // devices, *rest) for name, (first, *rest) in WEIGHTS.items()})
    token = graph.parameter(())
    every = f"{groups(range(devices))}, dimensions={{0}}"
    given = [*parts.values(), token]
    whole = graph.several("all-gather", given, [*WEIGHTS.values(), ()], every)
    w = dict(zip(WEIGHTS, whole[:-1], strict=True))
    y = layer(graph, x, w)
    found = [*graph.backward(y, g, [*w.values()]), whole[-1]]
    more = f"{every}, constrain_layout=true, to_apply=%AddComputation.1"
    scattered = graph.several("reduce-scatter", found, [each.dims for each in given], more)
    pairs = zip(parts.values(), scattered, strict=False)
    steps = [graph.pair("subtract", w, graph.pair("multiply", g, graph.number(RATE, g.dims))) for w, g in pairs]
    return graph.text([y, *steps, scattered[-1]])


def stage(rank: int, ranks: int) -> str:
    """A layer for each rank, whose activations, and whose gradients back, come by sums of two ranks with zeros.

    Parameters: the layer's weights, then x of the first rank and the result's gradient of the last one.
    Results: the activations, the gradient of the rank's input, gradients of weights.
    """
    graph, rows = Graph(), (TIME, WIDTH)
    w = _given(graph, WEIGHTS)
    ahead, behind = groups((rank - 1, rank)), groups((rank, rank + 1))
    x = summed(graph, graph.number(0.0, rows), ahead) if rank else graph.parameter(rows)
    y = layer(graph, x, w)
    if rank < ranks - 1:
        summed(graph, y, behind)
        g = summed(graph, graph.number(0.0, rows), behind)
    else:
        g = graph.parameter(rows)
    back, *gradients = graph.backward(y, g, [x, *w.values()])
    if rank:
        summed(graph, back, ahead)
    return graph.text([y, back, *gradients])


def weights(seed: int) -> dict[str, Array]:
    draw = np.random.default_rng(seed)
    return {
        name: (draw.standard_normal(dims) / (4 if len(dims) > 1 else 1)).astype(np.float32)
        for name, dims in WEIGHTS.items()
    }


def reference(x: Array, w: dict[str, Array], g: Array) -> tuple[Array, Array, dict[str, Array]]:
    """On one device, by JAX: the result, and gradients of ``x`` and of the weights for ``g`` of the result."""
    import jax

    with jax.default_device(jax.devices("cpu")[0]), jax.default_matmul_precision("highest"):
        y, dx, dw = _compiled()(x, w, g)
    return np.asarray(y), np.asarray(dx), {name: np.asarray(each) for name, each in dw.items()}


@cache
def _compiled() -> Any:
    import jax
    import jax.numpy as jnp

    def norm(x: Any, weight: Any, shift: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * weight + shift

    def forward(x: Any, w: dict[str, Any]) -> Any:
        normal, heads = norm(x, w["norm1"], w["shift1"]), (-1, TIME, HEADS, WIDTH // HEADS)
        query, key, value = ((normal @ w[name]).reshape(heads) for name in ("query", "key", "value"))
        shares = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", query, key) * (WIDTH // HEADS) ** -0.5)
        x = x + jnp.einsum("bhts,bshd->bthd", shares, value).reshape(x.shape) @ w["project"]
        hidden = jax.nn.gelu(norm(x, w["norm2"], w["shift2"]) @ w["up"] + w["bias"], approximate=False)
        return x + hidden @ w["down"]

    def with_gradients(x: Any, w: dict[str, Any], g: Any) -> Any:
        y, back = jax.vjp(forward, x, w)
        return y, *back(g)

    return jax.jit(with_gradients)
