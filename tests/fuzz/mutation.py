"""Damage to bytes of any kind: bits, numbers at their limits, cuts, repeats.

Targets that know their format add to it.
"""

import random
import re
import struct

LIMITS = (0, 1, 2, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 10**6, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63)
_NUMBER = re.compile(rb"-?\d+")


def limit(draw: random.Random) -> int:
    """A number at which something may change, of either sign."""
    value = draw.choice(LIMITS) + draw.choice((-1, 0, 0, 1))
    return -value if draw.random() < 0.2 else value


def mutate(data: bytes, draw: random.Random) -> bytes:
    """``data`` with one to four pieces of damage."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        data = draw.choice(_KINDS)(data, draw)
    return data


def _flip(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return data
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def _byte(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + bytes([draw.randrange(256)]) + data[at + draw.choice((0, 1)) :]


def _word(data: bytes, draw: random.Random) -> bytes:
    """A little-endian number at its limits."""
    size, code = draw.choice(((2, "<H"), (4, "<I"), (8, "<Q")))
    at = draw.randrange(max(1, len(data) - size))
    return data[:at] + struct.pack(code, limit(draw) % (1 << 8 * size)) + data[at + size :]


def _number(data: bytes, draw: random.Random) -> bytes:
    """A number in text at its limits."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return _byte(data, draw)
    match = draw.choice(found)
    near = int(match.group()[:18]) + draw.choice((-1, 1))
    return data[: match.start()] + str(draw.choice((limit(draw), near))).encode() + data[match.end() :]


def _span(data: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randrange(len(data) + 1)
    return start, min(len(data), start + draw.choice((1, 2, 4, 8, 16, 64, 256)))


def _cut(data: bytes, draw: random.Random) -> bytes:
    start, end = _span(data, draw)
    return data[:start] + data[end:]


def _repeat(data: bytes, draw: random.Random) -> bytes:
    start, end = _span(data, draw)
    return data[:end] + data[start:end] * draw.choice((1, 1, 3, 50)) + data[end:]


def _move(data: bytes, draw: random.Random) -> bytes:
    start, end = _span(data, draw)
    at = draw.randrange(len(data) + 1)
    return data[:at] + data[start:end] + data[at:]


def _truncate(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


_KINDS = (_flip, _byte, _word, _number, _number, _cut, _repeat, _move, _truncate)
