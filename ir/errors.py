"""Errors that reach users: a code, the place, what was expected and found, and the remedy.

Every layer raises these; ``driver.errors`` holds the catalogue of codes and prints them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple


class Call(NamedTuple):
    """What an instruction of a function, or of a loop or branch, is reached by."""

    name: str
    """That of the instruction that calls."""
    place: str
    """``file:line`` of the user's program, or empty."""
    shared: bool
    """Whether other instructions call the same."""


@dataclass(frozen=True, slots=True)
class Loc:
    """Where an HLO instruction came from."""

    name: str = ""
    """HLO instruction name, without the leading ``%``."""
    op_name: str = ""
    """``metadata.op_name``: the JAX name stack, such as ``jit(f)/dot_general``."""
    source_file: str = ""
    source_line: int = 0
    text_line: int = 0
    """Line of the HLO text (1-based; 0 when it did not come from text)."""
    calls: tuple[Call, ...] = ()
    """By which it was reached, outermost first."""

    @property
    def path(self) -> str:
        """The name, with those of the calls that tell it from copies of it: ``call.7/dot.5``."""
        return "/".join((*(call.name for call in self.calls if call.shared and call.name), self.name))

    @property
    def places(self) -> tuple[str, ...]:
        """``place`` and those of the calls, innermost first."""
        return (self.place, *(call.place for call in reversed(self.calls)))

    @property
    def traced(self) -> str:
        """``place``, and those of the calls that tell it from copies of it: ``layer.py:5 from model.py:31``."""
        sites = (call.place for call in reversed(self.calls) if call.shared)
        return " from ".join(dict.fromkeys(place for place in (self.place, *sites) if place))

    def called_by(self, caller: Loc, shared: bool) -> Loc:
        """Of an instruction of a function that ``caller`` calls, and perhaps others (``shared``)."""
        return replace(self, calls=(*caller.calls, Call(caller.name, caller.place, shared), *self.calls))

    @property
    def place(self) -> str:
        """``file:line`` of the user's program, or empty."""
        return f"{self.source_file}:{self.source_line}" if self.source_file else ""

    @property
    def numberless(self) -> str:
        """``op_name`` without numbers, such as those of layers: ops that have it in common are alike."""
        return re.sub(r"\d+", "#", self.op_name)

    def __str__(self) -> str:
        parts = [f"%{self.path}" if self.name else "", self.op_name, self.traced]
        return ", ".join(part for part in parts if part) or "unknown location"


NO_LOC = Loc()


PLAN_ANEW = "other plans are made for another batch size, or less memory: --set memory.sbuf_partition_bytes=98304"
"""The remedy where a program of this compiler breaks a rule of the machine: every such rule is one of its plan."""
COMPILE_AGAIN = f"compile the module again; if that changes nothing, {PLAN_ANEW}"
"""The same, of a program that may come from elsewhere or be damaged."""


class NeuronError(Exception):
    """Base of all errors shown to users.

    ``code`` is a catalogue code (``EVRF001``), ``message`` says what was expected and found,
    ``remedy`` the smallest thing to do about it, ``loc`` the HLO op and the user's source line.
    """

    exit_status = 70

    def __init__(self, code: str, message: str, remedy: str = "", loc: Loc = NO_LOC, pass_name: str = ""):
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy
        self.loc = loc
        self.pass_name = pass_name

    def __str__(self) -> str:
        # a message that already shows a line of text knows its place; only the op is missing
        place = "" if str(self.loc) == "unknown location" else f" (at {self.loc})"
        during = f" [pass {self.pass_name}]" if self.pass_name else ""
        remedy = f" - {self.remedy}" if self.remedy else ""
        if "\n" in self.message and (place or remedy):
            return f"[NCC_{self.code}] {self.message}\n {place}{during}{remedy}"
        return f"[NCC_{self.code}] {self.message}{place}{during}{remedy}"


class CompileError(NeuronError):
    """The module cannot be compiled; exit status 70."""


class UsageError(NeuronError):
    """The command line or API was called wrongly; exit status 2."""

    exit_status = 2


class RunError(NeuronError):
    """A NEFF cannot be loaded or its execution faulted; exit status 1."""

    exit_status = 1
