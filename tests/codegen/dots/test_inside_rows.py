"""Contractions with a batch inside of rows or terms, as heads are: right, and as long as where it lies outside."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function

import neuronx_cc
from neuronx_cc.ir.isa.timing import Timing

Array = np.ndarray[Any, Any]
FORMS = (
    "khd,khe->hde",
    "qhd,khd->hqk",
    "thd,hde->the",
    "thd,hde->hte",
    "htd,hde->the",
    "bkhd,bkhe->bhde",
    "bqhd,bhde->bqhe",
    "bqhd,bkhd->bhqk",
    "bhqk,bkhd->bqhd",
    "ktd,kte->tde",
    "qkc,tkc->qtc",
    "kqc,ktc->qtc",
    "qkc,tkc->cqt",
    "kqc,tkc->qtc",
)
LONG = (63, 64, 127, 128, 129, 131, 250, 256, 257)
TIMING = Timing(TRN1)


def draw(seed: int) -> tuple[str, list[Array], int]:
    """(einsum, operands of small whole numbers, what is computed beside)."""
    random = np.random.default_rng(seed)
    form = FORMS[seed % len(FORMS)]
    sizes = {letter: int(random.choice((1, 7, 16, 32, 50))) for letter in "de"}
    sizes |= {letter: int(random.choice(LONG)) for letter in "kqt"}
    sizes["c"] = int(random.choice((8, 32, 64, 96)))
    sizes |= {"h": int(random.choice((1, 2, 3, 8))), "b": int(random.choice((1, 2, 3)))}
    operands = form.split("->", maxsplit=1)[0].split(",")
    shapes = [[sizes[letter] for letter in operand] for operand in operands]
    return form, [random.integers(-2, 3, shape).astype(np.float32) for shape in shapes], int(random.integers(5))


@pytest.mark.parametrize("first", range(0, 90, 10))
def test_values(first: int) -> None:
    for seed in range(first, first + 10):
        form, operands, beside = draw(seed)
        dtype = ("float32", "bfloat16")[seed // len(FORMS) % 2]
        given = [operand.astype(jnp.dtype(dtype)) for operand in operands]

        def function(x: Any, y: Any, form: str = form, beside: int = beside) -> Any:
            if beside == 1:
                x = jnp.maximum(x, -1)
            if beside == 2:
                y = jnp.minimum(y, 1)
            result = jnp.einsum(form, x, y)
            if beside == 3:
                return jnp.maximum(result, 0) + 1, jnp.einsum(form, x, y * 2)
            return result.reshape(-1, result.shape[-1]) * 2 if beside == 4 else result

        room = (1.0, 0.25)[seed % 2]
        nbytes = int(192 * 1024 * room) // 1024 * 1024
        machine = TRN1.with_settings([f"memory.sbuf_partition_bytes={nbytes}"])
        check_function(function, *given, relative=0, machine=machine)


def _us(function: Any, *shapes: tuple[int, ...], dtype: str) -> float:
    given = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes]
    program = neuronx_cc.compile(jax.jit(function).lower(*given), auto_cast="none")
    return program.run([], timing_only=True).report.kernel_ns / 1e3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("terms", "heads", "features"), [(1024, 8, 64), (500, 12, 32), (256, 16, 64), (2048, 3, 80)])
def test_heads_inside_take_no_longer(terms: int, heads: int, features: int, dtype: str) -> None:
    inside, outside = (terms, heads, features), (heads, terms, features)
    times = [
        _us(lambda x, y: jnp.einsum("khd,khe->hde", x, y), inside, inside, dtype=dtype),
        _us(lambda x, y: jnp.einsum("hkd,hke->hde", x, y), outside, outside, dtype=dtype),
    ]
    assert times[0] < 1.25 * times[1], times
    linear = _us(
        lambda q, k, v: jnp.einsum("qhd,hde->qhe", q, jnp.einsum("khd,khe->hde", k, v)), *[inside] * 3, dtype=dtype
    )
    assert linear < 4 * times[1], (linear, times)


@pytest.mark.parametrize(
    ("terms", "rows", "columns"), [(16384, 128, 128), (6272, 32, 192), (4096, 256, 40), (5000, 96, 40)]
)
def test_long_sums_of_short_terms(terms: int, rows: int, columns: int) -> None:
    """What is given, or computed before in any way, is read in long runs."""
    shapes = (terms, rows), (terms, columns)
    moved = TIMING.transfer(4 * terms * (rows + columns), TIMING.long_run).bound / 1e3
    for function in (
        lambda x, y: x.T @ y,
        lambda x, y: (x * 2).T @ y,
        lambda x, y: x.T @ jnp.tanh(y),
        lambda x, y: (x / x.sum(1, keepdims=True)).T @ y,
    ):
        if 4 * terms * rows <= 1 << 22:
            assert _us(function, *shapes, dtype="float32") < 1.5 * moved + 6
    assert _us(lambda x, y: x.T @ y, *shapes, dtype="float32") < 1.2 * moved + 4


@pytest.mark.parametrize(
    ("rows", "terms", "columns"), [(3136, 24, 144), (3136, 24, 320), (25088, 24, 24), (3000, 64, 200)]
)
def test_short_sums_with_much_after(rows: int, terms: int, columns: int) -> None:
    """Ops after a contraction that take longer than its products are computed as sums leave PSUM nevertheless."""
    shapes = (rows, terms), (terms, columns), (2, columns)
    plain = _us(lambda x, w, p: x @ w, *shapes, dtype="bfloat16")
    normed = _us(lambda x, w, p: jax.nn.relu((x @ w) * p[0] + p[1]), *shapes, dtype="bfloat16")
    assert normed < 2.4 * plain, (plain, normed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rows", "channels"), [(64, 128), (96, 96), (128, 64), (127, 64)])
def test_channels_inside_take_no_longer(rows: int, channels: int, dtype: str) -> None:
    """Products of matrices for each channel, channels last, as triangles of pairs of residues are updated."""
    if dtype == "float32" and rows * channels > 64 * 128:
        pytest.skip("both operands and the result do not fit")
    inside, outside = (rows, rows, channels), (channels, rows, rows)
    times = [
        _us(lambda x, y: jnp.einsum("kic,kjc->ijc", x, y), inside, inside, dtype=dtype),
        _us(lambda x, y: jnp.einsum("cki,ckj->cij", x, y), outside, outside, dtype=dtype),
    ]
    assert times[0] < 1.1 * times[1], times
    transposed = _us(lambda x, y: jnp.einsum("ikc,jkc->ijc", x, y), inside, inside, dtype=dtype)
    assert transposed < (1.6 if dtype == "float32" else 1.1) * times[1], (transposed, times)


def _normalised(x: Any, w: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)) @ w


def _gated(x: Any, w: Any) -> Any:
    return jax.nn.sigmoid(x @ w) * (x @ w[:, ::-1])


@pytest.mark.parametrize("function", [_normalised, _gated])
@pytest.mark.parametrize("rows", [65, 96, 100])
def test_short_rows_that_stay_on_chip(function: Any, rows: int) -> None:
    """Rows that stay on chip come and go in runs of several, as those that do not fit."""
    times = [_us(function, (size, size, 128), (128, 128), dtype="bfloat16") for size in (rows, 128)]
    assert times[0] < 1.05 * (rows / 128) ** 2 * times[1] + 25, times
