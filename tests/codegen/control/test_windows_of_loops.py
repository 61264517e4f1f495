"""Windows that a loop's counter places are read where they are by kernels of every kind: values of XLA, no copies."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax

import neuronx_cc

LAYERS = 5
RNG = np.random.default_rng(0)


def normal(*dims: int) -> Any:
    return (RNG.standard_normal(dims) * dims[-1] ** -0.5).astype(np.float32)


def below(high: int, *dims: int) -> Any:
    return RNG.integers(0, high, dims).astype(np.int32)


def conv(x: Any, w: Any, last: bool = True, groups: int = 1) -> Any:
    names = ("NHWC", "HWIO", "NHWC") if last else None
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=names, feature_group_count=groups)


def pooled(x: Any) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def attention(query: Any, keys: Any, values: Any) -> Any:
    return jax.nn.softmax(query @ keys.swapaxes(-1, -2) * 0.1, -1) @ values


def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.grad(lambda *args: (f(*args) ** 2).sum())


def each(f: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """A step that makes a result of each window."""
    return lambda count, x: (count + 1, f(x))


NONE = np.float32(0)
IMAGES, FIRST = normal(2, 8, 8, 16), normal(2, 16, 8, 8)
MATRICES = normal(LAYERS, 64, 64)
STEPS: dict[str, tuple[Callable[[Any, Any], Any], Any, Any]] = {
    # step of (state, window) -> (state, result); state; arrays with a window for each iteration
    "columns": (lambda c, w: (jnp.tanh(c @ w), c.sum()), normal(4, 64), MATRICES),
    "columns transposed": (lambda c, w: (jnp.tanh(c @ w.T), ()), normal(4, 200), normal(LAYERS, 200, 200)),
    "rows": (lambda c, w: (jnp.tanh(w @ c), ()), normal(64, 4), MATRICES),
    "both": (lambda c, w: (c + w[0] @ w[1], ()), normal(64, 64), (MATRICES, normal(LAYERS, 64, 64))),
    "batched": (lambda c, w: (jnp.tanh(c @ w), ()), normal(3, 4, 64), normal(LAYERS, 3, 64, 64)),
    "bias": (lambda c, w: (jnp.tanh(c @ w[0] + w[1]), ()), normal(4, 64), (MATRICES, normal(LAYERS, 64))),
    "sum with": (lambda c, w: (c @ w[0] + w[1], ()), normal(130, 64), (MATRICES, normal(LAYERS, 130, 64))),
    "kernels": (lambda c, w: (jnp.tanh(conv(c, w)), ()), IMAGES, normal(LAYERS, 3, 3, 16, 16)),
    "depthwise": (lambda c, w: (jnp.tanh(conv(c, w, groups=16)), ()), IMAGES, normal(LAYERS, 3, 3, 1, 16)),
    "images": (lambda c, x: (c + conv(x, c).mean() * c, ()), normal(3, 3, 16, 16), normal(LAYERS, 2, 8, 8, 16)),
    "gradients of kernels": (
        lambda c, x: (c + 0.01 * gradient(lambda w: jnp.tanh(conv(x, w, False)))(c), ()),
        *(normal(16, 16, 3, 3), normal(LAYERS, 2, 16, 8, 8)),
    ),
    "gradients of images": (
        lambda c, w: (c + 0.01 * gradient(lambda x: jnp.tanh(conv(x, w, False)))(c), ()),
        *(FIRST, normal(LAYERS, 16, 16, 3, 3)),
    ),
    "sums": (each(lambda x: [x.sum(axis) for axis in (0, 1, (0, 2), -1)]), NONE, normal(LAYERS, 33, 17, 65)),
    "initial values": (
        lambda c, x: (c + lax.reduce(x[0], x[1], lax.max, (0,)), ()),
        *(normal(70), (normal(LAYERS, 130, 70), normal(LAYERS))),
    ),
    "pooling": (each(pooled), NONE, normal(LAYERS, 2, 9, 9, 5)),
    "gradients of pooling": (each(gradient(pooled)), NONE, normal(LAYERS, 2, 9, 9, 5)),
    "running sums": (each(lambda x: [jnp.cumsum(x, axis) for axis in (0, 1)]), NONE, normal(LAYERS, 70, 300)),
    "long running sums": (each(lambda x: lax.cummax(x, axis=1)), NONE, normal(LAYERS, 3, 20000)),
    "sorts": (each(lambda x: [jnp.sort(x, 1), *lax.top_k(x, 5), jnp.argmax(x, 1)]), NONE, normal(LAYERS, 7, 50)),
    "gathers": (each(lambda x: x[jnp.array([3, 1, 3, 0])]), NONE, normal(LAYERS, 7, 800)),
    "windows of windows": (lambda c, x: ((c + 1) % 7, x[c] + x[c, 0]), np.int32(0), normal(LAYERS, 7, 800)),
    "indices": (lambda c, i: (c, c[i]), normal(50, 12), below(50, LAYERS, 9)),
    "updates": (
        lambda c, x: (c.at[x[0]].add(x[1]), ()),
        *(normal(50, 12), (below(50, LAYERS, 9), normal(LAYERS, 9, 12))),
    ),
    "attentions": (
        lambda c, x: (attention(c, *x), ()),
        *(normal(2, 300, 64), (normal(LAYERS, 2, 384, 64), normal(LAYERS, 2, 384, 64))),
    ),
    "decoding": (
        lambda c, x: (attention(c, *x), ()),
        *(normal(2, 1, 64), (normal(LAYERS, 2, 384, 64), normal(LAYERS, 2, 384, 64))),
    ),
    "pads and pieces": (
        each(lambda x: jnp.concatenate([jnp.pad(x, ((1, 2), (3, 0))), jnp.ones((2, 23)), x[:, :1].repeat(23, 1)])),
        *(NONE, normal(LAYERS, 7, 20)),
    ),
    "transposes": (lambda c, x: (c + x.T, (x.T * 2, x[::-1], x[:, ::2])), normal(70, 130), normal(LAYERS, 130, 70)),
    "numbers": (
        lambda c, x: (jnp.where(x[0] > 0, c, x[1]), ()),
        *(normal(130, 70), (normal(LAYERS), normal(LAYERS, 130, 70))),
    ),
    "inner loops": (
        lambda c, x: (lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ x[i]), c), ()),
        *(normal(4, 64), normal(LAYERS, 3, 64, 64)),
    ),
    "given to inner loops": (
        lambda c, x: (lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(s[1] @ x)), (0, c))[1], ()),
        *(normal(4, 64), MATRICES),
    ),
    "branches": (
        lambda c, x: (lax.switch(x[0], [lambda c: c + 1, lambda c: c * x[1].sum(), lambda c: c @ x[1]], c), ()),
        *(normal(4, 64), (np.array([0, 1, 2, 1, 0], np.int32), MATRICES)),
    ),
    "factors": (lambda c, x: (jnp.linalg.solve(x + 8 * jnp.eye(16), c), ()), normal(16, 3), normal(LAYERS, 16, 16)),
}


@pytest.mark.parametrize("name", STEPS)
def test_readers(name: str) -> None:
    step, state, windows = STEPS[name]
    leaves, tree = jax.tree.flatten((state, windows))
    check_function(lambda *leaves: lax.scan(step, *jax.tree.unflatten(tree, leaves)), *leaves)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_windows_along_any_dim(axis: int) -> None:
    def layers(x: Any, weights: Any) -> Any:
        return lax.fori_loop(
            *(0, LAYERS),
            lambda i, x: jnp.tanh(x @ lax.dynamic_index_in_dim(weights, i, axis, keepdims=False) + x * 0.1),
            x,
        )

    check_function(layers, normal(4, 64), np.moveaxis(MATRICES, 0, axis))


@pytest.mark.parametrize("rows", [1, 16, 130])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_read_once(rows: int, dtype: str) -> None:
    """Layers under a scan move as many bytes as the same layers one after the other, and little more."""

    def layer(x: Any, weights: Any) -> Any:
        return jnp.tanh(jax.nn.relu(x @ weights[0]) @ weights[1])

    def scanned(x: Any, weights: Any) -> Any:
        return lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0]

    def unrolled(x: Any, weights: Any) -> Any:
        for index in range(LAYERS):
            x = layer(x, [each[index] for each in weights])
        return x

    shapes = [(rows, 512), [(LAYERS, 512, 1024), (LAYERS, 1024, 512)]]
    x, weights = jax.tree.map(
        lambda dims: jax.ShapeDtypeStruct(dims, jnp.dtype(dtype)), shapes, is_leaf=lambda x: isinstance(x, tuple)
    )
    moved = []
    for function in (scanned, unrolled):
        executable = neuronx_cc.compile(jax.jit(function).lower(x, weights), auto_cast="none")
        moved.append(executable.run([], timing_only=True, check_races=False).report.summary["dma_total_bytes"])
    assert moved[0] < 1.1 * moved[1]
