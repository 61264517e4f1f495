"""Reductions over dimensions, softmax and its kin, running folds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.onnx.shapes import ints, normal
from neuronx_cc.driver.frontends.onnx.table import Value, namespace, op
from neuronx_cc.driver.frontends.onnx.types import is_float, limits


def _axes(data: Value, axes: Value, noop: int) -> tuple[int, ...]:
    if axes is None or not len(np.asarray(axes).reshape(-1)):
        return () if noop else tuple(range(data.ndim))
    return tuple(normal(axis, data.ndim) for axis in ints(axes))


def _make(name: str, compute: Any) -> None:
    def meaning(data: Value, axes: Value = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Value:
        return compute(data, _axes(data, axes, noop_with_empty_axes), bool(keepdims))

    op(name, static=("axes",))(meaning)


def _sum(data: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return namespace(data).sum(data, axes, keepdims=keep, dtype=data.dtype)


def _extreme(name: str) -> Any:
    def compute(data: Value, axes: tuple[int, ...], keep: bool) -> Value:
        low, high = (-np.inf, np.inf) if is_float(data.dtype) else (0, 1) if data.dtype == bool else limits(data.dtype)
        initial = np.asarray(low if name == "max" else high, data.dtype)
        return getattr(jnp, name)(jnp.asarray(data), axes, keepdims=keep, initial=initial)

    return compute


def _mean(data: Value, axes: tuple[int, ...], keep: bool) -> Value:
    if is_float(data.dtype):
        return jnp.mean(data, axes, keepdims=keep)
    count = np.prod([data.shape[axis] for axis in axes], dtype=np.int64)
    return lax.div(_sum(jnp.asarray(data), axes, keep), jnp.asarray(count, data.dtype))


def _log_sum_exp(data: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return (
        jax.nn.logsumexp(data, axes, keepdims=keep)
        if is_float(data.dtype)
        else jnp.log(_sum(jnp.exp(data), axes, keep)).astype(data.dtype)
    )


_make("ReduceSum", _sum)
_make("ReduceMax", _extreme("max"))
_make("ReduceMin", _extreme("min"))
_make("ReduceMean", _mean)
_make("ReduceProd", lambda data, axes, keep: namespace(data).prod(data, axes, keepdims=keep, dtype=data.dtype))
_make("ReduceSumSquare", lambda data, axes, keep: _sum(data * data, axes, keep))
_make("ReduceL1", lambda data, axes, keep: _sum(jnp.abs(data), axes, keep))
_make("ReduceL2", lambda data, axes, keep: jnp.sqrt(_sum(data * data, axes, keep)).astype(data.dtype))
_make("ReduceLogSum", lambda data, axes, keep: jnp.log(_sum(data, axes, keep)).astype(data.dtype))
_make("ReduceLogSumExp", _log_sum_exp)


def _arg(name: str) -> Any:
    def meaning(data: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Value:
        axis = normal(axis, data.ndim)
        rows = jnp.flip(data, axis) if select_last_index else jnp.asarray(data)
        found = getattr(jnp, name)(rows, axis, keepdims=bool(keepdims))
        return (data.shape[axis] - 1 - found if select_last_index else found).astype(np.int64)

    return meaning


op("ArgMax")(_arg("argmax"))
op("ArgMin")(_arg("argmin"))


@op("Softmax", since=13)
def softmax(input: Value, *, axis: int = -1) -> Value:
    return jax.nn.softmax(input, normal(axis, input.ndim))


@op("LogSoftmax", since=13)
def log_softmax(input: Value, *, axis: int = -1) -> Value:
    return jax.nn.log_softmax(input, normal(axis, input.ndim))


@op("Hardmax", since=13)
def hardmax(input: Value, *, axis: int = -1) -> Value:
    axis = normal(axis, input.ndim)
    return jax.nn.one_hot(jnp.argmax(input, axis), input.shape[axis], dtype=input.dtype, axis=axis)


def _running(name: str, start: int) -> Any:
    def meaning(x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Value:
        along = normal(int(np.asarray(axis).reshape(())), x.ndim)
        rows = jnp.flip(x, along) if reverse else jnp.asarray(x)
        folded = getattr(jnp, name)(rows, along, dtype=x.dtype)
        if exclusive:
            widths = [(int(i == along), -int(i == along), 0) for i in range(x.ndim)]
            folded = lax.pad(folded, np.asarray(start, x.dtype), widths)
        return jnp.flip(folded, along) if reverse else folded

    return meaning


op("CumSum", static=("axis",))(_running("cumsum", 0))
op("CumProd", static=("axis",))(_running("cumprod", 1))


@op("LpNormalization")
def lp_normalization(input: Value, *, axis: int = -1, p: int = 2) -> Value:
    size = jnp.abs(input) if p == 1 else input * input
    norm = jnp.sum(size, axis, keepdims=True)
    norm = norm if p == 1 else jnp.sqrt(norm)
    return jnp.where(norm == 0, np.zeros((), input.dtype), input / jnp.where(norm == 0, 1, norm).astype(input.dtype))
