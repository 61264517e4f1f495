"""Queries, keys and values that lie in any order of their dims, under schedules of every kind."""

from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_schedules import drawn_schedules
from generated import assert_close, compile_text, text_of

from neuronx_cc.codegen.attention import choose, kernel, schedule

ORDERS = list(permutations(range(3)))
KINDS = {
    "twice": lambda each: each.twice and each.together > 1,
    "twice, a head each": lambda each: each.twice and each.together == 1,
    "once": lambda each: not each.twice and not each.pack and each.together == 1,
    "together": lambda each: not each.twice and each.together > 1,
    "upright": lambda each: each.pack,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", [(2, 389, 389, 8, 8), (4, 3, 130, 16, 24), (3, 96, 513, 40, 16)], ids=str)
@pytest.mark.parametrize("which", [0, 1, 2], ids=["queries", "keys", "values"])
def test_orders(dims: tuple[int, ...], kind: str, which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the operands is given in each order of heads, rows and terms."""

    def of_kind(problem: Any, timing: Any) -> Any:
        found = list(schedule.candidates(problem, timing.sizes))
        return next((each for each in found if KINDS[kind](each)), found[0])

    heads, rows, columns, depth, width = dims
    shapes = (heads, rows, depth), (heads, columns, depth), (heads, columns, width)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    for order in ORDERS:
        back = np.argsort(order)

        def function(*given: Any, back: Any = back) -> Any:
            q, k, v = (x.transpose(back) if at == which else x for at, x in enumerate(given))
            return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k) * 0.3), v)

        inputs = [x.transpose(order).copy() if at == which else x for at, x in enumerate(arrays)]
        with drawn_schedules(None), monkeypatch.context() as patches:
            patches.setattr(choose, "choose", of_kind)
            patches.setattr(kernel, "choose", of_kind)
            compiled = compile_text(text_of(function, *inputs))
        assert_close(compiled.run(inputs)[0], np.asarray(jax.jit(function)(*inputs)), 3e-5, name=f"{order}")
