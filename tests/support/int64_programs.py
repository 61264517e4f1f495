"""Programs on 64-bit integers, and inputs at the limits of 32, 53 and 64 bits; compared bit for bit with jaxlib.

``random_program`` draws a JAX function: elementwise ops, movement, reductions, windows, sorts, gathers and scatters on
an s64 and a u64 array, nested in loops and branches.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from generated import compile_text, text_of
from jax import lax
from xla_oracle import run_text

Array = np.ndarray[Any, Any]
S64, U64 = np.dtype(np.int64), np.dtype(np.uint64)
POWERS = (24, 31, 32, 53, 62)
SIGNED = [0, 1, -1, 2, -2, 3, 7, -10, 2**63 - 1, -(2**63), -(2**63) + 1, 123456789012345, 2**40 + 2**15 + 1]
SIGNED += [sign * 2**power + near for power in POWERS for near in (-1, 0, 1) for sign in (1, -1)]
UNSIGNED = [value % 2**64 for value in SIGNED] + [2**63 + 1, 2**64 - 2]
FLOATS = [0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 2.0**31, 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 2.0**24 + 2]


def integers(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Half of them from the list of limits, the others of all sizes."""
    random = np.random.default_rng(seed)
    count = int(np.prod(shape))
    info = np.iinfo(dtype)
    every = random.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    if np.dtype(dtype) in (S64, U64):
        every = every >> random.integers(0, 64, count).astype(dtype)
        limits = np.array(SIGNED if np.dtype(dtype) == S64 else UNSIGNED, dtype)
        every = np.where(random.random(count) < 0.5, random.choice(limits, count), every)
    return np.asarray(every, dtype).reshape(shape)


def floats(shape: tuple[int, ...], seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    count = int(np.prod(shape))
    values = random.standard_normal(count) * 10.0 ** random.integers(-3, 22, count)
    values[: len(FLOATS)] = FLOATS[:count]
    return values.astype(np.float32).reshape(shape)


def lowered(function: Callable[..., Any], *inputs: Any) -> str:
    with jax.enable_x64(True):
        return text_of(function, *inputs)


def check_exact(function: Callable[..., Any], *inputs: Any, int64: str = "exact", **options: Any) -> None:
    """Every result has jaxlib's bits; NaNs count as equal."""
    text = lowered(function, *inputs)
    arrays = [np.asarray(array) for array in inputs]
    wanted = run_text(text, arrays)
    found = compile_text(text, int64=int64, **options).run(arrays)
    for index, (got, want) in enumerate(zip(found, wanted, strict=True)):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(got, want, f"result {index}")


# random programs

Program = Callable[..., Any]


class Draw:
    """Draws one program; ``size`` ops at the top, fewer inside loops and branches."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)

    def one_of(self, choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def number(self, dtype: Any) -> Any:
        return np.asarray(self.one_of(SIGNED if dtype == S64 else UNSIGNED), dtype)

    def body(self, size: int, depth: int) -> Callable[[list[Any]], list[Any]]:
        """A function of arrays [4, 9] and [4, 9], s64 and u64, to two such."""
        steps = [self.step(depth) for _ in range(size)]

        def run(state: list[Any]) -> list[Any]:
            for step in steps:
                state = step(state)
            return state

        return run

    def step(self, depth: int) -> Callable[[list[Any]], list[Any]]:
        kinds = [self.binary] * 6 + [self.unary] * 3 + [self.moved, self.folded, self.indexed, self.crossed] * 2
        if depth:
            kinds += [self.loop, self.branch, self.scan]
        return self.one_of(kinds)(depth)  # type: ignore[no-any-return]

    def on_one(self, function: Callable[[Any], Any]) -> Callable[[list[Any]], list[Any]]:
        place = int(self.random.integers(2))

        def run(state: list[Any]) -> list[Any]:
            return [function(x) if index == place else x for index, x in enumerate(state)]

        return run

    def binary(self, depth: int) -> Any:
        op = self.one_of(
            [
                jnp.add,
                jnp.subtract,
                jnp.multiply,
                jnp.maximum,
                jnp.minimum,
                jnp.bitwise_xor,
                jnp.bitwise_and,
                jnp.bitwise_or,
                lax.div,
                lax.rem,
                lax.shift_left,
                lax.shift_right_logical,
                lax.shift_right_arithmetic,
            ]
        )
        numbers = self.number(S64), self.number(U64)
        if op in (lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic):
            amount = int(self.random.integers(0, 70))
            numbers = np.asarray(amount, S64), np.asarray(amount, U64)
        own = bool(self.random.integers(2))

        def apply(x: Any) -> Any:
            other = x[::-1] if own else jnp.full_like(x, numbers[x.dtype == U64])
            return op(x, other)

        return self.on_one(apply)

    def unary(self, depth: int) -> Any:
        return self.on_one(
            self.one_of(
                [jnp.negative, jnp.bitwise_not, lax.population_count, lax.clz, jnp.sign, jnp.square, lambda x: x % 1000]
            )
        )

    def moved(self, depth: int) -> Any:
        shift = int(self.random.integers(1, 9))
        return self.on_one(
            self.one_of(
                [
                    lambda x: jnp.roll(x, shift, 1),
                    lambda x: x[:, ::-1],
                    lambda x: x.T.reshape(4, 9),
                    lambda x: jnp.concatenate([x[2:], x[:2]]),
                    lambda x: jnp.pad(x[1:], ((0, 1), (0, 0)), constant_values=7),
                ]
            )
        )

    def folded(self, depth: int) -> Any:
        axis = int(self.random.integers(2))
        fold = self.one_of([jnp.sum, jnp.prod, jnp.max, jnp.min, jnp.argmax])
        return self.on_one(
            self.one_of(
                [
                    lambda x: x + fold(x, axis, keepdims=True).astype(x.dtype),
                    lambda x: jnp.cumsum(x, axis, dtype=x.dtype),
                    lambda x: lax.cummax(x, axis),
                    lambda x: jnp.sort(x, axis),
                    lambda x: jnp.argsort(x, axis).astype(x.dtype),
                ]
            )
        )

    def indexed(self, depth: int) -> Any:
        number = self.number(S64)
        return self.on_one(
            self.one_of(
                [
                    lambda x: x[(x[0] % 4).astype(S64)][:4, :9],
                    lambda x: x.at[(x[:, 0] % 4).astype(S64)].add(x[::-1]),
                    lambda x: lax.dynamic_update_slice(x, x[:1], (x[0, 0].astype(S64), number)),
                    lambda x: x.at[1].set(x[2]),
                ]
            )
        )

    def crossed(self, depth: int) -> Any:
        def types(state: list[Any]) -> list[Any]:
            return [state[1].astype(S64), state[0].astype(U64)]

        def compared(state: list[Any]) -> list[Any]:
            test = state[0] < state[0][::-1]
            return [jnp.where(test, state[0], state[1].astype(S64)), jnp.where(test, state[1], ~state[1])]

        def rounded(state: list[Any]) -> list[Any]:
            return [state[0].astype(np.float32).astype(S64), state[1].astype(np.float32).astype(U64)]

        def narrowed(state: list[Any]) -> list[Any]:
            return [state[0].astype(np.int32).astype(S64), state[1].astype(np.uint16).astype(U64)]

        return self.one_of([types, compared, rounded, narrowed])

    def loop(self, depth: int) -> Any:
        body, trips = self.body(2, depth - 1), int(self.random.integers(1, 5))

        def step(index: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
            first, second = body(list(state))
            return first + index, second

        return lambda state: list(lax.fori_loop(0, trips, step, tuple(state)))

    def scan(self, depth: int) -> Any:
        body = self.body(1, 0)

        def step(carry: Any, row: Any) -> tuple[Any, Any]:
            first, second = body([carry[0], carry[1]])
            return (first, second), first[0] + row

        def run(state: list[Any]) -> list[Any]:
            carry, rows = lax.scan(step, tuple(state), state[0])
            return [carry[0] ^ rows, carry[1]]

        return run

    def branch(self, depth: int) -> Any:
        ways = [self.body(2, depth - 1) for _ in range(2)]

        def run(state: list[Any]) -> list[Any]:
            test = state[0][0, 0] > state[0][1, 1]
            return list(lax.cond(test, *(lambda *x, way=way: tuple(way(list(x))) for way in ways), *state))

        return run


def random_program(seed: int, size: int = 6, depth: int = 2) -> tuple[Program, Array, Array]:
    """A function, and its two inputs."""
    body = Draw(seed).body(size, depth)
    return (lambda *state: tuple(body(list(state)))), integers(S64, (4, 9), seed), integers(U64, (4, 9), seed + 1)
