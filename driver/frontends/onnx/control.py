"""If, Loop and Scan as JAX control flow, or evaluated where conditions are known; sequences and optional values.

A sequence is a list of values whose length is known; loops that carry sequences, or arrays whose shapes change, are
unrolled. Results of a length that only the run decides are refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.onnx.shapes import ints, normal
from neuronx_cc.driver.frontends.onnx.table import Value, op, refusal
from neuronx_cc.driver.frontends.onnx.types import dtype_of
from neuronx_cc.ir.errors import NeuronError

Body = Callable[..., list[Value]]
UNROLLED = 16
"""Loops of no more iterations are unrolled; longer ones only if they must be."""
MAX_UNROLLED = 4096


def _known(value: Value) -> bool:
    return value is None or isinstance(value, np.ndarray | np.generic)


def _dynamic(message: str) -> NeuronError:
    return refusal(message, "shapes are fixed at compile time: make it a constant, or pad", "EMOD025")


def _traced(values: Sequence[Value]) -> tuple[Any, ...]:
    if any(value is None for value in values):
        raise _dynamic("whether an optional value is there is decided at run time")
    return tuple([*map(jnp.asarray, value)] if isinstance(value, list) else jnp.asarray(value) for value in values)


def _shapes(values: Sequence[Value]) -> list[Any]:
    return [_shapes(value) if isinstance(value, list) else (value.shape, np.dtype(value.dtype)) for value in values]


@op("If", note="branches that differ in shapes only where the condition is known")
def if_(cond: Value, *, then_branch: Body, else_branch: Body) -> Value:
    if _known(cond):
        return tuple((then_branch if bool(cond.reshape(())) else else_branch)())
    found: list[list[Value]] = []

    def branch(body: Body) -> Callable[[], tuple[Any, ...]]:
        def run() -> tuple[Any, ...]:
            made = _traced(body())
            found.append(_shapes(made))
            return made

        return run

    try:
        return tuple(lax.cond(cond.reshape(()), branch(then_branch), branch(else_branch)))
    except TypeError:
        if len(found) > 1 and found[0] != found[1]:
            raise _dynamic("its branches give different shapes or types, and its condition is not known") from None
        raise


@op("Loop", note="sequences of loops, and what is collected, only where the number of iterations is known")
def loop(max_trips: Value, cond: Value, *carried: Value, body: Any, count: int = 1) -> Value:
    collected = len(body.outputs) - 1 - len(carried)
    if collected < 0:
        raise refusal(
            f"its body gives {len(body.outputs)} values, at least {1 + len(carried)} are needed", code="EVRF064"
        )
    if _known(cond) and cond is not None and not bool(np.asarray(cond).reshape(())):
        if collected:
            raise _dynamic("a loop that does not run collects arrays of unknown shape")
        return tuple(carried)
    if _known(max_trips) and _known(cond):
        made = _counted(max_trips, carried, body, collected)
        if made is not None:
            return made
    if collected:
        raise _dynamic("how often it runs is decided at run time, and it collects a result of every iteration")
    return _while(max_trips, cond, carried, body)


def _counted(max_trips: Value, carried: tuple[Value, ...], body: Any, collected: int) -> Value:
    """The outputs of a loop whose number of iterations follows from what is known; None where it does not."""
    trips = None if max_trips is None else int(np.asarray(max_trips).reshape(()))
    if trips is not None and trips > UNROLLED:
        probe = body(np.int64(0), np.bool_(True), *carried)
        stable = not any(isinstance(value, list) for value in carried) and _shapes(
            probe[1 : 1 + len(carried)]
        ) == _shapes(carried)
        if stable and _known(probe[0]) and bool(probe[0]):
            try:
                return _scanned(trips, carried, body)
            except NeuronError as error:
                if error.code != "EMOD025" or trips > MAX_UNROLLED:
                    raise
    rows: list[list[Value]] = [[] for _ in range(collected)]
    values = list(carried)
    for number in range(MAX_UNROLLED if trips is None else trips):
        if number >= MAX_UNROLLED:
            raise refusal(f"loops of more than {MAX_UNROLLED} iterations are not unrolled")
        going, *outputs = body(np.int64(number), np.bool_(True), *values)
        values = outputs[: len(carried)]
        for row, value in zip(rows, outputs[len(carried) :], strict=True):
            row.append(value)
        if not _known(going):
            return None
        if not bool(np.asarray(going).reshape(())):
            break
    else:
        if trips is None:
            return None
    if collected and not all(rows):
        raise _dynamic("a loop that does not run collects arrays of unknown shape")
    return (*values, *(jnp.stack([jnp.asarray(value) for value in row]) for row in rows))


def _scanned(trips: int, carried: tuple[Value, ...], body: Any) -> Value:
    def step(state: tuple[Any, ...], number: Any) -> Any:
        _, *outputs = body(number, np.bool_(True), *state)
        return _traced(outputs[: len(carried)]), _traced(outputs[len(carried) :])

    last, rows = lax.scan(step, _traced(carried), jnp.arange(trips, dtype=np.int64))
    return (*last, *rows)


def _while(max_trips: Value, cond: Value, carried: tuple[Value, ...], body: Any) -> Value:
    most = np.int64(np.iinfo(np.int64).max) if max_trips is None else jnp.asarray(max_trips).reshape(())
    going = jnp.asarray(True if cond is None else cond).reshape(())

    def step(state: Any) -> Any:
        number, _, values = state
        following, *outputs = body(number, np.bool_(True), *values)
        return number + 1, jnp.asarray(following).reshape(()), _traced(outputs)

    start = (jnp.asarray(0, np.int64), going, _traced(carried))
    return tuple(lax.while_loop(lambda state: (state[0] < most) & state[1], step, start)[2])


@op("Scan", since=9)
def scan(
    *inputs: Value,
    body: Any,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] = (),
    scan_input_directions: Sequence[int] = (),
    scan_output_axes: Sequence[int] = (),
    scan_output_directions: Sequence[int] = (),
) -> Value:
    states, rows = inputs[: len(inputs) - num_scan_inputs], inputs[len(inputs) - num_scan_inputs :]
    axes = scan_input_axes or (0,) * len(rows)
    moved = [
        jnp.flip(each, 0) if backward else each
        for each, backward in zip(
            (jnp.moveaxis(jnp.asarray(row), axis, 0) for row, axis in zip(rows, axes, strict=True)),
            scan_input_directions or (0,) * len(rows),
            strict=True,
        )
    ]

    def step(state: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
        outputs = body(*state, *given)
        return _traced(outputs[: len(states)]), _traced(outputs[len(states) :])

    last, made = lax.scan(step, _traced(states), tuple(moved))
    flips = scan_output_directions or (0,) * len(made)
    straight = [jnp.flip(each, 0) if backward else each for each, backward in zip(made, flips, strict=True)]
    places = scan_output_axes or (0,) * len(made)
    return (*last, *(jnp.moveaxis(each, 0, axis) for each, axis in zip(straight, places, strict=True)))


# sequences -----------------------------------------------------------------------------------------------------------


def _place(position: Value, length: int) -> int:
    place = int(np.asarray(position).reshape(()))
    if not -length <= place < length:
        raise refusal(f"position {place} of a sequence of {length}", code="EVRF064")
    return place % length


@op("SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> Value:
    dtype_of(dtype, "the sequence")
    return ([],)


@op("SequenceConstruct")
def sequence_construct(*inputs: Value) -> Value:
    return (list(inputs),)


@op("SequenceInsert", static=("position",))
def sequence_insert(sequence: Value, tensor: Value, position: Value = None) -> Value:
    place = len(sequence) if position is None else int(np.asarray(position).reshape(()))
    if not -len(sequence) <= place <= len(sequence):
        raise refusal(f"position {place} of a sequence of {len(sequence)}", code="EVRF064")
    made = list(sequence)
    made.insert(place, tensor)
    return (made,)


@op("SequenceErase", static=("position",))
def sequence_erase(sequence: Value, position: Value = None) -> Value:
    place = _place(-1 if position is None else position, len(sequence))
    return (sequence[:place] + sequence[place + 1 :],)


@op("SequenceAt", static=("position",))
def sequence_at(sequence: Value, position: Value) -> Value:
    return sequence[_place(position, len(sequence))]


@op("SequenceLength")
def sequence_length(sequence: Value) -> Value:
    return np.asarray(len(sequence), np.int64)


@op("ConcatFromSequence")
def concat_from_sequence(sequence: Value, *, axis: int, new_axis: int = 0) -> Value:
    return jnp.stack(sequence, axis) if new_axis else jnp.concatenate(sequence, axis)


@op("SplitToSequence", static=("split",))
def split_to_sequence(input: Value, split: Value = None, *, axis: int = 0, keepdims: int = 1) -> Value:
    axis = normal(axis, input.ndim)
    length = input.shape[axis]
    single = split is None
    if single or np.ndim(split) == 0:
        each = 1 if single else int(split)
        if each < 1:
            raise refusal(f"parts of {each}", code="EVRF064")
        sizes: tuple[int, ...] = tuple(min(each, length - at) for at in range(0, length, each))
    else:
        sizes = ints(split)
    parts = jnp.split(jnp.asarray(input), np.cumsum(sizes)[:-1].tolist(), axis)
    return ([jnp.squeeze(part, axis) for part in parts] if single and not keepdims else list(parts),)


@op("Optional")
def optional(input: Value = None, *, type: Any = None) -> Value:
    return (input,)


@op("OptionalHasElement")
def optional_has_element(input: Value = None) -> Value:
    return np.asarray(input is not None)


@op("OptionalGetElement")
def optional_get_element(input: Value) -> Value:
    if input is None:
        raise refusal("the optional value is absent", code="EVRF064")
    return (input,)
