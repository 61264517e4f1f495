"""Reference semantics of indexing, windows, sorting, contractions and control flow, on what JAX emits."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import op_cases
import pytest
from jax import lax

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.reference import evaluate

Program = tuple[Callable[..., Any], list[Any]]


def f32(*dims: int, low: float = -2, high: float = 2) -> np.ndarray:
    return op_cases.random_array("f32", dims, "program", low, high)


def ids(high: int, *dims: int, low: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(3).integers(low, high, dims), np.int32)


def gather_mode(mode: str) -> Callable[..., Any]:
    return lambda x, i: x.at[i].get(mode=mode)


def window(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[..., Any]:
    return lambda *arrays: function(*arrays, *arguments, **options)


def conv(**options: Any) -> Callable[..., Any]:
    defaults = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    return lambda x, k: lax.conv_general_dilated(x, k, **(defaults | options))


PROGRAMS: dict[str, Program] = {
    # gather
    "embedding": (lambda t, i: t[i], [f32(30, 8), ids(30, 2, 5)]),
    "gather-middle": (lambda t, i: t[:, i], [f32(4, 9, 3), ids(9, 6)]),
    "gather-two-dims": (lambda t, i, j: t[i, :, j], [f32(4, 9, 3), ids(4, 7), ids(3, 7)]),
    "gather-clip": (gather_mode("clip"), [f32(9, 3), ids(20, 6, low=-20)]),
    "gather-fill": (gather_mode("fill"), [f32(9, 3), ids(20, 6, low=-20)]),
    "take-along-axis": (lambda t, i: jnp.take_along_axis(t, i, 1), [f32(5, 9), ids(9, 5, 4)]),
    "vmap-dynamic-slice": (
        jax.vmap(lambda t, i: lax.dynamic_slice(t, (i, 1), (2, 3))),
        [f32(5, 9, 6), ids(12, 5, low=-3)],
    ),
    "dynamic-slice": (lambda t, i, j: lax.dynamic_slice(t, (i, j), (3, 4)), [f32(5, 9), np.int32(7), np.int32(-2)]),
    "dynamic-update-slice": (
        lambda t, u, i: lax.dynamic_update_slice(t, u, (i, 2)),
        [f32(5, 9), f32(2, 3), np.int32(4)],
    ),
    "negative-step": (lambda t: t[::-2, 1:7:3], [f32(9, 8)]),
    # scatter
    "scatter-set": (lambda t, i, u: t.at[i].set(u), [f32(9, 3), np.array([1, 4, 30, -2], np.int32), f32(4, 3)]),
    "scatter-add-duplicates": (lambda t, i, u: t.at[i].add(u), [f32(9, 3), ids(9, 40), f32(40, 3)]),
    "scatter-max": (lambda t, i, u: t.at[:, i].max(u), [f32(3, 9), ids(9, 20), f32(3, 20)]),
    "scatter-multiply-int": (lambda t, i, u: t.at[i].multiply(u), [ids(9, 9), ids(12, 20), ids(5, 20)]),
    "scatter-apply": (lambda t, i: t.at[i].apply(jnp.sin), [f32(9, 3), np.array([2, 5], np.int32)]),
    "scatter-window-off-the-end": (
        lambda t, i, u: lax.scatter_add(
            t,
            i,
            u,
            lax.ScatterDimensionNumbers((1,), (), (0,)),
            mode=lax.GatherScatterMode.FILL_OR_DROP,
        ),
        [f32(9), np.array([[0], [7], [8], [-1], [3]], np.int32), f32(5, 2)],
    ),
    "scatter-batched": (
        jax.vmap(lambda t, i, u: t.at[i].add(u)),
        [f32(4, 9), ids(9, 4, 3), f32(4, 3)],
    ),
    "embedding-gradient": (jax.grad(lambda t, i: jnp.sum(jnp.sin(t[i]))), [f32(11, 4), ids(11, 25)]),
    "segment-sum-bf16": (
        lambda i, u: jnp.zeros((7,), jnp.bfloat16).at[i].add(u.astype(jnp.bfloat16)),
        [ids(7, 12), f32(12)],
    ),
    # sort and top-k
    "sort": (lambda x: jnp.sort(x, axis=0), [f32(37, 3)]),
    "sort-descending": (lambda x: -jnp.sort(-x), [f32(5, 130)]),
    "argsort-ties": (lambda x: jnp.argsort(x, axis=-1), [ids(4, 6, 129)]),
    "sort-pairs": (lambda k, v: lax.sort((k, v), num_keys=1), [ids(5, 70), f32(70)]),
    "sort-two-keys": (lambda k, j, v: lax.sort((k, j, v), num_keys=2), [ids(3, 70), ids(3, 70), f32(70)]),
    "sort-nan-zero": (lambda x: jnp.sort(x), [np.array([1, np.nan, -0.0, 0.0, -np.inf, np.inf, -np.nan], np.float32)]),
    "sort-empty": (lambda x: jnp.sort(x), [f32(0)]),
    "top-k": (lambda x: lax.top_k(x, 5), [f32(3, 40)]),
    "top-k-ties": (lambda x: lax.top_k(x, 7), [ids(4, 3, 40)]),
    # reductions
    "argmax": (lambda x: jnp.argmax(x, axis=1), [np.round(f32(7, 130) * 2)]),
    "argmin-nan": (lambda x: jnp.argmin(x), [np.array([3, np.nan, 1], np.float32)]),
    "argmax-of-nothing": (lambda x: jnp.argmax(x, axis=1), [f32(0, 5)]),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, axis=(0, 2)), [f32(3, 4, 129)]),
    "variance": (lambda x: jnp.var(x, axis=1), [f32(5, 513)]),
    "any-all": (lambda x: (jnp.any(x > 1, 0), jnp.all(x > -1, 1)), [f32(5, 7)]),
    "reduce-custom": (
        lambda x: lax.reduce(x, np.float32(0), lambda a, b: jnp.maximum(a, b) + 0 * jnp.minimum(a, b), (0,)),
        [f32(33, 4, low=0)],
    ),
    "reduce-two-sums": (
        lambda x, y: lax.reduce((x, y), (np.float32(0), np.float32(1)), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,)),
        [f32(3, 9), f32(3, 9)],
    ),
    "reduce-empty": (lambda x: (jnp.sum(x, 0), jnp.prod(x)), [f32(0, 3)]),
    "cumsum": (lambda x: jnp.cumsum(x, axis=1), [f32(3, 40)]),
    "cummax-reverse": (lambda x: lax.cummax(x, 0, reverse=True), [f32(13, 2)]),
    "cumprod-int": (lambda x: jnp.cumprod(x), [ids(9, 20)]),
    # windows
    "max-pool": (
        window(lax.reduce_window, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        [f32(2, 9, 8, 3)],
    ),
    "average-pool": (window(lax.reduce_window, 0.0, lax.add, (2, 3), (2, 1), "VALID"), [f32(7, 9)]),
    "dilated-pool": (
        window(
            lax.reduce_window,
            np.float32(0),
            lax.add,
            (2, 3),
            (2, 1),
            ((1, 2), (-1, 0)),
            base_dilation=(2, 3),
            window_dilation=(3, 2),
        ),
        [f32(7, 9)],
    ),
    "max-pool-gradient": (
        jax.grad(lambda x: jnp.sum(jnp.sin(lax.reduce_window(x, -jnp.inf, lax.max, (3, 2), (2, 2), "SAME")))),
        [f32(9, 8)],
    ),
    # convolution
    "conv": (conv(), [f32(2, 9, 8, 3), f32(3, 3, 3, 5)]),
    "conv-stride-dilation": (
        conv(window_strides=(2, 1), rhs_dilation=(2, 3), padding=((2, 1), (0, 4))),
        [f32(2, 9, 8, 3), f32(3, 2, 3, 5)],
    ),
    "conv-transposed": (conv(lhs_dilation=(2, 3), padding=((1, 2), (-1, 2))), [f32(2, 5, 6, 3), f32(3, 3, 3, 4)]),
    "conv-groups": (conv(feature_group_count=3), [f32(2, 9, 8, 6), f32(3, 3, 2, 9)]),
    "conv-batch-groups": (conv(batch_group_count=2), [f32(4, 9, 8, 3), f32(3, 3, 3, 6)]),
    "conv-1d-nch": (
        conv(window_strides=(2,), dimension_numbers=("NCH", "OIH", "NCH")),
        [f32(2, 3, 17), f32(4, 3, 5)],
    ),
    "conv-gradients": (
        jax.grad(lambda x, k: jnp.sum(jnp.sin(conv(window_strides=(2, 2))(x, k))), (0, 1)),
        [f32(2, 9, 8, 3), f32(3, 3, 3, 5)],
    ),
    "conv-depthwise-gradients": (
        jax.grad(lambda x, k: jnp.sum(jnp.sin(conv(feature_group_count=4)(x, k))), (0, 1)),
        [f32(2, 6, 5, 4), f32(3, 3, 1, 8)],
    ),
    # contractions
    "einsum": (lambda x, y: jnp.einsum("bhqd,bkhd->bhqk", x, y), [f32(2, 3, 5, 8), f32(2, 7, 3, 8)]),
    "tensordot": (lambda x, y: jnp.tensordot(x, y, ((2, 0), (1, 2))), [f32(3, 4, 5), f32(6, 5, 3)]),
    "vector-dot": (jnp.dot, [f32(129), f32(129)]),
    "outer": (jnp.outer, [f32(5), f32(7)]),
    "dot-empty": (jnp.dot, [f32(3, 0), f32(0, 4)]),
    "dot-mixed": (
        lambda x, y: lax.dot(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), preferred_element_type=jnp.float32),
        [f32(5, 130), f32(130, 3)],
    ),
    "dot-int8": (
        lambda x, y: lax.dot(x.astype(jnp.int8), y.astype(jnp.int8), preferred_element_type=jnp.int32),
        [ids(128, 5, 130, low=-128), ids(128, 130, 3, low=-128)],
    ),
    "dot-int32-wraps": (jnp.dot, [ids(2**31 - 1, 5, 130, low=-(2**31)), ids(2**31 - 1, 130, 3, low=-(2**31))]),
    # control flow
    "while": (lambda x: lax.while_loop(lambda c: jnp.sum(c) < 100, lambda c: c * 1.5, x), [f32(5, low=1)]),
    "fori": (lambda x: lax.fori_loop(0, 10, lambda i, c: c * 0.9 + i * jnp.sin(0.1 * c), x), [f32(5)]),
    "scan": (lambda x: lax.scan(lambda c, a: (c * 0.5 + a, jnp.tanh(c)), jnp.zeros(3), x), [f32(12, 3)]),
    "cond": (lambda p, x: lax.cond(p > 2, jnp.sin, jnp.cos, x), [np.float32(1), f32(4)]),
    "switch": (
        lambda i, x: jax.vmap(lambda j: lax.switch(j, [jnp.sin, jnp.cos, jnp.tanh], x))(i),
        [np.array([-5, 0, 1, 2, 9], np.int32), f32(4)],
    ),
    "switch-scalar": (lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x), [np.int32(2), f32(4)]),
    # transforms
    "fft": (lambda x: jnp.abs(jnp.fft.fftn(x, axes=(1, 2))), [f32(2, 8, 9)]),
    "rfft": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2), [f32(3, 16)]),
    "complex": (
        lambda x, y: jnp.real(lax.complex(x, y) * jnp.exp(lax.complex(y, x))) + jnp.imag(jnp.conj(lax.complex(x, y))),
        [f32(9), f32(9)],
    ),
    # random numbers
    "threefry": (lambda k: jax.random.bits(jax.random.wrap_key_data(k), (5, 7)), [np.array([1, 2], np.uint32)]),
    "normal": (lambda k: jax.random.normal(jax.random.wrap_key_data(k), (64,)), [np.array([1, 2], np.uint32)]),
    "rng-bit-generator": (lambda k: lax.rng_bit_generator(k, (5, 7)), [np.arange(4, dtype=np.uint32)]),
    # whole layers
    "softmax-gelu": (lambda x: jax.nn.softmax(jax.nn.gelu(x)), [f32(3, 4, 65)]),
    "layer-norm-gradient": (
        jax.grad(
            lambda x: jnp.sum(jnp.sin((x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)))
        ),
        [f32(5, 33)],
    ),
    "pad-roll": (lambda x: jnp.roll(jnp.pad(x, ((1, 2), (0, 3)), constant_values=4), 3, 1), [f32(3, 5)]),
    "rank-8": (lambda x: jnp.transpose(x, (7, 1, 5, 3, 4, 2, 6, 0)) + x.T, [f32(2, 2, 2, 2, 2, 2, 2, 2)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_matches_jax(name: str) -> None:
    function, arguments = PROGRAMS[name]
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(lowered.compile()(*arguments))]
    results = evaluate(parse_text(lowered.as_text(dialect="hlo")), [np.asarray(x) for x in arguments])
    assert [(x.shape, x.dtype) for x in results] == [(x.shape, x.dtype) for x in wanted]
    for result, want in zip(results, wanted, strict=True):
        if want.dtype.kind in "biu":
            np.testing.assert_array_equal(result, want)
        else:
            epsilon = 2e-5 if want.dtype == np.float32 else 0.02
            np.testing.assert_allclose(result.astype(np.float64), want.astype(np.float64), epsilon, epsilon)
