"""Maps that read or give permuted arrays: DMAs move runs, if need be to and from a copy in another order."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import TRN1, check_function, compile_text, text_of

from neuronx_cc.runtime.clock_regions import simulate

Function = Callable[..., Any]


def softmax_of(rows: int) -> Function:
    return lambda x, *_: jax.nn.softmax(x.reshape(rows, -1), -1)


def scaled(x: Any, y: Any) -> Any:
    return jnp.tanh(x.reshape(y.shape) * y)


CASES: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...], float]] = {
    "rows across memory": (lambda x, *_: x.sum(-1), (8, 224, 3, 224), (2, 3, 1, 0), 250),
    "few long rows": (softmax_of(4), (64, 64, 4, 12), (2, 1, 3, 0), 200),
    "few long rows made on chip": (lambda x, *_: softmax_of(5)(jnp.exp(x)), (97, 7, 13, 5, 11), (3, 1, 4, 2, 0), 170),
    "read transposed": (lambda x, *_: jnp.tanh(jax.nn.softmax(x, -1)).T, (384, 2048), (1, 0), 160),
    "read transposed, odd": (lambda x, *_: jnp.tanh(jax.nn.softmax(x, -1)).T, (131, 1031), (1, 0), 70),
    "features last": (lambda x, y: scaled(x, y).T, (16, 32, 56, 56), (1, 2, 3, 0), 200),
    "few of each array": (lambda x, y: scaled(x, y).T, (64, 64, 12, 4), (3, 1, 2, 0), 90),
    "tiles in the order of memory": (lambda x, *_: jnp.tanh(x.sum(-1)).T, (19, 64, 17, 12), (3, 2, 0, 1), 70),
}


def case(name: str) -> tuple[Function, list[np.ndarray[Any, Any]], float]:
    function, dims, order, most = CASES[name]
    random = np.random.default_rng(7)
    x = random.standard_normal(dims).astype(np.float32)
    features = 16 if name == "features last" else x.size // 4
    y = random.standard_normal((x.size // features, features)).astype(np.float32)
    return lambda x, y: function(x.transpose(order), y), [x, y], most


@pytest.mark.parametrize("name", CASES)
def test_runs_are_moved(name: str) -> None:
    """Microseconds; element by element it was 140 to 5,670."""
    function, arrays, most = case(name)
    program = compile_text(text_of(function, *arrays)).program
    assert simulate(program, TRN1).total <= most * 1000


@pytest.mark.parametrize(
    "name", ["few long rows", "read transposed, odd", "few of each array", "tiles in the order of memory"]
)
def test_values(name: str) -> None:
    function, arrays, _ = case(name)
    check_function(function, *arrays)
