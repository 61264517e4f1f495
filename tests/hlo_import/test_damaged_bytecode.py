"""StableHLO bytecode on which jaxlib's reader crashes is an error like others."""

from pathlib import Path

import pytest

from neuronx_cc.hlo_import import load_module
from neuronx_cc.ir.errors import CompileError

CORPUS = Path(__file__).resolve().parent.parent / "fuzz" / "corpus" / "stablehlo"


def test_a_crash_of_the_reader_is_an_error_and_the_next_module_is_read() -> None:
    damaged = (CORPUS / "9086c6bd0ae93eaa").read_bytes()
    for _ in range(2):
        with pytest.raises(CompileError, match=r"EVRF064.*x\.mlir: "):
            load_module(damaged, "x.mlir")
        with pytest.raises(CompileError, match=r"EVRF064.*x\.mlir: "):
            load_module(damaged[:40], "x.mlir")
