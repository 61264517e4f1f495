"""Packs of groups whose kernels are transposed: right whatever a pack holds; GpSimd does nothing for each position."""

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import jax
import numpy as np
import pytest
from generated import check_function
from jax import lax

import neuronx_cc
from neuronx_cc.ir.isa.program import Branch, Instr, Stream


def grouped(groups: int) -> Callable[[Any, Any], Any]:
    def function(x: Any, w: Any) -> Any:
        dims = ("NCHW", "OIHW", "NCHW")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims, feature_group_count=groups)

    return function


def arguments(features: int, outputs: int, groups: int, taps: int, size: int) -> list[Any]:
    random = np.random.default_rng(0)
    shapes = [(1, features, size, size), (outputs, features // groups, taps, taps)]
    return [random.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("groups", [2, 3, 16])
@pytest.mark.parametrize("inputs", [2, 3, 8, 24])
@pytest.mark.parametrize("outputs", [1, 2, 16, 24])
@pytest.mark.parametrize("taps", [1, 3])
def test_values(groups: int, inputs: int, outputs: int, taps: int) -> None:
    given = arguments(groups * inputs, groups * outputs, groups, taps, 6)
    check_function(grouped(groups), *given, relative=2e-5)


@pytest.mark.parametrize("special", [np.inf, np.nan])
@pytest.mark.parametrize("operand", [0, 1])
def test_what_is_not_finite_stays_in_its_group(special: float, operand: int) -> None:
    given = arguments(48, 32, 8, 3, 5)
    given[operand].flat[7] = special
    check_function(grouped(8), *given, relative=2e-5)


@pytest.mark.parametrize("taps", [3, 5, 7])
def test_gpsimd_does_nothing_for_a_position(taps: int) -> None:
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arguments(128, 128, 8, taps, 8)]
    executable = neuronx_cc.compile(jax.jit(grouped(8)).lower(*types), auto_cast="matmult")
    once = takewhile(lambda record: not isinstance(record, Branch), executable.program.records)
    records = [record for record in once if isinstance(record, Instr)]
    assert sum(record.op == "affine_select" and record.stream is Stream.GPSIMD for record in records) <= 4
