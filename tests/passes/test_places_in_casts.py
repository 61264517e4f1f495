"""Places of extremes where all FP32 is cast: they are whole numbers, and some element is equal to the greatest."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of

Array = Any
GIVEN: dict[str, Callable[[Array, int], Any]] = {
    "largest": lambda x, axis: jnp.argmax(x, axis),
    "least": lambda x, axis: jnp.argmin(-x, axis),
    "of a function": lambda x, axis: jnp.argmax(jnp.tanh(x), axis),
    "of shares": lambda x, axis: jnp.argmax(jax.nn.softmax(x, axis), axis),
    "beside shares": lambda x, axis: (jnp.argmax(x, axis), jax.nn.softmax(x, axis).sum()),
    "of all": lambda x, axis: jnp.argmax(x),
    "beside the value": lambda x, axis: (jnp.argmax(x, axis), x.max(axis)),
    "sorted": lambda x, axis: (jnp.argsort(-x, axis).take(0, axis), lax_top(x, axis)),
    "equal": lambda x, axis: (
        (x == x.max(axis, keepdims=True)).sum(axis),
        jnp.exp(x - x.max(axis, keepdims=True)).sum(),
    ),
    "numbers of rows": lambda x, axis: jnp.where(x > 4, numbers(x, axis), 0).sum(axis).astype(jnp.int32),
}
DRAWN: dict[str, Callable[[Array, tuple[int, ...], int], Any]] = {
    "largest": lambda key, dims, axis: jnp.argmax(jax.random.gumbel(key, dims), axis),
    "least": lambda key, dims, axis: jnp.argmin(jax.random.normal(key, dims), axis),
    "hidden": lambda key, dims, axis: masked(jax.random.normal(key, dims), axis),
    "beside shares": lambda key, dims, axis: shared(jax.random.gumbel(key, dims), axis),
    "categories": lambda key, dims, axis: jax.random.categorical(key, numbers(jnp.zeros(dims), 1) * 0.01, axis),
    "equal": lambda key, dims, axis: equal(jax.random.uniform(key, dims), axis),
}
DIMS = [(3, 257), (2, 5000), (700, 5), (8, 70000)]


def lax_top(x: Array, axis: int) -> Array:
    return jax.lax.top_k(jnp.moveaxis(x, axis, -1), 1)[1]


def numbers(x: Array, axis: int) -> Array:
    return jax.lax.broadcasted_iota(jnp.float32, x.shape, axis)


def masked(x: Array, axis: int) -> Array:
    return jnp.argmax(jnp.where(x > 0, x, -jnp.inf), axis)


def shared(x: Array, axis: int) -> Array:
    return jnp.argmax(x, axis), jax.nn.softmax(x, axis).sum()


def equal(x: Array, axis: int) -> Array:
    return (x == x.max(axis, keepdims=True)).sum(axis)


def check(function: Callable[..., Any], given: Any, cast_type: str) -> None:
    """All whole numbers."""
    (found, *_), wanted = (
        compile_text(text_of(function, given), auto_cast="all", auto_cast_type=cast_type).run([given]),
        jax.tree.leaves(jax.jit(function)(given))[0],
    )
    np.testing.assert_array_equal(found, np.asarray(wanted))


@pytest.mark.parametrize("cast_type", ["bf16", "fp16", "tf32"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("form", GIVEN)
def test_of_what_is_given(form: str, dims: tuple[int, ...], axis: int, cast_type: str) -> None:
    """One element of each row is greatest by far."""
    random = np.random.default_rng(0)
    x = (0.1 * random.standard_normal(dims)).astype(np.float32)
    rows = random.integers(0, dims[axis], [size for at, size in enumerate(dims) if at != axis])
    np.put_along_axis(x, np.expand_dims(rows, axis), 9.0, axis)
    if form == "of all":
        x.flat[x.size - 3] = 12.0
    check(lambda x: GIVEN[form](x, axis), x, cast_type)


@pytest.mark.parametrize("cast_type", ["bf16", "fp16", "tf32"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("form", DRAWN)
def test_of_what_is_drawn(form: str, dims: tuple[int, ...], axis: int, cast_type: str) -> None:
    """Numbers that are drawn are not rounded on the way to their places."""
    check(lambda seed: DRAWN[form](jax.random.key(seed), dims, axis), np.uint32(5), cast_type)


@pytest.mark.parametrize("cast_type", ["bf16", "fp16", "tf32"])
def test_integers_by_way_of_floats(cast_type: str) -> None:
    """Several integers are made of what others that are not have, too."""
    given = np.random.default_rng(0).integers(0, 5000, (40, 60)).astype(np.int32)

    def function(a: Any) -> Any:
        wide = a.astype(jnp.float32)
        whole = jnp.stack([wide.mean(1), jnp.median(wide, 1), wide[:, 0] / 7, jnp.sqrt(wide[:, 1])])
        return whole.astype(jnp.int32), jnp.tanh(wide * 1e-3)

    check(function, given, cast_type)


TABLES: dict[str, Callable[..., Any]] = {
    "rotary": lambda x, p: rotated(x, angles(jnp.arange(len(x), dtype=jnp.float32))),
    "rotary of given positions": lambda x, p: rotated(x, angles(p.astype(jnp.float32))),
    "rotary by a table": lambda x, p: rotated(x, angles(jnp.arange(5000.0))[p]),
    "sines": lambda x, p: x + jnp.concatenate([jnp.sin(angles(p * 1.0)), jnp.cos(angles(p * 1.0))], -1),
    "steps": lambda x, p: x * jnp.exp(-1e-3 * jnp.arange(len(x)))[:, None],
    "linear": lambda x, p: x + jnp.floor(jnp.linspace(0, 99, len(x)))[:, None] / 99,
}


def angles(positions: Array) -> Array:
    return positions[:, None] * 10000.0 ** (-jnp.arange(16) / 16)


def rotated(x: Array, by: Array) -> Array:
    sines, cosines, left, right = jnp.sin(by), jnp.cos(by), x[:, :16], x[:, 16:]
    return jnp.concatenate([left * cosines - right * sines, left * sines + right * cosines], -1)


@pytest.mark.parametrize(("cast_type", "step"), [("bf16", 2**-8), ("fp16", 2**-11)])
@pytest.mark.parametrize("rows", [64, 1000, 4096])
@pytest.mark.parametrize("form", TABLES)
def test_what_positions_give(form: str, rows: int, cast_type: str, step: float) -> None:
    """Angles of positions that are rounded ahead of their sines would be others."""
    x = np.random.default_rng(0).standard_normal((rows, 32)).astype(np.float32)
    given = [x, np.arange(rows, dtype=np.int32)]
    (found,) = compile_text(text_of(TABLES[form], *given), auto_cast="all", auto_cast_type=cast_type).run(given)
    wanted = np.asarray(jax.jit(TABLES[form])(*given))
    np.testing.assert_allclose(found, wanted, atol=4 * step * float(np.abs(wanted).max()))
