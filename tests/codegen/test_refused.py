"""What is not generated is refused with the unsupported-operator error: op, place and remedy, never a crash."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of
from jax import lax

from neuronx_cc.ir.errors import CompileError

X = np.ones((20, 30), np.float32)

UNSUPPORTED: dict[str, Callable[[Any], Any]] = {
    "sort": lambda x: jnp.sort(x),
    "topk": lambda x: lax.top_k(x, 3),
    "reduce-window": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"),
    "scatter": lambda x: x.at[jnp.array([1, 2])].add(1.0),
    "rng-bit-generator": lambda x: lax.rng_bit_generator(x[0, :4].astype(jnp.uint32), (5,))[1],
    "reduce": lambda x: lax.reduce((x, x), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (1,)),
}


@pytest.mark.parametrize("opcode", UNSUPPORTED)
def test_unsupported_operators(opcode: str) -> None:
    text = text_of(UNSUPPORTED[opcode], X)
    with pytest.raises(CompileError, match=rf"EVRF001.*{opcode}.*\(at %") as caught:
        compile_text(text)
    assert caught.value.remedy
    assert caught.value.loc is not None
    assert caught.value.loc.text_line > 0


def test_all_of_a_module_at_once() -> None:
    text = text_of(lambda x: (jnp.sort(x), lax.top_k(x, 2)[0], jnp.cumsum(x)), X)
    with pytest.raises(CompileError) as caught:
        compile_text(text)
    for opcode in ("sort", "topk", "reduce-window"):
        assert opcode in caught.value.message


def test_element_types() -> None:
    with jax.enable_x64(True):
        text = text_of(lambda x: x * 2, X.astype(np.float64))
    with pytest.raises(CompileError, match="f64"):
        compile_text(text)


def test_more_than_the_memory_of_a_core() -> None:
    text = """HloModule m

ENTRY main {
  x = f32[65536,32768] parameter(0)
  y = f32[65536,32768] parameter(1)
  ROOT z = f32[65536,32768] add(x, y)
}
"""
    with pytest.raises(CompileError, match=r"EOOM001.*16 GiB") as caught:
        compile_text(text)
    assert "MiB" in caught.value.message
