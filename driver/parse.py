"""Reads a command line, or Python keywords, by the rows of ``options.py``.

Rules: the right-most of repeated or contradicting options wins; ``--option value`` and ``--option=value``; options
stand before or after the files, and even before the command; ``-O1``, ``-O 1`` and ``-O=1``. Whatever does not fit
is a ``UsageError`` that names the closest thing that would.
"""

import difflib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neuronx_cc.driver import policy_file
from neuronx_cc.driver.options import LEVELS, Command, Effect, Kind, Option, Value
from neuronx_cc.ir.errors import UsageError

_WHOLE = re.compile(r"[0-9]{1,20}")
"""As many digits as 64 bits take."""
_LEVEL = re.compile(f"{_WHOLE.pattern}|" + "|".join(LEVELS), re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+")


@dataclass(slots=True)
class Parsed:
    """Effective values of one command, by ``Option.key``, and the files it was given."""

    command: Command
    values: dict[str, Value]
    files: list[str] = field(default_factory=list)
    given: dict[str, tuple[str, Option]] = field(default_factory=dict)
    """Key -> the spelling that set it last, and its row."""

    def text(self, key: str) -> str:
        value = self.values[key]
        assert isinstance(value, str), key
        return value

    def text_or_none(self, key: str) -> str | None:
        return None if self.values[key] is None else self.text(key)

    def flag(self, key: str) -> bool:
        value = self.values[key]
        assert isinstance(value, bool), key
        return value

    def integer(self, key: str) -> int:
        value = self.values[key]
        assert isinstance(value, int), key
        return value

    def integer_or_none(self, key: str) -> int | None:
        return None if self.values[key] is None else self.integer(key)

    def names(self, key: str) -> tuple[str, ...]:
        value = self.values[key]
        assert value is None or isinstance(value, tuple), key
        return value or ()

    def recorded(self) -> dict[str, Value]:
        """The options that decide the program, in the order of the table: for the NEFF and reproducers."""
        return {
            option.key: self.values[option.key]
            for option in self.command.options
            if option.recorded and option.key in self.values
        }

    def notices(self) -> list[str]:
        """One sentence for each documented option without effect, one for all the undocumented ones."""
        lines = []
        quiet = []
        for key, (spelling, option) in self.given.items():
            if option.effect is Effect.NO_EFFECT and self.values[key] != option.default:
                lines.append(f"{spelling} has no effect here: {option.reason}")
            elif option.effect is Effect.UNDOCUMENTED:
                quiet.append(spelling)
        if quiet:
            lines.append(f"accepted without effect (undocumented options): {', '.join(quiet)}")
        return lines

    def explain(self) -> list[str]:
        """Every effective option: value, where it came from, what it does here."""
        lines = []
        seen = set()
        for option in self.command.options:
            if option.key in seen or (option.effect in _SILENT and option.key not in self.given):
                continue
            seen.add(option.key)
            origin = self.given[option.key][0] if option.key in self.given else "default"
            effect = "" if option.effect is Effect.HONOURED else f"; {option.effect.value}"
            lines.append(f"{option.key} = {show(self.values[option.key])}  ({origin}{effect})")
        return lines


_ADDING = (Kind.ASSIGNMENTS, Kind.REPEATED)
"""Kinds whose values add up when they are repeated."""
_SILENT = (Effect.UNDOCUMENTED, Effect.WRAPPER)


def show(value: Value) -> str:
    """An option value as the command line writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(value) or "-"
    return "-" if value is None else str(value)


def closest(word: str, known: Iterable[str]) -> str:
    """``; did you mean X?`` or nothing."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""


def split_flags(text: str) -> list[str]:
    """Words of an option string such as ``NEURON_CC_FLAGS``; quotes as in a shell."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError("EARG902", f"cannot split the option string {text!r}: {error}", "balance the quotes") from None


def parse(argv: Sequence[str], command: Command) -> Parsed:
    """Options and files of ``argv`` (the command word already taken out)."""
    parsed = _defaults(command)
    for option, spelling, words in _scan(argv, _index(command.options)):
        if option is None:
            parsed.files.append(spelling)
        else:
            _store(parsed, option, spelling, _convert(option, spelling, words))
    if len(parsed.files) > command.max_files:
        extra = parsed.files[command.max_files]
        values = [value for option in command.options for value in option.values]
        raise UsageError(
            "EARG903",
            f"{command.name} takes {_count(command)}, found {len(parsed.files)}: {' '.join(parsed.files)}"
            f"{closest(extra, values)}",
            f"see {command.name} --help",
        )
    _refuse(parsed)
    return parsed


def rows_of(parsed: Parsed, default: int) -> int | None:
    """The rows of tables that ``--top`` and ``--all`` ask for; None: all."""
    top = parsed.integer_or_none("top")
    return None if parsed.flag("all") else default if top is None else top


def require_files(parsed: Parsed, program: str = "neuronx-cc") -> None:
    """Raise ``UsageError`` when the command lacks its files."""
    command = parsed.command
    if len(parsed.files) < command.min_files:
        raise UsageError(
            "EARG903", f"{command.name} needs {_count(command)}", f"{program} {command.name} {command.positional}"
        )


def find_command(argv: Sequence[str], commands: Mapping[str, Command]) -> int | None:
    """Position of the command word: the first word that is neither an option nor an option's value."""
    index = {}
    for command in reversed(list(commands.values())):
        index.update(_index(command.options))
    position = 0
    while position < len(argv):
        word = argv[position]
        if not word.startswith("-") or word == "-":
            return position
        option, _, inline = _resolve(word, index)
        # an unknown option is reported by the command's own parse; here it counts as one word
        position += 1 if option is None else len(_take(option, inline, argv[position + 1 :])[1]) + 1
    return None


def from_keywords(command: Command, keywords: Mapping[str, object], base: Parsed | None = None) -> Parsed:
    """Options given as Python keywords: keys as the long options with underscores, or ``Option.key``.

    Flags take booleans, comma lists also sequences of strings. The last keyword wins, as on the command line.
    ``base`` has options that came before; it is changed.
    """
    parsed = _defaults(command) if base is None else base
    rows: dict[str, Option] = {}
    for option in command.options:
        rows.setdefault(option.key, option)
        for spelling in option.flags:
            rows[spelling.lstrip("-").replace("-", "_")] = option
    for key, value in keywords.items():
        row = rows.get(key)
        if row is None:
            raise UsageError("EARG901", f"unknown option {key!r}{closest(key, rows)}", "see neuronx-cc compile --help")
        if row.kind is Kind.FLAG:
            if not isinstance(value, bool):
                raise UsageError("EARG902", f"{key} is a flag and takes True or False, found {value!r}")
            # under its own spelling a flag says whether it is given, under the shared key what it sets
            _store(parsed, row, key, value if key == row.key else row.const == value)
        elif (value is None and row.default is None) or (row.kind in _ADDING and not value):
            _store(parsed, row, key, row.default)
        else:
            _store(parsed, row, key, _convert(row, key, _as_words(key, row, value)))
    _refuse(parsed)
    return parsed


def _as_words(key: str, option: Option, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, int) and not isinstance(value, bool):
        return (str(value),)
    if hasattr(value, "__fspath__"):
        return (str(value),)
    if isinstance(value, Mapping) and option.kind is Kind.ASSIGNMENTS:
        return tuple(f"{name}={item}" for name, item in value.items())
    if isinstance(value, Mapping) and option.kind is Kind.POLICY:
        return (json.dumps(value, default=str),)
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return (",".join(value),) if option.kind is Kind.NAMES else tuple(value)
    raise UsageError("EARG902", f"{key} cannot take a {type(value).__name__}: {value!r}")


def _defaults(command: Command) -> Parsed:
    return Parsed(command, {option.key: option.default for option in command.options})


def _index(options: Iterable[Option]) -> dict[str, Option]:
    return {flag: option for option in options for flag in option.flags}


def _scan(argv: Sequence[str], index: Mapping[str, Option]) -> Iterator[tuple[Option | None, str, tuple[str, ...]]]:
    """(row, spelling, words) for each option, (None, file, ()) for each file."""
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        if word == "--":
            yield from ((None, file, ()) for file in argv[position:])
            return
        if not word.startswith("-") or word == "-":
            yield None, word, ()
            continue
        option, spelling, inline = _resolve(word, index)
        if option is None:
            raise UsageError(
                "EARG901", f"unknown option {spelling}{closest(spelling, index)}", "the options are listed by --help"
            )
        words, taken = _take(option, inline, argv[position:])
        position += len(taken)
        yield option, spelling, words


def _resolve(word: str, index: Mapping[str, Option]) -> tuple[Option | None, str, str | None]:
    """Row, spelling and inline value of a word that starts with a dash."""
    if word in index:
        return index[word], word, None
    head, equals, value = word.partition("=")
    if equals and head in index:
        return index[head], head, value
    if re.fullmatch(r"-O\d+", word) and "-O" in index:
        return index["-O"], "-O", word[2:]
    return None, head, value if equals else None


def _take(option: Option, inline: str | None, rest: Sequence[str]) -> tuple[tuple[str, ...], Sequence[str]]:
    """Value words of an option, and those of ``rest`` that it consumed."""
    first = () if inline is None else (inline,)
    if option.kind is Kind.FLAG:
        return first, ()
    if option.kind is Kind.LEVEL and inline is None:
        taken = rest[:1] if rest and _LEVEL.fullmatch(rest[0]) else []
        return tuple(taken), taken
    if option.kind is Kind.WORDS:
        words = list(first or rest[:1])
        used = 0 if first else len(words)
        while used < len(rest) and rest[used] in option.values and rest[used] not in words:
            words.append(rest[used])
            used += 1
        return tuple(words), rest[:used]
    if inline is None and rest and (option.kind is Kind.QUOTED or not _is_option(rest[0])):
        return (rest[0],), rest[:1]
    return first, ()


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NUMBER.fullmatch(word)


def _convert(option: Option, spelling: str, words: tuple[str, ...]) -> Value:
    """The value that ``words`` give to ``option``."""
    if option.kind is Kind.FLAG:
        if words and option.effect not in _SILENT:
            raise UsageError("EARG902", f"{spelling} takes no value, found {words[0]!r}")
        return option.const
    if option.kind is Kind.LEVEL:
        word = words[0].lower() if words else "info"
        if not _LEVEL.fullmatch(word):
            raise _bad_value(option, spelling, word)
        return LEVELS[word] if word in LEVELS else int(word)
    if not words or (not words[0] and option.kind is not Kind.QUOTED):
        raise UsageError(
            "EARG902",
            f"{spelling} needs a value",
            f"{spelling} {_metavar(option)}; write {spelling}=VALUE if the value starts with a dash",
        )
    word = words[0]
    if option.kind is Kind.CHOICE:
        return _choose(option, spelling, word)
    if option.kind is Kind.INTEGER:
        if not _WHOLE.fullmatch(word):
            raise UsageError("EARG902", f"{spelling} takes a whole number of at most 20 digits, found {word!r}")
        return int(word)
    if option.kind is Kind.NAMES:
        names = tuple(name for name in (part.strip() for part in word.split(",")) if name)
        return tuple(_choose(option, spelling, name) for name in names) if option.values else names
    if option.kind is Kind.WORDS:
        return tuple(_choose(option, spelling, item) for item in words) if option.effect not in _SILENT else words
    if option.kind is Kind.POLICY:
        return policy_file.canonical(word)
    if option.kind is Kind.REPEATED:
        return words
    if option.kind is Kind.ASSIGNMENTS:
        for item in words:
            if "=" not in item.strip("="):
                raise UsageError("EARG902", f"{spelling} takes KEY=VALUE, found {item!r}")
        return words
    return word


def _choose(option: Option, spelling: str, word: str) -> str:
    for value in (*option.values, *option.refused):
        if word.casefold() == value.casefold():
            return value
    if word in option.synonyms:
        return option.synonyms[word]
    raise _bad_value(option, spelling, word)


def _bad_value(option: Option, spelling: str, word: str) -> UsageError:
    return UsageError(
        "EARG902",
        f"{spelling} does not take {word!r}{closest(word, option.values)}",
        f"one of: {', '.join(option.values)}",
    )


def _store(parsed: Parsed, option: Option, spelling: str, value: Value) -> None:
    if option.kind in _ADDING and isinstance(value, tuple):
        value = (*parsed.names(option.key), *value)
    parsed.values[option.key] = value
    parsed.given.pop(option.key, None)
    parsed.given[option.key] = (spelling, option)


def _refuse(parsed: Parsed) -> None:
    """Only the value that wins can be refused."""
    for key, (spelling, option) in parsed.given.items():
        value = parsed.values[key]
        if isinstance(value, str) and value in option.refused:
            code, sentence = option.refused[value]
            raise UsageError(code, f"{spelling} {value}: {sentence}", f"one of: {', '.join(option.values)}")


def _metavar(option: Option) -> str:
    return option.metavar or ("|".join(option.values) if option.kind is Kind.CHOICE else option.kind.name)


def _count(command: Command) -> str:
    if command.max_files > 1:
        return f"1 to {command.max_files} files, {command.positional}"
    return "no file" if command.max_files == 0 else f"one {command.positional}"
