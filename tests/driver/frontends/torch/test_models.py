"""Models of torchvision, timm and transformers by name: forward, and ten steps of training, against torch."""

from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")
if not all(map(find_spec, ("torchvision", "timm", "transformers"))):
    pytest.skip("needs torchvision, timm and transformers", allow_module_level=True)

import torch_models  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("name", torch_models.MODELS)
def test_forward(name, rates):
    error, _ = torch_models.forward_error(name)
    rates("models, forward", {"pass" if error < 1e-5 else "wrong": 1})
    assert error < 1e-5


@pytest.mark.parametrize("name", torch_models.TRAINED)
def test_training(name, rates):
    error, own = torch_models.training_error(name)
    right = error < 1e-3 + 2 * own
    rates("models, ten steps of training", {"pass" if right else "wrong": 1})
    assert right, (error, own)
