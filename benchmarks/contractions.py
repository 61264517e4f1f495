"""Narrow contractions in every layout: time over roofline, and the classes that are worst.

    python benchmarks/contractions.py [--seed N] [--count N] [--cast MODE]

Few contracted terms, few columns, very many rows; batches of small matrices; products of vectors. Every order of the
dims in both operands and in the result, as parameters or as computed just before. The roofline is that of
``benchmarks/grid.py``; all problems may take 10 us more than it. Only plans are made and timed; no values are computed.
"""

import argparse
import math
import random
import time
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

import jax
import jax.numpy as jnp
from grid import array

import neuronx_cc
from neuronx_cc.ir.errors import NeuronError
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.targets import find_machine

FEW = (1, 2, 3, 4, 5, 7, 8, 11, 16, 32, 64, 97)
ROWS = (64, 197, 1000, 4096, 50257, 196608, 1048576)
BATCHES = (1, 1, 1, 12, 256, 1024, 4096, 16384, 65536)
KINDS = ("parameters", "lhs computed", "rhs computed", "result read")
MOST_ELEMENTS = 1 << 23
"""Of all arrays together."""
MOST_FLOPS = 2e10


@dataclass(frozen=True, slots=True)
class Problem:
    """``equation`` as einsum takes it, over sizes of b, m, k and n."""

    equation: str
    sizes: tuple[tuple[str, int], ...]
    dtype: str
    kind: str

    def __str__(self) -> str:
        sizes = " ".join(f"{letter}={size}" for letter, size in self.sizes)
        return f"{self.equation} {sizes} {self.dtype}, {self.kind}"

    def function(self, lhs: Any, rhs: Any) -> Any:
        """The contraction and what is around it."""
        if self.kind == "lhs computed":
            lhs = jnp.tanh(lhs)
        if self.kind == "rhs computed":
            rhs = jnp.tanh(rhs)
        out = jnp.einsum(self.equation, lhs, rhs)
        return jnp.tanh(out) + 1 if self.kind == "result read" else out

    def dims(self, part: str) -> tuple[int, ...]:
        return tuple(dict(self.sizes)[letter] for letter in part)

    @property
    def parts(self) -> list[str]:
        return self.equation.replace("->", ",").split(",")

    @property
    def elements(self) -> int:
        return sum(math.prod(self.dims(part)) for part in self.parts)

    @property
    def flops(self) -> float:
        return 2.0 * math.prod(size for _, size in self.sizes)


def draw(source: random.Random) -> Problem:
    """One problem that is not too large."""
    while True:
        batch = source.choice(BATCHES)
        m, k, n = source.choice(ROWS if batch < 256 else FEW), source.choice(FEW), source.choice(FEW)
        parts = ["mk", "kn", "mn"]
        if batch > 1:
            parts = [part + "b" for part in parts]
        lhs, rhs, out = ("".join(source.sample(part, len(part))) for part in parts)
        if source.random() < 0.5:
            lhs, rhs = rhs, lhs
        sizes = (*((("b", batch),) if batch > 1 else ()), ("m", m), ("k", k), ("n", n))
        dtype = source.choice(("float32", "float32", "bfloat16"))
        problem = Problem(f"{lhs},{rhs}->{out}", sizes, dtype, source.choice(KINDS))
        if problem.elements <= MOST_ELEMENTS and problem.flops <= MOST_FLOPS:
            return problem


def measure(problem: Problem, cast: str) -> tuple[float, float]:
    """Simulated time of one problem and its roofline, both in microseconds."""
    machine = find_machine("trn1")
    dtype = jnp.dtype(problem.dtype)
    shapes = [array(problem.dims(part), problem.dtype) for part in problem.parts[:2]]
    peak = 2.0 * machine["pe.rows"] * machine["pe.columns"] * machine["clock.tensor_ghz"] * 1e3
    if dtype == jnp.float32:
        peak /= machine["pe.fp32_passes"]
    bound = max(problem.flops / peak, problem.elements * dtype.itemsize / Timing(machine).dma_rate / 1e3)
    executable = neuronx_cc.compile(jax.jit(problem.function).lower(*shapes), auto_cast=cast)
    report = executable.run([], timing_only=True, check_races=False).report
    return report.kernel_ns / 1e3, bound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--cast", default="none")
    options = parser.parse_args()
    source = random.Random(options.seed)
    started, rows = time.process_time(), []
    for problem in (draw(source) for _ in range(options.count)):
        try:
            us, bound = measure(problem, options.cast)
        except NeuronError as error:
            print(f"does not compile: {problem}: {str(error).splitlines()[0]}")
            continue
        rows.append((us / (bound + 10.0), us, bound, problem))
    mean = geometric_mean(max(ratio, 0.1) for ratio, *_ in rows)
    over = [sum(ratio > most for ratio, *_ in rows) for most in (2, 5, 20, 100)]
    print(f"{len(rows)} problems: time over (roofline + 10 us) {mean:.2f} in the geometric mean")
    print("above 2, 5, 20, 100 times it: " + ", ".join(map(str, over)))
    for ratio, us, bound, problem in sorted(rows, key=lambda row: -row[0])[:30]:
        print(f"  x {ratio:>7.2f} {us:>10.1f} us  ({bound:>7.1f})  {problem}")
    print(f"{time.process_time() - started:.0f} CPU seconds")


if __name__ == "__main__":
    main()
