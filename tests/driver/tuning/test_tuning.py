"""The tuner: a planted cancellation stays in FP32, histories go on, goals that nothing meets and bad evaluators."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.driver import cli
from neuronx_cc.ir.errors import NeuronError, UsageError

SIZE = 160


def planted(x, w, v):
    """Two products that nearly agree; what is left of their difference is scaled up."""
    h = jnp.tanh(x @ w)
    near = h @ v
    same = h @ (v + 1e-3 * w)
    return jnp.tanh((near - same) * 30), h @ v.T


FIRST_LINE = planted.__code__.co_firstlineno
FREE = {FIRST_LINE + 2, FIRST_LINE + 5}
CANCELLING = {FIRST_LINE + 3, FIRST_LINE + 4}


def arrays() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(3)]


def types_by_line(tuning: neuronx_cc.Tuning) -> dict[int, str]:
    rows = tuning.to_json()["groups"]
    return {int(row["source"].rpartition(":")[2]): row["type"] for row in rows}


def test_what_must_stay_in_fp32_does_and_nothing_else() -> None:
    inputs = arrays()
    found = neuronx_cc.tune(jax.jit(planted), inputs, 5e-3, types=("bf16", "fp16"))
    types = types_by_line(found)
    assert {line for line, dtype in types.items() if dtype == "fp32"} == CANCELLING
    assert set(types) == FREE | CANCELLING
    assert found.chosen.error <= 5e-3
    assert found.chosen.microseconds < found.fp32_us
    policy = found.to_json()["policy"]
    executable = neuronx_cc.compile(jax.jit(planted), *inputs, precision_policy=policy)
    assert executable.run(inputs).report.time_ns / 1e3 == pytest.approx(found.chosen.microseconds, rel=1e-6)


def correlated(x, w, v, u):
    """Casts of both products of ``h`` spoil the difference by as much, and leave it as it is together; those of ``u``
    may not be."""
    h = jnp.tanh(x @ w)
    near = h @ v
    same = h @ (v + 2.0**-10)
    return jnp.tanh((near - same) * 30), jnp.tanh(1e3 * (x @ u - u @ x))


def test_where_errors_do_not_add_up_few_ops_are_left_out() -> None:
    random = np.random.default_rng(0)
    inputs = [*arrays(), random.standard_normal((SIZE, SIZE)).astype(np.float32)]
    inputs[2] = np.round(inputs[2] * 8) / 8
    found, op_wise = (
        neuronx_cc.tune(jax.jit(correlated), inputs, 0.2, types=("bf16",), strategy=strategy)
        for strategy in ("error-model", "basic")
    )
    assert found.chosen.error <= 0.2
    assert found.chosen.microseconds <= op_wise.chosen.microseconds * (1 + 1e-6)
    assert found.together is not None
    said = found.to_json()["not_additive"]
    assert said["error"] < 0.01 * said["predicted"]
    lines = {int(row["source"].rpartition(":")[2]) for row in said["ops"]}
    assert lines == {correlated.__code__.co_firstlineno + 6}
    assert "errors do not add up" in str(found)


def test_the_front_goes_from_accurate_to_fast() -> None:
    found = neuronx_cc.tune(jax.jit(planted), arrays(), 1.0, types=("bf16", "tf32"))
    errors = [point.error for point in found.points]
    times = [point.microseconds for point in found.points]
    assert errors == sorted(errors)
    assert times == sorted(times, reverse=True)
    assert len(found.points) >= 3
    assert "Pareto front" in str(found)


def test_a_tuning_that_was_stopped_goes_on_to_the_same_result(tmp_path) -> None:
    inputs = arrays()
    whole = neuronx_cc.tune(jax.jit(planted), inputs, 5e-3, types=("bf16",), workspace=tmp_path / "a")
    part = neuronx_cc.tune(jax.jit(planted), inputs, 5e-3, types=("bf16",), workspace=tmp_path / "b", max_trials=5)
    assert not part.complete
    history = tmp_path / "b" / "error-model.jsonl"
    history.write_bytes(history.read_bytes()[:-9])  # killed in the middle of a line
    rest = neuronx_cc.tune(jax.jit(planted), inputs, 5e-3, types=("bf16",), workspace=tmp_path / "b")
    assert rest.resumed >= 1
    assert rest.trials < whole.trials
    assert (rest.chosen, rest.points, rest.policy) == (whole.chosen, whole.points, whole.policy)
    again = neuronx_cc.tune(jax.jit(planted), inputs, 5e-3, types=("bf16",), workspace=tmp_path / "b")
    assert again.trials == 0


def test_models_share_a_history_and_damage_of_it_costs_what_it_hits(tmp_path) -> None:
    inputs, history = arrays()[:2], tmp_path / "error-model.jsonl"
    one, two = jax.jit(lambda x, w: x @ w), jax.jit(lambda x, w: w @ x)
    assert neuronx_cc.tune(one, inputs, types=("bf16",), workspace=tmp_path).resumed == 0
    assert neuronx_cc.tune(two, inputs, types=("bf16",), workspace=tmp_path).resumed == 0
    assert neuronx_cc.tune(one, inputs, types=("bf16",), workspace=tmp_path).trials == 0
    damage = b"\xff\x00 [[[" * 1000
    history.write_bytes(damage + history.read_bytes() + damage)
    assert neuronx_cc.tune(two, inputs, types=("bf16",), workspace=tmp_path).trials == 0
    history.write_bytes(damage)
    assert neuronx_cc.tune(two, inputs, types=("bf16",), workspace=tmp_path).resumed == 0
    assert history.read_bytes().startswith(damage), "nothing that stands there is taken away"


def test_the_users_metric_decides() -> None:
    """How many signs are as in FP32: products may be cast, the cancellation may not."""
    inputs = arrays()
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        reference = [np.sign(array) for array in jax.jit(planted)(*inputs)]

    def agreement(run) -> float:
        return float(np.mean([(np.sign(a) == b).mean() for a, b in zip(run(inputs), reference, strict=True)]))

    strict = neuronx_cc.tune(
        jax.jit(planted), inputs, evaluate=agreement, tolerable_loss=0.01, types=("bf16", "fp8_e4m3")
    )
    loose = neuronx_cc.tune(
        jax.jit(planted), inputs, evaluate=agreement, tolerable_loss=0.9, types=("bf16", "fp8_e4m3")
    )
    assert loose.chosen.microseconds <= strict.chosen.microseconds
    assert loose.chosen.error > strict.chosen.error


@pytest.mark.parametrize(
    ("evaluate", "said"),
    [
        (lambda run: 1 / 0, r"ZeroDivisionError: division by zero \(.*test_tuning.py:\d+\)"),
        (lambda run: float("nan"), "gave nan"),
        (lambda run: sys.exit(3), "SystemExit"),
        (lambda run: "good", "the evaluator gave 'good'"),
        (lambda run: None, "the evaluator gave None"),
    ],
)
def test_evaluators_that_fail(evaluate, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        neuronx_cc.tune(jax.jit(lambda x, w: x @ w), arrays()[:2], evaluate=evaluate)
    assert caught.value.code == "EARG912"


@pytest.mark.parametrize("wrong", [{"tolerance": float("nan")}, {"tolerance": -1.0}, {"tolerable_loss": float("nan")}])
def test_tolerances_that_are_none(wrong: dict[str, float]) -> None:
    evaluate = (lambda run: 1.0) if "tolerable_loss" in wrong else None
    with pytest.raises(UsageError) as caught:
        neuronx_cc.tune(jax.jit(lambda x, w: x @ w), arrays()[:2], evaluate=evaluate, **wrong)
    assert caught.value.code == "EARG902"


@pytest.mark.parametrize("workers", [0, -2])
def test_less_than_one_worker(workers: int) -> None:
    with pytest.raises(UsageError, match=r"EARG902.*workers takes 1 or more"):
        neuronx_cc.tune(jax.jit(planted), arrays(), workers=workers)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_inputs_whose_results_are_no_numbers(value: float) -> None:
    given = [np.full_like(array, value) for array in arrays()[:2]]
    with pytest.raises(UsageError, match="no result in FP32 is a finite number") as caught:
        neuronx_cc.tune(jax.jit(lambda x, w: jnp.exp(x @ w) * 0), given, 0.1)
    assert caught.value.code == "EARG913"


def test_a_tolerance_that_nothing_meets(tmp_path) -> None:
    with pytest.raises(UsageError) as caught:
        neuronx_cc.tune(jax.jit(lambda x, w: jnp.exp(x @ w)), arrays()[:2], 0.0, types=("bf16",), workspace=tmp_path)
    assert caught.value.code == "EARG913"
    assert len((tmp_path / "error-model.jsonl").read_text().splitlines()) == 4, (
        "the model, FP32, time and error of bf16"
    )


def test_types_whose_results_are_not_finite_are_dropped() -> None:
    """Sums of 1e4 times 1e3 are no fp16 operands of what follows."""
    inputs = [array * 1e3 for array in arrays()]
    found = neuronx_cc.tune(jax.jit(lambda x, w, v: (x @ w) @ v), inputs, 0.5, types=("fp16", "bf16"))
    assert set(types_by_line(found).values()) <= {"bf16", "fp16"}
    assert found.to_json()["groups"][-1]["type"] == "bf16"


def tried(workspace: Path) -> set[str]:
    """Types that all contractions had in a program that was run or timed."""
    rows = [json.loads(line) for line in (workspace / "error-model.jsonl").read_text().splitlines()[1:]]
    words = [row["key"].split() for row in rows]
    return {types[0] for kind, *types in words if kind in ("trial", "timed") and len(set(types)) == 1}


@pytest.mark.parametrize(
    ("tolerance", "expected"),
    [
        (1.0, {"fp32", "fp16", "tf32", "fp8_e4m3"}),  # bf16 takes the time of fp16
        (1e-2, {"fp32", "fp16", "tf32"}),  # fp8 has seven bits less
    ],
)
def test_types_that_others_tell_of_are_not_tried(tolerance: float, expected: set[str], tmp_path: Path) -> None:
    x, w, _ = arrays()
    neuronx_cc.tune(jax.jit(lambda x, w: jnp.tanh(x @ w) @ w), [x, w], tolerance, workspace=tmp_path)
    assert tried(tmp_path) - {"int8"} == expected


def test_for_a_front_all_types_that_may_be_on_it_are_tried(tmp_path: Path) -> None:
    x, w, _ = arrays()
    neuronx_cc.tune(jax.jit(lambda x, w: jnp.tanh(x @ w) @ w), [x, w], 1e-2, front=1, workspace=tmp_path)
    assert tried(tmp_path) - {"int8"} == {"fp32", "fp16", "tf32", "fp8_e4m3"}


def test_a_type_that_overflows_tells_nothing_of_others(tmp_path: Path) -> None:
    inputs = [array * 1e3 for array in arrays()]
    model = jax.jit(lambda x, w, v: (x @ w) @ v)
    neuronx_cc.tune(model, inputs, 0.5, types=("fp16", "bf16", "tf32"), workspace=tmp_path)
    assert tried(tmp_path) == {"fp32", "fp16", "bf16", "tf32"}


def test_small_contractions_stay_in_fp32_where_casts_cost_more_than_they_save() -> None:
    """Also where all in another type is slower than FP32: one large product is what pays."""
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (8, 8)))
    large = random.standard_normal((512, 512)).astype(np.float32)

    def model(x, w, large):
        for _ in range(12):
            x = jnp.tanh(x @ w)
        return x, large @ large

    found = neuronx_cc.tune(jax.jit(model), [x, w, large], 1e-2, types=("fp16",))
    assert found.chosen.microseconds < found.fp32_us
    assert found.to_json()["groups"][-1]["type"] == "fp16"


def test_modules_without_contractions() -> None:
    found = neuronx_cc.tune(jax.jit(jnp.tanh), arrays()[:1])
    assert found.groups == ()
    assert found.policy.rules == ()


def test_the_command_writes_a_policy_that_compiles(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    lowered = jax.jit(planted).lower(*arrays())
    (tmp_path / "m.pb").write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    np.savez(tmp_path / "in.npz", **{f"arg{number}": array for number, array in enumerate(arrays())})
    words = ["tune", "m.pb", "--inputs", "in.npz", "--tolerance", "5e-3", "--types", "bf16", "--json"]
    words += ["--chart", "front.svg"]
    assert cli.main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["error"] <= 5e-3
    assert document["policy"] == json.loads((tmp_path / "policy.json").read_text())
    circles = ElementTree.parse(tmp_path / "front.svg").findall("{*}circle")
    titles = [circle.findtext("{*}title") for circle in circles]
    assert [title.partition(": ")[2].split() for title in titles] == [p["types"] for p in document["front"]]
    across = [float(circle.attrib["cx"]) for circle in circles]
    assert across == sorted(across, reverse=True), "from accurate to fast"
    assert sum(circle.attrib["fill"] != "#fff" for circle in circles) == 1
    assert cli.main(["tune", "m.pb", "--inputs", "in.npz", "--chart", "m.pb"]) != 0
    assert cli.main(["compile", "m.pb", "--auto-cast", "none", "--precision-policy", "policy.json"]) == 0
    for bad in (["--tolerance", "x"], ["--tolerance", "-1"], ["--evaluate", "nothing"], ["--evaluate", "no.module:f"]):
        assert cli.main(["tune", "m.pb", "--inputs", "in.npz", *bad]) == 2
    assert cli.main(["tune", "m.pb", "--inputs", "missing.npz"]) != 0
    assert "Traceback" not in capsys.readouterr().err


def test_weights_in_eight_bits_are_a_candidate() -> None:
    """Its error is that of the program, its policy stores the codes, and weights that are given have no such form."""
    random = np.random.default_rng(0)
    x, v = random.standard_normal((8, 1024), np.float32), random.standard_normal((1024, 64), np.float32)
    w = random.standard_normal((1024, 1024), np.float32) / 30

    def model(x, v):
        hidden = jnp.tanh(x @ w)
        return hidden @ v

    found = neuronx_cc.tune(jax.jit(model), [x, v], 0.05, types=("int8",))
    assert found.chosen.types == ("int8", "fp32")
    assert found.chosen.microseconds < found.fp32_us
    policy = found.to_json()["policy"]
    executable = neuronx_cc.compile(jax.jit(model), x, v, auto_cast="none", precision_policy=policy)
    result = executable.run([x, v])
    exact = np.tanh(x.astype(np.float64) @ w) @ v
    error = np.linalg.norm(result.outputs[0] - exact) / np.linalg.norm(exact)
    assert found.chosen.error == pytest.approx(error, rel=0.05)
    assert error > 4e-3, "more than that of BF16"
    assert result.report.time_ns / 1e3 == pytest.approx(found.chosen.microseconds, rel=1e-6)


def test_memory_is_what_is_small_where_it_is_asked_for(tmp_path, monkeypatch, capsys) -> None:
    """A constant weight in 8 bits takes a quarter of the bytes."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    w = random.standard_normal((512, 512), np.float32) / 20
    x = random.standard_normal((8, 512), np.float32)
    model = jax.jit(lambda x: jnp.tanh(x @ w))
    found = neuronx_cc.tune(model, [x], 0.02, objective="memory")
    assert found.chosen.types == ("int8",)
    assert found.chosen.nbytes < found.fp32.nbytes - 512 * 512 * 2.9
    assert "MB" in str(found)
    sizes = [point.nbytes for point in found.points]
    assert sizes == sorted(sizes, reverse=True)
    (tmp_path / "m.pb").write_bytes(model.lower(x).compiler_ir("hlo").as_serialized_hlo_module_proto())
    words = ["tune", "m.pb", "--objective", "memory", "--tolerance", "0.02", "--chart", "front.svg", "--json"]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out)["nbytes"] == found.chosen.nbytes
    assert "memory, MB" in (tmp_path / "front.svg").read_text()
    with pytest.raises(UsageError, match="no objective 'size'") as caught:
        neuronx_cc.tune(model, [x], 0.05, objective="size")
    assert caught.value.code == "EARG902"


def test_weights_that_are_parameters_have_no_form_in_eight_bits() -> None:
    found = neuronx_cc.tune(jax.jit(lambda x, w: x @ w), arrays()[:2], 0.05, types=("int8",))
    assert found.impossible == ("int8",)
    assert "int8 was not tried: no weights are constants" in str(found)


def test_no_room_for_what_processes_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("neuronx_cc.driver.tuning.bench.write_arrays", full)
    with pytest.raises(NeuronError, match="No space left on device - set TMPDIR"):
        neuronx_cc.tune(jax.jit(planted), arrays(), 5e-3, types=("bf16",), workers=2)


@pytest.mark.parametrize("rounds", [2, 40])
def test_loops_whose_length_values_decide_are_told_by_their_time_in_fp32(rounds: int) -> None:
    """The clock, which knows no values, takes another number of iterations: nothing told so beats what is measured."""
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(dims, np.float32) / 16 for dims in ((128, 256), (256, 256))]

    def looped(x, w, n):
        return jax.lax.while_loop(lambda s: s[1] < n, lambda s: (jnp.tanh(s[0] @ w), s[1] + 1), (x, 0))

    found = neuronx_cc.tune(jax.jit(looped), [*inputs, np.int32(rounds)], 1e-2)
    assert found.trials == 2
    assert found.chosen.microseconds < 0.95 * found.fp32_us
