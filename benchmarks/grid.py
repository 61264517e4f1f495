"""A grid of problems beside those that have a budget: time over roofline, the worst ones, the steps between neighbours.

    python benchmarks/grid.py [--quick] [--seed N] [--count N] [--family NAME ...] [--set KEY=VALUE ...]

Problems are sampled with a seed: for each one drawn, a neighbour that differs in one size is measured, too. The
roofline is the greater of the operations of products at TensorE's peak for their type and of the bytes of parameters
and results at the rate of the DMA engines, both of the machine description. Problems below 1 GFLOP and 4 MB may take
10 us more than it. Only plans are made and timed; no values are computed.
"""

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import geometric_mean
from typing import Any

import jax
import jax.numpy as jnp

import neuronx_cc
from neuronx_cc.ir.errors import NeuronError
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine

SIZES = (1, 16, 128, 197, 256, 384, 512, 768, 1000, 1024, 2048, 3072, 4096, 5120, 8192, 11008, 16384, 50257)
ROWS = (1, 4, 16, 64, 128, 197, 512, 1000, 2048, 4096, 8192)
COLUMNS = (64, 100, 512, 768, 1000, 1021, 2048, 4096, 5120, 8191, 8192, 10240, 16384)
SQUARES = (128, 256, 384, 512, 768, 1000, 1024, 2048, 3072, 4096)
DIMS = (4, 14, 16, 32, 64, 100, 128)
COUNTS = (3, 16, 64, 100, 197, 512, 1024)
FEW = (2, 3, 8, 16, 32, 64)
LAST = (1, 2, 3, 7, 16, 32, 64, 127, 128, 129, 512)
EDGES = (3, 16, 64, 128, 197, 256, 512, 1021)
BATCHES = (1, 2, 8, 16)
SIDES = (7, 14, 28, 37, 56, 112, 224)
FEATURES = (3, 4, 16, 24, 64, 96, 127, 128, 129, 256, 512, 1000)
GROUPS = (16, 32, 64, 128, 320, 512, 1280)
POSITIONS = (49, 64, 256, 1024, 3136, 4096)
NORMS = ("group", "batch")
WINDOWS = (1, 3, 5, 7)
LENGTHS = (64, 128, 197, 256, 512, 1024, 2048, 4096)
TYPES = ("float32", "bfloat16")
LARGEST = 1 << 29
"""Bytes of parameters and results."""
MOST_FLOPS = 2e12
STEP = 1.5
"""How much more a neighbour may cost for its work."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A point of the grid: what its family makes of its sizes."""

    family: str
    sizes: tuple[int, ...]
    kind: str

    def __str__(self) -> str:
        return f"{self.family} {self.kind} {' x '.join(map(str, self.sizes))}"


@dataclass(frozen=True, slots=True)
class Program:
    """A function of JAX with shapes to lower it with, and the operations of its products."""

    function: Callable[..., Any]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    flops: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    problem: Problem
    us: float
    roofline: float
    """Microseconds."""
    small: bool
    error: str = ""

    @property
    def ratio(self) -> float:
        return max(0.0, self.us - 10.0) / self.roofline if self.small else self.us / self.roofline


def array(dims: Sequence[int], dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(dims), jnp.dtype(dtype))


def product(problem: Problem) -> Program:
    """[m, k] and [k, n]; ``kind``: type, and for each operand n, or t where it lies transposed."""
    m, k, n = problem.sizes
    dtype, lhs, rhs = problem.kind.split("/")
    x, y = ((k, m) if lhs == "t" else (m, k)), ((n, k) if rhs == "t" else (k, n))

    def function(x: Any, y: Any) -> Any:
        return (x.T if lhs == "t" else x) @ (y.T if rhs == "t" else y)

    return Program(function, (array(x, dtype), array(y, dtype)), 2.0 * m * k * n)


def transpose(problem: Problem) -> Program:
    dtype, after = problem.kind.split("/")
    functions = {"alone": lambda x: x.T, "times": lambda x: x.T * 2, "plus": lambda x: x.T + x}
    return Program(functions[after], (array(problem.sizes, dtype),))


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    y = x.astype(jnp.float32)
    centred = y - y.mean(-1, keepdims=True)
    normal = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return (normal * scale + bias).astype(x.dtype)


def rms_norm(x: Any, scale: Any) -> Any:
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def group_norm(x: Any, scale: Any, bias: Any) -> Any:
    """[batch, features, positions], 8 features a group."""
    y = x.astype(jnp.float32).reshape(x.shape[0], -1, 8, *x.shape[2:])
    mean, var = y.mean((2, 3), keepdims=True), y.var((2, 3), keepdims=True)
    normal = ((y - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(x.shape)
    return (normal * scale[:, None] + bias[:, None]).astype(x.dtype)


def batch_norm(x: Any, scale: Any, bias: Any) -> Any:
    """[batch, features, positions]"""
    y = x.astype(jnp.float32)
    mean, var = y.mean((0, 2), keepdims=True), y.var((0, 2), keepdims=True)
    return ((y - mean) * jax.lax.rsqrt(var + 1e-5) * scale[:, None] + bias[:, None]).astype(x.dtype)


def features(problem: Problem) -> Program:
    """``kind``: which norm of [batch, features, positions], and the type."""
    what, dtype = problem.kind.split("/")
    row = array(problem.sizes[1:2], dtype)
    return Program({"group": group_norm, "batch": batch_norm}[what], (array(problem.sizes, dtype), row, row))


ROW_MAPS: dict[str, tuple[Callable[..., Any], int]] = {
    "sum": (lambda x: x.sum(-1), 0),
    "max": (lambda x: x.max(-1), 0),
    "softmax": (lambda x: jax.nn.softmax(x, -1), 0),
    "log_softmax": (lambda x: jax.nn.log_softmax(x, -1), 0),
    "norm": (layer_norm, 2),
    "rms": (rms_norm, 1),
    "silu": (lambda x: x / (1 + jnp.exp(-x)), 0),
    "gelu": (jax.nn.gelu, 0),
}
"""Functions of rows of [rows, columns], and of how many rows that all share."""


def rows(problem: Problem) -> Program:
    """``kind``: the function, the type, and how many leading dims the rows are."""
    what, dtype, leading = problem.kind.split("/")
    function, shared = ROW_MAPS[what]
    count, columns = problem.sizes
    return Program(
        function, (array((*split(count, int(leading)), columns), dtype), *[array((columns,), dtype)] * shared)
    )


def split(count: int, dims: int) -> tuple[int, ...]:
    """Factors of ``count``, as many as ``dims`` and as equal as they come."""
    if dims == 1:
        return (count,)
    first = min((size for size in range(1, count + 1) if count % size == 0), key=lambda s: abs(s - count ** (1 / dims)))
    return (first, *split(count // first, dims - 1))


def reduction(problem: Problem) -> Program:
    """``kind``: the dims that are reduced, the type, and how."""
    axes, dtype, how = problem.kind.split("/")
    over = tuple(map(int, axes))
    functions = {
        "mean": lambda x: x.mean(over),
        "max": lambda x: x.max(over),
        "sum": lambda x: x.sum(over),
        "behind": lambda x: jnp.tanh(x).mean(over),
    }
    return Program(functions[how], (array(problem.sizes, dtype),))


def side_by_side(problem: Problem) -> Problem:
    """The reduction of as many elements to as many results, over the last of two dims."""
    axes, rest = problem.kind.split("/", 1)
    count = math.prod(problem.sizes[int(axis)] for axis in axes)
    return Problem("reduction2", (math.prod(problem.sizes) // count, count), f"1/{rest}")


def in_one_dim(problem: Problem) -> Problem:
    """The same rows without leading dims."""
    what, dtype, _ = problem.kind.split("/")
    return Problem(problem.family, problem.sizes, f"{what}/{dtype}/1")


def permutation(problem: Problem) -> Program:
    """``kind``: the order of the dims, the type, and what becomes of the array."""
    order, dtype, after = problem.kind.split("/")
    axes = tuple(map(int, order))
    functions = {
        "times": lambda x, _: x.transpose(axes) * 2,
        "plus": lambda x, y: x.transpose(axes) + y,
        "scaled": lambda x, y: x.transpose(axes) * y[..., :1, :],
    }
    turned = [problem.sizes[axis] for axis in axes]
    given = (array(problem.sizes, dtype), array(turned if after == "plus" else [1, 1, turned[-1]], dtype))
    return Program(functions[after], given)


def attention(problem: Problem) -> Program:
    heads, length, width = problem.sizes
    each = array((heads, length, width), problem.kind)

    def function(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(width)
        return jax.nn.softmax(scores, -1) @ v

    return Program(function, (each, each, each), 4.0 * heads * length * length * width)


def convolution(problem: Problem) -> Program:
    """``kind``: type, layout, what is computed, rank of images, stride, dilation, and groups (0: as many as inputs)."""
    batch, side, inputs, outputs, taps = problem.sizes
    dtype, layout, what, *numbers = problem.kind.split("/")
    rank, stride, dilation, groups = map(int, numbers)
    if not groups:
        groups, outputs = inputs, inputs
    letters = "DHW"[3 - rank :]
    names = ("NC" + letters, "OI" + letters, "NC" + letters)
    if layout == "last":
        names = ("N" + letters + "C", letters + "IO", "N" + letters + "C")

    def function(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            w,
            (stride,) * rank,
            "SAME",
            rhs_dilation=(dilation,) * rank,
            dimension_numbers=names,
            feature_group_count=groups,
        )

    def laid_out(letters: str, **sizes: int) -> jax.ShapeDtypeStruct:
        return array([sizes.get(letter, side) for letter in letters], dtype)

    x = laid_out(names[0], N=batch, C=inputs)
    w = laid_out(names[1], O=outputs, I=inputs // groups, D=taps, H=taps, W=taps)
    y = jax.eval_shape(function, x, w)
    flops = 2.0 * batch * math.ceil(side / stride) ** rank * inputs // groups * outputs * taps**rank
    if what == "forward":
        return Program(function, (x, w), flops)
    if what == "input":
        return Program(lambda w, y: jax.linear_transpose(lambda x: function(x, w), x)(y)[0], (w, y), flops)
    return Program(lambda x, y: jax.linear_transpose(lambda w: function(x, w), w)(y)[0], (x, y), flops)


def kinds_of_convolutions(what: str) -> list[str]:
    """Images mostly; strides, dilations and groups one at a time."""
    forms = ["2/1/1/1"] * 3 + ["2/2/1/1", "2/1/2/1", "2/1/1/2", "2/1/1/32", "2/1/1/0", "1/1/1/1", "3/1/1/1"]
    return [f"{dtype}/{layout}/{what}/{form}" for dtype in TYPES for layout in ("first", "last") for form in forms]


def gather(problem: Problem) -> Program:
    height, width, count = problem.sizes
    return Program(lambda table, index: table[index], (array((height, width)), array((count,), "int32")))


def over_all_dims(rank: int) -> list[str]:
    """Kinds of reductions over every set of dims."""
    dims = range(rank)
    sets = ["".join(map(str, axes)) for count in dims for axes in combinations(dims, count + 1)]
    kinds = [f"{dtype}/{how}" for dtype in TYPES for how in ("mean", "max", "behind")]
    return [f"{axes}/{kind}" for axes in sets for kind in (*kinds, "int32/sum")]


FAMILIES: dict[str, tuple[Callable[[Problem], Program], Sequence[Sequence[int]], Sequence[str]]] = {
    "product": (product, (SIZES, SIZES, SIZES), [f"{t}/{x}/{y}" for t in TYPES for x in "nt" for y in "nt"]),
    "transpose": (
        transpose,
        (SQUARES, SQUARES),
        [f"{t}/{after}" for t in TYPES for after in ("alone", "times", "plus")],
    ),
    "rows": (rows, (ROWS, COLUMNS), [f"{what}/{t}/{dims}" for what in ROW_MAPS for t in TYPES for dims in (1, 2, 3)]),
    "features": (features, (BATCHES, GROUPS, POSITIONS), [f"{what}/{t}" for what in NORMS for t in TYPES]),
    "permutation": (
        permutation,
        (EDGES,) * 3,
        [
            f"{o}/{t}/{a}"
            for o in ("021", "120", "201", "102", "210")
            for t in TYPES
            for a in ("times", "plus", "scaled")
        ],
    ),
    "reduction2": (reduction, (ROWS, COLUMNS), over_all_dims(2)),
    "reduction3": (reduction, (COUNTS, COUNTS, LAST), over_all_dims(3)),
    "reduction4": (reduction, (DIMS, DIMS, DIMS, LAST), over_all_dims(4)),
    "reduction5": (reduction, (FEW, FEW, FEW, FEW, LAST), over_all_dims(5)),
    "attention": (attention, ((1, 12, 16), LENGTHS, (64, 80, 128)), TYPES),
    **{
        f"convolution {what}": (convolution, (BATCHES, SIDES, FEATURES, FEATURES, WINDOWS), kinds_of_convolutions(what))
        for what in ("forward", "weight", "input")
    },
    "gather": (gather, ((1000, 5000, 50257), (1, 16, 64, 256, 768, 1024), (16, 128, 1000, 4096)), ["rows"]),
}


def sample(family: str, count: int, source: random.Random) -> Iterator[tuple[Problem, Problem]]:
    """Pairs of neighbours: they differ in one size, by one step of the grid; reductions in what dims lie apart, and
    rows in how many leading dims they are.
    """
    _, axes, kinds = FAMILIES[family]
    made = 0
    while made < count:
        kind = source.choice(list(kinds))
        at = [source.randrange(len(axis)) for axis in axes]
        axis = source.randrange(len(axes))
        step = 1 if at[axis] + 1 < len(axes[axis]) else -1
        sizes = [choices[i] for choices, i in zip(axes, at, strict=True)]
        moved = [*sizes[:axis], axes[axis][at[axis] + step], *sizes[axis + 1 :]]
        one, other = Problem(family, tuple(sizes), kind), Problem(family, tuple(moved), kind)
        if family == "transpose" and kind.endswith("plus"):
            one, other = (Problem(family, (each.sizes[axis],) * 2, kind) for each in (one, other))
        if family in ("reduction3", "reduction4", "reduction5"):
            other = side_by_side(one)
        if family == "rows" and not kind.endswith("/1"):
            other = in_one_dim(one)
        if family.startswith("convolution") and not all(_divides(problem) for problem in (one, other)):
            continue
        if all(_fits(FAMILIES[family][0](problem)) for problem in (one, other)):
            made += 1
            yield one, other


def _divides(problem: Problem) -> bool:
    """Whether a convolution's groups have equally many features, and few enough positions to be worth a look."""
    groups, rank = int(problem.kind.split("/")[-1]) or 1, int(problem.kind.split("/")[3])
    batch, side, inputs, outputs, _ = problem.sizes
    return inputs % groups == outputs % groups == 0 and batch * side**rank <= 1 << 18


def _nbytes(program: Program) -> int:
    results = jax.tree.leaves(jax.eval_shape(program.function, *program.shapes))
    return sum(each.size * each.dtype.itemsize for each in (*program.shapes, *results))


def _fits(program: Program) -> bool:
    given = sum(each.size * each.dtype.itemsize for each in program.shapes)
    return given < LARGEST and program.flops < MOST_FLOPS and _nbytes(program) < LARGEST


def measure(problem: Problem, machine: Machine, settings: Sequence[str]) -> Result:
    """Simulated time of one problem."""
    program = FAMILIES[problem.family][0](problem)
    timing, dtype = Timing(machine), program.shapes[0].dtype
    peak = 2.0 * machine["pe.rows"] * machine["pe.columns"] * machine["clock.tensor_ghz"] * 1e3
    peak /= machine["pe.fp32_passes"] if dtype == jnp.float32 else 1.0
    nbytes = _nbytes(program)
    if problem.family == "gather":
        nbytes = 2 * problem.sizes[1] * problem.sizes[2] * 4
    bound = max(program.flops / peak, nbytes / timing.dma_rate / 1e3)
    small = program.flops < 1e9 and nbytes < 4 << 20
    try:
        lowered = jax.jit(program.function).lower(*program.shapes)
        executable = neuronx_cc.compile(lowered, auto_cast="none", set=list(settings))
        report = executable.run([], timing_only=True, check_races=False).report
    except NeuronError as error:
        return Result(problem, math.inf, bound, small, str(error).splitlines()[0])
    return Result(problem, report.kernel_ns / 1e3, bound, small)


def report(results: Sequence[Result], pairs: Sequence[tuple[Problem, Problem]]) -> None:
    """Per family: geometric mean and share above 2; then the worst ten, and the worst steps between neighbours."""
    good = [result for result in results if not result.error]
    print(f"\n{'family':<14}{'problems':>9}{'geometric mean':>16}{'above 2':>9}{'small: more than 10 us after':>30}")
    for family in FAMILIES:
        large = [result.ratio for result in good if result.problem.family == family and not result.small]
        late = [result for result in good if result.problem.family == family and result.small and result.ratio > 1]
        count = sum(result.problem.family == family for result in results)
        mean = geometric_mean(large) if large else math.nan
        if count:
            print(f"{family:<14}{count:>9}{mean:>16.2f}{sum(ratio > 2 for ratio in large):>9}{len(late):>30}")
    print("\nworst by time over roofline")
    for result in sorted(good, key=lambda result: -result.ratio)[:10]:
        print(f"  {result.us:>10.1f} us  x {result.us / result.roofline:>7.2f}  {result.problem}")
    known = {result.problem: result for result in good if not result.small}
    steps = [
        (max(a.ratio / b.ratio, b.ratio / a.ratio), a, b)
        for one, other in pairs
        if (a := known.get(one)) is not None and (b := known.get(other)) is not None
    ]
    over = sum(step > STEP for step, _, _ in steps)
    print(f"\n{len(steps)} pairs of neighbours, {over} with a step of more than {STEP} for the same work; worst")
    for step, a, b in sorted(steps, key=lambda row: -row[0])[:10]:
        print(f"  {step:>6.2f}  {a.problem} ({a.ratio:.2f})  {b.problem} ({b.ratio:.2f})")
    for result in results:
        if result.error:
            print(f"does not compile: {result.problem}: {result.error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two pairs of each family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20, help="pairs of each family; products have five times as many")
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    machine = find_machine("trn1").with_settings(options.set)
    pairs: list[tuple[Problem, Problem]] = []
    for family in options.family:
        count = 2 if options.quick else options.count * (5 if family == "product" else 1)
        pairs += sample(family, count, random.Random(f"{options.seed} {family}"))
    started = time.process_time()
    results = []
    for problem in dict.fromkeys(problem for pair in pairs for problem in pair):
        results.append(measure(problem, machine, options.set))
        if not options.quick:
            print(f"{results[-1].us:>10.1f} us  x {results[-1].us / results[-1].roofline:>8.2f}  {problem}", flush=True)
    report(results, pairs)
    print(f"{time.process_time() - started:.0f} CPU seconds")


if __name__ == "__main__":
    main()
