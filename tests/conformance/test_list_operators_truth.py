"""``list-operators`` tells the truth: every listed operator compiles and runs in every element type it claims."""

import op_cases
import pytest

import neuronx_cc
from neuronx_cc.ir.operators import listing, supported

pytest.importorskip("neuronx_cc.codegen.compile", reason="this build has no code generator")

NAMES = [f"{row.opcode}-{dtype}" for row in supported() for dtype in row.dtypes]


def test_every_listed_name_belongs_to_a_case(cases: dict[str, op_cases.Case]) -> None:
    assert set(NAMES) == set(cases)
    covered = {case.opcode for case in cases.values()}
    assert {name for row in supported() if row.opcode in covered for name in row.names} == set(listing())


@pytest.mark.parametrize("name", NAMES)
def test_compiles_and_runs(name: str, cases: dict[str, op_cases.Case]) -> None:
    case = cases[name]
    executable = neuronx_cc.compile(case.text.encode(), auto_cast="none")
    outputs = list(executable.run(list(case.inputs)).outputs)
    op_cases.assert_matches(case, outputs, op_cases.expected(case))
