"""What passes and kernels recognise, as JAX programs: those whose near misses ``near_misses`` makes.

A row: its inputs, and a function of them. ``F`` is a float type that is drawn, capitals are sizes that are drawn, and
``s32[A]<B`` holds whole numbers from 0 to ``B - 1``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

ATTENTION = {
    "softmax": "lambda s: jax.nn.softmax(s, -1)",
    "softmax by hand": "lambda s: (lambda e: e / e.sum(-1, keepdims=True))(jnp.exp(s - s.max(-1, keepdims=True)))",
    "log softmax": "lambda s: jnp.exp(jax.nn.log_softmax(s, -1))",
    "softmax in FP32": "lambda s: jax.nn.softmax(s.astype('float32'), -1).astype(s.dtype)",
}
MASKS = {
    "none": "lambda s, m: s",
    "causal": "lambda s, m: jnp.where(jnp.arange(s.shape[-2])[:, None] >= jnp.arange(s.shape[-1]), s, -1e9)",
    "causal, infinite": "lambda s, m: jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)",
    "causal, added": "lambda s, m: s + jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), 0.0, -1e9).astype(s.dtype)",
    "causal and given": "lambda s, m: jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)) & (m > 0), s, -1e9)",
    "causal, bias": "lambda s, m: jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s + m, jnp.finfo(s.dtype).min)",
    "by heads": "lambda s, m: jnp.where(jnp.arange(s.shape[1])[:, None, None] >= jnp.arange(s.shape[-1]), s, -1e9)",
    "window": "lambda s, m: jnp.where(abs(jnp.arange(s.shape[-2])[:, None] - jnp.arange(s.shape[-1])) < 9, s, -1e9)",
    "given": "lambda s, m: jnp.where(m > 0, s, -1e9)",
    "capped": "lambda s, m: 5 * jnp.tanh(s / 5) + m",
}
HEADS = "q:F[B,H,S,D] k:F[B,H,T,D] v:F[B,H,T,D] m:F[S,T]"
APART = "jnp.einsum('bhst,bhtd->bhsd', ({0})(({1})(jnp.einsum('bhsd,bhtd->bhst', q, k) * 0.25, m)), v)"
BEHIND = (
    "(lambda e: jnp.einsum('bhst,bhtd->bhsd', e, v) / e.sum(-1, keepdims=True))"
    "((lambda s: jnp.exp(s - s.max(-1, keepdims=True)))(({1})(jnp.einsum('bhsd,bhtd->bhst', q, k) * 0.25, m)))"
)

FORMS: dict[str, tuple[str, str]] = {
    # functions that arrive spelled out
    "gelu": ("x:F[A,R]", "jax.nn.gelu(x, approximate=False)"),
    "gelu by tanh": ("x:F[A,R]", "0.5 * x * (1 + jnp.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))"),
    "gelu by erf": ("x:F[A,R]", "x * 0.5 * (1 + lax.erf(x * 0.70710678))"),
    "gelu by erfc": ("x:F[A,R]", "0.5 * x * lax.erfc(-x * 0.70710678)"),
    "gelu by sigmoid": ("x:F[A,R]", "x * jax.nn.sigmoid(1.702 * x)"),
    "silu": ("x:F[A,R]", "x / (1 + jnp.exp(-x))"),
    "silu by tanh": ("x:F[A,R]", "0.5 * x * (1 + jnp.tanh(0.5 * x))"),
    "gradients of activations": ("x:F[A,R]", "jax.grad(lambda x: (jax.nn.gelu(x) * jax.nn.silu(x)).sum())(x)"),
    "mish": ("x:F[A,R]", "x * jnp.tanh(jax.nn.softplus(x))"),
    "softplus": ("x:F[A,R]", "(jnp.log(1 + jnp.exp(x)), jnp.log1p(jnp.exp(-x)), jnp.logaddexp(x, 0.0))"),
    "sigmoids": ("x:F[A,R]", "(1 / (1 + jnp.exp(-x)), jnp.exp(x) / (1 + jnp.exp(x)), 1 - jax.nn.sigmoid(x))"),
    "tanh by exponentials": ("x:F[A,R]", "(jnp.exp(x) - jnp.exp(-x)) / (jnp.exp(x) + jnp.exp(-x))"),
    "tanh of twice": ("x:F[A,R]", "((jnp.exp(2 * x) - 1) / (jnp.exp(2 * x) + 1), 2 * jax.nn.sigmoid(2 * x) - 1)"),
    "roots": (
        "x:F[A,R]",
        "(x / jnp.sqrt(x * x + 1), 1 / jnp.sqrt(abs(x) + 0.5), (abs(x) + 1) ** -0.5, abs(x) ** 0.5)",
    ),
    "powers": ("x:F[A,R]", "(x ** 2, x ** 3, x ** -1, jnp.exp(2 * jnp.log(abs(x) + 1)))"),
    "quotients": ("x:F[A,R] y:F[A,R]", "(x / 3, x * 0.5 / y, (x * y) / y, (x / 2) / 4, -(x - y), x - (-y), 0 - x)"),
    "clips": ("x:F[A,R]", "(jnp.clip(x, -1, 1), jax.nn.relu6(x), jax.nn.leaky_relu(x), jax.nn.hard_tanh(x), abs(x))"),
    "rounding": ("x:F[A,R]", "(jnp.round(4 * x), jnp.floor(4 * x), jnp.sign(x), jnp.trunc(x), x % 0.75, x // 0.75)"),
    "elu": ("x:F[A,R]", "(jax.nn.elu(x), jax.nn.selu(x), jnp.expm1(x), jnp.exp(x) - 1, jnp.log(1 + abs(x)))"),
    "rounded twice": ("x:f32[A,R]", "x.astype(jnp.bfloat16).astype('float32') + lax.reduce_precision(x, 8, 7)"),
    # rows
    "softmax": ("x:F[A,R]", "jax.nn.softmax(x, -1)"),
    "log softmax": ("x:F[A,R]", "(jax.nn.log_softmax(x, -1), jax.scipy.special.logsumexp(x, -1))"),
    "softmax of columns": ("x:F[A,R]", "jax.nn.softmax(x, 0)"),
    "gradient of softmax": ("x:F[A,R] y:F[A,R]", "jax.grad(lambda x: (jax.nn.softmax(x, -1) * y).sum())(x)"),
    "layer norm": (
        "x:F[A,R] g:F[R] b:F[R]",
        "(x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * g + b",
    ),
    "layer norm by squares": (
        "x:F[A,R] g:F[R]",
        "(lambda m: (x - m) / jnp.sqrt((x * x).mean(-1, keepdims=True) - m * m + 1e-5) * g)(x.mean(-1, "
        "keepdims=True))",
    ),
    "rms norm": (
        "x:F[A,R] g:F[R]",
        "x * lax.rsqrt((x.astype('float32') ** 2).mean(-1, keepdims=True) + 1e-6).astype(x.dtype) * g",
    ),
    "gradient of norm": (
        "x:f32[A,R] g:f32[R]",
        "jax.grad(lambda x, g: ((x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) "
        "* g).max(-1).sum(), (0, 1))(x, g)",
    ),
    "residual norm": (
        "x:F[A,R] y:F[A,R]",
        "(lambda s: (s, s * lax.rsqrt((s * s).mean(-1, keepdims=True) + 1e-6)))(x + y)",
    ),
    "moments apart": (
        "x:f32[A,B,P,P]",
        "(x.mean((0, 2, 3)), ((x - x.mean((0, 2, 3), keepdims=True)) ** 2).mean((0, 2, 3)))",
    ),
    "variances": (
        "x:f32[N,E,D]",
        "(x.var((0, 2)), x.var((0, 1), ddof=1), jnp.std(x, 0), ((x - x.mean(0)) ** 2).sum(0))",
    ),
    "batch norm": ("x:f32[N,P,P,C] g:f32[C]", "(x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5) * g"),
    "group norm": (
        "x:f32[N,P,P,2,C]",
        "(x - x.mean((1, 2, 4), keepdims=True)) / jnp.sqrt(x.var((1, 2, 4), keepdims=True) + 1e-5)",
    ),
    "sums": (
        "x:F[A,R,D]",
        "(x.sum(0), x.max((0, 2)), x.min(-1), x.mean(), jnp.prod(jnp.tanh(x) + 1, 1), (x * x).sum((1, 2)))",
    ),
    "sums of sums": (
        "x:f32[A,R,D]",
        "(x.sum(2).sum(0), x.max(1).max(0), abs(x).max() - x.sum(0).max(), x.sum(1) / x.shape[1])",
    ),
    "bools": (
        "x:F[A,R] p:pred[A,R]",
        "(p.any(0), p.all(-1), (x > 0).sum(-1), (p & (x < 1)).mean(0), (p ^ (x > 0)).cumsum(0), p.argmax(1))",
    ),
    "argmax": ("x:F[A,R]", "(x.argmax(-1), x.argmin(0), jnp.nanargmax(x, -1), lax.argmax(x, 1, jnp.int32))"),
    "argmax and value": (
        "x:f32[A,R]",
        "lax.reduce((x, lax.broadcasted_iota(jnp.int32, x.shape, 1)), (-jnp.inf, 0), pair_max, (1,))",
    ),
    "top k": ("x:F[A,R]", "(lax.top_k(x, 3), lax.approx_max_k(x, 2) if x.dtype == jnp.float32 else 0)"),
    # scans
    "running sums": ("x:F[A,R]", "(x.cumsum(1), jnp.cumsum(x, 0), lax.cummax(x, 1), lax.cummin(x, 0, reverse=True))"),
    "running products": ("x:f32[A,R]", "(jnp.cumprod(jnp.tanh(x), 1), lax.cumlogsumexp(x, 1))"),
    "associative scan": (
        "x:f32[R,A] y:f32[R,A]",
        "lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (jnp.tanh(x), y))",
    ),
    "associative maxima": (
        "x:f32[R,A]",
        "(lax.associative_scan(jnp.maximum, x), lax.associative_scan(jnp.add, x, axis=1, reverse=True))",
    ),
    "recurrence": ("x:f32[R,A] w:f32[A,A]", "lax.scan(lambda c, a: (jnp.tanh(0.1 * c @ w + a), c), x[0], x)"),
    "running means": ("x:f32[R,A]", "lax.scan(lambda c, a: (0.9 * c + 0.1 * a, c), x[0], x)"),
    "stacked loop": (
        "x:f32[A,R] w:f32[3,R,R]",
        "lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ (0.1 * w[i])) + c, x)",
    ),
    "updates in a loop": (
        "x:f32[A,R] y:f32[A,R]",
        "lax.fori_loop(1, x.shape[0], lambda i, c: c.at[i].add(0.5 * c[i - 1] + y[i]), x)",
    ),
    "branches": ("x:f32[A,R] i:s32[]<3", "lax.switch(i, (lambda v: v + 1, lambda v: v * v, lambda v: -v), x)"),
    # places
    "take": (
        "x:F[A,R] i:s32[B]<A",
        "(x[i], x.at[i].get(mode='clip'), jnp.take(x, i, 0, mode='fill'), x[:, i % x.shape[1]])",
    ),
    "labels": ("x:F[A,R] i:s32[A]<R", "jnp.take_along_axis(x, i[:, None], 1)"),
    "cross entropy": (
        "x:f32[A,R] i:s32[A]<R",
        "jax.value_and_grad(lambda x: -jnp.take_along_axis(jax.nn.log_softmax(x), i[:, None], 1).mean())(x)",
    ),
    "counted in narrow types": (
        "x:f32[300,5] i:s32[300]<5",
        "(x[jnp.arange(300).astype(jnp.uint16).astype(jnp.int32), i], x.at[jnp.arange(300), i].add(x[:, 0]))",
    ),
    "counts": (
        "i:s32[5000]<100",
        "(jnp.zeros(128).at[i].add(1.0), jnp.bincount(i, length=50), jnp.zeros(100).at[i].max(2.0))",
    ),
    "one hot": ("x:F[R,D] i:s32[A]<R", "(jax.nn.one_hot(i, x.shape[0], dtype=x.dtype) @ x, jax.nn.one_hot(i, 5))"),
    "sums by place": (
        "x:f32[A,R] y:f32[B,R] i:s32[B]<A",
        "(x.at[i].add(y), jax.ops.segment_sum(y, i, x.shape[0]), x.at[i].max(y))",
    ),
    "updates of rows": ("x:F[A,R] y:F[A,1] i:s32[A]<R", "x.at[jnp.arange(x.shape[0]), i].set(y[:, 0])"),
    "sums of rows": (
        "x:f32[A,R] y:f32[A] i:s32[A]<R",
        "(x.at[jnp.arange(x.shape[0]), i].add(y), jnp.bincount(i, length=9))",
    ),
    "slices": (
        "x:F[A,R] i:s32[]<A",
        "(lax.dynamic_slice(x, (i, 2), (1, 3)), x[i], x[::2, 1:], lax.dynamic_slice_in_dim(x, i - 3, 1))",
    ),
    "updates": (
        "x:F[A,R] y:F[1,3] i:s32[]<A",
        "(lax.dynamic_update_slice(x, y, (i, 1)), x.at[i].set(0), x.at[:1, 2:5].add(y), x.at[:, 1].mul(2))",
    ),
    "windows at known places": (
        "x:F[A,R]",
        "(x[np.array([0, 1, 1, 2])], x[:, np.array([1, 3, 5])], x[np.arange(3) + 1], x[np.array([2, 1, 0])])",
    ),
    "places from rows": ("x:F[4,A,R] i:s32[4]<A", "jax.vmap(lambda a, j: lax.dynamic_slice_in_dim(a, j, 2))(x, i)"),
    "resizing": (
        "x:f32[1,P,P,C]",
        "(jax.image.resize(x, (1, 2 * x.shape[1], 5, x.shape[3]), 'nearest'), jax.image.resize(x, (1, 7, 9, "
        "x.shape[3]), 'linear'))",
    ),
    # movement
    "concatenation": (
        "x:F[A,R] y:F[A,R]",
        "(jnp.concatenate([jnp.tanh(x), y * 2, x - y], 1), jnp.concatenate([x[:1], -y, x[2:]], 0))",
    ),
    "parts": (
        "x:F[A,R] y:F[A,R]",
        "(lambda c: (c, c[:, 3:] * 2, c.sum(0)))(jnp.concatenate([x * 2, jnp.exp(y), x], 1))",
    ),
    "rolled": (
        "x:F[A,R]",
        "(jnp.roll(x, 1, 0) - x, jnp.roll(x, -2, 1), jnp.flip(x, 1) * x, jnp.diff(x, axis=0), x.T * 2)",
    ),
    "rotary": (
        "x:F[A,4,R] y:F[A,1,R]",
        "jnp.concatenate([x * jnp.cos(y) - jnp.roll(x, 1, -1) * jnp.sin(y), x[..., :3] * y[..., :3]], -1)",
    ),
    "padded": (
        "x:F[A,R]",
        "(jnp.pad(x, ((1, 2), (0, 3))), jnp.pad(x, 2, mode='edge'), jnp.pad(x, 1, mode='reflect'), lax.pad(x, "
        "x[0, 0], ((1, -1, 1), (0, 0, 2))))",
    ),
    "repeated": (
        "x:F[A,R]",
        "(jnp.repeat(x, 2, 0) + 1, jnp.tile(x, (2, 2)), jnp.stack([x, -x], 1), jnp.outer(x[0], x[1]))",
    ),
    "triangles": (
        "x:F[S,S]",
        "(jnp.tril(x), jnp.triu(x, 1), jnp.where(jnp.eye(x.shape[0]) > 0, 0, x), jnp.diagonal(x), "
        "jnp.trace(x))",
    ),
    "selection by reverse": (
        "x:F[A,R] p:pred[A,R] y:F[A,R]",
        "(jnp.where(p, jnp.flip(x, 1), y), jnp.where(p[:, :1], x, y), jnp.where(x > y, jnp.nan, x), "
        "jnp.where(p, x, 0))",
    ),
    # contractions
    "dense": ("x:F[A,R] w:F[R,D] b:F[D]", "jax.nn.relu(x @ w + b)"),
    "dense, residual": ("x:F[A,R] w:F[R,R] y:F[A,R]", "(x @ w) * 0.1 + y"),
    "dense, norm": ("x:F[A,R] w:F[R,R]", "(lambda s: s * lax.rsqrt((s * s).mean(-1, keepdims=True) + 1e-3))(x @ w)"),
    "dense, scaled": ("x:F[A,R] w:F[R,D] b:F[A] c:F[D]", "jax.nn.gelu((x * b[:, None]) @ (w * c)) * b[:, None]"),
    "gated": ("x:F[A,R] w:F[R,D] u:F[R,D]", "jax.nn.silu(x @ w) * (x @ u)"),
    "products of repeated operands": (
        "x:F[A,R] w:F[R] y:F[D]",
        "(x @ jnp.broadcast_to(w[:, None], (w.shape[0], 5)), jnp.einsum('ar,rd->ad', x, jnp.broadcast_to(y, "
        "(x.shape[1], y.shape[0]))), x @ jnp.ones((x.shape[1], 3), x.dtype))",
    ),
    "repeated batches": (
        "x:F[3,A,R] w:F[3]",
        "jnp.einsum('bar,brd->bad', x, jnp.broadcast_to(w[:, None, None], (3, x.shape[2], 6)))",
    ),
    "gradient of dense": ("x:F[A,R] w:F[R,D]", "jax.grad(lambda x, w: (x @ w).sum(), (0, 1))(x, w)"),
    "turned": ("x:F[A,R] w:F[R,D]", "((x @ w).T, x.T @ (x @ w), jnp.einsum('ar,rd->da', x, w) * 2)"),
    "batched": (
        "x:F[B,A,R] w:F[B,R,D]",
        "(x @ w, jnp.einsum('bar,brd->abd', x, w), jnp.einsum('bar,bar->ba', x, x))",
    ),
    "thin": ("x:F[B,R] w:F[B,R,D] y:F[R]", "(jnp.einsum('br,brd->bd', x, w), x @ y, jnp.einsum('brd,r->bd', w, y))"),
    "long": ("x:F[2,3,L] w:F[3,L,D]", "jnp.einsum('akr,krd->ad', x, w)"),
    "rows by group": ("x:F[A,R] w:F[E,R,D] s:s32[E]<12", "lax.ragged_dot(x, w, s)"),
    "gradients by group": (
        "x:F[A,R] w:F[E,R,D] s:s32[E]<12",
        "jax.grad(lambda x, w: lax.ragged_dot(x, w, s).sum(), (0, 1))(x, w)",
    ),
    "whole numbers": (
        "x:s8[A,R] w:s8[R,D]",
        "(lax.dot(x, w, preferred_element_type=jnp.int32), x.astype(jnp.int32) @ w.astype(jnp.int32), x @ w)",
    ),
    "scaled weights": (
        "x:F[A,R] w:s8[R,D] c:F[D]",
        "(x @ (w.astype(x.dtype) * c), x @ ((w.astype(x.dtype) - 3) * c))",
    ),
    "quantised": (
        "x:f32[A,R] w:s8[R,D]",
        "(lambda s: lax.dot(jnp.clip(jnp.round(x / s), -127, 127).astype(jnp.int8), w, "
        "preferred_element_type=jnp.int32) * s)(abs(x).max() / 127)",
    ),
    "complex": (
        "x:f32[A,R] y:f32[A,R]",
        "(lambda z: (z * jnp.conj(z), abs(z), jnp.angle(z), (z @ z.T).real, jnp.exp(z).imag))(x + 1j * y)",
    ),
    # images
    "convolution": ("x:F[N,P,P,C] w:F[3,3,C,D] b:F[D]", "jax.nn.relu(conv(x, w) + b)"),
    "convolution, residual": ("x:F[N,P,P,C] w:F[3,3,C,C]", "(conv(x, w) * 0.1 + x, conv(x, w, (2, 2)).max((1, 2)))"),
    "convolution, norm": (
        "x:f32[N,P,P,C] w:f32[3,3,C,D] b:f32[D]",
        "(lambda y: (y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + 1e-3) * b)(conv(x, w))",
    ),
    "gradients of convolution": (
        "x:f32[N,P,P,C] w:f32[3,3,C,D]",
        "jax.grad(lambda x, w: (conv(x, w) ** 2).sum(), (0, 1))(x, w)",
    ),
    "grouped": ("x:f32[N,P,P,4] w:f32[3,3,2,6] d:f32[3,3,1,4]", "(conv(x, w, groups=2), conv(x, d, groups=4))"),
    "transposed convolution": ("x:f32[N,P,P,C] w:f32[3,3,C,D]", "lax.conv_transpose(x, w, (2, 2), 'SAME')"),
    "pooling": (
        "x:f32[N,P,P,C]",
        "(pool(x, -jnp.inf, lax.max), pool(x, 0.0, lax.add) / 4, jax.grad(lambda x: (pool(x, -jnp.inf, "
        "lax.max) ** 2).sum())(x))",
    ),
    "moving sums": (
        "x:f32[A,R]",
        "(lax.reduce_window(x, 0.0, lax.add, (1, 3), (1, 1), 'SAME'), lax.reduce_window(x, -jnp.inf, lax.max, "
        "(2, 2), (2, 1), 'VALID'))",
    ),
    # sorts
    "sorts": (
        "x:F[A,R] i:s32[A,R]<9",
        "(jnp.sort(x, 1), jnp.argsort(i, 1), lax.sort((i, x), num_keys=1), lax.sort((i, i * 2 - 5), "
        "num_keys=2), -jnp.sort(-x, 0))",
    ),
    "medians": (
        "x:f32[A,R]",
        "(jnp.median(x, 1), jnp.quantile(x, 0.3, 0), jnp.searchsorted(jnp.sort(x[0]), x[1]), jnp.unique(x[0], "
        "size=5))",
    ),
    # whole numbers
    "words": (
        "i:s32[A,R] j:s32[A,R]",
        "(i * j, i // j, i % j, i << (j & 63), i >> j, lax.shift_right_logical(i, j), abs(i), -i, "
        "jnp.sign(i), i ** 3)",
    ),
    "unsigned words": (
        "i:u32[A,R] j:u32[A,R]",
        "(i * j + 7, i // (j | 1), i % j, i << j, i >> (j & 31), ~i, lax.population_count(i), lax.clz(j), "
        "i.astype('float32'))",
    ),
    "short words": (
        "i:s8[A,R] j:s16[A,R] k:u8[A,R]",
        "(i * i, i // 3, i - k.astype(jnp.int8), j * j, j >> 3, k + k, k // 7, k << 3, i.astype(jnp.int32) * "
        "j, k.astype(jnp.bfloat16))",
    ),
    "random bits": (
        "i:u32[2]",
        "(jax.random.uniform(i, (5, 7)), jax.random.normal(i, (40,)), jax.random.bernoulli(i, 0.3, (9,)), "
        "jax.random.randint(i, (8,), -3, 100))",
    ),
    "bits": (
        "x:f32[A,R] i:s32[A,R]",
        "(lax.bitcast_convert_type(x, jnp.int32) & 0xFF, lax.bitcast_convert_type(i & 0x3FFFFF, jnp.float32), "
        "lax.nextafter(x, x + 1), jnp.signbit(x))",
    ),
    "conversions": (
        "x:f32[A,R] i:s32[A,R]",
        "(x.astype(jnp.int8), (x * 100).astype(jnp.uint8), i.astype(jnp.float16), (x * "
        "1e10).astype(jnp.int32), i.astype(jnp.int8), x.astype(bool), "
        "x.astype(jnp.float8_e5m2).astype('float32'))",
    ),
    "minima of words": (
        "i:s32[A,R] k:u8[A,R]",
        "(i.max(0), i.min(1), i.sum(1), k.sum(0), k.max(1), jnp.bitwise_xor.reduce(i, 1), jnp.cumsum(i, 1), "
        "i.argmax(1), jnp.prod(k, 0))",
    ),
}  # fmt: skip
"""By name: inputs, expression."""
FORMS |= {
    f"attention, {softmax}, mask {mask}, {where}": (HEADS, text.format(ATTENTION[softmax], MASKS[mask]))
    for where, text in (("divided before", APART), ("divided behind", BEHIND))
    for softmax in (ATTENTION if text is APART else ("softmax",))
    for mask in MASKS
}


def pair_max(a, b):
    """The greater value, the first of equal ones, as argmax reduces."""
    left = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
    return jnp.where(left, a[0], b[0]), jnp.where(left, a[1], b[1])


def conv(x, w, strides=(1, 1), groups=1):
    return lax.conv_general_dilated(
        x, w, strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


def pool(x, start, combine):
    return lax.reduce_window(x, start, combine, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


NAMES = {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "pair_max": pair_max, "conv": conv, "pool": pool}
