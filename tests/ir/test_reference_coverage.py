"""Reference semantics of every generated operator, in every element type, against jaxlib's CPU client."""

import numpy as np
import op_cases
import pytest

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.reference import evaluate

CASES = {case.name: case for case in op_cases.cases()}
OPCODES = sorted({case.opcode for case in CASES.values()})
ZEROS = frozenset(["imag", "partition-id", "replica-id"])
"""Opcodes whose results are all zero."""


@pytest.mark.parametrize("opcode", OPCODES)
def test_matches_xla_in_every_dtype(opcode: str) -> None:
    for case in CASES.values():
        if case.opcode == opcode:
            results, wanted = evaluate(parse_text(case.text), list(case.inputs)), op_cases.expected(case)
            op_cases.assert_matches(case, results, wanted)
            assert opcode in ZEROS or any(want.astype(np.complex64).any() for want in wanted), "this case shows nothing"
