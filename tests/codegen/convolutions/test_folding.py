"""Outputs at neighbouring positions that are features of one sum: their taps, values, and what is not finite."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import assert_close, check_function, compile_text, text_of
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import neuronx_cc
from neuronx_cc.codegen.choose import Planner
from neuronx_cc.codegen.convolutions.axis import Axis, Taps, axis_of
from neuronx_cc.codegen.convolutions.candidates import candidates
from neuronx_cc.codegen.convolutions.folding import Folded, folds_of
from neuronx_cc.codegen.convolutions.problem import Problem
from neuronx_cc.codegen.convolutions.schedule import Schedule
from neuronx_cc.ir.hlo import WindowDim

QUARTER = Path(__file__).parents[2] / "machines" / "quarter.toml"
LAYOUTS = (("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC"))


@st.composite
def axes(draw: st.DrawFn) -> Axis:
    """Of any window that meets the array somewhere."""
    size, taps = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    stride, lhs, rhs = (draw(st.integers(1, 3)) for _ in range(3))
    low, high = (draw(st.integers(0, 4)) for _ in range(2))
    wide = (size - 1) * lhs + 1 + low + high - ((taps - 1) * rhs + 1)
    window = WindowDim(
        taps,
        stride=stride,
        pad_low=low,
        pad_high=high,
        lhs_dilation=lhs,
        rhs_dilation=rhs,
        reversal=draw(st.booleans()),
    )
    return axis_of(size, max(1, wide // stride + 1), window)


def met(taps: Taps, start: int) -> set[tuple[int, int]]:
    """(kernel index, input position) of the taps of one output."""
    return {(taps.first + j * taps.step, start + taps.offset + j * taps.stride) for j in range(taps.count)}


@given(axes(), st.integers(2, 40))
def test_every_output_meets_its_taps(axis: Axis, most: int) -> None:
    for count in folds_of(axis, most):
        assert count <= most
        assert count % axis.phases == 0
        assert axis.phases <= axis.out
        folded = Folded(axis, count)
        assert folded.axis.rows * count >= axis.out > (folded.axis.rows - 1) * count
        for output in range(axis.out):
            position, number = divmod(output, count)
            row, phase = divmod(output, axis.phases)
            first, step, places = folded.places(number)
            taps = folded.outputs[number]
            start = position * folded.axis.step + folded.low
            found = {(taps.first + j * taps.step, start + (first + j * step) * folded.unit) for j in range(places)}
            assert all(0 <= first + j * step < folded.kernel for j in range(places))
            assert found == met(axis.taps[phase], row * axis.step)


def folding(
    prefer: Callable[[Problem, Schedule], bool], seen: list[Schedule]
) -> Callable[[Planner, Any], Schedule | None]:
    """A ``choose`` that takes a schedule with a fold, a preferred one if there is any."""
    choose = Planner.choose

    def chosen(planner: Planner, problem: Any) -> Any:
        if not isinstance(problem, Problem):
            return choose(planner, problem)
        offered = [each for each in candidates(problem, planner.timing) if each.fold is not None]
        offered.sort(key=lambda each: not prefer(problem, each))
        seen.extend(offered[:1])
        return offered[0] if offered else choose(planner, problem)

    return chosen


CASES = {
    # batch, height, width, inputs, outputs, kernel, stride, dilation, groups
    "one output": (1, 13, 9, 5, 1, 3, 1, 1, 1),
    "prime sizes": (2, 19, 11, 8, 3, 3, 1, 1, 1),
    "few copies": (2, 12, 23, 70, 2, 5, 1, 1, 1),
    "chunks and strides": (1, 14, 14, 130, 3, 3, 2, 1, 1),
    "dilation": (1, 17, 10, 4, 4, 3, 1, 2, 1),
    "depthwise": (2, 15, 8, 12, 12, 3, 1, 1, 12),
    "groups": (1, 16, 8, 12, 24, 3, 2, 1, 4),
}


@pytest.mark.parametrize("sizes", CASES.values(), ids=CASES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("what", ["forward", "input"])
def test_values(sizes: tuple[int, ...], layout: tuple[str, str, str], what: str, random: np.random.Generator) -> None:
    batch, height, width, inputs, outputs, size, stride, dilation, groups = sizes
    dtype = random.choice([np.float32, ml_dtypes.bfloat16])
    if what == "input":
        inputs, outputs = outputs, inputs
    image = {"N": batch, "C": inputs, "H": height, "W": width}
    kernel = {"O": outputs, "I": inputs // groups, "H": size, "W": size}
    x = random.standard_normal([image[c] for c in layout[0]]).astype(dtype)
    w = random.standard_normal([kernel[c] for c in layout[1]]).astype(dtype)

    def forward(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x,
            w,
            (stride,) * 2,
            "SAME",
            rhs_dilation=(dilation,) * 2,
            dimension_numbers=layout,
            feature_group_count=groups,
        )

    function, inputs_ = forward, (x, w)
    if what == "input":
        y = random.standard_normal(jax.eval_shape(forward, x, w).shape).astype(dtype)
        function = lambda y, w: jax.linear_transpose(lambda x: forward(x, w), x)(y)[0]  # noqa: E731
        inputs_ = (y, w)
    seen: list[Schedule] = []
    several = bool(random.integers(2))
    with mock.patch.object(Planner, "choose", folding(lambda _, each: (each.copies is not None) == several, seen)):
        check_function(function, *inputs_, relative=1e-5 if dtype is np.float32 else 2e-2)
    if layout[2] == "NCHW":
        assert seen, "outputs lie in rows"


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("height", [1, 2, 3])
def test_few_rows_of_outputs(height: int, dilation: int) -> None:
    """Fewer than a dilated input has phases, too: those without outputs are no features."""
    random = np.random.default_rng(height)
    x = random.integers(-3, 4, (1, 4, height, 20)).astype(np.float32)
    w = random.integers(-3, 4, (1, 4, 3, 4)).astype(np.float32)
    for stride, pads in product((1, 2, 3), ((1, 1), (2, 3))):

        def function(x: Any, w: Any, stride: int = stride, pads: tuple[int, int] = pads) -> Any:
            return lax.conv_general_dilated(x, w, (stride, 1), (pads, (1, 2)), (dilation, 1))

        for axis in (0, 1):
            with mock.patch.object(Planner, "choose", folding(lambda _, each, axis=axis: each.fold.axis == axis, [])):
                check_function(function, x, w, relative=0.0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["NCHW", "NHWC"])
def test_an_infinity_stays_in_its_windows(layout: tuple[str, str, str], random: np.random.Generator) -> None:
    """Zeros between the outputs of a fold meet it, too: all is computed once more."""
    image, kernel = {"N": 1, "C": 3, "H": 12, "W": 12}, {"O": 2, "I": 3, "H": 3, "W": 3}
    x, w = (
        random.standard_normal([sizes[c] for c in names]).astype(np.float32)
        for sizes, names in ((image, layout[0]), (kernel, layout[1]))
    )
    np.moveaxis(x, layout[0].index("C"), 0)[1, 0, 5, 6] = np.inf

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout)

    seen: list[Schedule] = []
    with mock.patch.object(Planner, "choose", folding(lambda _, each: True, seen)):
        (result,) = compile_text(text_of(function, x, w)).run([x, w])
    assert seen[0].fold is not None
    assert_close(result, np.asarray(jax.jit(function)(x, w)))


def test_few_outputs_are_folded() -> None:
    """A decoder's last layer: the schedule that is chosen, not only one that is possible."""
    x, w = np.zeros((1, 64, 112, 112), np.float32), np.zeros((3, 64, 3, 3), np.float32)
    seen: list[Any] = []
    choose = Planner.choose

    def noted(planner: Planner, problem: Any) -> Any:
        seen.append(choose(planner, problem))
        return seen[-1]

    with mock.patch.object(Planner, "choose", noted):
        compile_text(text_of(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME"), x, w))
    assert seen[0].fold.count > 8


def test_the_checks_of_sums_leave_one_piece_for_the_tiles(random: np.random.Generator) -> None:
    """In little memory: what is allocated ahead of the tiles does not cut the room that these were planned for."""
    x, w = random.standard_normal((2, 64, 23, 8), np.float32), random.standard_normal((5, 5, 2, 8), np.float32)

    def function(x: Any) -> Any:
        kernel, layout = jnp.asarray(w), LAYOUTS[1]
        return lax.conv_general_dilated(
            x, kernel, (2, 2), "SAME", rhs_dilation=(2, 2), dimension_numbers=layout, feature_group_count=4
        )

    program = neuronx_cc.compile(text_of(function, x), auto_cast="none", machine=QUARTER)
    (result,) = program.run([x]).outputs
    assert_close(result, np.asarray(jax.jit(function)(x)))
