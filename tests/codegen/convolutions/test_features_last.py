"""Convolutions of images whose features are neighbours in memory, and so are those of their results.

Positions are moved in long runs: parts of rows on partitions of their own, results of several phases together, and the
features of all packs of groups at once.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function, compile_text, text_of
from jax import lax

LETTERS = {1: "W", 2: "HW", 3: "DHW"}


def drawn(number: int) -> tuple[Callable[..., Any], list[np.ndarray[Any, Any]]]:
    """A convolution and its inputs."""
    random = np.random.default_rng(number)

    def pick(*values: Any) -> Any:
        return values[random.integers(len(values))]

    rank = pick(1, 2, 2, 2, 3)
    letters = LETTERS[rank]
    names = f"N{letters}C", f"{letters}IO", f"N{letters}C"
    groups, inputs, outputs = pick(
        (1, 40, 24),
        (1, 130, 70),
        (1, 64, 140),
        (2, 96, 40),
        (3, 50, 60),
        (160, 1, 1),
        (300, 1, 1),
        (129, 1, 2),
        (70, 4, 3),
    )
    dtype = pick(np.float32, np.float32, ml_dtypes.bfloat16, np.float16)
    sizes = [pick(*(1, 2, 5, 8, 9, 14, 16, 28) if rank < 3 else (2, 3, 4, 6)) for _ in letters]
    sizes[-1] = pick(6, 7, 16, 28, 30, 64) if rank < 3 else pick(4, 6, 8)
    options: dict[str, Any] = {
        "window_strides": [pick(1, 1, 2) for _ in letters],
        "padding": [(pick(0, 1, 2), pick(0, 1, 3)) for _ in letters],
        "lhs_dilation": [pick(1, 1, 1, 2) for _ in letters],
        "rhs_dilation": [pick(1, 1, 2) for _ in letters],
    }
    taps = [pick(1, 2, 3) for _ in letters]
    for at, (size, tap) in enumerate(zip(sizes, taps, strict=True)):
        taps[at] = min(tap, (size - 1 + sum(options["padding"][at])) // options["rhs_dilation"][at] + 1)
    x = random.standard_normal((pick(1, 2, 5), *sizes, groups * inputs)).astype(dtype)
    w = (random.standard_normal((*taps, inputs, groups * outputs)) * 0.2).astype(dtype)

    def convolve(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, dimension_numbers=names, feature_group_count=groups, **options)

    shape = jax.eval_shape(convolve, x, w).shape
    scale, bias = (random.standard_normal(shape[-1]).astype(dtype) for _ in range(2))
    residual = random.standard_normal(shape).astype(dtype)
    programs: list[tuple[Callable[..., Any], list[Any]]] = [
        (convolve, [x, w]),
        (lambda x, w, s, b: jax.nn.relu(convolve(x, w) * s + b), [x, w, scale, bias]),
        (lambda x, w, b, r: jnp.tanh(convolve(x, w) + b) + r, [x, w, bias, residual]),
    ]
    return pick(*programs)


@pytest.mark.parametrize("number", range(100))
def test_values(number: int) -> None:
    function, inputs = drawn(number)
    check_function(function, *inputs, relative=2e-2 if inputs[0].dtype.itemsize == 2 else 1e-4)


def scheduled(function: Callable[..., Any], *inputs: Any) -> str:
    (line,) = compile_text(text_of(function, *inputs), auto_cast="none").program.schedules.values()
    return str(line)


def test_schedules() -> None:
    """The devices are used where they are wanted."""
    names = "NHWC", "HWIO", "NHWC"
    x, wide = np.ones((2, 28, 28, 64), ml_dtypes.bfloat16), np.ones((2, 28, 28, 256), ml_dtypes.bfloat16)
    each, w = np.ones((3, 3, 1, 256), ml_dtypes.bfloat16), np.ones((3, 3, 64, 64), ml_dtypes.bfloat16)

    def plain(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=names)

    def depthwise(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=names, feature_group_count=256)

    assert " parts" in scheduled(plain, x, w)
    assert "of all groups" in scheduled(depthwise, wide, each)
