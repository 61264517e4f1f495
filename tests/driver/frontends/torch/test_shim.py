"""``from neuronx_cc import torch_neuronx``: what scripts for the vendor's package call."""

import logging

import pytest

torch = pytest.importorskip("torch")

from neuronx_cc import torch_neuronx  # noqa: E402
from neuronx_cc.ir.errors import RunError, UsageError  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3)


def test_trace_names_options_without_effect(model, caplog):
    with caplog.at_level(logging.WARNING, "neuronx_cc.torch"):
        traced = torch_neuronx.trace(
            model, torch.ones(2, 4), compiler_workdir="work", cpu_backend=False, compiler_args=["--auto-cast", "none"]
        )
    assert "compiler_workdir" in caplog.text
    assert "cpu_backend" not in caplog.text
    x = torch.randn(2, 4)
    torch.testing.assert_close(traced(x), model(x))
    with pytest.raises(UsageError, match="no argument 'workdir'"):
        torch_neuronx.trace(model, torch.ones(2, 4), workdir="work")


def test_replace_weights(model):
    traced = torch_neuronx.trace(
        model, torch.ones(2, 4), compiler_args="--auto-cast none", inline_weights_to_neff=False
    )
    other = torch.nn.Linear(4, 3)
    torch_neuronx.replace_weights(traced, other)
    x = torch.randn(2, 4)
    torch.testing.assert_close(traced(x), other(x))


def test_data_parallel(model):
    parallel = torch_neuronx.DataParallel(
        torch_neuronx.trace(model, torch.ones(2, 4), compiler_args="--auto-cast none")
    )
    x = torch.randn(6, 4)
    torch.testing.assert_close(parallel(x), model(x))
    with pytest.raises(RunError, match="does not split"):
        parallel(torch.ones(3, 4))
