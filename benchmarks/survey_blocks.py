"""Blocks of networks, drawn by seed like ``survey_programs``: those that no example has, at sizes of real models."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from survey_programs import Draw, Program, kind


def normalised(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


@kind
def state_space(draw: Draw) -> Program:
    """A selective scan, as a tree or as a loop."""
    batch, steps, width, states = draw.size(1, 4), draw.size(64, 4096), draw.size(64, 1536), draw.choice((4, 8, 16, 64))
    loop = draw.random() < 0.3

    def block(x: Any, mix: Any, spread: Any, rates: Any) -> Any:
        low, b, c = jnp.split(x @ mix, [16, 16 + states], -1)
        dt, decay = jax.nn.softplus(low @ spread), -jnp.exp(rates)
        if not loop:
            pair = jnp.exp(dt[..., None] * decay), (dt * x)[..., None] * b[..., None, :]
            h = lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), pair, axis=1)[1]
            return (h * c[..., None, :]).sum(-1)

        def step(h: Any, given: Any) -> Any:
            dt, u, b, c = given
            h = jnp.exp(dt[..., None] * decay) * h + u[..., None] * b[..., None, :]
            return h, (h * c[..., None, :]).sum(-1)

        given = tuple(each.swapaxes(0, 1) for each in (dt, dt * x, b, c))
        return lax.scan(step, jnp.zeros((batch, width, states)), given)[1].swapaxes(0, 1)

    return block, [(batch, steps, width), (width, 16 + 2 * states), (16, width), (width, states)]


@kind
def window_attention(draw: Draw) -> Program:
    windows, side, heads, depth = draw.size(8, 256), draw.size(3, 12), draw.size(1, 12), draw.choice((16, 32, 64))
    rows = side * side

    def block(x: Any, w: Any, bias: Any) -> Any:
        parts = jnp.split(normalised(x) @ w, 3, -1)
        q, k, v = (part.reshape(windows, rows, heads, depth).swapaxes(1, 2) for part in parts)
        scores = jnp.einsum("whqd,whkd->whqk", q, k) * depth**-0.5 + bias
        return jnp.einsum("whqk,whkd->wqhd", jax.nn.softmax(scores, -1), v).reshape(x.shape)

    width = heads * depth
    return block, [(windows, rows, width), (width, 3 * width), (heads, rows, rows)]


@kind
def relative_positions(draw: Draw) -> Program:
    """Attention with a learned number for each distance."""
    batch, rows, heads, buckets = draw.size(1, 4), draw.size(128, 1024), draw.size(4, 12), 32

    def block(q: Any, k: Any, v: Any, table: Any) -> Any:
        places = jnp.arange(rows)
        apart = jnp.clip(places[:, None] - places + buckets // 2, 0, buckets - 1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) + table[apart].transpose(2, 0, 1)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)

    return block, [(batch, rows, heads, 64)] * 3 + [(buckets, heads)]


@kind
def linear_attention(draw: Draw) -> Program:
    batch, rows, heads, depth = draw.size(1, 8), draw.size(256, 4096), draw.size(2, 12), draw.choice((32, 64))

    def block(q: Any, k: Any, v: Any) -> Any:
        q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
        scale = 1 / (jnp.einsum("bthd,bhd->bth", q, k.sum(1)) + 1e-6)
        return jnp.einsum("bthd,bhde,bth->bthe", q, jnp.einsum("bthd,bthe->bhde", k, v), scale)

    return block, [(batch, rows, heads, depth)] * 3


@kind
def mixture_of_experts(draw: Draw) -> Program:
    """Rows sorted by their experts."""
    rows, width, experts = draw.size(128, 2048), draw.size(64, 768), draw.choice((4, 8, 16))

    def block(x: Any, gate: Any, up: Any, down: Any) -> Any:
        share, expert = lax.top_k(jax.nn.softmax(x @ gate), 2)
        order = jnp.argsort(expert.reshape(-1))
        sizes = jnp.bincount(expert.reshape(-1), length=experts)
        made = lax.ragged_dot(jax.nn.gelu(lax.ragged_dot(x[order // 2], up, sizes)), down, sizes)
        return jnp.zeros_like(x).at[order // 2].add(made * share.reshape(-1)[order][:, None])

    return block, [(rows, width), (width, experts), (experts, width, 2 * width), (experts, 2 * width, width)]


@kind
def gated_convolution(draw: Draw) -> Program:
    batch, steps, width, taps = draw.size(1, 16), draw.size(64, 2048), draw.size(32, 512), draw.choice((3, 7, 15, 31))

    def block(x: Any, up: Any, kernel: Any, down: Any) -> Any:
        left, right = jnp.split(normalised(x) @ up, 2, -1)
        order = ("NWC", "WIO", "NWC")
        made = lax.conv_general_dilated(
            left * jax.nn.sigmoid(right), kernel, (1,), "SAME", dimension_numbers=order, feature_group_count=width
        )
        return x + jax.nn.silu(made) @ down

    return block, [(batch, steps, width), (width, 2 * width), (taps, 1, width), (width, width)]


@kind
def nearest_points(draw: Draw) -> Program:
    batch, points, width = draw.size(1, 16), draw.size(64, 1024), draw.size(8, 128)

    def block(places: Any, features: Any) -> Any:
        apart = ((places[:, :, None] - places[:, None]) ** 2).sum(-1)
        near = lax.top_k(-apart, 16)[1]
        return (jax.vmap(lambda f, at: f[at])(features, near) - features[:, :, None]).max(2)

    return block, [(batch, points, 3), (batch, points, width)]
