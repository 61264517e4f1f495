"""``.pt2`` files: what is written is read; damage, pickles, custom operators and dynamic sizes are refused by name."""

import io
import json
import pickle
import re
import zipfile

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import neuronx_cc  # noqa: E402
import neuronx_cc.torch as neuron  # noqa: E402
from neuronx_cc.driver import cli  # noqa: E402
from neuronx_cc.ir.errors import CompileError, NeuronError, UsageError  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 3)
        self.register_buffer("scale", torch.arange(3.0))

    def forward(self, x, *, shift):
        shifted = self.dense(x) * self.scale + torch.tensor([1.0, 2, 3])
        # what JAX computes in FP64 on the way is FP32 in a program that has none
        return {"y": [shifted * torch.linspace(1, 2, 3), shift.long().sum()]}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def members(model, tmp_path_factory):
    """Content by member, as torch writes it."""
    path = tmp_path_factory.mktemp("pt2") / "model.pt2"
    torch.export.save(torch.export.export(model, (torch.ones(2, 4),), {"shift": torch.ones(2)}), path)
    with zipfile.ZipFile(path) as archive:
        return {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}


def written(members, path, **how):
    with zipfile.ZipFile(path, "w", **how) as archive:
        for name, data in members.items():
            archive.writestr(f"model/{name}", data)
    return path


class Trap:
    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


def test_a_file_is_read(model, members, tmp_path):
    # what torch would unpickle beside the tensors is not looked at
    path = written({**members, "data/sample_inputs/model.pt": pickle.dumps(Trap())}, tmp_path / "model.pt2")
    program = neuron.read_pt2(path)
    x, shift = torch.randn(2, 4), torch.randn(2)
    for inline in (True, False):
        traced = neuron.trace(program, None, "--auto-cast none", inline_weights_to_neff=inline)
        torch.testing.assert_close(traced(x, shift=shift), model(x, shift=shift))
    lines = {entry.source_file for entry in traced.executable.program.debug}
    assert __file__ in lines


GRAPH, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
CODE = "__import__('pytest').fail('text was evaluated')"


def edited(members, member, change):
    document = json.loads(members[member])
    change(document)
    return {**members, member: json.dumps(document).encode()}


def nodes(document):
    return document["graph_module"]["graph"]["nodes"]


def first_weight(document):
    return document["config"]["dense.weight"]


def pickled(document):
    first_weight(document)["use_pickle"] = True


def renamed(old, new):
    return lambda members: {
        **members,
        GRAPH: members[GRAPH].replace(json.dumps(old).encode(), json.dumps(new).encode()),
    }


def on_graph(change):
    return lambda members: edited(members, GRAPH, change)


def on_weights(change):
    return lambda members: edited(members, WEIGHTS, change)


def large(document):
    first_weight(document)["tensor_meta"]["sizes"][0]["as_int"] = 10**6


def repeated(document):
    meta = first_weight(document)["tensor_meta"]
    meta["sizes"] = [{"as_int": 2**30}, {"as_int": 2**30}]
    meta["strides"] = [{"as_int": 0}, {"as_int": 0}]


def negative(document):
    first_weight(document)["tensor_meta"]["storage_offset"]["as_int"] = -4


def elsewhere(document):
    first_weight(document)["path_name"] = "../../../etc/passwd"


def evaluated(document):
    tensor = document["graph_module"]["graph"]["tensor_values"]["x"]
    tensor["sizes"][0] = {"as_expr": {"expr_str": CODE, "hint": None}}


def deep(members):
    return {**members, GRAPH: b'{"a":' * 5000 + b"1" + b"}" * 5000}


def another_node(target):
    def change(document):
        nodes(document)[0]["target"] = target

    return on_graph(change)


def a_type(document):
    spec = document["graph_module"]["module_call_graph"][0]["signature"]["out_spec"]
    document["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = spec.replace(
        "builtins.dict", "collections.defaultdict"
    )


DAMAGE = {
    "pickled weight": (on_weights(pickled), "EVRF064", "never loaded"),
    "too large": (on_weights(large), "EVRF064", "larger than"),
    "repeated": (on_weights(repeated), "EVRF064", "repeats its"),
    "negative": (on_weights(negative), "EVRF064", "malformed"),
    "another path": (on_weights(elsewhere), "EVRF064", "never loaded"),
    "no weights": (lambda members: {k: v for k, v in members.items() if k != WEIGHTS}, "EVRF064", "no member"),
    "no JSON": (lambda members: {**members, GRAPH: b"{"}, "EVRF064", "no JSON"),
    "a list": (lambda members: {**members, GRAPH: b"[]"}, "EVRF064", "no JSON object"),
    "empty": (lambda members: {**members, GRAPH: b"{}"}, "EVRF064", "cannot be read"),
    "deep": (deep, "EVRF064", "no JSON|too deep"),
    "evaluated size": (on_graph(evaluated), "EMOD025", "dynamic"),
    "custom operator": (another_node("torch.ops.mine.op.default"), "EVRF001", r"mine\.op"),
    "experts": (another_node("torch.ops.transformers.grouped_mm_fallback.default"), "EVRF001", "batched_mm"),
    "any attribute": (another_node("torch.load"), "EVRF001", r"torch\.load"),
    "any function": (another_node("_operator.methodcaller"), "EVRF001", "methodcaller"),
    "code as a name": (renamed("dense.weight", f'dense"), {CODE}, ("'), "EVRF064", "a name in its graph"),
    "code as an input": (renamed("x", f"x={CODE}"), "EVRF064", "a name in its graph"),
    "another byte order": (lambda members: {**members, "byteorder": b"big"}, "EVRF064", "byte order b'big'"),
    "two models": (lambda members: {**members, "models/b.json": b"{}"}, "EVRF064", "2 models"),
    "containers": (on_graph(a_type), "EVRF064", "defaultdict"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused(members, tmp_path, kind):
    change, code, words = DAMAGE[kind]
    path = written(change(members), tmp_path / "model.pt2")
    with pytest.raises(CompileError) as caught:
        neuron.read_pt2(path)
    assert caught.value.code == code
    assert str(path) in caught.value.message
    assert re.search(words, str(caught.value)), caught.value


def test_operators_that_do_not_fit_their_operands_are_refused(members, tmp_path, caplog):
    """The file is whole, and torch finds what is wrong when it takes composite operators apart."""

    def other_bias(document):
        meta = document["config"]["dense.bias"]["tensor_meta"]
        meta["sizes"], meta["strides"] = [{"as_int": 0}], [{"as_int": 1}]

    def other_shape(document):
        values = document["graph_module"]["graph"]["tensor_values"]
        values["p_dense_bias"]["sizes"] = [{"as_int": 0}]

    changed = edited(edited(members, WEIGHTS, other_bias), GRAPH, other_shape)
    with pytest.raises(CompileError) as caught:
        neuronx_cc.load_model(written(changed, tmp_path / "model.pt2"))
    assert caught.value.code == "EVRF064"
    assert "do not fit their operands" in caught.value.message
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_other_files_are_refused(model, members, tmp_path):
    plain = tmp_path / "plain.pt"
    torch.save(model.state_dict(), plain)
    with pytest.raises(CompileError, match="pickle"):
        neuron.read_pt2(plain)
    with pytest.raises(CompileError, match="compressed"):
        neuron.read_pt2(written(members, tmp_path / "packed.pt2", compression=zipfile.ZIP_DEFLATED))
    (tmp_path / "text.pt2").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CompileError, match="no zip archive"):
        neuron.read_pt2(tmp_path / "text.pt2")
    with pytest.raises(UsageError, match="cannot read"):
        neuron.read_pt2(tmp_path / "none.pt2")


def test_names_of_members_that_are_no_text_are_refused(members, tmp_path):
    whole = written({**members, "é": b""}, tmp_path / "model.pt2").read_bytes()
    assert whole.count("é".encode()) == 2
    (tmp_path / "model.pt2").write_bytes(whole.replace("é".encode(), b"\xb4\xb4"))
    with pytest.raises(CompileError, match="damaged"):
        neuron.read_pt2(tmp_path / "model.pt2")


def test_no_damaged_byte_gives_a_traceback(members, tmp_path):
    """Every 97th byte of the file, and every 53rd of the graph, is another one."""
    whole = written(members, tmp_path / "model.pt2").read_bytes()
    graph = members[GRAPH]
    cases = [whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] for at in range(0, len(whole), len(whole) // 40)]
    for at in range(0, len(graph), len(graph) // 40):
        changed = graph[:at] + bytes([graph[at] ^ 0x01]) + graph[at + 1 :]
        buffer = io.BytesIO()
        written({**members, GRAPH: changed}, buffer)
        cases.append(buffer.getvalue())
    refused = 0
    for data in cases:
        (tmp_path / "damaged.pt2").write_bytes(data)
        try:
            neuron.read_pt2(tmp_path / "damaged.pt2")
        except NeuronError:
            refused += 1
    assert refused > len(cases) // 3


def test_the_command_line_compiles_and_runs_it_by_its_names(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, shift = torch.randn(2, 4), torch.ones(2)
    torch.export.save(torch.export.export(model, (x,), {"shift": shift}), "model.pt2")
    np.savez("in.npz", x=x.numpy(), shift=shift.numpy())
    assert cli.main(["compile", "model.pt2", "--auto-cast", "none", "-o", "model.neff"]) == 0
    assert cli.main(["run", "model.neff", "--inputs", "in.npz", "--outputs", "out.npz"]) == 0
    wanted = model(x, shift=shift)["y"]
    with np.load("out.npz") as found:
        for name, want in zip(found.files, wanted, strict=True):
            np.testing.assert_allclose(found[name], want.detach().numpy(), rtol=1e-5, atol=1e-6)
    loaded = neuronx_cc.load_model("model.pt2")
    assert (loaded.framework, set(loaded.inputs)) == ("PyTorch", {"x", "shift"})


def test_the_command_line_refuses_a_damaged_one(members, tmp_path, capsys):
    path = written(members, tmp_path / "model.pt2")
    path.write_bytes(path.read_bytes()[:3000])
    assert cli.main(["compile", str(path)]) != 0
    shown = capsys.readouterr().err
    assert "NCC_EVRF064" in shown
    assert "Traceback" not in shown
