"""Reads precision policies: TOML or JSON with rules, and configurations of Intel Neural Compressor.

Input: the path of a file, or the rules themselves as JSON text. Output: the rules as JSON text, which options carry,
the NEFF records and ``policy_of`` turns into rules.

Of a configuration of that tool (YAML, JSON, TOML) ``op_type_dict`` becomes rules by opcode, ``op_name_dict`` and
``op_wise`` rules by name, in this order, so that names count more; the first of the types allowed to
activations counts. What that tool alone needs (devices, calibration, tuning) is left out.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from neuronx_cc.driver import files
from neuronx_cc.ir.errors import UsageError

if TYPE_CHECKING:
    from neuronx_cc.passes.precision.policy import Policy, Rule

LONGEST = 1 << 20
"""Bytes of a policy file."""
OPCODES = {"conv": "convolution", "matmul": "dot", "linear": "dot", "dense": "dot", "gemm": "dot"}
"""How names of op types begin or end elsewhere -> opcode."""
FOREIGN = ("op_type_dict", "op_name_dict", "op_wise")
WRAPPERS = ("mixed_precision", "quantization", "tuning")
"""Sections of such a configuration in which these keys stand."""


def canonical(word: str) -> str:
    """The rules that ``word`` names, a path or JSON text, as JSON text in one form.

    Raises UsageError EFIL901 for an unreadable file, EARG909 for one that holds no policy.
    """
    from neuronx_cc.passes.precision.policy import Policy, entries_of, rules_from

    if word.lstrip().startswith("{"):
        title, value = "the policy", _json(word, "the policy")
    else:
        title, value = word, _parsed(word)
    rules = foreign_rules(value, title) if _is_foreign(value) else rules_from(value, title)
    return json.dumps(entries_of(Policy(rules)), ensure_ascii=False, separators=(",", ":"))


def policy_of(text: str | None, kept_words: Sequence[str], weights: str | None) -> "Policy":
    """The rules of ``--quantize-weights``, ``--precision-policy`` (JSON in its one form) and ``--keep-fp32``.

    Raises UsageError EARG902 for a format of weights that there is not.
    """
    from neuronx_cc.passes.precision.policy import Policy, make_rule, rules_from

    first = (make_rule(f"--quantize-weights {weights}", weights=_format(weights)),) if weights else ()
    rules = rules_from(json.loads(text), "the policy") if text else ()
    return Policy((*first, *rules, *(kept(word) for word in kept_words)))


def _format(word: str) -> str:
    from neuronx_cc.passes.precision.quantization import FORMATS, is_format

    form = re.sub("^fp8(?=@|$)", "fp8_e4m3", word)
    if not is_format(form):
        known = f"one of {', '.join(FORMATS)}, or one with a percentile from 50 to 100: int8@99.9"
        raise UsageError("EARG902", f"--quantize-weights: no format {word[:40]!r} of weights", known)
    return form


def kept(word: str) -> "Rule":
    """The rule that ``--keep-fp32 WORD`` stands for."""
    from neuronx_cc.passes.precision.policy import make_rule

    place = re.fullmatch(r"[^|()*+?\\^$]+:\d+", word)
    chosen = {"source" if place else "either": word}
    return make_rule(f"--keep-fp32 {word}", **chosen, operands="fp32", result="fp32", weights="fp32")


def written(policy: "Policy", path: str) -> str:
    """The text of a file of this name that is read as ``policy``: TOML where it says so, else JSON."""
    from neuronx_cc.passes.precision.policy import entries_of

    entries = entries_of(policy)
    if PurePath(path).suffix.lower() != ".toml":
        return json.dumps(entries, indent=1) + "\n"
    tables = ("\n".join(f"{key} = {_quoted(value)}" for key, value in rule.items()) for rule in entries["rules"])
    return "\n\n".join(f"[[rules]]\n{table}" for table in tables) + "\n" if entries["rules"] else "rules = []\n"


def _quoted(value: str) -> str:
    """A string of TOML: one of JSON, but for a character that JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _parsed(path: str) -> Any:
    from neuronx_cc.passes.precision.policy import malformed

    data = files.read(path, "precision policy")
    if len(data) > LONGEST:
        raise malformed(f"{path} has {len(data)} bytes; a policy has {LONGEST} at most")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise malformed(f"{path} is not text") from None
    if PurePath(path).suffix.lower() in (".yaml", ".yml"):
        return _yaml(text, path)
    suffix = PurePath(path).suffix.lower()
    if suffix == ".json" or (suffix != ".toml" and text.lstrip().startswith("{")):
        return _json(text, path)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise malformed(f"{path} is no TOML: {error}") from None


def _json(text: str, title: str) -> Any:
    from neuronx_cc.passes.precision.policy import malformed

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
            raise malformed(f"{title}: {twice[:60]!r} stands twice in one table")
        return found

    try:
        return json.loads(text, object_pairs_hook=table)
    except (ValueError, RecursionError) as error:
        raise malformed(f"{title} is no JSON: {error}") from None


def _yaml(text: str, path: str) -> Any:
    from neuronx_cc.passes.precision.policy import malformed

    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise UsageError("EFIL901", f"{path}: reading YAML needs PyYAML", "pip install pyyaml, or write TOML") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise malformed(f"{path} is no YAML: {' '.join(str(error).split())[:200]}") from None


def _is_foreign(value: Any) -> bool:
    sections = [value, *(value.get(key) for key in WRAPPERS)] if isinstance(value, Mapping) else []
    return any(isinstance(section, Mapping) and any(key in section for key in FOREIGN) for section in sections)


def foreign_rules(value: Mapping[str, Any], title: str) -> tuple["Rule", ...]:
    """Rules of a configuration in the terms of Intel Neural Compressor. Raises UsageError EARG909."""
    sections = [value, *(value[key] for key in WRAPPERS if isinstance(value.get(key), Mapping))]
    return tuple(
        rule
        for key in FOREIGN
        for section in sections
        if section.get(key)
        for rule in _foreign_section(key, section[key], title)
    )


def _foreign_section(key: str, table: Any, title: str) -> Iterator["Rule"]:
    from neuronx_cc.passes.precision.policy import make_rule, malformed

    if not isinstance(table, Mapping):
        raise malformed(f"{title}: {key} is a table of ops, found {str(table)[:60]}")
    for op, choice in table.items():
        where = f"{key} {op} of {title}"
        dtype = _allowed(choice, where)
        if key == "op_type_dict":
            yield make_rule(where, opcode=_opcode(str(op)), operands=dtype, result=dtype)
        else:
            yield make_rule(where, either=str(op), operands=dtype, result=dtype)


def _allowed(choice: Any, where: str) -> str:
    """The type of the activations, else of the weights."""
    from neuronx_cc.passes.precision.policy import TYPES, malformed

    for part in ("activation", "weight"):
        section = choice.get(part) if isinstance(choice, Mapping) else None
        types = section.get("dtype") if isinstance(section, Mapping) else None
        types = [types] if isinstance(types, str) else types
        if isinstance(types, list) and types:
            if types[0] not in TYPES:
                raise malformed(f"{where}: no type {str(types[0])[:40]!r} here; there are {', '.join(TYPES)}")
            return str(types[0])
    raise malformed(f"{where}: expected a dtype of activation or weight, found {str(choice)[:60]}")


def _opcode(name: str) -> str:
    for part, opcode in OPCODES.items():
        if part in name.lower():
            return opcode
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
