"""Operands and results whose neighbours lie apart: no kernel moves what is large element by element.

Each program took 7 to 70 times as long when it did. ``benchmarks/views.py`` draws more of them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function
from lowering import lower

import neuronx_cc
from neuronx_cc.ir.targets import find_machine

TIMES, MORE = 5, 80e3
"""How many times the bytes of parameters and results, and nanoseconds besides, such a program takes at most."""


def normed(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def relative(x: Any, keys: Any, bias: Any) -> Any:
    """Attention beside a bias whose heads lie innermost."""
    scores = jnp.einsum("bhtd,bhsd->bhts", x, keys) + bias.transpose(2, 0, 1)
    return jax.nn.softmax(scores, -1) @ keys


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "rows of a residual": (lambda x, o: normed(x.transpose(0, 2, 1) + o), [(16, 512, 98), (16, 98, 512)]),
    "first dim innermost": (lambda x, o: x.transpose(2, 0, 1) + o, [(256, 196, 8), (8, 256, 196)]),
    "rows of several dims": (
        lambda x, o: x.transpose(0, 2, 1).reshape(8, -1) * o, [(8, 98, 512), (8, 98 * 512)],
    ),
    "short runs": (lambda x, o: x.transpose(1, 2, 0, 3) * 2 + o, [(112, 3, 112, 8), (3, 112, 112, 8)]),
    "computed before": (lambda x, o: jnp.exp(x).transpose(2, 1, 0) + o, [(100, 32, 128), (128, 32, 100)]),
    "rests": (lambda x: x.transpose(4, 0, 1, 2, 3) * 2.0, [(7, 11, 13, 97, 5)]),
    "result across": (lambda x: (lambda y: (y - y.mean(0)) * 2.0)(jnp.exp(x).T), [(384, 1024)]),
    "sums of transposed": (lambda x: jnp.tanh(x.transpose(0, 2, 1).sum(0)).T, [(8, 196, 512)]),
    "sums of computed": (lambda x: jnp.exp(x).transpose(1, 2, 3, 0).sum(0), [(8, 3, 112, 112)]),
    "left operand": (
        lambda x, w: x.transpose(1, 2, 0).reshape(1024, 384) @ w, [(48, 1024, 8), (384, 64)],
    ),
    "right operand": (
        lambda x, w: w @ x.transpose(2, 3, 0, 1).reshape(12, -1), [(19, 64, 12, 17), (64, 12)],
    ),
    "short runs of terms": (
        lambda x, w: w @ x.transpose(2, 1, 0).reshape(16, -1), [(512, 49, 16), (64, 16)],
    ),
    "bias of attention": (relative, [(2, 4, 256, 64), (2, 4, 256, 64), (256, 256, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str, random: np.random.Generator) -> None:
    function, dims = PROGRAMS[name]
    check_function(function, *(random.standard_normal(each, np.float32) for each in dims))


@pytest.mark.parametrize("name", PROGRAMS)
def test_time(name: str) -> None:
    function, dims = PROGRAMS[name]
    arrays = [np.ones(each, np.float32) for each in dims]
    moved = sum(4 * array.size for array in (*arrays, *jax.tree.leaves(jax.eval_shape(function, *arrays))))
    executable = neuronx_cc.compile(lower(function, arrays), auto_cast="none")
    taken = executable.run([], timing_only=True).report.time_ns
    assert taken <= TIMES * moved / find_machine("trn1")["hbm.bw_per_core"] + MORE
