"""Comparisons that are wanted as numbers: written as such, or made by the arithmetic that reads them."""

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import Compiled, check_function

from neuronx_cc.ir.isa.program import Instr, Stream

COMPARE = [jnp.less, jnp.less_equal, jnp.greater, jnp.greater_equal, jnp.equal, jnp.not_equal]
APPLY = [jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, jnp.minimum]


def on_vector(compiled: Compiled) -> list[Instr]:
    made = (record for record in compiled.program.records if isinstance(record, Instr))
    return [instr for instr in made if instr.stream is Stream.VECTOR]


def arrays(random: np.random.Generator, rows: int, columns: int, dtype: str = "float32") -> list[Any]:
    """Two arrays of few different numbers, one number a row, and a row."""
    dims = [(rows, columns), (rows, columns), (rows, 1), (columns,)]
    return [np.asarray(jnp.asarray(random.integers(-3, 4, each)).astype(dtype)) for each in dims]


@pytest.mark.parametrize(("compare", "apply"), list(itertools.product(COMPARE, APPLY)))
def test_with_one_value_a_partition(
    compare: Callable[..., Any], apply: Callable[..., Any], random: np.random.Generator
) -> None:
    """Both in one instruction, in either order."""
    x, y, each, _ = arrays(random, 128, 200)
    for swapped in (False, True):

        def function(x: Any, y: Any, each: Any, swapped: bool = swapped) -> Any:
            ones = jnp.broadcast_to(compare(x, each), x.shape).astype(jnp.float32)
            return apply(y, ones) if swapped else apply(ones, y)

        compiled = check_function(function, x, y, each)
        assert [len(instr.alu) for instr in on_vector(compiled)] == [2]


@pytest.mark.parametrize("compare", COMPARE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_with_other_operands(compare: Callable[..., Any], dtype: str, random: np.random.Generator) -> None:
    """Of arrays, rows and constants, where the numbers are read twice, stored, or of another type."""
    x, y, each, row = arrays(random, 130, 77, dtype)

    def function(x: Any, y: Any, each: Any, row: Any) -> Any:
        one, two, three, four = (
            jnp.broadcast_to(compare(x, other), x.shape).astype(jnp.float32)
            for other in (y, row, jnp.asarray(1, x.dtype), each)
        )
        wide = y.astype(jnp.float32)
        sums = jnp.sum(four * wide, 1), jnp.max(x, 1, keepdims=True)
        return one * wide, two + wide, three - wide, wide - four, one, two * two, compare(sums[1], each) + sums[0]

    check_function(function, x, y, each, row)


def test_numbers_need_no_cast(random: np.random.Generator) -> None:
    x, y, _, _ = arrays(random, 128, 300)
    compiled = check_function(lambda x, y: (x < y).astype(jnp.float32), x, y)
    assert len(on_vector(compiled)) == 1
