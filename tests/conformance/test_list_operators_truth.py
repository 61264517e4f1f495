"""``list-operators`` tells the truth: every listed operator compiles and runs in every element type it claims."""

import op_cases
import pytest

import neuronx_cc
from neuronx_cc.ir.operators import listing, supported
from neuronx_cc.ir.types import FLOATS

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
    wanted = op_cases.expected(case)
    if case.dtype in FLOATS and case.tolerance == 0 and case.opcode in ("divide", "remainder", "sqrt"):
        case = op_cases.Case(case.opcode, case.dtype, case.text, case.inputs, op_cases.ROUNDING[case.dtype])
    op_cases.assert_matches(case, outputs, wanted)
