"""Which contractions are left to TensorE: rows of large matrices, and of an attention both or none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, text_of
from jax import lax

import neuronx_cc
from neuronx_cc.hlo_import import load_module
from neuronx_cc.hlo_import.parser import parse_text
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


WINDOWS = [
    (64, 4, 16, 32), (256, 2, 36, 16), (256, 4, 9, 32), (100, 8, 25, 32), (128, 1, 25, 16), (32, 16, 20, 24),
    (1000, 1, 12, 12), (16, 8, 30, 8), (50, 2, 48, 8), (3, 5, 7, 9),
]  # fmt: skip
"""Windows, heads, rows, depth."""


def window_attention(windows: int, heads: int, rows: int, depth: int):
    def attention(qkv, bias):
        parts = jnp.split(qkv, 3, -1)
        q, k, v = (part.reshape(windows, rows, heads, depth).transpose(0, 2, 1, 3) for part in parts)
        scores = jnp.einsum("whqd,whkd->whqk", q, k) * depth**-0.5 + bias
        made = jnp.einsum("whqk,whkd->wqhd", jax.nn.softmax(scores, -1), v)
        return made.reshape(windows, rows, heads * depth)

    return attention, [(windows, rows, 3 * heads * depth), (heads, rows, rows)]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("sizes", WINDOWS, ids=str)
def test_both_contractions_of_an_attention_or_none(sizes: tuple[int, ...], dtype) -> None:
    """One of them on Vector leaves no kernel for the whole: 8 heads of 100 windows took four times as long."""
    function, dims = window_attention(*sizes)
    inputs = [np.asarray(np.random.default_rng(3).standard_normal(each), dtype) for each in dims]
    check_function(function, *inputs)
    module = parse_text(text_of(function, *inputs))
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast="none")))
    assert sum(isinstance(op, hlo.DotOp) for op in ops_of(module.entry.block)) in (0, 2)
