"""Types in attributes, and literals after their types, as custom calls have them."""

import re

from neuronx_cc.hlo_import.attributes import braced
from neuronx_cc.hlo_import.lexer import MAX_NESTING, SourceText
from neuronx_cc.hlo_import.literals import LiteralError, parse_literal
from neuronx_cc.hlo_import.replica_groups import MESH_VALUE
from neuronx_cc.hlo_import.shapes import TypedText, TypeReader
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError

_SCALAR = re.compile(r"[^\s,(){}]+(?:\([^()]*\))?")
_BRACES_ALONE = {
    "backend_config": SourceText.json_end,
    "frontend_attributes": SourceText.brace_end,
    "origin": SourceText.brace_end,
}
"""Attributes in which no other brackets need to match."""


def literal_end(types: TypeReader, position: int, depth: int = 0) -> int:
    """Position after the literal at ``position``: ``s32[2]{0} {1, 2}``, or a tuple of such.

    Raises CompileError EVRF064 at what is none.
    """
    source = types.source
    position = source.skip(position)
    if depth > MAX_NESTING:
        raise source.error(position, f"expected at most {MAX_NESTING} tuples inside each other")
    if source.at(position) == "(":
        position = source.skip(position + 1)
        while source.at(position) != ")":
            position = source.skip(literal_end(types, position, depth + 1))
            position = source.skip(position + (source.at(position) == ","))  # XLA overlooks where commas stand
        return position + 1
    typed, end = types.read(position)
    begin = source.skip(end)
    if not isinstance(typed.type, hlo.ArrayType):
        raise source.error(position, "expected the type of an array ahead of its values")
    if source.at(begin) in ("{", "("):
        end = source.closing(begin)
    else:
        scalar = _SCALAR.match(source.text, begin)
        end = scalar.end() if scalar else begin
    try:
        parse_literal(source.text[begin:end], typed.type.data)
    except LiteralError as problem:
        raise source.error(begin, str(problem)) from None
    return end


def constraints(text: str) -> tuple[hlo.Attribute, ...]:
    """The types of ``operand_layout_constraints={...}``. Raises ValueError."""
    types = read_type(f"({braced(text)})").type
    assert isinstance(types, hlo.TupleType)
    return types.data


def read_type(text: str) -> TypedText:
    """The type that is all of ``text``. Raises ValueError."""
    source = SourceText(text)
    try:
        typed, position = TypeReader(source).read(0)
    except CompileError:
        position = -1
    if position < 0 or source.skip(position) < len(text):
        raise ValueError(f"expected a type such as f32[2,3]{{1,0}}, found {text[:60]!r}")
    return typed


def value_end(types: TypeReader, name: str, start: int) -> int:
    """Position after the value of attribute ``name``, which starts at ``start`` of the text of ``types``."""
    source = types.source
    if name == "literal":
        return literal_end(types, start)
    if (ends := _BRACES_ALONE.get(name)) and source.at(start) == "{":
        return ends(source, start)
    mesh = MESH_VALUE.match(source.text, start) if name == "replica_groups" else None
    return mesh.end() if mesh else source.value_end(start)
