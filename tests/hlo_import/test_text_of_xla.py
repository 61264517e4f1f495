"""What XLA's parser accepts, ours accepts and takes for the same module; what XLA refuses, ours refuses.

Texts of every opcode, changed in spelling by seed. The oracle of the meaning is the proto that XLA makes of the text.
"""

import random
import re
from collections.abc import Callable, Iterator

import pytest
from opcode_texts import TEXTS
from xla_verdicts import Verdicts

from neuronx_cc.hlo_import.load import load_module
from neuronx_cc.hlo_import.printer import print_module
from neuronx_cc.ir.errors import CompileError, UsageError
from neuronx_cc.ir.hlo import HloModule

UNKNOWN_TO_XLA = {"atan", "collective-reduce", "shuffle"}
ASYNC = {"async-start", "async-update", "async-done"}
"""Their protos call computations by names of XLA's own."""
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


CHANGES: tuple[Change, ...] = (
    drop_type, comment, space, attributes_turned, instructions_swapped, entry_first, no_header, header, attribute,
    quoted, one_name, token_dropped, token_doubled, tokens_swapped, glued,
)  # fmt: skip


@pytest.fixture(scope="module")
def xla() -> Iterator[Verdicts]:
    verdicts = Verdicts()
    yield verdicts
    verdicts.close()


def ours_of(text: str) -> tuple[HloModule | None, str]:
    """The module, or why there is none."""
    try:
        return load_module(text.encode()), ""
    except (CompileError, UsageError) as error:
        return None, str(error)


RULE = re.compile(r": [a-z][a-z\-]*: expected ")
"""How a refusal begins that is the verifier's, which XLA runs later."""


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_same_verdict_and_same_meaning(change: Change, seed: int, xla: Verdicts) -> None:
    for opcode in sorted(set(TEXTS) - UNKNOWN_TO_XLA):
        text = change(TEXTS[opcode], random.Random(f"{opcode}{seed}"))
        proto, refused = xla(text)
        ours, problem = ours_of(text)
        if proto is None:
            assert ours is None or not refused, f"{text}\nXLA: {refused}"
        elif ours is None:
            assert RULE.search(problem), f"{text}\nours: {problem}"
        elif opcode not in ASYNC:
            again, why = xla(print_module(ours))
            assert again is not None, why
            assert body(meaning(again)) == body(meaning(proto)), text


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
