"""What iterations of a loop add up is computed after it: which sums, and their values beside jaxlib's."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, text_of
from jax import lax

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import defining_op, ops_of
from neuronx_cc.passes.analysis.trip_count import element_of
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE

STEPS, ROWS, WIDTH, OUT = 9, 4, 200, 320


def cell(x: Any, w: Any, h: Any) -> Any:
    return jnp.tanh(h @ w + x)


def both_stacked(x: Any, w: Any, y: Any) -> Any:
    """Rows of two arrays."""
    return lax.scan(lambda total, xy: (total + xy[0].T @ xy[1], None), jnp.zeros((WIDTH, OUT)), (x, y))[0]


def one_computed(x: Any, w: Any, y: Any, kept: bool = False, reverse: bool = False) -> Any:
    """A state that each step changes, beside a row."""

    def step(carry: Any, xy: Any) -> Any:
        h, total = carry
        h = cell(xy[0], w, h)
        return (h, total + h.T @ xy[1]), h if kept else None

    first = jnp.zeros((ROWS, WIDTH)), jnp.ones((WIDTH, OUT))
    return lax.scan(step, first, (x, y), reverse=reverse)


def backwards(x: Any, w: Any, y: Any) -> Any:
    return one_computed(x, w, y, reverse=True)


def kept_anyway(x: Any, w: Any, y: Any) -> Any:
    return one_computed(x, w, y, kept=True)


def both_computed(x: Any, w: Any, y: Any) -> Any:
    """No row says where parts go; the counter starts anywhere and falls."""

    def step(state: Any) -> Any:
        count, h, total, rows = state
        h = cell(x[0], w, h)
        return count - 1, h, total + (h.T @ jnp.sin(h[:, :1] * y[0])), rows + jnp.cos(h).sum(0)

    first = jnp.int32(STEPS + 3), jnp.zeros((ROWS, WIDTH)), jnp.zeros((WIDTH, OUT)), jnp.zeros(WIDTH)
    return lax.while_loop(lambda state: state[0] > 3, step, first)[1:]


def transposed_and_cast(x: Any, w: Any, y: Any) -> Any:
    def step(total: Any, xy: Any) -> Any:
        made = jnp.einsum("bi,bo->io", jnp.sin(xy[0]), xy[1], preferred_element_type=jnp.float32)
        return total + made.astype(jnp.bfloat16).astype(jnp.float32).T, None

    return lax.scan(step, jnp.zeros((OUT, WIDTH)), (x, y))[0]


def batches(x: Any, w: Any, y: Any) -> Any:
    def step(total: Any, xy: Any) -> Any:
        one, other = (each.reshape(ROWS, 2, -1) for each in xy)
        return total + jnp.einsum("bgi,bgo->gio", jnp.sin(one), other), None

    return lax.scan(step, jnp.zeros((2, WIDTH // 2, OUT // 2)), (x, y))[0]


def other_ways(x: Any, w: Any, y: Any) -> Any:
    """One array is walked forwards, the other one backwards."""

    def step(number: Any, total: Any) -> Any:
        return total + x[number].T @ y[STEPS - 1 - number]

    return lax.fori_loop(0, STEPS, step, jnp.zeros((WIDTH, OUT)))


def gradients(x: Any, w: Any, y: Any) -> Any:
    """Of a recurrent layer, bias among them."""

    def loss(w: Any, v: Any, bias: Any) -> Any:
        def step(h: Any, xy: Any) -> Any:
            h = jnp.tanh(h @ w + xy[0] @ v + bias)
            return h, h

        return jnp.square(lax.scan(step, jnp.zeros((ROWS, WIDTH)), (x, y))[1]).sum()

    return jax.grad(loss, (0, 1, 2))(w, w * 0.5, x[0, 0])


def read_inside(x: Any, w: Any, y: Any) -> Any:
    """A sum that steps look at."""

    def step(total: Any, xy: Any) -> Any:
        total = total + jnp.tanh(total[:1]) * (xy[0].T @ xy[1])
        return total, None

    return lax.scan(step, jnp.zeros((WIDTH, OUT)), (x, y))[0]


def invariant(x: Any, w: Any, y: Any) -> Any:
    """What is the same in each step is no row of anything."""

    def step(carry: Any, row: Any) -> Any:
        h, total = carry
        h = cell(row, w, h)
        return (h, total + h.T @ y[0]), None

    return lax.scan(step, (jnp.zeros((ROWS, WIDTH)), jnp.zeros((WIDTH, OUT))), x)[0]


def kept_sums(function: Callable[..., Any], *inputs: Any) -> int:
    """Elements of loops' states that are a sum of themselves and a contraction or fold."""
    module = parse_text(text_of(function, *inputs))
    names = [name for _, stage in DEFAULT_PIPELINE for name in stage]
    names = names[: names.index("sums_after_loops") + 1]
    run_passes(
        module, [*names, "canonicalize", "cse", "dce"], PassContext(PassOptions(auto_cast="none")), verify_each=True
    )
    sums = 0
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.AddOp) and any(element_of(value, computation) is not None for value in op.operands):
                sums += any(isinstance(defining_op(value), hlo.DotOp | hlo.ReduceOp) for value in op.operands)
    return sums


@pytest.mark.table
@pytest.mark.parametrize(
    ("function", "left"),
    [
        (both_stacked, 0),
        (one_computed, 0),
        (backwards, 0),
        (kept_anyway, 0),
        (both_computed, 0),
        (transposed_and_cast, 0),
        (batches, 0),
        (other_ways, 0),
        (gradients, 0),
        (read_inside, 0),
        (invariant, 1),
    ],
)
def test_sums(function: Callable[..., Any], left: int) -> None:
    random = np.random.default_rng(left)
    x = random.standard_normal((STEPS, ROWS, WIDTH)).astype(np.float32)
    w = random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 20
    y = random.standard_normal((STEPS, ROWS, WIDTH if function is gradients else OUT)).astype(np.float32)
    check_function(function, x, w, y, relative=2e-4 if function is not transposed_and_cast else 2e-2)
    assert kept_sums(function, x, w, y) == left


def test_many_rows_stay() -> None:
    """Stacking what many rows contract takes longer than adding to a small sum."""
    x = np.random.default_rng(1).standard_normal((4, 1024, 64)).astype(np.float32)

    def function(x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            h, total = carry
            h = jnp.sin(h + row)
            return (h, total + h.T @ jnp.cos(h)), None

        return lax.scan(step, (x[0], jnp.zeros((64, 64))), x)[0][1]

    check_function(function, x, relative=1e-4)
    assert kept_sums(function, x) == 1
