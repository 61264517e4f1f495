"""What compiling takes grows as programs do: calls of Python functions for each further layer stay the same."""

import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import ShapeDtypeStruct
from jax.typing import ArrayLike

import neuronx_cc

Program = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, and shapes of its arguments."""
MARGIN = 1.1
"""Of the calls for layers that come first, what as many further layers may take."""
OFTEN, ALONE = 20_000, 1.5
"""The same of one function that is called so often: 2 of what looks at all of the program for each layer."""


def f32(*dims: int) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(dims, jnp.float32)


LAYER = {"qkv": f32(128, 384), "out": f32(128, 128), "up": f32(128, 512), "down": f32(512, 128)}


def layer(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """A layer of a transformer; arrays between layers have the dims of those whose rows norms fold."""
    rows, features = x.shape
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    heads = (scaled @ weights["qkv"]).reshape(rows, 3, 4, features // 4).transpose(1, 2, 0, 3)
    shares = jax.nn.softmax(heads[0] @ heads[1].transpose(0, 2, 1), -1)
    x = x + (shares @ heads[2]).transpose(1, 0, 2).reshape(rows, features) @ weights["out"]
    return x + jax.nn.gelu(x @ weights["up"]) @ weights["down"]


def transformer(count: int) -> Program:
    def forward(x: jax.Array, weights: list[dict[str, jax.Array]]) -> jax.Array:
        for each in weights:
            x = layer(x, each)
        return x

    return forward, (f32(64, 128), [LAYER] * count)


def perceptron_step(count: int) -> Program:
    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for each in weights:
            x = jax.nn.relu(x @ each)
        return (x**2).sum()

    def step(weights: list[jax.Array], means: list[jax.Array], x: jax.Array) -> Any:
        means = jax.tree.map(lambda mean, g: 0.9 * mean + 0.1 * g, means, jax.grad(loss)(weights, x))
        return jax.tree.map(lambda w, mean: w - 0.1 * mean, weights, means), means

    return step, ([f32(64, 64)] * count, [f32(64, 64)] * count, f32(32, 64))


def convolutions(count: int) -> Program:
    def forward(x: jax.Array, kernels: list[jax.Array]) -> jax.Array:
        for each in kernels:
            x = x + jax.nn.relu(
                jax.lax.conv_general_dilated(x, each, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            )
        return x

    return forward, (f32(1, 14, 14, 32), [f32(3, 3, 32, 32)] * count)


def concatenation(count: int) -> Program:
    return lambda x: jnp.concatenate([x * each for each in range(count)]), (f32(4, 128),)


def updates(count: int) -> Program:
    def forward(x: jax.Array, y: jax.Array) -> jax.Array:
        for at in range(count):
            x = x.at[at].set(x[at] * 2 + y)
        return x

    return forward, (f32(count, 64), f32(64))


def branches(count: int) -> Program:
    def forward(x: jax.Array, at: ArrayLike) -> jax.Array:
        for each in range(count):
            x = jax.lax.cond(at > each, lambda x: x * 2, jnp.sin, x)  # type: ignore[operator]
        return x

    return forward, (f32(8, 32), ShapeDtypeStruct((), jnp.int32))


def calls(program: Program) -> Counter[CodeType]:
    """How often each function is called, or goes on, while ``program`` is compiled."""
    proto = jax.jit(program[0]).lower(*program[1]).compiler_ir("hlo").as_serialized_hlo_module_proto()
    found: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found[frame.f_code] += 1

    former = sys.getprofile()
    sys.setprofile(count)
    try:
        neuronx_cc.compile(proto, auto_cast="matmult")
    finally:
        sys.setprofile(former)
    return found


@pytest.mark.parametrize(
    ("make", "count"),
    [(transformer, 6), (perceptron_step, 8), (convolutions, 8), (concatenation, 16), (updates, 8), (branches, 4)],
)
def test_further_layers_take_no_more(make: Callable[[int], Program], count: int) -> None:
    calls(make(1))  # imports, and what is kept in the process
    few, some, many = (calls(make(size)) for size in (count, 2 * count, 4 * count))

    def growth(of: Callable[[Counter[CodeType]], int]) -> float:
        return (of(many) - of(some)) / max(1, 2 * (of(some) - of(few)))

    assert growth(Counter.total) <= MARGIN
    for code in (code for code, number in many.items() if number > OFTEN):
        assert growth(lambda found, code=code: found[code]) <= ALONE, (code.co_qualname, code.co_filename)  # type: ignore[misc]
