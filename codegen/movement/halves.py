"""Exact transposes on TensorE: values as such where that is allowed, else the parts of their bit patterns.

TensorE transposes by multiplying with ones and zeros, so that an infinity or NaN would spread over its 128 rows
(hardware sheet 2.3); the parts of their bit patterns are ordinary integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32_PSUM, Tile, Timing, Work
from neuronx_cc.ir.types import itemsize

HALVES = {4: ("u16", "f32"), 2: ("u8", "bf16"), 1: ("u8", "bf16")}
"""Bytes of an element -> (integer type of its parts, float type that holds them exactly)."""


def carrier_of(dtype: str, fast: bool) -> str:
    """The type in which TensorE transposes values of ``dtype``; ``fast``: as such."""
    return dtype if fast else HALVES[itemsize(dtype)][1]


def transposing(timing: Timing, rows: int, columns: int, dtype: str, fast: bool) -> Work:
    """Of a transpose of [``rows``, ``columns``], at most the array's; ``fast``: as values."""
    if fast:
        return timing.transpose(rows, columns, dtype)
    part, carrier = HALVES[itemsize(dtype)]
    plane = Tile(part, stride=itemsize(dtype))
    taken = timing.engine("tensor_copy", Stream.VECTOR, columns, (Tile(carrier),), (plane,))
    left = timing.engine("tensor_copy", Stream.VECTOR, rows, (plane,), (F32_PSUM,))
    each = timing.product(columns, rows, carrier) + taken + left
    return each.times(itemsize(dtype) // itemsize(part))


def part_of(block: Block, part: str, byte: int) -> Block:
    """Of each element of ``block`` the part of type ``part`` that begins with its byte ``byte``."""
    return Block(block.alloc, part, block.offset + byte, block.dims, block.partition)


def halves_of(
    block: Block, room: Callable[[str, int], Block], move: Callable[[Block, Block], None]
) -> Iterator[tuple[Block, str, int]]:
    """Blocks that TensorE carries exactly, the type of the parts that they hold, and their byte in an element.

    ``room(carrier, number)``: where a part goes, as values of type ``carrier``, in the dims of ``block``;
    ``move(target, source)`` copies and converts.
    """
    part, carrier = HALVES[itemsize(block.dtype)]
    width = itemsize(part)
    for number in range(itemsize(block.dtype) // width):
        plane = room(carrier, number)
        move(plane, part_of(block, part, number * width))
        yield plane, part, number * width
