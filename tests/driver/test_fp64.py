"""FP64 semantics: as JAX computes in FP64, bits of FP32 kept where they are looked at, and what ``run`` says."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronx_cc.driver import cli
from neuronx_cc.driver.fp64 import from_fp64, widened
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir import reference

RATE = float(np.float32(3.9))


def chaotic(x, rate):
    """Errors double with every step of the loop; the rate is a constant as well."""
    return jax.lax.fori_loop(0, 30, lambda _, y: RATE * y * (1 - y) * rate, x)


def mixed(x, rate):
    """Reductions, sorts, branches, products, constants, a splat."""
    y = jnp.where(x.sum() > 0, x @ x.T, x + np.linspace(0, 1, 7, dtype=np.float32)[:, None])
    return jnp.sort(y)[::-1], jnp.cumsum(y, 0) + jnp.ones((7, 7)) * rate, jnp.argmax(y), jnp.mean(jnp.exp(y), 1)


def arguments(function) -> list[np.ndarray]:
    shape = (7, 7) if function is mixed else (50,)
    return [np.random.default_rng(0).random(shape).astype(np.float32), np.float32(1.0)]


@pytest.mark.parametrize("function", [chaotic, mixed])
def test_values_are_those_of_jax_in_fp64(function) -> None:
    given = arguments(function)
    module = load_module(jax.jit(function).lower(*given).compiler_ir("hlo").as_serialized_hlo_module_proto())
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        wanted = function(*(jnp.asarray(a, jnp.float64) for a in given))
        wanted = [np.asarray(each) for each in jax.tree.leaves(wanted)]
    found = reference.evaluate(widened(module), [np.asarray(a, np.float64) for a in given])
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    apart = from_fp64(module, [given], [reference.evaluate(module, given)])
    assert apart.outputs == apart.fp32
    assert (apart.fp32 > 1e-2) == (function is chaotic)
    assert "as near as FP32" in str(apart)


def test_bits_are_those_of_fp32() -> None:
    def bits(x):
        y = x * 3
        return jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(y, jnp.int32) & -2, jnp.float32) * 2

    x = np.linspace(1, 2, 9, dtype=np.float32)
    module = load_module(jax.jit(bits).lower(x).compiler_ir("hlo").as_serialized_hlo_module_proto())
    (found,) = reference.evaluate(widened(module), [x.astype(np.float64)])
    wanted = ((x * np.float32(3)).view(np.int32) & -2).view(np.float32).astype(np.float64) * 2
    np.testing.assert_array_equal(found, wanted)


def test_run_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    given = arguments(chaotic)
    proto = jax.jit(chaotic).lower(*given).compiler_ir("hlo").as_serialized_hlo_module_proto()
    (tmp_path / "m.pb").write_bytes(proto)
    np.savez(tmp_path / "in.npz", arg0=given[0], arg1=given[1])
    assert cli.main(["compile", "m.pb", "--auto-cast", "none", "--output", "m.neff"]) == 0
    capsys.readouterr()
    words = ["run", "m.neff", "--inputs", "in.npz", "--check", "--fp64"]
    assert cli.main([*words, "--json"]) == 0
    apart = json.loads(capsys.readouterr().out)["fp64"]
    assert apart["fp32"] > 1e-2
    assert 1e-2 < apart["outputs"] < 10
    assert cli.main(words) == 0
    assert "differ from FP64" in capsys.readouterr().out
    assert cli.main(["run", "m.neff", "--fp64"]) == 2
    assert "EARG905" in capsys.readouterr().err
