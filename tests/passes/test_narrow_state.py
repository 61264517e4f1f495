"""Loops have what they cast in every iteration as they cast it: no bit changes, and the casts stand outside."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of
from jax import lax

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, IMPORT_CLEANUP, pass_names

BF16 = jnp.bfloat16


def rounded(x: Any) -> Any:
    return x.astype(BF16)


def wide(x: Any) -> Any:
    return x.astype(jnp.float32)


def row(xs: Any, i: Any) -> Any:
    return lax.dynamic_index_in_dim(xs, i, 0, keepdims=False)


STEPS = {
    "state": lambda i, s, xs: (wide(jnp.tanh(rounded(s) * BF16(1.7) + BF16(0.3))), wide(rounded(s))[1]),
    "state and rows": lambda i, s, xs: (wide(jnp.sin(rounded(s) + rounded(row(xs, i)))), wide(rounded(s))[1]),
    "transposed rows": lambda i, s, xs: (
        wide(rounded(s) - rounded(xs[i].reshape(4, 2).T.reshape(8))),
        wide(rounded(s))[1],
    ),
    "read wide too": lambda i, s, xs: (wide(jnp.tanh(rounded(s))), s[1]),
    "not rounded": lambda i, s, xs: (jnp.tanh(wide(rounded(s))), wide(rounded(s))[1]),
    "other type": lambda i, s, xs: (wide(jnp.tanh(rounded(s))) + s.astype(jnp.float16).astype(jnp.float32), xs[i, 0]),
    "handed on": lambda i, s, xs: (s, wide(rounded(row(xs, i))[0] * rounded(s)[3])),
    "rows wide too": lambda i, s, xs: (wide(jnp.sin(rounded(s) + rounded(row(xs, i)))), row(xs, i)[2]),
    "products": lambda i, s, xs: (jnp.tanh(wide(rounded(s) * BF16(0.7))) + 1.5, wide(rounded(s))[1]),
    "one row": lambda i, s, xs: (wide(jnp.sin(rounded(s) + rounded(xs[3]))), xs[i, 1]),
}
NARROW = {"state", "state and rows", "transposed rows"}


def looped(step: str, trips: int) -> Any:
    def function(s: Any, xs: Any) -> Any:
        def body(i: Any, state: Any) -> Any:
            s, ys = state
            s, y = STEPS[step](i, s, xs)
            return s, lax.dynamic_update_index_in_dim(ys, y, i, 0)

        return lax.fori_loop(0, trips, body, (s, jnp.zeros(16)))

    return function


@pytest.mark.parametrize("trips", [1, 9])
@pytest.mark.parametrize("step", STEPS)
def test_no_bit_changes(step: str, trips: int) -> None:
    rng = np.random.default_rng(trips)
    inputs = [rng.standard_normal(8, np.float32) * 3, rng.standard_normal((16, 8), np.float32)]
    text = text_of(looped(step, trips), *inputs)
    module = parse_text(text)
    run_passes(
        module, [*IMPORT_CLEANUP, "known_compares", "canonicalize", "clean_casts"], PassContext(options=PassOptions())
    )
    before = evaluate(module, inputs)
    run_passes(module, ["narrow_state", "clean_casts", "dce"], PassContext(options=PassOptions()), verify_each=True)
    for one, other in zip(before, evaluate(module, inputs), strict=True):
        np.testing.assert_array_equal(one, other)
    found = compile_text(text).run(inputs)
    for one, other in zip(found, jax.jit(looped(step, trips))(*inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-2, atol=2e-2)
    if trips > 1:
        bodies = [each for each in module.computations() if each is not module.entry]
        casts = [op for body in bodies for op in ops_of(body.block) if isinstance(op, hlo.ConvertOp)]
        narrowing = [op for op in casts if op.shape.dtype == "bf16"]
        assert (not narrowing) == (step in NARROW), narrowing


def test_caches_are_cast_by_products_that_load_them() -> None:
    """Stacks of which contractions alone take parts stay as they are: they cast what they load."""

    def function(x: Any, ws: Any) -> Any:
        return lax.scan(lambda x, w: (wide(jnp.tanh(rounded(x) @ rounded(w))), None), x, ws)[0]

    inputs = [np.ones((4, 64), np.float32), np.ones((3, 64, 64), np.float32)]
    module = parse_text(text_of(function, *inputs))
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(options=PassOptions()))
    body = next(each for each in module.computations() if any(isinstance(op, hlo.DotOp) for op in ops_of(each.block)))
    kinds = {hlo.shape_of(op.operands[0]).dtype for op in ops_of(body.block) if isinstance(op, hlo.DynamicSliceOp)}
    assert kinds == {"f32"}
