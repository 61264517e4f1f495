"""Which products of one vector with the rows of a large matrix are left to TensorE."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import neuronx_cc
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names

MATRIX = np.random.default_rng(0).standard_normal((1024, 1031), np.float32)
CODES, SCALES = neuronx_cc.quantize(MATRIX, contracted=(1,))
SHORTS = CODES.astype(np.int16)


def rows(x, matrix):
    return lax.dot_general(x, matrix, (((1,), (1,)), ((), ())))


def of_codes(x, codes, scales):
    return rows(x, codes.astype(jnp.float32) * scales[:, None])


@pytest.mark.parametrize(
    ("model", "weights", "mode", "dots"),
    [
        (rows, (MATRIX,), "none", 0),
        (rows, (MATRIX,), "matmult", 0),
        (lambda x: rows(x, MATRIX), (), "none", 1),
        (lambda x: rows(x, MATRIX), (), "matmult", 1),
        (of_codes, (CODES, SCALES), "matmult", 1),
        (of_codes, (CODES, SCALES), "none", 1),
        (of_codes, (SHORTS, SCALES), "none", 0),
    ],
)
def test_constants_and_few_bits_are_for_tensor(model, weights, mode: str, dots: int) -> None:
    lowered = jax.jit(model).lower(np.ones((1, 1031), np.float32), *weights)
    module = load_module(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast=mode)))
    assert sum(isinstance(op, hlo.DotOp) for op in ops_of(module.entry.block)) == dots
