"""Reference semantics of every generated operator, in every element type, against jaxlib's CPU client."""

import op_cases
import pytest

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.reference import evaluate

CASES = {case.name: case for case in op_cases.cases()}
OPCODES = sorted({case.opcode for case in CASES.values()})


@pytest.mark.parametrize("opcode", OPCODES)
def test_matches_xla_in_every_dtype(opcode: str) -> None:
    for case in CASES.values():
        if case.opcode == opcode:
            results = evaluate(parse_text(case.text), list(case.inputs))
            op_cases.assert_matches(case, results, op_cases.expected(case))
