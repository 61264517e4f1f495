"""``-O3``: never slower than by estimate, the same again from its history, recorded in the NEFF, and bounded."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated import text_of

import neuronx_cc
from neuronx_cc.codegen.choose import FAMILIES, Planner
from neuronx_cc.driver import cli, search
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.targets import find_machine

Capture = pytest.CaptureFixture[str]
A, B = np.ones((700, 1100), np.float32), np.ones((700, 1300), np.float32)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(tmp_path / "kept"))
    (tmp_path / "m.hlo").write_text(text_of(lambda a, b: jnp.tanh(a.T @ b), A, B))
    return tmp_path / "m.hlo"


def compiled(*words: str) -> tuple[Neff, float]:
    assert cli.main(["compile", "m.hlo", "--output", "m.neff", *words]) == 0
    neff = Neff.read("m.neff")
    return neff, neuronx_cc.load("m.neff").run([], timing_only=True).report.time_ns


def histories(module: Path) -> list[Path]:
    return sorted((module.parent / "kept").rglob("SEARCH_*.jsonl"))


def worst_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate that is wrong throughout, so that the clock has something to find."""
    for problem, family in FAMILIES.items():
        wrong = family._replace(estimate=lambda *given, right=family.estimate: -right(*given))
        monkeypatch.setitem(FAMILIES, problem, wrong)


def test_the_clock_decides(module: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    worst_first(monkeypatch)
    _, by_estimate = compiled("-O2")
    neff, found = compiled("-O3")
    assert found < by_estimate
    assert neff.options[search.FOUND]
    assert cli.main(["run", "m.neff", "--check"]) == 0
    (history,) = histories(module)
    lines = history.read_text()
    data = Path("m.neff").read_bytes()
    compiled("-O3")
    assert Path("m.neff").read_bytes() == data
    assert history.read_text() == lines  # nothing was measured again


def test_a_longer_search_goes_on(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worst_first(monkeypatch)
    times = [compiled("-O2")[1]]
    counts = []
    for most in ("1", "4", "12"):
        times.append(compiled("-O3", "--search-candidates", most)[1])
        (history,) = histories(module)
        counts.append(len(history.read_text().splitlines()) - 1)
    assert times == sorted(times, reverse=True)
    assert counts[0] == 1
    assert counts[1] == 4
    assert counts[2] > 4


def test_no_time_is_no_search(module: Path) -> None:
    neff, found = compiled("-O3", "--search-seconds", "0")
    assert search.FOUND not in neff.options
    assert found == compiled("-O2")[1]


def test_a_place_that_cannot_be_written_is_no_error(module: Path) -> None:
    (module.parent / "kept").write_text("a file")
    assert compiled("-O3", "--search-candidates", "2")[1] <= compiled("-O2")[1]


@pytest.mark.parametrize("written", ["x", ["0123456789abcdef=-1"], [7], ["0123456789abcdef=" + "9" * 10], {"a": 1}])
def test_what_no_search_has_written_is_refused(written: Any) -> None:
    with pytest.raises(RunError, match="problem=candidate"):
        search.found_in({search.FOUND: written}, find_machine("trn1"))


def test_a_candidate_that_is_not_there_is_left_to_the_estimate() -> None:
    planner = search.found_in(json.loads('{"schedules_found": ["0123456789abcdef=999999999"]}'), find_machine("trn1"))
    assert isinstance(planner, Planner)
    assert planner.given == {"0123456789abcdef": 999999999}
    assert planner.timing.sizes == Timing(find_machine("trn1")).sizes
