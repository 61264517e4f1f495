"""What the targets of module formats share: small modules of every opcode, a compilation that hides no exception."""

from opcode_texts import TEXTS

from neuronx_cc.driver.compile import compile_data
from neuronx_cc.driver.failure import Session
from neuronx_cc.driver.log import Log
from neuronx_cc.driver.options import COMPILE
from neuronx_cc.driver.parse import from_keywords

NOT_OF_XLA = frozenset(["atan", "collective-reduce", "shuffle"])
"""Opcodes of ``TEXTS`` that jaxlib's parser does not know."""
SILENT = 100
"""Above every level of the log."""


def texts() -> dict[str, str]:
    """A small module for each opcode."""
    return {opcode: TEXTS[opcode] for opcode in sorted(TEXTS)}


def compile_module(data: bytes) -> None:
    """Compile a module of any format; what is raised is what was raised inside."""
    session = Session("fuzz", [], Log(), from_keywords(COMPILE, {}))
    session.log.level = SILENT
    assert session.parsed is not None
    compile_data(data, "fuzz", session.parsed, session)
