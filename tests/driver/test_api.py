"""The Python API: every kind of module, options as keywords, errors as exceptions."""

from pathlib import Path

import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir.errors import CompileError, NeuronError, RunError, UsageError

MODULE = """
HloModule g

ENTRY main {
  x = f32[4,8] parameter(0)
  w = f32[8,3] parameter(1)
  d = f32[4,3] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[4,3] negate(d)
}
"""


@pytest.fixture(autouse=True)
def _inside_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("graph.hlo").write_text(MODULE)


@pytest.fixture
def arrays():
    generator = np.random.default_rng(0)
    return generator.standard_normal((4, 8), np.float32), generator.standard_normal((8, 3), np.float32)


def lowered():
    import jax

    shapes = jax.ShapeDtypeStruct((4, 8), np.float32), jax.ShapeDtypeStruct((8, 3), np.float32)
    return jax.jit(lambda x, w: -(x @ w)).lower(*shapes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MODULE,
        lambda: MODULE.encode(),
        lambda: "graph.hlo",
        lambda: Path("graph.hlo"),
        lambda: load_module(MODULE.encode(), "graph.hlo"),
        lowered,
        lambda: lowered().compiler_ir("hlo"),
        lambda: lowered().as_text(),
        lambda: lowered().compiler_ir("hlo").as_serialized_hlo_module_proto(),
    ],
    ids=["text", "bytes", "str path", "path", "HloModule", "lowered", "computation", "stablehlo", "proto"],
)
def test_every_kind_of_module(make, arrays, capsys):
    executable = neuronx_cc.compile(make(), auto_cast="none")
    result = executable.run(arrays).outputs
    np.testing.assert_allclose(result[0], -(arrays[0] @ arrays[1]), rtol=1e-5, atol=1e-5)
    assert capsys.readouterr() == ("", "")
    assert [path.name for path in Path().iterdir()] == ["graph.hlo"], "no log file unless asked for"


def test_functions_are_lowered_for_the_core(arrays):
    """For the CPU, JAX would leave singular values to LAPACK."""
    import jax

    function = jax.jit(lambda x: jax.numpy.linalg.svd(x, compute_uv=False))
    for given in (
        (function, arrays[0]),
        (function, jax.ShapeDtypeStruct((4, 8), np.float32)),
        (function.trace(arrays[0]),),
    ):
        found = neuronx_cc.compile(*given, auto_cast="none")(arrays[0])
        np.testing.assert_allclose(found[0], np.linalg.svd(arrays[0], compute_uv=False), rtol=1e-5)


def test_module_object_stays_as_it_was(arrays):
    module = load_module(MODULE.encode(), "graph.hlo")
    before = [op.name for op in module.entry.block.ops]
    first = neuronx_cc.compile(module)
    again = neuronx_cc.compile(module)
    assert [op.name for op in module.entry.block.ops] == before
    np.testing.assert_array_equal(first.run(arrays).outputs[0], again.run(arrays).outputs[0])


def test_output_and_load(arrays):
    direct = neuronx_cc.compile("graph.hlo", output="g.neff", logfile="l.txt")
    loaded = neuronx_cc.load("g.neff")
    np.testing.assert_array_equal(direct.run(arrays).outputs[0], loaded.run(arrays).outputs[0])
    np.testing.assert_array_equal(loaded(*arrays)[0], loaded.run(arrays).outputs[0])
    assert "auto_cast = matmult" in Path("l.txt").read_text()


def test_options_reach_the_passes(arrays):
    exact = neuronx_cc.compile(MODULE, auto_cast="none").run(arrays).outputs[0]
    cast = neuronx_cc.compile(MODULE, auto_cast="matmult", auto_cast_type="bf16").run(arrays).outputs[0]
    assert not np.array_equal(exact, cast)
    np.testing.assert_allclose(exact, cast, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("module", "options", "error", "mentions"),
    [
        (MODULE, {"autocast": "none"}, UsageError, "auto_cast"),
        (MODULE, {"target": "trn2"}, UsageError, "trn2"),
        (MODULE, {"output": "no/such/file"}, UsageError, "no directory"),
        (42, {}, UsageError, "int"),
        (None, {}, UsageError, "NoneType"),
        ("absent.hlo", {}, UsageError, "No such file"),
        (Path("absent.hlo"), {}, UsageError, "No such file"),
        (MODULE.replace("negate", "tan"), {"release": "2.1"}, CompileError, "tan"),
        (MODULE[:-20], {}, CompileError, "NCC_EVRF064"),
        (b"", {}, NeuronError, "empty"),
    ],
)
def test_errors_are_exceptions(module, options, error, mentions):
    with pytest.raises(error, match=mentions):
        neuronx_cc.compile(module, **options)
    assert [path.name for path in Path().iterdir()] == ["graph.hlo"]


@pytest.mark.parametrize("content", [None, b"", b"\x00" * 3000, b"HloModule g"])
def test_load_refuses_what_is_no_neff(content):
    if content is not None:
        Path("bad.neff").write_bytes(content)
    with pytest.raises(RunError):
        neuronx_cc.load("bad.neff")


def test_load_takes_paths():
    with pytest.raises(UsageError, match="bytes"):
        neuronx_cc.load(b"data")


def test_internal_errors_are_compile_errors_with_their_cause(monkeypatch):
    from neuronx_cc.passes import dce

    def broken(*_):
        raise IndexError("list index out of range")

    monkeypatch.setattr(dce, "run", broken)
    with pytest.raises(CompileError, match="internal error while running pass dce") as caught:
        neuronx_cc.compile(MODULE)
    assert isinstance(caught.value.__cause__, IndexError)
