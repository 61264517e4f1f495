"""Strategy ``basic``: what it finds, what it asks for, and that the model of errors is never slower with fewer."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.driver import cli
from neuronx_cc.ir.errors import UsageError

SIZE = 160


def planted(x, w, v):
    """Two products that nearly agree; what is left of their difference is scaled up."""
    h = jnp.tanh(x @ w)
    near = h @ v
    same = h @ (v + 1e-3 * w)
    return jnp.tanh((near - same) * 30), h @ v.T


FIRST_LINE = planted.__code__.co_firstlineno
CANCELLING = {FIRST_LINE + 3, FIRST_LINE + 4}


def layers(x, w, v):
    for _ in range(4):
        x = x + jnp.tanh(x @ w / 13) @ v / 13
    return x


def unlike(x, w, v):
    """Contractions of different shapes and weights in the result."""
    h = jnp.tanh(x @ w[:, : x.shape[1] // 2])
    y = h @ v[: h.shape[1]] / 3
    return x + jnp.tanh(y / 30) @ w / 50 + (y[:, :7] @ v[:7]) / 900


def arrays(size: int = SIZE) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal((size, size)).astype(np.float32) for _ in range(3)]


def types_of(tuning: neuronx_cc.Tuning) -> list[str]:
    return [row["type"] for row in tuning.to_json()["groups"]]


def test_ops_go_back_to_fp32_until_the_error_is_tolerated() -> None:
    found = neuronx_cc.tune(jax.jit(layers), arrays(), 1e-3, types=("bf16",), strategy="basic")
    types = types_of(found)
    assert len(types) == 8, "every contraction by itself"
    assert {"bf16", "fp32"} == set(types)
    assert found.chosen.error <= 1e-3
    assert found.chosen.microseconds < found.fp32_us
    # FP32, all, each in turn, the worst two to all that went back
    assert found.trials == 1 + 1 + 8 + (types.count("fp32") - 1)
    assert found.complete


def test_a_planted_cancellation_hides_what_single_ops_gain() -> None:
    """Each half of the cancellation spoils the other one's gain, so the order is wrong; the model of errors sees it."""
    op_wise = neuronx_cc.tune(jax.jit(planted), arrays(), 5e-3, types=("bf16",), strategy="basic")
    found = neuronx_cc.tune(jax.jit(planted), arrays(), 5e-3, types=("bf16",))
    kept = {row["source"] for row in op_wise.to_json()["groups"] if row["type"] == "fp32"}
    assert {int(place.rpartition(":")[2]) for place in kept} >= CANCELLING
    assert found.chosen.microseconds < op_wise.chosen.microseconds
    assert max(op_wise.chosen.error, found.chosen.error) <= 5e-3


def test_what_is_tolerated_at_once_ends_the_search() -> None:
    found = neuronx_cc.tune(jax.jit(layers), arrays(), 0.5, types=("bf16",), strategy="basic")
    assert types_of(found) == ["bf16"] * 8
    assert found.trials == 2, "FP32, and all in bf16"


@pytest.mark.parametrize("tolerance", [1e-3, 3e-3, 1e-2])
@pytest.mark.parametrize("model", [planted, unlike])
def test_where_contractions_are_unlike_the_model_of_errors_is_never_slower(model, tolerance: float) -> None:
    inputs = arrays(96)
    op_wise = neuronx_cc.tune(jax.jit(model), inputs, tolerance, types=("bf16", "tf32"), strategy="basic")
    found = neuronx_cc.tune(jax.jit(model), inputs, tolerance, types=("bf16", "tf32"))
    assert max(op_wise.chosen.error, found.chosen.error) <= tolerance
    assert found.chosen.microseconds <= op_wise.chosen.microseconds * (1 + 1e-6)


def deep(x, w, v):
    """Forty products: the one of the last layer alone in what is large, so that errors are unlike."""
    for number in range(20):
        x = x + jnp.tanh(x @ w / 9) @ v / (9 + 3 * number)
    return x


@pytest.mark.slow
def test_a_fifth_of_the_trials_are_enough() -> None:
    op_wise = neuronx_cc.tune(jax.jit(deep), arrays(64), 1e-2, strategy="basic")
    found = neuronx_cc.tune(jax.jit(deep), arrays(64), 1e-2)
    assert max(op_wise.chosen.error, found.chosen.error) <= 1e-2
    assert found.chosen.microseconds <= op_wise.chosen.microseconds * (1 + 1e-6)
    assert found.trials * 5 <= op_wise.trials


def test_of_several_types_the_fastest_is_taken() -> None:
    alone = [
        neuronx_cc.tune(jax.jit(layers), arrays(), 1e-2, types=(dtype,), strategy="basic").chosen.microseconds
        for dtype in ("tf32", "bf16")
    ]
    both = neuronx_cc.tune(jax.jit(layers), arrays(), 1e-2, types=("tf32", "bf16"), strategy="basic")
    assert both.chosen.microseconds == min(alone)


def test_the_users_metric_is_judged_in_place_of_errors() -> None:
    calls = []

    def mean(run) -> float:
        calls.append(run)
        return float(np.abs(run(arrays())[0]).mean())

    found = neuronx_cc.tune(jax.jit(layers), arrays(), evaluate=mean, types=("bf16",), strategy="basic")
    assert types_of(found) == ["bf16"] * 8
    assert len(calls) == 2, "FP32, and all in bf16"


def test_a_search_that_is_stopped_keeps_fp32_and_goes_on(tmp_path) -> None:
    def tuned(place: str, **bounds: int) -> neuronx_cc.Tuning:
        return neuronx_cc.tune(
            jax.jit(planted), arrays(), 5e-3, types=("bf16",), strategy="basic", workspace=tmp_path / place, **bounds
        )

    part = tuned("a", max_trials=3)
    assert not part.complete
    assert set(types_of(part)) == {"fp32"}
    rest, whole = tuned("a"), tuned("b")
    assert rest.trials < whole.trials
    assert (rest.chosen, rest.points, rest.policy) == (whole.chosen, whole.points, whole.policy)
    other = neuronx_cc.tune(jax.jit(planted), arrays(), 5e-3, types=("bf16",), workspace=tmp_path / "a")
    assert other.resumed == 0, "strategies group otherwise: each has its own history"
    assert tuned("a").trials == 0


def test_modules_without_contractions() -> None:
    found = neuronx_cc.tune(jax.jit(jnp.tanh), arrays()[:1], strategy="basic")
    assert found.groups == ()


def test_strategies_that_there_are_not() -> None:
    with pytest.raises(UsageError, match="no strategy 'bayesian'") as caught:
        neuronx_cc.tune(jax.jit(layers), arrays(), strategy="bayesian")
    assert caught.value.code == "EARG902"
    assert cli.main(["tune", "m.pb", "--strategy", "bayesian"]) == 2


def test_the_command_with_a_chart(tmp_path, monkeypatch, capsys) -> None:
    """Points have no predicted errors: no crosses."""
    monkeypatch.chdir(tmp_path)
    lowered = jax.jit(planted).lower(*arrays())
    (tmp_path / "m.pb").write_bytes(lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
    words = ["tune", "m.pb", "--strategy", "basic", "--types", "bf16", "--tolerance", "5e-3", "--chart", "front.svg"]
    assert cli.main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["trials"] > 0
    assert {point["predicted"] for point in document["front"]} == {None}
    assert "<path" not in (tmp_path / "front.svg").read_text()
    assert cli.main(words) == 0
    assert "trials" in capsys.readouterr().out


@pytest.mark.parametrize("strategy", ["auto", "mse", "mse_v2", "conservative"])
@pytest.mark.parametrize("tolerance", [1e-2, 3e-4])
def test_other_strategies_of_that_kind(strategy: str, tolerance: float) -> None:
    """Tolerated, and never faster than the model of errors; a looser tolerance is no slower."""
    found = neuronx_cc.tune(jax.jit(unlike), arrays(), tolerance, strategy=strategy)
    best = neuronx_cc.tune(jax.jit(unlike), arrays(), tolerance)
    assert found.chosen.error <= tolerance
    assert best.chosen.microseconds <= found.chosen.microseconds <= found.fp32_us
    assert found.complete


def test_what_helps_least_is_cast_again() -> None:
    """``mse_v2`` keeps fewer in FP32 than ``mse``, or as many."""
    kept = [
        types_of(neuronx_cc.tune(jax.jit(layers), arrays(), 1e-3, types=("bf16",), strategy=strategy)).count("fp32")
        for strategy in ("mse_v2", "mse", "basic")
    ]
    assert 0 < kept[0] <= kept[1] <= kept[2]


def test_a_strategy_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"no strategy 'tpe'.*mse_v2"):
        neuronx_cc.tune(jax.jit(layers), arrays(), strategy="tpe")
