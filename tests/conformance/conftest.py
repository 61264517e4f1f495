"""Fixtures of the conformance tests."""

import op_cases
import pytest


@pytest.fixture(scope="session")
def cases() -> dict[str, op_cases.Case]:
    """Every case by name."""
    return {case.name: case for case in op_cases.cases()}
