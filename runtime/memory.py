"""The memories of one simulated core, as real bytes, and views of them.

SBUF and PSUM are [partition, byte] arrays; partitions lie 64 bytes further apart than they are long, so that equal
offsets of different partitions do not share a cache set. HBM is one flat array. All bytes start as 0xFF: NaN as
floats, -1 as integers. Constants and inputs that the program only reads are not copied: the part of HBM that they
occupy is bound to their arrays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.elements import STORAGE
from neuronx_cc.ir.isa.program import Ref, Space
from neuronx_cc.runtime.host_memory import Spares, pages
from neuronx_cc.runtime.host_memory import forget as forget_pages

Array: TypeAlias = np.ndarray[Any, Any]

PARTITIONS = 128
SBUF_BYTES = 196608
"""Physical bytes of an SBUF partition (hardware sheet 1.4)."""
PSUM_BYTES = 16384
SKEW = 64
PITCH = {Space.SBUF: SBUF_BYTES + SKEW, Space.PSUM: PSUM_BYTES + SKEW}
"""Bytes from one partition to the next."""
POISON = 0xFF
_SPARES = {space: Spares(2) for space in PITCH}


def address_of(array: Array) -> int:
    """Where an array's first byte is in the host's memory."""
    address: int = array.__array_interface__["data"][0]
    return address


class Region:
    """Part of HBM that is someone else's array: a constant, an input that the program only reads, or a result."""

    __slots__ = ("address", "array", "forget", "hi", "lo")

    def __init__(self, lo: int, hi: int) -> None:
        self.lo, self.hi = lo, hi
        self.array: Array | None = None
        self.address: int | None = None
        """Of the array."""
        self.forget: list[Callable[[], None]] = []
        """Called when views of the region become stale."""

    def bind(self, array: Array) -> None:
        """Let the region show ``array``, which is dense.

        Raises RunError ERUN914 where that is smaller: in an empty array NumPy places views without a look at its size.
        """
        if array is self.array:
            return
        if array.nbytes < self.hi - self.lo:
            raise RunError("ERUN914", f"bytes {self.lo} to {self.hi} of HBM are an array of only {array.nbytes}")
        before, self.address, self.array = self.address, address_of(array), array
        if before != self.address:
            for forget in self.forget:
                forget()

    @property
    def bytes(self) -> Array | None:
        """What the region shows."""
        return None if self.array is None else self.array.reshape(-1).view(np.uint8)


class OnChip:
    """SBUF and PSUM of one core. Programs that never run at the same time may share them."""

    def __init__(self) -> None:
        self.bytes = {space: _SPARES[space].take(PARTITIONS * pitch) for space, pitch in PITCH.items()}


class Memory:
    """SBUF, PSUM and ``hbm_bytes`` of HBM; ``regions`` of HBM are bound to arrays instead of being copied.

    ``fixed`` ranges of HBM keep what is stored in them from run to run; ``results`` are regions that runs write.
    """

    def __init__(
        self,
        hbm_bytes: int,
        regions: Sequence[tuple[int, int]] = (),
        on_chip: OnChip | None = None,
        fixed: Sequence[tuple[int, int]] = (),
        results: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.pitch = PITCH
        self.size = {Space.HBM: hbm_bytes, Space.SBUF: SBUF_BYTES, Space.PSUM: PSUM_BYTES}
        on_chip = OnChip() if on_chip is None else on_chip
        self.bytes: dict[Space, Array] = {Space.HBM: pages(hbm_bytes), **on_chip.bytes}
        # glibc keeps freed memory up to twice the largest block it has unmapped; without this, the temporaries of
        # every instruction are given back to the system and faulted in again, which costs more than the arithmetic
        np.empty(16 << 20, np.uint8)
        self.regions = {lo: Region(lo, hi) for lo, hi in (*regions, *results) if hi > lo}
        self._starts = sorted(self.regions)
        self._scratch = complement([*regions, *fixed], hbm_bytes)
        self.scratch_bytes = sum(hi - lo for lo, hi in self._scratch)
        """Bytes of HBM that runs may write."""

    def empty(self) -> None:
        """Give the host's pages behind what runs write back; the content is undefined then."""
        forget_pages(self.bytes[Space.HBM], self._scratch)

    def region(self, offset: int) -> Region | None:
        """The bound region that holds an HBM offset."""
        at = bisect_right(self._starts, offset) - 1
        found = self.regions[self._starts[at]] if at >= 0 else None
        return found if found is not None and offset < found.hi else None

    def poison(self, hbm_ranges: list[tuple[int, int]]) -> None:
        """Fill SBUF, PSUM and the given byte ranges of HBM with poison."""
        self.bytes[Space.SBUF].fill(POISON)
        self.bytes[Space.PSUM].fill(POISON)
        for lo, hi in hbm_ranges:
            self.bytes[Space.HBM][lo:hi] = POISON

    def lying(self, space: Space, dtype: str, offset: int, dims: Sequence[tuple[int, int, bool]]) -> Array:
        """A copy of what lies there: dims are (count, stride in bytes or in partitions, whether in partitions)."""
        strides = [stride * self.pitch[space] if partitions else stride for _, stride, partitions in dims]
        whole = self.bytes[space].reshape(-1)
        region = self.region(offset) if space is Space.HBM else None
        shown = None if region is None else region.bytes
        if region is not None and shown is not None:
            whole, offset = shown, offset - region.lo
        return np.ndarray([count for count, _, _ in dims], STORAGE[dtype], whole, offset, strides).copy()

    def array(self, offset: int, nbytes: int, dtype: str, dims: tuple[int, ...]) -> Array:
        """The dense array at an HBM offset."""
        region = self.region(offset)
        shown = None if region is None else region.bytes
        if region is None or shown is None:
            dense = self.bytes[Space.HBM][offset : offset + nbytes]
        else:
            dense = shown[offset - region.lo : offset - region.lo + nbytes]
        return dense.view(STORAGE[dtype]).reshape(dims)


def complement(ranges: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """The parts of ``range(size)`` that no range covers."""
    gaps, at = [], 0
    for lo, hi in sorted(ranges):
        if lo > at:
            gaps.append((at, lo))
        at = max(at, hi)
    return [*gaps, (at, size)] if at < size else gaps


class View:
    """An operand's access pattern, ready to be placed at an address."""

    __slots__ = ("_base", "_dtype", "_memory", "_shape", "_strides", "high", "low", "region")

    def __init__(self, memory: Memory, ref: Ref) -> None:
        on_chip = ref.space is not Space.HBM
        self.region = None if on_chip else memory.region(ref.offset)
        start, end = (0, memory.size[ref.space]) if self.region is None else (self.region.lo, self.region.hi)
        free = ref.dims[1:] if on_chip else ref.dims
        below = above = 0
        for count, stride in free:
            below, above = below + min(0, (count - 1) * stride), above + max(0, (count - 1) * stride)
        self.low = start - below
        """Least offset that is in bounds, and ``high`` the greatest."""
        self.high = end - STORAGE[ref.dtype].itemsize - above
        strides = tuple([stride for _, stride in free])
        if on_chip:
            if ref.partition < 0 or ref.partition + ref.dims[0][0] > PARTITIONS:
                self.high = -1
            strides = (memory.pitch[ref.space], *strides)
        self._base = ref.partition * memory.pitch[ref.space] if on_chip else -start
        self._memory = memory.bytes[ref.space]
        self._dtype, self._shape, self._strides = STORAGE[ref.dtype], ref.counts, strides

    def at(self, offset: int) -> Array:
        """The array at a byte offset. Raises IndexError out of bounds."""
        if not self.low <= offset <= self.high:
            raise IndexError(f"byte offset {offset} is outside [{self.low}, {self.high}] of an operand")
        buffer = self._memory if self.region is None else self.region.bytes
        return np.ndarray(self._shape, self._dtype, buffer, self._base + offset, self._strides)
