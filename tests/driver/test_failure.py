"""Whatever a command raises becomes a paragraph and an exit status; the log receives everything."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from neuronx_cc.driver import failure
from neuronx_cc.driver.errors import CATALOGUE, render
from neuronx_cc.driver.failure import guarded
from neuronx_cc.driver.log import Log
from neuronx_cc.driver.options import COMPILE, RUN
from neuronx_cc.driver.parse import parse
from neuronx_cc.ir.errors import CompileError, Loc, NeuronError, RunError, UsageError


@pytest.fixture(autouse=True)
def _inside_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fail_with(error, command=COMPILE, argv=("graph.hlo",)):
    def body(session):
        session.parsed = parse(list(argv), command)
        session.log.open("log-neuron-cc.txt", required=False)
        session.module = ("graph.hlo", b"HloModule g")
        session.enter("importing the module")
        raise error

    return guarded("neuronx-cc", ["compile", *argv], body)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("EARG901", "unknown option --x"), 2),
        (CompileError("EVRF001", "no triangular-solve"), 70),
        (RunError("ERUN001", "inputs"), 1),
        (MemoryError(), 70),
        (ZeroDivisionError("division by zero"), 70),
        (RecursionError("too deep"), 70),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
    ],
)
def test_exit_status(error, status, capsys, monkeypatch):
    monkeypatch.setattr(failure, "_abandon_stdout", lambda: None)
    assert fail_with(error) == status
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err + captured.out


def test_interrupt_that_arrives_as_another_error(capsys):
    """NumPy's import turns KeyboardInterrupt into ImportError."""

    def body(session):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("numpy failed to import") from None

    with_default_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert guarded("neuronx-cc", [], body) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, with_default_handler)
    assert capsys.readouterr().err == "interrupted\n"


def test_compile_error_has_the_block_that_scripts_know(capsys):
    loc = Loc("add.3", "jit(f)/add", "model.py", 12, 7)
    fail_with(CompileError("EVRF064", "operands differ", "make them equal", loc, "check_operators"))
    err = capsys.readouterr().err
    assert err.splitlines()[0] == (
        "[NCC_EVRF064] (%add.3) operands differ (at jit(f)/add; model.py:12; HLO line 7; pass check_operators)"
        " - make them equal"
    )
    assert "Diagnostic information:" in err
    assert re.search(r"NeuronX Compiler version \S+\n", err)
    assert f"Log file: {os.path.abspath('log-neuron-cc.txt')}" in err
    assert re.search(r"^\S+ ERROR \d+ \[neuronx-cc\]: .*70$", err, re.MULTILINE)
    assert "operands differ" in Path("log-neuron-cc.txt").read_text()


def test_usage_error_is_one_line(capsys):
    fail_with(UsageError("EARG901", "unknown option --x"))
    assert capsys.readouterr().err == "[NCC_EARG901] unknown option --x - see --help\n"


def test_internal_error_leaves_a_reproducer(capsys):
    assert fail_with(IndexError("list index\nout of range"), argv=("graph.hlo", "--auto-cast=all")) == 70
    err = capsys.readouterr().err
    assert err.startswith(
        "[NCC_INTERNAL] internal error while importing the module: IndexError: list index out of range"
    )
    directory = re.search(r"reproducer: (\S+)", err)[1]
    assert f"Artifacts stored in: {directory}" in err
    assert os.path.dirname(directory) == os.getcwd()
    content = {path.name: path.read_text() for path in Path(directory).iterdir()}
    assert content["module.hlo"] == "HloModule g"
    assert json.loads(content["options.json"])["auto_cast"] == "all"
    assert "NeuronX Compiler version" in content["versions.txt"]
    assert "IndexError" in content["traceback.txt"]
    assert content["command.txt"] == "neuronx-cc compile module.hlo --auto-cast=all\n"
    assert "Traceback" in Path("log-neuron-cc.txt").read_text()


def test_reproducer_goes_where_dump_says(capsys):
    os.mkdir("here")
    fail_with(IndexError(), argv=("graph.hlo", "--dump", "here"))
    assert len(os.listdir("here")) == 1


def test_reproducer_without_a_working_directory(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(failure.tempfile, "mkdtemp", lambda **_: (_ for _ in ()).throw(OSError("no place")))
    assert fail_with(IndexError("x")) == 70
    err = capsys.readouterr().err
    assert "reproducer: " not in err
    assert "IndexError: x" in err


def test_memory_error_of_a_run_is_a_run_error(capsys):
    assert fail_with(MemoryError(), RUN, ("x.neff",)) == 1
    assert capsys.readouterr().err.startswith("[NCC_EMEM901] the host ran out of memory while importing the module")


def test_full_stdout(capsys, monkeypatch):
    monkeypatch.setattr(failure, "_abandon_stdout", lambda: None)
    assert fail_with(OSError(28, "No space left on device")) == 70
    assert capsys.readouterr().err.startswith("[NCC_EFIL902] cannot write to stdout: No space left on device")


def test_render_uses_the_catalogue_when_there_is_no_closer_remedy():
    assert render(CompileError("EVRF001", "no fft")) == "[NCC_EVRF001] no fft - see neuronx-cc list-operators"
    assert render(NeuronError("EXYZ999", "unheard of")) == "[NCC_EXYZ999] unheard of"


def test_render_of_several_lines():
    error = CompileError("EVRF064", "syntax\n  add(x\n      ^", "close the parenthesis", Loc(text_line=3))
    assert render(error).splitlines() == [
        "[NCC_EVRF064] syntax",
        "  add(x",
        "      ^",
        "  at HLO line 3",
        "  - close the parenthesis",
    ]


def test_catalogue_says_something_everywhere():
    for code, entry in CATALOGUE.items():
        assert entry.title, code
        assert entry.meaning.endswith("."), code
        assert entry.remedy, code
        assert "report" not in entry.remedy or code == "INTERNAL", code


def test_levels_and_streams(capsys):
    log = Log(30)
    log.open("l.txt", required=True)
    for level in ("debug", "info", "user", "warning", "error"):
        getattr(log, level)(f"a {level} line")
    captured = capsys.readouterr()
    assert captured.out == "a user line\n"
    assert captured.err == "WARNING: a warning line\na error line\n"
    log.level = 10
    log.debug("d")
    log.info("i")
    assert capsys.readouterr().out == "d\ni\n"
    log.level = 35
    log.warning("hidden")
    log.user("shown")
    assert capsys.readouterr() == ("shown\n", "")
    log.close()
    names = [line.split()[1] for line in Path("l.txt").read_text().splitlines()]
    assert names == ["DEBUG", "INFO", "USER", "WARNING", "ERROR", "DEBUG", "INFO", "WARNING", "USER"]


def test_lines_before_the_file_is_open_are_kept(capsys):
    log = Log()
    log.info("early")
    log.open("l.txt", required=True)
    assert "early" in Path("l.txt").read_text()
    log.close()


def test_unwritable_log_file(capsys):
    with pytest.raises(UsageError, match="log file"):
        Log().open("no/such/log", required=True)
    log = Log()
    log.open("no/such/log", required=False)
    assert "no log file" in capsys.readouterr().err
    log.info("goes nowhere")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_only_costs_the_log(capsys):
    log = Log()
    log.open("/dev/full", required=True)
    log.info("x" * 10)
    assert "abandoned" in capsys.readouterr().err
    log.info("y")
    log.close()
