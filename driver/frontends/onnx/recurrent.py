"""RNN, GRU and LSTM: the inputs' products at once, then a ``lax.scan`` over the steps of each direction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neuronx_cc.driver.frontends.onnx.table import Value, op, refusal

Function = Callable[[Value], Value]
Step = Callable[..., tuple[Value, ...]]

_FUNCTIONS: dict[str, tuple[Callable[..., Value], float, float]] = {
    "relu": (lambda x, a, b: jnp.maximum(x, np.zeros((), x.dtype)), 0, 0),
    "tanh": (lambda x, a, b: jnp.tanh(x), 0, 0),
    "sigmoid": (lambda x, a, b: lax.logistic(x), 0, 0),
    "affine": (lambda x, a, b: a * x + b, 1, 0),
    "leakyrelu": (lambda x, a, b: jnp.where(x < 0, a * x, x), 0.01, 0),
    "thresholdedrelu": (lambda x, a, b: jnp.where(x >= a, x, 0), 1, 0),
    "scaledtanh": (lambda x, a, b: a * jnp.tanh(b * x), 1, 1),
    "hardsigmoid": (lambda x, a, b: jnp.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, b: jnp.where(x < 0, a * jnp.expm1(x), x), 1, 0),
    "softsign": (lambda x, a, b: x / (1 + jnp.abs(x)), 0, 0),
    "softplus": (lambda x, a, b: jax.nn.softplus(x), 0, 0),
}
"""Activation in lower case -> function of x, alpha and beta, and their defaults."""


def _activations(names: Sequence[str], alpha: Sequence[float], beta: Sequence[float]) -> list[Function]:
    """Alphas and betas are consumed in order, by the functions that have such."""
    alphas, betas = iter(alpha), iter(beta)
    made: list[Function] = []
    for name in names:
        if name.lower() not in _FUNCTIONS:
            raise refusal(f"there is no activation {name!r}", code="EVRF064")
        function, a, b = _FUNCTIONS[name.lower()]
        a, b = next(alphas, a) if a else a, next(betas, b) if b or name.lower() == "affine" else b
        made.append(partial(_applied, function, a, b))
    return made


def _applied(function: Callable[..., Value], a: float, b: float, x: Value) -> Value:
    return function(x, a, b)


@dataclass(frozen=True, slots=True)
class _Layer:
    """What the three kinds of layers have in common."""

    x: Value
    """[time, batch, features]"""
    lengths: Value
    directions: int
    reverse: tuple[bool, ...]
    batch_first: bool

    def run(self, step: Callable[[int], Step], projected: Callable[[int], Value], states: list[Value]) -> list[Value]:
        """Y [time, directions, batch, hidden] and the last states [directions, batch, hidden]."""
        outputs, lasts = [], []
        for number in range(self.directions):
            rows = projected(number)
            steps = jnp.arange(rows.shape[0])
            lengths = self.lengths
            mask = None
            if lengths is not None:
                mask = (steps[:, None] < jnp.asarray(lengths)[None, :])[..., None]
            backward = self.reverse[number]
            advance = step(number)

            def one(carry: tuple[Value, ...], given: tuple[Value, Value], advance: Step = advance) -> Any:
                row, there = given
                following = advance(row, *carry)
                if there is not None:
                    following = tuple(jnp.where(there, new, old) for new, old in zip(following, carry, strict=True))
                shown = following[0] if there is None else jnp.where(there, following[0], 0)
                return following, shown

            last, shown = lax.scan(one, tuple(state[number] for state in states), (rows, mask), reverse=backward)
            outputs.append(shown)
            lasts.append(last)
        made = [jnp.stack(outputs, 1), *(jnp.stack(each) for each in zip(*lasts, strict=True))]
        if self.batch_first:
            return [made[0].transpose(2, 0, 1, 3), *(each.swapaxes(0, 1) for each in made[1:])]
        return made


def _layer(x: Value, lengths: Value, direction: str, layout: int) -> _Layer:
    reverse = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(direction)
    if reverse is None:
        raise refusal(f"there is no direction {direction!r}", code="EVRF064")
    return _Layer(
        jnp.asarray(x).swapaxes(0, 1) if layout else jnp.asarray(x), lengths, len(reverse), reverse, bool(layout)
    )


def _initial(given: Value, layer: _Layer, hidden: int) -> Value:
    if given is None:
        return jnp.zeros((layer.directions, layer.x.shape[1], hidden), layer.x.dtype)
    return jnp.asarray(given).swapaxes(0, 1) if layer.batch_first else jnp.asarray(given)


def _clipped(x: Value, clip: float | None) -> Value:
    return x if clip is None else jnp.clip(x, -clip, clip)


def _biases(b: Value, r: Value, gates: int) -> tuple[Value, Value]:
    """Of the inputs and of the state, [directions, gates * hidden] each."""
    if b is None:
        zeros = np.zeros((r.shape[0], gates * r.shape[2]), r.dtype)
        return zeros, zeros
    return b[:, : gates * r.shape[2]], b[:, gates * r.shape[2] :]


@op("RNN")
def rnn(
    x: Value, w: Value, r: Value, b: Value = None, sequence_lens: Value = None, initial_h: Value = None, *,
    activation_alpha: Sequence[float] = (), activation_beta: Sequence[float] = (),
    activations: Sequence[str] = ("Tanh", "Tanh"), clip: float | None = None, direction: str = "forward",
    hidden_size: int = 0, layout: int = 0,
) -> Value:  # fmt: skip
    layer = _layer(x, sequence_lens, direction, layout)
    functions = _activations(activations[: layer.directions], activation_alpha, activation_beta)
    inward, stateful = _biases(b, r, 1)

    def step(number: int) -> Step:
        def advance(row: Value, state: Value) -> tuple[Value, ...]:
            return (functions[number](_clipped(row + state @ r[number].T + stateful[number], clip)),)

        return advance

    return tuple(layer.run(step, lambda n: layer.x @ w[n].T + inward[n], [_initial(initial_h, layer, r.shape[2])]))


@op("GRU")
def gru(
    x: Value, w: Value, r: Value, b: Value = None, sequence_lens: Value = None, initial_h: Value = None, *,
    activation_alpha: Sequence[float] = (), activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (), clip: float | None = None, direction: str = "forward", hidden_size: int = 0,
    layout: int = 0, linear_before_reset: int = 0,
) -> Value:  # fmt: skip
    layer = _layer(x, sequence_lens, direction, layout)
    names = activations or ("Sigmoid", "Tanh") * layer.directions
    functions = _activations(names, activation_alpha, activation_beta)
    inward, stateful = _biases(b, r, 3)
    hidden = r.shape[2]

    def step(number: int) -> Step:
        f, g = functions[2 * number : 2 * number + 2]
        gates, candidate = r[number, : 2 * hidden].T, r[number, 2 * hidden :].T
        of_gates, of_candidate = stateful[number, : 2 * hidden], stateful[number, 2 * hidden :]

        def advance(row: Value, state: Value) -> tuple[Value, ...]:
            both = f(_clipped(row[:, : 2 * hidden] + state @ gates + of_gates, clip))
            update, reset = both[:, :hidden], both[:, hidden:]
            if linear_before_reset:
                inner = reset * (state @ candidate + of_candidate)
            else:
                inner = (reset * state) @ candidate + of_candidate
            fresh = g(_clipped(row[:, 2 * hidden :] + inner, clip))
            return ((1 - update) * fresh + update * state,)

        return advance

    return tuple(layer.run(step, lambda n: layer.x @ w[n].T + inward[n], [_initial(initial_h, layer, hidden)]))


@op("LSTM")
def lstm(
    x: Value, w: Value, r: Value, b: Value = None, sequence_lens: Value = None, initial_h: Value = None,
    initial_c: Value = None, p: Value = None, *, activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (), activations: Sequence[str] = (), clip: float | None = None,
    direction: str = "forward", hidden_size: int = 0, input_forget: int = 0, layout: int = 0,
) -> Value:  # fmt: skip
    """Gates are in the order input, output, forget, cell; peepholes input, output, forget."""
    layer = _layer(x, sequence_lens, direction, layout)
    names = activations or ("Sigmoid", "Tanh", "Tanh") * layer.directions
    functions = _activations(names, activation_alpha, activation_beta)
    inward, stateful = _biases(b, r, 4)
    hidden = r.shape[2]

    def step(number: int) -> Step:
        f, g, h = functions[3 * number : 3 * number + 3]
        peepholes = [0, 0, 0] if p is None else [p[number, i * hidden : (i + 1) * hidden] for i in range(3)]

        def advance(row: Value, state: Value, cell: Value) -> tuple[Value, ...]:
            every = row + state @ r[number].T + stateful[number]
            entry, out, forget, fresh = (every[:, i * hidden : (i + 1) * hidden] for i in range(4))
            entry = f(_clipped(entry + peepholes[0] * cell, clip))
            forget = 1 - entry if input_forget else f(_clipped(forget + peepholes[2] * cell, clip))
            following = forget * cell + entry * g(_clipped(fresh, clip))
            out = f(_clipped(out + peepholes[1] * following, clip))
            return out * h(following), following

        return advance

    states = [_initial(initial_h, layer, hidden), _initial(initial_c, layer, hidden)]
    return tuple(layer.run(step, lambda n: layer.x @ w[n].T + inward[n], states))
