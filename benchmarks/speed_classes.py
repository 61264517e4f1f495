"""One program for each kind of work, at a size where jaxlib takes from a fraction of a millisecond to some tens."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Program = tuple[Callable[..., Any], list[Any]]


def classes() -> dict[str, Program]:
    """Functions and their arguments, by name."""
    random = np.random.default_rng(0)

    def floats(*dims: int) -> Any:
        return random.standard_normal(dims, np.float32)

    def below(high: int, *dims: int) -> Any:
        return random.integers(0, high, dims, np.int32)

    return {
        **_integers(below),
        **_elements(floats),
        **_products(floats),
        **_indexing(floats, below),
        **_control(floats, below),
    }


def _integers(below: Callable[..., Any]) -> dict[str, Program]:
    a, b = below(1 << 30, 1024, 1024), below(1 << 30, 1024, 1024) + 1
    small = below(127, 512, 512)
    key = np.arange(4, dtype=np.uint32)
    return {
        "integer arithmetic": (lambda a, b: ((a * b + (a ^ b)) >> 3) - (a & b), [a, b]),
        "integer division": (lambda a, b: a // b + a % (b & 1023 | 1), [a, b]),
        "integer product, wide": (lambda a, b: a @ b, [a[:256, :256], b[:256, :256]]),
        "integer product, 8 bits": (
            lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32),
            [small.astype(np.int8), small.astype(np.int8)],
        ),
        "popcount, clz": (lambda a: lax.population_count(a) + lax.clz(a), [a]),
        "integer sums": (lambda a: jnp.sum(a, axis=1), [a]),
        "integer cumsum": (lambda a: jnp.cumsum(a, axis=1), [a]),
        "threefry bits": (lambda k: jax.random.bits(k, (1024, 1024)), [key[:2]]),
        "rbg bits": (lambda k: lax.rng_bit_generator(k, (1024, 1024), jnp.uint32)[1], [key]),
        "rbg normal": (lambda k: jax.random.normal(jax.random.wrap_key_data(k, impl="rbg"), (512, 1024)), [key]),
        "sort": (lambda a: jnp.sort(a, axis=1), [a[:256]]),
        "argsort": (lambda a: jnp.argsort(a, axis=1), [a[:128]]),
        "top 16": (lambda a: lax.top_k(a, 16), [a[:128].astype(np.float32)]),
    }


def _elements(floats: Callable[..., Any]) -> dict[str, Program]:
    x, y = floats(1024, 1024), floats(1024, 1024)
    images, scale = floats(16, 32, 32, 64), floats(64)

    def pick(a: Any, b: Any) -> Any:
        larger = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return tuple(jnp.where(larger, p, q) for p, q in zip(a, b, strict=True))

    def largest(x: Any) -> Any:
        index = lax.broadcasted_iota(jnp.int32, x.shape, 1)
        return lax.reduce((x, index), (-jnp.inf, jnp.int32(1 << 30)), pick, (1,))

    def normalised(x: Any, scale: Any) -> Any:
        mean, variance = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
        return (x - mean) * lax.rsqrt(variance + 1e-5) * scale, mean, variance

    return {
        "add": (lambda x, y: x + y, [x, y]),
        "gelu": (lambda x: jax.nn.gelu(x), [x]),
        "erf": (lambda x: lax.erf(x), [x]),
        "sine": (lambda x: jnp.sin(x), [x]),
        "power": (lambda x, y: jnp.abs(x) ** y, [x, y]),
        "log": (lambda x: jnp.log(jnp.abs(x)), [x]),
        "bf16 arithmetic": (lambda x, y: x * y + x, [x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)]),
        "softmax": (lambda x: jax.nn.softmax(x), [x]),
        "layer norm": (lambda x: (x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1, keepdims=True) + 1e-5), [x]),
        "batch norm, training": (normalised, [images, scale]),
        "batch norm, gradient": (jax.grad(lambda x, s: jnp.sum(normalised(x, s)[0] ** 3), (0, 1)), [images, scale]),
        "column sums": (lambda x: jnp.sum(x, axis=0), [x]),
        "reduction of pairs": (largest, [x]),
        "argmax": (lambda x: jnp.argmax(x, axis=1), [x]),
        "cumulative sum": (lambda x: jnp.cumsum(x, axis=1), [x]),
        "transpose": (lambda x: x.T + 1, [x]),
        "concatenate, reverse": (lambda x, y: jnp.concatenate([x[:, ::-1], y], 1), [x, y]),
        "select": (lambda x, y: jnp.where(x > y, x, -y), [x, y]),
        "complex product": (lambda x, y: lax.complex(x, y) * lax.complex(y, x), [x, y]),
        "FFT": (lambda x: jnp.fft.fft(x).real, [x[:64]]),
    }


def _products(floats: Callable[..., Any]) -> dict[str, Program]:
    x, y = floats(1024, 1024), floats(1024, 1024)
    image, kernel = floats(4, 28, 28, 128), floats(3, 3, 128, 128)
    dims = ("NHWC", "HWIO", "NHWC")
    query = floats(4, 12, 128, 64)
    spd = x[:128, :128] @ x[:128, :128].T + 128 * np.eye(128, dtype=np.float32)

    def pooled(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    return {
        "matmul f32": (lambda x, y: x @ y, [x, y]),
        "matmul bf16": (lambda x, y: x @ y, [x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)]),
        "matrix-vector": (lambda x, y: x @ y, [x, y[0]]),
        "attention": (lambda q: jax.nn.softmax(q @ q.swapaxes(2, 3) * 0.125) @ q, [query]),
        "convolution": (
            lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=dims),
            [image, kernel],
        ),
        "max pooling": (pooled, [image]),
        "max pooling, gradient": (jax.grad(lambda x: jnp.sum(pooled(x) ** 2)), [image]),
        "Cholesky": (lambda x: jnp.linalg.cholesky(x), [spd]),
    }


def _indexing(floats: Callable[..., Any], below: Callable[..., Any]) -> dict[str, Program]:
    flat, where, rows, ids = floats(1 << 16), below(1 << 16, 1 << 16), floats(16384, 64), below(1000, 16384)
    table = floats(8192, 256)
    return {
        "gather of rows": (lambda t, i: t[i], [table, below(8192, 4096)]),
        "gather of scalars": (lambda x, i: x[i], [flat, where]),
        "take along axis": (lambda x, i: jnp.take_along_axis(x, i, 1), [table[:512], below(256, 512, 256)]),
        "scatter, replacing": (lambda x, i, u: x.at[i].set(u), [flat, where, flat + 1]),
        "scatter of rows, replacing": (lambda t, i, u: t.at[i].set(u), [table, below(8192, 2048), table[:2048]]),
        "scatter-add": (lambda x, i, u: x.at[i].add(u), [flat, where, flat]),
        "scatter-max": (lambda x, i, u: x.at[i].max(u), [flat[:4096], where[:4096] & 4095, flat[:4096]]),
        "segment sums": (lambda x, i: jax.ops.segment_sum(x, i, 1000), [rows, ids]),
        "histogram": (lambda i: jnp.bincount(i, length=1000), [ids]),
        "dynamic update": (lambda t, u, i: lax.dynamic_update_slice(t, u, (i, 0)), [table, table[:64], np.int32(700)]),
    }


def _control(floats: Callable[..., Any], below: Callable[..., Any]) -> dict[str, Program]:
    square, vector = floats(64, 64) / 16, floats(64)
    features, thresholds, choice = floats(4096, 32), floats(63, 50), below(32, 63, 50)
    leaves = floats(64, 50)
    embedding, weights = floats(1000, 128), floats(128, 128) / 16

    def trees(x: Any, thresholds: Any, choice: Any, leaves: Any) -> Any:
        each = jnp.arange(50)
        node = jnp.zeros((x.shape[0], 50), jnp.int32)
        for _ in range(6):
            value = jnp.take_along_axis(x, choice[node, each], 1)
            node = 2 * node + 1 + (value > thresholds[node, each])
        return leaves[node - 63, each].sum(1)

    def tokens(start: Any, embedding: Any, weights: Any) -> Any:
        def step(state: Any) -> Any:
            i, token, hidden, out = state
            hidden = jnp.tanh(embedding[token] + hidden @ weights)
            token = jnp.argmax(embedding @ hidden).astype(jnp.int32)
            return i + 1, token, hidden, out.at[i].set(token)

        first = (jnp.int32(0), start, jnp.zeros(128), jnp.zeros(64, jnp.int32))
        return lax.while_loop(lambda state: (state[0] < 64) & (state[1] >= 0), step, first)[3]

    def newton(x: Any) -> Any:
        return lax.while_loop(
            lambda s: (s[0] < 1000) & (s[1] > -1), lambda s: (s[0] + 1, s[1] * 0.5 + 1 / s[1]), (0, x)
        )

    return {
        "decision trees": (trees, [features, thresholds, choice, leaves]),
        "token loop": (tokens, [np.int32(1), embedding, weights]),
        "scan of a small cell": (
            lambda w, x: lax.scan(lambda h, _: (jnp.tanh(w @ h), h), x, None, length=200),
            [square, vector],
        ),
        "fori loop, vectors": (lambda x: lax.fori_loop(0, 500, lambda i, x: x * 0.99 + jnp.sin(x), x), [vector]),
        "while loop, scalars": (newton, [np.float32(3)]),
        "branch in a loop": (
            lambda x: lax.fori_loop(0, 200, lambda i, x: lax.cond(x[0] > 0, lambda y: y - 1, lambda y: y + 2.5, x), x),
            [vector],
        ),
    }
