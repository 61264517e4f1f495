"""Precision policies: ordered rules that choose ops and say in which types they compute. The last match wins.

A rule chooses ops by all of its patterns at once:

* ``name``, ``op_name``: regular expressions, found anywhere in the instruction's name, and in the path that the
  framework gave the op (``jit(f)/layer_3/attention/dot_general``); ``either``: in one of the two. In a function that is
  called several times an instruction also has the names of the calls ahead of its own, ``call.7/dot.5``;
* ``opcode``: an opcode, or a glob of opcodes; ``shape``: a glob of the result (``f32[128,*]``);
* ``source``: ``file`` or ``file:line``, a glob of the path or of its end (``model.py:31``); that of a call, or of a
  loop, stands for all in it.

It sets ``operands``, the type that the operands of a contraction are rounded to; ``result``, the type of what any op
computes; ``accumulate``, whether a reduction sums in FP32 or in the type of its result; ``weights``, the format that a
constant operand of a dot is stored in, with a percentile (``int8@99.9``) or without. Types are those of
``--auto-cast-type``, and ``fp32``.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.passes.precision.quantization import is_format

TYPES = {"bf16": "bf16", "fp16": "f16", "tf32": "tf32", "fp8_e4m3": "f8e4m3", "fp32": "f32"}
"""What policies and ``--auto-cast-type`` call a type -> element type, or tf32."""
LONGEST, SHOWN = 60, 5
"""Characters of a pattern that messages have, and names that they list where none is near."""
PATTERNS = ("name", "op_name", "either", "opcode", "source", "shape")
SETTINGS = {
    "operands": tuple(TYPES),
    "result": tuple(TYPES),
    "accumulate": ("fp32", "result"),
    "weights": ("int8", "fp8_e4m3", "fp32"),
}


@dataclass(frozen=True)
class Rule:
    """One rule; an empty pattern matches every op, an empty setting leaves it as it is."""

    title: str
    """How messages and reports call it."""
    name: str = ""
    op_name: str = ""
    either: str = ""
    opcode: str = ""
    source: str = ""
    shape: str = ""
    operands: str = ""
    result: str = ""
    accumulate: str = ""
    weights: str = ""

    @cached_property
    def _expressions(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(text) for text in (self.name, self.op_name, self.either))

    def matches(self, op: hlo.HloOp) -> bool:
        loc, place = op.loc, self.source
        name, op_name, either = self._expressions
        return bool(
            (not self.opcode or fnmatchcase(op.opcode, self.opcode))
            and (not self.name or name.search(loc.name) or name.search(loc.path))
            and (not self.op_name or op_name.search(loc.op_name))
            and (not self.either or any(map(either.search, (loc.name, loc.path, loc.op_name))))
            and (not place or any(_at(place, each) for each in loc.places))
            and (not self.shape or fnmatchcase(_shape(op), _literal_brackets(self.shape)))
        )

    def described(self) -> str:
        """Title, patterns and settings in one line."""
        parts = {key: value for key, value in asdict(self).items() if value and key != "title"}
        return f"{self.title} ({', '.join(f'{key} {value}' for key, value in parts.items())})"


def _shape(op: hlo.HloOp) -> str:
    """Element type and dims of an array result, else nothing."""
    type_ = op.results[0].type
    return str(type_.data) if isinstance(type_, hlo.ArrayType) else ""


def _at(pattern: str, place: str) -> bool:
    """Whether the source place, or its end from a folder on, is what the glob says; a line may be left out."""
    places = (place, place.rpartition(":")[0])
    return any(fnmatchcase(each, form) for each in places if each for form in (pattern, f"*/{pattern}"))


def _literal_brackets(glob: str) -> str:
    """Shapes are written with brackets, which a glob takes for sets of characters."""
    return glob.replace("[", "\0").replace("]", "[]]").replace("\0", "[[]")


@dataclass(frozen=True)
class Policy:
    """Rules in order."""

    rules: tuple[Rule, ...] = ()

    def tells_apart(self, opcodes: Iterable[str]) -> bool:
        """Whether a rule is for some of these opcodes and not for others."""
        return any(len({fnmatchcase(each, rule.opcode) for each in opcodes}) > 1 for rule in self.rules if rule.opcode)

    def choice(self, op: hlo.HloOp, setting: str) -> tuple[str, str] | None:
        """What the last matching rule that has ``setting`` says of it, and the rule's description."""
        for rule in reversed(self.rules):
            value: str = getattr(rule, setting)
            if value and rule.matches(op):
                return value, rule.described()
        return None

    def sets(self, setting: str) -> bool:
        return any(getattr(rule, setting) for rule in self.rules)

    def check(self, module: hlo.HloModule, inlined: Callable[[hlo.HloModule], hlo.HloModule]) -> None:
        """Raise UsageError EARG910 for a rule that matches no op of ``module`` (as imported).

        ``inlined`` gives the module with its calls inlined, in which ops have the whole paths that JAX has for them.
        """
        missing = list(self.unused(module))
        if not missing:
            return
        whole = inlined(module)
        ops = [*_ops(module), *_ops(whole)]
        for rule in Policy(tuple(missing)).unused(whole):
            raise UsageError("EARG910", f"{rule.described()[:500]} matches no op of the module", _near(rule, ops))

    def unused(self, module: hlo.HloModule) -> Iterator[Rule]:
        """Rules that match no op of ``module``."""
        ops = list(_ops(module)) if self.rules else []
        return (rule for rule in self.rules if not any(rule.matches(op) for op in ops))


NO_RULES = Policy()


def _ops(module: hlo.HloModule) -> Iterator[hlo.HloOp]:
    return (op for computation in module.computations() for op in ops_of(computation.block))


def _near(rule: Rule, ops: Iterable[hlo.HloOp]) -> str:
    """Values of the module that are like the patterns of ``rule``."""
    seen: dict[str, dict[str, None]] = {key: {} for key in ("name", "op_name", "opcode", "source", "shape")}
    for op in ops:
        found = {
            "name": (op.loc.path,),
            "op_name": (op.loc.op_name,),
            "opcode": (op.opcode,),
            "source": tuple(place.rpartition("/")[2] for place in op.loc.places),
            "shape": (_shape(op),),
        }
        for key, values in found.items():
            seen[key] |= dict.fromkeys(values)
    seen["either"] = seen["name"] | seen["op_name"]
    hints = []
    for key in PATTERNS:
        if pattern := getattr(rule, key):
            known, word = [value for value in seen[key] if value], "name or path" if key == "either" else key
            close = difflib.get_close_matches(pattern[:LONGEST], known, n=3, cutoff=0.4)
            some = f"; there are {', '.join(known[:SHOWN])}{', ...' * (len(known) > SHOWN)}" if known else ""
            near = f"no {word} is like {pattern[:LONGEST]!r}{some}"
            hints.append(f"near {word.replace(' or ', 's or ')}s are {', '.join(close)}" if close else near)
    return "; ".join(hints)


def rules_from(entries: Any, title: str) -> tuple[Rule, ...]:
    """Rules of parsed TOML or JSON, ``{"rules": [{...}, ...]}``. Raises UsageError EARG909 for any other form."""
    if not isinstance(entries, Mapping) or set(entries) != {"rules"} or not isinstance(entries["rules"], list):
        keys = ", ".join(map(str, entries)) if isinstance(entries, Mapping) else f"{str(entries)[:60]} in its place"
        found = f"{str(entries['rules'])[:60]} as rules" if keys == "rules" else keys[:200]
        raise malformed(f"{title}: expected one list, rules, found {found or 'nothing'}")
    return tuple(_rule(entry, f"rule {number} of {title}") for number, entry in enumerate(entries["rules"], 1))


def _rule(entry: Any, title: str) -> Rule:
    keys = (*PATTERNS, *SETTINGS)
    if not isinstance(entry, Mapping):
        raise malformed(f"{title}: expected a table, found {str(entry)[:60]}")
    for key, value in entry.items():
        if key not in keys:
            close = difflib.get_close_matches(str(key), keys, n=1)
            raise malformed(f"{title}: unknown key {str(key)[:60]!r}{f'; did you mean {close[0]}?' if close else ''}")
        if not isinstance(value, str) or not value:
            raise malformed(f"{title}: {key} takes text, found {str(value)[:60]!r}")
        if key in SETTINGS and value not in SETTINGS[key] and not (key == "weights" and is_format(value)):
            raise malformed(f"{title}: {key} is one of {', '.join(SETTINGS[key])}, found {value[:60]!r}")
    if not any(key in entry for key in SETTINGS):
        raise malformed(f"{title} sets none of {', '.join(SETTINGS)}")
    return make_rule(title, **entry)


def make_rule(title: str, **values: str) -> Rule:
    """A rule whose expressions compile. Raises UsageError EARG909."""
    for key in ("name", "op_name", "either"):
        try:
            re.compile(values.get(key, ""))
        except (re.error, RecursionError, OverflowError) as error:
            raise malformed(f"{title}: {key} is no regular expression: {error}") from None
    return Rule(title, **values)


def malformed(message: str) -> UsageError:
    keys = f"a rule has the patterns {', '.join(PATTERNS)} and the settings {', '.join(SETTINGS)}"
    return UsageError("EARG909", message, keys)


def entries_of(policy: Policy) -> dict[str, list[dict[str, str]]]:
    """The opposite of ``rules_from``."""
    names = [column.name for column in fields(Rule) if column.name != "title"]
    return {"rules": [{name: value for name in names if (value := getattr(rule, name))} for rule in policy.rules]}
