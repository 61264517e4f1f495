"""Loops that carry images: in which order, and the values beside jaxlib's."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, text_of
from jax import lax
from transfers import runs_in_hbm

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.isa.program import Instr
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE

SIDE, GIVEN, FEATURES = 12, 8, 16


def conv(x: Any, kernel: Any, layout: str = "NHWC") -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=(layout, "HWIO", layout))


def cell(state: Any, x: Any, kernel: Any) -> Any:
    hidden, memory = state
    gates = jnp.split(conv(jnp.concatenate([x, hidden], -1), kernel), 4, -1)
    memory = jax.nn.sigmoid(gates[0]) * memory + jax.nn.sigmoid(gates[1]) * jnp.tanh(gates[2])
    return jax.nn.sigmoid(gates[3]) * jnp.tanh(memory), memory


def zeros(xs: Any) -> Any:
    return (jnp.zeros((*xs.shape[1:-1], FEATURES)),) * 2


def last_state(xs: Any, kernel: Any) -> Any:
    return lax.scan(lambda state, x: (cell(state, x, kernel), None), zeros(xs), xs)[0]


def every_state(xs: Any, kernel: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        state = cell(state, x, kernel)
        return state, state[0]

    return lax.scan(step, zeros(xs), xs)


def gradient(xs: Any, kernel: Any) -> Any:
    return jax.grad(lambda kernel: jnp.square(every_state(xs, kernel)[1]).sum())(kernel)


def refined(xs: Any, kernel: Any) -> Any:
    """An image that a network improves, as sampling by diffusion does."""
    noise = jnp.concatenate([xs[0], xs[1]], -1)
    wide = kernel[:, :, :FEATURES, :FEATURES]
    return lax.fori_loop(0, 3, lambda i, x: x - 0.1 * jnp.tanh(conv(x, wide)) * (i + 1), noise)


def read_in_windows(xs: Any, kernel: Any) -> Any:
    """A state of which steps read windows as well."""

    def step(state: Any, x: Any) -> Any:
        count, hidden, memory = state
        hidden, memory = cell((hidden, memory), x, kernel)
        row = lax.dynamic_slice_in_dim(state[2], count, 1, 1)
        return (count + 1, hidden, memory), row

    return lax.scan(step, (jnp.int32(0), *zeros(xs)), xs)


def transposes_in_loops(function: Callable[..., Any], *inputs: Any) -> int:
    """Elements that bodies of loops transpose, of images."""
    module = parse_text(text_of(function, *inputs))
    names = [name for _, stage in DEFAULT_PIPELINE for name in stage]
    names = names[: names.index("ordered_states") + 1]
    context = PassContext(PassOptions(auto_cast="none"))
    run_passes(module, [*names, "canonicalize", "cse", "dce"], context, verify_each=True)
    bodies = [computation for computation in module.computations() if computation is not module.entry]
    ops = [op for body in bodies for op in ops_of(body.block)]
    return sum(op.shape.size for op in ops if isinstance(op, hlo.TransposeOp) and op.shape.rank == 4)


INPUT, STATE = 2 * SIDE * SIDE * GIVEN, 2 * SIDE * SIDE * FEATURES


@pytest.mark.table
@pytest.mark.parametrize(
    ("function", "most"),
    [(last_state, INPUT), (every_state, INPUT + STATE), (refined, 0), (read_in_windows, INPUT + 2 * STATE)],
)
def test_what_loops_transpose(function: Callable[..., Any], most: int) -> None:
    random = np.random.default_rng(0)
    xs = random.standard_normal((4, 2, SIDE, SIDE, GIVEN)).astype(np.float32)
    kernel = random.standard_normal((3, 3, GIVEN + FEATURES, 4 * FEATURES)).astype(np.float32) / 15
    check_function(function, xs, kernel, relative=1e-4)
    assert transposes_in_loops(function, xs, kernel) <= most


def test_gradient() -> None:
    random = np.random.default_rng(1)
    xs = random.standard_normal((3, 1, SIDE, SIDE, GIVEN)).astype(np.float32)
    kernel = random.standard_normal((3, 3, GIVEN + FEATURES, 4 * FEATURES)).astype(np.float32) / 15
    check_function(gradient, xs, kernel, relative=1e-3)


@pytest.mark.parametrize("function", [every_state, read_in_windows])
def test_no_state_is_loaded_by_the_element(function: Callable[..., Any]) -> None:
    random = np.random.default_rng(2)
    xs = random.standard_normal((4, 2, 32, 32, GIVEN)).astype(np.float32)
    kernel = random.standard_normal((3, 3, GIVEN + FEATURES, 4 * FEATURES)).astype(np.float32) / 15
    compiled = check_function(function, xs, kernel, relative=1e-4)
    moved = [each for each in compiled.program.records if isinstance(each, Instr) and each.op == "dma_copy"]
    assert max(max(runs_in_hbm(each), default=0) for each in moved) < 2 * 32 * 32 * FEATURES // 4
