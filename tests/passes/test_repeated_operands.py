"""Contractions of operands that repeat their elements: values, what overflows, and time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronx_cc

FORMS = ("bmk,bkn->bmn", "bkm,bnk->bnm", "mk,kn->nm", "bcmk,bckn->bcmn", "mkj,kjn->mn", "k,kn->n", "bkjm,bjkn->bmn")
SIZES = {"b": 3, "c": 2, "m": 5, "k": 130, "j": 3, "n": 33}


def operand(random: np.random.Generator, letters: str, dtype: str) -> jax.Array:
    """One that is the same along some of its dims, drawn, or along none."""
    kept = [letter for letter in letters if random.integers(2)]
    dims = [SIZES[letter] if letter in kept else 1 for letter in letters]
    numbers = random.integers(-9, 9, dims) if dtype == "int32" else random.standard_normal(dims)
    return jnp.asarray(numbers, dtype)


@pytest.mark.parametrize("seed", range(14))
def test_values_are_those_of_the_contraction(seed: int) -> None:
    random = np.random.default_rng(seed)
    form = FORMS[seed % len(FORMS)]
    lhs, rhs = form.split("->")[0].split(",")
    dtype = random.choice(["float32", "bfloat16", "int32"])
    x, y = operand(random, lhs, dtype), operand(random, rhs, dtype)

    def program(x: jax.Array, y: jax.Array) -> jax.Array:
        wide = [jnp.broadcast_to(a, [SIZES[s] for s in letters]) for a, letters in ((x, lhs), (y, rhs))]
        return jnp.einsum(form, *wide)

    found = neuronx_cc.compile(jax.jit(program).lower(x, y), auto_cast="none").run([x, y]).outputs[0]
    expected = np.asarray(jax.jit(program)(x, y), np.float64)
    scale = np.abs(expected).max() + 1e-30
    tolerance = {"float32": 3e-6, "bfloat16": 8e-3, "int32": 0}[dtype]
    assert np.abs(np.asarray(found, np.float64) - expected).max() <= tolerance * scale


@pytest.mark.parametrize("seed", range(24))
def test_batches_that_share_an_operand_are_rows_of_it(seed: int) -> None:
    """Through views of all kinds: one after the other, as a whole, on both sides, in several dims."""
    random = np.random.default_rng(seed)
    form = ("bhmk,bhkn->bhmn", "hbkm,bnkh->bhmn", "bhk,bhnk->bhn", "hmk,hkn->hnm", "bhmk,bhk->bhm")[seed % 5]
    lhs, rhs = form.split("->")[0].split(",")
    sizes = {"b": 3, "h": 12, "m": 5, "k": 9, "n": 7}
    dtype = random.choice(["float32", "bfloat16", "int32"])

    def given(letters: str) -> tuple[np.ndarray, int, bool, bool]:
        count = int(random.choice([1, 2, 3, 4, 6, 12]))
        dims = [sizes[each] // (count if each == "h" else 1) for each in letters]
        numbers = random.integers(-9, 9, dims) if dtype == "int32" else random.standard_normal(dims)
        return np.asarray(jnp.asarray(numbers, dtype)), count, bool(random.integers(2)), bool(random.integers(2))

    parts = given(lhs), given(rhs)

    def operand(x: jax.Array, part: tuple[np.ndarray, int, bool, bool], letters: str) -> jax.Array:
        _, count, tiled, moved = part
        axis = letters.index("h")
        if moved:
            x, axis = jnp.moveaxis(x, axis, 0), 0
        several = [count if dim == axis else 1 for dim in range(x.ndim)]
        wide = jnp.tile(x, several) if tiled else jnp.repeat(x, count, axis)
        return jnp.moveaxis(wide, 0, letters.index("h")) if moved else wide

    def program(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.einsum(form, operand(x, parts[0], lhs), operand(y, parts[1], rhs))

    x, y = parts[0][0], parts[1][0]
    found = neuronx_cc.compile(jax.jit(program).lower(x, y), auto_cast="none").run([x, y]).outputs[0]
    expected = np.asarray(jax.jit(program)(x, y), np.float64)
    tolerance = {"float32": 3e-6, "bfloat16": 8e-3, "int32": 0}[dtype]
    assert np.abs(np.asarray(found, np.float64) - expected).max() <= tolerance * (np.abs(expected).max() + 1e-30)


def test_what_overflows_is_what_did() -> None:
    x = np.full((128, 4), 1e37, np.float32)
    lowered = jax.jit(lambda x: jnp.full((5, 128), 1e-3, jnp.float32) @ x).lower(x)
    (found,) = neuronx_cc.compile(lowered, auto_cast="none").run([x]).outputs
    np.testing.assert_allclose(found, np.full((5, 4), 1.28e36, np.float32), rtol=1e-5)


def test_the_gradient_of_a_sum_takes_no_longer_than_any_other() -> None:
    x, y, g = (jax.ShapeDtypeStruct(dims, jnp.float32) for dims in ((4, 256, 64), (4, 64, 256), (4, 256, 256)))
    product = jnp.matmul
    of_sum = jax.jit(jax.grad(lambda x, y: product(x, y).sum(), (0, 1))).lower(x, y)
    of_any = jax.jit(lambda x, y, g: jax.vjp(product, x, y)[1](g)).lower(x, y, g)
    times = [neuronx_cc.compile(each).run([], timing_only=True).report.time_ns for each in (of_sum, of_any)]
    assert times[0] < 1.2 * times[1]
