"""Random small modules: exact results, no races."""

import zlib

import numpy as np
import pytest
from generated import check_text
from hypothesis import given, settings
from mixed_graphs import mixed_modules
from whole_number_graphs import whole_number_modules

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo


def check(text: str) -> None:
    random = np.random.default_rng(zlib.crc32(text.encode()))
    shapes = [hlo.shape_of(argument) for argument in parse_text(text).entry.block.args]
    inputs = [random.integers(-3, 4, shape.dims).astype(shape.numpy_dtype) for shape in shapes]
    check_text(text, *inputs, relative=0.0)


@settings(max_examples=40)
@given(text=whole_number_modules())
def test_small_modules(text: str) -> None:
    check(text)


@pytest.mark.slow
@settings(max_examples=400)
@given(text=whole_number_modules())
def test_many_small_modules(text: str) -> None:
    check(text)


@settings(max_examples=15)
@given(text=mixed_modules())
def test_small_modules_of_all_kinds(text: str) -> None:
    check(text)


@pytest.mark.slow
@settings(max_examples=150)
@given(text=mixed_modules())
def test_many_small_modules_of_all_kinds(text: str) -> None:
    check(text)
