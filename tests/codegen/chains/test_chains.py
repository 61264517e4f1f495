"""Chains of contractions as one kernel: gradients of attention in their spellings, beside FP64 and the race check."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.codegen.chains import choose, pattern
from neuronx_cc.ir.isa.program import Instr, Stream

Array = Any


def attention(q: Array, k: Array, v: Array, causal: bool = False) -> Array:
    scores = jnp.einsum("...qd,...kd->...qk", q, k) * (1 / np.sqrt(q.shape[-1])).astype(q.dtype)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("...qk,...kd->...qd", jax.nn.softmax(scores, axis=-1), v)


def gradient(function: Callable[..., Array], *arguments: Array) -> tuple[Array, ...]:
    """Of all but the last of ``arguments``, which is the cotangent."""
    *primal, cotangent = arguments
    return jax.vjp(function, *primal)[1](cotangent)


def chains(executable: Any) -> list[str]:
    return [line for line in executable.program.schedules.values() if line.startswith("chain")]


def run(function: Callable[..., tuple[Array, ...]], *arguments: Array, count: int = 1) -> None:
    """Compile as chains, run, and compare with FP64: as good as JAX's own result in BF16, and a rounding."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(choose, "apart", lambda *_: inf)
        executable = neuronx_cc.compile(jax.jit(function), *arguments)
    assert len(chains(executable)) == count
    results = executable.run([np.asarray(argument) for argument in arguments]).outputs
    with jax.enable_x64(True):
        exact = function(*(jnp.asarray(argument, jnp.float64) for argument in arguments))
    own = function(*(argument.astype(jnp.bfloat16) for argument in arguments))
    for result, true, narrow in zip(results, exact, own, strict=True):
        error, allowed = (np.std(np.asarray(x, np.float64) - np.asarray(true)) for x in (result, narrow))
        assert error <= 1.25 * allowed


def arrays(count: int, *shape: int, dtype: Any = jnp.bfloat16) -> list[Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for _ in range(count)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize(
    "shape",
    [
        (3, 256, 64),
        (2, 384, 128),
        (1, 2, 256, 32),
        (2, 3, 128, 64),
        (5, 219, 64),
        (512, 64),
        (3, 197, 64),
        (2, 130, 32),
        (4, 49, 32),
    ],
    ids=str,
)
def test_gradients_of_attention(shape: tuple[int, ...], dtype: Any, causal: bool) -> None:
    run(lambda *x: gradient(lambda q, k, v: attention(q, k, v, causal), *x), *arrays(4, *shape, dtype=dtype))


def test_results_of_the_forward_pass_are_one_more_contraction() -> None:
    def both(*x: Array) -> tuple[Array, ...]:
        result, pull = jax.vjp(attention, *x[:3])
        return result, *pull(x[3])

    run(both, *arrays(4, 2, 256, 64))


def test_the_forward_pass_stays_an_attention() -> None:
    """What a gradient waits for is no part of its chain: the scores that both read are computed twice."""

    def function(*x: Array) -> tuple[Array, ...]:
        return jax.grad(lambda *x: (attention(*x) ** 2).sum(), (0, 1, 2))(*x)

    x = [jax.ShapeDtypeStruct((12, 1024, 64), jnp.bfloat16)] * 3
    program = neuronx_cc.compile(jax.jit(function), *x).program
    assert sorted(line.split()[0] for line in program.schedules.values()) == ["attention", "chain"]
    assert program.hbm_bytes < 12 * 1024 * 1024 * 2
    run(function, *arrays(3, 2, 1024, 64))


def test_rows_and_columns_differ() -> None:
    q, g = arrays(2, 3, 192, 64)
    k, v = arrays(2, 3, 448, 64)
    run(lambda *x: gradient(attention, *x), q, k, v, g)


def test_heads_beside_each_other() -> None:
    """Heads are parts of rows, as layers of transformers have them."""

    def layer(x: Array, g: Array) -> tuple[Array, ...]:
        def heads(x: Array) -> Array:
            q, k, v = (part.reshape(2, 256, 4, 32).transpose(0, 2, 1, 3) for part in jnp.split(x, 3, -1))
            return attention(q, k, v, True).transpose(0, 2, 1, 3).reshape(2, 256, 128)

        return gradient(heads, x, g)

    run(layer, *arrays(1, 2, 256, 384), *arrays(1, 2, 256, 128))


def test_arrays_beside_the_scores() -> None:
    """Rows, columns and whole arrays that are read by block."""

    def function(q: Array, k: Array, v: Array, bias: Array, g: Array) -> Array:
        def biased(q: Array, k: Array, v: Array) -> Array:
            scores = jnp.tanh(jnp.einsum("hqd,hkd->hqk", q, k) / 8) + bias
            return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1), v)

        return gradient(biased, q, k, v, g)

    q, k, v, g = arrays(4, 2, 256, 64)
    run(function, q, k, v, arrays(1, 256, 256)[0], g)
    run(function, q, k, v, arrays(1, 1, 1, 256)[0], g)
    run(function, q, k, v, arrays(1, 2, 256, 1)[0], g)
    run(function, q, k, v, arrays(1, 2, 256, 256)[0], g)


def test_sums_that_do_not_fit_psum_add_up_in_sbuf() -> None:
    q, g = arrays(2, 2, 256, 128)
    k, v = arrays(2, 2, 1152, 128)
    run(lambda *x: gradient(attention, *x), q, k, v, g)


def test_chains_without_folds_are_left_apart() -> None:
    """Contractions take in what lies between."""

    def experts(x: Array, w: Array, v: Array, g: Array) -> tuple[Array, ...]:
        def forward(x: Array, w: Array, v: Array) -> Array:
            return jnp.einsum("eth,ehd->etd", jnp.tanh(jnp.einsum("etd,edh->eth", x, w)), v)

        return gradient(forward, x, w, v, g)

    x, g = arrays(2, 4, 256, 64)
    run(experts, x, arrays(1, 4, 64, 256)[0], arrays(1, 4, 256, 64)[0], g, count=0)


def test_looking_for_chains_takes_time_in_proportion_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """What residual layers add up hangs together, from the first to the last."""

    def asked(layers: int) -> int:
        def gradients(x: Array, *weights: Array) -> tuple[Array, ...]:
            def forward(*weights: Array) -> Array:
                y = x
                for weight in weights:
                    y += jnp.tanh((y - y.mean(-1, keepdims=True)) @ weight)
                return y

            return jax.vjp(forward, *weights)[1](x)

        count = 0

        def counted(*given: Any) -> bool:
            nonlocal count
            count += 1
            return is_inner(*given)

        is_inner = pattern._Search._is_inner
        with monkeypatch.context() as patched:
            patched.setattr(pattern._Search, "_is_inner", counted)
            neuronx_cc.compile(jax.jit(gradients), *arrays(layers + 1, 64, 64))
        return count

    assert 0 < asked(24) < 3 * asked(12)


def test_what_others_read_of_all_that_is_made_is_stored() -> None:
    """The gradient of a bias that all of a batch have."""

    def biased(q: Array, k: Array, v: Array, bias: Array) -> Array:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 8 + bias
        return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)

    q, k, v, cotangent = arrays(4, 3, 2, 200, 64, dtype=jnp.float32)
    (bias,) = arrays(1, 2, 200, 200, dtype=jnp.float32)
    run(lambda *x: gradient(biased, *x), q, k, v, bias, cotangent)


def test_rows_that_divide_badly_are_taken_in_order() -> None:
    run(lambda *x: gradient(attention, *x), *arrays(4, 4, 257, 64))


@pytest.mark.parametrize("shape", [(2, 3, 128, 64), (1, 3, 128, 128)], ids=str)
def test_heads_that_lie_beside_each_other_are_loaded_and_stored_together(shape: tuple[int, ...]) -> None:
    """In a layer: its casts are the chain's, as is the order of what it stores; keys may be as long as columns many."""
    batch, heads, rows, size = shape

    def layer(weights: Array, x: Array, bias: Array) -> Array:
        q, k, v = ((x @ each).reshape(batch, rows, heads, size).transpose(0, 2, 1, 3) for each in weights)
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(size) + bias
        return x + (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(x.shape)

    def gradients(*given: Array) -> tuple[Array, ...]:
        return jax.grad(lambda *given: (layer(*given) ** 2).mean(), (0, 1))(*given)

    width = heads * size
    weights, x, bias = arrays(1, 3, width, width)[0] / 8, *arrays(1, batch, rows, width), *arrays(1, heads, rows, rows)
    run(gradients, weights.astype(jnp.bfloat16), x, bias)


@pytest.mark.parametrize(("rows", "heads", "size", "count"), [(128, 2, 32, 0), (128, 48, 32, 0), (512, 12, 64, 1)])
def test_scores_that_stay_on_chip_or_whose_operands_lie_in_pieces_are_left_apart(
    rows: int, heads: int, size: int, count: int
) -> None:
    def layer(weights: Array, x: Array) -> Array:
        q, k, v = (jnp.einsum("bsw,whd->bhsd", x, each) for each in weights)
        return jnp.tanh(attention(q, k, v)).sum()

    given = [jax.ShapeDtypeStruct(dims, jnp.bfloat16) for dims in ((3, 128, heads, size), (4, rows, 128))]
    assert len(chains(neuronx_cc.compile(jax.jit(jax.grad(layer)), *given))) == count


@pytest.mark.parametrize("masked", ["none", "causal", "window", "padding"])
def test_gradients_of_attention_of_jax(masked: str) -> None:
    """Its contractions have dims of size 1."""
    q, k, v, cotangent = arrays(4, 2, 256, 3, 64, dtype=jnp.float32)
    kept = jnp.arange(256) < jnp.array([[200], [256]])
    options = {
        "none": {},
        "causal": {"is_causal": True},
        "window": {"is_causal": True, "local_window_size": (100, 0)},
        "padding": {"mask": kept[:, None, None]},
    }[masked]
    run(lambda *x: gradient(lambda *y: jax.nn.dot_product_attention(*y, **options), *x), q, k, v, cotangent)


def line_of(masked: float, rows: int, shift: int = 0) -> str:
    """The schedule of a gradient whose mask keeps columns up to the row's number and ``shift``."""

    def masked_attention(q: Array, k: Array, v: Array) -> Array:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 8
        places = jnp.arange(rows)
        scores = jnp.where(places[:, None] + shift >= places, scores, masked)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)

    given = arrays(4, 2, rows, 4, 64)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(choose, "apart", lambda *_: inf)
        executable = neuronx_cc.compile(jax.jit(lambda *x: gradient(masked_attention, *x)), *given)
    (line,) = chains(executable)
    return line


@pytest.mark.parametrize(
    ("masked", "shift", "left_out"),
    [(-inf, 0, True), (-1e30, 0, True), (-1e30, 100, True), (-1e4, 0, False), (-inf, -1, False), (-1e30, -1, False)],
)
def test_columns_without_weight_are_left_out(masked: float, shift: int, left_out: bool) -> None:
    """Where what stands for a masked score may have weight, or a row keeps none, all are computed."""
    assert ("of the columns" in line_of(masked, 512, shift)) is left_out


def test_one_instruction_makes_what_is_linear_in_an_array() -> None:
    """Of a block: products leave PSUM, exponentials, three products, two folds, and two casts and transposes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(choose, "apart", lambda *_: inf)
        given = arrays(4, 128, 64, dtype=jnp.float32)
        executable = neuronx_cc.compile(jax.jit(lambda *x: gradient(attention, *x)), *given)
    records = [each for each in executable.program.records if isinstance(each, Instr)]
    wide = [
        each
        for each in records
        if each.stream in (Stream.VECTOR, Stream.SCALAR) and each.ins and prod(n for n, _ in each.ins[0].dims) == 128
    ]
    assert len(wide) <= 14


def test_values_of_16_bits_are_kept_in_fp32() -> None:
    """With a bias of 16 bits, a softmax in them and one in FP32."""

    def biased(dtype: Any, q: Array, k: Array, v: Array, bias: Array) -> Array:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 8 + bias
        weights = jax.nn.softmax(scores.astype(dtype), axis=-1).astype(q.dtype)
        return jnp.einsum("bhqk,bhkd->bhqd", weights, v)

    q, k, v, cotangent = arrays(4, 3, 2, 200, 64)
    (bias,) = arrays(1, 200, 200)
    for dtype in (jnp.bfloat16, jnp.float32):
        run(
            lambda q, k, v, b, c, dtype=dtype: gradient(lambda *x: biased(dtype, *x, b), q, k, v, c),
            q,
            k,
            v,
            bias,
            cotangent,
        )
