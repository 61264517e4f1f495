"""Casts of what lies in HBM, on the way to contractions: given, updated in place, scattered; through any views."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, assert_close, compile_text, text_of
from jax import lax

SMALL = TRN1.with_settings(["memory.sbuf_partition_bytes=32768"])
DTYPES = (jnp.bfloat16, jnp.float16)

Array = Any
SOURCES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "given": lambda x, u, p: x,
    "updated": lambda x, u, p: lax.dynamic_update_slice(x, u, (0, p, 0)),
    "updated twice": lambda x, u, p: lax.dynamic_update_slice(
        lax.dynamic_update_slice(x, u, (0, p, 0)), u * 2, (0, 0, 0)
    ),
    "scattered": lambda x, u, p: x.at[:, jnp.stack([p, p + 1])].set(u[:, :2]),
    "scattered, added": lambda x, u, p: x.at[:, jnp.stack([p, p + 1])].add(u[:, :2]),
    "computed, updated": lambda x, u, p: lax.dynamic_update_slice(jnp.sin(x), u, (0, p, 0)),
    "updated in a loop": lambda x, u, p: lax.fori_loop(
        0, 3, lambda i, y: lax.dynamic_update_slice(y, u + i, (0, p + i, 0)), x
    ),
}
VIEWS: dict[str, Callable[[Array], Array]] = {
    "none": lambda y: y,
    "transposed": lambda y: y.transpose(0, 2, 1),
    "ones around": lambda y: y.transpose(0, 2, 1)[:, None].reshape(y.shape[0], y.shape[2], 1, y.shape[1])[:, :, 0],
    "cut": lambda y: y[:, 1:-1, ::2],
    "reversed": lambda y: y[:, ::-1],
    "one of them": lambda y: y[:1],
    "repeated": lambda y: jnp.broadcast_to(y[:, None], (y.shape[0], 3, *y.shape[1:])).reshape(-1, *y.shape[1:]),
    "joined": lambda y: y.reshape(1, -1, y.shape[-1]),
}
READERS: dict[str, Callable[[Array, Array], Array]] = {
    "rows": lambda q, y: jnp.einsum("bqk,bnk->bqn", q, y, preferred_element_type=jnp.float32),
    "columns": lambda q, y: jnp.einsum("bqn,bnk->bqk", q, y, preferred_element_type=jnp.float32),
    "itself": lambda q, y: jnp.einsum("bik,bjk->bij", y, y, preferred_element_type=jnp.float32),
    "sum as well": lambda q, y: (
        jnp.einsum("bqk,bnk->bqn", q, y, preferred_element_type=jnp.float32) + y.astype(jnp.float32).sum()
    ),
    "two": lambda q, y: (
        jnp.einsum("bqk,bnk->bqn", q, y, preferred_element_type=jnp.float32)
        @ y.astype(jnp.float32).astype(y.dtype).astype(jnp.float32)
    ),
}


def case(seed: int) -> tuple[Callable[..., Any], list[Any]]:
    """A function of an array, what it is updated with, where, and the other operand; and its inputs."""
    draw = np.random.default_rng(seed)
    source, view, reader = (
        SOURCES[draw.choice(list(SOURCES))],
        VIEWS[draw.choice(list(VIEWS))],
        draw.choice(list(READERS)),
    )
    dtype = DTYPES[draw.integers(2)]
    batch, rows, width, queries = (
        draw.integers(1, 4),
        draw.choice([9, 64, 129]),
        draw.choice([5, 32, 130]),
        draw.choice([1, 3, 40]),
    )
    array, update = draw.standard_normal((batch, rows, width)), draw.standard_normal((batch, 3, width))
    seen = jax.eval_shape(view, jax.ShapeDtypeStruct(array.shape, jnp.float32)).shape
    query = draw.standard_normal((seen[0], queries, seen[1] if reader == "columns" else seen[2]))
    keeps, old = draw.random() < 0.5, draw.random() < 0.3

    def function(x: Array, u: Array, p: Array, q: Array) -> Any:
        y = source(x, u, p)
        found = [READERS[reader](q.astype(dtype), view(y).astype(dtype))]
        if keeps:
            found.append(y)
        if old:
            found.append(READERS[reader](q.astype(dtype), view(x).astype(dtype)))
        return found

    return function, [
        *(each.astype(np.float32) for each in (array, update)),
        np.int32(draw.integers(0, 4)),
        query.astype(np.float32),
    ]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("machine", [TRN1, SMALL], ids=["trn1", "small"])
def test_values(seed: int, machine: Any) -> None:
    function, inputs = case(seed)
    found = compile_text(text_of(function, *inputs), machine).run(inputs)
    with jax.disable_jit():  # jitted, the reference misreads sums of what is repeated
        expected = function(*map(jnp.asarray, inputs))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, np.asarray(other), 1e-3)


@pytest.mark.parametrize("view", ["none", "transposed", "ones around", "reversed", "repeated"])
def test_no_kernel_casts(view: str) -> None:
    """A cache that is updated in place is cast by the product that loads it."""

    def function(x: Array, u: Array, p: Array, q: Array) -> Any:
        y = lax.dynamic_update_slice(x, u, (0, p, 0))
        return jnp.einsum("bqk,bnk->bqn", q, VIEWS[view](y).astype(jnp.bfloat16)), y

    columns = 64 if view in ("none", "reversed", "repeated") else 200
    inputs = np.ones((2, 200, 64), np.float32), np.ones((2, 1, 64), np.float32), np.int32(3)
    query = jnp.ones((6 if view == "repeated" else 2, 1, columns), jnp.bfloat16)
    kernels = [name.split(".")[1] for name in compile_text(text_of(function, *inputs, query)).program.kernels]
    assert kernels[kernels.index("dynamic-update-slice") :] == ["dynamic-update-slice", "dot"]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("terms", [1, 40])
def test_beside_a_product(source: str, view: str, terms: int) -> None:
    """What is cast lies in HBM until the product that adds it to its sums."""
    rng = np.random.default_rng(terms)
    x, u = rng.standard_normal((2, 129, 130), np.float32), rng.standard_normal((2, 3, 130), np.float32)
    dims = jax.eval_shape(VIEWS[view], x).shape
    lhs, rhs = rng.standard_normal((*dims[:2], terms), np.float32), rng.standard_normal((terms, dims[2]), np.float32)

    def function(x: Array, u: Array, p: Array, lhs: Array, rhs: Array) -> Array:
        other = VIEWS[view](SOURCES[source](x, u, p)).astype(jnp.bfloat16)
        return jnp.maximum(other - (lhs.astype(jnp.bfloat16) @ rhs.astype(jnp.bfloat16)), 0)

    inputs = [x, u, np.int32(2), lhs, rhs]
    [found] = compile_text(text_of(function, *inputs)).run(inputs)
    assert_close(found.astype(np.float32), np.asarray(jax.jit(function)(*inputs), np.float32), 2e-2)
