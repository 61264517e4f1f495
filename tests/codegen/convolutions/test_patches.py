"""Convolutions of patches that do not overlap become dots, whatever the order of dims; others stay what they are."""

from typing import Any

import jax
import numpy as np
import pytest
from generated import check_function, text_of
from jax import lax

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes import pipelines
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes

CASES = [
    (("NHWC", "HWIO", "NHWC"), (2, 24, 32), (8, 8), 3, 20),
    (("NHWC", "HWIO", "NHWC"), (2, 29, 35), (8, 9), 3, 20),  # with a rest
    (("NCHW", "OIHW", "NCHW"), (3, 16, 24), (8, 8), 2, 5),
    (("NCHW", "IHWO", "HNWC"), (3, 17, 24), (16, 12), 2, 5),
    (("NWC", "WIO", "NWC"), (2, 200), (64,), 3, 7),
    (("NDHWC", "DHWIO", "NDHWC"), (1, 4, 17, 16), (2, 8, 8), 3, 9),
    (("NDHWC", "DHWIO", "NDHWC"), (2, 3, 16, 16), (1, 8, 8), 3, 9),
]


def arrays(random: np.random.Generator, case: Any) -> tuple[Any, Any, Any]:
    numbers, (batch, *image), patch, inputs, outputs = case
    lhs = {"N": batch, "C": inputs} | dict(zip((axis for axis in numbers[0] if axis not in "NC"), image, strict=True))
    rhs = {"O": outputs, "I": inputs} | dict(zip((axis for axis in numbers[1] if axis not in "OI"), patch, strict=True))
    x, w = (
        random.standard_normal([sizes[axis] for axis in order]).astype(np.float32)
        for order, sizes in zip(numbers, (lhs, rhs), strict=False)
    )

    def embed(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, patch, "VALID", dimension_numbers=numbers)

    return embed, x, w


def convolutions(function: Any, *inputs: Any) -> int:
    """Convolutions that the passes leave."""
    module = parse_text(text_of(function, *inputs))
    run_passes(module, pipelines.pass_names(pipelines.DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast="none")))
    ops = [op for computation in module.computations() for op in ops_of(computation.block)]
    return sum(isinstance(op, hlo.ConvolutionOp) for op in ops)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_embedding_and_its_gradients(case: Any, random: np.random.Generator) -> None:
    embed, x, w = arrays(random, case)

    def gradients(x: Any, w: Any, g: Any) -> Any:
        made, back = jax.vjp(embed, x, w)
        return made, back(g)

    g = random.standard_normal(jax.eval_shape(embed, x, w).shape).astype(np.float32)
    assert convolutions(gradients, x, w, g) == 0
    check_function(gradients, x, w, g)


@pytest.mark.parametrize("transposed", [False, True])
def test_upsampling(transposed: bool, random: np.random.Generator) -> None:
    x, w = (random.standard_normal(dims).astype(np.float32) for dims in ((2, 5, 7, 12), (4, 4, 12, 3)))

    def up(x: Any, w: Any) -> Any:
        w = w.swapaxes(2, 3) if transposed else w
        return lax.conv_transpose(x, w, (4, 4), "VALID", transpose_kernel=transposed)

    assert convolutions(up, x, w) == 0
    check_function(up, x, w)


def test_windows_that_overlap_or_leave_gaps(random: np.random.Generator) -> None:
    x, w = (random.standard_normal(dims).astype(np.float32) for dims in ((2, 26, 26, 12), (8, 8, 12, 20)))
    for strides, padding in (((8, 7), "VALID"), ((9, 9), "VALID"), ((8, 8), "SAME")):

        def function(x: Any, w: Any, strides: Any = strides, padding: Any = padding) -> Any:
            return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))

        assert convolutions(function, x, w) == 1
        check_function(function, x, w)


@pytest.mark.parametrize("steps", [(1, 1), (2, 3)])
@pytest.mark.parametrize(("order", "left"), [("NHWC", 0), ("NCHW", 1)])
def test_convolutions_of_1_x_1(order: str, left: int, steps: tuple[int, int], random: np.random.Generator) -> None:
    """They are contractions where features are innermost."""
    image = (2, 9, 8, 12) if order == "NHWC" else (2, 12, 9, 8)
    x, w = (random.standard_normal(dims).astype(np.float32) for dims in (image, (1, 1, 12, 20)))

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, steps, "VALID", dimension_numbers=(order, "HWIO", order))

    assert convolutions(function, x, w) == left
    check_function(function, x, w)


@pytest.mark.parametrize("batch", [2, 9])
def test_gradients_of_1_x_1_kernels_of_large_images_stay_convolutions(batch: int, random: np.random.Generator) -> None:
    x, w = (random.standard_normal(dims).astype(np.float32) for dims in ((batch, 17, 16, 12), (1, 1, 12, 20)))

    def gradient(x: Any, w: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        loss = lambda w: (lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=numbers) ** 2).sum()  # noqa: E731
        return jax.grad(loss)(w)

    assert convolutions(gradient, x, w) == 1
    check_function(gradient, x, w)
