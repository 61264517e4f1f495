"""Bytecode on which jaxlib's reader does not end."""

import subprocess
import sys

import pytest

from neuronx_cc.hlo_import import stablehlo
from neuronx_cc.ir.errors import CompileError

ENDLESS = """
import itertools, sys
import neuronx_cc.hlo_import.stablehlo as reader
reader.SECONDS = 0.1
reader._to_proto = lambda data: b"" if data == b"good" else [None for _ in itertools.repeat(0) if False]
reader._serve(sys.stdin.buffer, sys.stdout.buffer)
"""


def test_a_reader_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started = subprocess.Popen

    def start(command: list[str], **pipes: int) -> "subprocess.Popen[bytes]":
        return started([sys.executable, "-c", ENDLESS], **pipes)

    monkeypatch.setattr(stablehlo.subprocess, "Popen", start)
    apart = stablehlo._Apart()
    assert apart.to_proto(b"good", "m.mlirbc") == b""
    with pytest.raises(CompileError, match=r"m\.mlirbc: .* reader has not ended after 20 s") as raised:
        apart.to_proto(b"endless", "m.mlirbc")
    assert raised.value.code == "EVRF064"
    assert apart.to_proto(b"good", "m.mlirbc") == b""
