"""Scales and zero points of weights are taken after contractions, and no value changes but by rounding."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import assert_close, compile_text, text_of
from jax import lax

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.passes import canonicalize, dequantize
from neuronx_cc.passes.manager import PassContext, PassOptions

Function = Callable[..., Any]


def plain(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ (w.astype(x.dtype) * s)


def divided(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ (w.astype(jnp.float32) / s)


def zero_point(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ ((w.astype(jnp.float32) - z) * s)


def integer_zero_point(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ ((w.astype(jnp.int32) - z.astype(jnp.int32)).astype(jnp.float32) * s)


def per_tensor(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ ((w.astype(jnp.float32) - z[0]) * s[0])


def turned(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ (w.T.astype(jnp.float32) * s[:, None]).T


def on_the_left(x: Any, w: Any, s: Any, z: Any) -> Any:
    return lax.dot_general(((w.astype(jnp.float32) - z) * s), x, (((0,), (1,)), ((), ())))


def batched(x: Any, w: Any, s: Any, z: Any) -> Any:
    weights = (jnp.stack([w, w[::-1]]).astype(jnp.float32) - z) * jnp.stack([s, 2 * s])[:, None]
    return jnp.einsum("bmk,bkn->bmn", jnp.stack([x, -x]), weights)


def of_16_bits(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x.astype(jnp.bfloat16) @ (w.astype(jnp.float32) * s).astype(jnp.bfloat16)


def minimum(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ (w.astype(jnp.float32) * s + z)


def reversed_zero_point(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ (s * (z - w.astype(jnp.float32)))


def scaled_twice(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ ((w.astype(jnp.float32) * s - z) * s[0] + 1)


def along_the_sum(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ (w.astype(jnp.float32) * jnp.arange(1.0, w.shape[0] + 1)[:, None])


def along_both(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ ((w.astype(jnp.float32) - z) * s / jnp.arange(1.0, w.shape[0] + 1)[:, None])


def reshaped(x: Any, w: Any, s: Any, z: Any) -> Any:
    scaled = (w.astype(jnp.float32).reshape(-1) * s.repeat(1)[0]).reshape(w.shape)
    return x @ ((scaled.T.reshape(w.shape[1], 1, -1) - z[:, None, None]) * s[:, None, None]).reshape(w.shape[1], -1).T


def of_heads(x: Any, w: Any, s: Any, z: Any) -> Any:
    heads = jnp.concatenate([w, w[:, ::-1]], axis=1).reshape(w.shape[0], 2, w.shape[1])
    weights = heads.astype(jnp.float32) * jnp.stack([s, 2 * s]) - jnp.stack([z, s])
    return jnp.einsum("mk,khd->mhd", x, weights)


def batched_along_the_sum(x: Any, w: Any, s: Any, z: Any) -> Any:
    scales = jnp.arange(1.0, 2 * w.shape[0] + 1).reshape(2, -1, 1)
    return jnp.einsum("bmk,bkn->bmn", jnp.stack([x, -x]), jnp.stack([w, w[::-1]]).astype(jnp.float32) * scales)


def in_groups(x: Any, w: Any, s: Any, z: Any) -> Any:
    """A scale and a zero point for each channel of ten neighbouring terms."""
    parts = next(part for part in (10, 5, 1) if w.shape[0] % part == 0)
    codes = w.astype(jnp.float32).reshape(-1, parts, w.shape[1])
    each = jnp.arange(1.0, len(codes) + 1)[:, None, None] ** jnp.sign(s - 1)
    return x @ ((codes - z * jnp.sqrt(each)) * each).reshape(w.shape)


def in_repeated_groups(x: Any, w: Any, s: Any, z: Any) -> Any:
    parts = next(part for part in (10, 5, 1) if w.shape[0] % part == 0)
    each = jnp.arange(1.0, w.shape[0] // parts + 1)[:, None] ** jnp.sign(s - 1)
    return x @ (w.astype(jnp.float32) * each.repeat(parts, axis=0))


def groups_on_the_left(x: Any, w: Any, s: Any, z: Any) -> Any:
    parts = next(part for part in (10, 5, 1) if w.shape[0] % part == 0)
    each = jnp.arange(1.0, w.shape[0] // parts + 1)[:, None] ** jnp.sign(s - 1)
    weights = (w.astype(jnp.float32) - z) * each.repeat(parts, axis=0)
    return lax.dot_general(weights, x, (((0,), (1,)), ((), ())))


def batched_groups(x: Any, w: Any, s: Any, z: Any) -> Any:
    parts = next(part for part in (10, 5, 1) if w.shape[0] % part == 0)
    each = jnp.arange(1.0, w.shape[0] // parts + 1)[:, None] ** jnp.sign(s - 1)
    codes = jnp.stack([w, w[::-1]]).astype(jnp.float32).reshape(2, -1, parts, w.shape[1])
    weights = (codes * jnp.stack([each, 2 * each])[:, :, None]).reshape(2, *w.shape)
    return jnp.einsum("bmk,bkn->mbn", jnp.stack([x, -x]), weights)


def in_blocks(x: Any, w: Any, s: Any, z: Any) -> Any:
    """A scale for each block of terms and channels, of weights with the channels first."""
    deep, wide = (next(part for part in (11, 10, 5, 1) if size % part == 0) for size in w.shape)
    count = w.shape[1] // wide, w.shape[0] // deep
    each = jnp.arange(1.0, count[0] * count[1] + 1).reshape(count) * s[0]
    return x @ (w.T.astype(jnp.float32) * each.repeat(wide, axis=0).repeat(deep, axis=1)).T


MOVED = (
    in_groups,
    groups_on_the_left,
    batched_groups,
    in_blocks,
    in_repeated_groups,
    minimum,
    reversed_zero_point,
    scaled_twice,
    along_the_sum,
    along_both,
    reshaped,
    of_heads,
    batched_along_the_sum,
    plain,
    divided,
    zero_point,
    integer_zero_point,
    per_tensor,
    turned,
    on_the_left,
    batched,
    of_16_bits,
)


def added_along_the_sum(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ (w.astype(jnp.float32) + jnp.arange(1.0, w.shape[0] + 1)[:, None])


def of_floats(x: Any, w: Any, s: Any, z: Any) -> Any:
    return x @ (x.T * x[:, 0])


def operands(dtype: Any, m: int = 2, k: int = 70, n: int = 33) -> tuple[Any, ...]:
    random = np.random.default_rng(m * k * n)
    x = random.standard_normal((m, k), np.float32)
    w = random.integers(0, 15, (k, n)).astype(dtype)
    return x, w, random.uniform(0.5, 2, n).astype(np.float32), random.integers(0, 15, n).astype(np.float32)


def products(function: Function, *inputs: Any) -> list[hlo.DotOp]:
    """The module's contractions after the pass."""
    module, context = parse_text(text_of(function, *inputs)), PassContext(PassOptions())
    for run in (canonicalize.run, dequantize.run):
        run(module, context)
    return [op for op in module.entry.block.ops if isinstance(op, hlo.DotOp)]


def takes_codes(dot: hlo.DotOp) -> bool:
    casts = [op for op in map(defining_op, dot.operands) if isinstance(op, hlo.ConvertOp)]
    return any(hlo.shape_of(cast.operand).dtype in dequantize.STORED for cast in casts)


@pytest.mark.parametrize("function", MOVED, ids=lambda function: function.__name__)
def test_contractions_take_codes(function: Function) -> None:
    """One row: contractions of more scale codes of groups as they come."""
    assert any(map(takes_codes, products(function, *operands(np.int8, m=1))))


@pytest.mark.parametrize("function", [added_along_the_sum, of_floats], ids=lambda function: function.__name__)
def test_what_stays(function: Function) -> None:
    assert not any(map(takes_codes, products(function, *operands(np.int8))))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, ml_dtypes.float8_e4m3, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("function", [*MOVED, added_along_the_sum], ids=lambda function: function.__name__)
def test_values(function: Function, dtype: Any) -> None:
    for sizes in ((2, 70, 33), (1, 131, 1), (130, 1, 5)):
        inputs = operands(dtype, *sizes)
        (result,) = compile_text(text_of(function, *inputs)).run(list(inputs))
        wide = [each.astype(np.float64) for each in inputs]
        want = np.asarray(function(*(jnp.asarray(each.astype(np.float32)) for each in wide)))
        assert_close(result, want, relative=2e-2 if function is of_16_bits else 2e-5)


def test_zero_points_cancel_in_the_type_of_the_contraction() -> None:
    """Activations that are rounded for the contraction are rounded for its correction too."""
    x, w, s, _ = operands(np.uint8, 4, 500, 20)
    w, z = (w + 120).astype(np.uint8), np.full(20, 127, np.float32)
    (result,) = compile_text(text_of(zero_point, x, w, s, z), auto_cast="matmult").run([x, w, s, z])
    rounded = x.astype(ml_dtypes.bfloat16).astype(np.float64)
    want = rounded @ ((w.astype(np.float64) - z) * s)
    assert_close(result, want.astype(np.float32), relative=1e-4)
