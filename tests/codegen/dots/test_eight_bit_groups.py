"""8-bit weights with scales and zero points of groups of neighbouring terms, as GPTQ, AWQ and llama.cpp store them, and
with a row that is added: drawn programs, whose values are exact, and numbers that are not finite.
"""

import random
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from scaled_layers import Array, ScaledLayers

TYPES = {"s8": np.int8, "u8": np.uint8, "f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e4m3": ml_dtypes.float8_e4m3}
ACTIVATIONS = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}


class Drawn(ScaledLayers):
    """One program: ``x[m, k]`` times weights of groups of ``size`` terms, and what it takes."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.dtype, self.other = draw.choice([*TYPES]), draw.choice([*ACTIVATIONS])
        self.turned, self.zeros, self.bias = (draw.random() < 0.5 for _ in range(3))
        self.layers = draw.choice((1, 1, 1, 2))
        self.size, self.m = draw.choice((16, 32, 64, 128, 50)), draw.choice((1, 1, 2, 3, 4, 8, 16, 40))
        groups = draw.choice((1, 2, 7, 12, 32, 43))
        self.k = self.size * min(groups, 2048 // self.size)
        self.n = self.k if self.layers > 1 else draw.choice((1, 100, 512, 700, 1300))
        self.numbers = np.random.default_rng(seed)

    def __str__(self) -> str:
        names = [name for name in ("turned", "zeros", "bias") if getattr(self, name)]
        return f"{self.dtype} {self.other} {self.m} {self.k} {self.n} {self.size} {self.layers} {' '.join(names)}"

    def inputs(self) -> list[Array]:
        numbers, groups = self.numbers, self.k // self.size
        x = numbers.integers(-2, 3, (self.m, self.k)).astype(ACTIVATIONS[self.other])
        low, high = (0, 120) if self.dtype == "u8" else (-14, 15)
        w = numbers.integers(low, high, (self.layers, self.k, self.n)).astype(np.float32).astype(TYPES[self.dtype])
        scales = np.exp2(numbers.integers(-2, 3, (self.layers, groups, self.n))).astype(np.float32)
        zeros = numbers.integers(-3, 100 if self.dtype == "u8" else 4, scales.shape).astype(np.float32)
        bias = numbers.integers(-9, 9, (self.layers, self.n)).astype(np.float32)
        if self.turned:
            w, scales, zeros = (np.ascontiguousarray(each.swapaxes(1, 2)) for each in (w, scales, zeros))
        return [x, w, scales, zeros, bias]

    def layer(self, x: Any, w: Any, scales: Any, zeros: Any, bias: Any, np: Any = jnp) -> Any:
        axis = int(self.turned)
        dims = [*w.shape]
        dims[axis : axis + 1] = [self.k // self.size, self.size]
        wide = w.astype(scales.dtype).reshape(dims)
        if self.zeros:
            wide = wide - np.expand_dims(zeros, axis + 1)
        wide = (wide * np.expand_dims(scales, axis + 1)).reshape(w.shape).astype(x.dtype)
        wide = wide.T if self.turned else wide
        sums = jnp.matmul(x, wide, preferred_element_type=jnp.float32) if np is jnp else x @ wide
        return sums + bias if self.bias else sums


@pytest.mark.parametrize("seed", range(40))
def test_values(seed: int) -> None:
    drawn = Drawn(seed)
    given = drawn.inputs()
    np.testing.assert_array_equal(drawn.run(given), drawn.expected(*given), err_msg=str(drawn))


@pytest.mark.filterwarnings("ignore:input 1")
@pytest.mark.parametrize("seed", range(12))
def test_not_finite(seed: int) -> None:
    """An infinite number of a row stays in its row, a code that is NaN in its column, an infinite one as well."""
    drawn = Drawn(1000 + seed)
    drawn.zeros, drawn.bias, drawn.layers, drawn.dtype = False, False, 1, ("f8e4m3fn", "f8e4m3", "s8")[seed % 3]
    x, w, *others = drawn.inputs()
    w[w.astype(np.float32) == 0] = 1
    x[0, drawn.k // 2] = np.inf if seed % 2 else -np.inf
    if drawn.dtype != "s8":
        w.view(np.uint8)[0, 3, 0] = 0x7F if seed % 4 < 2 else 0x78  # NaN or 256; of f8e4m3 infinite
    with np.errstate(invalid="ignore"):
        want = drawn.expected(x, w, *others)
    result = drawn.run([x, w, *others], fast_relayout=False)
    np.testing.assert_array_equal(result, want, err_msg=str(drawn))
