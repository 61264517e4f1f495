"""What code around a compiled graph relies on: sharing and strides of results, state, hooks, precision, scalars."""

import copy
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

import neuronx_cc.torch as neuron  # noqa: E402
from neuronx_cc.driver.frontends.torch.layouts import Layout, laid_out  # noqa: E402
from neuronx_cc.ir.errors import CompileError, RunError  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function, **options):
    return torch.compile(function, backend="neuron", **options)


def test_results_share_elements_as_in_eager_torch():
    def function(x):
        y = x * 2
        return y, y.view(-1), y[1], y.t(), y[:, 1:3], y[:, :2], x[0]

    x = torch.randn(3, 4)
    given = (x.clone(), x.clone())
    found, wanted = compiled(function)(given[0]), function(given[1])
    for each in (found, wanted):
        each[0][1, 1] = 7
        each[4][2, 0] = -3
        each[6][3] = 9
    torch.testing.assert_close(found, wanted, check_stride=True)
    torch.testing.assert_close(*given)


def test_results_that_lie_apart_in_a_storage_or_repeat_an_element():
    layouts = [Layout((2, 3), (0, 1), 1, 0), Layout((2,), (3,), 4, 0), None, Layout((2, 2), (1, 2), 0, 1)]
    values = [torch.tensor([[1.0, 2, 3]] * 2), torch.tensor([4.0, 7]), "other", torch.tensor([[1.0, 2], [3, 4]])]
    found = laid_out(values, layouts)
    torch.testing.assert_close(found[:2] + found[3:], values[:2] + values[3:])
    assert [each.stride() for each in (found[0], found[3])] == [(0, 1), (1, 2)]
    assert found[0].untyped_storage().data_ptr() == found[1].untyped_storage().data_ptr()


@pytest.mark.parametrize("form", ["channels_last", "permuted", "cut", "expanded"])
def test_inputs_of_any_strides(form):
    x = {
        "channels_last": torch.randn(2, 3, 6, 6).to(memory_format=torch.channels_last),
        "permuted": torch.randn(6, 2, 3, 6).permute(1, 2, 0, 3),
        "cut": torch.randn(2, 3, 6, 12)[..., ::2],
        "expanded": torch.randn(3, 1, 6).expand(2, 3, 6, 6),
    }[form]
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    model = model.to(memory_format=torch.channels_last)
    eager = copy.deepcopy(model)
    found, wanted = compiled(model)(x), eager(x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, check_stride=True)
    found.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(model[0].weight.grad, eager[0].weight.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)
    traced = neuron.trace(eager.eval(), x, "--auto-cast none")
    torch.testing.assert_close(traced(x), eager(x), rtol=1e-4, atol=1e-5)


def test_inputs_changed_through_views():
    def function(x):
        y = x.view(-1)
        y[::2].mul_(2)
        x[0].add_(1)
        return y, x.t(), x

    x = torch.randn(4, 6)
    other = x.clone()
    torch.testing.assert_close(compiled(function)(x), function(other))
    torch.testing.assert_close(x, other)


@pytest.mark.parametrize("outside", [False, True])
def test_autocast(outside):
    model, x = torch.nn.Linear(8, 4), torch.randn(3, 8)

    def inside(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).softmax(-1)

    function = model if outside else inside
    with torch.autocast("cpu", torch.bfloat16, enabled=outside):
        found, wanted = compiled(function)(x), function(x)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


def test_scaled_gradients():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    model = torch.nn.Linear(8, 4)
    eager, x = copy.deepcopy(model), torch.randn(3, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler.scale(compiled(model)(x).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    eager(x).square().mean().backward()
    torch.testing.assert_close(model.weight, eager.weight - 0.1 * eager.weight.grad)


def test_modes_without_gradients():
    model, x = torch.nn.Linear(8, 4), torch.randn(3, 8)
    call = compiled(model)
    for mode in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with mode:
            found, wanted = call(x), model(x)
        torch.testing.assert_close(found, wanted)
        assert found.requires_grad == wanted.requires_grad


def test_hooks():
    results = []
    for wrap in (lambda module: module, compiled):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        model.register_forward_hook(lambda module, given, found: found * 2)
        model.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
        model.register_full_backward_hook(lambda module, inner, outer: (inner[0] * 3,))
        x = torch.ones(2, 4, requires_grad=True)
        y = wrap(model)(x)
        y.square().sum().backward()
        results.append((y.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0])


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(7, 4)
        self.head = torch.nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, numbers):
        return self.head(self.embedding(numbers))


def test_tied_weights():
    model = Tied()
    eager, numbers = copy.deepcopy(model), torch.tensor([1, 2, 5])
    compiled(model)(numbers).square().sum().backward()
    eager(numbers).square().sum().backward()
    torch.testing.assert_close(model.head.weight.grad, eager.head.weight.grad)
    for inline in (True, False):
        traced = neuron.trace(model, numbers, "--auto-cast none", inline_weights_to_neff=inline)
        torch.testing.assert_close(traced(numbers), model(numbers))


@dataclass
class Result:
    values: torch.Tensor
    nothing: object
    rows: int


def test_results_that_are_no_tensors():
    def function(x):
        return {"a": (x + 1, None, 3.5, "s"), "b": Result(x * 2, None, x.shape[0]), "c": [x.sum(), True]}

    x = torch.ones(2, 3)
    found, wanted = compiled(function)(x), function(x)
    torch.testing.assert_close(found["b"].values, wanted["b"].values)
    assert (found["a"][1:], found["b"].rows, found["c"][1]) == (wanted["a"][1:], 2, True)


def test_numbers_that_change_from_call_to_call():
    call = compiled(lambda x, scale, shift: x * scale + shift)
    for scale, shift in ((1, 2.5), (2, 3.5), (3, 1e-3), (2.0, True)):
        torch.testing.assert_close(call(torch.ones(3), scale, shift), torch.ones(3) * scale + shift)


def test_64_bit_integers_are_exact():
    x, places = torch.tensor([2**40 + 3, -(2**33), 2**62, -1]), torch.tensor([3, 1, 2])

    def function(x, places):
        order = (x.max(), x.argmax(), x.sort().values, x.cumsum(0))
        return x[places], x * x, x // 7, x % 5, x >> 3, x << 1, x.abs(), x.sum(), x.float(), *order

    torch.testing.assert_close(compiled(function)(x, places), function(x, places), rtol=0, atol=0)


def test_a_compiled_step_of_an_optimizer():
    model = torch.nn.Linear(4, 4)
    eager, x = copy.deepcopy(model), torch.randn(2, 4)
    optimizers = [torch.optim.AdamW(each.parameters(), 0.1) for each in (model, eager)]
    steps = compiled(optimizers[0].step), optimizers[1].step
    for _ in range(2):
        for module, step in zip((model, eager), steps, strict=True):
            module.zero_grad()
            module(x).square().sum().backward()
            step()
    torch.testing.assert_close(model.weight, eager.weight)


def test_inputs_that_a_traced_model_changes_are_refused():
    with pytest.raises(CompileError, match="changes its state"):
        neuron.trace(lambda x: x.add_(1) * 2, torch.ones(2, 3))


def test_buckets_at_their_limits():
    model = torch.nn.Linear(4, 3)
    module = neuron.bucketed(model, [torch.ones(4, 4), torch.ones(1, 4)], "--auto-cast none")
    for rows in (0, 1, 2, 4):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(module(x), model(x))
    for wrong in ((torch.ones(5, 4),), (torch.ones(4),), (torch.ones(4, 4),) * 2, (torch.ones(2, 4).int(),), (3,)):
        with pytest.raises(RunError):
            module(*wrong)


VIEWS = {
    "parts": lambda x: [*x.chunk(2, 0), x * 2],
    "one part": lambda x: [x[1:]],
    "a column": lambda x: [x[:, 1]],
    "part of a result": lambda x: [(x * 2)[1:, 1:], (x + 1).t()],
    "of what changes": lambda x: [x[1:].add_(1), x.reshape(-1)[::2]],
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("form", ["dense", "cut", "transposed"])
def test_views_of_arrays_whose_sizes_change(name, form):
    call = compiled(VIEWS[name], dynamic=True)
    for rows in (4, 6):
        x = {
            "dense": torch.randn(rows, 6),
            "cut": torch.randn(rows, 12)[:, ::2],
            "transposed": torch.randn(6, rows).t(),
        }[form]
        other = torch.empty_strided(x.shape, x.stride()).copy_(x)
        found, wanted = call(x), VIEWS[name](other)
        torch.testing.assert_close(found, wanted, check_stride=True)
        for each in (found, wanted):
            each[0].add_(3)
        torch.testing.assert_close((found, x), (wanted, other))


@pytest.mark.parametrize("form", [lambda x: x.t(), lambda x: (x * 2)[1:]])
def test_strides_in_memory_that_is_not_known_are_refused(form):
    with pytest.raises(Exception, match="strides of a tensor that does not lie dense"):
        compiled(lambda x: torch.as_strided(form(x), (3, 2), (1, 3), 2) * 2)(torch.randn(4, 3))
