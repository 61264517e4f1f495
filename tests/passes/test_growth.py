"""What passes take grows as programs do: steps of the interpreter for each further instruction stay the same."""

import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any

import pytest
from program_forms import FORMS

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.passes.manager import PassContext, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names

SIZE = 160
"""Instructions of the smaller of two programs."""
WIDE = 320
"""The same of loops of a wide state, of which shorter ones are unrolled."""
GROWTH = 2.7
"""Steps of one function for twice as many instructions: 2 where each takes as long, 4 of what looks at all of the
program for each of them."""
SHARE = 200
"""One part in so many of all steps, for which a function is looked at."""
GROWN = {
    **dict.fromkeys(["chain", "accumulate", "constants", "calls", "combiners", "loops", "collectives_beside"], SIZE),
    "wide_loop": WIDE,
}


def steps(text: str) -> Counter[CodeType]:
    """Steps of the interpreter in each function of the passes. Loops inside of a function are no calls: sets of ops
    that are joined over and over hide from a count of these.
    """
    found: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, _: object) -> Any:
        if not str(frame.f_globals.get("__name__")).startswith("neuronx_cc."):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            found[frame.f_code] += 1
        return count

    module, context = parse_text(text), PassContext(timed=False)
    former = sys.gettrace()
    sys.settrace(count)
    try:
        run_passes(module, pass_names(DEFAULT_PIPELINE), context)
    finally:
        sys.settrace(former)
    return found


@pytest.mark.parametrize("form", GROWN)
def test_further_instructions_take_no_more(form: str) -> None:
    steps(FORMS[form](SIZE // 2))  # imports, and what is kept in the process
    some, many = (steps(FORMS[form](GROWN[form] * factor)) for factor in (1, 2))
    for code, number in many.items():
        if number * SHARE > many.total():
            growth = number / max(1, some[code])
            assert growth <= GROWTH, (growth, code.co_qualname, code.co_filename)
