"""Weights in 8 bits that are scaled by groups of terms as they come to a contraction: drawn programs, whose values are
exact, what they are spelled as, and what becomes of others that look like them.
"""

import random
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from scaled_layers import Array, ScaledLayers

import neuronx_cc

TYPES = {
    "s8": np.int8,
    "u8": np.uint8,
    "s4": ml_dtypes.int4,
    "f8e4m3": ml_dtypes.float8_e4m3,
    "f8e5m2": ml_dtypes.float8_e5m2,
}
ACTIVATIONS = {"bf16": ml_dtypes.bfloat16, "f32": np.float32, "f16": np.float16}
ZEROS = ("none", "none", "group", "integer", "number", "minimum")
KEPT = (np.float32, np.float32, np.float16, ml_dtypes.bfloat16)
"""Types in which scales are stored."""


class Drawn(ScaledLayers):
    """One program: ``x[m, k]`` times weights of groups of ``size`` terms."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.dtype, self.other = draw.choice([*TYPES]), draw.choice(["bf16", "bf16", "f32", "f16"])
        self.computed = draw.choice(["x", "f32"])
        self.turned, self.wide = (draw.random() < 0.5 for _ in range(2))
        self.zeros, self.bias, self.kept = draw.choice(ZEROS), draw.random() < 0.3, draw.choice(KEPT)
        if self.zeros == "integer" and self.dtype not in ("s8", "u8"):
            self.zeros = "group"
        self.layers = draw.choice((1, 1, 1, 2, 3))
        self.size = draw.choice((16, 32, 32, 64, 128, 128, 256))
        self.m = draw.choice((2, 5, 16, 33, 64, 100, 128, 129, 200, 300))
        count = draw.choice((2, 4, 6, 8, 10, 12, 22, 30))
        self.k = self.size * max(2, min(count, 1536 // self.size))
        self.first = self.layers == 1 and draw.random() < 0.3
        self.n = self.k if self.layers > 1 else draw.choice((1, 100, 512, 700, 1300))
        self.numbers = np.random.default_rng(seed)

    def __str__(self) -> str:
        names = [name for name in ("turned", "wide", "bias", "first") if getattr(self, name)]
        sizes = f"{self.m} {self.k} {self.n} {self.size} {self.layers}"
        return f"{self.dtype} {self.other} {self.computed} {self.kept} {sizes} {self.zeros} {' '.join(names)}"

    def inputs(self) -> list[Array]:
        numbers, groups = self.numbers, self.k // self.size
        x = numbers.integers(-2, 3, (self.m, self.k)).astype(ACTIVATIONS[self.other])
        low, high = (0, 16) if self.dtype == "u8" else (-8, 8)
        w = numbers.integers(low, high, (self.layers, self.k, self.n)).astype(np.float32).astype(TYPES[self.dtype])
        scales = np.exp2(numbers.integers(-2, 2, (self.layers, groups, self.n))).astype(np.float32)
        zeros = numbers.integers(-3, 4, scales.shape).astype(np.float32)  # 8 bits of BF16 hold all that comes of them
        scales = scales.astype(self.kept)
        zeros = zeros.astype(np.int8 if self.zeros == "integer" else self.kept)
        bias = numbers.integers(-9, 9, (self.layers, self.n)).astype(np.float32)
        if self.turned:
            w, scales, zeros = (np.ascontiguousarray(each.swapaxes(1, 2)) for each in (w, scales, zeros))
        return [x, w, scales, zeros, bias]

    def layer(self, x: Any, w: Any, scales: Any, zeros: Any, bias: Any, np: Any = jnp) -> Any:
        axis, dtype = int(self.turned), x.dtype if self.computed == "x" or np is not jnp else jnp.float32
        dims = [*w.shape]
        dims[axis : axis + 1] = [self.k // self.size, self.size]

        def repeated(value: Any) -> Any:
            value = value.astype(dtype)
            return np.repeat(value, self.size, axis) if self.wide else np.expand_dims(value, axis + 1)

        if self.zeros == "integer" and np is jnp:
            zeros, numbers = zeros.astype(jnp.int32), w.astype(jnp.int32).reshape(dims)
            numbers = (numbers - jnp.expand_dims(zeros, axis + 1)).reshape(w.shape).astype(dtype)
        else:
            numbers = w.astype(dtype)
        numbers = numbers if self.wide else numbers.reshape(dims)
        if self.zeros == "group" or (self.zeros == "integer" and np is not jnp):
            numbers = numbers - repeated(zeros)
        elif self.zeros == "number":
            numbers = numbers - 8
        numbers = numbers * repeated(scales)
        if self.zeros == "minimum":
            numbers = numbers + repeated(zeros)
        numbers = numbers.reshape(w.shape).astype(x.dtype)
        if self.first:  # weights are the left operand
            sums = np.matmul(numbers if self.turned else numbers.T, x.T, **self.wanted(np))
            return sums + bias[:, None] if self.bias else sums
        sums = np.matmul(x, numbers.T if self.turned else numbers, **self.wanted(np))
        return sums + bias if self.bias else sums

    @staticmethod
    def wanted(np: Any) -> dict[str, Any]:
        return {"preferred_element_type": jnp.float32} if np is jnp else {}


@pytest.mark.parametrize("seed", range(80))
def test_values(seed: int) -> None:
    drawn = Drawn(seed)
    given = drawn.inputs()
    np.testing.assert_array_equal(drawn.run(given), drawn.expected(*given), err_msg=str(drawn))


@pytest.mark.parametrize("seed", range(200, 212))
def test_little_room(seed: int) -> None:
    """A sixth to a half of the memory on chip."""
    drawn = Drawn(seed)
    given, nbytes = drawn.inputs(), (32768, 49152, 98304)[seed % 3]
    result = drawn.run(given, set=[f"memory.sbuf_partition_bytes={nbytes}"])
    np.testing.assert_array_equal(result, drawn.expected(*given), err_msg=str(drawn))


TIMES = {
    "s8 16": 158.0,
    "s8 128": 166.0,
    "s8 512": 298.0,
    "f8e4m3 turned 16": 163.0,
    "s8 turned zeros 128": 199.0,
    "u8 number 64": 167.0,
}
"""Microseconds of so many rows of BF16 times 4096 x 4096 in groups of 128, start and end included."""


@pytest.mark.parametrize("case", TIMES)
def test_times(case: str) -> None:
    dtype, *words, rows = case.split()
    drawn = Drawn(0)
    drawn.dtype, drawn.other, drawn.computed, drawn.m, drawn.kept = dtype, "bf16", "f32", int(rows), np.float32
    drawn.k = drawn.n = 4096
    drawn.first = False
    drawn.size, drawn.layers, drawn.bias, drawn.wide, drawn.turned = 128, 1, False, False, "turned" in words
    drawn.zeros = "group" if "zeros" in words else "number" if "number" in words else "none"
    lowered = jax.jit(drawn.function, keep_unused=True).lower(*drawn.inputs())
    program = neuronx_cc.compile(lowered, auto_cast="none")
    time = program.run([], timing_only=True, check_races=False).report.time_ns / 1e3
    assert time <= TIMES[case] * 1.02, time
