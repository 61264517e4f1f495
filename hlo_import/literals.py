"""Literals: HLO text such as ``{ { 1, 2 }, { 3, 4 } }`` <-> NumPy arrays, bit for bit.

Large literals go through NumPy's separator parser; the brace structure is compared with the one the shape demands.
"""

import re
import warnings
from typing import Any

import numpy as np

from neuronx_cc.hlo_import.lexer import COMMENT
from neuronx_cc.ir.types import COMPLEX, FLOATS, INTEGERS, NUMPY_DTYPE, Shape

Array = np.ndarray[Any, Any]

_NUMBER = re.compile(r"(?:-?\d+(?:\.\d*)?|-\.\d+)(?:[eE][-+]?\d+)?")
_WHOLE = re.compile(r"-?\d{1,4000}")
_UNUSUAL = re.compile(r"[^-+\d.eE,\sinfa]|(?<![eE])\+|(?<![-\d])\.|\d{19}")
"""What long literals of floats are read the careful way for: signs and points that XLA refuses, long numbers."""
_NAN = re.compile(r"(-?)nan\((0x[0-9a-fA-F]{1,16})\)")
_NESTING = re.compile(r"[(){},]")
_PART = r"((?:[^(),{}]|\([^(),{}]*\))*)"
_PAIR = re.compile(rf"\({_PART},{_PART}\)")
_COMMAS = re.compile(r"\([^()]*\)|[\s,]+")
_BETWEEN = re.compile(r"(?<=[^\s{(,])\s+(?=[^\s}),])|(?<=\})(?=\{)")
_TO_SPACE = str.maketrans("{}()", "    ")
_NOT_STRUCTURAL = bytes(byte for byte in range(256) if byte not in b"{},")
_WORDS = {"true": 1.0, "false": 0.0}
_CHUNK = 4096

# stored bits, exponent bits, mantissa bits of the float formats whose NaNs carry a payload
_NAN_LAYOUT = {"f16": (16, 10), "bf16": (16, 7), "f32": (32, 23), "f64": (64, 52), "f8e5m2": (8, 2)}
_INTEGER_RANGE = {
    dtype: (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype[0] == "s" else (0, (1 << bits) - 1)
    for dtype in INTEGERS
    for bits in [int(dtype[1:])]
}
_WORD_RANGE = (-(1 << 63), (1 << 64) - 1)
"""Of integers in XLA's text; those of 64 bits are taken modulo 2**64."""


class LiteralError(Exception):
    """What is wrong with a literal's text."""


def parse_literal(text: str, shape: Shape) -> Array:
    """The array that ``text`` spells, of ``shape``. Raises ``LiteralError``.

    A lone value of a larger array is its first element, and the others are 0, as XLA reads it.
    """
    if "/" in text:
        text = COMMENT.sub(" ", text)
    if "..." in text:
        raise LiteralError("elided")
    if shape.rank == 0 or ("{" not in text and shape.size):
        if "{" in text or "}" in text:
            raise LiteralError(f"expected one value of {shape.dtype} without braces")
        array = np.zeros(shape.dims, shape.numpy_dtype)
        array.reshape(-1)[:1] = _elements(text, shape.dtype, 1)
        return array
    try:
        _check_structure(text, shape)
    except LiteralError:
        if text.strip()[-1:] != "}":
            raise
        text = _with_commas(text)
        _check_structure(text, shape)
    if not shape.size:
        return np.zeros(shape.dims, shape.numpy_dtype)
    return _elements(text, shape.dtype, shape.size).reshape(shape.dims)


def _with_commas(text: str) -> str:
    """``text`` with a comma between two values and nowhere else: XLA overlooks where they stand."""
    return _BETWEEN.sub(", ", _COMMAS.sub(lambda match: match[0] if match[0][0] == "(" else " ", text))


def literal_parts(text: str) -> list[str]:
    """The values of a tuple such as ``({1, 2}, (3, 4), 5)``, each as text; raises ``LiteralError``."""
    text = COMMENT.sub(" ", text).strip()
    if text[:1] != "(" or text[-1:] != ")":
        raise LiteralError("expected a tuple of values in parentheses")
    parts, depth, start = [], 0, 1
    for match in _NESTING.finditer(text, 1, len(text) - 1):
        depth += {"(": 1, "{": 1, ")": -1, "}": -1, ",": 0}[match.group()]
        if depth < 0:
            raise LiteralError("expected a tuple of values, found one that ends early")
        if match.group() == "," and not depth:
            parts.append(text[start : match.start()])
            start = match.end()
    last = text[start:-1]
    return [*parts, last] if parts or last.strip() else []


def _check_structure(text: str, shape: Shape) -> None:
    """Compares braces and separators with those of ``shape``; the text bounds what is built for that."""
    if shape.size > len(text):
        raise LiteralError(f"expected {shape.size} elements for {shape}, found a literal of {len(text)} characters")
    if shape.dtype in COMPLEX:
        text = _PAIR.sub("", text)
    found = text.encode("utf-8", "replace").translate(None, _NOT_STRUCTURAL)
    expected = b""
    nested = shape.dims if shape.size else shape.dims[: shape.dims.index(0) + 1]
    for dim in reversed(nested):
        if dim * (len(expected) + 1) > len(found) + 2:
            expected = b"longer"
            break
        expected = b"{" + b",".join([expected] * dim) + b"}"
    if found != expected:
        groups = "{ " * min(shape.rank, 4) + "..." + " }" * min(shape.rank, 4)
        raise LiteralError(f"expected {shape.size} elements nested as {shape} demands ({groups})")


def _elements(text: str, dtype: str, count: int) -> Array:
    """The ``count`` numbers in ``text`` as a flat array of ``dtype``."""
    if dtype in COMPLEX:
        pairs = _PAIR.findall(text)
        if len(pairs) != count:
            raise LiteralError(f"expected {count} complex numbers such as (1, 2), found {len(pairs)}")
        part = "f32" if dtype == "c64" else "f64"
        flat = _elements(",".join(f"{real},{imag}" for real, imag in pairs), part, 2 * count)
        return flat.view(NUMPY_DTYPE[dtype])
    if dtype in INTEGERS and count > 64 and dtype != "u64":
        values = _fast_numbers(text, np.dtype(np.int64), count)
        if values is not None:
            return _narrow(values, dtype)
    elif dtype in FLOATS and count > 64 and not _UNUSUAL.search(text.translate(_TO_SPACE)) and "-nan" not in text:
        values = _fast_numbers(text, np.dtype(np.float64), count)
        if values is not None:
            found = _round(values, dtype)
            # what is out of range is no number any more
            if np.count_nonzero(~np.isfinite(found)) == text.count("inf") + text.count("nan"):
                return found
    words = text.replace("{", " ").replace("}", " ").split(",")
    if len(words) != count:
        if count == 0 and not text.translate(_TO_SPACE).strip():
            return np.zeros(0, NUMPY_DTYPE[dtype])
        raise LiteralError(f"expected {count} element{'s' if count != 1 else ''}, found {len(words)}")
    if dtype == "pred":
        return np.array([_truth(word.strip()) for word in words], np.bool_)
    if dtype in INTEGERS:
        return np.array([_integer(word.strip(), dtype) for word in words], _wide(dtype)).astype(NUMPY_DTYPE[dtype])
    return _floats([word.strip() for word in words], dtype)


def _fast_numbers(text: str, dtype: np.dtype[Any], count: int) -> Array | None:
    """All numbers of a long literal, or None when something in it needs the careful way (which then explains)."""
    flat = text.translate(_TO_SPACE)
    if dtype.kind == "i" and re.search(r"[^-\d,\s]|\d{19}", flat):
        return None
    # NumPy warns of text it cannot read to the end, and stops there
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        try:
            values = np.fromstring(flat, dtype=dtype, sep=",", count=-1)
        except (ValueError, DeprecationWarning):
            return None
    return values if len(values) == count else None


def _wide(dtype: str) -> np.dtype[Any]:
    return np.dtype(np.uint64 if dtype == "u64" else np.int64)


def _narrow(values: Array, dtype: str) -> Array:
    low, high = _INTEGER_RANGE[dtype]
    if values.size and (int(values.min()) < low or int(values.max()) > high):
        bad = int(values.min()) if int(values.min()) < low else int(values.max())
        raise LiteralError(f"expected values of {dtype}, between {low} and {high}, found {bad}")
    return values.astype(NUMPY_DTYPE[dtype])


def _round(values: Array, dtype: str) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(NUMPY_DTYPE[dtype])


def _truth(word: str) -> bool:
    if word in _WORDS:
        return bool(_WORDS[word])
    if _WHOLE.fullmatch(word):
        return int(word) != 0
    raise LiteralError(f"expected true, false or an integer, found {word[:40]!r}")


def _integer(word: str, dtype: str) -> int:
    if word in _WORDS:
        return int(_WORDS[word])
    if not _WHOLE.fullmatch(word):
        raise LiteralError(f"expected an integer of {dtype}, found {word[:40]!r}")
    value, (low, high) = int(word), _INTEGER_RANGE[dtype]
    if high - low == 2**64 - 1 and _WORD_RANGE[0] <= value <= _WORD_RANGE[1]:
        return (value - low) % 2**64 + low
    if not low <= value <= high:
        raise LiteralError(f"expected a value of {dtype}, between {low} and {high}, found {word}")
    return value


def _floats(words: list[str], dtype: str) -> Array:
    values = np.array([_float(word, dtype) for word in words], np.float64)
    array = _round(values, dtype)
    for index in np.flatnonzero(~np.isfinite(array)).tolist():
        if words[index][-1:] in "0123456789.":
            raise LiteralError(f"expected a value in the range of {dtype}, found {words[index][:40]}")
    # the sign and payload of a NaN do not survive conversions: set its bits
    for index, word in enumerate(words):
        if "nan" in word:
            array[index : index + 1] = _nan(word, dtype)
    return array


def _float(word: str, dtype: str) -> float:
    if _WHOLE.fullmatch(word) and len(word) > 18:
        return float(_integer(word, "s64") or word)  # -0 has its sign
    if _NUMBER.fullmatch(word):
        return float(word)
    if word in ("inf", "-inf"):
        return float(word)
    if word in ("nan", "-nan") or _NAN.fullmatch(word):
        return float("nan")
    if word in _WORDS:
        return _WORDS[word]
    raise LiteralError(f"expected a number of {dtype}, found {word[:40]!r}")


def _nan(word: str, dtype: str) -> Array:
    layout = _NAN_LAYOUT.get(dtype)
    storage = NUMPY_DTYPE[dtype]
    if layout is None:
        if "(" in word:
            raise LiteralError(f"expected a NaN without a payload in {dtype}, found {word}")
        value = np.array([np.nan]).astype(storage)
        return np.negative(value) if word.startswith("-") else value
    bits, mantissa = layout
    payload = 1 << (mantissa - 1)
    if match := _NAN.fullmatch(word):
        payload = int(match.group(2), 16)
        if not 0 < payload < 1 << mantissa:
            raise LiteralError(f"expected a NaN payload of at most {mantissa} bits that is not 0, found {word}")
    pattern = ((1 << (bits - 1 - mantissa)) - 1) << mantissa | payload
    if word.startswith("-"):
        pattern |= 1 << (bits - 1)
    return np.array([pattern], np.dtype(f"u{bits // 8}")).view(storage)


def splat_view(array: Array) -> Array:
    """``array``, as a zero-stride view of one element when all its elements have the same bits."""
    if array.size < 2 or not any(array.strides):
        return array
    flat = array.reshape(-1)
    first = flat[:1].tobytes()
    if flat[-1:].tobytes() != first:
        return array
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        if part.tobytes() != first * part.size:
            return array
    return np.broadcast_to(flat[:1].reshape(()).copy(), array.shape)


def literal_text(array: Array, dtype: str) -> str:
    """``array`` as an HLO literal that reads back bit for bit."""
    if array.ndim == 0:
        return _words(array.reshape(1), dtype)[0]
    if array.size == 0:
        return _empty_text(array.shape)
    return _nested(_words(array.reshape(-1), dtype), array.shape)


def _empty_text(dims: tuple[int, ...]) -> str:
    if len(dims) == 1 or dims[0] == 0:
        return "{}"
    return "{ " + ", ".join([_empty_text(dims[1:])] * dims[0]) + " }"


def _nested(words: list[str], dims: tuple[int, ...]) -> str:
    texts = words
    for level, dim in enumerate(reversed(dims)):
        opening, closing = ("{", "}") if level == 0 else ("{ ", " }")
        texts = [f"{opening}{', '.join(texts[start : start + dim])}{closing}" for start in range(0, len(texts), dim)]
    return texts[0]


def _words(flat: Array, dtype: str) -> list[str]:
    if dtype == "pred":
        return ["true" if value else "false" for value in flat.tolist()]
    if dtype in INTEGERS:
        return list(map(str, flat.astype(_wide(dtype)).tolist()))
    if dtype in COMPLEX:
        parts = np.ascontiguousarray(flat).view(np.float32 if dtype == "c64" else np.float64)
        words = _words(parts, "f32" if dtype == "c64" else "f64")
        return [f"({words[index]}, {words[index + 1]})" for index in range(0, len(words), 2)]
    with np.errstate(invalid="ignore"):
        values = flat.astype(np.float64)
    words = list(map(repr, values.tolist())) if dtype == "f64" else [f"{value:.9g}" for value in values.tolist()]
    for index in np.flatnonzero(np.isnan(values)).tolist():
        words[index] = _nan_text(flat[index : index + 1], dtype)
    return words


def _nan_text(value: Array, dtype: str) -> str:
    layout = _NAN_LAYOUT.get(dtype)
    if layout is None:
        return "-nan" if np.signbit(value.astype(np.float32))[0] else "nan"
    bits, mantissa = layout
    pattern = int(np.ascontiguousarray(value).view(np.dtype(f"u{bits // 8}"))[0])
    sign = "-" if pattern >> (bits - 1) else ""
    payload = pattern & ((1 << mantissa) - 1)
    return f"{sign}nan" if payload == 1 << (mantissa - 1) else f"{sign}nan(0x{payload:x})"
