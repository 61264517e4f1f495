"""The memories of one simulated core, as real bytes, and views of them.

SBUF and PSUM are [partition, byte] arrays; partitions lie 64 bytes further apart than they are long, so that equal
offsets of different partitions do not share a cache set. HBM is one flat array. All bytes start as 0xFF: NaN as
floats, -1 as integers.
"""

from typing import Any, TypeAlias

import numpy as np

from neuronx_cc.ir.isa.elements import STORAGE
from neuronx_cc.ir.isa.program import Ref, Space

Array: TypeAlias = np.ndarray[Any, Any]

PARTITIONS = 128
SBUF_BYTES = 196608
"""Physical bytes of an SBUF partition (hardware sheet 1.4)."""
PSUM_BYTES = 16384
SKEW = 64
POISON = 0xFF


class Memory:
    """SBUF, PSUM and ``hbm_bytes`` of HBM."""

    def __init__(self, hbm_bytes: int) -> None:
        self.pitch = {Space.SBUF: SBUF_BYTES + SKEW, Space.PSUM: PSUM_BYTES + SKEW}
        self.size = {Space.HBM: hbm_bytes, Space.SBUF: SBUF_BYTES, Space.PSUM: PSUM_BYTES}
        self.bytes: dict[Space, Array] = {
            Space.HBM: np.empty(hbm_bytes, np.uint8),
            Space.SBUF: np.empty(PARTITIONS * self.pitch[Space.SBUF], np.uint8),
            Space.PSUM: np.empty(PARTITIONS * self.pitch[Space.PSUM], np.uint8),
        }

    def poison(self, hbm_ranges: list[tuple[int, int]]) -> None:
        """Fill SBUF, PSUM and the given byte ranges of HBM with poison."""
        self.bytes[Space.SBUF].fill(POISON)
        self.bytes[Space.PSUM].fill(POISON)
        for lo, hi in hbm_ranges:
            self.bytes[Space.HBM][lo:hi] = POISON

    def array(self, offset: int, nbytes: int, dtype: str, dims: tuple[int, ...]) -> Array:
        """The dense array at an HBM offset."""
        dense: Array = self.bytes[Space.HBM][offset : offset + nbytes]
        return dense.view(STORAGE[dtype]).reshape(dims)


class View:
    """An operand's access pattern, ready to be placed at an address. ``fits`` tells whether an offset is in bounds."""

    __slots__ = ("_base", "_buffer", "_cache", "_dtype", "_shape", "_strides", "high", "low")

    def __init__(self, memory: Memory, ref: Ref) -> None:
        on_chip = ref.space is not Space.HBM
        itemsize = STORAGE[ref.dtype].itemsize
        free = ref.dims[1:] if on_chip else ref.dims
        reach = [(count - 1) * stride for count, stride in free]
        self.low = -sum(min(r, 0) for r in reach)
        """Least offset that is in bounds, and ``high`` the greatest."""
        self.high = memory.size[ref.space] - itemsize - sum(max(r, 0) for r in reach)
        strides = tuple(stride for _, stride in free)
        if on_chip:
            if ref.partition < 0 or ref.partition + ref.dims[0][0] > PARTITIONS:
                self.high = -1
            strides = (memory.pitch[ref.space], *strides)
        self._base = ref.partition * memory.pitch[ref.space] if on_chip else 0
        self._buffer = memory.bytes[ref.space]
        self._dtype, self._shape, self._strides = STORAGE[ref.dtype], ref.counts, strides
        self._cache: dict[int, Array] = {}

    def at(self, offset: int) -> Array:
        """The array at a byte offset. Raises IndexError out of bounds."""
        found = self._cache.get(offset)
        if found is not None:
            return found
        if not self.low <= offset <= self.high:
            raise IndexError(f"byte offset {offset} is outside [{self.low}, {self.high}] of an operand")
        array: Array = np.ndarray(self._shape, self._dtype, self._buffer, self._base + offset, self._strides)
        if len(self._cache) < 4096:
            self._cache[offset] = array
        return array
