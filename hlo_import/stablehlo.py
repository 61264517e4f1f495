"""StableHLO -> ``HloModule``: jaxlib turns MLIR text, MLIR bytecode and portable artifacts into an HloModuleProto.

jaxlib is imported when the first StableHLO module arrives, not before. Its reader of bytecode does not check all that
it reads: damaged bytecode makes it crash. So bytecode is read in a process of its own
(``python -m neuronx_cc.hlo_import.stablehlo``), which stays for the next module: each message is an 8-byte length and
that many bytes, the answer ``+`` with a proto or ``-`` with a diagnostic.
"""

import os
import re
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

from neuronx_cc.hlo_import.builder import build_module
from neuronx_cc.hlo_import.proto import ProtoReader
from neuronx_cc.hlo_import.quantised import without_quantised_types
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError, UsageError

MAGIC = b"ML\xefR"
"""How bytecode begins."""
_PLACE = re.compile(r"(?:UNKNOWN: |INVALID_ARGUMENT: )?-:(\d+):(\d+): (?:error: )?(.*)", re.DOTALL)

_QUANTISED = re.compile(r"quant\.uniform|uniform_(de)?quantize")


def parse_stablehlo(data: bytes, source: str = "", trusted: bool = False) -> hlo.HloModule:
    """The module in ``data``; ``source`` is its file name for messages. ``trusted``: bytecode is read in this process.

    Raises ``CompileError`` when the module is malformed, ``UsageError`` when jaxlib is not installed.
    """
    name = source or "<stablehlo>"
    try:
        in_here = trusted or not data.startswith(MAGIC)
        serialized = _to_proto(data) if in_here else _APART.to_proto(data, name)
    except ImportError as problem:
        raise UsageError(
            "EVRF064",
            f"{name}: reading StableHLO needs jaxlib, which cannot be imported ({problem})",
            "install jaxlib, or write HLO: jax.jit(f).lower(...).compiler_ir('hlo')",
        ) from None
    except _DiagnosticError as problem:
        raise _error(name, str(problem), data) from None
    # MLIR calls the text it was given "-"; ops without locations of their own point there
    return build_module(ProtoReader(serialized, name, {"-": name}).module())


class _DiagnosticError(Exception):
    """What MLIR says about a module."""


def _to_proto(data: bytes) -> bytes:
    """The serialized HloModuleProto of a module. Raises ImportError without jaxlib.

    HLO has no quantised types: a module that has some is tried once more in integers and scales.
    """
    try:
        return _translated(data)
    except _DiagnosticError:
        plain = without_quantised_types(data) if b"quant" in data else None
        if plain is None:
            raise
    return _translated(plain)


def _translated(data: bytes) -> bytes:
    # jaxlib gives its extension modules no type stubs under this name
    from jaxlib import _jax  # type: ignore[attr-defined,unused-ignore]

    try:
        computation = _jax.mlir.mlir_module_to_xla_computation(data, use_tuple_args=False, return_tuple=False)
        serialized: bytes = computation.as_serialized_hlo_module_proto()
    except Exception as problem:
        # jaxlib raises its own error classes, which are not importable everywhere; all carry MLIR's diagnostic
        raise _DiagnosticError(str(problem)) from None
    return serialized


SECONDS, BYTES_A_SECOND = 20, 1 << 20
"""Processor time that a reader may take for any bytecode, and what it must read in a second more."""


class _Apart:
    """The process that reads bytecode."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = -1
        """The process that started it: a fork of that has no share in it."""

    def to_proto(self, data: bytes, name: str) -> bytes:
        """As ``_to_proto``; raises CompileError when the process dies of ``data``."""
        with self._lock:
            if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
                command = [sys.executable, "-m", "neuronx_cc.hlo_import.stablehlo"]
                pipe = subprocess.PIPE
                self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
                self._owner = os.getpid()
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                _write(process.stdin, data)
            answer = _read(process.stdout)
            if not answer:
                self._process = None
                status = process.wait()
                why = f"ends with signal {signal.Signals(-status).name}" if status < 0 else f"ends with status {status}"
                if status == -signal.SIGPROF:
                    why = f"has not ended after {_seconds(data):.0f} s"
                raise CompileError(
                    "EVRF064",
                    f"{name}: expected StableHLO bytecode, found bytes on which jaxlib's reader {why}",
                    "write the file again: it is damaged",
                )
        if answer[:1] == b"+":
            return answer[1:]
        text = answer[2:].decode("utf-8", "replace")
        raise ImportError(text) if answer[1:2] == b"i" else _DiagnosticError(text)


_APART = _Apart()


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(struct.pack("<Q", len(data)) + data)
    file.flush()


def _read(file: IO[bytes]) -> bytes:
    """The next message; empty where there is none, or not all of it."""
    head = file.read(8)
    size = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    data = file.read(size)
    return data if len(data) == size else b""


def _seconds(data: bytes) -> float:
    """Processor time after which reading ``data`` is given up: far more than any module takes that can be read."""
    return SECONDS + len(data) / BYTES_A_SECOND


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until the other end is closed.

    There are bytes on which the reader does not end: SIGPROF ends it then, also when nobody waits for it any more.
    """
    while data := _read(requests):
        signal.setitimer(signal.ITIMER_PROF, _seconds(data))
        try:
            answer = b"+" + _to_proto(data)
        except ImportError as problem:
            answer = b"-i" + str(problem).encode()
        except _DiagnosticError as problem:
            answer = b"-d" + str(problem).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, answer)


def _error(name: str, diagnostic: str, data: bytes) -> CompileError:
    remedy = "check the module with the StableHLO version that wrote it"
    if _QUANTISED.search(diagnostic):
        remedy = (
            "HLO has no quantised types, and StableHLO's passes give none of integers and scales for these: give codes "
            "of s8, u8 or f8 and convert them"
        )
    match = _PLACE.match(diagnostic)
    lines = data.split(b"\n")
    if match is None or data.startswith(MAGIC):
        return CompileError("EVRF064", f"{name}: {_first_line(diagnostic)}", remedy)
    line, column = int(match.group(1)), int(match.group(2))
    shown = lines[line - 1][:160].decode("utf-8", "replace") if 0 < line <= len(lines) else ""
    message = f"{name}:{line}:{column}: {_first_line(match.group(3))}"
    caret = f"\n  {shown}\n  {' ' * (column - 1)}^" if column <= 160 else ""
    return CompileError("EVRF064", message + caret, remedy)


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0][:500] or "expected a StableHLO module"


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
