"""Convolutions of each feature by itself on chip: sums of shifted copies."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from jax import lax

CASES: dict[str, tuple[int, int, int, int, dict[str, Any]]] = {
    "causal": (1, 256, 128, 4, {"padding": [(3, 0)]}),
    "several images": (3, 96, 41, 3, {"padding": [(1, 1)]}),
    "strides": (2, 128, 50, 5, {"padding": [(2, 4)], "window_strides": (3,)}),
    "dilated": (1, 384, 40, 4, {"padding": [(0, 7)], "rhs_dilation": (3,)}),
    "cropped": (1, 64, 40, 3, {"padding": [(-2, -5)]}),
    "all padding": (1, 130, 2, 3, {"padding": [(9, 1)]}),
    "one tap": (1, 128, 33, 1, {"padding": [(0, 0)]}),
}


def program(features: int, options: dict[str, Any]) -> Callable[[Any, Any], Any]:
    """A convolution of what is computed from ``x[features, batch, length]``, and a map of its result."""

    def function(x: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(
            jnp.exp(x),
            w,
            **{"window_strides": (1,), **options},
            dimension_numbers=("CNW", "WIO", "CNW"),
            feature_group_count=features,
        )
        return jnp.tanh(y * 0.1)

    return function


@pytest.mark.parametrize("name", CASES)
def test_values(name: str, random: np.random.Generator) -> None:
    batch, features, length, taps, options = CASES[name]
    x = random.standard_normal((features, batch, length), np.float32)
    w = random.standard_normal((taps, 1, features), np.float32)

    compiled = check_function(program(features, options), x, w)
    ops = [record.op for record in compiled.program.records if hasattr(record, "op")]
    assert name != "causal" or "multiply_moving" not in ops


def test_gradients(random: np.random.Generator) -> None:
    """The gradient of the input reverses the window."""
    x = random.standard_normal((128, 1, 30), np.float32)
    w = random.standard_normal((4, 1, 128), np.float32)

    def loss(x: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(
            jnp.sin(x), w, (1,), [(3, 0)], dimension_numbers=("CNW", "WIO", "CNW"), feature_group_count=128
        )
        return jnp.sum(jnp.sin(y))

    check_function(jax.grad(loss, (0, 1)), x, w)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("computed", [True, False])
def test_narrow_types(dtype: str, computed: bool, random: np.random.Generator) -> None:
    """What casts make narrow is for Vector as well; ``computed``: a kernel that is no parameter."""
    x = random.standard_normal((256, 2, 61), np.float32)
    w = random.standard_normal((4, 1, 256), np.float32)

    def function(x: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(
            jnp.exp(x).astype(dtype),
            (jnp.sin(w) if computed else w).astype(dtype),
            (1,),
            [(3, 0)],
            dimension_numbers=("CNW", "WIO", "CNW"),
            feature_group_count=256,
            preferred_element_type=jnp.float32,
        )
        return jnp.tanh(y * 0.1)

    compiled = check_function(function, x, w)
    assert "multiply_moving" not in [record.op for record in compiled.program.records if hasattr(record, "op")]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_narrow_results(name: str, dtype: str, random: np.random.Generator) -> None:
    """Sums are FP32 whatever the result's type, also where windows reach past an edge."""
    batch, features, length, taps, options = CASES[name]
    x = random.standard_normal((features, batch, length), np.float32).astype(dtype)
    w = random.standard_normal((taps, 1, features), np.float32).astype(dtype)

    compiled = check_function(program(features, options), x, w, relative=2e-2)
    ops = [record.op for record in compiled.program.records if hasattr(record, "op")]
    assert name != "causal" or "multiply_moving" not in ops


@pytest.mark.parametrize("given", [True, False])
def test_casts_of_parameters(given: bool, random: np.random.Generator) -> None:
    """Casts that contractions do as they load: there is no array of their results."""
    x = random.standard_normal((128, 1, 30), np.float32).astype(jnp.bfloat16)
    w = random.standard_normal((4, 1, 128), np.float32).astype(jnp.bfloat16)

    def function(x: Any, w: Any) -> Any:
        wide = x.astype(jnp.float32)
        return lax.conv_general_dilated(
            wide if given else jnp.exp(wide),
            w.astype(jnp.float32),
            (1,),
            [(3, 0)],
            dimension_numbers=("CNW", "WIO", "CNW"),
            feature_group_count=128,
        )

    check_function(function, x, w)
