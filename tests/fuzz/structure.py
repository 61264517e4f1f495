"""Damage that knows its format, all of it: each part of a JSON value as another type, each list of numbers of HLO text.

Damage at random comes to most of these late or never. Parts that differ in their place in a list alone are taken once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

OTHERS: tuple[Any, ...] = (None, True, -1, 1 << 70, 0.5, "x", [], [[0]], {}, {"x": 0})
"""A value of each type of JSON, and of each kind of number."""
_NUMBERS = re.compile(r"(\w+=)?([{\[])(-?\d[\d,: ]*)([}\]])")
_HUGE = 1 << 62


def retyped(value: Any) -> Iterator[tuple[str, Any]]:
    """Where, and ``value`` with the part there replaced by one of another type, or gone."""
    for other in OTHERS:
        if type(other) is not type(value) or (isinstance(other, int) and other != value):
            yield f" = {other!r:.12}", other
    if isinstance(value, dict):
        for key, part in value.items():
            yield f".{key} gone", {name: kept for name, kept in value.items() if name != key}
            for place, changed in retyped(part):
                yield f".{key}{place}", {**value, key: changed}
    elif isinstance(value, list) and value:
        yield "[-1] gone", value[:-1]
        yield "[0] twice", [value[0], *value]
        for at in sorted({0, len(value) - 1}):
            for place, changed in retyped(value[at]):
                yield f"[{at}]{place}", [*value[:at], changed, *value[at + 1 :]]


def other_numbers(text: str) -> Iterator[tuple[str, str]]:
    """Where, and HLO text with one list of numbers (of dims, of an attribute) shorter, longer, or beyond its limits."""
    for match in _NUMBERS.finditer(text):
        opening, numbers, closing = match.group(2), match.group(3).split(","), match.group(4)
        line = text.count("\n", 0, match.start()) + 1
        for changed in _lists(numbers):
            inside = ",".join(changed)
            place = f"line {line}: {match.group(1) or ''}{opening}{inside}{closing}"
            yield place, f"{text[: match.start(2)]}{opening}{inside}{closing}{text[match.end() :]}"


def _lists(numbers: list[str]) -> Iterator[list[str]]:
    yield []
    yield numbers[:-1]
    yield [*numbers, numbers[-1]]
    yield [*numbers, "0"]
    yield numbers[::-1]
    yield [numbers[0]] * len(numbers)
    for at in sorted({0, len(numbers) - 1}):
        for value in ("-1", "0", "1", "5", "129", str(_HUGE)):
            yield [*numbers[:at], value, *numbers[at + 1 :]]
