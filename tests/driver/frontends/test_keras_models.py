"""Keras models by name through every route, against Keras itself: slow, for most are whole networks."""

import importlib.util
from typing import Any

import keras_models
import pytest


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs keras")
@pytest.mark.slow
@pytest.mark.parametrize("name", keras_models.MODELS)
@pytest.mark.parametrize("route", keras_models.ROUTES)
def test_models_agree_with_keras(name: str, route: str, rates: Any) -> None:
    if route.startswith("savedmodel") and importlib.util.find_spec("tensorflow") is None:
        pytest.skip("needs tensorflow")
    found = keras_models.outcome(name, route)
    agrees = found["error"] is not None and found["error"] < keras_models.TOLERANCE
    rates(f"Keras models, {route}", {"pass" if agrees else "wrong" if found["error"] else "refused": 1})
    assert found["error"] is not None, found["said"]
    assert found["error"] < keras_models.TOLERANCE
