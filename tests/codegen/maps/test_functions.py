"""Activations of several ops are one instruction of Scalar, however they are written."""

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import Compiled, check_function

from neuronx_cc.ir.isa.program import Instr, Space, Stream

CUBE = 0.044715
RELATIVE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
SPELLINGS = {
    "gelu": (
        lambda x: jax.nn.gelu(x, approximate=False),
        lambda x: x * 0.5 * (1 + jax.lax.erf(x / np.sqrt(2).astype(x.dtype))),
        lambda x: (jax.lax.erf(x * 0.7071067811865476) + 1) / 2 * x,
        lambda x: x / 2 + x / 2 * jax.lax.erf(x * 0.7071067811865476),
    ),
    "gelu_apprx_tanh": (
        jax.nn.gelu,
        lambda x: 0.5 * x * (1 + jnp.tanh(0.7978845608 * (x + CUBE * x * x * x))),
        lambda x: x * jax.nn.sigmoid(1.5957691216 * (x + CUBE * x**3)),
        lambda x: x * (0.5 + 0.5 * jnp.tanh(x * 0.7978845608 * (1 + CUBE * x * x))),
    ),
    "silu": (
        jax.nn.silu,
        lambda x: x / (1 + jnp.exp(-x)),
        lambda x: x * (1 / (1 + jnp.exp(-x))),
        lambda x: x * (0.5 * jnp.tanh(x * 0.5) + 0.5),
    ),
}


def activations(compiled: Compiled) -> list[str]:
    made = (record for record in compiled.program.records if isinstance(record, Instr))
    return [instr.alu[0] for instr in made if instr.stream is Stream.SCALAR and instr.alu != ("copy",)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("name", "function"), [(name, each) for name, forms in SPELLINGS.items() for each in forms])
def test_every_spelling_is_one_activation(name: str, function: Any, dtype: str) -> None:
    x = np.concatenate([np.linspace(-20, 20, 995), [np.inf, -np.inf, np.nan, 0, -0.0]]).reshape(10, 100)
    compiled = check_function(function, x.astype(jnp.dtype(dtype)), relative=RELATIVE[dtype])
    assert activations(compiled) == [name]


NEAR = {
    "another constant": lambda x: x * jax.nn.sigmoid(x * 1.001),
    "quick gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "another factor": lambda x: (x + 1e-4) * jax.nn.sigmoid(x),
    "a sum": lambda x: x + jax.nn.sigmoid(x),
    "two arrays": lambda x: x * jax.nn.sigmoid(x[::-1]),
    "a rounded constant": lambda x: x * 0.5 * (1 + jax.lax.erf(x * 0.7072)),
}


@pytest.mark.parametrize("form", NEAR)
def test_what_is_only_near(form: str, random: np.random.Generator) -> None:
    compiled = check_function(NEAR[form], random.standard_normal((12, 64)).astype(np.float32))
    assert not {"gelu", "silu", "gelu_apprx_tanh"} & {*activations(compiled)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_which_a_part_is_wanted_too(dtype: str, random: np.random.Generator) -> None:
    """As the gradient wants it."""
    x = random.standard_normal((12, 64)).astype(jnp.dtype(dtype))

    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        gate = jax.nn.sigmoid(x)
        return x * gate, gate * (1 - gate)

    assert activations(check_function(function, x, relative=RELATIVE[dtype])) == ["sigmoid"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("function", [partial(jax.nn.gelu, approximate=False), jax.nn.gelu, jax.nn.silu])
def test_among_other_ops(function: Any, dtype: str, random: np.random.Generator) -> None:
    """With a scale and a bias before it, a product and a sum of rows after it."""
    x, y = random.standard_normal((2, 65, 129)).astype(jnp.dtype(dtype))
    scale, bias = random.standard_normal((2, 65, 1)).astype(jnp.dtype(dtype))

    def whole(x: Any, y: Any, scale: Any, bias: Any) -> tuple[Any, Any]:
        made = function(x * scale + bias)
        return (made * y).astype(jnp.bfloat16), made.astype(jnp.float32).sum(-1)

    compiled = check_function(whole, x, y, scale, bias, relative=RELATIVE[dtype])
    assert len(activations(compiled)) == 1


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 512])
@pytest.mark.parametrize("function", [partial(jax.nn.gelu, approximate=False), jax.nn.gelu, jax.nn.silu])
def test_after_a_contraction(function: Any, rows: int, random: np.random.Generator) -> None:
    x, w = random.standard_normal((rows, 64)).astype(np.float32), random.standard_normal((64, 160)).astype(np.float32)
    bias = random.standard_normal(160).astype(np.float32)
    compiled = check_function(lambda x, w, bias: function(x @ w + bias), x, w, bias)
    assert {"gelu", "silu", "gelu_apprx_tanh"} & {*activations(compiled)}


def test_inverse_error_function(random: np.random.Generator) -> None:
    """Two polynomials, steps of which are one instruction each, and an ordinary logarithm: everywhere as exact."""
    ends = 1 - np.geomspace(1e-7, 0.5, 500)
    near = np.concatenate([np.geomspace(1e-38, 0.5, 2000), ends, [0.0, -0.0, 1.0, -1.0, 1.5, np.nan, np.inf]])
    x = random.permutation(np.concatenate([near, -near])).astype(np.float32)
    compiled = check_function(jax.lax.erf_inv, x)
    (got,), want = compiled.run([x]), jax.jit(jax.lax.erf_inv)(x)
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-38)  # XLA flushes subnormals
    assert not any(
        record.alu[:1] == ("log-plus-one",) for record in compiled.program.records if isinstance(record, Instr)
    )


def test_normal_random_numbers() -> None:
    """The rounds of the bits are no loop, and what is made of them stays on chip."""
    compiled = check_function(lambda key: jax.random.normal(key, (256, 512)), np.array([3, 5], np.uint32))
    records = [record for record in compiled.program.records if isinstance(record, Instr) and record.op == "dma_copy"]
    stored = [prod(ref.counts) for record in records for ref in record.outs if ref.space is Space.HBM]
    assert sum(stored) < 2 * 256 * 512
