"""Makes a bare checkout testable: ``neuronx_cc`` is that of the checkout, installed or not."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent


# ``neuronx_cc/`` links the folders (but not in an sdist, which has to be installed); commands that tests start need it;
# where Python is told not to look for packages in checkouts, another build of this one is tested (tests/sanitize)
if (ROOT / "neuronx_cc" / "ir").exists() and not sys.flags.safe_path:
    sys.path.insert(0, str(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

# the same examples in every run, however slow the machine is
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("repeatable")

# beside the race check, in every test
os.environ.setdefault("NEURONX_CC_PROVENANCE", "1")

# the oracle's code runs once: optimising it takes longer than running it
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_backend_optimization_level=0",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
)

CASES = 2
"""Of a test with more parameter sets, those that run where the whole suite does."""
CHANGES = crc32((ROOT / "CHANGELOG.md").read_bytes())
"""With each entry other parameter sets run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        type=int,
        help=f"of a test with more parameter sets, run this many, others with each entry of the changelog; 0: all. "
        f"Default: {CASES} of the whole suite, all of files and folders given by name",
    )


@pytest.hookimpl(trylast=True)  # after those deselected by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of each test, the parameter sets whose names hash lowest: spread over products of parameters, the same ones when
    others are added, and others with each entry of the changelog, for what is never drawn is broken one day; all of
    what is marked as a table, whose rows each say something else.
    """
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    most = config.option.cases if config.option.cases is not None else CASES if whole else 0
    if not most:
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("table"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left = {id(each) for some in cases.values() for each in sorted(some, key=_hashed)[most:]}
    if left:
        config.hook.pytest_deselected(items=[item for item in items if id(item) in left])
        items[:] = [item for item in items if id(item) not in left]


@pytest.fixture(scope="session")
def cases_of(request: pytest.FixtureRequest) -> Callable[..., list[str]]:
    """``cases_of("test_program", script=...)``: the ``case`` of each parameter set of that test that runs."""

    def cases(test: str, **others: str) -> list[str]:
        items = [item for item in request.session.items if isinstance(item, pytest.Function)]
        given = [item.callspec.params for item in items if item.originalname == test]
        return [each["case"] for each in given if others.items() <= each.items()]

    return cases


def _hashed(item: pytest.Item) -> tuple[int, str]:
    return crc32(item.nodeid.encode(), CHANGES), item.nodeid


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("installed") and not Path(sys.executable).with_name("neuronx-cc").exists():
        pytest.skip("the commands are not installed")
