"""Header attributes of a module: aliasing and donors are read, the rest is kept as text."""

import re
from dataclasses import dataclass

from neuronx_cc.hlo_import.attributes import Attributes, boolean, braced, integer, integers
from neuronx_cc.hlo_import.kept_text import check_text
from neuronx_cc.hlo_import.kept_types import read_type
from neuronx_cc.hlo_import.known_attributes import COUNTS, FLAGS, HEADER
from neuronx_cc.hlo_import.lexer import SourceText
from neuronx_cc.ir import hlo

_ALIAS = re.compile(
    r"(\{[\d,\s]*\})\s*:\s*\(\s*(\d{0,9})\s*,\s*(\{[\d,\s]*\})\s*(?:,\s*(may-alias|must-alias)\s*)?\)\s*(?:,\s*|$)"
)
_DONOR = re.compile(r"\(\s*(\d{0,9})\s*,\s*(\{[\d,\s]*\})\s*\)\s*(?:,\s*|$)")


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    aliases: tuple[hlo.Alias, ...]
    donors: tuple[tuple[int, tuple[int, ...]], ...]
    rest: tuple[tuple[str, str], ...]


def read_header(source: SourceText, header: Attributes) -> HeaderFacts:
    """Splits the header attributes of the module at the top of ``source``."""
    rest = dict(header)
    try:
        _check(rest)
        aliases = read_aliases(rest.pop("input_output_alias", "{}"))
        donors = read_donors(rest.pop("buffer_donor", "{}"))
    except ValueError as problem:
        raise source.error(0, str(problem)) from None
    return HeaderFacts(aliases, donors, tuple(rest.items()))


def _check(header: Attributes) -> None:
    """Raises ValueError on what XLA refuses in a header, and on counts of devices below one."""
    for name, text in header.items():
        if name not in HEADER:
            raise ValueError(f"expected an attribute of a module ({', '.join(sorted(HEADER))}), found {name[:60]}")
        if name in FLAGS:
            boolean(text)
        elif name == "entry_computation_layout":
            _layout(text)
        else:
            check_text(name, text)
        if name in COUNTS and not 1 <= integer(text) < 2**31:
            raise ValueError(f"expected {name} of 1 or more, found {text}")


def _layout(text: str) -> None:
    """``{(f32[2]{0})->f32[2]{0}}``."""
    parameters, arrow, result = braced(text).partition("->")
    if not arrow or not parameters.startswith("("):
        raise ValueError(f"expected a layout such as {{(f32[2]{{0}})->f32[2]{{0}}}}, found {text[:60]!r}")
    read_type(parameters)
    read_type(result)


def read_aliases(text: str) -> tuple[hlo.Alias, ...]:
    """``{ {0}: (1, {}, may-alias) }``; a number that is left out is 0, as XLA reads it. Raises ValueError."""
    inside, position, aliases = braced(text), 0, []
    while position < len(inside):
        if match := _ALIAS.match(inside, position):
            aliases.append(
                hlo.Alias(integers(match[1]), int(match[2] or 0), integers(match[3]), match[4] == "must-alias")
            )
        else:
            raise ValueError(f"expected an alias such as {{0}}: (1, {{}}, may-alias), found {inside[position:][:60]!r}")
        position = match.end()
    return tuple(aliases)


def read_donors(text: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """``{ (1, {}) }``. Raises ValueError."""
    inside, position, donors = braced(text), 0, []
    while position < len(inside):
        match = _DONOR.match(inside, position)
        if match is None:
            raise ValueError(f"expected a donor such as (1, {{}}), found {inside[position:][:60]!r}")
        donors.append((int(match[1] or 0), integers(match[2])))
        position = match.end()
    return tuple(donors)
