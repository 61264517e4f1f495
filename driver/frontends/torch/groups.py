"""Rows of products by group: rows of one matrix, sorted by group, each with its group's own matrix (experts).

``offs`` has the row after the last of each group. What lies after the last group is zeros.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax

from neuronx_cc.driver.frontends.torch.contractions import product
from neuronx_cc.driver.frontends.torch.registry import row

_OF_TERMS = lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [1], [])  # type: ignore[no-untyped-call]
"""Groups of the terms: one product for each."""


def _sizes(offs: Any) -> Any:
    return jnp.diff(offs, prepend=0).astype(jnp.int32)


def _of_rows(x: Any, y: Any, offs: Any) -> Any:
    """x [rows, terms], y [groups, terms, columns]: [rows, columns]."""
    return lax.ragged_dot(x, y, _sizes(offs))


def _of_terms(x: Any, y: Any, offs: Any) -> Any:
    """x [rows, terms], y [terms, columns]: [groups, rows, columns]."""
    return lax.ragged_dot_general(x, y, _sizes(offs), _OF_TERMS)


@row("_grouped_mm")
def _grouped(x: Any, y: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    if bias is not None:
        raise NotImplementedError("a bias by group")
    if offs is None:
        return product(x, y)
    if x.ndim == 2:
        return _of_rows(x, y, offs) if y.ndim == 3 else _of_terms(x, y, offs)
    return _of_rows(y.T, jnp.swapaxes(x, 1, 2), offs).T


row("transformers.grouped_mm_fallback")(_of_rows)


@row("transformers.grouped_mm_fallback_backward")
def _grouped_backward(x: Any, y: Any, offs: Any, given: Any) -> Any:
    return [_of_rows(given, jnp.swapaxes(y, 1, 2), offs), _of_terms(x.T, given, offs)]
