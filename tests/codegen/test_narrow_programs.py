"""Programs written in 16 bits: no longer than in FP32, simulated, and rounded where XLA rounds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, compile_text, text_of
from jax import lax

from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.runtime.clock_regions import simulate

DTYPES = (jnp.bfloat16, jnp.float16)


def greatest(x: Any) -> Any:
    return lax.top_k(x, min(13, x.shape[-1]))


def greatest_of_windows(x: Any) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, (1, 40), (1, 1), "VALID")


def moving_sums(x: Any) -> Any:
    return lax.reduce_window(x, 0.0, lax.add, (1, 24), (1, 1), "VALID") / 24


def mean_of_squares(x: Any) -> Any:
    return lax.reduce_window(x * x, 0.0, lax.add, (3, 5), (2, 1), "SAME") * 0.0625


def integral(x: Any) -> Any:
    return jnp.cumsum(jnp.cumsum(x, 0), 1) * 0.01


def running(x: Any) -> Any:
    return jnp.cumsum(x[:, ::-1], 1)


def centred(x: Any) -> Any:
    y = x - x.mean(0)
    return y.T @ y


def by_columns(x: Any) -> Any:
    return (x - x.mean(0)) / (x.std(0) + 1)


def scaled(x: Any, scale: Any, bias: Any) -> Any:
    return jax.nn.silu(x.reshape(-1, 4, 11, x.shape[-1]) * scale[..., None] + bias[..., None])


def of_groups(x: Any) -> Any:
    groups = x.reshape(*x.shape[:3], 32, -1)
    mean, variance = (f(groups, (1, 2, 4), keepdims=True) for f in (jnp.mean, jnp.var))
    return ((groups - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape)


def doubled(x: Any) -> Any:
    images = x.reshape(3, 8, -1, 16)
    return jnp.repeat(jnp.repeat(images, 2, 1), 2, 2)


PROGRAMS: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "top-k": (greatest, [(88, 207)]),
    "top-k of rows in parts": (greatest, [(3, 9000)]),
    "greatest of windows": (greatest_of_windows, [(20, 900)]),
    "moving sums": (moving_sums, [(11, 1072)]),
    "windows with steps": (mean_of_squares, [(70, 130)]),
    "integral image": (integral, [(128, 96)]),
    "running sums": (running, [(40, 500)]),
    "few columns": (centred, [(176, 9)]),
    "many columns": (by_columns, [(1208, 470)]),
    "a scale of each channel": (scaled, [(88, 484), (4, 11), (4, 11)]),
    "norms of groups": (of_groups, [(4, 18, 18, 448)]),
    "an image doubled": (doubled, [(24, 160)]),
}


def given(dims: list[tuple[int, ...]], dtype: Any) -> list[Any]:
    return [np.random.default_rng(at).standard_normal(each, np.float32).astype(dtype) for at, each in enumerate(dims)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_longer_than_in_fp32(name: str, dtype: Any) -> None:
    """But for what has to be rounded in between, and put where that is done."""
    program, dims = PROGRAMS[name]
    narrow, wide = (compile_text(text_of(program, *given(dims, each)), TRN1) for each in (dtype, np.float32))
    allowed = 2 * Timing(TRN1).transfer_latency
    assert simulate(narrow.program, TRN1).total <= simulate(wide.program, TRN1).total + allowed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, dtype: Any) -> None:
    """Those of XLA, or of FP64 where XLA rounds sums term by term, but for the last bits."""
    program, dims = PROGRAMS[name]
    arrays = given(dims, dtype)
    found = compile_text(text_of(program, *arrays), TRN1).run(arrays)
    with jax.enable_x64(True):
        exact = jax.tree.leaves(program(*(jnp.asarray(each, np.float64) for each in arrays)))
    expected = jax.tree.leaves(jax.jit(program)(*arrays))
    step = float(jnp.finfo(dtype).eps)
    for made, want, true in zip(found, expected, exact, strict=True):
        assert made.dtype == want.dtype
        if made.dtype == np.int32:
            np.testing.assert_array_equal(made, want)
            continue
        made, want, true = (np.asarray(each, np.float64) for each in (made, want, true))
        scale = np.abs(true).max()
        error = np.minimum(np.abs(made - want), np.abs(made - true)) / np.maximum(np.abs(true), scale / 16)
        assert error.max() <= (16 if name == "integral image" else 2) * step
