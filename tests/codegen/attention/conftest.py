"""Attentions of any size are attentions here, also small ones that sums of products take less time for."""

import pytest

from neuronx_cc.passes import thin_dots


@pytest.fixture(autouse=True)
def products_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """No contraction becomes a sum of products because it is narrow."""
    monkeypatch.setattr(thin_dots, "_is_narrow", lambda *_: False)
