"""Products of few rows with weights of a byte each, as a grid: time over the DMA bound of the bytes, the worst first.

    python benchmarks/eight_bit_products.py                  # 120 drawn cases
    python benchmarks/eight_bit_products.py --count 400 --seed 3 --check
    python benchmarks/eight_bit_products.py --only "nk f32"  # cases in whose names all of these words are

Every format, both orders of the weight, weights as parameters and as constants, activations in FP32 and BF16, one
layer, two in a row, and a scan over stacked layers. The bound is the weights' bytes at the rate of all DMA engines, and
10 us for what small products do not get below: the first transfer, the last product and the store of its sums.
``--check`` computes values and compares them with NumPy's; what is drawn sums up without rounding.
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

import neuronx_cc
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.targets import find_machine

Array = np.ndarray[Any, Any]
FLOOR = 10.0
"""Microseconds."""
MOST = 1.3
"""Times the bound."""
FORMATS = ("f8e4m3", "f8e5m2", "f8e4m3fn", "f8e4m3fn-nan", "s8", "u8", "s4")
"""``-nan``: compiled for codes that may be NaN."""
TYPES = {
    "f8e4m3": ml_dtypes.float8_e4m3,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "s8": np.int8,
    "u8": np.uint8,
    "s4": ml_dtypes.int4,
}
INTEGERS = ("s8", "u8", "s4")
ACTIVATIONS = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}
ROWS = (1, 1, 2, 4, 5, 8, 16)
SHAPES = (
    *((512, 512), (1024, 1024), (4096, 512), (512, 16384), (4096, 4096), (4096, 11008), (11008, 4096), (5120, 13824)),
    *((2048, 5632), (5632, 2048), (1600, 6400), (6400, 1600), (1000, 3000), (3000, 1000), (14336, 4096), (4096, 14336)),
    *((768, 3072), (3072, 768), (1021, 4093), (3001, 3001), (8192, 1024), (16384, 2048), (2048, 16384)),
)
"""Terms and outputs."""
KINDS = ("parameter", "parameter", "parameter", "constant", "two", "scan")
LAYERS = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One program."""

    form: str
    order: str
    """Of the weight's dims: ``kn`` or ``nk``."""
    kind: str
    other: str
    m: int
    k: int
    n: int

    def __str__(self) -> str:
        return f"{self.form} {self.order} {self.kind} {self.other} m={self.m} {self.k}x{self.n}"

    @property
    def dtype(self) -> str:
        return self.form.removesuffix("-nan")

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Terms and outputs of each product."""
        if self.kind == "two":
            return [(self.k, self.n), (self.n, self.k)]
        return [(self.k, self.k)] * LAYERS if self.kind == "scan" else [(self.k, self.n)]

    @property
    def nbytes(self) -> int:
        return sum(k * n for k, n in self.sizes)

    def product(self, x: Any, w: Any, scale: Any, zero: Any) -> Any:
        """In FP32: ``x (w - zero) scale`` with scales and zero points by output."""
        wide = w.astype(jnp.float32 if self.dtype == "u8" else x.dtype)
        if self.order == "kn":
            if self.dtype == "u8":
                wide = ((wide - zero) * scale).astype(x.dtype)
            out = jnp.matmul(x, wide, preferred_element_type=jnp.float32)
        else:
            if self.dtype == "u8":
                wide = ((wide - zero[:, None]) * scale[:, None]).astype(x.dtype)
            out = jnp.matmul(x, wide.T, preferred_element_type=jnp.float32)
        return out if self.dtype == "u8" else out * scale

    def function(self, x: Any, weights: Any) -> Any:
        """Of the whole program; ``weights`` are codes, scales and zero points of each product, or of stacked layers."""
        if self.kind == "scan":
            return lax.scan(lambda x, each: (self.short(self.product(x, *each)).astype(x.dtype), None), x, weights)[0]
        for each in weights[:-1]:
            x = self.short(self.product(x, *each)).astype(x.dtype)
        return self.product(x, *weights[-1])

    @staticmethod
    def short(sums: Any) -> Any:
        """Small whole numbers of sums, so that the next ones are exact as well."""
        return jnp.clip(sums, -1.0, 1.0) * 1.0

    def draw(self, seed: int) -> tuple[Array, Any]:
        """Activations and weights."""
        drawn = np.random.default_rng(seed)
        dtype, other = TYPES[self.dtype], ACTIVATIONS[self.other]
        x = drawn.integers(-1, 2, (self.m, self.k)).astype(other)

        def one(k: int, n: int) -> tuple[Array, Array, Array]:
            dims = (k, n) if self.order == "kn" else (n, k)
            if self.dtype in INTEGERS:
                limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
                w = drawn.integers(limits.min, limits.max + 1, dims).astype(dtype)
            else:
                w = drawn.integers(-14, 15, dims).astype(np.float32).astype(dtype)
            zero = drawn.integers(0, 256, n).astype(np.float32) if self.dtype == "u8" else np.zeros(n, np.float32)
            scale = np.exp2(drawn.integers(-3, 1, n)).astype(np.float32)
            if self.dtype == "u8":
                scale = np.ones(n, np.float32)
            return w, scale, zero

        made = [one(k, n) for k, n in self.sizes]
        if self.kind == "scan":
            return x, tuple(np.stack(each) for each in zip(*made, strict=True))
        return x, made

    def expected(self, x: Array, weights: Any) -> Array:
        """By NumPy, in FP64."""
        layers = list(zip(*weights, strict=True)) if self.kind == "scan" else weights
        value = x.astype(np.float64)
        for at, (w, scale, zero) in enumerate(layers):
            wide = w.astype(np.float32).astype(np.float64)
            wide = wide if self.order == "kn" else wide.T
            value = value @ (wide - zero) * scale
            if self.kind == "scan" or at < len(layers) - 1:
                value = np.clip(value, -1.0, 1.0)
                value = value.astype(ACTIVATIONS[self.other]).astype(np.float64)
        return value

    def compile(self, x: Array, weights: Any) -> tuple[Any, list[Array]]:
        """The program, and what it takes."""
        leaves = jax.tree.leaves(weights)
        lowered = jax.jit(self.function, keep_unused=True).lower(x, weights)
        options: dict[str, Any] = {"auto_cast": "none", "nan_codes": self.form.endswith("-nan")}
        if self.kind != "constant":
            return neuronx_cc.compile(lowered, **options), [x, *leaves]
        names = {f"weights{jax.tree_util.keystr(at)}": leaf for at, leaf in jax.tree.leaves_with_path(weights)}
        return neuronx_cc.compile(neuronx_cc.load_model(lowered, constants=names), **options), [x]


def grid(count: int, seed: int, words: list[str]) -> Iterator[Case]:
    """Cases that are drawn, each once."""
    source, seen = random.Random(seed), set[Case]()
    for _ in range(1000 * count):
        k, n = source.choice(SHAPES)
        case = Case(
            source.choice(FORMATS),
            source.choice(("kn", "nk")),
            source.choice(KINDS),
            source.choice(tuple(ACTIVATIONS)),
            source.choice(ROWS),
            k,
            n,
        )
        if case in seen or not set(words) <= set(str(case).split()) or case.nbytes > 1 << 27:
            continue
        seen.add(case)
        yield case
        if len(seen) == count:
            return


def measure(case: Case, check: bool, seed: int) -> tuple[float, float, bool]:
    """Microseconds, their bound, and whether values are right."""
    x, weights = case.draw(seed)
    program, given = case.compile(x, weights)
    report = program.run([], timing_only=True, check_races=False).report
    right = True
    if check:
        (result,) = program.run(given).outputs
        right = bool(np.array_equal(result.astype(np.float64), case.expected(x, weights)))
    bound = case.nbytes / Timing(find_machine("trn1")).dma_rate / 1e3 + FLOOR
    return report.kernel_ns / 1e3, bound, right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    started, rows, wrong = time.process_time(), [], []
    for case in grid(options.count, options.seed, options.only.split()):
        us, bound, right = measure(case, options.check, options.seed)
        rows.append((us / bound, us, bound, case))
        if not right:
            wrong.append(case)
    over = sum(ratio > MOST for ratio, *_ in rows)
    mean = geometric_mean(ratio for ratio, *_ in rows)
    print(f"{len(rows)} products: time over bound {mean:.2f} in the geometric mean, {over} above {MOST}")
    for ratio, us, bound, case in sorted(rows, key=lambda row: -row[0]):
        print(f"  x {ratio:>5.2f} {us:>8.1f} us  ({bound:>7.1f})  {case}")
    for case in wrong:
        print(f"wrong values: {case}")
    print(f"{time.process_time() - started:.0f} CPU seconds")


if __name__ == "__main__":
    main()
