"""Algorithms on sequences, losses and steps of optimizers, drawn by seed like ``survey_programs``."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from survey_programs import Draw, Program, kind, with_gradient

# ---- alignments and decoding


@kind
def ctc_loss(draw: Draw) -> Program:
    n, steps, labels, classes = draw.size(1, 32), draw.size(16, 256), draw.size(4, 48), draw.size(16, 128)
    twice = 2 * labels + 1

    def loss(logits: Any, targets: Any) -> Any:
        log_p = jax.nn.log_softmax(logits)
        target = 1 + (targets * (classes - 1)).astype(jnp.int32)
        extended = jnp.zeros((n, twice), jnp.int32).at[:, 1::2].set(target)
        shared = jnp.take_along_axis(log_p, jnp.broadcast_to(extended, (steps, n, twice)), 2)
        jump = (extended != 0) & (extended != jnp.roll(extended, 2, 1))

        def step(alpha: Any, row: Any) -> Any:
            one = jnp.pad(alpha, ((0, 0), (1, 0)), constant_values=-1e5)[:, :-1]
            two = jnp.where(jump, jnp.pad(alpha, ((0, 0), (2, 0)), constant_values=-1e5)[:, :-2], -1e5)
            return jnp.logaddexp(jnp.logaddexp(alpha, one), two) + row, None

        first = jnp.where(jnp.arange(twice) < 2, shared[0], -1e5)
        last = lax.scan(step, first, shared[1:])[0]
        return -jnp.logaddexp(last[:, -1], last[:, -2]).mean()

    return draw.choice((loss, jax.grad(loss))), [(steps, n, classes), (n, labels)]


@kind
def viterbi(draw: Draw) -> Program:
    n, steps, states = draw.size(1, 16), draw.size(8, 128), draw.size(4, 64)

    def decode(scores: Any, moves: Any) -> Any:
        def step(best: Any, row: Any) -> Any:
            through = best[:, :, None] + moves
            return through.max(1) + row, through.argmax(1)

        best, back = lax.scan(step, scores[0], scores[1:])

        def follow(at: Any, table: Any) -> Any:
            at = jnp.take_along_axis(table, at[:, None], 1)[:, 0]
            return at, at

        last = best.argmax(1)
        return best.max(1), lax.scan(follow, last, back, reverse=True)[1], last

    return decode, [(steps, n, states), (states, states)]


@kind
def field_likelihood(draw: Draw) -> Program:
    """Linear-chain CRF: partition function less the score of the labels."""
    n, steps, states = draw.size(1, 32), draw.size(8, 128), draw.size(4, 48)

    def loss(scores: Any, moves: Any, truth: Any) -> Any:
        at = (truth * states).astype(jnp.int32)

        def step(alpha: Any, row: Any) -> Any:
            return jax.nn.logsumexp(alpha[:, :, None] + moves, 1) + row, None

        total = jax.nn.logsumexp(lax.scan(step, scores[0], scores[1:])[0], -1)
        own = jnp.take_along_axis(scores, at[..., None], 2)[..., 0].sum(0) + moves[at[:-1], at[1:]].sum(0)
        return (total - own).mean()

    program = draw.choice((loss, jax.grad(loss, (0, 1))))
    return program, [(steps, n, states), (states, states), (steps, n)]


@kind
def edit_distance(draw: Draw) -> Program:
    """Row by row with a running minimum, or along antidiagonals."""
    n, m, diagonal = draw.size(8, 128), draw.size(8, 128), draw.random() < 0.5

    def distance(a: Any, b: Any) -> Any:
        a, b = (a * 4).astype(jnp.int32), (b * 4).astype(jnp.int32)
        if diagonal:
            places = jnp.arange(n + 1)

            def cross(pair: Any, d: Any) -> Any:
                before, last = pair
                other = b[jnp.clip(d - places - 1, 0, m - 1)]
                change = (jnp.concatenate([a[:1], a]) != other).astype(jnp.int32)
                moved = jnp.concatenate([jnp.full(1, 1000), before[:-1]]) + change
                made = jnp.minimum(jnp.minimum(last, jnp.concatenate([jnp.full(1, 1000), last[:-1]])) + 1, moved)
                made = jnp.where((places == 0) | (places == d), d, made)
                return (last, made), None

            state = (jnp.full(n + 1, 1000).at[0].set(0), jnp.full(n + 1, 1000).at[:2].set(1))
            return lax.scan(cross, state, jnp.arange(2, n + m + 1))[0][1][n]

        def row(above: Any, each: Any) -> Any:
            change = jnp.minimum(above[1:] + 1, above[:-1] + (b != each))
            made = jnp.concatenate([above[:1] + 1, change]) - jnp.arange(m + 1)
            return lax.cummin(made) + jnp.arange(m + 1), None

        return lax.scan(row, jnp.arange(m + 1), a)[0][m]

    return distance, [(n,), (m,)]


@kind
def sinkhorn(draw: Draw) -> Program:
    n, m, steps, logs = draw.size(16, 512), draw.size(16, 512), draw.size(4, 50), draw.random() < 0.5

    def transport(x: Any, y: Any) -> Any:
        cost = ((x[:, None] - y) ** 2).sum(-1)
        if logs:

            def turn(_: Any, pair: Any) -> Any:
                f = -jax.nn.logsumexp(pair[1] - cost * 10, 1) - math.log(n)
                return f, -jax.nn.logsumexp(f[:, None] - cost * 10, 0) - math.log(m)

            f, g = lax.fori_loop(0, steps, turn, (jnp.zeros(n), jnp.zeros(m)))
            plan = jnp.exp(f[:, None] + g - cost * 10)
        else:
            kernel = jnp.exp(-cost * 10)

            def scale(_: Any, pair: Any) -> Any:
                u = 1 / n / (kernel @ pair[1])
                return u, 1 / m / (kernel.T @ u)

            u, v = lax.fori_loop(0, steps, scale, (jnp.ones(n), jnp.ones(m)))
            plan = u[:, None] * kernel * v
        return (plan * cost).sum(), plan

    return transport, [(n, 3), (m, 3)]


@kind
def soft_warping(draw: Draw) -> Program:
    """Soft-DTW along antidiagonals."""
    batch, n, m, width = draw.size(1, 16), draw.size(8, 64), draw.size(8, 64), draw.size(1, 16)

    def loss(x: Any, y: Any) -> Any:
        cost = ((x[:, :, None] - y[:, None]) ** 2).sum(-1)
        places = jnp.arange(n)
        columns = jnp.arange(n + m - 1)[:, None] - places
        inside = (columns >= 0) & (columns < m)
        skewed = cost[:, places, jnp.clip(columns, 0, m - 1)]
        skewed = jnp.where(inside[None], skewed, 1e4).swapaxes(0, 1)

        def step(pair: Any, row: Any) -> Any:
            before, last = pair
            shift = lambda z: jnp.pad(z, ((0, 0), (1, 0)), constant_values=1e4)[:, :-1]  # noqa: E731
            made = row - jax.nn.logsumexp(-jnp.stack([last, shift(last), shift(before)]), 0)
            return (last, made), None

        start = jnp.full((batch, n), 1e4)
        first = start.at[:, 0].set(skewed[0, :, 0])
        return lax.scan(step, (start, first), skewed[1:])[0][1][:, -1].mean()

    return draw.choice((loss, jax.grad(loss))), [(batch, n, width), (batch, m, width)]


@kind
def beam_search(draw: Draw) -> Program:
    batch, beams, classes, width = draw.size(1, 8), draw.choice((2, 4, 5, 8)), draw.size(128, 8192), draw.size(16, 512)
    length = draw.size(8, 64)

    def step(logits: Any, scores: Any, states: Any, tokens: Any) -> Any:
        total = scores[..., None] + jax.nn.log_softmax(logits)
        scores, at = lax.top_k(total.reshape(batch, beams * classes), beams)
        beam, token = at // classes, at % classes
        states, tokens = (jnp.take_along_axis(each, beam[..., None], 1) for each in (states, tokens.astype(jnp.int32)))
        return scores, states, jnp.concatenate([tokens[:, :, 1:], token[..., None]], 2)

    return step, [(batch, beams, classes), (batch, beams), (batch, beams, width), (batch, beams, length)]


@kind
def sampling(draw: Draw) -> Program:
    """Top-k, top-p, both, or the least probability."""
    n, classes, form = draw.size(1, 64), draw.size(256, 32768), draw.choice(("k", "p", "least", "gumbel"))

    def sample(logits: Any, noise: Any) -> Any:
        if form == "k":
            limit = lax.top_k(logits, 40)[0][:, -1:]
            logits = jnp.where(logits < limit, -jnp.inf, logits)
        if form == "p":
            order = jnp.argsort(-logits, -1)
            ordered = jnp.take_along_axis(jax.nn.softmax(logits), order, -1)
            kept = jnp.cumsum(ordered, -1) - ordered < 0.9
            mass = jnp.cumsum(jnp.where(kept, ordered, 0), -1)
            at = (mass < noise[:, :1] * mass[:, -1:]).sum(-1)
            return jnp.take_along_axis(order, at[:, None], -1)[:, 0]
        if form == "least":
            p = jax.nn.softmax(logits)
            logits = jnp.where(p < 0.1 * p.max(-1, keepdims=True), -jnp.inf, logits)
        return jnp.argmax(logits - jnp.log(-jnp.log(noise * 0.98 + 0.01)), -1)

    return sample, [(n, classes), (n, classes)]


@kind
def acceptance(draw: Draw) -> Program:
    """Speculative decoding: how many drafted tokens stand, and the one after them."""
    n, drafted, classes = draw.size(1, 32), draw.size(2, 8), draw.size(256, 8192)

    def accept(draft: Any, target: Any, tokens: Any, noise: Any) -> Any:
        q, p = jax.nn.softmax(draft), jax.nn.softmax(target)
        at = (tokens * classes).astype(jnp.int32)[..., None]
        ratio = (jnp.take_along_axis(p[:, :-1], at, 2) / jnp.take_along_axis(q, at, 2))[..., 0]
        stands = jnp.cumprod((noise[:, :-1] < ratio).astype(jnp.int32), 1)
        count = stands.sum(1)
        left = jnp.maximum(p - jnp.pad(q, ((0, 0), (0, 1), (0, 0))), 0)
        rest = jnp.take_along_axis(left, count[:, None, None], 1)[:, 0]
        mass = jnp.cumsum(rest, -1)
        return count, (mass < noise[:, -1:] * mass[:, -1:]).sum(-1)

    return accept, [(n, drafted, classes), (n, drafted + 1, classes), (n, drafted), (n, drafted + 1)]


# ---- layers


@kind
def codebook(draw: Draw) -> Program:
    """VQ-VAE: the nearest code of each row, straight through."""
    rows, codes, width = draw.size(64, 4096), draw.size(32, 1024), draw.size(4, 256)
    hot = draw.random() < 0.4

    def loss(x: Any, table: Any) -> Any:
        apart = (x**2).sum(1)[:, None] - 2 * x @ table.T + (table**2).sum(1)
        at = apart.argmin(1)
        found = jax.nn.one_hot(at, codes) @ table if hot else table[at]
        stop = lax.stop_gradient
        cost = ((stop(x) - found) ** 2).mean() + 0.25 * ((x - stop(found)) ** 2).mean()
        return cost + ((x + stop(found - x)) ** 3).mean()

    return draw.choice((jax.grad(loss, (0, 1)), loss)), [(rows, width), (codes, width)]


@kind
def relaxed_choice(draw: Draw) -> Program:
    """Gumbel softmax, hard in the forward pass."""
    n, groups, k = draw.size(16, 2048), draw.size(1, 32), draw.size(4, 256)

    def choose(logits: Any, noise: Any, table: Any) -> Any:
        y = jax.nn.softmax((logits - jnp.log(-jnp.log(noise * 0.98 + 0.01))) / 0.7)
        hard = jax.nn.one_hot(y.argmax(-1), k)
        return jnp.einsum("ngk,gkd->ngd", y + lax.stop_gradient(hard - y), table)

    return with_gradient(draw, choose), [(n, groups, k), (n, groups, k), (groups, k, 32)]


@kind
def coupling(draw: Draw) -> Program:
    """RealNVP: halves or alternating elements, and the logarithm of the determinant."""
    n, d, h, layers = draw.size(64, 8192), draw.size(2, 64) * 2, draw.size(16, 256), 4
    alternating = draw.random() < 0.5

    def flow(x: Any, ups: Any, downs: Any) -> Any:
        total = jnp.zeros(n)
        for up, down in zip(ups, downs, strict=True):
            a, b = (x[:, ::2], x[:, 1::2]) if alternating else jnp.split(x, 2, 1)
            scale, shift = jnp.split(jax.nn.relu(a @ up) @ down, 2, 1)
            scale = jnp.tanh(scale)
            b = b * jnp.exp(scale) + shift
            x = jnp.stack([b, a], -1).reshape(n, d) if alternating else jnp.concatenate([b, a], 1)
            total = total + scale.sum(1)
        return x, total - 0.5 * (x**2).sum(1)

    return with_gradient(draw, flow), [(n, d), (layers, d // 2, h), (layers, h, d)]


@kind
def rotary(draw: Draw) -> Program:
    batch, rows, heads, depth = draw.size(1, 4), draw.size(16, 1024), draw.size(1, 16), draw.choice((32, 64, 128))
    form = draw.choice(("interleaved", "halves", "complex", "swap"))

    def turn(x: Any, angles: Any) -> Any:
        c, s = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        if form == "interleaved":
            a, b = x[..., ::2], x[..., 1::2]
            return jnp.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)
        if form == "complex":
            pairs = x.reshape(*x.shape[:-1], depth // 2, 2)
            made = lax.complex(pairs[..., 0], pairs[..., 1]) * lax.complex(c, s)
            return jnp.stack([made.real, made.imag], -1).reshape(x.shape)
        a, b = jnp.split(x, 2, -1)
        if form == "halves":
            return jnp.concatenate([a * c - b * s, a * s + b * c], -1)
        return x * jnp.concatenate([c, c], -1) + jnp.concatenate([-b, a], -1) * jnp.concatenate([s, s], -1)

    return turn, [(batch, rows, heads, depth), (rows, depth // 2)]


@kind
def biased_attention(draw: Draw) -> Program:
    """ALiBi, causal."""
    batch, rows, heads = draw.size(1, 4), draw.size(64, 1024), draw.choice((4, 8, 12))

    def attend(q: Any, k: Any, v: Any) -> Any:
        slopes = 2.0 ** -(jnp.arange(1, heads + 1) * (8 / heads))
        places = jnp.arange(rows)
        bias = slopes[:, None, None] * (places - places[:, None])
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8 + bias
        scores = jnp.where(places[:, None] >= places, scores, -1e9)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)

    return attend, [(batch, rows, heads, 64)] * 3


@kind
def packed_attention(draw: Draw) -> Program:
    """Sequences packed into rows: those of one number attend to each other."""
    batch, rows, heads = draw.size(1, 4), draw.size(64, 1024), draw.choice((4, 8))

    def attend(q: Any, k: Any, v: Any, starts: Any) -> Any:
        number = jnp.cumsum((starts > 0.95).astype(jnp.int32), 1)
        places = jnp.arange(rows)
        mask = (number[:, :, None] == number[:, None]) & (places[:, None] >= places)
        scores = jnp.where(mask[:, None], jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8, -1e9)
        within = places - lax.cummax(jnp.where(starts > 0.95, places, 0), axis=1)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v), within

    return attend, [(batch, rows, heads, 64)] * 3 + [(batch, rows)]


@kind
def masked_mean(draw: Draw) -> Program:
    n, rows, d, form = (
        draw.size(1, 64),
        draw.size(8, 512),
        draw.size(16, 768),
        draw.choice(("where", "times", "product")),
    )

    def pool(x: Any, lengths: Any) -> Any:
        mask = jnp.arange(rows) < (lengths * rows).astype(jnp.int32)[:, None]
        if form == "product":
            weight = mask / jnp.maximum(mask.sum(1, keepdims=True), 1)
            made = jnp.einsum("nr,nrd->nd", weight, x)
        else:
            kept = jnp.where(mask[..., None], x, 0) if form == "where" else x * mask[..., None]
            made = kept.sum(1) / jnp.maximum(mask.sum(1), 1)[:, None]
        return made / jnp.sqrt((made**2).sum(1, keepdims=True) + 1e-6)

    return with_gradient(draw, pool), [(n, rows, d), (n,)]


# ---- losses


@kind
def smoothed_loss(draw: Draw) -> Program:
    n, classes, form = draw.size(8, 1024), draw.size(10, 16384), draw.choice(("hot", "gather", "select"))

    def loss(logits: Any, truth: Any) -> Any:
        at, log_p = (truth * classes).astype(jnp.int32), jax.nn.log_softmax(logits)
        if form == "hot":
            return -((jax.nn.one_hot(at, classes) * 0.9 + 0.1 / classes) * log_p).sum(-1).mean()
        if form == "select":
            own = jnp.where(jnp.arange(classes) == at[:, None], log_p, 0).sum(-1)
        else:
            own = jnp.take_along_axis(log_p, at[:, None], -1)[:, 0]
        return -(0.9 * own + 0.1 * log_p.mean(-1)).mean()

    return draw.choice((loss, jax.value_and_grad(loss))), [(n, classes), (n,)]


@kind
def focal_loss(draw: Draw) -> Program:
    n, classes = draw.size(64, 16384), draw.size(1, 80)

    def loss(logits: Any, truth: Any) -> Any:
        y = (jnp.arange(classes) == (truth * (classes + 1)).astype(jnp.int32)[:, None]).astype(jnp.float32)
        p = jax.nn.sigmoid(logits)
        cost = jnp.logaddexp(0.0, logits) - logits * y
        hit = p * y + (1 - p) * (1 - y)
        return (cost * (1 - hit) ** 2 * (0.25 * y + 0.75 * (1 - y))).sum() / jnp.maximum(y.sum(), 1)

    return draw.choice((loss, jax.value_and_grad(loss))), [(n, classes), (n,)]


@kind
def dice_loss(draw: Draw) -> Program:
    n, c, side, first = draw.size(1, 8), draw.size(2, 21), draw.size(16, 128), draw.random() < 0.5
    axes, axis = ((2, 3), 1) if first else ((1, 2), 3)

    def loss(logits: Any, truth: Any) -> Any:
        y = jax.nn.one_hot((truth * c).astype(jnp.int32), c, axis=axis)
        p = jax.nn.softmax(logits, axis)
        return 1 - ((2 * (p * y).sum(axes) + 1) / (p.sum(axes) + y.sum(axes) + 1)).mean()

    program = draw.choice((loss, jax.value_and_grad(loss)))
    return program, [(n, c, side, side) if first else (n, side, side, c), (n, side, side)]


# ---- optimizers


def weights_of(draw: Draw) -> list[tuple[int, ...]]:
    width, layers = draw.size(32, 512), draw.size(2, 8)
    return [shape for _ in range(layers) for shape in ((width, 2 * width), (2 * width,), (2 * width, width), (width,))]


@kind
def adafactor(draw: Draw) -> Program:
    n, m, count = draw.size(64, 2048), draw.size(64, 2048), draw.size(1, 4)

    def step(*arrays: Any) -> Any:
        made = []
        for w, g, row, column in zip(*(arrays[each::4] for each in range(4)), strict=True):
            square = g * g + 1e-30
            row, column = 0.99 * row + 0.01 * square.mean(1), 0.99 * column + 0.01 * square.mean(0)
            update = g * lax.rsqrt(row / row.mean())[:, None] * lax.rsqrt(column)
            update = update / jnp.maximum(1.0, jnp.sqrt((update * update).mean()))
            made += [w - 1e-3 * jnp.maximum(1e-3, jnp.sqrt((w * w).mean())) * update, row, column]
        return made

    return step, [(n, m), (n, m), (n,), (m,)] * count


@kind
def lion(draw: Draw) -> Program:
    shapes = weights_of(draw)

    def step(*arrays: Any) -> Any:
        made = []
        for w, g, m in zip(arrays[::3], arrays[1::3], arrays[2::3], strict=True):
            made += [w - 1e-4 * (jnp.sign(0.9 * m + 0.1 * g) + 0.1 * w), 0.99 * m + 0.01 * g]
        return made

    return step, [shape for shape in shapes for _ in range(3)]


@kind
def shampoo(draw: Draw) -> Program:
    """Preconditioners, their inverse fourth roots by coupled Newton iterations."""
    n, m, steps = draw.size(16, 256), draw.size(16, 256), draw.size(2, 8)

    def root(a: Any) -> Any:
        one = jnp.eye(len(a))
        scale = 1 / jnp.linalg.norm(a)

        def turn(_: Any, pair: Any) -> Any:
            x, y = pair
            t = (5 * one - y) / 4
            return x @ t, y @ t @ t @ t @ t

        return lax.fori_loop(0, steps, turn, (one * scale**0.25, a * scale))[0]

    def step(w: Any, g: Any, left: Any, right: Any) -> Any:
        left, right = left @ left.T + g @ g.T, right @ right.T + g.T @ g
        return w - 0.1 * root(left) @ g @ root(right), left, right

    return step, [(n, m), (n, m), (n, n), (m, m)]


@kind
def clipping(draw: Draw) -> Program:
    """Gradients clipped by the norm of all, then momentum; and averages of weights."""
    shapes, average = weights_of(draw), draw.random() < 0.4

    def step(*arrays: Any) -> Any:
        ws, gs, ms = arrays[::3], arrays[1::3], arrays[2::3]
        if average:
            return [0.999 * m + 0.001 * (w - 0.1 * g) for w, g, m in zip(ws, gs, ms, strict=True)]
        norm = jnp.sqrt(sum((g * g).sum() for g in gs))
        scale = jnp.minimum(1.0, 1 / (norm + 1e-6))
        moved = [0.9 * m + g * scale for m, g in zip(ms, gs, strict=True)]
        return [w - 0.1 * m for w, m in zip(ws, moved, strict=True)], moved

    return step, [shape for shape in shapes for _ in range(3)]
