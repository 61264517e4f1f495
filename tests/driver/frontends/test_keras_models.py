"""Keras models by name through every route, against Keras itself: most are whole networks, and slow."""

import importlib.util
from typing import Any

import keras_models
import pytest

QUICK = [("encoder", "savedmodel"), ("MobileNet", "keras, weights as parameters")]


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs keras")
@pytest.mark.parametrize(
    ("name", "route"),
    [
        pytest.param(name, route, marks=() if (name, route) in QUICK else pytest.mark.slow)
        for name in keras_models.MODELS
        for route in keras_models.ROUTES
    ],
)
def test_models_agree_with_keras(name: str, route: str, rates: Any) -> None:
    if route.startswith("savedmodel") and importlib.util.find_spec("tensorflow") is None:
        pytest.skip("needs tensorflow")
    found = keras_models.outcome(name, route)
    agrees = found["error"] is not None and found["error"] < keras_models.TOLERANCE
    rates(f"Keras models, {route}", {"pass" if agrees else "wrong" if found["error"] else "refused": 1})
    assert found["error"] is not None, found["said"]
    assert found["error"] < keras_models.TOLERANCE
