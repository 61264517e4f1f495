"""Kernels that read permuted arrays: simulated time against the roofline, over drawn shapes, orders and readers.

    python benchmarks/views.py [--seed 1] [--count 100] [--auto-cast none]

Each program permutes a parameter, or what is computed of one, and reads it in another kind of kernel; some give a
permuted result as well. The roofline is that of ``programs.py``. Prints the geometric mean and the worst ones.
"""

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

import jax
import jax.numpy as jnp
import numpy as np
from lowering import lower
from programs import roofline, simulated, work_of

Array = np.ndarray[Any, Any]
SHAPES = (
    (2048, 384), (2, 1024, 768), (16, 196, 512), (8, 512, 196), (256, 256, 8), (1024, 8, 96), (128, 64, 100),
    (4, 64, 12, 64), (32, 56, 56, 16), (3, 224, 224, 8), (12, 17, 19, 64), (5, 7, 11, 13, 97),
)  # fmt: skip
WORST = 20
"""Programs that are printed."""


def normed(x: Any) -> Any:
    """Rows without scale and bias."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def readers(
    dims: tuple[int, ...], rows: int, columns: int
) -> Iterator[tuple[str, Callable[..., Any], list[tuple[int, ...]]]]:
    """(name, what is done with an array of ``dims``, or as ``rows`` and ``columns``, and others, dims of these)."""
    flat = (rows, columns)
    yield "add", lambda y, o: y + o, [dims]
    yield "norm and residual", lambda y, o: normed(y) + o, [dims]
    yield "norm of residual", lambda y, o: normed(o + jax.nn.gelu(y)), [dims]
    yield "softmax", lambda y: jax.nn.softmax(y.reshape(flat), -1), []
    yield "product", lambda y, o: y.reshape(flat) * o, [flat]
    yield "sums of rows", lambda y: y.sum(-1), []
    yield "sums of leading", lambda y: y.sum(0), []
    yield "left operand", lambda y, w: y.reshape(flat) @ w, [(columns, 64)]
    yield "right operand", lambda y, w: w @ y.reshape(flat), [(64, rows)]
    yield "bias of product", lambda y, a, w: a @ w + y.reshape(flat), [(rows, 64), (64, columns)]
    yield "cumulative sum", lambda y: jnp.cumsum(y, -1), []
    yield "concatenation", lambda y, o: jnp.concatenate([jnp.exp(y), o], -1), [dims]
    yield "means of leading", lambda y: (y - y.mean(tuple(range(len(dims) - 1)))) * 2.0, []


def draw(chance: random.Random) -> tuple[str, Callable[..., Any], list[tuple[int, ...]]]:
    """Name, function and dims of the parameters of one program."""
    dims = chance.choice(SHAPES)
    order = chance.sample(range(len(dims)), len(dims))
    cut = chance.randint(1, len(dims) - 1)
    name, read, others = chance.choice([*readers(dims, math.prod(dims[:cut]), math.prod(dims[cut:]))])
    kind = chance.choice(("parameter", "computed", "result"))
    stored = [0] * len(dims)
    for place, axis in enumerate(order):
        stored[axis] = dims[place]

    def program(x: Any, *rest: Any) -> Any:
        x = jnp.exp(x) if kind == "computed" else x
        made = read(x.transpose(order), *rest)
        return jnp.tanh(made).transpose(*range(made.ndim)[::-1]) if kind == "result" else made

    return f"{name:<18} {kind:<10} {dims} {order}", program, [tuple(stored), *others]


def measure(program: Callable[..., Any], dims: list[tuple[int, ...]], auto_cast: str) -> tuple[float, float]:
    """Simulated microseconds, and how many times the roofline they are."""
    arrays: list[Array] = [np.ones(each, np.float32) for each in dims]
    work = work_of(jax.make_jaxpr(program)(*arrays).jaxpr)
    seconds = simulated(lower(program, arrays), auto_cast)
    return seconds * 1e6, seconds / roofline(work, auto_cast)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--auto-cast", default="none", choices=("none", "matmult", "all"))
    options = parser.parse_args()
    chance, found = random.Random(options.seed), []
    for _ in range(options.count):
        name, program, dims = draw(chance)
        found.append((*measure(program, dims, options.auto_cast), name))
    for microseconds, ratio, name in sorted(found, key=lambda row: -row[1])[:WORST]:
        print(f"{ratio:8.1f} {microseconds:10.1f} us  {name}")
    mean = geometric_mean(ratio for _, ratio, _ in found)
    print(f"{len(found)} programs: {mean:.2f} times the roofline (geometric mean)")


if __name__ == "__main__":
    main()
