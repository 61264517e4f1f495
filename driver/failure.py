"""The last line of defence: whatever a command raises becomes one paragraph and an exit status.

Usage errors print their line; compile and run errors add the diagnostic block that users' scripts know; any other
exception is an internal error with a reproducer directory. A Python traceback reaches the log and the reproducer,
never the console.
"""

import json
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from types import FrameType

from neuronx_cc.driver.errors import as_json, render
from neuronx_cc.driver.log import Log
from neuronx_cc.driver.parse import Parsed
from neuronx_cc.driver.terminal import Progress, styled
from neuronx_cc.driver.version import version_lines
from neuronx_cc.ir.errors import CompileError, NeuronError, RunError, UsageError

INTERRUPTED = 130
BROKEN_PIPE = 141


@dataclass(slots=True)
class Session:
    """One command while it runs: what a failure report needs to know."""

    program: str
    argv: list[str]
    log: Log = field(default_factory=Log)
    parsed: Parsed | None = None
    stage: str = "reading the command line"
    """What is being done, for internal errors."""
    module: tuple[str, bytes] | None = None
    """File name and content of the input, for reproducers."""
    artifacts: str = ""
    """Directory of a reproducer or dump."""
    interrupted: bool = False
    """Whether Ctrl-C was pressed."""
    importing: bool = True
    """Whether Ctrl-C waits for the next stage: extension modules do not bear it while they are imported."""
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.log.ahead = self.progress.clear

    @property
    def json(self) -> bool:
        """Whether what is printed is for a program."""
        if self.parsed is None:
            return "--json" in self.argv
        return self.parsed.values.get("json") is True

    def enter(self, stage: str) -> None:
        """Note and log what is being done now."""
        self.importing = False
        if self.interrupted:
            raise KeyboardInterrupt
        self.stage = stage
        self.progress.enter(stage)
        self.log.info(stage)

    def show(self, text: str) -> None:
        """Print a result; nothing that takes long follows."""
        self.progress.stop()
        print(text)

    def open_logfile(self) -> None:
        """Begin the log file that was asked for, if any."""
        assert self.parsed is not None
        if self.parsed.text_or_none("logfile"):
            self.log.open(self.parsed.text("logfile"), required=True)
            self.log_command()

    def log_command(self) -> None:
        """Put versions, command line and effective options into the log file."""
        assert self.parsed is not None
        for line in (shlex.join([self.program, *self.argv]), *version_lines(), *self.parsed.explain()):
            if line:
                self.log.file_only(line)


def guarded(program: str, argv: list[str], body: Callable[[Session], int]) -> int:
    """Run ``body`` and return the exit status."""
    session = Session(program, argv)
    _prepare_streams()
    try:
        with _noting_interrupts(session), session.log:
            try:
                status = body(session)
                if session.interrupted:
                    raise KeyboardInterrupt
                session.progress.stop()
                sys.stdout.flush()
            except (BrokenPipeError, KeyboardInterrupt):
                session.progress.stop()
                raise
            except Exception as error:
                if session.interrupted:
                    raise KeyboardInterrupt from error
                failure = as_neuron_error(error, session)
                status = _report(failure, session)
    except BrokenPipeError:
        _abandon_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        with suppress(OSError):
            print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return status


def _prepare_streams() -> None:
    """Replace streams that the caller has closed; write what their encoding lacks as escapes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _noting_interrupts(session: Session) -> Iterator[None]:
    """Note Ctrl-C in ``session``, for the exception may arrive as another one (importing NumPy makes ImportErrors)."""
    if (
        signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        session.interrupted = True
        if not session.importing:
            signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def as_neuron_error(error: Exception, session: Session) -> NeuronError:
    """``error`` itself, or what it means: host memory, a failing stream, or an internal error with its reproducer."""
    if isinstance(error, NeuronError):
        if error.code == "INTERNAL":
            _write_reproducer(error, session)
        return error
    command = session.parsed.command.name if session.parsed else ""
    kind = RunError if command in ("run", "inspect") else CompileError
    if isinstance(error, MemoryError):
        session.log.file_only("".join(traceback.format_exception(error)))
        return kind("EMEM901", f"the host ran out of memory while {session.stage}")
    if isinstance(error, OSError) and error.filename is None:
        # files.py names the file in its errors, so this is a stream
        _abandon_stdout()
        return kind("EFIL902", f"cannot write to stdout: {error.strerror}")
    _write_reproducer(error, session)
    return CompileError("INTERNAL", _internal_message(error, session))


def _internal_message(error: Exception, session: Session) -> str:
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        if module.startswith("neuronx_cc."):
            place = f" in {module}:{line}"
    detail = " ".join(str(error).split())[:300]
    where = f"; reproducer: {session.artifacts}" if session.artifacts else ""
    return f"internal error while {session.stage}: {type(error).__name__}: {detail}{place}{where}"


def _report(error: NeuronError, session: Session) -> int:
    session.progress.stop()
    if session.json:
        print(json.dumps({"status": "FAIL", "error": as_json(error)}, indent=1))
    _flush_stdout()
    text = render(error)
    session.log.file_only(text)
    code = f"[NCC_{error.code}]"
    print(text.replace(code, styled(code, "red", sys.stderr), 1), file=sys.stderr)
    if not isinstance(error, UsageError):
        for line in _epilogue(error, session):
            session.log.error(line)
    return error.exit_status


def _epilogue(error: NeuronError, session: Session) -> list[str]:
    lines = ["", "Diagnostic information:", *(f"  {line}" for line in version_lines() if line), ""]
    if session.log.path:
        lines.append(f"Log file: {session.log.path}")
    if session.artifacts:
        lines.append(f"Artifacts stored in: {session.artifacts}")
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    lines.append(f"{stamp} ERROR {os.getpid()} [{session.program}]: failed with exit status {error.exit_status}")
    return lines


def _write_reproducer(error: Exception, session: Session) -> None:
    """A directory with the module, the options, versions and the traceback; silently none if no place takes it."""
    trace = "".join(traceback.format_exception(error))
    session.log.file_only(trace)
    directory = _make_directory(session)
    if directory is None:
        return
    session.artifacts = str(directory)
    values = session.parsed.values if session.parsed else {}
    files = session.parsed.files if session.parsed else []
    arguments = list(session.argv)
    with suppress(OSError):
        if session.module is not None:
            name, data = session.module
            local = f"module{Path(name).suffix}"
            (directory / local).write_bytes(data)
            arguments = [local if word in files else word for word in arguments]
        (directory / "options.json").write_text(json.dumps(values, indent=1))
        (directory / "versions.txt").write_text("\n".join(version_lines()) + "\n")
        (directory / "traceback.txt").write_text(trace, errors="backslashreplace")
        (directory / "command.txt").write_text(f"{shlex.join([session.program, *arguments])}\n")


def _make_directory(session: Session) -> Path | None:
    values = session.parsed.values if session.parsed else {}
    places = [values.get("dump"), values.get("workdir"), ".", tempfile.gettempdir()]
    for place in places:
        if isinstance(place, str):
            with suppress(OSError):
                return Path(tempfile.mkdtemp(prefix="neuronxcc-", dir=os.path.abspath(place)))
    return None


def _flush_stdout() -> None:
    with suppress(OSError):
        sys.stdout.flush()


def _abandon_stdout() -> None:
    """The reader went away: keep the interpreter from complaining when it flushes at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
