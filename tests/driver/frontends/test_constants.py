"""Parameters that become constants: what programs then compute and take, and files and arrays that do not fit."""

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import assert_close

import neuronx_cc
from neuronx_cc.driver import cli
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.passes.precision.quantization import rounded_weight

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((5, 70)).astype(np.float32)
PARAMETERS = {
    "w": RANDOM.standard_normal((70, 33)).astype(np.float32),
    "v": RANDOM.standard_normal((33, 9)).astype(np.float32),
    "b": RANDOM.standard_normal(9).astype(ml_dtypes.bfloat16),
}


def model(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"]) @ params["v"] + params["b"].astype(jnp.float32)


def written(path: Path, *names: str, lowered: Any = None) -> list[str]:
    """The module and the constants as files, and the words that name them."""
    lowered = lowered or jax.jit(model).lower(PARAMETERS, X)
    (path / "m.pb").write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    np.savez(path / "c.npz", **{f"params['{name}']": PARAMETERS[name] for name in names})  # type: ignore[arg-type]
    return [str(path / "m.pb"), "--constants", str(path / "c.npz")]


def exact(**replaced: np.ndarray) -> np.ndarray:
    w, v, b = (replaced.get(name, PARAMETERS[name]).astype(np.float64) for name in "wvb")
    return np.asarray(np.tanh(X @ w) @ v + b)


@pytest.mark.parametrize("names", [["w"], ["v", "b"], ["w", "v", "b"], []])
def test_programs_take_what_is_left(names: list[str]) -> None:
    constants = {f"params['{name}']": PARAMETERS[name] for name in names}
    loaded = neuronx_cc.load_model(jax.jit(model), PARAMETERS, X, constants=constants)
    executable = neuronx_cc.compile(loaded, auto_cast="none")
    left = {f"params['{name}']": array for name, array in PARAMETERS.items() if name not in names}
    result = executable.run({**left, "x": X})
    assert len(loaded.load().entry.block.args) == 4 - len(names)
    assert_close(result.outputs[0], exact().astype(np.float32), relative=2e-5)


def test_of_a_jax_function(tmp_path: Path) -> None:
    """It is called with what is left, one array a parameter."""
    written(tmp_path, "w", "v")
    executable = neuronx_cc.compile(jax.jit(model), PARAMETERS, X, auto_cast="none", constants=str(tmp_path / "c.npz"))
    result = executable.run([PARAMETERS["b"], X])
    assert_close(result.outputs[0], exact().astype(np.float32), relative=2e-5)


def test_weights_of_a_file_are_stored_in_8_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chosen ones alone; the program is checked against the module with them."""
    monkeypatch.chdir(tmp_path)
    words = written(tmp_path, "w")
    more = ["--quantize-weights", "int8@99.9", "--auto-cast", "none", "--dump-precision", "p.txt", "--output", "m.neff"]
    assert cli.main(["compile", *words, *more]) == 0
    assert Path("p.txt").read_text().count("s8") == 1
    inputs = {"params['v']": PARAMETERS["v"], "params['b']": PARAMETERS["b"].view("V2"), "x": X}
    np.savez("in.npz", **inputs)  # type: ignore[arg-type]
    assert cli.main(["run", "m.neff", "--inputs", "in.npz", "--outputs", "out.npz", "--check"]) == 0
    rounded = rounded_weight(PARAMETERS["w"], [0], "int8@99.9")
    assert_close(np.load("out.npz")["out0"], exact(w=rounded).astype(np.float32), relative=2e-5)


@pytest.mark.parametrize("policy", ["policy.json", "policy.toml"])
def test_a_tuning_may_store_them_so(policy: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """What it says to compile with does so."""
    monkeypatch.chdir(tmp_path)
    words = written(tmp_path, "w", "v")
    more = ["--types", "int8", "--tolerance", "0.5", "--output", policy, "--workspace", "kept"]
    assert cli.main(["tune", *words, *more]) == 0
    assert '"timed int8 int8"' in Path("kept/error-model.jsonl").read_text()
    said = capsys.readouterr().out.splitlines()[-1]
    assert (
        said == f"To compile so: compile {words[0]} --auto-cast none --precision-policy {policy} --constants {words[2]}"
    )
    assert cli.main([*said.partition(": ")[2].split(), "--dump-precision", "p.txt", "--output", "m.neff"]) == 0
    assert Path("p.txt").read_text().count("s8") == Path(policy).read_text().count("int8") > 0


def test_weights_that_have_no_codes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They stay as they are, which costs time that nobody would look for; others are stored."""
    words = written(tmp_path)
    broken = np.where(np.eye(*PARAMETERS["w"].shape, dtype=bool), np.nan, PARAMETERS["w"])
    np.savez(words[2], **{"params['v']": PARAMETERS["v"], "params['w']": broken})  # type: ignore[arg-type]
    more = ["--quantize-weights", "int8", "--dump-precision", str(tmp_path / "p.txt"), "--output", str(tmp_path / "m")]
    assert cli.main(["compile", *words, *more]) == 0
    said = capsys.readouterr().err
    assert re.search(
        r"weights of dot \S+, \S*test_constants.py:\d+ are not stored in 8 bits: \d+ elements are NaN", said
    )
    assert (tmp_path / "p.txt").read_text().count("s8") == 1


@pytest.mark.parametrize(
    ("constants", "said"),
    [
        ({"nothing": X}, "no parameter is called 'nothing'"),
        ({"x": X[:, :3]}, "should be f32"),
        ({"x": X.astype(np.float64)}, "should be f32"),
        ({"x": X.astype(np.float16)}, "the constants: input x should be f32"),
        ({"x": X, "arg3": X}, "both parameter"),
    ],
)
def test_arrays_that_do_not_fit(constants: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        neuronx_cc.compile(neuronx_cc.load_model(jax.jit(model), PARAMETERS, X, constants=constants))
    assert caught.value.code == "EARG915"


def test_parameters_that_are_given_away_are_no_constants(tmp_path: Path) -> None:
    lowered = jax.jit(lambda x: x + 1, donate_argnums=0).lower(X)
    with pytest.raises(UsageError, match="given to the program") as caught:
        neuronx_cc.compile(neuronx_cc.load_model(lowered, constants={"arg0": X}))
    assert caught.value.code == "EARG915"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"[1, 2]"])
def test_files_that_hold_no_arrays(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = written(tmp_path, "w")
    (tmp_path / "c.npz").write_bytes(content)
    assert cli.main(["compile", *words, "--output", str(tmp_path / "m.neff"), "--logfile", str(tmp_path / "l")]) == 2
    (tmp_path / "c.npz").unlink()
    assert cli.main(["compile", *words, "--output", str(tmp_path / "m.neff"), "--logfile", str(tmp_path / "l")]) == 2
    said = capsys.readouterr().err
    assert "cannot read the arrays in" in said
    assert "Traceback" not in said
