"""Programs that are split over devices, in a process of their own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if os.environ.get("CI") != "true":  # there it must have been built
    pytest.importorskip("neuronx_cc.driver.jax_backend._pjrt", reason="the C++ library is not built")

SCRIPT = Path(__file__).resolve().parent.parent / "support" / "sharded_cases.py"
CASES = re.findall(r"^def (case_\w+)", SCRIPT.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def outcomes():
    """Case -> what went wrong, on 4 devices."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("NEURON_", "JAX_", "XLA_"))}
    variables = {"JAX_PLATFORMS": "neuron,cpu", "NEURON_NUM_DEVICES": "4", "NEURON_CC_FLAGS": "--no_cache"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=600, env=kept | variables
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", CASES)
def test_program(outcomes, case):
    assert outcomes[case] == ""
