"""JAX's special functions as StableHLO for a platform that JAX does not know: imported, compiled, run, compared."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import special

import neuronx_cc

LINE = np.linspace(-3, 3, 41).astype(np.float32) + np.float32(0.01)
POSITIVE = np.linspace(0.05, 6, 41).astype(np.float32)
UNIT = np.linspace(-0.99, 0.99, 41).astype(np.float32)

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], np.ndarray[Any, Any]]] = {
    "inverse error function": (lax.erf_inv, UNIT),
    "complementary error function": (lax.erfc, LINE),
    "gamma functions": (lambda x: (lax.lgamma(x), lax.digamma(x)), LINE),
    "next after": (lambda x: jnp.nextafter(x, x + 1), LINE),
    "top k": (lambda x: lax.top_k(x, 4), LINE),
    "squares and tangents": (lambda x: (lax.square(x), jnp.tan(x), jnp.sinh(x), jnp.cosh(x)), LINE),
    "inverse functions": (lambda x: (jnp.arccos(x), jnp.arcsin(x), jnp.arctan(x), jnp.arctanh(x)), UNIT),
    "inverse hyperbolic": (lambda x: (jnp.arccosh(x + 1), jnp.arcsinh(x)), POSITIVE),
    "incomplete gamma function": (lambda x: lax.igamma(x, x * 1.3), POSITIVE),
    "bessel functions": (lambda x: (lax.bessel_i0e(x), lax.bessel_i1e(x)), LINE),
    "zeta functions": (lambda x: (special.zeta(x + 1.5, 2.0), special.polygamma(2, x)), POSITIVE),
    "normal distribution": (lambda x: (special.ndtri((x + 1) / 2), special.log_ndtr(x)), UNIT),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_functions(name: str) -> None:
    function, operand = FUNCTIONS[name]
    lowered = jax.jit(function).trace(operand).lower(lowering_platforms=("neuron",))
    results = neuronx_cc.compile(lowered.as_text().encode(), auto_cast="none").run([operand]).outputs
    for result, want in zip(results, jax.tree.leaves(jax.jit(function)(operand)), strict=True):
        np.testing.assert_allclose(result, np.asarray(want), 2e-5, 2e-6)
