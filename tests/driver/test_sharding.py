"""Programs that are split over devices, in a process of their own."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

if os.environ.get("CI") != "true":  # there it must have been built
    pytest.importorskip("neuronx_cc.driver.jax_backend._pjrt", reason="the C++ library is not built")

SUPPORT = Path(__file__).resolve().parent.parent / "support"
SCRIPTS = ("sharded_cases.py", "shard_map_cases.py", "sharded_programs.py")
CASES = [
    (script, case)
    for script in SCRIPTS
    for case in re.findall(r"^def (case_\w+)", (SUPPORT / script).read_text(), re.MULTILINE)
]


@cache
def outcomes(script, *cases):
    """Case -> what went wrong, on 4 devices."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("NEURON_", "JAX_", "XLA_"))}
    variables = {"JAX_PLATFORMS": "neuron,cpu", "NEURON_NUM_DEVICES": "4", "NEURON_CC_FLAGS": "--no_cache"}
    variables["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    command = [sys.executable, str(SUPPORT / script), *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=kept | variables)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(("script", "case"), CASES)
def test_program(script, case, cases_of):
    assert outcomes(script, *cases_of("test_program", script=script))[case] == ""
