"""Masks beside wider results: several neighbours on a partition are one run, however short their elements make it."""

import jax
import numpy as np
import pytest
from generated import TRN1, compile_text, text_of
from jax import lax

from neuronx_cc.codegen.emission.memory import Alloc
from neuronx_cc.codegen.emission.views import linear
from neuronx_cc.codegen.maps.plan import lies_across
from neuronx_cc.codegen.maps.spread import Partitions
from neuronx_cc.ir.isa.program import Space
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.runtime.clock_regions import simulate


def test_one_run_of_neighbours_does_not_lie_across():
    view = linear(Alloc(Space.HBM, 0, 0), 0, "u8", (144, 25088))
    assert lies_across(view, Partitions(1, 128, 1), Timing(TRN1))
    assert not lies_across(view, Partitions(1, 128, 196), Timing(TRN1))


def block(x, first, second, scale):
    """An image of 24 features widened, normalised, clipped and narrowed, batch and features first."""
    dims = ("CNHW", "OIHW", "CNHW")
    wide = lax.conv_general_dilated(x, first, (1, 1), "SAME", dimension_numbers=dims)
    wide = (wide - wide.mean((1, 2, 3), keepdims=True)) * lax.rsqrt(wide.var((1, 2, 3), keepdims=True) + 1e-5)
    return lax.conv_general_dilated(jax.nn.relu6(wide * scale), second, (1, 1), "SAME", dimension_numbers=dims)


@pytest.mark.parametrize("features", [96, 144])
def test_a_gradient_through_a_clipped_image(features):
    arrays = (24, 8, 56, 56), (features, 24, 1, 1), (24, features, 1, 1), (features, 1, 1, 1)
    given = [np.zeros(dims, np.float32) for dims in arrays]

    def gradient(*given):
        return jax.grad(lambda *given: (block(*given) ** 2).sum(), (0, 1, 2, 3))(*given)

    forward, both = (
        simulate(compile_text(text_of(function, *given)).program, TRN1).total for function in (block, gradient)
    )
    assert both <= 6 * forward
