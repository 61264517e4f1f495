"""Every pattern of the readers answers soon, whatever repeats in the text: none tries the same text in many ways."""

import importlib
import pkgutil
import random
import re

import pytest

from neuronx_cc import hlo_import
from tests.support.seconds import at_most

PATTERNS = {
    f"{module.name.rpartition('.')[2]}.{name}": value
    for module in pkgutil.iter_modules(hlo_import.__path__, "neuronx_cc.hlo_import.")
    for name, value in vars(importlib.import_module(module.name)).items()
    if isinstance(value, re.Pattern)
}
PIECES = ("//", "/*", "*/", "/**/", '""', '\\"', "()", "[]", "{}", ", ", "a=", "ENTRY ", "ROOT ", "%a", "//\n")
REPEATS = 24
"""A pattern that backtracks at each repeat takes 2**24 steps."""


def text(pattern: str, draw: random.Random) -> str:
    """Up to three pieces over and over, between others."""
    letters = sorted({*re.sub(r"\\[wsdnrt]", "", pattern), *'a0 \n"'})

    def piece(most: int) -> str:
        return "".join(draw.choice((*PIECES, *letters)) for _ in range(draw.randrange(most + 1)))

    return piece(3) + "".join(piece(3) * REPEATS for _ in range(draw.choice((1, 1, 3)))) + piece(2)


@pytest.mark.parametrize("name", PATTERNS)
def test_repeats_take_no_more_than_their_square(name: str) -> None:
    pattern = PATTERNS[name]
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    draw = random.Random(name)
    for _ in range(200):
        drawn = text(source, draw)
        given = drawn if isinstance(pattern.pattern, str) else drawn.encode("latin-1")
        with at_most(0.5, repr(drawn)):
            pattern.match(given)
            pattern.fullmatch(given)
