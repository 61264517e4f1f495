"""Casts that the DMA does as it loads what a map reads, or stores what it makes: through views of any kind."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, compile_text, text_of
from jax import lax

from neuronx_cc.runtime.clock_regions import simulate

SMALL = TRN1.with_settings(["memory.sbuf_partition_bytes=32768"])
DTYPES = (jnp.bfloat16, jnp.float16)
Array = Any
READ: dict[str, Callable[[Array], Array]] = {
    "as it is": lambda x: x,
    "every second": lambda x: x[:, ::2],
    "every second row": lambda x: x[::2],
    "reversed": lambda x: x[:, ::-1],
    "transposed": lambda x: x.T,
    "a row": lambda x: jnp.broadcast_to(x[:1], x.shape),
    "a column": lambda x: jnp.broadcast_to(x[:, :1], x.shape),
    "a repeated row": lambda x: jnp.broadcast_to(x[0, :, None], (x.shape[1], 7)),
    "short runs": lambda x: x.reshape(x.shape[0], -1, 1)[:, :, 0],
    "two axes": lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], 3, x.shape[1])),
}
"""How a map reads an array."""
MADE: dict[str, Callable[[Array, Array], Array]] = {
    "greatest": jnp.maximum,
    "chosen": lambda x, y: jnp.where(x > y, y, -x),
    "cast in part": lambda x, y: jnp.minimum(x.astype(jnp.float32), y.astype(jnp.float32) + 1.0),
    "greatest of a row": lambda x, y: jnp.maximum(x, y).max(-1),
    "less than that": lambda x, y: jnp.minimum(y, x - x.max(-1, keepdims=True)),
    "transposed": lambda x, y: jnp.moveaxis(jnp.maximum(x, y), -1, 0),
    "reshaped": lambda x, y: jnp.maximum(x, y).reshape(-1),
    "both": lambda x, y: (jnp.maximum(x, y).astype(jnp.float32), jnp.minimum(x, y)),
}
"""What it makes, but for one sum at the most exactly, so that all there is to see are casts."""


def case(seed: int) -> tuple[Callable[..., Any], list[Any]]:
    draw = np.random.default_rng(seed)
    dtype = DTYPES[draw.integers(2)]
    read = [READ[draw.choice(list(READ))] for _ in range(2)]
    made = MADE[draw.choice(list(MADE))]
    rows, columns = int(draw.choice([1, 5, 64, 130, 384])), int(draw.choice([2, 24, 130, 700]))
    given = draw.standard_normal((rows, columns), np.float32)
    both = draw.random() < 0.3

    def program(x: Any, z: Any) -> Any:
        first = read[0](x).astype(dtype)
        second = (read[0](x) if both else read[1](x) if read[1](x).shape == first.shape else read[0](z)).astype(dtype)
        found = made(first, second)
        return [each.astype(jnp.float32) for each in (found if isinstance(found, tuple) else (found,))]

    return program, [given, draw.standard_normal((rows, columns), np.float32)]


@pytest.mark.parametrize("seed", range(48))
def test_casts(seed: int) -> None:
    function, arrays = case(seed)
    found = compile_text(text_of(function, *arrays), SMALL if seed % 4 == 0 else TRN1).run(arrays)
    for result, want in zip(found, function(*map(jnp.asarray, arrays)), strict=True):
        np.testing.assert_array_equal(result, np.asarray(want))


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "step of an optimizer": (
        lambda p, g, m: (p - 0.1 * jnp.sign(0.9 * m + 0.1 * g), 0.9 * m + 0.1 * g),
        [(300, 640)] * 3,
    ),
    "scale and bias": (lambda x, w, b: jnp.tanh(x * w + b), [(200, 513), (513,), (513,)]),
    "columns": (lambda x, w: jnp.exp(-x * w), [(128, 1000), (128, 1)]),
    "pairs": (lambda x: x[:, ::2] * x[:, 1::2] + x[:, ::2], [(96, 768)]),
    "moved": (lambda x: jnp.concatenate([x[:, 5:], x[:, :5]], 1), [(640, 100)]),
    "order": (lambda x: x.reshape(8, 16, 16, 6, 4).transpose(0, 1, 3, 2, 4), [(8, 256, 24)]),
    "normalised": (lambda x: (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5), [(200, 560)]),
    "loss": (lambda x, y: ((x - y) ** 2).mean() + jnp.abs(x).max(), [(90, 300)] * 2),
}
LONGER = 1.25
"""Times as long: ops that are one instruction in FP32 are several where each rounds its result."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_cast_programs_are_as_fast(name: str) -> None:
    function, dims = PROGRAMS[name]
    arrays = [np.ones(each, np.float32) for each in dims]
    exact, cast = (
        simulate(compile_text(text_of(function, *arrays), TRN1, auto_cast=mode).program, TRN1).total
        for mode in ("none", "all")
    )
    assert cast <= LONGER * exact, (cast, exact)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_places_stay_exact(kind: str, random: np.random.Generator) -> None:
    x, at = random.standard_normal((6, 1400), np.float32), random.integers(0, 1400, (6, 3)).astype(np.int32)

    def program(x: Any, at: Any) -> Any:
        counts = jnp.zeros(700).at[at.reshape(-1) // 2].add(1.0)
        rows = lax.broadcasted_iota(jnp.int32, (6, 3), 0)
        return jnp.argmax(x, 1), jnp.argmin(x, 1), jnp.take_along_axis(x, at, 1), counts, x.at[rows, at].get()

    found = compile_text(text_of(program, x, at), TRN1, auto_cast="all", auto_cast_type=kind).run([x, at])
    want = program(jnp.asarray(x), jnp.asarray(at))
    dtype = jnp.bfloat16 if kind == "bf16" else jnp.float16
    for index, (result, exact) in enumerate(zip(found, want, strict=True)):
        places = index in (0, 1, 3)
        ends = np.asarray(exact) if places else np.asarray(exact).astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(result.astype(ends.dtype) if places else result.astype(dtype), ends)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_that_are_read_through_views(dtype: Any) -> None:
    """A cast that is a result, and read in another shape by the kernel that makes it."""

    def program(x: Array, y: Array, left: Array) -> tuple[Array, Array]:
        shown, y = jnp.tanh(x.astype(dtype)).astype(jnp.float32), y.astype(dtype)
        made = (1 / (y * y + 2)).astype(jnp.float32)
        return shown, jnp.where(~left.reshape(y.shape), made, shown.reshape(y.shape))

    draw = np.random.default_rng(5)
    given = [draw.standard_normal(dims, np.float32) for dims in ((7, 1, 1, 31), (1, 1, 7, 31))]
    given.append(draw.random((7, 31, 1, 1)) < 0.5)
    found = compile_text(text_of(program, *given), TRN1).run(given)
    for made, want in zip(found, program(*map(jnp.asarray, given)), strict=True):
        np.testing.assert_allclose(made, np.asarray(want), rtol=2 * float(jnp.finfo(dtype).eps))
