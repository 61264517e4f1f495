"""Groups that share products, several convolutions in a row: what is not finite stays in its group, and nobody waits
for that. All programs are checked for races."""

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import Array, check_function, check_text, compile_text, text_of
from jax import lax

from neuronx_cc.ir.isa.program import Branch, Else, End, Instr, Loop, Program, While

FEATURES = 48
SPECIAL = (np.nan, np.inf, 3e38)
"""The last is infinite after the first convolution."""


def grouped(x: Any, w: Any, groups: int = FEATURES) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=groups)


def full(x: Any, w: Any) -> Any:
    return grouped(x, w, 1)


def row(x: Any, kernels: Any) -> Any:
    for kernel in kernels:
        x = jnp.clip(grouped(x, kernel), -6, None)
    return x


def residual(x: Any, kernels: Any) -> Any:
    for kernel in kernels:
        x = x + grouped(x, kernel) * 0.5
    return x.mean((2, 3)), jnp.tanh(x)


def mixed(x: Any, kernels: Any) -> Any:
    wide = jnp.tile(kernels[1], (1, 4, 1, 1))
    return grouped(residual(x, kernels[:2])[1], wide, 12) + jnp.sin(grouped(x, wide[:, :2], 24))


def in_a_loop(x: Any, kernels: Any) -> Any:
    first = grouped(x, kernels[0])
    last, all_ = lax.scan(lambda x, w: ((y := jnp.maximum(grouped(x, w), -3) + x), y[0, :, 0, 0]), first, kernels)
    return grouped(last, kernels[0]), all_


def in_a_branch(x: Any, kernels: Any) -> Any:
    first = grouped(x, kernels[0])
    second = lax.cond(kernels[1, 0, 0, 0, 0] > 9, jnp.negative, lambda x: grouped(x, kernels[1]), first)
    return grouped(second, kernels[2])


def until_it_is_small(x: Any, kernels: Any) -> Any:
    """Of the last group, which is finite; were it not, this would not end."""
    first = grouped(x, kernels[0])
    state = lax.while_loop(
        lambda state: ~(jnp.abs(state[0, -1]).max() < 0.1), lambda state: grouped(state, kernels[1] / 16), first
    )
    return grouped(state, kernels[2])


def until_they_are_small(x: Any, kernels: Any) -> Any:
    """Several loops that can be run once only, each after a convolution: only the first decides for what is ahead."""
    for kernel in kernels:
        x = lax.while_loop(lambda x: ~(jnp.abs(x[0, -1]).max() < 0.1), lambda x: x / 16, grouped(x, kernel))
    return x


FUNCTIONS = (row, residual, mixed, in_a_loop, in_a_branch, until_it_is_small, until_they_are_small)


def arguments(spoiled: float = 0.0, dtype: Any = np.float32) -> list[Any]:
    random = np.random.default_rng(0)
    x, kernels = random.standard_normal((2, FEATURES, 6, 5)), random.standard_normal((3, FEATURES, 1, 3, 3))
    if spoiled:
        x[0, 7, 3, 2] = spoiled
    with np.errstate(over="ignore"):
        return [x.astype(dtype), kernels.astype(dtype)]


def checked(function: Callable[..., Any], given: list[Any], text: str = "") -> Program:
    return check_text(text or text_of(function, *given), *given, relative=1e-4).program


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_not_finite_stays_in_its_group(function: Callable[..., Any]) -> None:
    text = text_of(function, *arguments())
    for special in (0.0, *SPECIAL):
        checked(function, arguments(special), text)


@pytest.mark.parametrize("function", [row, in_a_loop])
def test_kernels_that_are_not_finite(function: Callable[..., Any]) -> None:
    for special, layer in product((np.inf, np.nan), (0, 2)):
        given = arguments()
        given[1][layer, 9, 0, 1, 1] = special
        checked(function, given)


def regions(program: Program, inside: bool) -> list[Branch | While]:
    """Regions outside of all others, or inside one."""
    found: list[Branch | While] = []
    opened: list[Any] = []
    for record in program.records:
        if isinstance(record, Branch | While) and any(isinstance(each, Branch) for each in opened) is inside:
            found.append(record)
        if isinstance(record, Branch | While | Loop):
            opened.append(record)
        elif isinstance(record, End):
            opened.pop()
    return found


@pytest.mark.parametrize("function", [row, residual, mixed, in_a_loop])
def test_one_decision_at_the_end(function: Callable[..., Any]) -> None:
    program = compile_text(text_of(function, *arguments())).program
    branches = [region for region in regions(program, False) if isinstance(region, Branch)]
    assert len(branches) == 1
    assert isinstance(program.records[-1], End)


def test_only_the_first_op_that_runs_once_has_what_is_ahead_of_it_run_again() -> None:
    lengths = [len(compile_text(text_of(f, *arguments())).program.records) for f in (row, until_they_are_small)]
    assert lengths[1] < 2.5 * lengths[0]


def test_instructions_that_are_run_again_are_the_same() -> None:
    program = compile_text(text_of(row, *arguments())).program
    start = next(number for number, record in enumerate(program.records) if isinstance(record, Branch))
    case = next(number for number in range(start, len(program.records)) if isinstance(program.records[number], Else))
    once = [record for record in program.records[:start] if isinstance(record, Instr)]
    again = [record for record in program.records[case:] if isinstance(record, Instr)]
    shared = {id(record) for record in once} & {id(record) for record in again}
    assert len(shared) >= len(once) - 4


def update(state: Array, x: Any, kernels: Any) -> Any:
    """``state`` has the result of one convolution added to it; the next reads it."""
    added = state + grouped(x, kernels[0])
    return added, grouped(added, kernels[1]), grouped(state, kernels[2])


def stepped(kernels: Any, x: Any) -> Any:
    """A step of training: gradients are subtracted from what they are of."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.square(row(x, w)).mean())(kernels)
    return kernels - 0.1 * gradient, loss


def looped(state: Any, x: Any, kernels: Any) -> Any:
    first = grouped(x, kernels[0])
    return lax.fori_loop(0, 3, lambda _, state: state * 0.5 + first, state), grouped(first, kernels[1])


def test_donated_parameters() -> None:
    for special, (function, order) in product((0.0, np.nan, np.inf), ((update, 3), (looped, 3), (stepped, 2))):
        x, kernels = arguments(special)
        given = [np.ones_like(x), x, kernels] if order == 3 else [kernels, np.abs(x)]
        lowered = jax.jit(function, keep_unused=True, donate_argnums=0).lower(*given)
        checked(function, given, str(lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True)))


def test_memory_that_is_watched_as_well() -> None:
    """The program is run again with what it notes of transposes, which then met what was not finite."""
    function, dtype = residual, jnp.bfloat16
    given = arguments(np.inf, dtype)
    check_function(function, *given, relative=0.1)  # what XLA rounds in between is 0.07 away from exact values
