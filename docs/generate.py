"""Writes pages of the documentation: the reference, from the compiler's own tables, and copies of the root's pages.

``conf.py`` calls ``write`` ahead of every build, so the pages are as new as the tables: options from
``driver/options.py``, error codes from ``driver/errors.py``, operators from ``ir/operators_table.py`` and
``driver/frontends/onnx``, instructions from ``ir/isa/table.py``, hardware numbers from ``runtime/machines/*.toml``, the
Python API from ``neuronx_cc.__all__``.
"""

import importlib
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import neuronx_cc
from neuronx_cc.driver import neuron_cc
from neuronx_cc.driver.errors import CATALOGUE
from neuronx_cc.driver.frontends.onnx.table import FAMILIES, Row, rows
from neuronx_cc.driver.options import COMMANDS, Command, Effect, Kind, Option
from neuronx_cc.driver.parse import show
from neuronx_cc.ir.isa.table import TABLE, Role
from neuronx_cc.ir.machine import Entry
from neuronx_cc.ir.operators import docs_page
from neuronx_cc.ir.targets import find_machine, names

ROOT = Path(__file__).resolve().parent.parent
EFFECTS = {
    Effect.HONOURED: "Options",
    Effect.NO_EFFECT: "Options of the vendor's compiler that have no effect here",
    Effect.UNDOCUMENTED: "Undocumented options that scripts pass; accepted with a notice",
    Effect.WRAPPER: "Options of the framework wrappers; accepted silently by this command",
}
AREAS = {
    "ARG": "Options and arguments",
    "FIL": "Files",
    "MOD": "Shapes",
    "VRF": "HLO that breaks a rule, or is not supported",
    "UOC": "Operators",
    "HCA": "Custom calls and calls of the host",
    "SMP": "Indices",
    "SFH": "64-bit integers",
    "SPP": "Element types",
    "OOM": "Device memory",
    "XSP": "On-chip memory",
    "BVF": "Program size",
    "XTP": "Program size in code generation",
    "MEM": "Host memory",
    "BIR": "Instructions",
    "REG": "Sequencer registers",
    "JAX": "The JAX backend",
    "NEF": "NEFF files",
    "OOB": "Memory accesses",
    "RUN": "Running a program",
}
"""The letters after the E of an error code -> what such codes are about; others are listed under their letters."""
GRADES = {
    "D": "documented by the vendor",
    "M": "measured by the vendor",
    "T": "measured by a third party",
    "X": "derived",
    "A": "assumed",
}
ROOT_PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
"""Pages beside the README that the site has too, in ``project/``."""
RETURNED = ("neuronx_cc.runtime.executable.Executable", "neuronx_cc.runtime.executable.RunResult",
            "neuronx_cc.runtime.report.RunReport", "neuronx_cc.driver.jax_backend.report.Run",
            "neuronx_cc.driver.jax_backend.report.Runs", "neuronx_cc.ir.errors.NeuronError",
            "neuronx_cc.ir.errors.CompileError", "neuronx_cc.ir.errors.UsageError",
            "neuronx_cc.ir.errors.RunError", "neuronx_cc.ir.errors.Loc")  # fmt: skip
"""What the functions of the API return and raise."""


def pages() -> dict[str, str]:
    """Path in the documentation -> text of every page that is made here."""
    return {
        "reference/commands.md": commands_page(),
        "reference/errors.md": errors_page(),
        "reference/operators.md": operators_page(),
        "reference/onnx.md": onnx_page(),
        "reference/instructions.md": instructions_page(),
        "reference/machine.md": machine_page(),
        "reference/python.rst": python_page(),
        **{f"project/{name.lower()}": root_page(name) for name in ROOT_PAGES},
    }


def write(folder: Path) -> None:
    """Write the pages below ``folder``; files that say the same already are left alone, so builds are incremental."""
    for name, text in pages().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def root_page(name: str) -> str:
    """A page of the root with its links as they are from ``docs/project``."""

    def moved(match: re.Match[str]) -> str:
        path = match[1]
        if path in ROOT_PAGES:
            return f"]({path.lower()})"
        return f"](../{path.removeprefix('docs/')})" if path.startswith("docs/") else match[0]

    return re.sub(r"\]\(([^)]+)\)", moved, (ROOT / name).read_text())


def commands_page() -> str:
    lines = ["# Commands and options", "", "Generated from `driver/options.py`; `--help` prints the same.", ""]
    programs: Sequence[tuple[str, Mapping[str, Command]]] = [
        ("neuronx-cc", COMMANDS),
        (neuron_cc.PROGRAM, neuron_cc.COMMANDS),
    ]
    for program, commands in programs:
        for command in commands.values():
            usage = " ".join(filter(None, [program, command.name, command.positional, "[OPTIONS]"]))
            lines += [f"## {program} {command.name}", "", f"`{usage}`", "", sentence(command.doc), ""]
            for effect, heading in EFFECTS.items():
                options = [option for option in command.options if option.effect is effect]
                if options:
                    lines += [f"### {heading}" if effect is not Effect.HONOURED else "", ""]
                    lines += table(("Option", "Values", "Default", "Meaning"), map(option_row, options))
            if command.terms:
                lines += ["### Terms", "", *table(("Term", "Meaning"), map(term_row, command.terms))]
    return "\n".join(lines) + "\n"


def term_row(row: tuple[str, str]) -> tuple[str, ...]:
    return row[0], literal(sentence(row[1]))


def option_row(option: Option) -> tuple[str, ...]:
    values = option.metavar
    if option.values and option.kind is not Kind.LEVEL:
        values = " ".join(f"`{value}`" for value in option.values)
    if option.kind is Kind.FLAG:
        values = ""
    default = "" if option.kind is Kind.FLAG or option.default in (None, ()) else f"`{show(option.default)}`"
    meaning = sentence(option.doc)
    if option.reason:
        meaning += " " + sentence(option.reason)
    if option.synonyms:
        meaning += " Also accepted: " + ", ".join(f"`{old}` for `{new}`" for old, new in option.synonyms.items()) + "."
    for code in dict.fromkeys(code for code, _ in option.refused.values()):
        values_ = " ".join(f"`{value}`" for value, (its, _) in option.refused.items() if its == code)
        meaning += f" Refused: {values_} ([{code}](#{code.lower()}))."
    return " ".join(f"`{flag}`" for flag in option.flags), values, default, literal(meaning)


def errors_page() -> str:
    lines = [
        "# Error codes",
        "",
        "Generated from `driver/errors.py`. A message names the instruction, the source line, what was expected and",
        "the remedy; this page says what a code means in general. Codes up to 899 are the vendor's, used where the",
        "meaning matches; codes from 901 on are this project's.",
        "",
    ]
    groups: dict[str, list[str]] = {}
    for code in CATALOGUE:
        letters = re.match(r"[EI]?([A-Z]+)", code)
        assert letters
        groups.setdefault(AREAS.get(letters[1], "Internal errors" if code == "INTERNAL" else letters[0]), []).append(
            code
        )
    for heading, codes in groups.items():
        lines += [f"## {heading}", ""]
        for code in sorted(codes):
            entry = CATALOGUE[code]
            lines += [f"({code.lower()})=", f"### {code}: {entry.title}", "", sentence(literal(entry.meaning)), ""]
            lines += [f"What to do: {literal(entry.remedy)}.", ""]
    return "\n".join(lines)


def operators_page() -> str:
    return docs_page()


def onnx_page() -> str:
    lines = [
        "# ONNX operators",
        "",
        "Generated from the importer's table, `driver/frontends/onnx`. What is not listed is supported if ONNX defines",
        "it as a function of other operators. *Known* are inputs that must be constants, for shapes follow from them;",
        "*since* is the opset of the oldest definition, where older ones mean something else.",
        "",
    ]
    for family, heading in FAMILIES.items():
        listed = sorted((row for row in rows().values() if row.family == family), key=lambda row: row.name)
        lines += [f"## {heading}", "", *table(("Operator", "Known", "Since", "Limits"), map(onnx_row, listed))]
    return "\n".join(lines)


def onnx_row(row: Row) -> tuple[str, ...]:
    name = f"`{row.domain}.{row.name}`" if row.domain else f"`{row.name}`"
    known = ", ".join(f"`{each}`" for each in row.static)
    return name, known, str(row.since) if row.since > 1 else "", sentence(row.note) if row.note else ""


def instructions_page() -> str:
    lines = [
        "# Instructions",
        "",
        "Generated from `ir/isa/table.py`. Operands stand as name and memories; those in brackets are optional.",
        "",
    ]
    rows = []
    for row in TABLE.values():
        streams = " ".join(sorted(stream.name.lower() for stream in row.streams))
        operators = " ".join(sorted(set().union(*row.alu))) if row.alu else ""
        rows.append((f"`{row.op}`", streams, operands(row.outs), operands(row.ins), operators, literal(row.doc)))
    return "\n".join([*lines, *table(("Mnemonic", "Streams", "Results", "Sources", "Operators", "Meaning"), rows)])


def operands(roles: Iterable[Role]) -> str:
    texts = []
    for role in roles:
        spaces = "/".join(sorted(space.name.lower() for space in role.spaces))
        texts.append(f"{role.name}:{spaces}" if not role.when else f"[{role.name}:{spaces}]")
    return ", ".join(texts)


def machine_page() -> str:
    lines = [
        "# Machine descriptions",
        "",
        "Generated from `runtime/machines/*.toml`. Every number of the hardware that the planners and the clock use is",
        "here, with its evidence: " + "; ".join(f"*{grade}* {meaning}" for grade, meaning in GRADES.items()) + ".",
        "`--set key=value` replaces one; `--machine FILE` takes a whole description.",
        "",
    ]
    base = find_machine("trn1")
    for name in ["trn1", *(name for name in names() if name != "trn1")]:
        machine = find_machine(name)
        entries = {
            key: entry for key, entry in machine.entries.items() if name == "trn1" or base.entries.get(key) != entry
        }
        lines += [f"## {name}", "", *([] if name == "trn1" else ["What differs from trn1.", ""])]
        lines += table(("Key", "Value", "Unit", "Grade", "Source"), (machine_row(*item) for item in entries.items()))
    return "\n".join(lines)


def machine_row(key: str, entry: Entry) -> tuple[str, ...]:
    value = f"{entry.value:g}" if isinstance(entry.value, float) else str(entry.value)
    return f"`{key}`", value, entry.unit, entry.grade, literal(entry.source)


def python_page() -> str:
    """In reStructuredText, which is what docstrings are written in."""
    lines = ["Python API", "==========", "", inspect.cleandoc(neuronx_cc.__doc__ or ""), ""]
    lines += ["Functions", "---------", ""]
    public = {name: getattr(neuronx_cc, name) for name in sorted(neuronx_cc.__all__)}
    functions = [name for name, value in public.items() if inspect.isroutine(value)]
    for name in functions:
        lines += [f".. autofunction:: neuronx_cc.{name}", ""]
    lines += ["Classes and exceptions", "----------------------", ""]
    classes = {value for value in public.values() if inspect.isclass(value)}
    for path in RETURNED:
        module, _, name = path.rpartition(".")
        classes.add(getattr(importlib.import_module(module), name))
    for value in sorted(classes, key=lambda value: (issubclass(value, Exception), value.__name__)):
        kind = "autoexception" if issubclass(value, Exception) else "autoclass"
        lines += [f".. {kind}:: {value.__module__}.{value.__qualname__}", "   :members:", ""]
    return "\n".join(lines)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [heads, ["---"] * len(heads), *cells]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def sentence(text: str) -> str:
    """``text`` with a capital and a full stop; options and names at its start stay as they are."""
    text = text.strip()
    start = text[:1].upper() if not re.match(r"[a-z]+[_.\d]", text) else text[:1]
    return start + text[1:] + ("" if text.endswith((".", ":", "!")) else ".")


def literal(text: str) -> str:
    """``text`` with options set as code, and without what Markdown would take for markup."""
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    text = re.sub(r"(?<![\w`-])(--[a-z][\w-]*(?:=[\w]+)?)(?![\w`])", r"`\1`", text)
    return re.sub(r"(?<![`\w])[*<](?=\w)", lambda match: "\\" + match[0], text)
