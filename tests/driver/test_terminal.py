"""What a terminal gets beside the results: progress, colours, tables that fit; and what programs get: JSON."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import neuronx_cc.driver
from neuronx_cc.driver import entry, neuron_cc, terminal
from neuronx_cc.driver.cli import main
from neuronx_cc.driver.failure import guarded
from neuronx_cc.ir import progress
from neuronx_cc.ir.errors import CompileError, Loc
from neuronx_cc.runtime.tables import count, cut, table

MODULE = """HloModule g
ENTRY main {
  x = f32[64,128] parameter(0), metadata={op_name="params['x']"}
  w = f32[128,32] parameter(1)
  d = f32[64,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="a" source_file="/m/model.py" source_line=4}
  e = f32[64,32] exponential(d), metadata={op_name="b" source_file="/m/model.py" source_line=5}
  ROOT r = f32[32,64] transpose(e), dimensions={1,0}, metadata={op_name="c" source_file="/m/model.py" source_line=6}
}
"""  # noqa: E501


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _inside_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    Path("graph.hlo").write_text(MODULE)


@pytest.fixture
def neff():
    assert main(["compile", "graph.hlo", "--output", "g.neff", "--logfile", "l.log"]) == 0
    return "g.neff"


@pytest.fixture
def screen(monkeypatch):
    """Makes stderr a terminal, on which progress shows at once; called in the test, for capturing resumes before it."""
    monkeypatch.setattr(terminal, "SHOWN_AFTER", 0.02)
    monkeypatch.setattr(terminal, "REDRAWN", 0.01)

    def show():
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return show


def wait_for(condition):
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("never came")


def test_progress_says_what_and_how_far_and_goes_away(screen):
    screen = screen()

    def body(session):
        session.progress.start("neuronx-cc compile")
        session.enter("generating code")
        progress.note(3, 7, "kernel")
        wait_for(lambda: "generating code (kernel 3 of 7)" in screen.getvalue())
        session.log.warning("something")
        session.show("result")
        return 0

    assert guarded("neuronx-cc", [], body) == 0
    text = screen.getvalue()
    assert "\rneuronx-cc compile: generating code (kernel 3 of 7), 0 s" in text.replace("\x1b[2m", "")
    drawn, _, after = text.partition("\x1b[33mWARNING:\x1b[0m something")
    assert drawn.endswith("\r\x1b[K"), "the line is taken away ahead of other text"
    assert after.endswith(("\x1b[K", "something\n", "\n"))


@pytest.mark.parametrize("argv", [["compile", "graph.hlo", "--json"], ["compile", "graph.hlo", "--verbose=info"]])
def test_no_progress_beside_json_and_log_lines(argv, screen):
    screen = screen()
    assert main([*argv, "--print-ir-after", "all"]) == 0
    assert "\r" not in screen.getvalue()


def test_short_commands_and_pipes_see_no_progress(screen, monkeypatch, capsys):
    screen = screen()
    monkeypatch.setattr(terminal, "SHOWN_AFTER", 60)
    assert main(["compile", "graph.hlo"]) == 0
    assert "\r" not in screen.getvalue()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(terminal, "SHOWN_AFTER", 0)
    assert main(["compile", "graph.hlo"]) == 0
    assert sys.stderr.getvalue() == ""


def test_colours_only_where_they_show(monkeypatch):
    stream = Terminal()
    assert terminal.styled("x", "red", stream) == "\x1b[31mx\x1b[0m"
    assert terminal.styled("x", "red", io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.styled("x", "red", stream) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert terminal.styled("x", "red", stream) == "x"


def test_errors_have_a_red_code(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    assert main(["compile", "absent.hlo"]) == 2
    assert stream.getvalue().startswith("\x1b[31m[NCC_EFIL901]\x1b[0m cannot read")


@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_tables_are_aligned_and_fit(columns):
    rows = [("a/very/long/path/to/some/file/model.py:117", "1.5", "VectorE"), ("b.py:1", "100.25", "DMA bandwidth")]
    lines = table(("source", "us", "bound by"), rows, columns, (0, 2))
    assert all(len(line) <= max(columns, 12 + 6 + 13 + 4) for line in lines)
    assert len({line.index(cell) + len(cell) for line, cell in zip(lines, ("us", "1.5", "100.25"), strict=True)}) == 1
    assert lines[1].split()[0].endswith("model.py:117"[-10:])
    assert table(("a", "b"), [], columns) == ["a  b"]


def test_names_are_cut_before_other_texts():
    rows = [("fusion_of_everything.12345678", "VectorE and DMA bandwidth", "1.0")]
    (_, row) = table(("op", "bound by", "us"), rows, 50, (0, 1), names=(0,))
    assert "VectorE and DMA bandwidth" in row
    assert row.startswith("..")
    assert len(row) == 50


def test_numbers_as_people_read_them():
    assert [count(number, "B") for number in (0, 12, 1234, 5.6e9)] == ["-", "12 B", "1.23 kB", "5.6 GB"]
    assert cut("abcdefgh", 5) == "..fgh"


def test_run_shows_as_many_rows_as_asked_for(neff, capsys):
    capsys.readouterr()
    assert main(["run", neff, "--timing-only", "--top", "1"]) == 0
    out = capsys.readouterr().out
    header, row, more = out[out.index("HLO op") :].splitlines()[:3]
    assert header.split() == ["HLO", "op", "opcode", "us", "share", "bound", "by", "FLOPs", "HBM", "source"]
    assert "model.py:" in row
    assert more.startswith("... and ")
    assert main(["run", neff, "--timing-only", "--all"]) == 0
    out = capsys.readouterr().out
    assert "... and" not in out
    assert {"model.py:4", "model.py:5"} <= set(out.split())
    assert main(["run", neff, "--timing-only", "--top", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (operator,) = document["operators"]
    assert operator["flops"] == 2 * 64 * 128 * 32
    assert operator["bound"]
    assert main(["report", neff, "--all"]) == 0
    assert "... and" not in capsys.readouterr().out


def test_times_are_not_rounded_away(neff, capsys):
    capsys.readouterr()
    assert main(["run", neff, "--timing-only", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["total_time"] == pytest.approx(document["time_ns"] * 1e-9, rel=1e-6)


def test_settings_in_effect_are_shown(neff, capsys):
    capsys.readouterr()
    assert main(["run", neff, "--timing-only", "--set", "hbm.bw_per_core=100"]) == 0
    assert "With other values than trn1 has: hbm.bw_per_core=100" in capsys.readouterr().out
    assert main(["report", neff, "--set", "hbm.bw_per_core=100"]) == 0
    assert "With other values than trn1 has: hbm.bw_per_core=100" in capsys.readouterr().out
    assert main(["run", neff, "--timing-only", "--json", "--set", "hbm.bw_per_core=100"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == ["hbm.bw_per_core=100.0"]


@pytest.mark.parametrize("command", ["run", "report"])
def test_terms_are_explained(command, capsys):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    for term in ("preamble", "waited for", "critical path", "bound by", "roofline"):
        assert term in out[out.index("\nterms:") :]


def test_compile_says_what_it_made_as_json(capsys):
    talkative = ["--time-passes", "--explain-options", "--print-ir-after", "dce"]
    assert main(["compile", "graph.hlo", "--output", "g.neff", "--json", *talkative]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["status"] == "PASS"
    assert document["output"] == "g.neff"
    assert document["inputs"][0] == {"name": "x", "argument": "params['x']", "dtype": "f32", "dims": [64, 128]}
    assert document["instructions"] > 5
    for text in ("total", "auto_cast = matmult", "// IR after dce"):
        assert text in captured.err
    assert neuron_cc.main(["compile", "--framework", "XLA", "graph.hlo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == "out.neff"


def test_operators_as_json(capsys):
    assert main(["list-operators", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["operators"]}
    assert rows["Add"]["opcode"] == "add"
    assert "f32" in rows["Add"]["dtypes"]


@pytest.mark.parametrize(
    ("argv", "code", "status"),
    [
        (["compile", "absent.hlo"], "NCC_EFIL901", 2),
        (["run", "absent.neff"], "NCC_EFIL901", 2),
        (["report", "absent.neff"], "NCC_EFIL901", 2),
        (["inspect", "absent.neff"], "NCC_EFIL901", 2),
        (["run", "g.neff", "--inputs", "absent.npz"], "NCC_EFIL901", 2),
        (["run", "g.neff", "--check", "--module", "absent.hlo"], "NCC_EFIL901", 2),
        (["run", "g.neff", "--machine", "absent.toml"], "NCC_EFIL901", 2),
        (["report", "g.neff", "--diff", "absent.neff"], "NCC_EFIL901", 2),
        (["run", "graph.hlo"], "NCC_ENEF901", 2),
        (["report", "graph.hlo"], "NCC_ENEF901", 2),
        (["report", "g.neff", "--diff", "graph.hlo"], "NCC_ENEF901", 2),
        (["inspect", "graph.hlo"], "NCC_ENEF901", 2),
        (["compile", "g.neff"], "NCC_EVRF064", 2),
        (["run", "noise"], "NCC_ENEF901", 1),
        (["inspect", "noise"], "NCC_ENEF901", 1),
        (["report", "noise"], "NCC_ENEF901", 1),
        (["compile", "f64.hlo"], "NCC_ESPP004", 70),
        (["run", "--nonsense"], "NCC_EARG901", 2),
        (["list-operators", "--release", "1"], "NCC_EARG902", 2),
    ],
)
def test_one_mistake_one_status_and_errors_as_json(argv, code, status, neff, capsys):
    Path("f64.hlo").write_text(MODULE.replace("f32", "f64"))
    Path("noise").write_bytes(b"\x00\xff" * 2000)
    capsys.readouterr()
    assert main([*argv, "--json"]) == status
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert (error["code"], error["exit_status"]) == (code, status)
    assert error["remedy"]
    assert captured.err.startswith(f"[{code}]")


def test_errors_in_json_have_their_place(capsys):
    def body(session):
        raise CompileError("EVRF001", "no", loc=Loc("x", "jit(f)/x", "m.py", 3), pass_name="cse")

    assert guarded("neuronx-cc", ["--json"], body) == 70
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["location"] == {
        "name": "x", "op_name": "jit(f)/x", "source_file": "m.py", "source_line": 3, "text_line": 0, "calls": [],
    }  # fmt: skip
    assert error["pass"] == "cse"


@pytest.mark.parametrize("command", ["run", "inspect", "report"])
def test_a_module_must_be_compiled_first(command, capsys):
    assert main([command, "graph.hlo"]) == 2
    assert "compile it first: neuronx-cc compile graph.hlo" in capsys.readouterr().err


def test_many_instructions_with_one_problem_are_one_line(capsys):
    body = "".join(f"  a{i + 1} = f64[4] add(a{i}, a{i})\n" for i in range(200))
    text = f"HloModule g\nENTRY main {{\n  a0 = f64[4] parameter(0)\n{body}  ROOT r = f64[4] negate(a200)\n}}\n"
    Path("f64.hlo").write_text(text)
    assert main(["compile", "f64.hlo"]) == 70
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("202 instructions cannot be compiled:")
    assert lines[1] == "  element type f64 is not supported: 202 instructions"
    assert lines[5] == "    and 199 more"
    assert "--fp64-as-fp32" in lines[7]


def test_the_import_is_printed_by_no_passes(capsys):
    assert main(["opt", "graph.hlo", "--passes", "none"]) == 0
    captured = capsys.readouterr()
    assert "exponential(d)" in captured.out
    assert "bf16" not in captured.out
    assert captured.err == ""


@pytest.mark.parametrize("place", [[], ["--workdir", "w/x"]])
def test_temporaries_are_saved_where_scripts_look(place, capsys):
    argv = ["compile", "--framework", "XLA", "graph.hlo", "--pipeline", "compile", "SaveTemps", "--target", "trn1"]
    assert main([*argv, *place, "--output=g.neff", "--verbose=35"]) == 0
    assert capsys.readouterr() == ("Compiler status PASS\n", "")
    (folder,) = Path(place[1] if place else ".").glob("neuronxcc-*")
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert {"input.hlo", "00-import.hlo", "options.json", "command.txt", "sg00/instructions.txt"} <= names
    assert "multiply_moving" in (folder / "sg00/instructions.txt").read_text()
    assert (folder / "input.hlo").read_text() == MODULE


@pytest.mark.installed
@pytest.mark.parametrize("argv", [["report", "pipe"], ["inspect", "pipe", "--json"], ["opt", "pipe"]])
def test_interrupts_end_every_command_alike(argv):
    os.mkfifo("pipe")
    process = subprocess.Popen(
        [Path(sys.executable).with_name("neuronx-cc"), *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with open("pipe", "wb"):
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
    assert process.stderr is not None
    assert process.stderr.read() == "interrupted\n"


@pytest.mark.parametrize("entered", [False, True])
def test_interrupts_wait_for_imports(entered, capsys):
    """An extension module that is interrupted while it is imported prints tracebacks of its own."""
    reached = []

    def body(session):
        if entered:
            session.enter("reading")
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("imports")
        session.enter("working")
        reached.append("work")
        return 0

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert guarded("neuronx-cc", [], body) == 130
    finally:
        signal.signal(signal.SIGINT, previous)
    assert reached == ([] if entered else ["imports"])
    assert capsys.readouterr() == ("", "interrupted\n")


class Interrupting:
    """A finder during whose search Ctrl-C is pressed."""

    def __init__(self, error):
        self.error = error

    def find_spec(self, name, path=None, target=None):
        if name in ("neuronx_cc.driver.cli", "neuronx_cc.driver.neuron_cc"):
            raise self.error
        return None


@pytest.mark.parametrize("command", [entry.neuronx_cc, entry.neuron_cc])
def test_interrupts_while_the_command_is_imported(command, monkeypatch, capfd):
    for name in ("cli", "neuron_cc"):
        monkeypatch.delitem(sys.modules, f"neuronx_cc.driver.{name}", raising=False)
        monkeypatch.delattr(neuronx_cc.driver, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(KeyboardInterrupt()), *sys.meta_path])
    assert command() == 130
    assert capfd.readouterr() == ("", "interrupted\n")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(ImportError("no")), *sys.meta_path])
    with pytest.raises(ImportError, match="no"):
        command()
