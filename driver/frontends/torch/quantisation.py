"""Rows of quantised training and of models in 8 bits: rounding to grids and back, products of small integers."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from neuronx_cc.driver.frontends.torch.contractions import product
from neuronx_cc.driver.frontends.torch.registry import axis_of, row, widened


def _along(values: Any, axis: int, rank: int) -> Any:
    """One value a channel, for arrays of ``rank``."""
    return values.reshape([-1 if dim == axis_of(axis, rank) else 1 for dim in range(rank)])


def _faked(x: Any, scale: Any, zero: Any, low: int, high: int) -> tuple[Any, Any]:
    """``x`` at the nearest of the grid's numbers, and where that is no end of the grid that cuts it."""
    places = jnp.round(widened(x) * (1 / jnp.asarray(scale, jnp.float32))) + zero
    kept = (places >= low) & (places <= high)
    return (jnp.clip(places, low, high) - zero) * scale, kept


row("fake_quantize_per_tensor_affine_cachemask")(_faked)


@row("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def _faked_by_tensors(x: Any, scale: Any, zero: Any, on: Any, low: int, high: int) -> tuple[Any, Any]:
    made, kept = _faked(x, scale, zero, low, high)
    return jnp.where(on == 1, made, x), kept | (on != 1)


@row("fake_quantize_per_channel_affine_cachemask")
def _faked_by_channel(x: Any, scale: Any, zero: Any, axis: int, low: int, high: int) -> tuple[Any, Any]:
    return _faked(x, _along(scale, axis, x.ndim), _along(zero, axis, x.ndim), low, high)


@row("quantized_decomposed.quantize_per_tensor")
def _quantised(x: Any, scale: Any, zero: Any, low: int, high: int, dtype: Any) -> Any:
    return jnp.clip(jnp.round(widened(x) * (1 / jnp.asarray(scale, jnp.float32))) + zero, low, high).astype(dtype)


@row("quantized_decomposed.quantize_per_channel")
def _quantised_by_channel(x: Any, scales: Any, zeros: Any, axis: int, low: int, high: int, dtype: Any) -> Any:
    scale, zero = (_along(each, axis, x.ndim).astype(jnp.float32) for each in (scales, zeros))
    return _quantised(x, scale, zero, low, high, dtype)


@row("quantized_decomposed.dequantize_per_tensor")
def _dequantised(x: Any, scale: Any, zero: Any, *_: Any, out_dtype: Any = None) -> Any:
    return (x.astype(jnp.float32) - zero) * scale


@row("quantized_decomposed.dequantize_per_channel")
def _dequantised_by_channel(x: Any, scales: Any, zeros: Any, axis: int, *_: Any, out_dtype: Any = None) -> Any:
    zero = 0 if zeros is None else _along(zeros, axis, x.ndim)
    return (x.astype(jnp.float32) - zero) * _along(scales, axis, x.ndim)


row("_int_mm")(lambda x, y: lax.dot(x, y, preferred_element_type=jnp.int32))
row("_weight_int8pack_mm")(lambda x, y, scales: product(x, y.astype(x.dtype).T) * scales)
