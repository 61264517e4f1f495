"""Passes keep the meaning of random small modules: bit by bit, and in the eyes of XLA."""

import numpy as np
import pytest
from hypothesis import given, settings
from random_graphs import modules
from special_inputs import assert_same_bits, special_inputs
from xla_oracle import run_text

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names

FORTY = settings(max_examples=40)

EXACT_PASSES = ("canonicalize", "fold_constants", "fold_large_constants", "cse", "dce", "decompose", "clean_casts")


@pytest.mark.parametrize("name", EXACT_PASSES)
@FORTY
@given(text=modules())
def test_pass_keeps_every_bit(name, text):
    module = parse_text(text)
    inputs = special_inputs(module)
    before = evaluate(module, inputs)
    run_passes(module, [name], PassContext(), verify_each=True)
    assert_same_bits(before, evaluate(module, inputs))


@FORTY
@given(text=modules())
def test_canonicalize_settles(text):
    """A second run finds nothing to do."""
    module = parse_text(text)
    run_passes(module, ["canonicalize", "dce"], PassContext())
    once = print_module(module)
    run_passes(module, ["canonicalize", "dce"], PassContext())
    assert print_module(module) == once


@FORTY
@given(text=modules(dots=True))
def test_pipeline_means_the_same_to_xla(text):
    """The printed result of the pipeline without casts, run by XLA, gives what XLA makes of the input."""
    module = parse_text(text)
    inputs = [
        np.asarray(np.random.default_rng(3).integers(-4, 5, arg.type.data.dims)).astype(arg.type.data.numpy_dtype)
        for arg in module.entry.block.args
    ]
    options = PassOptions(auto_cast="none", mixed_precision_accumulation=False)
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(options), verify_each=True)
    for want, got in zip(run_text(text, inputs), run_text(print_module(module), inputs), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        tolerance = {"f": 1e-5, "V": 2e-2}.get(want.dtype.kind, 0)
        wide = np.float64 if want.dtype.kind in "fV" else want.dtype
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance)


@FORTY
@given(text=modules(dtypes=("s32", "f32")))
def test_narrowing_without_warnings_changes_no_value(text):
    """64-bit programs whose arithmetic is proved to fit give the same on 32 bits."""
    module = parse_text(text.replace("s32", "s64"))
    random = np.random.default_rng(5)
    inputs = []
    for argument in module.entry.block.args:
        shape = argument.type.data
        wide = random.integers(-(2**31), 2**31, shape.dims)
        inputs.append(np.asarray(wide if shape.dtype == "s64" else wide / 2**29).astype(shape.numpy_dtype))
    before = evaluate(module, inputs)
    context = PassContext()
    run_passes(module, ["split_int64"], context, verify_each=True)
    if all("inputs are truncated" in warning.message for warning in context.warnings):
        assert_same_bits(before, evaluate(module, inputs))
