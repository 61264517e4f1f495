"""The native core: that it is built where it must be, and that it agrees with the NumPy executor."""

import os

import pytest

from neuronx_cc.runtime.native import library


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="only where a compiler is promised: CI=true")
def test_the_core_was_built() -> None:
    """The extension is optional, so an error in its sources would pass for a missing compiler."""
    assert library.load() is not None


def test_levels_are_named_and_unknown_ones_are_not_there() -> None:
    if library.load() is None:
        assert library.level() is None
        return
    assert library.level() in ("base", "avx2", "avx512")
    assert library.level("base") == "base"
    assert library.level("no such level") is None
