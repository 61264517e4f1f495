"""Makes a bare checkout testable: ``neuronx_cc`` is that of the checkout, installed or not."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent


# ``neuronx_cc/`` links the folders (but not in an sdist, which has to be installed); commands that tests start need it
if (ROOT / "neuronx_cc" / "ir").exists():
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

# the same examples in every run, however slow the machine is
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("repeatable")

# beside the race check, in every test
os.environ.setdefault("NEURONX_CC_PROVENANCE", "1")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("installed") and not Path(sys.executable).with_name("neuronx-cc").exists():
        pytest.skip("the commands are not installed")
