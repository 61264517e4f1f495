"""HLO source text with positions: errors that show the line with a caret, and the scans the grammar is made of.

Whitespace, newlines and comments separate tokens and mean nothing else, as in XLA's own lexer.
"""

import re
from bisect import bisect_right

from neuronx_cc.ir.errors import CompileError, Loc
from neuronx_cc.ir.types import NUMPY_DTYPE

MAX_NESTING = 200
"""Deepest nesting of brackets accepted; real modules stay below 10."""

SPACE = re.compile(r"(?:[ \t\r\n]++|/\*.*?\*/|//[^\r\n]*+)*+", re.DOTALL)
UNSUPPORTED_DTYPES = frozenset(["s1", "u1", "f4e2m1fn", "f8e8m0fnu", "opaque", "buffer", "f8e4m3fnpack2", "b16"])
"""Element types XLA knows and this compiler has no storage for."""
COMMENT = re.compile(r"/\*.*?\*/|//[^\r\n]*", re.DOTALL)
NAME = r"[A-Za-z_][A-Za-z0-9_.\-]*"
IDENTIFIER = re.compile(rf"%?({NAME})")
QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.DOTALL)
RESERVED = (
    frozenset(
    ["ENTRY", "FileLocations", "FileNames", "FunctionNames", "HloModule", "ROOT", "StackFrames", "false", "inf",
     "last_tile_dim_replicate", "manual", "maximal", "nan", "replicated", "shard_as", "shard_like", "true", "unknown",
     "unreduced"]
    )
    | (NUMPY_DTYPE.keys() - {"tf32"})
    | (UNSUPPORTED_DTYPES - {"b16", "buffer", "f8e4m3fnpack2"})
)  # fmt: skip
"""Words that are no names unless ``%`` stands before them."""
_COMMENTED = re.compile(f"{QUOTED.pattern}|{COMMENT.pattern}", re.DOTALL)
_APART = re.compile(r"[\w.\-]{2}")
_STRUCTURE = re.compile(r"""[][(){}"']|/[*/]""")
_JSON = re.compile(rf"[{{}}]|{QUOTED.pattern}", re.DOTALL)
_BRACES = re.compile(rf"{_JSON.pattern}|{COMMENT.pattern}", re.DOTALL)
_ATOM = re.compile(r"""(?:[^\s,(){}"'\[\]/]|/(?![*/]))*""")
_GOES_ON = re.compile(r"[\[({<]|T\s*\(|->")
"""What may stand after a space within a value, and begins no instruction."""
_CLOSER = {"(": ")", "[": "]", "{": "}"}
_EXCERPT = 160


def without_comments(text: str) -> str:
    """``text`` without the comments outside its strings; where words would become one, a space is left."""

    def left(match: re.Match[str]) -> str:
        if match[0][0] != "/":
            return match[0]
        return (
            " " if _APART.match(text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]) else ""
        )

    return _COMMENTED.sub(left, text) if "/" in text else text


class SourceText:
    """The text of one module. ``source`` is its file name for messages ("" becomes ``<hlo>``)."""

    def __init__(self, text: str, source: str = ""):
        self.text = text
        self.source = source or "<hlo>"
        self._line_starts: list[int] | None = None

    def line_of(self, position: int) -> int:
        """1-based line of a text offset."""
        if self._line_starts is None:
            self._line_starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        return bisect_right(self._line_starts, position)

    def error(
        self, position: int, message: str, code: str = "EVRF064", remedy: str = "", loc: Loc | None = None
    ) -> CompileError:
        """A ``CompileError`` for ``position``: file, line, column, the message, the line and a caret."""
        position = min(position, len(self.text))
        line = self.line_of(position)
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        end = len(self.text) if end < 0 else end
        column = position - start
        # long lines (tuple types, constants) are cut around the caret
        cut = max(0, column - _EXCERPT // 2)
        excerpt = self.text[start + cut : min(end, start + cut + _EXCERPT)].replace("\t", " ")
        place = f"{self.source}:{line}:{column + 1}"
        shown = f"{place}: {message}\n  {excerpt}\n  {' ' * (column - cut)}^"
        return CompileError(code, shown, remedy, loc or Loc(text_line=line))

    def skip(self, position: int) -> int:
        """First position at or after ``position`` that is neither whitespace nor comment."""
        match = SPACE.match(self.text, position)
        assert match is not None
        return match.end()

    def at(self, position: int) -> str:
        """The character at ``position``; "" at the end."""
        return self.text[position : position + 1]

    def found(self, position: int) -> str:
        """What stands at ``position``, for messages."""
        position = self.skip(position)
        if position >= len(self.text):
            return "the end of the text"
        match = re.compile(r"[\w.\-%]+").match(self.text, position)
        return repr(match.group()[:60] if match else self.text[position])

    def expect(self, position: int, token: str, where: str) -> int:
        """Position after ``token``, which must come next."""
        position = self.skip(position)
        if not self.text.startswith(token, position):
            raise self.error(position, f"expected {token!r} {where}, found {self.found(position)}")
        return position + len(token)

    def identifier(self, position: int, what: str) -> tuple[str, int]:
        """The name at ``position`` without its ``%``, and the position after it."""
        position = self.skip(position)
        match = IDENTIFIER.match(self.text, position)
        if match is None or match.group() in RESERVED:
            raise self.error(position, f"expected {what}, found {self.found(position)}")
        return match.group(1), match.end()

    def json_end(self, position: int) -> int:
        """Position after the brace that closes the one at ``position``; only strings are skipped, as by XLA."""
        return self._brace_end(position, _JSON)

    def brace_end(self, position: int) -> int:
        """As ``json_end``, with comments; other brackets need not match."""
        return self._brace_end(position, _BRACES)

    def _brace_end(self, position: int, tokens: re.Pattern[str]) -> int:
        depth, scan = 0, position
        while match := tokens.search(self.text, scan):
            depth += {"{": 1, "}": -1}.get(match.group(), 0)
            scan = match.end()
            if not depth:
                return scan
        raise self.error(position, "expected a closing '}' for this bracket, found the end of the text")

    def closing(self, position: int) -> int:
        """Position after the bracket that closes the one at ``position``; quotes and comments are skipped."""
        stack = [_CLOSER[self.text[position]]]
        scan = position + 1
        while stack:
            match = _STRUCTURE.search(self.text, scan)
            if match is None:
                raise self.error(
                    position, f"expected a closing {stack[-1]!r} for this bracket, found the end of the text"
                )
            token, scan = match.group(), match.end()
            if token in "\"'":
                scan = self.quoted_end(scan - 1)
            elif token == "/*":
                scan = self.comment_end(scan - 2)
            elif token == "//":
                scan = COMMENT.match(self.text, scan - 2).end()  # type: ignore[union-attr]
            elif token in _CLOSER:
                stack.append(_CLOSER[token])
                if len(stack) > MAX_NESTING:
                    raise self.error(scan - 1, f"expected at most {MAX_NESTING} nested brackets")
            elif token != stack.pop():
                raise self.error(scan - 1, f"expected a bracket that matches, found {token!r}")
        return scan

    def quoted_end(self, position: int) -> int:
        """Position after the quoted string that starts at ``position``."""
        match = QUOTED.match(self.text, position)
        if match is None:
            raise self.error(position, "expected a closing quote for this string, found the end of the text")
        return match.end()

    def comment_end(self, position: int) -> int:
        end = self.text.find("*/", position)
        if end < 0:
            raise self.error(position, "expected '*/' to close this comment, found the end of the text")
        return end + 2

    def value_end(self, position: int) -> int:
        """Position after one attribute value: atoms, strings and bracketed groups, with spaces before brackets only."""
        length, begin = len(self.text), position
        while position < length:
            token = self.text[position]
            if token in _CLOSER:
                position = self.closing(position)
            elif token in "\"'":
                position = self.quoted_end(position)
            elif (end := _ATOM.match(self.text, position).end()) > position:  # type: ignore[union-attr]
                position = end
            elif position > begin and _GOES_ON.match(self.text, after := self.skip(position)):
                position = after
            else:
                break
        return position
