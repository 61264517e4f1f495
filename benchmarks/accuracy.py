"""Accuracy of every transcendental function on the simulator, in units in the last place of FP32.

    python benchmarks/accuracy.py [--samples N] [opcode ...]

Each op is compiled alone and run on bit patterns spread evenly over all finite FP32 numbers of its domain (huge
arguments and subnormals included) and on values near the points where it is hard. The exact values are NumPy's and
``math``'s in FP64. The table has the largest and the mean error and where the largest is.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import neuronx_cc

Array = np.ndarray
F32 = np.float32
GOAL = 2.5
"""Units in the last place within which every function is to stay."""


@dataclass(frozen=True, slots=True)
class Function:
    """An HLO opcode, its exact values and the range of its (first) argument that is sampled."""

    exact: Callable[..., Array]
    low: float = -math.inf
    high: float = math.inf
    second: tuple[float, float] | None = None
    """Range of a second argument."""
    near: tuple[float, ...] = ()
    """Points around which the function is sampled besides."""


def _erf(x: Array) -> Array:
    return np.array([math.erf(value) for value in x.reshape(-1)]).reshape(x.shape)


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _log1p(x: Array) -> Array:
    return np.log1p(x)


FUNCTIONS: dict[str, Function] = {
    "acos": Function(np.arccos, -1, 1, near=(-1, 1, 0)),
    "acosh": Function(np.arccosh, 1, near=(1,)),
    "asin": Function(np.arcsin, -1, 1, near=(-1, 1)),
    "asinh": Function(np.arcsinh),
    "atan": Function(np.arctan, near=(1, -1)),
    "atan2": Function(np.arctan2, second=(-math.inf, math.inf)),
    "atanh": Function(np.arctanh, -1, 1, near=(-1, 1)),
    "cbrt": Function(np.cbrt),
    "cosh": Function(np.cosh, -90, 90),
    "cosine": Function(np.cos, near=(math.pi / 2, 11 * math.pi / 2)),
    "divide": Function(np.divide, second=(-math.inf, math.inf)),
    "erf": Function(_erf, near=(0.5, 1, -1, 3)),
    "exponential": Function(np.exp, -104, 89, near=(0,)),
    "exponential-minus-one": Function(np.expm1, -104, 89, near=(0,)),
    "log": Function(np.log, 0, near=(1,)),
    "log-plus-one": Function(_log1p, -1, near=(0, -1)),
    "logistic": Function(_logistic, -104, 104, near=(0,)),
    "power": Function(np.power, 0, second=(-60, 60), near=(1,)),
    "rsqrt": Function(lambda x: 1 / np.sqrt(x), 0),
    "sine": Function(np.sin, near=(math.pi, 2 * math.pi, 100 * math.pi)),
    "sinh": Function(np.sinh, -90, 90, near=(0,)),
    "sqrt": Function(np.sqrt, 0),
    "tan": Function(np.tan, near=(math.pi / 2, math.pi)),
    "tanh": Function(np.tanh, near=(0, 1, -1)),
}


def spread(low: float, high: float, count: int) -> Array:
    """About ``count`` f32 numbers in [low, high], evenly over the bit patterns (so over the exponents)."""
    positive = np.linspace(0, int(np.array(np.finfo(F32).max).view(np.uint32)), count // 2, dtype=np.int64)
    values = positive.astype(np.uint32).view(F32)
    values = np.concatenate([values, -values])
    return values[(values >= low) & (values <= high)]


def samples(function: Function, count: int, seed: int = 0) -> list[Array]:
    """The arguments, equally many of each."""
    rng = np.random.default_rng(seed)
    first = [spread(function.low, function.high, count)]
    reach = [bound for bound in (function.low, function.high) if math.isfinite(bound)]
    low, high = (min(reach, default=-30.0), max(reach, default=30.0)) if len(reach) != 1 else (reach[0], reach[0] + 30)
    first.append(rng.uniform(max(low, -200), min(high, 200), count // 2).astype(F32))
    for point in function.near:
        steps = np.arange(-count // 64, count // 64 + 1)
        first.append((np.array(point, F32).view(np.int32) + steps).astype(np.int32).view(F32))
        first.append((point + rng.normal(size=count // 16) * 2.0 ** rng.uniform(-30, 0, count // 16)).astype(F32))
    x = np.concatenate(first)
    x = x[np.isfinite(x) & (x >= function.low) & (x <= function.high)]
    if function.second is None:
        return [x]
    y = spread(*function.second, 2 * len(x))
    return [x, rng.permutation(np.concatenate([y, rng.uniform(-30, 30, len(x)).astype(F32)]))[: len(x)]]


def units(got: Array, exact: Array) -> Array:
    """Distance in units in the last place of the f32 nearest to ``exact``; infinite where only one of them is NaN."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(F32)
        gap = np.spacing(np.minimum(np.abs(rounded), np.finfo(F32).max)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - exact) / gap
    beyond = np.abs(exact) > np.finfo(F32).max
    agree = (got == rounded) | (np.isnan(got) & np.isnan(exact))
    edge = beyond & (np.abs(got) >= np.finfo(F32).max) & (np.sign(got) == np.sign(exact))
    error = np.where(np.isnan(error), np.inf, error)
    return np.where(agree & ~np.isfinite(rounded) | edge, 0, np.where(np.isnan(exact) & np.isnan(got), 0, error))


def evaluate(opcode: str, arguments: list[Array]) -> Array:
    """What the simulator computes, compiled without auto-cast."""
    shape = f"f32[{len(arguments[0])}]"
    lines = [f"  p{i} = {shape} parameter({i})" for i in range(len(arguments))]
    operands = ", ".join(f"p{i}" for i in range(len(arguments)))
    text = "\n".join(
        ["HloModule accuracy", "ENTRY main {", *lines, f"  ROOT r = {shape} {opcode}({operands})", "}", ""]
    )
    executable = neuronx_cc.compile(text.encode(), auto_cast="none")
    return np.asarray(executable.run(arguments).outputs[0])


def measure(opcode: str, count: int) -> tuple[Array, list[Array]]:
    """Errors in units in the last place, and the arguments."""
    arguments = samples(FUNCTIONS[opcode], count)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[opcode].exact(*(x.astype(np.float64) for x in arguments))
        return units(evaluate(opcode, arguments), exact), arguments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("opcodes", nargs="*", default=sorted(FUNCTIONS))
    parser.add_argument("--samples", type=int, default=200_000)
    options = parser.parse_args()
    print(f"{'function':<24}{'samples':>9}{'largest':>10}{'mean':>8}   at")
    for opcode in options.opcodes or sorted(FUNCTIONS):
        errors, arguments = measure(opcode, options.samples)
        worst = int(np.argmax(errors))
        place = ", ".join(f"{x[worst]:.9g}" for x in arguments)
        note = "" if errors[worst] <= GOAL else "   above the goal"
        print(f"{opcode:<24}{len(errors):>9}{errors[worst]:>10.2f}{errors.mean():>8.3f}   {place}{note}")


if __name__ == "__main__":
    main()
