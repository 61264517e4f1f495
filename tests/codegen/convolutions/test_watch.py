"""16-bit convolutions as the JAX backend runs them: an infinity or NaN reaches no sum that it is no part of."""

import itertools
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from dilated_inputs import holes_left_out
from generated import TRN1, assert_close, compile_text, text_of
from jax import lax

from neuronx_cc.codegen.context import Transposes
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.runtime.clock_regions import simulate

FORMS = {
    "rows": (("NCHW", "HWIO", "NCHW"), (1, 8, 1, 511), (1, 3, 8, 64), 1),
    "features first": (("NCHW", "OIHW", "NCHW"), (2, 24, 9, 10), (40, 24, 3, 3), 1),
    "features last": (("NHWC", "HWIO", "NHWC"), (2, 9, 10, 24), (3, 3, 24, 40), 1),
    "many features": (("NHWC", "OIHW", "NHWC"), (1, 5, 6, 130), (140, 130, 3, 3), 1),
    "groups": (("NHWC", "HWIO", "NHWC"), (2, 9, 10, 32), (3, 3, 8, 32), 4),
    "depthwise": (("NHWC", "HWIO", "NHWC"), (2, 9, 10, 32), (3, 3, 1, 32), 32),
    "few features": (("NHWC", "HWIO", "NHWC"), (2, 16, 16, 3), (7, 7, 3, 16), 1),
}
WAYS = ("forward", "image", "kernel")


def program(form: Any, way: str, dtype: Any) -> tuple[Any, list[Any]]:
    """A function of two arrays, whole numbers."""
    numbers, x, w, groups = form

    def forward(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=numbers, feature_group_count=groups)

    y = jax.eval_shape(forward, jax.ShapeDtypeStruct(x, dtype), jax.ShapeDtypeStruct(w, dtype)).shape
    generator = np.random.default_rng(0)
    image, kernel, given = (generator.integers(-2, 3, dims).astype(dtype) for dims in (x, w, y))
    if way == "forward":
        return forward, [image, kernel]
    at = ("image", "kernel").index(way)
    held = [np.zeros(x, dtype), np.zeros(w, dtype)]

    def gradient(other: Any, y: Any) -> Any:
        return jax.vjp(forward, *(other if number != at else held[at] for number in (0, 1)))[1](y)[at]

    return gradient, [(kernel, image)[at], given]


@pytest.mark.parametrize(("name", "way"), [*itertools.product(FORMS, WAYS)])
def test_infinities_do_not_spread(name: str, way: str) -> None:
    for dtype, spoiled in itertools.product((ml_dtypes.bfloat16, np.float16), (0, 1)):
        function, arrays = program(FORMS[name], way, dtype)
        text = text_of(function, *arrays)
        compiled = compile_text(text, transposes=Transposes.WATCHED)
        assert not np.isnan([each[0] for each in compiled.run(arrays)[1:]]).any()
        arrays[spoiled] = arrays[spoiled].copy()
        arrays[spoiled].flat[arrays[spoiled].size // 2 + 3] = np.inf
        # jaxlib's CPU client multiplies groups of images with zeros
        (found, *watch), (wanted,) = compiled.run(arrays), evaluate(parse_text(text), arrays)
        if watch and np.isnan(watch[0]).any():
            (found,) = compile_text(text, transposes=Transposes.BITS).run(arrays)
        wide = [np.asarray(each).astype(np.float32) for each in (found, wanted)]
        np.testing.assert_array_equal(*(np.isfinite(each) for each in wide))
        where = np.isfinite(wide[1])
        np.testing.assert_allclose(wide[0][where], wide[1][where], rtol=1e-2)


@pytest.mark.parametrize("way", WAYS)
def test_watching_takes_little_time(way: str) -> None:
    numbers, dims, kernel = ("NHWC", "HWIO", "NHWC"), (4, 28, 28, 128), (3, 3, 128, 128)
    function, arrays = program((numbers, dims, kernel, 1), way, ml_dtypes.bfloat16)
    text = text_of(function, *arrays)
    times = [
        simulate(compile_text(text, transposes=each).program, TRN1).total
        for each in (Transposes.VALUES, Transposes.WATCHED)
    ]
    assert times[1] < 1.1 * times[0]


@pytest.mark.parametrize("what", [np.nan, np.inf])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("dilation", [(2, 2), (3, 1), (2, 3)])
@pytest.mark.parametrize(("inputs", "outputs", "groups"), [(64, 5, 1), (3, 64, 1), (32, 32, 8), (32, 32, 32)])
def test_kernels_that_are_not_finite_beside_dilated_inputs(
    inputs: int, outputs: int, groups: int, dilation: tuple[int, int], strides: tuple[int, int], what: float
) -> None:
    """Zeros between elements are not multiplied, those around them are, however outputs are dealt out."""
    generator = np.random.default_rng(0)
    arrays = [
        generator.standard_normal((1, inputs, 9, 13)),
        generator.standard_normal((outputs, inputs // groups, 3, 4)),
    ]
    arrays = [array.astype(np.float32) for array in arrays]
    arrays[1][outputs // 2, 0, 1, 3] = what

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, strides, [(2, 1), (1, 3)], lhs_dilation=dilation, feature_group_count=groups
        )

    text = text_of(function, *arrays)
    (found, *_) = compile_text(text, transposes=Transposes.WATCHED).run(arrays)
    with holes_left_out(), np.errstate(invalid="ignore"):
        (wanted,) = evaluate(parse_text(text), arrays)
    assert_close(found, wanted, 3e-5)
