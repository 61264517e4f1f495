"""An instruction alone, ``f32[4] add(f32[4] x, f32[4])``, which XLA reads as a module of its own.

Operands are parameters of the types that stand before them, numbered as they come; those without a name get one.
"""

import re

from neuronx_cc.hlo_import.lexer import NAME, SPACE
from neuronx_cc.hlo_import.raw import RawComputation, parameter
from neuronx_cc.hlo_import.shapes import TypedText

_GAP = SPACE.pattern
_WORD = r"[a-z][\w\-]*"
LONE = re.compile(
    rf"(?:(?:ROOT(?![\w.\-])){_GAP})?%?{NAME}{_GAP}={_GAP}(?:{_WORD}{_GAP}[\[(]|\()"
    rf"|(?:{_WORD}{_GAP}\[[^\]]*\](?:\{{[^}}]*\}})?|\([^=]*\)){_GAP}{_WORD}{_GAP}\(",
    re.DOTALL,
)
"""What such a text begins with: a name and an equals sign, or a type and an opcode."""


def as_parameter(computation: RawComputation, name: str, given: TypedText, position: int) -> str:
    """The key of the operand ``name``, which becomes a parameter of the type ``given`` if it is none."""
    count = sum(each.opcode == "parameter" for each in computation.instructions)
    taken = {each.key for each in computation.instructions}
    if not name:
        name = f"_{count}"
        while name in taken:
            name += ".1"
    if name not in taken:
        new = parameter(name, given.type, position, count)
        new.layout, new.spelled = given.layout, given.spelled
        computation.instructions.append(new)
    return name
