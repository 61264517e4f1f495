"""Makes a bare checkout testable: without an installed ``neuronx_cc`` the folders are linked under that name."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent


def link_checkout() -> None:
    """Link the folders as parts of one package under build/typing (as ``make farm`` does) and put it on the path."""
    farm = ROOT / "build" / "typing"
    (farm / "neuronx_cc").mkdir(parents=True, exist_ok=True)
    targets = {"__init__.py": ROOT / "driver" / "neuronx_cc" / "__init__.py"}
    targets |= {name: ROOT / name for name in ("hlo_import", "ir", "passes", "codegen", "runtime", "driver")}
    for name, target in targets.items():
        link = farm / "neuronx_cc" / name
        if not link.exists():
            try:
                link.symlink_to(target)
            except FileExistsError:  # another test process was faster
                continue
    sys.path.insert(0, str(farm))
    # commands that tests start need it as well
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(farm), os.environ.get("PYTHONPATH")]))


# the same examples in every run, however slow the machine is
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("repeatable")

# beside the race check, in every test
os.environ.setdefault("NEURONX_CC_PROVENANCE", "1")

if importlib.util.find_spec("neuronx_cc") is None:
    link_checkout()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("installed") and not Path(sys.executable).with_name("neuronx-cc").exists():
        pytest.skip("the commands are not installed")
