"""``neuronx_cc.torch.trace``: values, saved modules, weights as parameters, buckets, errors with the user's lines."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import neuronx_cc.torch as neuron  # noqa: E402
from neuronx_cc.ir.errors import CompileError, RunError, UsageError  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
EXACT = "--auto-cast none"


class Block(torch.nn.Module):
    """A convolution with batch norm and pooling, a transformer layer, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = torch.nn.Linear(8 * 16, 10)

    def forward(self, x):
        y = torch.relu(self.norm(self.convolution(x)))
        y = torch.nn.functional.max_pool2d(y, 2)
        y = self.layer(y.flatten(2))
        return torch.nn.functional.gelu(self.head(y.flatten(1))).softmax(-1)


class Named(torch.nn.Module):
    """Nested arguments and results, a named argument, a constant result."""

    def forward(self, pair, *, scale=None):
        x, y = pair["x"], pair["y"]
        return {"sum": (x + y) * (1 if scale is None else scale), "rest": [x.argmax(-1), None], "size": 3}


@pytest.fixture(scope="module")
def block():
    torch.manual_seed(0)
    return Block().eval()


@pytest.fixture(scope="module")
def image():
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def traced(block, image):
    return neuron.trace(block, image, EXACT)


def test_values(block, image, traced):
    torch.testing.assert_close(traced(image), block(image), rtol=1e-5, atol=1e-6)
    assert neuron.last_run().report.time_ns > 0
    assert traced.executable.input_names == ["x"]


@pytest.mark.parametrize("form", ["--auto-cast all --auto-cast-type bf16", ["--auto-cast=all"], {"auto_cast": "all"}])
def test_compiler_arguments(block, image, form):
    casts = neuron.trace(block, image, form)(image) - block(image)
    assert 1e-5 < casts.abs().max() < 0.05


@pytest.mark.parametrize("wrong", ["--auto-cats none", "model.hlo", {"auto_cats": "none"}])
def test_wrong_compiler_arguments(block, image, wrong):
    with pytest.raises(UsageError):
        neuron.trace(block, image, wrong)


LOAD = """
import sys, warnings; warnings.simplefilter("ignore")
import torch, neuronx_cc.torch
image, expected = torch.load("data.pt")
for number in "01":
    for module in (torch.jit.load(f"scripted{number}.pt"), torch.load(f"plain{number}.pt")):
        torch.testing.assert_close(module(image), expected, rtol=1e-5, atol=1e-6)
assert "neuronx_cc.codegen.compile" not in sys.modules, "a saved program needs no compiler"
"""


def test_saved_and_loaded_in_a_new_process(block, image, traced, tmp_path):
    with_parameters = neuron.trace(block, image, EXACT, inline_weights_to_neff=False)
    for number, module in enumerate((traced, with_parameters)):
        torch.jit.save(module, str(tmp_path / f"scripted{number}.pt"))
        torch.save(module, tmp_path / f"plain{number}.pt")
    torch.save((image, block(image).detach()), tmp_path / "data.pt")
    run = subprocess.run([sys.executable, "-c", LOAD], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_written_program_runs_without_torch(image, block, traced, tmp_path):
    import neuronx_cc

    traced.write_neff(tmp_path / "block.neff")
    result = neuronx_cc.load(tmp_path / "block.neff").run({"x": image.numpy()}).outputs[0]
    torch.testing.assert_close(torch.from_numpy(result), block(image).detach(), rtol=1e-5, atol=1e-6)


def test_weights_as_parameters(image):
    torch.manual_seed(2)
    first, second = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(3, 4, 3)
    module = neuron.trace(first, image, EXACT, inline_weights_to_neff=False)
    torch.testing.assert_close(module(image), first(image))
    module.replace_weights(second.state_dict())
    torch.testing.assert_close(module(image), second(image))
    with pytest.raises(UsageError, match="no weight 'gain'"):
        module.replace_weights({"gain": torch.ones(1)})


def test_nested_arguments_and_results(tmp_path):
    pair = {"x": torch.randn(2, 4), "y": torch.randn(2, 4)}
    module = neuron.trace(Named(), (pair,), EXACT, kwargs={"scale": torch.tensor(2.0)})
    result = module(pair, scale=torch.tensor(3.0))
    torch.testing.assert_close(result["sum"], (pair["x"] + pair["y"]) * 3)
    assert result["rest"][0].tolist() == pair["x"].argmax(-1).tolist()
    assert result["rest"][1] is None
    assert result["size"] == 3
    with pytest.raises(RunError, match="nested otherwise"):
        module(pair["x"])
    with pytest.raises(RunError, match="shape"):
        module({"x": torch.ones(3, 4), "y": torch.ones(3, 4)}, scale=torch.tensor(3.0))


def test_buckets():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    module = neuron.bucketed(model, [torch.ones(8, 4), torch.ones(2, 4)], EXACT)
    for rows in (1, 2, 5, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(module(x), model(x))
    with pytest.raises(RunError, match="fit none of the buckets"):
        module(torch.ones(9, 4))
    with pytest.raises(UsageError, match="differ"):
        neuron.bucketed(model, [torch.ones(8, 4), torch.ones(4)])


def test_a_dynamic_batch_is_refused_with_the_remedy():
    dims = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(torch.nn.Linear(4, 3), (torch.ones(2, 4),), dynamic_shapes=dims)
    with pytest.raises(CompileError) as caught:
        neuron.trace(program, None)
    assert caught.value.code == "EMOD025"
    assert "bucketed" in caught.value.remedy


class Refused(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), Bessel())

    def forward(self, x):
        return torch.special.airy_ai(self.inner(x))


class Bessel(torch.nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(Path(__file__).read_text().splitlines(), 1) if f"return {text}" in line)


def test_unknown_operators_are_named_with_lines_and_modules():
    with pytest.raises(CompileError) as caught:
        neuron.trace(Refused(), torch.ones(2, 4))
    assert caught.value.code == "EVRF001"
    assert f"inner.1, {__file__}:{line_of('torch.special.bessel_j0(x)')}" in caught.value.message
    assert f"{__file__}:{line_of('torch.special.airy_ai(self.inner(x))')}" in caught.value.message


class Wide(torch.nn.Module):
    def forward(self, x):
        return torch.cos(x.double())


def test_refusals_of_the_compiler_name_the_line():
    with pytest.raises(CompileError, match=f"test_trace.py:{line_of('torch.cos(x.double())')}"):
        neuron.trace(Wide(), torch.ones(2, 4))


def test_reports_name_lines_and_modules(traced):
    entries = traced.executable.program.debug
    lines = {entry.source_line for entry in entries if entry.source_file == __file__}
    assert line_of("torch.nn.functional.gelu(self.head(y.flatten(1))).softmax(-1)") in lines
    assert any("layer.self_attn" in entry.op_name for entry in entries)
    assert not [entry.source_file for entry in entries if "frontends/torch" in entry.source_file.split("tests")[0]]


class Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return x + self.calls


@pytest.mark.parametrize("model", [Counts(), torch.nn.Dropout()], ids=["state", "dropout"])
def test_state_and_random_numbers_are_refused(model):
    with pytest.raises(CompileError, match=r"changes its state|random numbers"):
        neuron.trace(model.train(), torch.ones(2, 4))


def test_what_cannot_be_traced():
    with pytest.raises(UsageError, match="cannot trace a int"):
        neuron.trace(3, torch.ones(2))
    with pytest.raises(UsageError, match="scripted"):
        neuron.trace(torch.jit.script(torch.nn.Linear(2, 2)), torch.ones(2, 2))


class Library(torch.nn.Module):
    """A row that calls functions which JAX lowers once for all of their calls."""

    def forward(self, x):
        return torch.nanmedian(x + 1, 1).values


def test_functions_of_the_library_have_the_line_of_their_call():
    for model in (torch.nn.Sequential(Library(), torch.nn.Tanh()), Library()):
        entries = neuron.trace(model, torch.randn(3, 5), EXACT).executable.program.debug
        line = line_of("torch.nanmedian(x + 1, 1)")
        assert {(entry.source_file, entry.source_line) for entry in entries if "jit(argsort)" in entry.op_name} == {
            (__file__, line)
        }
        assert not [entry for entry in entries if entry.op_name and not entry.source_file]


def test_arguments_by_place_or_by_name():
    def function(x, y, scale=1.0):
        return (x - y) * scale

    x, y = torch.ones(3), torch.arange(3.0)
    placed = neuron.trace(function, (x, y))
    named = neuron.trace(function, (x,), kwargs={"y": y})
    for traced in (placed, named):
        for result in (traced(x, y), traced(x, y=y), traced(y=y, x=x)):
            torch.testing.assert_close(result, x - y)
        for arguments, keywords in (((x,), {}), ((x, y), {"y": y}), ((x, y, x), {}), ((x,), {"z": y})):
            with pytest.raises(RunError, match="ERUN001"):
                traced(*arguments, **keywords)


def test_weights_of_another_shape_are_refused():
    traced = neuron.trace(torch.nn.Linear(4, 2), torch.ones(1, 4), inline_weights_to_neff=False)
    with pytest.raises(UsageError, match=r"EARG906.*'weight' has the shape \[2, 4\], not \[1, 4\]"):
        traced.replace_weights({"weight": torch.ones(1, 4)})


def test_modules_come_through_the_one_door():
    import neuronx_cc

    model, x = torch.nn.Linear(4, 2), torch.randn(3, 4)
    executable = neuronx_cc.compile(neuronx_cc.load_model(model, x), auto_cast="none")
    torch.testing.assert_close(torch.tensor(executable.run([x.numpy()]).outputs[0]), model(x).detach())
    with pytest.raises(UsageError, match=r"EARG906.*the inputs of Linear are not known"):
        neuronx_cc.load_model(model)
    with pytest.raises(UsageError, match=r"EARG906.*load_model"):
        neuronx_cc.compile(model)


def test_threads_trace_and_compile_at_once():
    from concurrent.futures import ThreadPoolExecutor

    models = [torch.nn.Sequential(torch.nn.Linear(4, 4 + each), torch.nn.ReLU()).eval() for each in range(3)]
    x = torch.randn(3, 4)

    def both(model):
        results = neuron.trace(model, x, EXACT)(x), torch.compile(model, backend="neuron")(x)
        return all(torch.allclose(each, model(x), rtol=1e-4, atol=1e-5) for each in results)

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(both, models))
