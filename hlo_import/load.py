"""Tells the accepted module formats apart by content and hands the bytes to the reader of that format."""

import re

from neuronx_cc.hlo_import.lexer import SPACE
from neuronx_cc.hlo_import.lone import LONE
from neuronx_cc.ir import collector, hlo
from neuronx_cc.ir.errors import CompileError, UsageError

ACCEPTED = "HLO text, a serialized HloModuleProto or HloProto, or StableHLO (MLIR text, bytecode or portable artifact)"
_BYTECODE_MAGIC = b"ML\xefR"


def detect(data: bytes) -> str:
    """``text``, ``stablehlo`` or ``proto`` by the first bytes. Raises ``UsageError`` when it is neither."""
    if not data:
        raise _unknown("an empty file")
    if data.startswith(_BYTECODE_MAGIC):
        return "stablehlo"
    head = data[:65536]
    if head.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise _unknown("text with a byte order mark", "save the file as UTF-8 without a byte order mark")
    stripped = _after_comments(head)
    if stripped.startswith(b"HloModule"):
        return "text"
    if _is_text(head) and stripped.startswith((b"module", b"#", b"func.func", b'"builtin.module"', b"vhlo", b"!")):
        return "stablehlo"
    if _is_text(head) and (_COMPUTATION.match(stripped) or LONE.match(stripped.decode("utf-8", "replace"))):
        return "text"
    for magic, what in _KNOWN:
        if magic in head[: 2048 if magic == b"ustar" else len(magic)]:
            raise _unknown(what)
    if data[1024:1026] == b"\x1f\x8b":
        raise _unknown("a NEFF (a header of 1024 bytes and an archive)", "a NEFF is compiled already: run it instead")
    if _is_text(head):
        first = stripped.split(b"\n", 1)[0][:60].decode("utf-8", "replace")
        raise _unknown(f"text that begins with {first!r}" if first else "a file of blanks only")
    return "proto"


_GAP = SPACE.pattern.encode()
_COMPUTATION = re.compile(
    rb"(?:ENTRY(?![\w.\-])" + _GAP + rb")?%?[A-Za-z_][\w.\-]*+" + _GAP + rb"(?:\([^()]*:|\(" + _GAP + rb"\)|\{)",
    re.DOTALL,
)
"""What HLO text begins with when it has no header."""
_KNOWN = (
    (b"\x1f\x8b", "a gzip file"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x7fELF", "an ELF binary"),
    (b"\x89PNG", "a PNG image"),
    (b"ustar", "a tar archive, such as a NEFF"),
    (b"\x93NUMPY", "a NumPy array"),
)


def _after_comments(head: bytes) -> bytes:
    head = head.lstrip()
    while head.startswith((b"//", b"/*")):
        end = head.find(b"\n") + 1 if head.startswith(b"//") else head.find(b"*/") + 2
        if end < 2:
            return b""
        head = head[end:].lstrip()
    return head


_LAYOUT = dict.fromkeys(map(ord, "\t\r\n\f"), " ")


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as problem:
        if problem.start < len(head) - 4:
            return False
        text = head[: problem.start].decode("utf-8")
    return text.translate(_LAYOUT).isprintable()


def _unknown(what: str, remedy: str = "") -> UsageError:
    return UsageError(
        "EVRF064",
        f"expected {ACCEPTED}, found {what}",
        remedy or "write one with jax.jit(f).lower(...).compiler_ir('hlo').as_hlo_text(print_large_constants=True)",
    )


def load_module(data: bytes, source: str = "", trusted: bool = False) -> hlo.HloModule:
    """The module in ``data``, whatever its format; ``source`` is its file name for messages.

    ``trusted``: the module is jaxlib's own of this process, whose reader it does not crash.

    Raises ``CompileError`` when the module is malformed or breaks HLO's rules, ``UsageError`` when it is no module.
    """
    with collector.paused():
        return _load(data, source, trusted)


def _load(data: bytes, source: str, trusted: bool) -> hlo.HloModule:
    kind = detect(data)
    if kind == "text":
        from neuronx_cc.hlo_import.parser import parse_text

        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as problem:
            line = data.count(b"\n", 0, problem.start) + 1
            raise CompileError(
                "EVRF064", f"{source or '<hlo>'}:{line}: expected UTF-8 text, found other bytes"
            ) from None
        return parse_text(text, source)
    if kind == "stablehlo":
        from neuronx_cc.hlo_import.stablehlo import parse_stablehlo

        return parse_stablehlo(data, source, trusted)
    from neuronx_cc.hlo_import.proto import parse_proto

    return parse_proto(data, source)
