"""Contractions of widened operands take what there was before they were widened."""

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from after_passes import compiled
from generated import check_function
from jax import lax

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of

KINDS = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "s8": np.int8,
    "u8": np.uint8,
    "s16": np.int16,
    "f8e5m2": ml_dtypes.float8_e5m2,
}


def widened(x: Any, w: Any) -> Any:
    return x.astype(jnp.float32) @ w.astype(jnp.float32)


def drawn(kind: str, *dims: int) -> Any:
    values = np.random.default_rng(len(dims) + dims[0]).standard_normal(dims, np.float32)
    scaled = values * (20 if kind in ("s8", "u8", "s16") else 1)
    return scaled.clip(0 if kind == "u8" else -120, 120).astype(KINDS[kind])


@pytest.mark.parametrize(
    ("lhs", "rhs", "taken"),
    [
        ("bf16", "bf16", ["bf16", "bf16"]),
        ("bf16", "s8", ["bf16", "bf16"]),
        ("u8", "s8", ["bf16", "bf16"]),
        ("f16", "s8", ["f16", "f16"]),
        ("f8e5m2", "bf16", ["bf16", "bf16"]),
        ("f16", "bf16", ["f32", "f32"]),
        ("f32", "bf16", ["f32", "f32"]),
        ("s16", "bf16", ["f32", "f32"]),
    ],
)
def test_types(lhs: str, rhs: str, taken: list[str]) -> None:
    module, _, _ = compiled(widened, drawn(lhs, 70, 260), drawn(rhs, 260, 90))
    (dot,) = [op for op in ops_of(module.entry.block) if isinstance(op, hlo.DotOp)]
    assert [hlo.shape_of(operand).dtype for operand in dot.operands] == taken
    check_function(widened, drawn(lhs, 70, 260), drawn(rhs, 260, 90), relative=1e-6)


def test_views_and_scales_after_casts() -> None:
    def scores(q: Any, k: Any) -> Any:
        q, k = q.astype(jnp.float32), k.astype(jnp.float32)
        return jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.25

    check_function(scores, drawn("bf16", 2, 40, 3, 16), drawn("bf16", 2, 130, 3, 16), relative=1e-6)


def test_convolutions() -> None:
    def convolved(x: Any, w: Any) -> Any:
        return lax.conv(x.astype(jnp.float32), w.astype(jnp.float32), (1, 1), "SAME")

    module, _, _ = compiled(convolved, drawn("bf16", 1, 8, 12, 12), drawn("bf16", 16, 8, 3, 3))
    (op,) = [op for op in ops_of(module.entry.block) if isinstance(op, hlo.ConvolutionOp)]
    assert {hlo.shape_of(operand).dtype for operand in op.operands} == {"bf16"}
    check_function(convolved, drawn("bf16", 1, 8, 12, 12), drawn("bf16", 16, 8, 3, 3), relative=1e-6)
