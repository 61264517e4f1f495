"""Trials: from the kept module as from the start, on several processes as on one; full disks and killed tuners."""

import errno
import itertools
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.driver.recompile import Model
from neuronx_cc.driver.tuning.bench import Bench, read_arrays, write_arrays
from neuronx_cc.driver.tuning.model import model_of
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir.errors import RunError
from neuronx_cc.passes.precision.policy import NO_RULES, Policy, make_rule
from neuronx_cc.runtime import Executable

SIZE = 48
WEIGHTS = np.random.default_rng(7).standard_normal((SIZE, SIZE)).astype(np.float32)


def layers(x, w):
    """With a weight that is a constant, which casts fold."""
    for _ in range(3):
        x = x + jnp.tanh(x @ w / 7) @ WEIGHTS / 7
    return x


def arrays() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(2)]


def fresh() -> Model:
    proto = jax.jit(layers).lower(*arrays()).compiler_ir("hlo").as_serialized_hlo_module_proto()
    return model_of(lambda: load_module(proto), {})


def policy(*dtypes: str) -> Policy:
    return Policy(tuple(make_rule(dtype, opcode="dot", operands=dtype) for dtype in dtypes))


def test_what_is_compiled_from_the_kept_module_is_what_is_compiled_from_the_start() -> None:
    """Also after others, which fold and drop constants of their own."""
    kept = fresh()
    for dtypes in (("fp8_e4m3",), (), ("bf16",), ("fp16",), ("tf32",), ("bf16",), ()):
        assert kept.neff(policy(*dtypes)).to_bytes() == fresh().neff(policy(*dtypes)).to_bytes(), dtypes


def test_times_that_are_equal_but_for_rounding_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock adds up in another order in programs that take the same time: a cast that saves a billionth of a
    nanosecond was taken, and stood on the front with a hundred times the error."""
    run, count = Executable.run, itertools.count()

    def close(*given: Any, **more: Any) -> Any:
        result = run(*given, **more)
        return replace(result, report=replace(result.report, time_ns=20_000.0 - 1e-9 * next(count)))

    monkeypatch.setattr(Executable, "run", close)
    found = neuronx_cc.tune(jax.jit(layers), arrays(), tolerance=0.5)
    assert set(found.chosen.types) == {"fp32"}
    assert [point.types for point in found.points] == [found.chosen.types]


def test_equal_programs_are_compiled_once() -> None:
    model = fresh()
    first = model.neff(NO_RULES)
    assert model.neff(policy("fp32")) is first
    assert model.neff(policy("bf16")) is not first
    assert model.neff(policy("fp16", "bf16")) is model.neff(policy("bf16"))


def test_programs_that_differ_in_what_text_does_not_show_are_not_equal() -> None:
    """Such as the type of a convolution's products."""
    images, kernel = np.ones((1, 8, 8, 16), np.float32), np.ones((3, 3, 16, 16), np.float32)
    dims = ("NHWC", "HWIO", "NHWC")
    convolve = jax.jit(lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=dims))
    proto = convolve.lower(images, kernel).compiler_ir("hlo").as_serialized_hlo_module_proto()
    model = model_of(lambda: load_module(proto), {})
    rounded = Policy((make_rule("tf32", opcode="convolution", operands="tf32"),))
    assert model.neff(NO_RULES).to_bytes() != model.neff(rounded).to_bytes()


def test_a_trial_is_the_programs_own_error_and_time() -> None:
    bench = Bench(fresh(), [arrays()])
    found = bench.trial(policy("bf16"))
    result = fresh().executable(policy("bf16")).run(arrays())
    expected = bench.expected[0]
    assert found.microseconds == pytest.approx(result.report.time_ns / 1e3, rel=1e-6)
    assert found.error == pytest.approx(
        np.linalg.norm(result.outputs[0] - expected.astype(np.float64)) / np.linalg.norm(expected), rel=1e-3
    )
    assert 1e-4 < found.error < 1e-1
    assert bench.trial(NO_RULES).error < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool", "float8_e4m3", "uint8"])
def test_arrays_are_sent_as_they_are(tmp_path: Path, dtype: str) -> None:
    import ml_dtypes

    wanted = np.dtype(getattr(ml_dtypes, dtype, dtype))
    given = [np.arange(6).astype(wanted).reshape(2, 3), np.ones((), wanted), np.ones((0, 3), wanted)]
    write_arrays(tmp_path / "a.npz", Bench(fresh(), [given, given[1:]], given[:1]))
    found = read_arrays(str(tmp_path / "a.npz"))
    for key, sent in (("in0", given), ("in1", given[1:]), ("out", given[:1])):
        assert [(a.dtype, a.shape, a.tobytes()) for a in found[key]] == [(a.dtype, a.shape, a.tobytes()) for a in sent]


def tuned(**how: Any) -> neuronx_cc.Tuning:
    return neuronx_cc.tune(jax.jit(layers), arrays(), 1e-3, types=("bf16", "tf32"), **how)


def test_trials_on_two_processes_find_the_same() -> None:
    here, there = tuned(), tuned(workers=2)
    assert (there.chosen, there.points, there.trials) == (here.chosen, here.points, here.trials)


def test_a_full_disk_is_said_and_a_tuning_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, written, fsync = tuned(), [], os.fsync

    def full(number: int) -> None:
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(number)
        fsync(number)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left") as caught:
        tuned(workspace=tmp_path)
    assert caught.value.code == "EFIL902"
    monkeypatch.undo()
    rest = tuned(workspace=tmp_path)
    assert rest.resumed >= 3
    assert (rest.chosen, rest.points) == (whole.chosen, whole.points)


def _tune(place: str) -> None:
    tuned(workspace=place)


def test_a_tuner_that_is_killed_loses_no_trial(tmp_path: Path) -> None:
    history = tmp_path / "error-model.jsonl"
    child = multiprocessing.get_context("spawn").Process(target=_tune, args=(str(tmp_path),))
    child.start()
    until = time.monotonic() + 120
    while time.monotonic() < until and child.is_alive():
        if history.exists() and len(history.read_bytes().splitlines()) > 2:
            break
        time.sleep(0.01)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    rest, whole = tuned(workspace=tmp_path), tuned()
    assert rest.resumed >= 1
    assert (rest.chosen, rest.points) == (whole.chosen, whole.points)
