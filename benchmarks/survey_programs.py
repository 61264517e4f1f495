"""Small programs of many fields, drawn by seed: for each kind a function, and the shapes of its arguments.

A kind is a function of ``Draw`` that is marked by ``@kind``. Sizes are drawn evenly by their logarithms, half of them
as multiples of 8, so that neighbours of common sizes come up as often as these.
"""

import math
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Dims = tuple[int, ...]
Program = tuple[Callable[..., Any], list[Dims]]


class Draw(random.Random):
    """Draws sizes."""

    def size(self, low: int, high: int) -> int:
        """Between ``low`` and ``high``."""
        size = round(math.exp(self.uniform(math.log(low), math.log(high))))
        return max(low, size // 8 * 8) if size >= 16 and self.random() < 0.5 else size


KINDS: dict[str, Callable[[Draw], Program]] = {}


def kind(function: Callable[[Draw], Program]) -> Callable[[Draw], Program]:
    """Adds a kind under its name."""
    KINDS[function.__name__] = function
    return function


def with_gradient(draw: Draw, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, or one time in three the gradients of half the squares of what it makes by all that is given."""
    if draw.random() > 1 / 3:
        return function

    def loss(given: Any) -> Any:
        return sum((made.astype(jnp.float32) ** 2).sum() for made in jax.tree.leaves(function(*given))) / 2

    return lambda *given: jax.grad(loss)(given)


# ---- statistics and learning


@kind
def k_means(draw: Draw) -> Program:
    n, d, k = draw.size(256, 16384), draw.size(2, 64), draw.size(3, 128)

    def step(x: Any, c: Any) -> Any:
        near = jnp.argmin((x * x).sum(1)[:, None] - 2 * x @ c.T + (c * c).sum(1), 1)
        one = jax.nn.one_hot(near, k)
        return one.T @ x / (one.sum(0)[:, None] + 1e-6)

    return step, [(n, d), (k, d)]


@kind
def gaussian_mixture(draw: Draw) -> Program:
    n, d, k = draw.size(256, 8192), draw.size(2, 32), draw.size(2, 64)

    def step(x: Any, m: Any, v: Any, w: Any) -> Any:
        logits = -0.5 * (((x[:, None] - m) ** 2) / v + jnp.log(v)).sum(-1) + jnp.log(w)
        r = jax.nn.softmax(logits, -1)
        total = r.sum(0)
        return total / n, (r.T @ x) / total[:, None], (r.T @ (x * x)) / total[:, None]

    return step, [(n, d), (k, d), (k, d), (k,)]


@kind
def covariance(draw: Draw) -> Program:
    n, d = draw.size(128, 8192), draw.size(4, 512)
    return lambda x: (lambda y: y.T @ y / (n - 1))(x - x.mean(0)), [(n, d)]


@kind
def logistic_regression(draw: Draw) -> Program:
    n, d = draw.size(128, 16384), draw.size(4, 512)

    def loss(w: Any, x: Any, y: Any) -> Any:
        z = x @ w
        return (jnp.logaddexp(0.0, z) - y * z).mean() + 1e-3 * (w * w).sum()

    return jax.grad(loss), [(d,), (n, d), (n,)]


@kind
def gaussian_process_kernel(draw: Draw) -> Program:
    n, m, d = draw.size(64, 2048), draw.size(64, 2048), draw.size(1, 16)

    def kernel(a: Any, b: Any, scale: Any) -> Any:
        a, b = a / scale, b / scale
        return (
            jnp.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1))
            if d < 4
            else jnp.exp(a @ b.T - 0.5 * (a * a).sum(1)[:, None] - 0.5 * (b * b).sum(1))
        )

    return kernel, [(n, d), (m, d), (d,)]


@kind
def mahalanobis(draw: Draw) -> Program:
    n, d = draw.size(128, 8192), draw.size(2, 96)
    return lambda x, m, p: jnp.einsum("ni,ij,nj->n", x - m, p, x - m), [(n, d), (d,), (d, d)]


@kind
def histogram(draw: Draw) -> Program:
    n, bins = draw.size(1024, 65536), draw.size(8, 256)

    def count(x: Any) -> Any:
        at = jnp.clip((x * bins).astype(jnp.int32), 0, bins - 1)
        return jnp.zeros(bins).at[at].add(1.0)

    return count, [(n,)]


@kind
def quantiles(draw: Draw) -> Program:
    n, d = draw.size(32, 2048), draw.size(2, 256)
    return lambda x: jnp.quantile(x, jnp.array([0.25, 0.5, 0.75]), axis=0), [(n, d)]


@kind
def online_normalisation(draw: Draw) -> Program:
    n, d = draw.size(64, 4096), draw.size(8, 1024)
    axis = draw.choice((0, 1))
    return lambda x: (x - x.mean(axis, keepdims=True)) / (x.std(axis, keepdims=True) + 1e-5), [(n, d)]


@kind
def tree_ensemble(draw: Draw) -> Program:
    n, d, trees, depth = draw.size(64, 4096), draw.size(4, 64), draw.size(2, 32), draw.randint(2, 4)

    def predict(x: Any, threshold: Any, leaves: Any) -> Any:
        bits = (x[:, None, :depth] > threshold).astype(jnp.float32)
        weights = 2.0 ** jnp.arange(depth)
        at = (bits * weights).sum(-1)
        return (jax.nn.one_hot(at.astype(jnp.int32), 2**depth) * leaves).sum((1, 2))

    return predict, [(n, d), (trees, depth), (trees, 2**depth)]


# ---- reinforcement learning


@kind
def advantages(draw: Draw) -> Program:
    steps, envs = draw.size(16, 512), draw.size(4, 256)

    def gae(reward: Any, value: Any, done: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            total, after = carry
            r, v, d = row
            total = r + 0.99 * after * (1 - d) - v + 0.95 * 0.99 * (1 - d) * total
            return (total, v), total

        start = (jnp.zeros(envs), value[-1])
        return lax.scan(step, start, (reward, value, done), reverse=True)[1]

    return gae, [(steps, envs)] * 3


@kind
def dueling_network(draw: Draw) -> Program:
    n, d, h, a = draw.size(1, 512), draw.size(4, 64), draw.size(32, 256), draw.size(2, 18)

    def q(x: Any, w: Any, b: Any, v: Any, u: Any) -> Any:
        y = jax.nn.relu(x @ w + b)
        advantage = y @ u
        return y @ v + advantage - advantage.mean(-1, keepdims=True)

    return q, [(n, d), (d, h), (h,), (h, 1), (h, a)]


@kind
def policy_loss(draw: Draw) -> Program:
    n, a = draw.size(64, 8192), draw.size(2, 18)

    def loss(logits: Any, old: Any, advantage: Any) -> Any:
        new = jax.nn.log_softmax(logits)
        ratio = jnp.exp(new - old)
        clipped = jnp.clip(ratio, 0.8, 1.2)
        entropy = -(jnp.exp(new) * new).sum(-1)
        return -(jnp.minimum(ratio * advantage, clipped * advantage)).mean() - 0.01 * entropy.mean()

    return jax.grad(loss), [(n, a), (n, a), (n, 1)]


# ---- signals


@kind
def filter_bank(draw: Draw) -> Program:
    rows, n, taps = draw.size(1, 128), draw.size(128, 4096), draw.size(4, 64)
    return jax.vmap(lambda x, k: jnp.convolve(x, k, mode="same")), [(rows, n), (rows, taps)]


@kind
def moving_average(draw: Draw) -> Program:
    rows, n, w = draw.size(1, 128), draw.size(256, 8192), draw.size(2, 64)
    return lambda x: lax.reduce_window(x, 0.0, lax.add, (1, w), (1, 1), "VALID") / w, [(rows, n)]


@kind
def spectrogram(draw: Draw) -> Program:
    rows, hops, width = draw.size(1, 16), draw.size(8, 256), 2 ** draw.randint(5, 9)

    def transform(x: Any, window: Any) -> Any:
        at = jnp.arange(hops)[:, None] * (width // 2) + jnp.arange(width)
        frames = x[:, at] * window
        return jnp.abs(jnp.fft.rfft(frames)) ** 2

    return transform, [(rows, (hops + 1) * width // 2), (width,)]


@kind
def convolution_by_fft(draw: Draw) -> Program:
    rows, n = draw.size(1, 256), 2 ** draw.randint(6, 11)
    return lambda x, k: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(k)), [(rows, n), (1, n)]


@kind
def exponential_average(draw: Draw) -> Program:
    n, rows = draw.size(32, 1024), draw.size(1, 512)

    def smooth(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            carry = 0.9 * carry + 0.1 * row
            return carry, carry

        return lax.scan(step, jnp.zeros(rows), x)[1]

    return smooth, [(n, rows)]


@kind
def kalman_filter(draw: Draw) -> Program:
    steps, n, m = draw.size(8, 64), draw.size(2, 8), draw.size(1, 4)

    def run(a: Any, h: Any, q: Any, r: Any, zs: Any) -> Any:
        def step(carry: Any, z: Any) -> Any:
            x, p = carry
            x, p = a @ x, a @ p @ a.T + q
            s = h @ p @ h.T + r
            k = jnp.linalg.solve(s, h @ p).T
            x = x + k @ (z - h @ x)
            return (x, p - k @ h @ p), x

        return lax.scan(step, (jnp.zeros(n), jnp.eye(n)), zs)[1]

    return run, [(n, n), (m, n), (n, n), (m, m), (steps, m)]


# ---- images


@kind
def block_transform(draw: Draw) -> Program:
    h, w, b = draw.size(8, 64), draw.size(8, 64), draw.choice((4, 8, 16))

    def transform(x: Any, d: Any) -> Any:
        return jnp.einsum("ij,ajbk,lk->aibl", d, x.reshape(h, b, w, b), d).reshape(h * b, w * b)

    return transform, [(h * b, w * b), (b, b)]


@kind
def sobel(draw: Draw) -> Program:
    n, h, w = draw.size(1, 8), draw.size(32, 512), draw.size(32, 512)

    def edges(x: Any) -> Any:
        p = jnp.pad(x, ((0, 0), (1, 1), (1, 1)), mode="edge")
        gx = p[:, :-2, 2:] - p[:, :-2, :-2] + 2 * (p[:, 1:-1, 2:] - p[:, 1:-1, :-2]) + p[:, 2:, 2:] - p[:, 2:, :-2]
        gy = p[:, 2:, :-2] - p[:, :-2, :-2] + 2 * (p[:, 2:, 1:-1] - p[:, :-2, 1:-1]) + p[:, 2:, 2:] - p[:, :-2, 2:]
        return jnp.sqrt(gx * gx + gy * gy + 1e-9)

    return edges, [(n, h, w)]


@kind
def doubling(draw: Draw) -> Program:
    n, h, w, c = draw.size(1, 8), draw.size(8, 64), draw.size(8, 64), draw.size(3, 128)
    method = draw.choice(("nearest", "linear"))
    return lambda x: jax.image.resize(x, (n, 2 * h, 2 * w, c), method), [(n, h, w, c)]


@kind
def colours(draw: Draw) -> Program:
    n, h, w = draw.size(1, 16), draw.size(32, 256), draw.size(32, 256)

    def convert(x: Any, m: Any, mean: Any) -> Any:
        y = jnp.einsum("nhwc,cd->nhwd", x / 255.0, m)
        return jnp.transpose((y - mean) / 0.25, (0, 3, 1, 2))

    return convert, [(n, h, w, 3), (3, 3), (3,)]


@kind
def structural_similarity(draw: Draw) -> Program:
    n, h, w = draw.size(1, 8), draw.size(32, 256), draw.size(32, 256)

    def mean(x: Any) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, (1, 7, 7), (1, 1, 1), "VALID") / 49.0

    def compare(x: Any, y: Any) -> Any:
        a, b = mean(x), mean(y)
        va, vb, c = mean(x * x) - a * a, mean(y * y) - b * b, mean(x * y) - a * b
        return ((2 * a * b + 1e-4) * (2 * c + 9e-4) / ((a * a + b * b + 1e-4) * (va + vb + 9e-4))).mean((1, 2))

    return compare, [(n, h, w)] * 2


@kind
def boxes(draw: Draw) -> Program:
    n, m = draw.size(16, 1024), draw.size(16, 1024)

    def overlap(a: Any, b: Any) -> Any:
        low = jnp.maximum(a[:, None, :2], b[None, :, :2])
        high = jnp.minimum(a[:, None, 2:], b[None, :, 2:])
        inner = jnp.clip(high - low, 0).prod(-1)
        areas = [(x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (a, b)]
        return inner / (areas[0][:, None] + areas[1] - inner)

    return overlap, [(n, 4), (m, 4)]


# ---- graphs, points and fields


@kind
def graph_attention(draw: Draw) -> Program:
    n, d, h = draw.size(32, 1024), draw.size(8, 128), draw.choice((1, 2, 4, 8))

    def layer(x: Any, adjacent: Any, w: Any, a: Any, b: Any) -> Any:
        y = (x @ w).reshape(n, h, -1)
        scores = jax.nn.leaky_relu((y * a).sum(-1)[:, None] + (y * b).sum(-1)[None], 0.2)
        scores = jnp.where(adjacent[..., None] > 0, scores, -1e9)
        return jnp.einsum("nmh,mhd->nhd", jax.nn.softmax(scores, 1), y).reshape(n, -1)

    return layer, [(n, d), (n, n), (d, h * 16), (h, 16), (h, 16)]


@kind
def graph_convolution(draw: Draw) -> Program:
    n, d, o = draw.size(32, 2048), draw.size(4, 256), draw.size(4, 256)

    def layer(x: Any, adjacent: Any, w: Any) -> Any:
        scale = lax.rsqrt(adjacent.sum(1) + 1)
        return jax.nn.relu((scale[:, None] * adjacent * scale) @ (x @ w))

    return layer, [(n, d), (n, n), (d, o)]


@kind
def messages(draw: Draw) -> Program:
    n, e, d = draw.size(32, 1024), draw.size(64, 4096), draw.size(4, 128)

    def layer(x: Any, source: Any, target: Any, w: Any) -> Any:
        at, to = ((each * n).astype(jnp.int32) for each in (source, target))
        return jax.ops.segment_sum(jax.nn.relu(x[at] @ w), to, n)

    return layer, [(n, d), (e,), (e,), (d, d)]


@kind
def page_rank(draw: Draw) -> Program:
    n, steps = draw.size(32, 2048), draw.randint(2, 12)
    return lambda m, x: lax.fori_loop(0, steps, lambda _, y: 0.85 * m @ y + 0.15 / n, x), [(n, n), (n,)]


@kind
def point_features(draw: Draw) -> Program:
    b, n, d, o = draw.size(1, 16), draw.size(64, 2048), draw.size(3, 64), draw.size(16, 256)
    return lambda x, w, c, u: jax.nn.relu(jax.nn.relu(x @ w + c) @ u).max(1), [(b, n, d), (d, o), (o,), (o, 2 * o)]


@kind
def pairwise_forces(draw: Draw) -> Program:
    n = draw.size(16, 1024)

    def energy(x: Any) -> Any:
        r2 = ((x[:, None] - x[None]) ** 2).sum(-1) + 1.0
        s = (1.0 / r2) ** 3
        return (s * s - s).sum()

    return jax.grad(energy), [(n, 3)]


@kind
def radiance_field(draw: Draw) -> Program:
    n, bands, h = draw.size(256, 8192), draw.randint(4, 10), draw.size(32, 256)

    def field(x: Any, w: Any, b: Any, u: Any) -> Any:
        angles = x[:, :, None] * 2.0 ** jnp.arange(bands)
        y = jnp.concatenate([x, jnp.sin(angles).reshape(n, -1), jnp.cos(angles).reshape(n, -1)], -1)
        y = jax.nn.relu(y @ w + b) @ u
        return jax.nn.sigmoid(y[:, :3]), jax.nn.softplus(y[:, 3])

    return field, [(n, 3), (3 + 6 * bands, h), (h,), (h, 4)]


@kind
def volume_rendering(draw: Draw) -> Program:
    rays, samples = draw.size(64, 4096), draw.size(16, 192)

    def render(density: Any, colour: Any, delta: Any) -> Any:
        alpha = 1 - jnp.exp(-density * delta)
        through = jnp.cumprod(jnp.concatenate([jnp.ones((rays, 1)), 1 - alpha[:, :-1] + 1e-10], -1), -1)
        return ((alpha * through)[..., None] * colour).sum(1)

    return render, [(rays, samples), (rays, samples, 3), (rays, samples)]


# ---- physics


@kind
def heat_equation(draw: Draw) -> Program:
    h, w, steps = draw.size(32, 512), draw.size(32, 512), draw.randint(2, 16)

    def step(_: Any, u: Any) -> Any:
        around = jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1)
        return u + 0.1 * (around - 4 * u)

    return lambda u: lax.fori_loop(0, steps, step, u), [(h, w)]


@kind
def spectral_layer(draw: Draw) -> Program:
    b, n, c, modes = draw.size(1, 8), 2 ** draw.randint(4, 7), draw.size(4, 64), draw.choice((4, 8, 12))
    modes = min(modes, n // 2)

    def layer(x: Any, real: Any, imag: Any, w: Any) -> Any:
        y = jnp.fft.rfft2(x, axes=(1, 2))[:, :modes, :modes]
        z = jnp.einsum("bxyi,xyio->bxyo", y, lax.complex(real, imag))
        full = jnp.zeros((b, n, n // 2 + 1, c), z.dtype).at[:, :modes, :modes].set(z)
        return jax.nn.gelu(jnp.fft.irfft2(full, (n, n), axes=(1, 2)) + x @ w)

    return layer, [(b, n, n, c), (modes, modes, c, c), (modes, modes, c, c), (c, c)]


@kind
def informed_network(draw: Draw) -> Program:
    n, h = draw.size(64, 4096), draw.size(16, 128)

    def u(x: Any, w: Any, b: Any, v: Any) -> Any:
        return (jnp.tanh(x @ w + b) @ v)[0]

    def loss(w: Any, b: Any, v: Any, points: Any) -> Any:
        def residual(x: Any) -> Any:
            return jnp.trace(jax.hessian(u)(x, w, b, v)) - u(x, w, b, v)

        return (jax.vmap(residual)(points) ** 2).mean()

    return jax.grad(loss, (0, 1, 2)), [(2, h), (h,), (h, 1), (n, 2)]


@kind
def pendulum(draw: Draw) -> Program:
    n, steps = draw.size(16, 2048), draw.randint(4, 32)

    def f(y: Any) -> Any:
        return jnp.stack([y[1], -jnp.sin(y[0])])

    def step(_: Any, y: Any) -> Any:
        a = f(y)
        b = f(y + 0.05 * a)
        c = f(y + 0.05 * b)
        d = f(y + 0.1 * c)
        return y + 0.1 / 6 * (a + 2 * b + 2 * c + d)

    return lambda y: lax.fori_loop(0, steps, step, y), [(2, n)]


@kind
def rigid_motion(draw: Draw) -> Program:
    n, p = draw.size(16, 2048), draw.size(1, 64)

    def move(q: Any, t: Any, x: Any) -> Any:
        w, a, b, c = jnp.moveaxis(q / jnp.linalg.norm(q, axis=-1, keepdims=True), -1, 0)
        rows = [
            [1 - 2 * (b * b + c * c), 2 * (a * b - w * c), 2 * (a * c + w * b)],
            [2 * (a * b + w * c), 1 - 2 * (a * a + c * c), 2 * (b * c - w * a)],
            [2 * (a * c - w * b), 2 * (b * c + w * a), 1 - 2 * (a * a + b * b)],
        ]
        rotation = jnp.stack([jnp.stack(row, -1) for row in rows], -2)
        return jnp.einsum("nij,npj->npi", rotation, x) + t[:, None]

    return move, [(n, 4), (n, 3), (n, p, 3)]


# ---- linear algebra


@kind
def small_products(draw: Draw) -> Program:
    b, i, j, k = draw.size(16, 4096), draw.size(2, 64), draw.size(2, 64), draw.size(2, 64)
    return lambda x, y: x @ y, [(b, i, j), (b, j, k)]


@kind
def cholesky(draw: Draw) -> Program:
    n = draw.size(4, 192)
    return lambda x: jnp.linalg.cholesky(x @ x.T + n * jnp.eye(n)), [(n, n)]


@kind
def solves(draw: Draw) -> Program:
    n, m = draw.size(2, 128), draw.size(1, 64)
    return lambda a, b: jnp.linalg.solve(a + n * jnp.eye(n), b), [(n, n), (n, m)]


@kind
def power_iteration(draw: Draw) -> Program:
    n, steps = draw.size(16, 1024), draw.randint(2, 16)

    def run(a: Any, x: Any) -> Any:
        return lax.fori_loop(0, steps, lambda _, y: (lambda z: z / jnp.linalg.norm(z))(a @ y), x)

    return run, [(n, n), (n,)]


@kind
def newton_schulz(draw: Draw) -> Program:
    n, m = draw.size(16, 768), draw.size(16, 768)

    def orthogonal(g: Any) -> Any:
        x = g / (jnp.linalg.norm(g) + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x

    return orthogonal, [(n, m)]


@kind
def low_rank(draw: Draw) -> Program:
    n, d, o, r = draw.size(16, 2048), draw.size(64, 1024), draw.size(64, 1024), draw.size(2, 32)
    return lambda x, w, a, b: x @ w + (x @ a) @ b * 2.0, [(n, d), (d, o), (d, r), (r, o)]


# ---- sequences and ranking


@kind
def recurrent_network(draw: Draw) -> Program:
    b, t, d, h = draw.size(1, 128), draw.size(4, 48), draw.size(4, 128), draw.size(16, 256)

    def run(x: Any, w: Any, u: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            state = jnp.tanh(row @ w + carry @ u)
            return state, state

        return lax.scan(step, jnp.zeros((b, h)), x)[1]

    return run, [(t, b, d), (d, h), (h, h)]


@kind
def hidden_markov(draw: Draw) -> Program:
    t, n = draw.size(8, 128), draw.size(2, 64)

    def forward(log_a: Any, log_b: Any) -> Any:
        def step(alpha: Any, row: Any) -> Any:
            alpha = jax.nn.logsumexp(alpha[:, None] + log_a, 0) + row
            return alpha, None

        return jax.nn.logsumexp(lax.scan(step, log_b[0], log_b[1:])[0])

    return forward, [(n, n), (t, n)]


@kind
def contrastive_loss(draw: Draw) -> Program:
    n, d = draw.size(16, 2048), draw.size(16, 512)

    def loss(a: Any, b: Any) -> Any:
        a, b = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
        logits = a @ b.T / 0.07
        return -(jnp.diag(jax.nn.log_softmax(logits, 0)) + jnp.diag(jax.nn.log_softmax(logits, 1))).mean() / 2

    return draw.choice((loss, jax.grad(loss))), [(n, d), (n, d)]


@kind
def embedding_bag(draw: Draw) -> Program:
    rows, d, b, k = draw.size(256, 16384), draw.size(8, 256), draw.size(8, 512), draw.size(2, 32)
    return lambda table, at: table[(at * rows).astype(jnp.int32)].mean(1), [(rows, d), (b, k)]


@kind
def factorisation_machine(draw: Draw) -> Program:
    n, f, k = draw.size(32, 4096), draw.size(8, 256), draw.size(4, 64)
    return lambda x, w, v: x @ w + 0.5 * ((x @ v) ** 2 - (x * x) @ (v * v)).sum(-1), [(n, f), (f,), (f, k)]


@kind
def top_scores(draw: Draw) -> Program:
    n, m, k = draw.size(1, 256), draw.size(64, 4096), draw.size(1, 32)
    return lambda x: lax.top_k(x, k), [(n, m)]


@kind
def bilinear_scores(draw: Draw) -> Program:
    n, d, r = draw.size(16, 1024), draw.size(8, 128), draw.size(2, 32)
    return lambda h, m, t: jnp.einsum("nd,rde,ne->nr", h, m, t), [(n, d), (r, d, d), (n, d)]


@kind
def mixer(draw: Draw) -> Program:
    b, n, d = draw.size(1, 16), draw.size(16, 256), draw.size(16, 512)

    def block(x: Any, w: Any, u: Any) -> Any:
        y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return x + jnp.einsum("bnd,nm->bmd", jax.nn.gelu(jnp.einsum("bnd,nm->bmd", y, w)), u)

    return block, [(b, n, d), (n, 2 * n), (2 * n, n)]
