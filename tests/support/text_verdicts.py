"""Judges a text: do XLA and we read it as the same module, or do both refuse it?"""

import re
from typing import ClassVar

from xla_verdicts import Verdicts

from neuronx_cc.hlo_import.load import load_module
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir.errors import CompileError, UsageError
from neuronx_cc.ir.hlo import HloModule

RULE = re.compile(r": [a-z][a-z\d\-]*: expected ")
"""How a refusal begins that is the verifier's, which XLA runs later."""
LAYOUT, BRACKET = re.compile(r"\]\{[\d,]*:"), re.compile("expected a layout|bracket")
"""XLA reads on where a part of a layout behind its order is no such part."""
NO_ORDER = re.compile("expected a layout that permutes")
"""XLA reads orders of dimensions that are none, as of {0,5}."""
UNSUPPORTED = re.compile(r"ESPP004|EMOD025|which would be dynamic")
"""Element types without storage, and dynamic shapes."""


def ours_of(text: str) -> tuple[HloModule | None, str]:
    """The module, or why there is none."""
    try:
        return load_module(text.encode()), ""
    except (CompileError, UsageError) as error:
        return None, str(error)


class Judge:
    """Calling it says what became of a text, and why."""

    OVERLOOKED = "damaged layout, which XLA overlooks"
    SAME, BOTH, ENDED = "read as the same module", "refused by both", "ends XLA's process"
    RULES, ELSEWHERE = "refused by our verifier and by XLA's compiler", "not supported here"
    STRICT = "refused by our verifier, compiled by XLA"
    TEXT, LAX = "refused by our parser alone", "refused by XLA's parser alone"
    OTHER, FAULT = "read as another module", "fault"
    DIFFERENCES: ClassVar[tuple[str, ...]] = (STRICT, TEXT, LAX, OTHER, FAULT)

    def __init__(self) -> None:
        self._xla = Verdicts()

    def __call__(self, text: str) -> tuple[str, str]:
        proto, refused = self._xla(text)
        try:
            ours, problem = ours_of(text)
        except Exception as error:
            return self.FAULT, repr(error)
        if proto is None:
            return (self.ENDED, "") if not refused else (self.LAX, refused) if ours else (self.BOTH, "")
        if ours is None:
            return self._refused(text, problem)
        again, why = self._xla(print_module(ours))
        if again is None:
            return self.OTHER, f"prints what XLA refuses: {why}"
        try:
            same = body(meaning(again)) == body(meaning(proto))
        except CompileError as error:
            return self.ELSEWHERE, str(error)  # XLA makes a proto of it that it would not read itself
        return (self.SAME, "") if same else (self.OTHER, f"\n{meaning(again)}\n{meaning(proto)}")

    def _refused(self, text: str, problem: str) -> tuple[str, str]:
        if UNSUPPORTED.search(problem):
            return self.ELSEWHERE, problem
        if not RULE.search(problem):
            overlooked = NO_ORDER.search(problem) or (LAYOUT.search(text) and BRACKET.search(problem))
            return (self.OVERLOOKED if overlooked else self.TEXT), problem
        return (self.RULES, problem) if self._xla.compiles(text) else (self.STRICT, problem)

    def close(self) -> None:
        self._xla.close()


def meaning(proto: bytes) -> str:
    """Our text of XLA's module."""
    return print_module(load_module(proto))


def body(text: str) -> str:
    """The computations with numbers for names: XLA makes those of a proto unique."""
    computations: dict[str, str] = {}
    numbered = []
    for part in text.split("\n\n")[1:]:
        name = re.match(r"(?:ENTRY )?([\w.\-]+)", part)
        assert name is not None
        values = {each: f"v{n}" for n, each in enumerate(re.findall(r"^  (?:ROOT )?([\w.\-]+) =", part, re.MULTILINE))}
        _, _, part = part.partition("{")
        part = _renamed(part, r"(?<![\w.\-={])[a-zA-Z_][\w.\-]*(?![\w.\-(]|\[|=)", values)
        numbered.append(_renamed(part, r"(?<=[={ ])[a-zA-Z_][\w.\-]*", computations))
        computations[name[1]] = f"c{len(computations)}"
    return "\n\n".join(numbered)


def _renamed(text: str, pattern: str, names: dict[str, str]) -> str:
    return re.sub(pattern, lambda match: names.get(match[0], match[0]), text)
