"""Fixtures of the code generation tests: seeded data, one stream per test."""

import zlib

import numpy as np
import pytest


@pytest.fixture
def random(request: pytest.FixtureRequest) -> np.random.Generator:
    """Seeded by the test's name, so that a failing case repeats alone."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
