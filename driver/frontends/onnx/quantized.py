"""Quantisation: integers, 8-bit floats and narrower with scales and zero points.

Integers are added up exactly: products of 8-bit values in int32, requantised in float.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.onnx.elementwise import convert
from neuronx_cc.driver.frontends.onnx.linear import conv
from neuronx_cc.driver.frontends.onnx.shapes import normal
from neuronx_cc.driver.frontends.onnx.table import Value, op
from neuronx_cc.driver.frontends.onnx.types import dtype_of, is_integer, limits

Ints = Sequence[int]


def _spread(factor: Value, x: Value, axis: int, block: int) -> Value:
    """Scales or zero points in a shape that broadcasts to ``x``: one for all, one a slice of ``axis``, or by blocks."""
    if factor.ndim == 0 or (factor.size == 1 and not block):
        return factor.reshape(())
    axis = normal(axis, x.ndim)
    if block:
        return jnp.repeat(jnp.asarray(factor), block, axis)[tuple(slice(0, n) for n in x.shape)]
    return factor.reshape([-1 if i == axis else 1 for i in range(x.ndim)]) if factor.ndim == 1 else factor


def _quantised(x: Value, zero: Value, dtype: Any, saturate: bool) -> Value:
    """``x``, a float that was divided by its scale, as elements of ``dtype``."""
    if not is_integer(dtype):
        return convert(x if zero is None else x + zero.astype(x.dtype), dtype, saturate)
    least, most = limits(dtype)
    whole = jnp.round(x)
    whole = whole if zero is None else whole + zero.astype(x.dtype)
    wide = whole.astype(np.float32) if np.dtype(whole.dtype).itemsize < 4 else whole
    return jnp.clip(wide, least, most).astype(np.int32).astype(dtype)


@op("QuantizeLinear")
def quantize_linear(
    x: Value,
    y_scale: Value,
    y_zero_point: Value = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Value:
    target = dtype_of(output_dtype, "the result") if output_dtype else np.dtype(np.uint8)
    target = target if y_zero_point is None else np.dtype(y_zero_point.dtype)
    scale = _spread(y_scale, x, axis, block_size)
    zero = None if y_zero_point is None else _spread(y_zero_point, x, axis, block_size)
    computed = dtype_of(precision, "the quotient") if precision else np.dtype(y_scale.dtype)
    if computed.itemsize < 2:
        computed = np.dtype(np.float32)
    return _quantised(x.astype(computed) / scale.astype(computed), zero, target, bool(saturate))


@op("DequantizeLinear")
def dequantize_linear(
    x: Value,
    x_scale: Value,
    x_zero_point: Value = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Value:
    target = dtype_of(output_dtype, "the result") if output_dtype else np.dtype(x_scale.dtype)
    scale = _spread(x_scale, x, axis, block_size)
    wide = np.dtype(np.int32) if is_integer(x.dtype) else target
    codes = jnp.asarray(x)
    if isinstance(x, np.ndarray) and x.ndim == 2:
        # JAX's lowering folds casts of constants up to some size; products read weights in their 8 bits, convolutions
        # do not, and their kernels are better folded
        codes = lax.optimization_barrier(codes)  # type: ignore[no-untyped-call]
    whole = codes.astype(wide)
    if x_zero_point is not None:
        whole = whole - _spread(x_zero_point, x, axis, block_size).astype(wide)
    computed = np.dtype(np.float32) if np.dtype(scale.dtype).itemsize < 2 else np.dtype(scale.dtype)
    return (whole.astype(computed) * scale.astype(computed)).astype(target)


def _centred(x: Value, zero: Value, axis: int) -> Value:
    """``x`` less its zero point, in int32; a vector of zero points lies along ``axis``."""
    wide = jnp.asarray(x).astype(np.int32)
    if zero is None:
        return wide
    point = zero.astype(np.int32)
    if point.size == 1:
        return wide - point.reshape(())
    return wide - (point.reshape([-1 if i == axis else 1 for i in range(x.ndim)]) if point.ndim == 1 else point)


def _requantised(total: Value, factor: Value, zero: Value) -> Value:
    return _quantised(total.astype(np.float32) * factor, zero, np.dtype(zero.dtype), True)


@op("MatMulInteger")
def matmul_integer(a: Value, b: Value, a_zero_point: Value = None, b_zero_point: Value = None) -> Value:
    return jnp.matmul(_centred(a, a_zero_point, a.ndim - 2), _centred(b, b_zero_point, b.ndim - 1))


@op("QLinearMatMul")
def q_linear_matmul(
    a: Value, a_scale: Value, a_zero_point: Value, b: Value, b_scale: Value, b_zero_point: Value, y_scale: Value,
    y_zero_point: Value,
) -> Value:  # fmt: skip
    total = matmul_integer(a, b, a_zero_point, b_zero_point)
    rows = a_scale.reshape(-1, 1) if a_scale.ndim == 1 and a_scale.size > 1 else a_scale.reshape(a_scale.shape or ())
    factor = rows.astype(np.float32) * b_scale.astype(np.float32) / y_scale.astype(np.float32)
    return _requantised(total, factor.reshape(()) if factor.size == 1 else factor, y_zero_point)


@op("ConvInteger")
def conv_integer(x: Value, w: Value, x_zero_point: Value = None, w_zero_point: Value = None, **window: Any) -> Value:
    return conv(_centred(x, x_zero_point, 1), _centred(w, w_zero_point, 0), **window)


@op("QLinearConv")
def q_linear_conv(
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    b: Value = None,
    **window: Any,
) -> Value:
    total = conv(_centred(x, x_zero_point, 1), _centred(w, w_zero_point, 0), b, **window)
    factor = (x_scale.reshape(-1) * w_scale.reshape(-1) / y_scale.reshape(-1)).astype(np.float32)
    shaped = factor.reshape(()) if factor.size == 1 else factor.reshape(1, -1, *(1,) * (x.ndim - 2))
    return _requantised(total, shaped, y_zero_point)
