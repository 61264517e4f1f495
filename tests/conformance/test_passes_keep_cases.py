"""The default passes keep the meaning of every conformance case: second oracle before and after."""

import op_cases
import pytest

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.operators import supported
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names


@pytest.mark.parametrize("opcode", [row.opcode for row in supported()])
def test_passes_keep_the_meaning(opcode: str, cases: dict[str, op_cases.Case]) -> None:
    for case in cases.values():
        if case.opcode != opcode:
            continue
        wanted = evaluate(parse_text(case.text), list(case.inputs))
        module = parse_text(case.text)
        run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast="none")), verify_each=True)
        op_cases.assert_matches(case, evaluate(module, list(case.inputs)), wanted)
