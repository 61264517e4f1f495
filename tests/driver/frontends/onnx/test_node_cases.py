"""The node tests of the ``onnx`` package through the importer: all on jaxlib's CPU client, a sample compiled."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import onnx_cases  # noqa: E402
from onnx_cases import PASSED, RANDOM, REFUSED  # noqa: E402

import neuronx_cc  # noqa: E402
from neuronx_cc.driver.frontends.model import Model  # noqa: E402


@pytest.fixture(scope="module")
def cases() -> list[Any]:
    return onnx_cases.cases()


def simulated(model: Model, arguments: Any) -> list[Any]:
    executable = neuronx_cc.compile(model, auto_cast="none", fp64_as_fp32=True)
    return executable.run([np.asarray(argument) for argument in arguments]).outputs


def rated(counts: Counter[str]) -> Counter[str]:
    """The same with all ways of passing as one."""
    passed = sum(counts[said] for said in PASSED)
    return Counter({said: count for said, count in counts.items() if said not in PASSED}) + Counter({"pass": passed})


def wrong(outcomes: dict[str, str]) -> dict[str, str]:
    known = {*PASSED, RANDOM, *REFUSED.values()}
    return {name: said for name, said in outcomes.items() if said not in known}


def test_a_sample_on_the_cpu(cases: list[Any]) -> None:
    outcomes = {case.name: onnx_cases.outcome(case, onnx_cases.on_cpu) for case in cases[7::160]}
    assert not wrong(outcomes)
    assert Counter(said in PASSED for said in outcomes.values())[True] >= 10


def test_a_sample_through_the_compiler(cases: list[Any]) -> None:
    outcomes = {case.name: onnx_cases.outcome(case, simulated) for case in cases[3::300]}
    assert not wrong(outcomes)
    assert Counter(said in PASSED for said in outcomes.values())[True] >= 5


@pytest.mark.slow
def test_all_on_the_cpu(cases: list[Any], rates: Any) -> None:
    """Strings, decoded images, random numbers and the tree ensembles are refused by name; everything else agrees."""
    outcomes = {case.name: onnx_cases.outcome(case, onnx_cases.on_cpu) for case in cases}
    counts = Counter(outcomes.values())
    rates("ONNX's node tests, on the CPU", rated(counts))
    assert not wrong(outcomes)
    assert sum(counts[said] for said in PASSED) >= 0.97 * len(cases)
    assert counts[RANDOM] <= 10


REFUSED_BY_THE_COMPILER = {"ESPP004", "ESPP047", "EVRF004", "EVRF005", "EVRF051", "EVRF001", "EUOC002"}
"""Codes of types and operators that the core has not, whatever the front end."""


@pytest.mark.slow
def test_many_through_the_compiler(cases: list[Any], rates: Any) -> None:
    counts: Counter[str] = Counter()
    bad = {}
    for case in cases[::12]:
        said = onnx_cases.outcome(case, simulated)
        code = said.partition(":")[0]
        counts[code if code in REFUSED_BY_THE_COMPILER else said] += 1
        if code not in REFUSED_BY_THE_COMPILER:
            bad |= wrong({case.name: said})
    rates("ONNX's node tests, compiled", rated(counts))
    assert not bad
