"""Batches of products that would leave TensorE's rows idle: with one number, with a short vector, of two vectors."""

from typing import Any

import numpy as np
import pytest
from generated import check_function
from jax import lax

from neuronx_cc.ir.isa.program import Instr, Stream

CASES = [
    ((700,), (700, 64), ((), ()), ((0,), (0,))),
    ((700, 64), (700,), ((), ()), ((0,), (0,))),
    ((700,), (700,), ((), ()), ((0,), (0,))),
    ((700, 33), (700, 33), ((1,), (1,)), ((0,), (0,))),
    ((7, 50, 9), (7, 50, 5, 9), ((2,), (3,)), ((0, 1), (0, 1))),
    ((7, 50, 3, 9), (7, 50), ((), ()), ((0, 1), (0, 1))),
]


@pytest.mark.parametrize(("left", "right", "contracted", "batch"), CASES, ids=str)
def test_batches(left: Any, right: Any, contracted: Any, batch: Any, random: np.random.Generator) -> None:
    x, y = (random.standard_normal(dims).astype(np.float32) for dims in (left, right))
    compiled = check_function(lambda x, y: lax.dot_general(x, y, (contracted, batch)), x, y)
    streams = {record.stream for record in compiled.program.records if isinstance(record, Instr)}
    assert Stream.TENSOR not in streams
