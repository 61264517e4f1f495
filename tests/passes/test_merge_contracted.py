"""Long contractions along several dims get one contracted dim."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from generated import assert_close, check_function, compile_text, text_of
from jax import lax

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.passes import merge_contracted
from neuronx_cc.passes.manager import PassContext, PassOptions


def contracted(function: Any, *operands: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Contracted dims of the module's dot after the pass."""
    module = parse_text(text_of(function, *operands))
    merge_contracted.run(module, PassContext(PassOptions()))
    (dot,) = [op for op in module.computation("main.1").block.ops if isinstance(op, hlo.DotOp)]
    return dot.dims.data.lhs_contracting, dot.dims.data.rhs_contracting


def test_only_long_ones_in_different_orders() -> None:
    def crossed(a: Any, b: Any) -> Any:
        return lax.dot_general(a, b, (((1, 2), (1, 0)), ((), ())))

    def aligned(a: Any, b: Any) -> Any:
        return lax.dot_general(a, b, (((1, 2), (0, 1)), ((), ())))

    a = np.zeros((3, 160, 128), np.float32)
    assert contracted(crossed, a, np.zeros((128, 160, 5), np.float32)) == ((1,), (1,))
    assert contracted(aligned, a, np.zeros((160, 128, 5), np.float32)) == ((1, 2), (0, 1))
    short = np.zeros((3, 4, 128), np.float32), np.zeros((128, 4, 5), np.float32)
    assert contracted(crossed, *short) == ((1, 2), (1, 0))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_values(dtype: Any) -> None:
    """More elements than a partition has room for, with a batch dim between them."""
    random = np.random.default_rng(0)
    a = random.standard_normal((3, 160, 2, 128), np.float32).astype(dtype)
    b = random.standard_normal((128, 5, 160, 2), np.float32).astype(dtype)

    def contraction(a: Any, b: Any) -> Any:
        return lax.dot_general(a, b, (((1, 3), (2, 0)), ((2,), (3,))))

    check_function(contraction, a, b, relative=1e-4)
    check_function(lambda a, b: contraction(a, b.astype(np.float32)), a.astype(np.float32), b, relative=1e-4)
    a, b = a.astype(np.float32), b.astype(np.float32)
    (result,) = compile_text(text_of(contraction, a, b), auto_cast="matmult").run([a, b])
    assert_close(result, np.einsum("iabc,cjab->bij", a, b), relative=3e-2)
