"""``run --check`` of loops that amplify last bits: iterations are judged one by one, on the state that they had."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronx_cc.driver.cli import main


def step(state, w, v):
    """A difference of near products, a hundred times as large."""
    hidden = jnp.tanh(state @ w)
    return jnp.tanh(100 * (hidden @ v - hidden @ (v + 1e-3 * w))) + state


def counted(x, w, v):
    return lax.fori_loop(0, 30, lambda i, state: step(state, w, v) + 1e-3 * i, x)


def decided(x, w, v):
    def body(state):
        return step(state[0], w, v), state[1] + 1

    return lax.while_loop(lambda state: (state[1] < 30) & (jnp.max(state[0]) < 1e9), body, (x, 0))


def stacked(x, w, v):
    def body(state, by):
        made = step(state, w, v) * by
        return made, (made[0], jnp.argmax(made, 1))

    return lax.scan(body, x, jnp.linspace(0.9, 1.1, 30))


def swapped(x, w, v):
    def body(_, states):
        return states[1], step(states[0], w, v), states[2]

    return lax.fori_loop(0, 31, body, (x, x + 1, w))


def nested(x, w, v):
    def body(_, state):
        return lax.fori_loop(0, 3, lambda _, inner: step(inner, w, v), state) - 1

    return lax.fori_loop(0, 8, body, x)


@pytest.fixture(autouse=True)
def _inside_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def compiled(model, mode, size=32, seed=0):
    random = np.random.default_rng(seed)
    inputs = [random.standard_normal((size, size), dtype=np.float32) for _ in range(3)]
    module = jax.jit(model).lower(*inputs).compiler_ir("hlo").as_serialized_hlo_module_proto()
    Path("m.hlo.pb").write_bytes(module)
    np.savez("in.npz", **{f"arg{number}": each for number, each in enumerate(inputs)})
    assert main(["compile", "m.hlo.pb", "--auto-cast", mode, "--output", "m.neff"]) == 0


@pytest.mark.parametrize("seed", [0, 8])  # last bits of FP32 inputs move no number of 16 bits of the second
@pytest.mark.parametrize("simulator", ["native", "numpy"])
@pytest.mark.parametrize("mode", ["none", "all"])
@pytest.mark.parametrize("model", [counted, decided, stacked, swapped, nested])
def test_chaos_is_nobodys_fault(model, mode, simulator, seed, capsys):
    compiled(model, mode, seed=seed)
    status = main(["run", "m.neff", "--inputs", "in.npz", "--check", "--simulator", simulator])
    assert status == 0, capsys.readouterr().err
    assert "check: outputs" in capsys.readouterr().out


@pytest.mark.parametrize("model", [counted, decided, stacked, swapped])
def test_a_fault_in_an_iteration_is(model, capsys, monkeypatch):
    """The reference is at fault: it takes every tanh for a little more."""
    from neuronx_cc.ir.reference import REFERENCE

    compiled(model, "none")
    right = REFERENCE["tanh"]
    monkeypatch.setitem(REFERENCE, "tanh", lambda op, value: right(op, value) + np.float32(0.01))
    assert main(["run", "m.neff", "--inputs", "in.npz", "--check"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("[NCC_ERUN902] (%")
    assert "the first op to differ is" in err
    assert "get-tuple-element" not in err, "an op of the body is named"


def test_a_nan_that_transposes_spread(capsys):
    def model(x, w, v):
        squares = jnp.sum(x * x, 1, keepdims=True) - 1e9 * (jnp.arange(128)[:, None] == 3)
        return (x / jnp.sqrt(squares)) @ w + v

    compiled(model, "matmult", 128)
    assert main(["run", "m.neff", "--inputs", "in.npz", "--check"]) == 1
    assert "--no-fast-relayout" in capsys.readouterr().err
    assert main(["compile", "m.hlo.pb", "--auto-cast", "matmult", "--output", "m.neff", "--no-fast-relayout"]) == 0
    assert main(["run", "m.neff", "--inputs", "in.npz", "--check"]) == 0
