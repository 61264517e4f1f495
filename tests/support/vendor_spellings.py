"""One graph, spelled as several versions of PyTorch/XLA and of HLO's printers spell it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

RING = 'custom_call_target="AwsNeuronTransferWithStaticRing", api_version=API_VERSION_UNSPECIFIED'
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter")
LINE = re.compile(r"(?P<head> *(?:ROOT )?)%(?P<name>\S+) = (?P<type>\([^()]*\)|\S+) (?P<opcode>[a-z-]+)\((?P<rest>.*)")
GROUPS = re.compile(r"replica_groups=\{\{([\d,]+)\}\}")


@dataclass(frozen=True, slots=True)
class Line:
    """An instruction."""

    head: str
    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    attributes: tuple[str, ...]

    def __str__(self) -> str:
        more = "".join(f", {each}" for each in self.attributes)
        return f"{self.head}%{self.name} = {self.type} {self.opcode}({', '.join(self.operands)}){more}"


def _pieces(text: str) -> Iterator[str]:
    """Of a list, by the commas that no bracket and no quotes hold."""
    depth, quoted, piece = 0, False, ""
    for letter in text:
        quoted ^= letter == '"'
        depth += 0 if quoted else (letter in "({[") - (letter in ")}]")
        if letter == "," and not depth and not quoted:
            yield piece.strip()
            piece = ""
        else:
            piece += letter
    if piece.strip():
        yield piece.strip()


def _line(text: str) -> Line | None:
    found = LINE.fullmatch(text)
    if found is None:
        return None
    depth, end = 1, 0
    while depth:
        depth += (found["rest"][end] == "(") - (found["rest"][end] == ")")
        end += 1
    operands, attributes = found["rest"][: end - 1], found["rest"][end:].removeprefix(",")
    fields = (found["head"], found["name"], found["type"], found["opcode"])
    return Line(*fields, tuple(_pieces(operands)), tuple(_pieces(attributes)))


def backwards(line: Line) -> list[Line]:
    """Attributes in another order."""
    return [replace(line, attributes=line.attributes[::-1])]


def bare(line: Line) -> list[Line]:
    """Operands without types."""
    return [replace(line, operands=tuple(each.rpartition(" ")[2] for each in line.operands))]


def ringed(line: Line) -> list[Line]:
    """Every operand of a collective passes through the vendor's marker."""
    if line.opcode not in COLLECTIVES:
        return [line]
    names = [f"ring.{line.name}.{number}" for number in range(len(line.operands))]
    types = [each.rpartition(" ")[0] for each in line.operands]
    rings = [
        Line("  ", name, type_, "custom-call", (operand,), (RING,))
        for name, type_, operand in zip(names, types, line.operands, strict=True)
    ]
    return [*rings, replace(line, operands=tuple(f"{t} %{name}" for t, name in zip(types, names, strict=True)))]


def channelled(line: Line) -> list[Line]:
    """Collectives with a channel, one group of devices as a count."""
    if line.opcode not in COLLECTIVES:
        return [line]
    attributes = []
    for each in line.attributes:
        group = GROUPS.fullmatch(each)
        count = group[1].count(",") + 1 if group else 0
        whole = group is not None and group[1] == ",".join(map(str, range(count)))
        attributes.append(f"replica_groups=[1,{count}]<=[{count}]" if whole else each)
    return [replace(line, attributes=("channel_id=1", *attributes))]


def lone(text: str) -> str:
    """A collective of one operand has an array as its result, not a tuple of one."""
    made: list[str] = []
    names: dict[str, str] = {}
    for each in text.splitlines():
        line = _line(each)
        if line is not None and line.opcode in COLLECTIVES and len(line.operands) == 1:
            names[line.name] = line.name
            made.append(str(replace(line, type=line.type[1:-1])))
        elif line is not None and line.opcode == "get-tuple-element" and _named(line) in names:
            names[line.name] = _named(line)
        else:
            made.append(each)
    return re.sub(r"%([\w.]+)", lambda found: "%" + names.get(found[1], found[1]), "\n".join(made) + "\n")


def _named(line: Line) -> str:
    return line.operands[0].rpartition("%")[2]


def _by_line(change: Callable[[Line], list[Line]]) -> Callable[[str], str]:
    def changed(text: str) -> str:
        lines = [(each, _line(each)) for each in text.splitlines()]
        return "".join(
            f"{each}\n" if line is None else "".join(f"{made}\n" for made in change(line)) for each, line in lines
        )

    return changed


def together(text: str) -> str:
    """All of them at once."""
    for change in (lone, *(_by_line(each) for each in (ringed, channelled, bare, backwards))):
        text = change(text)
    return text


SPELLINGS: dict[str, Callable[[str], str]] = {
    "attributes backwards": _by_line(backwards),
    "bare operands": _by_line(bare),
    "rings": _by_line(ringed),
    "channels": _by_line(channelled),
    "no tuples of one": lone,
    "together": together,
}
