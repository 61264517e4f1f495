"""Rows of orthogonal polynomials, each a recurrence of three terms up to the largest degree that is asked for."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.torch.registry import Cast, row

Step = Callable[[Any, Any, Any, Any], Any]
"""Polynomial k + 1 of x, k, polynomial k and polynomial k - 1."""


def _chebyshev(x: Any, k: Any, last: Any, before: Any) -> Any:
    return 2 * x * last - before


FAMILIES: dict[str, tuple[Callable[[Any], Any], Step]] = {
    "chebyshev_polynomial_t": (lambda x: x, _chebyshev),
    "chebyshev_polynomial_u": (lambda x: 2 * x, _chebyshev),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, _chebyshev),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, _chebyshev),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda x, k, last, before: 2 * x * last - 2 * k * before),
    "hermite_polynomial_he": (lambda x: x, lambda x, k, last, before: x * last - k * before),
    "laguerre_polynomial_l": (
        lambda x: 1 - x,
        lambda x, k, last, before: ((2 * k + 1 - x) * last - k * before) / (k + 1),
    ),
    "legendre_polynomial_p": (
        lambda x: x,
        lambda x, k, last, before: ((2 * k + 1) * x * last - k * before) / (k + 1),
    ),
}
"""By name: the polynomial of degree one, and the step to the next. That of degree zero is 1."""


def _row(first: Callable[[Any], Any], step: Step, inner: Callable[[Any], Any]) -> Any:
    def polynomial(x: Any, degree: Any) -> Any:
        x, degree = jnp.broadcast_arrays(inner(jnp.asarray(x)), jnp.trunc(jnp.asarray(degree)))
        x = x.astype(np.float32)
        degree = degree.astype(np.int32)

        def body(state: Any) -> Any:
            k, last, before, found = state
            after = step(x, k.astype(x.dtype), last, before)
            return k + 1, after, last, jnp.where(degree == k + 1, after, found)

        start = jnp.where(degree < 0, 0, jnp.where(degree == 0, jnp.ones_like(x), first(x)))
        most = jnp.max(degree, initial=0)
        state = (jnp.ones((), np.int32), first(x), jnp.ones_like(x), start)
        return lax.while_loop(lambda state: state[0] < most, body, state)[3]

    return polynomial


for _name, (_first, _step) in FAMILIES.items():
    row(f"special_{_name}", cast=Cast.RESULT)(_row(_first, _step, lambda x: x))
    if _step is _chebyshev:
        row(f"special_shifted_{_name}", cast=Cast.RESULT)(_row(_first, _step, lambda x: 2 * x - 1))
