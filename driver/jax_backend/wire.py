"""Writes fields of protocol buffers: enough for the few messages that jaxlib is handed."""

import struct


def varint(value: int) -> bytes:
    """A base-128 number, least significant digits first."""
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def number(field: int, value: int) -> bytes:
    """A field of a whole number, which is not negative."""
    return varint(field << 3) + varint(value)


def message(field: int, value: bytes) -> bytes:
    """A field of a message or of bytes."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A field of text."""
    return message(field, value.encode())


def double(field: int, value: float) -> bytes:
    """A field of a number of 64 bits."""
    return varint(field << 3 | 1) + struct.pack("<d", value)
