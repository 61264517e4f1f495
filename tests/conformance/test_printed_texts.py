"""The printed text of every conformance case and of every swept variant is read by XLA, as the module that it was."""

from collections.abc import Iterator

import op_cases
import pytest
from conformance_rows import element_types, module_of
from sweeps import sweep
from text_verdicts import Judge

from neuronx_cc.ir.operators import supported

UNKNOWN_TO_XLA = frozenset(["atan", "collective-reduce", "shuffle"])
"""Opcodes of the table that the text of jaxlib's XLA does not have."""
ROWS = {row.opcode: row for row in supported() if row.opcode not in UNKNOWN_TO_XLA}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


@pytest.mark.parametrize("opcode", ROWS)
def test_cases(opcode: str, cases: dict[str, op_cases.Case], judge: Judge) -> None:
    texts = [case.text for case in cases.values() if case.opcode == opcode]
    texts += [module_of(variants) for dtype in element_types(ROWS[opcode]) if (variants := [*sweep(opcode, dtype)])]
    for text in texts:
        kind, why = judge(text)
        assert kind == judge.SAME, f"{kind} {why}\n{text}"
