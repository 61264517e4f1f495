"""Programs that torch exports: checks of values within, and what cannot be exported, with the user's line."""

import inspect

import pytest

torch = pytest.importorskip("torch")

import neuronx_cc.torch as neuron  # noqa: E402
from neuronx_cc.ir.errors import CompileError  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
EXACT = "--auto-cast none"


class Filter(torch.nn.Module):
    """Torch checks the factors' values, as effects that it orders by tokens."""

    def forward(self, x, y):
        factor = torch.linalg.cholesky(x)
        return torch.cholesky_solve(y, factor), {"inverse": torch.linalg.inv(x), "solved": torch.linalg.solve(x, y)}


@pytest.mark.parametrize("form", ["module", "decomposed"])
def test_checks_of_values_are_left_out(form):
    torch.manual_seed(1)
    x, y = torch.eye(3) * 4 + torch.rand(3, 3).triu(1) @ torch.rand(3, 3).triu(1).mT, torch.randn(3, 2)
    x = (x + x.mT) / 2
    model = Filter()
    given, examples = model, (x, y)
    if form == "decomposed":
        given, examples = torch.export.export(model, (x, y)).run_decompositions(), None
    torch.testing.assert_close(neuron.trace(given, examples, EXACT)(x, y), model(x, y), rtol=1e-4, atol=1e-5)


def branch(x):
    return x + 1 if x.sum() > 0 else x - 1


def solved(x):
    return torch.linalg.lstsq(x, x).solution


def derivative(x):
    return torch.func.grad(lambda z: z.sin().sum())(x)


def printed(x):
    torch.ops.aten._print("x")
    return x + 1


def unknown(x):
    return torch.special.bessel_j1(x)


REFUSED = {
    branch: "depends on a value",
    solved: "aten.linalg_lstsq.default of PyTorch",
    derivative: "torch.func",
    printed: "aten._print.default of PyTorch",
    unknown: "prims.bessel_j1.default of PyTorch",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_cannot_be_exported(function):
    with pytest.raises(CompileError) as raised:
        neuron.trace(function, torch.eye(3), EXACT)
    text = str(raised.value)
    assert raised.value.code == "EVRF001"
    assert REFUSED[function] in text
    assert "\n" not in text
    lines, first = inspect.getsourcelines(function)
    named = [f"{__file__}:{line}" in text for line in range(first, first + len(lines))]
    # of derivatives torch says no line when it decomposes them
    assert any(named) or function is derivative


def test_functions_of_c():
    torch.testing.assert_close(neuron.trace(torch.det, torch.eye(3) * 2, EXACT)(torch.eye(3)), torch.tensor(1.0))
