"""Refuses modules with operators or element types that do not compile, naming every such op in one error.

Input: an inlined module. Output: the same module, or ``CompileError``; constraints that only warn become warnings.
The code is that of the problems when they share one (``EVRF005``, ``ESPP004``, ...), else ``EVRF001``.
"""

from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.operators import Problem, check_module
from neuronx_cc.passes.manager import PassContext

LISTED = 40
"""Problems spelled out in one error; the rest are counted."""


def run(module: HloModule, context: PassContext) -> None:
    problems = check_module(module, context.options.release, context.options.fp64_as_fp32)
    for problem in problems:
        if problem.warns:
            context.warn(problem.code, f"{problem.message}; {problem.remedy}", problem.loc)
    errors = [problem for problem in problems if not problem.warns]
    if errors:
        raise _error(errors)


def _error(problems: list[Problem]) -> CompileError:
    first = problems[0]
    codes = {problem.code for problem in problems}
    code = codes.pop() if len(codes) == 1 else "EVRF001"
    if len(problems) == 1:
        return CompileError(code, first.message, first.remedy, first.loc)
    lines = [f"  {p.loc}: {p.message}" for p in problems[:LISTED]]
    if len(problems) > LISTED:
        lines.append(f"  and {len(problems) - LISTED} more")
    remedies = "; ".join(dict.fromkeys(problem.remedy for problem in problems if problem.remedy))
    return CompileError(code, f"{len(problems)} instructions cannot be compiled:\n" + "\n".join(lines) + "\n", remedies)
