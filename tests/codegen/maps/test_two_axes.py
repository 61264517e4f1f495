"""Maps with indices of two axes on the partitions: right wherever they may be chosen, and as fast as one axis alone."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of

from neuronx_cc.codegen.maps import joined
from neuronx_cc.codegen.maps.spread import Partitions
from neuronx_cc.runtime.clock_regions import simulate

SIZES = (2, 3, 5, 8, 16, 17, 21, 32, 33, 48, 96, 127, 128, 129)
QUARTER = TRN1.with_settings(["memory.sbuf_partition_bytes=49152"])
candidates = joined.candidates


def two_axes(*args: Any) -> Iterator[Any]:
    """The plans with groups; they stand for all where there are any."""
    found = list(candidates(*args))
    yield from [plan for plan in found if plan.partitions.groups > 1] or found


def as_drawn(chance: random.Random) -> Callable[..., Any]:
    """Plans with two axes of any sizes, that do not divide these either."""

    def plans(*args: Any) -> Iterator[Any]:
        for plan in two_axes(*args):
            partitions = plan.partitions
            if partitions.groups > 1:
                axis, outer = plan.kernel.shape[partitions.axis], plan.kernel.shape[partitions.group_axis]
                groups = chance.randint(2, min(16, outer))
                size = chance.randint(1, min(128 // groups, axis))
                inner = chance.choice((1, axis // size, max(1, axis // size // 2)))
                partitions = Partitions(partitions.axis, size, inner, groups, partitions.group_axis)
            yield replace(plan, partitions=partitions)

    return plans


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, s: jax.nn.softmax(x, 1),
    "norm": lambda x, s: (x - x.mean(1, keepdims=True)) * jax.lax.rsqrt(x.var(1, keepdims=True) + 1e-3) * s + 1,
    "folds": lambda x, s: (x.max(1), (x - x.min(1, keepdims=True)).sum(1), jnp.argmax(x * s, 1)),
    "of a part": lambda x, s: jnp.tanh(x[:, 1:] * s[:, :-1]) + x[:, :-1],
    "backwards": lambda x, s: jax.nn.softmax(x[::-1, :, ::-1] * s, 1) + x,
    "last": lambda x, s: jax.nn.softmax(x[:, :-1], -1),
    "whole numbers": lambda x, s: (lambda n: n - n.max(1, keepdims=True))((8 * x).astype(jnp.int32)),
}


@pytest.mark.parametrize("machine", [TRN1, QUARTER], ids=["", "quarter"])
@pytest.mark.parametrize("seed", range(28))
def test_values(seed: int, machine: Any) -> None:
    chance = random.Random(seed)
    dims: list[int] = []
    while not 2000 < np.prod(dims) < 150_000:
        dims = [chance.choice(SIZES) for _ in range(chance.choice((3, 4)))]
    function = [*FUNCTIONS.values()][seed % len(FUNCTIONS)]
    values, dtype = np.random.default_rng(seed), chance.choice((jnp.float32, jnp.float32, jnp.bfloat16))
    scale = [dims[1] if axis == 1 else 1 for axis in range(len(dims))]
    arrays = [np.asarray(values.standard_normal(shape), dtype) for shape in (dims, scale)]
    with mock.patch.multiple(joined, candidates=as_drawn(chance), GAIN=0.0, GAIN_ON_CHIP=0.0):
        check_function(function, *arrays, relative=3e-5 if dtype == jnp.float32 else 2e-2, machine=machine)


def time(function: Callable[..., Any], dims: Sequence[int], plans: Callable[..., Any] = candidates) -> float:
    with mock.patch.object(joined, "candidates", plans):
        return simulate(compile_text(text_of(function, np.ones(dims, np.float32))).program, TRN1).total


def one_axis(*args: Any) -> Iterator[Any]:
    yield from (plan for plan in candidates(*args) if plan.partitions.groups == 1)


@pytest.mark.parametrize("dims", [(8, 21, 4096), (16, 10, 1000), (8, 21, 31, 33)], ids=str)
def test_few_neighbours_after_rows_in_the_middle(dims: tuple[int, ...]) -> None:
    """Long runs of neighbours on all partitions: with one axis, runs are short or partitions few."""
    softmax = FUNCTIONS["softmax"]
    assert time(lambda x: softmax(x, 1), dims) < 0.6 * time(lambda x: softmax(x, 1), dims, one_axis)


@pytest.mark.parametrize("name", ["max", "sum", "var", "argmax", "logsumexp"])
@pytest.mark.parametrize("dims", [(8, 21, 4096), (32, 49, 512), (8, 64, 3136)], ids=str)
def test_reductions_of_the_middle(dims: tuple[int, int, int], name: str) -> None:
    """Beside the same over the last dim, of which a partition has neighbours that Vector reads at full rate."""
    function = getattr(jax.nn if name == "logsumexp" else jnp, name)
    last = (dims[0], dims[2], dims[1])
    most = 2.3 if name in ("max", "sum") else 3.5
    assert time(lambda x: function(x, axis=1), dims) < most * time(lambda x: function(x, axis=-1), last)
