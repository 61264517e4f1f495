"""``from neuronx_cc import torch_neuronx``: what scripts for the vendor's package call."""

import logging
from concurrent.futures import ThreadPoolExecutor

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


class Pair(torch.nn.Module):
    """Results of which one has no batch, and one is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 3)

    def forward(self, x, y):
        return {
            "z": self.dense(x) + y.mean(-1, keepdim=True),
            "size": 3,
            "scale": self.dense.weight.sum(),
            "none": None,
        }


@pytest.mark.parametrize("cores", [None, [0], [0, 1, 2], range(8)])
@pytest.mark.parametrize("inline", [True, False])
def test_data_parallel(cores, inline):
    torch.manual_seed(0)
    model = Pair()
    traced = torch_neuronx.trace(
        model, (torch.ones(2, 4), torch.ones(2, 5)), compiler_args="--auto-cast none", inline_weights_to_neff=inline
    )
    parallel = torch_neuronx.DataParallel(traced, cores)
    for length in (2, 10, 6):
        x, y = torch.randn(length, 4), torch.randn(length, 5)
        found, wanted = parallel(x, y), model(x, y)
        torch.testing.assert_close(found, wanted)
    if not inline:
        torch_neuronx.replace_weights(traced, (other := Pair()))
        torch.testing.assert_close(parallel(x, y)["z"], other(x, y)["z"])


def test_what_data_parallel_refuses(model):
    traced = torch_neuronx.trace(model, torch.ones(2, 4), compiler_args="--auto-cast none")
    parallel = torch_neuronx.DataParallel(traced)
    for length in (0, 3):
        with pytest.raises(RunError, match="does not split"):
            parallel(torch.ones(length, 4))
    with pytest.raises(RunError, match="shape"):
        parallel(torch.ones(4, 5))
    for cores in ([], [0, 0], range(33)):
        with pytest.raises(UsageError, match="device_ids"):
            torch_neuronx.DataParallel(traced, cores)


def test_threads_share_a_module(model):
    """A loaded program has one memory: calls from several threads wait for each other."""
    traced = torch_neuronx.trace(model, torch.ones(2, 4), compiler_args="--auto-cast none")
    given = [torch.randn(2, 4) for _ in range(64)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(traced, given))
    torch.testing.assert_close(found, [model(x).detach() for x in given])
