"""Refuses modules with operators or element types that do not compile, naming every such op in one error.

Input: an inlined module. Output: the same module, or ``CompileError``; constraints that only warn become warnings.
The code is that of the problems when they share one (``EVRF005``, ``ESPP004``, ...), else ``EVRF001``.
"""

from collections import Counter

from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.operators import Problem, check_module
from neuronx_cc.passes.manager import PassContext

LISTED = 40
"""Lines of one error; the rest are counted."""
MANY, FIRST = 5, 3
"""So many instructions with one problem are told as one, by the first of them."""


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
    lines = [line for group in _grouped(problems) for line in _lines(group)]
    if len(lines) > LISTED:
        lines[LISTED:] = [f"  and {len(lines) - LISTED} more lines"]
    remedies = "; ".join(dict.fromkeys(problem.remedy for problem in problems if problem.remedy))
    return CompileError(code, f"{len(problems)} instructions cannot be compiled:\n" + "\n".join(lines) + "\n", remedies)


def _reason(problem: Problem) -> str:
    """The message without the opcode."""
    return problem.message.removeprefix(f"{problem.opcode}: ")


def _grouped(problems: list[Problem]) -> list[list[Problem]]:
    """Problems that many instructions share together, all others one by one, in the order of the first of each."""
    counts = Counter(map(_reason, problems))
    groups: dict[object, list[Problem]] = {}
    for number, problem in enumerate(problems):
        reason = _reason(problem)
        groups.setdefault(reason if counts[reason] >= MANY else number, []).append(problem)
    return list(groups.values())


def _lines(group: list[Problem]) -> list[str]:
    if len(group) == 1:
        return [f"  {group[0].loc}: {group[0].message}"]
    lines = [f"  {_reason(group[0])}: {len(group)} instructions"]
    lines += [f"    {problem.opcode} {problem.loc}" for problem in group[:FIRST]]
    places = Counter(p.loc.place for p in group[FIRST:] if p.loc.place)
    listed = ", ".join(f"{place} ({count})" for place, count in places.most_common(FIRST))
    also = ", ..." if len(places) > FIRST else ""
    return [*lines, f"    and {len(group) - FIRST} more{f': {listed}{also}' if listed else ''}"]
