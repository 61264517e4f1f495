"""Windows: every combiner and type over shapes, strides, paddings and dilations; computations of their own."""

import random as chances
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import TRN1, check_function
from jax import lax

from neuronx_cc.codegen.reductions import window_plan
from neuronx_cc.codegen.reductions.window_plan import Dim, Plan
from neuronx_cc.ir.isa.timing import Timing

Array = np.ndarray[Any, Any]
Dims = tuple[int, ...]

CASES = [
    ((10,), (3,)),
    ((1000,), (16,)),
    ((40,), (33,)),
    ((5, 7), (2, 3)),
    ((130, 9), (1, 4)),
    ((9, 130), (4, 1)),
    ((4, 6), (4, 6)),
    ((3, 50, 4), (1, 50, 1)),
    ((2, 13, 17, 5), (1, 3, 3, 1)),
    ((2, 3, 12, 12), (1, 1, 2, 2)),
    ((3, 4, 5, 6, 7), (1, 2, 1, 3, 2)),
    ((1, 300, 1), (1, 2, 1)),
]


def window(
    op: Callable[..., Any],
    start: Any,
    size: Dims,
    strides: Dims | None = None,
    padding: Any = "VALID",
    base: Dims | None = None,
    dilation: Dims | None = None,
) -> Callable[..., Any]:
    """``reduce_window`` of one operand."""
    ones = (1,) * len(size)

    def function(x: Any) -> Any:
        first = np.asarray(start, x.dtype)
        return lax.reduce_window(
            x, first, op, size, strides or ones, padding, base_dilation=base or ones, window_dilation=dilation or ones
        )

    return function


def normal(random: np.random.Generator, *dims: int) -> Array:
    return random.standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("dims", "size"), CASES, ids=str)
def test_shapes(dims: Dims, size: Dims, stride: int, padding: str, random: np.random.Generator) -> None:
    strides = tuple(1 if reach == 1 else stride for reach in size)

    def function(x: Any, n: Any) -> Any:
        def of(op: Callable[..., Any], start: Any, value: Any) -> Any:
            return window(op, start, size, strides, padding)(value)

        floats = of(lax.add, 0, x), of(lax.max, -np.inf, x)
        return *floats, of(lax.add, 0, n), of(lax.min, 2**31 - 1, n), of(lax.bitwise_or, False, n > 900)

    check_function(function, normal(random, *dims), random.integers(-1000, 1000, dims).astype(np.int32))


@pytest.mark.parametrize(
    "options",
    [
        ((3, 2), (2, 1), ((3, 0), (1, 4)), (2, 3), (2, 3)),
        ((3, 2), (1, 1), ((-2, 1), (1, -3))),
        ((3, 2), (1, 1), ((9, 9), (5, 6))),
        ((2, 9), (3, 1), ((0, 2), (40, 40))),
        ((1, 1), (2, 3), "VALID"),
        ((1, 1), (1, 1), ((1, 2), (0, 3))),
    ],
    ids=str,
)
def test_padding_and_dilation(options: tuple[Any, ...], random: np.random.Generator) -> None:
    x = normal(random, 11, 13)
    check_function(lambda x: (window(lax.add, 0, *options)(x), window(lax.min, np.inf, *options)(x)), x)


@pytest.mark.parametrize("seed", range(8))
def test_windows_larger_than_arrays(seed: int) -> None:
    """Of which whole rows lie in the padding; 3,000 x 3,000 would fit no memory on chip."""
    chance = chances.Random(seed)
    x = normal(np.random.default_rng(seed), chance.choice((1, 2, 5)), chance.choice((1, 3, 7)))
    size, base, gap = ([chance.choice(each) for _ in x.shape] for each in ((2, 9, 3000), (1, 1, 2), (1, 1, 3)))
    padding = []
    for length, taps, apart, step in zip(x.shape, size, base, gap, strict=True):
        reach, extent = (taps - 1) * step + 1, (length - 1) * apart + 1
        low = chance.choice((0, reach // 2, reach - 1, reach + 2))
        padding.append((low, max(reach - extent - low, 0) + chance.choice((0, 1, 7))))
    how = (size, (chance.choice((1, 5)), 2), padding, base, gap)
    check_function(lambda x: (window(lax.add, 1, *how)(x), window(lax.max, -np.inf, *how)(x)), x)


@pytest.mark.parametrize("size", [2, 5, 31, 100])
def test_partitions_and_tiles(size: int, random: np.random.Generator) -> None:
    """More blocks than partitions, loops of tiles, a rest."""
    x, wide = normal(random, 30_011), normal(random, 3, 300, 70)
    check_function(window(lax.max, -np.inf, (size,), (2,), "SAME"), x)
    check_function(window(lax.add, 0, (1, size, 1), (1, 3, 1), "SAME"), wide)


def test_every_type(random: np.random.Generator) -> None:
    x = normal(random, 11, 13)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        check_function(lambda x: (window(lax.add, 0, (3, 2))(x), window(lax.max, -np.inf, (3, 2))(x)), x.astype(dtype))
    for whole in (np.int8, np.uint8, np.int16, np.uint16, np.uint32):
        n = random.integers(0, 120, (11, 13)).astype(whole)
        check_function(
            lambda n: (
                [window(op, 1, (3, 2))(n) for op in (lax.mul, lax.max)]
                + [window(op, 0, (2, 5))(n) for op in (lax.add, lax.bitwise_xor)]
            ),
            n,
        )
    check_function(lambda x: [window(op, False, (3, 2), (2, 2))(x > 0) for op in (lax.bitwise_or, lax.bitwise_xor)], x)


def test_special_values() -> None:
    x = np.array([[1, np.nan, 3, 4], [np.inf, 2, -np.inf, 0], [-0.0, -0.0, 5, -np.inf]], np.float32)
    check_function(lambda x: [window(lax.add, 0, size, padding="SAME")(x) for size in ((1, 2), (2, 2), (3, 1))], x)
    check_function(lambda x: [window(lax.max, -np.inf, size)(x) for size in ((1, 2), (2, 2), (3, 1))], x)


def test_starts(random: np.random.Generator) -> None:
    """The initial value counts once a window, padding does not, whether it is known at compile time or not."""
    x, start = normal(random, 9, 20), np.float32(0.25)
    check_function(window(lax.max, 0.25, (3, 2), padding="SAME"), x)
    check_function(lambda x, s: lax.reduce_window(x, s * 2, lax.max, (3, 2), (1, 2), "SAME"), x, start)
    check_function(lambda x: lax.reduce_window(x, start, lax.add, (1, 1), (1, 1), "VALID"), x)
    check_function(lambda x: lax.reduce_window(x[0, 0], np.float32(0), lax.add, (), (), "VALID"), x)


@pytest.mark.parametrize("dims", [(0, 4), (3, 0), (2, 3)], ids=str)
def test_nothing(dims: Dims) -> None:
    check_function(window(lax.add, 0, (4, 4), padding=((2, 2), (2, 2))), np.ones(dims, np.float32))


OWN = [
    ((3, 2), (1, 1), "VALID"),
    ((3, 2), (2, 1), "SAME"),
    ((9, 1), (1, 1), "SAME"),
    ((3, 11), (2, 2), ((2, 1), (0, 3)), (1, 2), (2, 1)),
]


@pytest.mark.parametrize("options", OWN, ids=str)
def test_computations_of_their_own(options: tuple[Any, ...], random: np.random.Generator) -> None:
    x = np.abs(normal(random, 11, 13))
    check_function(window(lambda a, b: jnp.sqrt(a * a + b * b), 0, *options), x)


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize("size", [(3, 3), (2, 11)], ids=str)
def test_several_operands(size: Dims, padding: str, random: np.random.Generator) -> None:
    """The largest value of each window and its place; the first of equal ones."""
    x, places = np.round(normal(random, 11, 13)), np.arange(143, dtype=np.int32).reshape(11, 13)

    def first(left: Any, right: Any) -> Any:
        keep = left[0] >= right[0]
        return lax.select(keep, left[0], right[0]), lax.select(keep, left[1], right[1])

    def function(x: Any, i: Any) -> Any:
        return lax.reduce_window((x, i), (np.float32(-np.inf), np.int32(0)), first, size, (2, 2), padding)

    check_function(function, x, places)


@pytest.mark.parametrize(("size", "length"), [(3000, 32), (3000, 33), (257, 200), (40, 40), (5000, 1000), (64, 32)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_long_extremes(size: int, length: int, padding: str, random: np.random.Generator) -> None:
    """Two scans of blocks: what is not a number shows in the windows that hold it only."""
    x = random.standard_normal(size).astype(np.float32)
    x[random.integers(0, size, 3)] = [np.nan, np.inf, -np.inf]
    compiled = check_function(window(lax.max, -np.inf, (length,), padding=padding), x)
    scans = any(getattr(record, "op", "") == "tensor_tensor_scan" for record in compiled.program.records)
    assert scans or size == length
    check_function(window(lax.min, np.inf, (length,), padding=padding), x)
    rows = random.standard_normal((130, size // 4)).astype(np.float32)
    check_function(window(lax.min, 0.5, (1, min(length, size // 4)), padding=padding), rows)


def drawn(chance: chances.Random) -> tuple[Dims, tuple[Any, ...]]:
    """Dims of an operand, then window, strides, padding, and dilation that leave results."""
    rank = chance.randint(1, 5)
    dims, size, strides, padding, dilation = [], [], [], [], []
    for _ in range(rank):
        dims.append(chance.choice((1, 2, 3, 7, 8, 16, 31, 63, 129)))
        size.append(chance.choice((1, 1, 2, 3, 5)))
        strides.append(chance.choice((1, 1, 2, 3)))
        dilation.append(chance.choice((1, 1, 1, 2)))
        reach = (size[-1] - 1) * dilation[-1] + 1
        low, high = chance.randint(0, reach - 1), chance.randint(0, reach - 1)
        padding.append((low, max(high, reach - low - dims[-1])))
    # small, for tiny tiles of large arrays are as many instructions
    while np.prod(dims) > 6_000:
        at = dims.index(max(dims))
        dims[at], size[at], padding[at] = 2, 1, (0, 0)
    return tuple(dims), (tuple(size), tuple(strides), tuple(padding), None, tuple(dilation))


@pytest.mark.parametrize("seed", range(40))
def test_random_windows_in_random_cuts(seed: int, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any of the cuts that are looked at gives the same values, whatever estimates say."""
    chance = chances.Random(seed)
    dims, options = drawn(chance)

    def any_plan(timing: Timing, dims: list[Dim], itemsize: int, room: int) -> Plan:
        start = chance.choice(window_plan._starts(dims, timing.sizes.partitions))
        room //= chance.choice((1, 4, 16))

        def lying(plan: Plan) -> list[Dim]:
            return window_plan.lying(timing, dims, plan)

        return window_plan._shrunk(
            lambda plan: window_plan.cost(timing, lying(plan), plan, itemsize),
            lambda plan: window_plan.tile_bytes(lying(plan), plan, itemsize),
            start,
            room,
        )

    monkeypatch.setattr(window_plan, "best_plan", any_plan)
    x, n = normal(random, *dims), random.integers(-1000, 1000, dims).astype(np.int32)
    check_function(lambda x, n: (window(lax.max, -np.inf, *options)(x), window(lax.add, 0, *options)(n)), x, n)


def test_small_images_fill_the_partitions() -> None:
    """Rows alone would fill as many of 128 partitions as there are rows."""
    timing = Timing(TRN1)
    for height, width, features in ((14, 14, 256), (28, 28, 128), (29, 31, 127), (56, 56, 64)):
        dims = [Dim(height, height, 3, 1, 1, 1), Dim(width, width, 3, 1, 1, 1), Dim(features, features)]
        plan = window_plan.best_plan(timing, dims, 4, 150_000)
        blocks = dims[plan.partition].blocks(plan.blocks[plan.partition])
        assert blocks * plan.groups >= 96, plan


def test_rows_come_without_their_padding() -> None:
    """Runs of one row each, between the padding of a tile, took four times as long to load as the volume."""
    timing, dims = Timing(TRN1), [Dim(128, 128), *(Dim(16, 16, 3, 1, 1, 1) for _ in range(3))]
    plan = window_plan.best_plan(timing, dims, 4, 150_000)
    lying = window_plan.lying(timing, dims, plan)
    assert lying[3].whole
    assert window_plan.cost(timing, lying, plan, 4) < 0.5 * window_plan.cost(timing, dims, plan, 4)
