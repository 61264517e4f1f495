"""Programs of arrays without elements: whatever computes, moves, reduces or chooses has nothing to do, and says so."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, check_text
from jax import lax

from neuronx_cc.ir.types import NUMPY_DTYPE

FORMS: dict[str, Callable[[Any], Any]] = {
    "chosen": lambda x: lax.select(x.sum() < 1, x, x * 2),
    "tail": lambda x: jnp.where(jnp.arange(x.shape[-1]) < 3, x, 0),
    "masked": lambda x: jnp.where(x > 0, x, 1),
    "softmax": lambda x: jax.nn.softmax(x, 0) if x.shape[0] else jnp.exp(x),
    "standardized": lambda x: (x - x.sum(-1, keepdims=True)) * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1),
    "gram": lambda x: jnp.einsum("...ij,...kj->...ik", jnp.tanh(x), x),
    "weighted": lambda x: jnp.tanh(x @ jnp.ones((x.shape[-1], 7), x.dtype)) + 1,
    "transposed": lambda x: jnp.swapaxes(x, 0, -1) + 1,
    "sorted": lambda x: jnp.sort(x, -1),
    "running": lambda x: jnp.cumsum(x, 0),
    "reversed": lambda x: x[::-1, ..., ::-1],
    "padded": lambda x: lax.pad(x, jnp.asarray(1, x.dtype), [(1, 0, 0)] * x.ndim),
    "joined": lambda x: jnp.concatenate([x, jnp.ones((2, *x.shape[1:]), x.dtype), x * 2]),
    "gathered": lambda x: jnp.concatenate([x, jnp.ones((2, *x.shape[1:]), x.dtype)])[jnp.zeros(3, jnp.int32)],
    "no rows": lambda x: jnp.pad(x, [(0, 2)] * x.ndim)[jnp.zeros(0, jnp.int32)] + 1,
    "added": lambda x: jnp.zeros((4, *x.shape[1:]), x.dtype).at[jnp.arange(x.shape[0]) % 4].add(x),
    "largest": lambda x: jnp.max(x, -1, initial=0) + jnp.min(x, 0, initial=0).sum(),
    "windows": lambda x: lax.reduce_window(x, jnp.asarray(0, x.dtype), lax.add, (2,) * x.ndim, (1,) * x.ndim, "SAME"),
    "looped": lambda x: lax.fori_loop(0, 3, lambda i, y: jnp.tanh(y) + x, x),
    "scanned": lambda x: lax.scan(lambda s, row: (s + row.sum(), row * 2), jnp.zeros((), x.dtype), x)[1],
    "counted": lambda x: jnp.sum(x > 0, dtype=jnp.int32) + jnp.ones((x.shape[0], 3), jnp.int32),
}
SHAPES = [(0, 5), (3, 0), (0, 0), (128, 0), (0, 600), (3, 0, 5), (0, 2, 130), (4, 3, 0)]


OF_FLOATS = {"softmax", "standardized", "gram", "weighted", "looped"}


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, shape: tuple[int, ...], dtype: Any) -> None:
    check_function(FORMS[form], np.zeros(shape, dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("form", sorted(FORMS.keys() - OF_FLOATS))
def test_integers(form: str, shape: tuple[int, ...]) -> None:
    check_function(FORMS[form], np.zeros(shape, np.int32))


@pytest.mark.parametrize(("first", "second"), list(pairwise([*FORMS, "chosen", "gram", "tail", "softmax"])))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forms_of_forms(first: str, second: str, shape: tuple[int, ...]) -> None:
    def function(x: Any) -> Any:
        y = FORMS[first](x)
        return FORMS[second](y) if y.ndim > 1 and jnp.issubdtype(y.dtype, jnp.floating) else y

    check_function(function, np.zeros(shape, np.float32))


@pytest.mark.parametrize("dtype", ["s16", "f32", "f8e5m2", "pred"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chosen_by_one(shape: tuple[int, ...], dtype: str) -> None:
    """One predicate for an array that stays on chip: it was looked at as the tail of a contraction's result."""
    array = f"{dtype}[{','.join(map(str, shape))}]"
    operands = f"p = pred[] parameter(0)\n  x = {array} parameter(1)\n  y = {array} parameter(2)"
    text = f"HloModule chosen\n\nENTRY main {{\n  {operands}\n  ROOT r = {array} select(p, x, y)\n}}\n"
    zeros = np.zeros(shape, NUMPY_DTYPE[dtype])
    check_text(text, np.bool_(True), zeros, zeros)


@pytest.mark.parametrize(("images", "channels", "features"), [(0, 3, 8), (2, 0, 8), (2, 3, 0)])
def test_convolutions(images: int, channels: int, features: int) -> None:
    x, w = np.zeros((images, channels, 9, 9), np.float32), np.zeros((features, channels, 3, 3), np.float32)
    check_function(lambda x, w: jax.nn.relu(lax.conv(x, w, (1, 1), "SAME")) + 1, x, w)
