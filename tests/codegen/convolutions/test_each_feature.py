"""Convolutions of each feature by itself, patch by patch: any size, window, layout, type, epilogue and schedule."""

from collections.abc import Callable
from math import inf
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of
from jax import lax

from neuronx_cc.codegen import choose
from neuronx_cc.codegen.convolutions import kernel, patches, posing
from neuronx_cc.codegen.convolutions.axis import axis_of
from neuronx_cc.codegen.convolutions.patches import Cut
from neuronx_cc.codegen.convolutions.patches_estimate import estimate
from neuronx_cc.ir.hlo import WindowDim
from neuronx_cc.runtime.clock_regions import simulate

LAYOUTS = (("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NHWC", "OIHW", "NCHW"), ("CNHW", "HWOI", "NHCW"))
EPILOGUES = ("none", "none", "bias", "scale", "residual", "image")
TYPES = (np.float32, np.float32, jnp.bfloat16, np.float16)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[Random], None]:
    """Patches are taken wherever they fit, with a drawn schedule."""

    def prepare(random: Random) -> None:
        best = choose._best

        def draw(problem: Any, timing: Any, level: int) -> Any:
            if not isinstance(problem, patches.Problem):
                return best(problem, timing, level)
            found = list(patches.candidates(problem, timing))
            return random.choice(found) if found else None

        monkeypatch.setattr(kernel, "DOUBT", inf)
        monkeypatch.setattr(choose, "_best", draw)

    return prepare


def program(random: Random, most: int) -> tuple[Callable[..., Any], list[Any]]:
    """A convolution of each of some features by itself, what follows it, and its inputs."""
    layout, dtype, epilogue = random.choice(LAYOUTS), random.choice(TYPES), random.choice(EPILOGUES)
    features = random.choice([2, 3, 8, 24, 32, 33, 64, 97, 128, 129, 144])
    images = random.choice([1, 1, 2, 3, 8, 17])
    taps = [random.choice([1, 2, 3, 3, 5, 7]) for _ in range(2)]
    taps[0] += taps == [1, 1]
    steps, apart = ([random.choice(of) for _ in range(2)] for of in ((1, 1, 1, 2, 3), (1, 1, 1, 2)))
    pads = [(random.randrange(tap + 1), random.randrange(tap + 1)) for tap in taps]
    area = max(4, most // (features * images))
    sizes = [random.randint(1, 40)]
    sizes.append(max(1, min(60, area // sizes[0])))
    sizes = [max(size, (tap - 1) * d + 1) for size, tap, d in zip(sizes, taps, apart, strict=True)]
    random.shuffle(sizes)
    sizes = [max(size, (tap - 1) * d + 1) for size, tap, d in zip(sizes, taps, apart, strict=True)]
    shape = dict(zip("NCHW", (images, features, *sizes), strict=True))
    kernel_shape = dict(zip("OIHW", (features, 1, *taps), strict=True))
    x, w = (
        np.random.default_rng(random.randrange(100)).standard_normal([of[dim] for dim in spec]).astype(dtype)
        for of, spec in ((shape, layout[0]), (kernel_shape, layout[1]))
    )

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, steps, pads, rhs_dilation=apart, dimension_numbers=layout, feature_group_count=features
        )

    out = jax.eval_shape(convolve, x, w).shape
    at = layout[2].index("C")
    given = np.random.default_rng(1)
    bias = given.standard_normal([size if dim == at else 1 for dim, size in enumerate(out)]).astype(dtype)
    array = given.standard_normal([1 if dim == at and epilogue == "image" else n for dim, n in enumerate(out)]).astype(
        dtype
    )
    follows: dict[str, Callable[..., Any]] = {
        "none": lambda y, b, r: y,
        "bias": lambda y, b, r: jax.nn.relu(y + b),
        "scale": lambda y, b, r: jax.nn.relu(y * jnp.asarray(0.5, y.dtype) + jnp.asarray(0.25, y.dtype)),
        "residual": lambda y, b, r: jax.nn.silu(y * b) + r,
        "image": lambda y, b, r: y * r + b,
    }
    return lambda x, w, b, r: follows[epilogue](convolve(x, w), b, r), [x, w, bias, array]


def between(layout: tuple[str, str, str]) -> Callable[..., Any]:
    """A block whose image and result of a convolution of each feature stay on chip, where they fit."""

    def block(x: Any, w: Any, m: Any) -> Any:
        x = lax.conv_general_dilated(x, m, (1, 1), "SAME", dimension_numbers=layout)
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=w.shape[3])
        return x + lax.conv_general_dilated(jnp.tanh(y), m, (1, 1), "SAME", dimension_numbers=layout)

    return block


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_between_others(dtype: Any, last: bool, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies on chip goes through HBM for it, its features first or last."""
    ways = posing._ways
    monkeypatch.setattr(posing, "DOUBT", inf)
    monkeypatch.setattr(posing, "_ways", lambda *given: [way for way in ways(*given) if way.last == last])
    monkeypatch.setattr(kernel, "DOUBT", inf)
    shapes = (2, 15, 18, 64), (5, 5, 1, 64), (1, 1, 64, 64)
    x, w, m = (random.standard_normal(shape).astype(dtype) for shape in shapes)
    block = between(("NHWC", "HWIO", "NHWC"))
    lines = compile_text(text_of(block, x, w, m)).program.schedules.values()
    assert any("each by itself" in line for line in lines)
    check_function(block, x, w, m)


def test_large_images_leave_the_chip_for_it() -> None:
    """All features took part in a product for each of the 49 kernel positions there."""
    shapes = (4, 56, 56, 96), (7, 7, 1, 96), (1, 1, 96, 96)
    given = [np.zeros(shape, jnp.bfloat16) for shape in shapes]
    lines = compile_text(text_of(between(("NHWC", "HWIO", "NHWC")), *given)).program.schedules.values()
    assert any("each by itself" in line for line in lines)


@pytest.mark.parametrize("seed", range(120))
def test_drawn(seed: int, drawn: Callable[[Random], None]) -> None:
    random = Random(seed)
    drawn(random)
    function, inputs = program(random, 60_000)
    check_function(function, *inputs, relative=2e-5 if inputs[0].dtype == np.float32 else 1e-5)


@pytest.mark.parametrize("layout", LAYOUTS[:2], ids=str)
def test_is_chosen_for_large_images(layout: tuple[str, str, str]) -> None:
    """FP32 images of 56 x 56 and 96 features: four times as fast as one feature a row of TensorE, features last."""

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=96)

    sizes, taps = dict(N=4, C=96, H=56, W=56), dict(O=96, I=1, H=7, W=7)
    x = np.ones([sizes[dim] for dim in layout[0]], np.float32)
    w = np.ones([taps[dim] for dim in layout[1]], np.float32)
    (line,) = compile_text(text_of(function, x, w), TRN1).program.schedules.values()
    assert "patches of" in line


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=str)
@pytest.mark.parametrize("case", [(4, 28, 64, 5, 0), (1, 40, 96, 7, 0), (2, 40, 48, 3, 1)], ids=str)
def test_the_chosen_schedule_is_near_the_best(
    case: tuple[int, ...], dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a dozen candidates, those that are best by estimate among them; and none is told to take much less time."""
    images, side, features, taps, at = case
    layout = LAYOUTS[at]
    sizes, window = dict(N=images, C=features, H=side, W=side), dict(O=features, I=1, H=taps, W=taps)
    x, w = (np.ones([of[dim] for dim in spec], dtype) for of, spec in ((sizes, layout[0]), (window, layout[1])))

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=features)

    text, wanted, seen = text_of(function, x, w), None, {}
    best = choose._best

    def draw(problem: Any, timing: Any, level: int) -> Any:
        if not isinstance(problem, patches.Problem):
            return best(problem, timing, level)
        seen[0] = (problem, timing)
        return wanted or best(problem, timing, level)

    monkeypatch.setattr(kernel, "DOUBT", inf)
    monkeypatch.setattr(choose, "_best", draw)

    def microseconds() -> float:
        return simulate(compile_text(text, TRN1).program, TRN1).total / 1e3

    chosen = microseconds()
    problem, timing = seen[0]
    estimates = {each: estimate(problem, each, timing) / 1e3 for each in patches.candidates(problem, timing)}
    order = sorted(estimates, key=lambda each: estimates[each])
    times = {}
    for wanted in [*order[:7], *Random(0).sample(order[7:], 5)]:
        times[wanted] = microseconds()
        assert 0.5 <= times[wanted] / estimates[wanted] <= 1.75
    assert chosen <= 1.25 * min(times.values())


@pytest.mark.parametrize("where", ["image", "kernel"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_infinities_stay_where_they_are(where: str, value: float, drawn: Callable[[Random], None]) -> None:
    """Products with zeros spread them over a patch: the program computes once more."""
    drawn(Random(3))
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(dims).astype(np.float32) for dims in ((2, 12, 12, 16), (3, 3, 1, 16)))
    (x if where == "image" else w)[1, 2, 0, 5] = value

    def function(x: Any, w: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=16)

    check_function(function, x, w)


def test_constant_kernels(drawn: Callable[[Random], None]) -> None:
    drawn(Random(5))
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(dims).astype(np.float32) for dims in ((2, 14, 14, 24), (3, 5, 1, 24)))

    def function(x: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (2, 1), "SAME", dimension_numbers=layout, feature_group_count=24)

    check_function(function, x)


@pytest.mark.parametrize("size", [5, 7, 30])
@pytest.mark.parametrize(
    "window", [WindowDim(3, pad_low=1, pad_high=1), WindowDim(7, stride=2, pad_low=4), WindowDim(2, rhs_dilation=3)]
)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_patches_meet_all_taps(size: int, window: WindowDim, count: int) -> None:
    """What each output of a patch sees of the patches of the input that it meets is each tap once."""
    span = (window.size - 1) * window.rhs_dilation + 1
    out = (size + window.pad_low + window.pad_high - span) // window.stride + 1
    cut = Cut(axis_of(size, out, window), count)
    taps = cut.taps_at(window.size)
    for output in range(count):
        seen = [taps[:, cut.window(output, patch) :][:, : cut.inputs] for patch in range(cut.met)]
        assert all(output in cut.meeting(patch) for patch, each in enumerate(seen) if each.any())
        assert sum(each.sum() for each in seen) == taps.sum()
