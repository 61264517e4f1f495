"""What JAX lowers its common functions to, through the pipeline: the ops that are left, and their values."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from after_passes import compiled

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.manager import PassContext, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names

X = np.linspace(-9, 9, 64, dtype=np.float32).reshape(4, 16)


def exact_gelu(x):
    return jax.nn.gelu(x, approximate=False)


def layer_norm(x):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * x[0] + x[1]


def test_exact_gelu_is_one_erf():
    _, counts, error = compiled(exact_gelu, X)
    assert counts["erf"] == 1
    assert counts["select"] == counts["exponential"] == 0
    assert counts.total() <= 11
    assert error <= 1e-6


def test_gradient_of_exact_gelu_is_one_erf():
    _, counts, error = compiled(jax.grad(lambda x: exact_gelu(x).sum()), X)
    assert counts["erf"] == 1
    assert counts["select"] == 0
    assert error <= 1e-6


def test_exact_gelu_in_bf16_is_one_erf():
    _, counts, error = compiled(exact_gelu, X.astype(jnp.bfloat16))
    assert counts["erf"] == 1
    assert error <= 2**-8 * 9


def test_erfc_that_is_not_scaled_keeps_its_tail():
    """1 - erf(x) is 0 where erfc(x) is 1e-12: only a use that multiplies may lose it."""
    _, counts, error = compiled(lambda x: jnp.log(jax.scipy.special.erfc(x)), np.full((4,), 5, np.float32))
    assert counts["erf"] == 0
    assert error < 1e-4


@pytest.mark.parametrize(
    "function",
    [
        jax.scipy.special.erfcx,
        lambda x: 1e12 * jax.lax.erfc(x),
        lambda x: 1e12 * x * jax.lax.erfc(x),
        lambda x: 1e12 * jax.lax.erfc(x) * x,
    ],
)
def test_erfc_that_is_scaled_up_keeps_its_tail(function):
    """A factor may be as large as erfc is small; only GELU's is not."""
    _, counts, error = compiled(function, np.linspace(4, 5.5, 16, dtype=np.float32))
    assert counts["erf"] == 0
    assert error < 0.5


@pytest.mark.parametrize(
    ("function", "opcode"), [(jax.nn.silu, "logistic"), (jax.nn.sigmoid, "logistic"), (jax.nn.gelu, "logistic")]
)
def test_activation_is_one_function(function, opcode):
    _, counts, error = compiled(function, X)
    assert counts[opcode] == 1
    assert counts["exponential"] == counts["divide"] == 0
    assert error <= 1e-6


def test_softmax_has_no_noise():
    _, counts, error = compiled(jax.nn.softmax, X)
    assert counts == Counter(constant=2, reduce=2, broadcast=2, subtract=1, exponential=1, divide=1)
    assert error <= 1e-6


def test_layer_norm_keeps_no_reshape_of_row_values():
    _, counts, error = compiled(layer_norm, X)
    assert counts["reduce"] == 2
    assert counts["reshape"] == 2  # x[0] and x[1], which the model asks for
    assert error <= 1e-5


def test_argmax_is_recognised():
    module, counts, error = compiled(lambda x: (jnp.argmax(x, -1), jnp.argmin(x, 0)), X)
    assert error == 0
    assert counts["reduce"] == 4
    assert all(
        isinstance(op.results[0].type, hlo.ArrayType) for op in ops_of(module.entry.block) if op.opcode == "reduce"
    )


def test_one_hot_is_a_comparison():
    _, counts, error = compiled(lambda i: jax.nn.one_hot(i, 7), np.arange(5, dtype=np.int32))
    assert counts == Counter(broadcast=2, iota=1, compare=1, convert=1)
    assert error == 0


def test_checkpoint_keeps_its_recomputation():
    """jax.checkpoint recomputes the sine in the backward pass; CSE must not merge it with the first."""

    def loss(x):
        return jnp.sum(jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x))

    _, counts, error = compiled(jax.value_and_grad(loss), X)
    assert counts["sine"] >= 3
    assert counts["opt-barrier"] == 0
    assert error <= 1e-5


def test_layers_cost_the_same_ops():
    """Twice the layers, twice the ops: no pass leaves something after that grows."""

    def tower(depth):
        def run(x, w):
            for _ in range(depth):
                x = x + jax.nn.gelu(layer_norm(x) @ w, approximate=False)
            return x

        return run

    totals = [compiled(tower(depth), X, np.eye(16, dtype=np.float32))[1].total() for depth in (2, 4, 6)]
    assert totals[2] - totals[1] == totals[1] - totals[0]


def test_deep_chains_do_not_exhaust_the_stack():
    """A select like erfc's over a thousand ops: the match gives up."""
    lines = ["x = f32[8] parameter(0)", "one = f32[] constant(1)", "ones = f32[8] broadcast(one), dimensions={}"]
    lines += ["a = f32[8] abs(x)", "p = pred[8] compare(a, ones), direction=LT", "chain0 = f32[8] sine(x)"]
    lines += [f"chain{i} = f32[8] {'sine' if i % 2 else 'tanh'}(chain{i - 1})" for i in range(1, 3000)]
    text = "\n".join(["HloModule deep", "ENTRY main {", *lines, "ROOT r = f32[8] select(p, chain2999, x)", "}"])
    module = parse_text(text)
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext())
    assert sum(1 for _ in ops_of(module.entry.block)) == 3005


def test_softplus_needs_no_guard():
    special = np.resize(np.array([np.nan, np.inf, -np.inf, 0, -0.0, 90, -90, 1e30, -1e30], np.float32), X.shape)
    module, counts, error = compiled(jax.nn.softplus, X)
    assert counts["select"] == counts["compare"] == 0
    assert error <= 1e-6
    np.testing.assert_allclose(evaluate(module, [special])[0], jax.nn.softplus(special), atol=1e-38, rtol=1e-6)
