"""``neuronx-cc`` as a command: streams, exit status, help, bad input. Compiling and running have their own files."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neuronx_cc.driver.cli import main

MODULE = """
HloModule g

ENTRY main {
  x = f32[4,8] parameter(0)
  w = f32[8,3] parameter(1)
  unused = f32[4,8] exponential(x)
  d = f32[4,3] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[4,3] tanh(d)
}
"""


@pytest.fixture(autouse=True)
def _inside_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("graph.hlo").write_text(MODULE)


@pytest.mark.parametrize("argv", [["--version"], ["compile", "--version"], ["-V"]])
def test_version(argv, capsys):
    assert main(argv) == 0
    out = capsys.readouterr().out.splitlines()
    first = next(line for line in out if "Compiler version" in line)
    assert first == out[0]
    major, minor, build, patch = first.split()[-1].split("+")[0].split(".")
    assert (major + minor + build + patch).isdigit()
    assert any(line.startswith("HWM version") for line in out)


@pytest.mark.parametrize(
    "argv",
    [["--help"], ["-h"], *([name, "--help"] for name in ("compile", "list-operators", "run", "inspect", "opt"))],
)
def test_help(argv, capsys):
    assert main(argv) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("usage: neuronx-cc")
    assert captured.err == ""


@pytest.mark.parametrize(
    ("argv", "mentions"),
    [
        ([], "no command"),
        (["compil", "graph.hlo"], "did you mean compile"),
        (["graph.hlo"], "neuronx-cc compile graph.hlo"),
        (["compile"], "needs 1 to 32 files, MODEL_FILE..."),
        (["compile", "graph.hlo", "--auto-casts", "none"], "did you mean --auto-cast"),
        (["compile", "graph.hlo", "--target", "trn2"], "trn1, trn1n, inf2"),
        (["compile", "graph.hlo", "--lnc", "2"], "EARG001"),
        (["compile", "absent.hlo"], "No such file"),
        (["compile", "/proc/self"], "has no files *.hlo"),
        (["compile", "empty.hlo"], "empty"),
        (["run", "absent.neff"], "No such file"),
        (["inspect", "absent.neff"], "No such file"),
        (["compile", "graph.hlo", "--output", "no/such/dir.neff"], "no directory"),
        (["compile", "graph.hlo", "--output", "."], "directory"),
        (["compile", "graph.hlo", "--output", "graph.hlo"], "it is the input"),
        (["compile", "graph.hlo", "--logfile", "no/such/log"], "log file"),
        (["compile", "graph.hlo", "--print-ir-after", "csee"], "did you mean cse"),
        (["compile", "graph.hlo", "--dump", "graph.hlo"], "cannot make the directory"),
        (["compile", "graph.hlo", "--dump-precision", "no/such/file"], "no directory"),
        (["opt", "graph.hlo", "--dump-precision", "graph.hlo"], "it is the input"),
        (["compile", "graph.hlo", "--logfile", "graph.hlo"], "it is the input"),
        (["compile", "graph.hlo", "--output", "new", "--logfile", "./new"], "--output and --logfile are one file"),
        (["run", "graph.neff", "--outputs", "new", "--trace=new"], "--outputs and --trace are one file"),
        (["run", "absent.neff", "--module", "graph.hlo", "--logfile", "graph.hlo"], "it is the input"),
        (["run", "absent.neff", "--devices", "9" * 5000], "whole number"),
        (["compile", "graph.hlo", "--verbose=" + "9" * 5000], "--verbose does not take"),
        (["opt", "graph.hlo", "--passes", "dcee"], "did you mean dce"),
        (["opt", "graph.hlo", "--passes", "dce", "--print-ir-before", "cse"], "no pass 'cse' runs"),
        (["list-operators", "graph.hlo"], "no file"),
        (["list-operators", "--release", "9"], "latest"),
        (["run"], "needs 1 to 32 files, NEFF..."),
        (["inspect"], "needs one NEFF"),
    ],
)
def test_usage_errors(argv, mentions, capsys):
    Path("empty.hlo").write_bytes(b"")
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("[NCC_E")
    assert mentions in captured.err
    assert captured.err.count("\n") == 1
    assert not {path.name for path in Path().iterdir()} - {"graph.hlo", "empty.hlo", "log-neuron-cc.txt"}


@pytest.mark.parametrize(
    "content",
    [
        b"HloModule g\n\nENTRY main {\n  x = f32[4] parameter(0)\n",
        b"HloModule g\n\nENTRY main {\n  ROOT r = f32[4] add(x, y)\n}\n",
        b"HloModule g\n\nENTRY main {\n  x = f32[?] parameter(0)\n  ROOT r = f32[?] tanh(x)\n}\n",
        b"\x00\xff" * 100,
        b"\x1f\x8b\x08\x00 not a module",
        MODULE[: len(MODULE) // 2].encode(),
    ],
)
@pytest.mark.parametrize("command", ["compile", "opt"])
def test_modules_that_do_not_import(content, command, capsys):
    Path("bad.hlo").write_bytes(content)
    status = main([command, "bad.hlo", "--output", "bad.out"])
    captured = capsys.readouterr()
    assert status in (2, 70)
    assert captured.err.startswith("[NCC_E")
    assert "Traceback" not in captured.err
    assert not Path("bad.out").exists()


def test_explain_options_without_a_module(capsys):
    assert main(["compile", "--explain-options", "--auto-cast", "none", "-O1"]) == 0
    out = capsys.readouterr().out
    assert "auto_cast = none  (--auto-cast)" in out
    assert "auto_cast_type = bf16  (default)" in out


def test_opt_prints_the_ir(capsys):
    assert main(["opt", "graph.hlo", "--passes", "dce"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("HloModule g")
    assert "dot(" in captured.out
    assert "exponential" not in captured.out
    assert captured.err == ""


def test_opt_output_is_its_own_input(capsys):
    assert main(["opt", "graph.hlo", "--passes", "dce", "--output", "small.hlo"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["opt", "small.hlo", "--passes", "dce"]) == 0
    assert capsys.readouterr().out == Path("small.hlo").read_text()


def test_opt_prints_times_and_intermediate_ir(capsys):
    argv = ["opt", "graph.hlo", "--passes", "dce", "--print-ir-before", "dce", "--print-ir-after=all", "--time-passes"]
    assert main([*argv, "--verify-each", "--output", "o.hlo"]) == 0
    out, err = capsys.readouterr()
    before, after = out.index("// IR before dce"), out.index("// IR after dce")
    assert "exponential" in out[before:after]
    assert "exponential" not in out[after:]
    assert "total" in err
    assert "total" not in out


def test_opt_writes_its_log_only_when_asked(capsys):
    assert main(["opt", "graph.hlo", "--passes", "dce", "--output", "o.hlo"]) == 0
    assert not Path("log-neuron-cc.txt").exists()
    assert main(["opt", "graph.hlo", "--passes", "dce", "--output", "o.hlo", "--logfile", "l.txt"]) == 0
    log = Path("l.txt").read_text()
    assert "neuronx-cc opt graph.hlo" in log
    assert "NeuronX Compiler version" in log
    assert "auto_cast = matmult" in log


def test_list_operators(capsys):
    assert main(["list-operators", "--framework", "XLA"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert {"Add", "DotGeneral", "Reshape"} <= set(names)
    assert all(name and " " not in name for name in names)
    assert main(["list-operators", "--verbose"]) == 0
    details = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in details] == names
    assert any("f32" in line for line in details)


def test_list_operators_of_a_release(capsys):
    def listed(release):
        assert main(["list-operators", "--release", release]) == 0
        return set(capsys.readouterr().out.split())

    assert listed("2.1") < listed("2.3") < listed("latest")


def command(*argv, **keywords):
    return subprocess.run(
        [Path(sys.executable).with_name("neuronx-cc"), *argv], capture_output=True, text=True, check=False, **keywords
    )


@pytest.mark.installed
def test_reader_that_goes_away():
    script = f"{Path(sys.executable).with_name('neuronx-cc')} list-operators | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "Abs\n"
    assert done.stderr == ""


@pytest.mark.installed
@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(streams):
    """A caller may hand over fewer than three streams; files that are opened then must not become one of them."""
    program = Path(sys.executable).with_name("neuronx-cc")
    script = f"{program} compile graph.hlo --output o.neff {streams} && {program} opt graph.hlo --passes dce {streams}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert main(["inspect", "o.neff"]) == 0


@pytest.mark.installed
def test_narrow_encoding_of_the_terminal():
    Path("graph.hlo").write_text(
        MODULE.replace("HloModule g", "HloModule g\n// \u00e9").replace(
            "tanh(d)", 'tanh(d), metadata={op_name="\u00e9"}'
        )
    )
    done = command("opt", "graph.hlo", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert r"\xe9" in done.stdout


@pytest.mark.installed
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_stdout():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [Path(sys.executable).with_name("neuronx-cc"), "list-operators"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 70
    assert done.stderr.startswith("[NCC_EFIL902] cannot write to stdout")
    assert "Traceback" not in done.stderr


def test_working_directory_that_is_gone(capsys):
    Path("gone").mkdir()
    os.chdir("gone")
    os.rmdir("../gone")
    assert main(["compile", "graph.hlo"]) == 2
    assert capsys.readouterr().err.startswith("[NCC_EFIL901] the working directory no longer exists")


@pytest.mark.installed
@pytest.mark.parametrize("argv", [["compile", "pipe", "--output", "o.neff"], ["run", "pipe"]])
def test_interrupt(argv):
    """Ctrl-C while the command waits for its input."""
    os.mkfifo("pipe")
    process = subprocess.Popen(
        [Path(sys.executable).with_name("neuronx-cc"), *argv],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with open("pipe", "wb"):  # opens when the command has opened it to read
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
    assert process.stderr is not None
    assert process.stderr.read() == "interrupted\n"
    assert not Path("o.neff").exists()


def test_light_commands_import_nothing_heavy():
    code = (
        "import sys; from neuronx_cc.driver.cli import main; main({!r});"
        "print(sorted({{'numpy', 'xdsl', 'jax', 'ml_dtypes'}} & set(sys.modules)), file=sys.stderr)"
    )
    for argv in (["--help"], ["compile", "--help"], ["--version"], ["list-operators"], ["compile", "--nonsense"]):
        done = subprocess.run([sys.executable, "-c", code.format(argv)], capture_output=True, text=True, check=True)
        assert done.stderr.splitlines()[-1] == "[]", argv
