"""Fixtures of the conformance tests."""

from pathlib import Path

import op_cases
import pytest


@pytest.fixture(scope="session")
def cases() -> dict[str, op_cases.Case]:
    """Every case by name."""
    return {case.name: case for case in op_cases.cases()}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing compile leaves its reproducer in the working directory."""
    monkeypatch.chdir(tmp_path)
