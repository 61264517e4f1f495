"""A gradient of a kernel as whoever plans it sees it: a frozen value. Equal problems are planned once.

Each operand is [contracted, kept, positions...]: the batch is contracted with the positions. ``n`` is the kept dim of
the operand that the taps move, ``o`` that of the other one, and the result is [n of a group, o, taps...].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronx_cc.codegen.convolutions.axis import Axis, Taps
from neuronx_cc.codegen.convolutions.gradient_plan import Loading
from neuronx_cc.codegen.convolutions.problem import Operand
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.types import itemsize


@dataclass(frozen=True, slots=True)
class Face:
    """Which operand the taps move, and what follows from that."""

    axes: tuple[Axis, ...]
    """The batch and those of positions."""
    taps: tuple[Taps, ...]
    """Of each axis; from last to first where they move the operand with positions of results."""
    operands: tuple[Operand, Operand]
    """As they lie: the one with taps first."""
    kept: tuple[int, int]
    """Features of a group."""
    out: tuple[Atom, ...]
    """The result [n of a group, o, taps...]."""

    def features_last(self, dtype: str) -> bool:
        """Whether ``o``, not ``n``, are neighbours in the result."""
        return self.out[1].stride == itemsize(dtype)


@dataclass(frozen=True)
class Problem:
    """All that plans depend on, but the machine."""

    faces: tuple[Face, ...]
    """The taps move the operand with positions of images, or the other one if that may be."""
    groups: int
    dtype: str
    """Of the products on TensorE."""
    out_dtype: str
    fast: bool
    """Whether TensorE transposes values as such."""
    room: int
    """Bytes of each partition of SBUF in one piece."""

    @property
    def meets(self) -> bool:
        """Whether any tap meets any input; else all of the result is zero."""
        return all(tap.count for tap in self.faces[0].taps)


def loadings(lies: Operand) -> list[Loading]:
    """How positions may come onto the partitions."""
    if lies.near(1):
        return [Loading.ROWS]
    return [Loading.TURNED, Loading.PLANES] if lies.near(len(lies.dims) - 1) else [Loading.TURNED]


def runs_of(lies: Operand, sizes: Sequence[int]) -> tuple[int, int]:
    """(runs, bytes of each) of one feature at ``sizes`` positions of each axis."""
    width, run, runs = itemsize(lies.dtype), 1, 1
    for axis in reversed(range(len(sizes))):
        if runs == 1 and lies.dims[axis if axis == 0 else axis + 1].stride == run * width:
            run *= sizes[axis]
        else:
            runs *= sizes[axis]
    return runs, run * width
