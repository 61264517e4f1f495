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


def printed(x):
    torch.ops.aten._print("x")
    return x + 1


def unknown(x):
    return torch.special.bessel_j1(x)


REFUSED = {
    branch: "depends on a value",
    solved: "aten.linalg_lstsq.default of PyTorch",
    printed: "aten._print.default of PyTorch",
    unknown: "prims.bessel_j1.default of PyTorch",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_what_cannot_be_exported(function, capsys):
    with pytest.raises(CompileError) as raised:
        neuron.trace(function, torch.eye(3), EXACT)
    text = str(raised.value)
    assert raised.value.code == "EVRF001"
    assert REFUSED[function] in text
    assert "\n" not in text
    assert not capsys.readouterr().err
    lines, first = inspect.getsourcelines(function)
    assert any(f"{__file__}:{line}" in text for line in range(first, first + len(lines)))


def squares(w, row):
    return torch.nn.functional.conv1d(row[None], w).sin().square().sum()


DERIVATIVES = {
    "grad": lambda w, x: torch.func.grad(squares)(w, x),
    "each row's": lambda w, x: torch.func.vmap(torch.func.grad(squares), (None, 0))(w, torch.stack([x, 2 * x])),
    "jvp": lambda w, x: torch.func.jvp(lambda y: squares(w, y), (x,), (x,)),
    "hessian": lambda w, x: torch.func.hessian(squares)(w, x),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_by_torch_func(name):
    given = torch.linspace(-1, 1, 12).reshape(2, 2, 3), torch.linspace(0, 2, 10).reshape(2, 5)
    traced = neuron.trace(DERIVATIVES[name], given, EXACT)
    torch.testing.assert_close(traced(*given), DERIVATIVES[name](*given), rtol=1e-4, atol=1e-5)


def test_derivatives_in_exported_programs():
    class Derivative(torch.nn.Module):
        def forward(self, x):
            return torch.func.grad(lambda z: z.sin().sum())(x)

    with pytest.raises(CompileError, match=r"EVRF001.*derivatives by torch\.func.*pass the module itself"):
        neuron.trace(torch.export.export(Derivative(), (torch.ones(3),)), None, EXACT)


def test_functions_of_c():
    torch.testing.assert_close(neuron.trace(torch.det, torch.eye(3) * 2, EXACT)(torch.eye(3)), torch.tensor(1.0))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_factors_in_place_of_sizes(mode):
    def resized(x):
        return torch.nn.functional.interpolate(x, None, (1.7, 0.9), mode, False, antialias=True)

    x = torch.linspace(-1, 1, 40).reshape(1, 2, 4, 5).sin()
    torch.testing.assert_close(neuron.trace(resized, x, EXACT)(x), resized(x), rtol=1e-4, atol=1e-5)
