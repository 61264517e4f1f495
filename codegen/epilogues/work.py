"""An epilogue as plans see it: a frozen value. Equal ones, of equal problems, are planned once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Tile, Timing, Work, total


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction, on a tile of any size: operands as in ``Timing.engine``, without those of one value a
    partition.
    """

    op: str
    stream: Stream
    outs: tuple[Tile, ...]
    ins: tuple[Tile, ...]
    alu: tuple[str, ...] = ()
    imm: tuple[float, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Instructions from the sums in PSUM to the result, in order."""

    steps: tuple[Step, ...]
    tiles: int
    """In SBUF, of FP32 as wide as a bank, that are alive at once beside operands and result."""

    def work(self, columns: int, timing: Timing) -> Work:
        """Of a tile of ``columns`` elements a partition."""
        return total(
            timing.engine(each.op, each.stream, columns, each.outs, each.ins, each.alu, each.imm, each.flags)
            for each in self.steps
        )

    def latency(self, timing: Timing) -> float:
        """Nanoseconds that the steps of one tile wait for each other."""
        return sum(
            timing.latency(each.stream) if each.stream is not after.stream else timing.dependent(each.stream)
            for each, after in pairwise(self.steps)
        )

    def time(self, columns: int, count: float, turns: int, timing: Timing) -> float:
        """Nanoseconds of ``count`` tiles, ``turns`` of which take turns, step by step."""
        work = self.work(columns, timing)
        alone = work.vector + work.scalar + work.gpsimd + self.latency(timing)
        return count / turns * max(alone, turns * work.bound)

    def __str__(self) -> str:
        return ", ".join("/".join(name for name in (each.op, *each.alu) if name) for each in self.steps)


def leave(columns: int, dtype: str, timing: Timing) -> Work:
    """Of Scalar, which copies a tile of sums that nothing more is done with."""
    return timing.engine("activation", Stream.SCALAR, columns, (Tile(dtype),), (Tile(psum=True),), ("copy",))


def tile_work(epilogue: Epilogue | None, columns: int, dtype: str, timing: Timing) -> Work:
    """One tile of sums leaves PSUM, and becomes a tile of the result, of ``dtype``."""
    return leave(columns, dtype, timing) if epilogue is None else epilogue.work(columns, timing)


def slots(busy: Sequence[bool]) -> int:
    """The first that is free; one more than there are where none is."""
    return next((at for at, taken in enumerate(busy) if not taken), len(busy))
