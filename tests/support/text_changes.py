"""Changes of HLO texts in spelling, by seed: tokens dropped, doubled, swapped and put in, texts spliced.

``python tests/support/text_changes.py 100000 [FIRST]`` holds that many against XLA, from seed FIRST on, and prints how
they were judged.
"""

import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache

from opcode_texts import TEXTS
from text_forms import FORMS
from text_verdicts import Judge

from neuronx_cc.hlo_import.known_attributes import EVERYWHERE, HEADER, KNOWN

UNKNOWN_TO_XLA = {"atan", "collective-reduce", "shuffle"}
ALL = {name: text for name, text in (TEXTS | FORMS).items() if name not in UNKNOWN_TO_XLA}
"""What is changed: texts of every opcode that XLA knows, and of every form."""

Change = Callable[[str, random.Random], str]

_LINE = re.compile(r"^ +(?:ROOT )?%?[\w.\-]+ = .*$", re.MULTILINE)


def _line(text: str, chance: random.Random) -> re.Match[str]:
    return chance.choice(list(_LINE.finditer(text)))


def _put(text: str, match: re.Match[str], new: str) -> str:
    return text[: match.start()] + new + text[match.end() :]


def drop_type(text: str, chance: random.Random) -> str:
    match = _line(text, chance)
    return _put(text, match, re.sub(r"= .*? ([a-z][\w\-]*\()", r"= \1", match.group(), count=1))


def _between(text: str, chance: random.Random, what: str) -> str:
    """Puts ``what`` beside a comma or bracket that stands in no string."""
    outside = re.sub(r'"[^"]*"', lambda match: "x" * len(match.group()), text)
    places = [match.end() for match in re.finditer(r"[,(){}]|(?<=\w) (?=\w)", outside)]
    place = chance.choice(places)
    return text[:place] + what + text[place:]


def comment(text: str, chance: random.Random) -> str:
    return _between(text, chance, chance.choice(["/*c*/", " /* c, {( */ ", "/*\n*/", " // c )\n"]))


def space(text: str, chance: random.Random) -> str:
    return _between(text, chance, chance.choice([" ", "\n", "\t ", "\r\n  "]))


def attributes_turned(text: str, chance: random.Random) -> str:
    match = _line(text, chance)
    head, *rest = re.split(r", (?=[a-z_\-]+=)", match.group())
    chance.shuffle(rest)
    return _put(text, match, ", ".join([head, *rest]))


def instructions_swapped(text: str, chance: random.Random) -> str:
    first = _line(text, chance)
    second = _LINE.search(text, first.end())
    if second is None or second.start() != first.end() + 1:
        return text
    return text[: first.start()] + f"{second.group()}\n{first.group()}" + text[second.end() :]


def entry_first(text: str, chance: random.Random) -> str:
    header, _, rest = text.partition("\n")
    place = rest.index("ENTRY")
    return f"{header}\n{rest[place:]}\n{rest[:place]}"


def no_header(text: str, chance: random.Random) -> str:
    return text[text.index("\n") + 1 :]


def header(text: str, chance: random.Random) -> str:
    added = chance.choice(
        (
            *(
                ":",
                ", is_scheduled=true",
                ', is_scheduled="true"',
                ", num_partitions=2",
                ", foo=1",
                ", replica_count={1}",
            ),
            *(", alias_passthrough_params=true", ", /*c*/ replica_count=2 // c", ', frontend_attributes={a="b"}'),
        )
    )
    return re.sub(r"^HloModule [\w.]+", lambda match: match.group() + added, text)


def attribute(text: str, chance: random.Random) -> str:
    added = chance.choice(
        (
            *(
                "foo=1",
                "dimensions={0}",
                "sharding={replicated}",
                "sharding=replicated",
                "sharding={foo}",
                "to_apply=zz",
            ),
            *(
                'metadata={op_name="x"}',
                "control-predecessors={zz}",
                'frontend_attributes={k="v"}',
                "sharding={manual}",
            ),
        )
    )
    match = _line(text, chance)
    return _put(text, match, f"{match.group()}, {added}")


def quoted(text: str, chance: random.Random) -> str:
    places = list(re.finditer(r"(?<=[a-z_]=)[A-Za-z]\w*(?=[,\n])", text))
    if not places:
        return text
    match = chance.choice(places)
    return _put(text, match, chance.choice([f'"{match.group()}"', match.group().swapcase(), f"{{{match.group()}}}"]))


def one_name(text: str, chance: random.Random) -> str:
    """An instruction of the entry by the name of its computation, or of its module."""
    place = text.index("ENTRY")
    name = re.match(r" +(?:ROOT )?%?([\w.\-]+)", _line(text[place:], chance).group())
    entry = re.match(r"ENTRY %?([\w.\-]+)", text[place:])
    assert name is not None
    assert entry is not None
    return text[:place] + re.sub(rf"(?<![\w.\-]){re.escape(name[1])}(?![\w.\-=])", entry[1], text[place:])


_TOKEN = re.compile(r'"[^"]*"|[\w.\-]+|[^\s\w]')


def _tokens(text: str, chance: random.Random) -> list[re.Match[str]]:
    """Two neighbouring tokens after the name of a line; no literals and commas: XLA overlooks those in excess."""
    lines = [line for line in _LINE.finditer(text) if " constant(" not in line.group()]
    if not lines:
        return []
    line = chance.choice(lines)
    found = list(_TOKEN.finditer(text, line.start() + line.group().index("=") + 1, line.end()))
    places = [place for place in range(len(found) - 1) if found[place].group() != ","]
    place = chance.choice(places)
    return found[place : place + 2]


def token_dropped(text: str, chance: random.Random) -> str:
    found = _tokens(text, chance)
    return _put(text, found[0], "") if found else text


def token_doubled(text: str, chance: random.Random) -> str:
    found = _tokens(text, chance)
    if not found:
        return text
    first = found[0]
    return _put(text, first, chance.choice([f"{first.group()} {first.group()}", f"{first.group()},{first.group()}"]))


def tokens_swapped(text: str, chance: random.Random) -> str:
    found = _tokens(text, chance)
    if not found:
        return text
    first, second = found
    between = text[first.end() : second.start()]
    return text[: first.start()] + second.group() + between + first.group() + text[second.end() :]


def glued(text: str, chance: random.Random) -> str:
    line = _line(text, chance)
    return _put(text, line, chance.choice([line.group().replace(" = ", "=", 1), line.group().replace(" = ", " =", 1)]))


def token_anywhere(text: str, chance: random.Random) -> str:
    """A token of the whole text dropped, doubled, or put elsewhere."""
    found = list(_TOKEN.finditer(text))
    first, second = chance.choice(found), chance.choice(found)
    kind = chance.randrange(3)
    new = ("", f"{first.group()} {first.group()}", f"{second.group()} {first.group()}")[kind]
    return _put(text, first, new)


def spliced(text: str, chance: random.Random) -> str:
    """The first lines of one text and the last of another, or a line of another put in."""
    lines, others = text.splitlines(), chance.choice(list(ALL.values())).splitlines()
    if chance.random() < 0.5:
        return "\n".join([*lines[: chance.randrange(len(lines) + 1)], *others[chance.randrange(len(others)) :]])
    place = chance.randrange(1, len(lines))
    return "\n".join([*lines[:place], chance.choice(others), *lines[place:]])


def known_attribute(text: str, chance: random.Random) -> str:
    """An attribute of the tables, with a value of some other attribute in some text."""
    header = chance.random() < 0.2
    names = sorted(HEADER) if header else sorted(EVERYWHERE.union(*KNOWN.values()))
    name = chance.choice(names)
    value = chance.choice(_values().get(name, []) * 3 + [each for values in _values().values() for each in values[:1]])
    if header:
        return re.sub(r"^HloModule [\w.]+", lambda match: f"{match.group()}, {name}={value}", text)
    line = _line(text, chance)
    return _put(text, line, f"{line.group()}, {name}={value}")


@cache
def _values() -> dict[str, list[str]]:
    """Attribute -> values that texts have of it."""
    values: dict[str, list[str]] = {}
    for text in list(ALL.values()):
        for match in re.finditer(r", ([a-z][\w\-]*)=(\{(?:[^{}]|\{[^{}]*\})*\}|[^\s,{]+)", text):
            if match[2] not in values.setdefault(match[1], []):
                values[match[1]].append(match[2])
    return values


def behind_value(text: str, chance: random.Random) -> str:
    """Something that is no comma behind the whole value of an attribute."""
    places = [match.start() for match in re.finditer(r"(?=, [a-z_\-]+=|\n)", text) if "=" in text[: match.start()]]
    place = chance.choice(places)
    return text[:place] + chance.choice(["zz", " zz", "=", '"t"', "{}", " 1", ")"]) + text[place:]


CHANGES: tuple[Change, ...] = (
    drop_type, comment, space, attributes_turned, instructions_swapped, entry_first, no_header, header, attribute,
    quoted, one_name, token_dropped, token_doubled, tokens_swapped, glued,
    token_anywhere, spliced, known_attribute, behind_value,
)  # fmt: skip


def main(count: int, first: int = 0) -> None:
    """Judges ``count`` texts, from seed ``first`` on, and prints what became of them."""
    judge, table, shown = Judge(), Counter[str](), Counter[str]()
    texts = sorted(ALL.items())
    for seed in range(first, first + count):
        name, text = texts[seed % len(texts)]
        chance = random.Random(seed)
        changed = chance.choice(CHANGES)(text, chance)
        kind, why = judge(changed)
        table[kind] += 1
        if kind in judge.DIFFERENCES and shown[kind] < 400:
            shown[kind] += 1
            print(f"--- {kind} [{name} {seed}] {why}\n{changed}", file=sys.stderr)
    judge.close()
    for kind, number in table.most_common():
        print(f"{number:8} {kind}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
