"""Help texts, made from the option table."""

import shutil
import textwrap
from collections.abc import Mapping

from neuronx_cc.driver.options import Command, Effect, Kind, Option
from neuronx_cc.driver.parse import show

_HEADINGS = {
    Effect.HONOURED: "options",
    Effect.NO_EFFECT: "options of the vendor's compiler without effect here",
    Effect.UNDOCUMENTED: "undocumented options that scripts pass, accepted with a notice",
    Effect.WRAPPER: "options of the framework wrappers, accepted silently",
}


def overview(program: str, commands: Mapping[str, Command]) -> str:
    """``PROGRAM --help``."""
    lines = [f"usage: {program} COMMAND [OPTIONS] [FILE]", "", "commands:"]
    for command in commands.values():
        lines += _entry(command.name, command.doc)
    lines += [
        "",
        f"{program} COMMAND --help describes every option of a command; {program} --version prints versions.",
        "Options stand before or after the file; the right-most of contradicting ones wins.",
        "exit status: 0 success, 1 run failed, 2 wrong usage, 70 compile failed, 130 interrupted.",
    ]
    return "\n".join(lines)


def command_help(program: str, command: Command) -> str:
    """``PROGRAM COMMAND --help``: every option with values, default and effect."""
    positional = f" {command.positional}" if command.positional else ""
    lines = [f"usage: {program} {command.name}{positional} [OPTIONS]", "", *textwrap.wrap(command.doc, _width())]
    for effect, heading in _HEADINGS.items():
        rows = [option for option in command.options if option.effect is effect]
        if rows:
            lines += ["", f"{heading}:"]
            for option in rows:
                lines += _entry(_usage(option), _describe(option))
    if command.terms:
        lines += ["", "terms:"]
        for term, meaning in command.terms:
            lines += _entry(term, meaning)
    return "\n".join(lines)


def _usage(option: Option) -> str:
    spellings = ", ".join(option.flags)
    if option.kind is Kind.FLAG:
        return spellings
    if option.metavar:
        return f"{spellings} {option.metavar}"
    if option.values:
        return f"{spellings} {{{', '.join(option.values)}}}"
    return f"{spellings} VALUE"


def _describe(option: Option) -> str:
    text = option.doc
    if option.synonyms:
        text += f" (also accepted: {', '.join(f'{old} = {new}' for old, new in option.synonyms.items())})"
    if option.reason and option.effect is Effect.NO_EFFECT:
        text += f"; {option.reason}"
    if option.kind is not Kind.FLAG and option.default not in (None, ()):
        text += f" [default {show(option.default)}]"
    return text


def _entry(left: str, text: str) -> list[str]:
    body = textwrap.wrap(text, _width(), initial_indent=" " * 26, subsequent_indent=" " * 26, break_on_hyphens=False)
    if len(left) <= 22 and body:
        return [f"  {left:<24}{body[0].strip()}", *body[1:]]
    return [
        *textwrap.wrap(left, _width(), initial_indent="  ", subsequent_indent=" " * 6, break_on_hyphens=False),
        *body,
    ]


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 110)
