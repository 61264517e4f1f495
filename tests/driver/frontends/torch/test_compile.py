"""``torch.compile(model, backend="neuron")``: values, gradients, training, recompilation, graph breaks."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

import neuronx_cc.torch as neuron  # noqa: E402
from neuronx_cc.driver.frontends.torch import dynamo  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function, **options):
    return torch.compile(function, backend="neuron", **options)


def test_the_backend_is_an_entry_point():
    assert "neuron" in torch._dynamo.list_backends()


MODELS = {
    "dense": (lambda: torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)), (3, 8)),
    "convolution": (
        lambda: torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, stride=2),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.ConvTranspose2d(8, 4, 3),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
        ),
        (4, 3, 12, 12),
    ),
    "transformer": (lambda: torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), (2, 5, 16)),
    "recurrent": (lambda: First(torch.nn.GRU(4, 8, batch_first=True)), (2, 3, 4)),
    "memory": (lambda: First(torch.nn.LSTM(4, 8, 2, bidirectional=True)), (5, 2, 4)),
    "memory without biases": (lambda: First(torch.nn.LSTM(4, 8, bias=False, batch_first=True)), (2, 3, 4)),
}


class First(torch.nn.Module):
    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.parametrize("name", MODELS)
def test_training_follows_eager_torch(name):
    make, shape = MODELS[name]
    eager = make()
    model = copy.deepcopy(eager)
    runs = []
    for module, call in ((eager, eager), (model, compiled(model, fullgraph=True))):  # nothing is left to the CPU
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(1)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            result = call(torch.randn(shape, generator=generator))
            loss = (result * torch.randn(result.shape, generator=generator)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        runs.append((losses, module.state_dict()))
    torch.testing.assert_close(*(torch.tensor(losses) for losses, _ in runs), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(runs[1][1], runs[0][1], rtol=1e-3, atol=3e-4)


def test_gradients_of_inputs():
    x = torch.randn(3, 5, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    F.layer_norm(x, (5,)).logsumexp(-1).sum().backward()
    compiled(lambda x: F.layer_norm(x, (5,)).logsumexp(-1).sum())(y).backward()
    torch.testing.assert_close(y.grad, x.grad)


def test_sizes_are_compiled_once_each():
    seen = []

    def spied(lowered, options):
        seen.append(1)
        return original(lowered, options)

    original, dynamo._program = dynamo._program, spied
    try:
        call = compiled(lambda x: (x * 2 + x.shape[0]).sum(0))
        for rows in (2, 3, 4, 5, 2, 3, 4, 5, 4):
            torch.testing.assert_close(call(torch.ones(rows, 3)), torch.full((3,), rows * (2.0 + rows)))
    finally:
        dynamo._program = original
    # the first size has a graph of its own, before dynamo knows that sizes change
    assert len(seen) == 5


def test_equal_graphs_share_a_program():
    before = len(dynamo._known)
    for _ in range(2):
        torch._dynamo.reset()
        compiled(lambda x: torch.tanh(x) * 1.25)(torch.ones(7))
    assert len(dynamo._known) == before + 1


def test_graph_breaks():
    def function(x):
        y = torch.sin(x)
        torch._dynamo.graph_break()
        return y * 2 if y.sum() > 0 else -y

    call = compiled(function)
    for x in (torch.ones(4), -torch.ones(4)):
        torch.testing.assert_close(call(x), function(x))


def test_dropout_is_repeated_by_the_seed_and_keeps_its_share():
    call = compiled(lambda x: F.dropout(x, 0.25, True))
    x = torch.ones(100, 100, requires_grad=True)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(call(x))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert 0.72 < (results[0] != 0).float().mean() < 0.78
    results[0].sum().backward()
    torch.testing.assert_close(x.grad, results[0].detach())


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.int8, torch.uint8, torch.bool]
)
def test_element_types(dtype):
    x = torch.tensor([[1, 0, 3], [4, 5, 120]]).to(dtype)

    def function(x):
        return x.flip(0), x.sum(), (x * 2).to(torch.float32), torch.cat([x, x]), x == 3, x.float().mean(-1).to(x.dtype)

    torch.testing.assert_close(compiled(function)(x), function(x), rtol=1e-2, atol=1e-2)


def test_integers_beyond_32_bits():
    x = torch.tensor([2**40 + 3, -(2**35), 7])
    torch.testing.assert_close(compiled(lambda x: x * 3 + x // 2)(x), x * 3 + x // 2)


def test_inputs_are_changed_in_place():
    x = torch.zeros(3)
    compiled(lambda x: x.add_(1).mul(2))(x)
    torch.testing.assert_close(x, torch.ones(3))


def test_python_numbers_that_change_under_training():
    """From the second value on dynamo makes them inputs, FP64 for torch; backward reads them, and what follows."""
    layer = torch.nn.Linear(4, 4)

    def function(x, scale):
        return (layer(x) * scale + x.relu() * (scale * 2 + 1)).square().sum()

    call = compiled(function)
    for scale in (1.0, 2.0, 0.25):
        x = torch.randn(2, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        gradients = []
        for each, given in ((function, x), (call, y)):
            layer.zero_grad()
            each(given, scale).backward()
            gradients.append([given.grad, layer.weight.grad.clone()])
        torch.testing.assert_close(*gradients)


def test_options_and_their_errors():
    x = torch.randn(64, 64)
    close = compiled(lambda x: x @ x)(x)
    cast = compiled(lambda x: x @ x, options={"auto_cast": "all"})(x)
    torch.testing.assert_close(close, x @ x, rtol=1e-4, atol=1e-4)
    assert (cast - x @ x).abs().max() > 1e-3
    with pytest.raises(Exception, match="auto_cats"):
        compiled(lambda x: x @ x + 1, options={"auto_cats": "all"})(x)


def test_refusals_reach_the_user():
    with pytest.raises(Exception, match=r"EVRF001.*bessel.*test_compile.py"):
        compiled(lambda x: torch.special.bessel_j0(x))(torch.ones(3))


def test_last_run_tells_the_time():
    compiled(lambda x: x + 1)(torch.ones(128, 128))
    assert neuron.last_run().report.to_text(3).startswith("Simulated on trn1")
