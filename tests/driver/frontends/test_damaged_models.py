"""Models of four frameworks, damaged in many ways: a refusal with a code, or a model, where checksums hold the same."""

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter

import damaged_models
import pytest

PACKAGES = {"keras": ("keras", "h5py"), "saved_model": ("tensorflow",), "onnx": ("onnx",), "pt2": ("torch",)}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("keras", 8), ("saved_model", 6), ("onnx", 40), ("pt2", 3)])
def test_damage_is_refused_in_one_paragraph(kind: str, count: int) -> None:
    if not all(importlib.util.find_spec(package) for package in PACKAGES[kind]):
        pytest.skip(f"needs {' and '.join(PACKAGES[kind])}")
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, damaged_models.__file__, kind, str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, (found[-1:], done.stderr[-1000:])
    ended = [each for each in found if "code" in each]
    assert 2 * len(ended) == len(found)
    bad = ("foreign", "INTERNAL", "other")
    assert [each for each in ended if each["code"] in bad or "\n" in each.get("said", "")] == []
    assert [each["code"] for each in ended if each["damage"] == "another operator"] in (["EVRF001"], ["EVRF064"])
    assert Counter(each["code"] for each in ended)["EVRF064"] > len(ended) / 3
