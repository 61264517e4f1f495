"""Models of torchvision, timm and transformers by name: forward, and steps of training, against torch.

The quick ones are those of CI's step with frameworks.
"""

from importlib.util import find_spec

import pytest

torch = pytest.importorskip("torch")
if not all(map(find_spec, ("torchvision", "timm", "transformers"))):
    pytest.skip("needs torchvision, timm and transformers", allow_module_level=True)

import torch_models  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

QUICK = {
    "torchvision/densenet", "torchvision/vit", "torchvision/swin", "timm/test_vit2", "timm/test_convnext2",
    "timm/test_resnet", "transformers/bert", "transformers/gpt2", "transformers/llama", "transformers/t5",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in torch_models.MODELS]
)
def test_forward(name, rates):
    error, _ = torch_models.forward_error(name)
    rates("models, forward", {"pass" if error < 1e-5 else "wrong": 1})
    assert error < 1e-5


@pytest.mark.parametrize("name", ["torchvision/vit"])
def test_steps_of_training(name):
    error, own = torch_models.training_error(name, 2)
    assert error < 1e-5 + 2 * own


@pytest.mark.slow
@pytest.mark.parametrize("name", torch_models.TRAINED)
def test_training(name, rates):
    error, own = torch_models.training_error(name)
    right = error < 1e-3 + 2 * own
    rates("models, ten steps of training", {"pass" if right else "wrong": 1})
    assert right, (error, own)
