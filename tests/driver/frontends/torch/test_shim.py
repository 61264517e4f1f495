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


@pytest.mark.parametrize("cores", [[0], [0, 1, 2]])
def test_data_parallel_of_what_was_saved(cores, tmp_path, model):
    """As scripts do it: trace, save, load, replicate; the batch need not be a multiple of the traced one."""
    traced = torch_neuronx.trace(
        model, torch.ones(4, 4), compiler_args="--auto-cast none", inline_weights_to_neff=False
    )
    torch.jit.save(traced, tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")
    parallel = torch_neuronx.DataParallel(loaded, cores)
    for length in (1, 3, 4, 5, 11, 12, 13):
        x = torch.randn(length, 4)
        torch.testing.assert_close(parallel(x), model(x))
    torch_neuronx.replace_weights(loaded, (other := torch.nn.Linear(4, 3)))
    torch.testing.assert_close(loaded(x[:4]), other(x[:4]))
    torch.testing.assert_close(parallel(x), other(x))
    torch.testing.assert_close(torch_neuronx.dynamic_batch(loaded)(x), other(x))
    with pytest.raises(UsageError, match="no compiled program"):
        torch_neuronx.DataParallel(torch.jit.script(model))
    with pytest.raises(UsageError, match="no traced module"):
        torch_neuronx.DataParallel(model)


def test_results_of_several_rows_and_none_are_cut_back():
    """Each row of the batch may make several of a result."""
    function = torch_neuronx.trace(lambda x: (x.reshape(-1, 2), x.sum()), torch.ones(2, 4))
    x = torch.randn(5, 4)
    found = torch_neuronx.DataParallel(function)(x)
    torch.testing.assert_close(found, (x.reshape(-1, 2), x[:2].sum()))


def test_results_that_torchscript_has_no_type_for_are_saved_flat(tmp_path):
    def function(x):
        return {"a": x + 1, "b": (x.sum(), [x * 2]), "none": None, "size": 3}

    x = torch.randn(2, 3)
    traced = torch_neuronx.trace(function, x)
    torch.jit.save(traced, tmp_path / "model.pt")
    found = torch.jit.load(tmp_path / "model.pt")(x)
    torch.testing.assert_close(found, (x + 1, x.sum(), x * 2))
    torch.testing.assert_close(traced(x), function(x))


def test_names_of_the_vendor(caplog, model):
    with caplog.at_level(logging.WARNING, "neuronx_cc.torch"):
        torch_neuronx.async_load(model)
        torch_neuronx.experimental.set_multicore(model)
        with torch_neuronx.experimental.neuron_cores_context(start_nc=0):
            pass
    assert caplog.text.count("without effect") == 3
    with pytest.raises(AttributeError, match="bucketed"):
        torch_neuronx.BucketModelConfig  # noqa: B018
    with pytest.raises(AttributeError, match="there are DataParallel"):
        torch_neuronx.other  # noqa: B018
    with pytest.raises(UsageError, match="state of the module"):
        torch_neuronx.trace(model, torch.ones(2, 4), input_output_aliases={model.weight: 1})


def test_what_data_parallel_refuses(model):
    traced = torch_neuronx.trace(model, torch.ones(2, 4), compiler_args="--auto-cast none")
    parallel = torch_neuronx.DataParallel(traced)
    with pytest.raises(RunError, match="batches of 0"):
        parallel(torch.ones(0, 4))
    with pytest.raises(RunError, match="shape"):
        parallel(torch.ones(4, 5))
    parallel.disable_dynamic_batching()
    parallel(torch.ones(4, 4))
    for fixed in (parallel, torch_neuronx.DataParallel(traced, set_dynamic_batching=False)):
        for length in (2, 3, 6):
            with pytest.raises(RunError, match="the batch is 4"):
                fixed(torch.ones(length, 4))
    for cores in ([], [0, 0], range(33)):
        with pytest.raises(UsageError, match="device_ids"):
            torch_neuronx.DataParallel(traced, cores)


def test_another_dim_than_the_first(model):
    traced = torch_neuronx.trace(lambda x: x * 2, torch.ones(2, 4))
    parallel = torch_neuronx.DataParallel(traced, range(3), dim=1)
    x = torch.randn(2, 12)
    torch.testing.assert_close(parallel(x), x * 2)
    with pytest.raises(RunError, match="the batch is 12"):
        parallel(torch.randn(2, 8))


def test_threads_share_a_module(model):
    """A loaded program has one memory: calls from several threads wait for each other."""
    traced = torch_neuronx.trace(model, torch.ones(2, 4), compiler_args="--auto-cast none")
    given = [torch.randn(2, 4) for _ in range(64)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(traced, given))
    torch.testing.assert_close(found, [model(x).detach() for x in given])
