"""``neuronx-cc compile`` to the file: every documented option, the log, the NEFF, damage to none of the files."""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.driver.cli import main
from neuronx_cc.driver.neuron_cc import main as neuron_cc_main
from neuronx_cc.ir.neff import Neff

MODULE = """
HloModule g

ENTRY main {
  x = f32[4,8] parameter(0)
  w = f32[8,3] parameter(1)
  d = f32[4,3] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/dot"}
  ROOT r = f32[4,3] tanh(d)
}
"""
UNSUPPORTED = MODULE.replace("tanh(d)", 'custom-call(d), custom_call_target="NoSuchTarget"')


@pytest.fixture(autouse=True)
def _inside_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("graph.hlo").write_text(MODULE)


def names():
    return sorted(path.name for path in Path().iterdir())


def test_plain_compile(capsys):
    assert main(["compile", "graph.hlo"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Compiler status PASS\n"
    assert captured.err == ""
    assert names() == ["file.neff", "graph.hlo", "log-neuron-cc.txt"]
    Neff.from_bytes(Path("file.neff").read_bytes())
    log = Path("log-neuron-cc.txt").read_text()
    for line in ("neuronx-cc compile graph.hlo", "NeuronX Compiler version", "auto_cast = matmult", "status PASS"):
        assert line in log


@pytest.mark.parametrize(
    "argv",
    [
        "--framework XLA --target trn1",
        "--framework=XLA --target=inf2",
        "--target trn1n",
        "--model-type transformer",
        "--model-type=unet-inference",
        *(
            f"--auto-cast {mode} --auto-cast-type={cast}"
            for mode in ("none", "matmult", "all", "matmul")
            for cast in ("bf16", "fp16", "tf32", "fp8_e4m3")
        ),
        "--native-int64 disabled --implicit-integer-downcast all",
        "--implicit-integer-downcast=dot,scatter",
        "--distribution-strategy llm-training",
        "--distribution_strategy=nemo",
        "--logical-nc-config 1",
        "-lnc 1",
        "--lnc=1",
        "-O1",
        "-O 3",
        "--optlevel=2",
        "--enable-mixed-precision-accumulation",
        "--disable-mixed-precision-accumulation",
        "--enable-saturate-infinity",
        "--enable-fast-context-switch",
        "--enable-fast-loading-neuron-binaries",
        "--fast-relayout",
        "--release latest --verify-each",
        "--pipeline compile SaveTemps --workdir w --execute-repetition=1 --disable-dge",
        "--tensorizer-options='--print-nki' --internal-hlo2tensorizer-options=--verify-hlo=true",
        "--cache_dir=/tmp/c --no_cache --log_level=INFO --retry_failed_compilation",
    ],
)
def test_every_option_compiles(argv, capsys):
    assert main([*argv.split(), "compile", "graph.hlo", "--output", "g.neff", "--verbose=35"]) == 0
    assert capsys.readouterr() == ("Compiler status PASS\n", "")
    Neff.from_bytes(Path("g.neff").read_bytes())


def test_options_are_recorded_in_the_neff():
    assert main(["compile", "graph.hlo", "--auto-cast=all", "--auto-cast-type", "fp16", "-O1"]) == 0
    recorded = Neff.from_bytes(Path("file.neff").read_bytes()).options
    assert (recorded["auto_cast"], recorded["auto_cast_type"], recorded["optlevel"]) == ("all", "fp16", "1")


@pytest.mark.installed
def test_equal_input_equal_bytes_in_two_processes_and_places():
    digests = set()
    for seed in ("1", "2"):
        place = Path(f"place{seed}")
        place.mkdir()
        (place / "graph.hlo").write_text(MODULE)
        subprocess.run(
            [Path(sys.executable).with_name("neuronx-cc"), "compile", "graph.hlo", "--output", f"g{seed}.neff"],
            cwd=place,
            env={"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
        digests.add(hashlib.sha256((place / f"g{seed}.neff").read_bytes()).hexdigest())
    assert len(digests) == 1


def test_fast_loading_stores_the_payload_uncompressed():
    assert main(["compile", "graph.hlo", "--output", "small.neff"]) == 0
    assert main(["compile", "graph.hlo", "--output", "fast.neff", "--enable-fast-loading-neuron-binaries"]) == 0
    payload = Path("fast.neff").read_bytes()[1024:]
    with tarfile.open(fileobj=io.BytesIO(payload)) as archive:
        assert "info.json" in archive.getnames()
    assert gzip.decompress(Path("small.neff").read_bytes()[1024:])


def test_verbose_tells_the_stages_on_stdout(capsys):
    assert main(["compile", "graph.hlo", "--verbose", "info"]) == 0
    captured = capsys.readouterr()
    assert "generating code" in captured.out
    assert captured.err == ""


def test_no_effect_is_told_on_stderr_and_hidden_at_35(capsys):
    assert main(["compile", "graph.hlo", "--model-type=transformer", "--disable-dge"]) == 0
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("WARNING: --model-type has no effect here")
    assert err[1] == "WARNING: accepted without effect (undocumented options): --disable-dge"
    assert main(["compile", "graph.hlo", "--model-type=transformer", "--disable-dge", "--verbose=35"]) == 0
    assert capsys.readouterr().err == ""


def test_printing_options(capsys):
    argv = ["compile", "graph.hlo", "--print-ir-before=auto_cast", "--print-ir-after", "auto_cast", "--time-passes"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    before, after = out.index("// IR before auto_cast"), out.index("// IR after auto_cast")
    assert "bf16" not in out[before:after]
    assert "bf16" in out[after:]
    assert "total" in out


def test_print_schedules(capsys):
    assert main(["compile", "graph.hlo", "--print-schedules", "--auto-cast=none", "--output", "g.neff"]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "summed in" in line]
    kernel, said = line.split(": ", 1)
    assert kernel.endswith(".dot")
    assert main(["inspect", "g.neff"]) == 0
    assert said in capsys.readouterr().out


def test_dump_precision():
    assert main(["compile", "graph.hlo", "--dump-precision", "p.txt", "--output", "g.neff"]) == 0
    text = Path("p.txt").read_text()
    assert "dot" in text
    assert "bf16" in text


def test_what_was_cast_comes_first_and_once():
    """In a loop over a tuple most lines say that something stays as it is."""

    def model(x, w):
        return jax.lax.fori_loop(0, 3, lambda _, state: (jnp.exp(state[0] @ w), state[1] + 1), (x, x))

    x = np.ones((8, 8), np.float32)
    written = {"dump_precision": "p.txt", "output": "g.neff"}
    neuronx_cc.compile(jax.jit(model), x, x, auto_cast="matmult", keep_fp32=["exp"], **written)
    header, *lines = Path("p.txt").read_text().splitlines()
    first, second, third = (header.index(title) for title in ("from", "to ", "reason"))
    cast = [line[first:second].strip() != line[second:third].strip() for line in lines]
    assert cast == sorted(cast, reverse=True)
    assert {True, False} == set(cast)
    assert len(set(lines)) == len(lines)


def test_dump_directory():
    assert main(["compile", "graph.hlo", "--dump", "d/e"]) == 0
    dumped = {path.name: path.read_text() for path in Path("d/e").iterdir()}
    assert dumped["input.hlo"] == MODULE
    assert "compile graph.hlo" in dumped["command.txt"]
    assert '"auto_cast": "matmult"' in dumped["options.json"]
    stages = sorted(name for name in dumped if name[0].isdigit())
    assert stages[0] == "00-import.hlo"
    assert len(stages) > 3
    for name in stages:
        assert main(["opt", f"d/e/{name}", "--passes", "dce", "--output", "again.hlo"]) == 0


def test_explain_options_then_compiles(capsys):
    assert main(["compile", "graph.hlo", "--explain-options", "-O1"]) == 0
    out = capsys.readouterr().out
    assert out.index("optlevel = 1") < out.index("Compiler status PASS")


def test_failure_leaves_the_old_output_alone(capsys):
    Path("file.neff").write_text("old")
    Path("graph.hlo").write_text(UNSUPPORTED)
    assert main(["compile", "graph.hlo"]) == 70
    err = capsys.readouterr().err
    assert err.startswith("[NCC_")
    assert "NoSuchTarget" in err
    assert "Diagnostic information" in err
    assert "Log file: " in err
    assert Path("file.neff").read_text() == "old"
    assert names() == ["file.neff", "graph.hlo", "log-neuron-cc.txt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk(capsys):
    assert main(["compile", "graph.hlo", "--output", "/dev/full"]) == 70
    assert "No space left" in capsys.readouterr().err


def test_neuron_cc_compiles(capsys):
    assert neuron_cc_main(["compile", "--framework", "XLA", "graph.hlo", "--fast-math", "none"]) == 0
    assert capsys.readouterr().out == "Compiler status PASS\n"
    exact = Neff.from_bytes(Path("out.neff").read_bytes()).options
    assert (exact["auto_cast"], exact["auto_cast_type"], exact["fast_relayout"]) == ("matmult", "bf16", False)
    assert neuron_cc_main(["compile", "graph.hlo", "--fp32-cast", "matmult-fp16", "--verbose", "ERROR"]) == 0
    cast = Neff.from_bytes(Path("out.neff").read_bytes()).options
    assert (cast["auto_cast"], cast["auto_cast_type"], cast["fast_relayout"]) == ("matmult", "fp16", True)


def test_compiling_text_and_running_import_no_jax_and_running_no_compiler():
    code = "import sys; from neuronx_cc.driver.cli import main; main({!r}); print(*sys.modules, file=sys.stderr)"
    forbidden = {"jax", "jaxlib"}
    for argv in (["compile", "graph.hlo"], ["run", "file.neff", "--timing-only"]):
        done = subprocess.run([sys.executable, "-c", code.format(argv)], capture_output=True, text=True, check=True)
        assert not forbidden & set(done.stderr.splitlines()[-1].split()), argv
        forbidden |= {"xdsl", "neuronx_cc.codegen", "neuronx_cc.passes", "neuronx_cc.hlo_import"}


def test_warnings_are_located_kept_and_not_a_flood(capsys):
    """64-bit values that may not fit 32 bits: one warning each, of which the console shows the first."""
    steps = [f"  p{i} = s64[4] multiply(p{i - 1}, p{i - 1})" for i in range(1, 31)]
    text = [
        "HloModule w",
        "",
        "ENTRY main {",
        "  p0 = s64[4] parameter(0)",
        *steps,
        "  ROOT r = s32[4] convert(p30)",
        "}",
    ]
    Path("wide.hlo").write_text("\n".join(text))
    assert main(["compile", "wide.hlo"]) == 0
    lines = capsys.readouterr().err.splitlines()
    kept = Neff.from_bytes(Path("file.neff").read_bytes()).warnings
    assert len(kept) > len(lines) > 1
    assert lines[0] == f"WARNING: {kept[0]}"
    assert "%p1" in lines[0]
    assert lines[-1].endswith("more such warnings")
    log = Path("log-neuron-cc.txt").read_text()
    assert all(warning in log for warning in kept)
