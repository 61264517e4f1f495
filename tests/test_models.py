"""The example models, compiled, run on the simulator and compared with jaxlib, in every precision mode.

Two oracles: jaxlib's CPU client in FP32, and the reference semantics of the module as the passes left it, which
cast at the same places. Quick variants have two layers; full-size ones carry the slow marker.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import bert
import gpt2
import mlp_train
import numpy as np
import pytest
from lowering import Model, differences

import neuronx_cc
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE

EPSILON = {"bf16": 2.0**-8, "fp16": 2.0**-11, "tf32": 2.0**-11, "fp8_e4m3": 2.0**-4}
"""Largest relative rounding error of each cast type."""
FP32_TOLERANCE = 1e-5
MODES = [("none", "bf16"), *[(mode, kind) for mode in ("matmult", "all") for kind in EPSILON]]

QUICK: dict[str, Callable[[], Model]] = {
    "mlp_train": lambda: mlp_train.build(mlp_train.Config((49, 96, 130, 10), batch=17)),
    "gpt2": lambda: gpt2.build(gpt2.Config(layers=2, width=64, heads=4, vocabulary=301, positions=40, sequence=29)),
    "bert": lambda: bert.build(bert.Config(layers=2, width=64, heads=4, vocabulary=301, positions=40, sequence=32)),
    "bert-constants": lambda: bert.build(
        bert.Config(layers=2, width=64, heads=4, vocabulary=301, positions=40, sequence=32), weights="constants"
    ),
}
FULL: dict[str, Callable[[], Model]] = {
    "mlp_train": mlp_train.build,
    "gpt2": gpt2.build,
    "bert": bert.build,
    "bert-constants": lambda: bert.build(weights="constants"),
}


@cache
def quick(name: str) -> Model:
    return QUICK[name]()


def compile_and_run(model: Model, auto_cast: str, cast_type: str) -> list[np.ndarray]:
    executable = neuronx_cc.compile(model.proto, auto_cast=auto_cast, auto_cast_type=cast_type)
    return list(executable.run(model.arguments).outputs)


def reference(model: Model, auto_cast: str, cast_type: str) -> list[np.ndarray]:
    """What the module means once the passes have cast it."""
    module = load_module(model.proto)
    names = [name for _, stage in DEFAULT_PIPELINE for name in stage]
    run_passes(module, names, PassContext(PassOptions(auto_cast=auto_cast, auto_cast_type=cast_type)))
    return evaluate(module, model.arguments)


def check(model: Model, auto_cast: str, cast_type: str, flips: float) -> None:
    """Run and compare. ``flips`` rounding errors are allowed between simulator and reference, in 2-norm.

    Where their FP32 sums differ in the last bit, a cast may fall to the other side. That is rare, but each such
    element disturbs all that follow it: over a dozen layers the two drift apart like any two correct roundings.
    """
    outputs = compile_and_run(model, auto_cast, cast_type)
    assert [(x.shape, x.dtype) for x in outputs] == [(x.shape, x.dtype) for x in model.expected]
    if auto_cast == "none":
        error = differences(outputs, model.expected)
        assert error.largest <= FP32_TOLERANCE, error
        return
    same_casts = differences(outputs, reference(model, auto_cast, cast_type))
    assert same_casts.norm <= flips * EPSILON[cast_type], same_casts
    if (auto_cast, cast_type) == ("all", "fp8_e4m3"):
        # Attention masks overflow and small variances vanish in this type: far from FP32 by nature.
        return
    # Errors of a dozen layers add up like a random walk, and rectifiers near zero flip.
    error = differences(outputs, model.expected)
    assert error.norm <= 20 * EPSILON[cast_type], error


@pytest.mark.parametrize(("auto_cast", "cast_type"), MODES)
@pytest.mark.parametrize("name", QUICK)
def test_quick_model(name: str, auto_cast: str, cast_type: str) -> None:
    # attentions round exponentials where the module rounds their quotients by the sums: other roundings of as much
    check(quick(name), auto_cast, cast_type, flips=1)


@pytest.fixture(scope="module")
def full(request: pytest.FixtureRequest) -> Model:
    """The model and jaxlib's result are made once for all modes."""
    return FULL[request.param]()


@pytest.mark.slow
@pytest.mark.parametrize("full", FULL, indirect=True)
@pytest.mark.parametrize(("auto_cast", "cast_type"), MODES)
def test_full_size_model(full: Model, auto_cast: str, cast_type: str) -> None:
    check(full, auto_cast, cast_type, flips=5)


def test_integer_outputs_are_exact() -> None:
    """The training step's counter goes through the pipe unharmed by any cast."""
    model = quick("mlp_train")
    outputs = compile_and_run(model, "all", "fp8_e4m3")
    integers = [(a, e) for a, e in zip(outputs, model.expected, strict=True) if e.dtype.kind in "iu"]
    assert integers
    for actual, expected in integers:
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ["mlp_train", "gpt2", "bert-constants"])
def test_same_bytes_under_any_hash_seed(name: str, tmp_path: Path) -> None:
    path = tmp_path / "module.hlo.pb"
    path.write_bytes(quick(name).proto)
    program = (
        "import sys; from neuronx_cc.driver import cli; "
        "sys.exit(cli.main(['compile', sys.argv[1], '--output', sys.argv[2], '--logfile', sys.argv[3]]))"
    )
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", program, str(path), str(tmp_path / seed), str(tmp_path / "log")],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
