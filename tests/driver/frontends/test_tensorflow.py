"""TensorFlow: functions and saved models against the framework's own values."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.driver.cli import main

needs_tensorflow = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow")


def classifier(tf: Any) -> Any:
    draw = np.random.default_rng(1)

    class Classifier(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(draw.standard_normal((6, 4)).astype(np.float32))
            self.b = tf.Variable(draw.standard_normal(4).astype(np.float32))

        @tf.function(input_signature=[tf.TensorSpec([None, 6], tf.float32, name="features")])
        def __call__(self, features: Any) -> Any:
            scores = tf.nn.softmax(features @ self.w + self.b)
            return {"scores": scores, "best": tf.argmax(scores, -1, output_type=tf.int32)}

    return Classifier()


@needs_tensorflow
def test_functions_and_saved_models(tmp_path: Path) -> None:
    import tensorflow as tf

    module = classifier(tf)
    x = np.random.default_rng(2).standard_normal((3, 6)).astype(np.float32)
    want = {name: value.numpy() for name, value in module(x).items()}
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=module.__call__)
    for given in (tmp_path / "saved", module.__call__):
        model = neuronx_cc.load_model(given, shapes={"features": (3, 6)})
        assert model.inputs == ("features",)
        assert model.outputs == ("best", "scores")
        best, scores = neuronx_cc.compile(model, auto_cast="none").run({"features": x}).outputs
        np.testing.assert_allclose(scores, want["scores"], rtol=1e-5)
        np.testing.assert_array_equal(best, want["best"])
        with pytest.raises(neuronx_cc.CompileError, match="EMOD025"):
            neuronx_cc.load_model(given)
        with pytest.raises(neuronx_cc.UsageError, match="EARG915"):
            neuronx_cc.load_model(given, shapes={"other": (3,)})


@needs_tensorflow
def test_weights_as_parameters_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tensorflow as tf

    module = classifier(tf)
    x = np.random.default_rng(2).standard_normal((3, 6)).astype(np.float32)
    want = module(x)
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=module.__call__)
    neff, weights, out = (str(tmp_path / name) for name in ("m.neff", "w.npz", "out.npz"))
    common = ["--logfile", str(tmp_path / "log"), "--output", neff, "--auto-cast", "none", "--shape", "features=3,6"]
    asked = ["compile", str(tmp_path / "saved"), *common, "--save-weights", weights]
    assert main(asked) == 2
    assert "weights are constants" in capsys.readouterr().err
    assert main([*asked, "--no-inline-weights-to-neff"]) == 0
    saved = np.load(weights)
    assert sorted(map(np.shape, saved.values())) == [(4,), (6, 4)]
    np.savez(tmp_path / "in.npz", features=x)
    run = ["run", neff, "--inputs", str(tmp_path / "in.npz"), "--weights", weights, "--outputs", out]
    assert main(run) == 0
    assert sorted(np.load(out).files) == ["best", "scores"]
    np.testing.assert_allclose(np.load(out)["scores"], want["scores"].numpy(), rtol=1e-5)
    assert main([*run[:4], "--weights", str(tmp_path / "in.npz")]) == 1
    assert "'features' is in" in capsys.readouterr().err
    assert main(run[:4]) == 1
    assert "no value for parameter 1, 2" in capsys.readouterr().err


@needs_tensorflow
def test_damaged_saved_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01\x12\x02\x0a\x00")
    with pytest.raises(neuronx_cc.CompileError, match="EVRF064"):
        neuronx_cc.load_model(tmp_path)


@needs_tensorflow
def test_what_xla_cannot_compile_is_refused() -> None:
    import tensorflow as tf

    function = tf.function(lambda x: tf.where(x > 0), input_signature=[tf.TensorSpec([4], tf.float32, name="x")])
    with pytest.raises(neuronx_cc.NeuronError):
        neuronx_cc.compile(neuronx_cc.load_model(function))


@needs_tensorflow
def test_tables_and_state_are_refused_by_name() -> None:
    import tensorflow as tf

    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [3.0, 4.0]), 0.0)
    count = tf.Variable(0.0)
    spec = [tf.TensorSpec([3], tf.float32)]
    functions = {
        "LookupTableFindV2": tf.function(lambda x: table.lookup(tf.cast(x, tf.int32)), input_signature=spec),
        "AssignAddVariableOp": tf.function(lambda x: x * count.assign_add(1.0), input_signature=spec),
    }
    for name, function in functions.items():
        with pytest.raises(neuronx_cc.CompileError, match=f"EVRF001.*{name}"):
            neuronx_cc.load_model(function)
    with pytest.raises(neuronx_cc.CompileError, match="a variable is assigned"):
        neuronx_cc.load_model(functions["AssignAddVariableOp"], inline_weights_to_neff=False)


@needs_tensorflow
def test_loops_and_branches() -> None:
    import tensorflow as tf

    def function(x: Any) -> Any:
        turned = tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: -x)
        return tf.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 1.1 + 1), (tf.constant(0), turned))[1]

    model = neuronx_cc.load_model(tf.function(function, input_signature=[tf.TensorSpec([3], tf.float32)]))
    program = neuronx_cc.compile(model, auto_cast="none")
    for x in (np.float32([1, 2, 3]), np.float32([-1, 2, -3])):
        np.testing.assert_allclose(program.run({"x": x}).outputs[0], function(tf.constant(x)), rtol=1e-5)


@needs_tensorflow
def test_signatures_are_chosen_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    import tensorflow as tf

    monkeypatch.chdir(tmp_path)
    module, spec = tf.Module(), [tf.TensorSpec([3], tf.float32, name="x")]
    module.double = tf.function(lambda x: {"y": x + x}, input_signature=spec)
    module.square = tf.function(lambda x: {"z": x * x}, input_signature=spec)
    tf.saved_model.save(module, "two", signatures={"double": module.double, "square": module.square})
    tf.saved_model.save(module, "served", signatures={"serving_default": module.double, "square": module.square})
    x = np.float32([1, 2, 3])
    for given, chosen, want in (("two", "square", x * x), ("served", "", x + x), ("served", "square", x * x)):
        for model in (given, tf.saved_model.load(given)):
            program = neuronx_cc.compile(neuronx_cc.load_model(model, signature=chosen))
            np.testing.assert_array_equal(program.run({"x": x}).outputs[0], want)
    for chosen in ("", "other"):
        with pytest.raises(neuronx_cc.UsageError, match=r"EARG915.*two has no signature.*'double', 'square'"):
            neuronx_cc.load_model("two", signature=chosen)
    for given in (module.double, b"HloModule m"):
        with pytest.raises(neuronx_cc.UsageError, match=r"EARG915.*no signatures"):
            neuronx_cc.load_model(given, signature="double")
    tf.saved_model.save(tf.Module(), "none")
    with pytest.raises(neuronx_cc.CompileError, match=r"EVRF064.*no signatures"):
        neuronx_cc.load_model("none")
    assert main(["compile", "two"]) == 2
    assert "'double', 'square' - --signature double" in capsys.readouterr().err
    assert main(["compile", "two", "--signature", "square", "--output", "m.neff"]) == 0
    np.savez("in.npz", x=x)
    assert main(["run", "m.neff", "--inputs", "in.npz", "--outputs", "out.npz", "--check"]) == 0
    np.testing.assert_array_equal(np.load("out.npz")["z"], x * x)
