"""Changes of HLO text in one place that keep its types: other numbers, operators, operands, attributes, readers."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

FLOATS = ("f32", "bf16", "f16")
_OP = re.compile(r"^  (ROOT )?(\S+) = (\w+)\[([\d,]*)\](?:\{[\d,]*\})? ([\w\-]+)\((.*?)\)(, .*)?$")
_COMBINED = re.compile(r"(?:reduce|reduce-window|scatter|sort|select-and-scatter)\(.*")
_BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "divide")
_UNARY = (
    "tanh", "logistic", "exponential", "negate", "abs", "sine", "exponential-minus-one", "cosine", "floor", "sign",
    "erf", "ceil", "cbrt", "round-nearest-even", "copy",
)  # fmt: skip
_GROUPS: dict[str, tuple[tuple[str, ...], ...]] = {
    "float": (
        _BINARY, _UNARY, ("sqrt", "rsqrt", "log", "log-plus-one", "abs", "negate", "cbrt"), ("power", "atan2", "add"),
    ),
    "integer": (
        (*_BINARY, "and", "or", "xor", "shift-left", "shift-right-logical", "shift-right-arithmetic", "remainder"),
        ("negate", "abs", "not", "sign", "popcnt", "count-leading-zeros"),
    ),
    "pred": (("and", "or", "xor"),),
}  # fmt: skip
"""Operators that may stand in each other's place."""
_NUMBERS = ("0", "1", "-1", "2", "0.5", "-2", "3", "-0.25", "inf", "-inf", "nan", "-0", "1e-30", "1e5")
_INTEGERS = ("0", "1", "2", "3", "5", "7", "31", "127")
_INSERTED = {
    "float": ("negate", "scaled", "scaled", "abs", "floor", "rounded", "sum"),
    "integer": ("negate", "not", "sum"),
}
_COMPARISONS = ("LT", "LE", "GT", "GE", "EQ", "NE")


def family(dtype: str) -> str:
    return "float" if dtype in FLOATS else "pred" if dtype == "pred" else "integer" if dtype[0] in "su" else ""


@dataclass
class Line:
    """An instruction: where it stands and what it says."""

    at: int
    root: str
    name: str
    dtype: str
    dims: str
    opcode: str
    operands: list[str]
    rest: str
    guarded: bool
    """Whether it belongs to a computation that combines elements, or counts iterations."""

    @property
    def type(self) -> str:
        return f"{self.dtype}[{self.dims}]"

    @property
    def sizes(self) -> list[int]:
        return [int(size) for size in self.dims.split(",") if size]

    def text(self) -> str:
        return f"  {self.root}{self.name} = {self.type} {self.opcode}({', '.join(self.operands)}){self.rest}"


class Mutant:
    """HLO text as lines, to be changed."""

    def __init__(self, text: str, chooser: random.Random) -> None:
        self.random = chooser
        self.lines = re.sub(r", entry_computation_layout=.*", "", text).split("\n")
        self.fresh = 0
        self.read()

    def read(self) -> None:
        """The instructions of arrays, and which computation each belongs to."""
        self.found: list[Line] = []
        self.computation: dict[int, int] = {}
        custom = [
            name for name, body in re.findall(r"^(\S+) \{\n(.*?)\n\}", self.text(), re.M | re.S) if body.count("\n") > 2
        ]
        folded = [line for line in self.lines if " reduce-window(" in line or " reduce(" in line]
        self.folds = [line for line in folded if any(line.endswith(f"to_apply={name}") for name in custom)]
        combining = set(re.findall(r"to_apply=([\w.\-]+)", "\n".join(filter(_COMBINED.search, self.lines))))
        loops = set(re.findall(r"(?:condition|body)=([\w.\-]+)", "\n".join(self.lines)))
        number, guarded, looped = 0, False, False
        for at, line in enumerate(self.lines):
            if line.endswith("{") and not line.startswith(" "):
                name = line.removeprefix("ENTRY ").split(" ")[0]
                number, guarded, looped = number + 1, name in combining, name in loops
            self.computation[at] = number
            if match := _OP.match(line):
                root, name, dtype, dims, opcode, operands, rest = match.groups()
                scalar = looped and not dims and family(dtype) != "float"
                split = operands.split(", ") if operands and opcode != "constant" else [operands]
                self.found.append(Line(at, root or "", name, dtype, dims, opcode, split, rest or "", guarded or scalar))

    def text(self) -> str:
        return "\n".join(self.lines)

    def type_of(self, name: str, near: Line) -> Line | None:
        same = (line for line in self.found if line.name == name and self._beside(line, near))
        return next(same, None)

    def _beside(self, line: Line, near: Line) -> bool:
        return self.computation[line.at] == self.computation[near.at]

    def change(self) -> bool:
        """One change of one instruction; False if what was drawn cannot be made."""
        chosen = self.random.choice(CHANGES)
        lines = [line for line in self.found if line.opcode not in ("parameter", "get-tuple-element")]
        if chosen in (constant, attribute, opcode):  # among those that can be changed so, the rare ones as often
            kind = self.random.choice(sorted({line.opcode for line in lines} & _WITH[chosen]) or ["none"])
            lines = [line for line in lines if line.opcode == kind]
        if not lines:
            return False
        line = self.random.choice(lines)
        if line.guarded and chosen not in (constant, opcode):
            return False
        before = self.text()
        chosen(self, line)
        self.read()
        return self.text() != before

    def put(self, line: Line) -> None:
        self.lines[line.at] = line.text()


def constant(m: Mutant, line: Line) -> None:
    """Another number; what folds start from, and combine otherwise than by one op, XLA may take in any number."""
    if line.dims or family(line.dtype) == "" or any(line.name in text for text in m.folds):
        return
    if line.dtype == "pred":
        line.operands = ["true" if line.operands[0] == "false" else "false"]
    elif family(line.dtype) == "integer":
        if line.guarded:  # fewer iterations, never more
            line.operands = [str(m.random.randint(0, max(int(line.operands[0]), 0)))] * (len(line.operands) == 1)
        else:
            line.operands = [m.random.choice((*_INTEGERS, str(int(line.operands[0]) + 1)))]
    else:
        number = float(line.operands[0])
        near = [f"{-number:.9g}", f"{number * 1.01:.9g}", f"{number * 2:.9g}", f"{number + 1:.9g}", f"{number / 3:.9g}"]
        line.operands = [m.random.choice(near if m.random.random() < 0.6 else _NUMBERS)]
    m.put(line)


def opcode(m: Mutant, line: Line) -> None:
    """Another operator of the same operands and type."""
    groups = [group for group in _GROUPS.get(family(line.dtype), ()) if line.opcode in group]
    if not groups:
        return
    group = m.random.choice(groups)
    if line.guarded:  # in any order of the elements the same
        group = tuple(name for name in ("add", "multiply", "maximum", "minimum", "and", "or", "xor") if name in group)
        if line.opcode not in group:
            return
    line.opcode = m.random.choice(group)
    m.put(line)


def turned(m: Mutant, line: Line) -> None:
    """Two operands in each other's place."""
    if len(line.operands) < 2 or line.opcode in ("while", "conditional", "sort"):
        return
    first, other = m.random.sample(range(len(line.operands)), 2)
    line.operands[first], line.operands[other] = line.operands[other], line.operands[first]
    m.put(line)


def operand(m: Mutant, line: Line) -> None:
    """Another value of the same type in the place of an operand."""
    if line.opcode == "constant" or not line.operands:
        return
    at = m.random.randrange(len(line.operands))
    old = m.type_of(line.operands[at], line)
    if old is None:
        return
    same = [each.name for each in m.found if each.type == old.type and each.at < line.at and m._beside(each, line)]
    line.operands[at] = m.random.choice(same)
    m.put(line)


def attribute(m: Mutant, line: Line) -> None:
    """Another number, order or direction in what stands behind the operands."""
    if line.opcode == "compare":
        line.rest = re.sub(r"direction=\w+", f"direction={m.random.choice(_COMPARISONS)}", line.rest)
    elif line.opcode == "slice":
        line.rest = _shifted(m, line.rest, r"\[(\d+):(\d+)", lambda a, b, by: f"[{a + by}:{b + by}")
    elif line.opcode in ("pad", "convolution", "reduce-window", "select-and-scatter"):
        line.rest = _shifted(m, line.rest, r"(-?\d+)_(-?\d+)(?=[_x\s},]|$)", lambda a, b, by: f"{a + by}_{b - by}")
    elif line.opcode == "reverse" and line.dims:
        line.rest = f", dimensions={{{m.random.randrange(len(line.sizes))}}}"
    elif line.opcode == "iota" and line.dims:
        line.rest = f", iota_dimension={m.random.randrange(len(line.sizes))}"
    else:
        lists = list(re.finditer(r"(dims|dimensions)=\{([\d,]+)\}", line.rest))
        if not lists:
            return
        match = m.random.choice(lists)
        old, rank = [int(dim) for dim in match[2].split(",")], max(len(line.sizes), 1)
        most = max(rank, max(old) + 1, 2)
        new = m.random.sample(range(most), len(old))
        if m.random.random() < 0.5:
            new = m.random.sample(old, len(old))
        if line.opcode in ("reduce", "broadcast"):
            new = sorted(new)
        line.rest = line.rest[: match.start(2)] + ",".join(map(str, new)) + line.rest[match.end(2) :]
    m.put(line)


def _shifted(m: Mutant, text: str, pattern: str, shown: Any) -> str:
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    match = m.random.choice(found)
    by = m.random.choice((-2, -1, 1, 1, 2))
    return text[: match.start()] + shown(int(match[1]), int(match[2]), by) + text[match.end() :]


def inserted(m: Mutant, line: Line) -> None:
    """An op between a value and one of its readers."""
    if line.opcode in ("constant", "while", "conditional") or not line.operands:
        return
    at = m.random.randrange(len(line.operands))
    old = m.type_of(line.operands[at], line)
    if old is None:
        return
    m.fresh += 1
    name, kind = f"near.{m.fresh}", family(old.dtype)
    chosen = m.random.choice(
        (*_INSERTED.get(kind, ("not",)), *(("reverse", "transpose") if old.dims else ()), "select")
    )
    if chosen in ("negate", "abs", "floor", "not"):
        new = [f"{name} = {old.type} {chosen}({old.name})"]
    elif chosen == "reverse":
        new = [f"{name} = {old.type} reverse({old.name}), dimensions={{{m.random.randrange(len(old.sizes))}}}"]
    elif chosen == "transpose":
        order = m.random.sample(range(len(old.sizes)), len(old.sizes))
        if [old.sizes[axis] for axis in order] != old.sizes:
            return
        new = [f"{name} = {old.type} transpose({old.name}), dimensions={{{','.join(map(str, order))}}}"]
    elif chosen == "rounded":
        narrow = "bf16" if old.dtype != "bf16" else "f16"
        new = [f"{name}n = {narrow}[{old.dims}] convert({old.name})", f"{name} = {old.type} convert({name}n)"]
    elif chosen == "select":
        new = _selected(m, name, old, kind)
    else:
        operator = "multiply" if chosen == "scaled" else m.random.choice(("add", "maximum", "minimum", "subtract"))
        number = m.random.choice(_INTEGERS if kind == "integer" else ("-1", "0.5", "2", "1.5", "-0.3", "0"))
        new = [
            f"{name}c = {old.dtype}[] constant({number})",
            f"{name}b = {old.type} broadcast({name}c), dimensions={{}}",
            f"{name} = {old.type} {operator}({old.name}, {name}b)",
        ]
    line.operands[at] = name
    m.lines[line.at] = "\n".join([*("  " + text for text in new), line.text()])
    m.lines = m.text().split("\n")


def _selected(m: Mutant, name: str, old: Line, kind: str) -> list[str]:
    """Zeros or ones in the place of some of the elements of ``old``, by their number along a dim."""
    axis = m.random.randrange(len(old.sizes)) if old.dims else 0
    return [
        f"{name}i = s32[{old.dims}] " + (f"iota(), iota_dimension={axis}" if old.dims else "constant(1)"),
        f"{name}c = s32[] constant({m.random.choice((0, 1, 2, 5))})",
        f"{name}b = s32[{old.dims}] broadcast({name}c), dimensions={{}}",
        f"{name}p = pred[{old.dims}] compare({name}i, {name}b), direction={m.random.choice(_COMPARISONS)}",
        f"{name}z = {old.dtype}[] constant({m.random.choice(('0', '1')) if kind != 'pred' else 'false'})",
        f"{name}f = {old.type} broadcast({name}z), dimensions={{}}",
        f"{name} = {old.type} select({name}p, {old.name}, {name}f)",
    ]


def reader(m: Mutant, line: Line) -> None:
    """A value inside becomes a result, too."""
    root = max(at for at, text in enumerate(m.lines) if text.startswith("  ROOT "))
    if m.computation[line.at] != m.computation[root] or " tuple(" not in m.lines[root] or not family(line.dtype):
        return
    head, inner = m.lines[root].split(" = (", 1)
    types, values = inner.split(") tuple(")
    more = f"{types}, {line.type}" if types else line.type
    m.lines[root] = f"{head} = ({more}) tuple({values[:-1]}, {line.name})"


_WITH = {
    constant: {"constant"},
    opcode: {name for groups in _GROUPS.values() for group in groups for name in group},
    attribute: {
        "compare", "slice", "pad", "convolution", "reduce-window", "select-and-scatter", "reverse", "iota", "transpose",
        "broadcast", "reduce", "dot", "sort", "gather", "scatter", "concatenate",
    },
}  # fmt: skip
CHANGES = (*(constant, opcode, turned, operand, inserted) * 2, *(attribute,) * 3, reader)
"""As often as they are drawn."""
