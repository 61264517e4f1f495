"""Codes of 8-bit floats that TensorE transposes two at a time, as the BF16 numbers that neighbours look like.

Half of the transposes leave PSUM in half of the time: what comes of one is [pairs on partitions, rows], in whose bytes
the codes of even terms lie beside those of odd ones, and TensorE multiplies each kind where it lies. A pair is finite
unless its later code is NaN, for infinities of these types and of BF16 differ in a bit; a run that finds one is made
once more (``watch``). The other operand has its terms in the same order, even ones before odd ones.

Codes that TensorE does not take (``DECODED``) are decoded as they leave PSUM, each kind from its byte of the FP32
numbers there: nothing is converted ahead of the transposes. None of them may be NaN, which no transpose would tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from neuronx_cc.codegen.dots import conversion
from neuronx_cc.codegen.dots.contraction import Bound
from neuronx_cc.codegen.dots.problem import DECODED, Home, Operand, Problem, Segment
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.types import itemsize

PAIRED = frozenset(["f8e4m3", "f8e5m2", *DECODED])
"""Types whose codes TensorE takes, or that are decoded for it, and of which only NaNs are all ones after the sign."""
LEAST = 4
"""Terms that are worth it."""


def dims_of(
    machine: Machine, sizes: Sequence[int], contracted: Sequence[Sequence[Atom]], bound: Sequence[Bound]
) -> list[tuple[int, int]]:
    """Of each operand whose terms may be taken in pairs, which one it is, and the dim of k that these lie along.

    ``contracted``: how the dims of k lie in each.
    """
    if machine["num.denormals"] != "keep" or not sizes or sizes[-1] % 2 or sizes[-1] < LEAST:
        return []
    return [
        (index, len(sizes) - 1)
        for index, each in enumerate(bound)
        if each.home is Home.HBM and each.view.dtype in PAIRED and begins_evenly(each)
        if contracted[index][-1].stride == 1
    ]


def begins_evenly(bound: Bound) -> bool:
    """Whether all rows begin at whole pairs, where neighbours do."""
    start = bound.view.start
    strides = [atom.stride for atoms in bound.view.dims for atom in atoms if atom.size > 1 and atom.stride != 1]
    return all(number % 2 == 0 for number in (start.const, *(step for _, step in start.terms), *strides))


def may_come(operand: Operand, other: Operand, most: int) -> bool:
    """Whether an operand is transposed, and multiplied as it is stored, or decoded for few rows of the other one, which
    make a tile of at most so many. None of those codes may be NaN.
    """
    few = prod(atom.size for atom in other.free) <= most
    decoded = operand.decoded and not operand.suspected and few
    taken = operand.dtype == operand.stored or decoded
    return operand.transposed and taken and operand.split is None and len(operand.free) == 1


def stay_apart(sizes: Sequence[int], k_dim: int, segments: Sequence[Segment]) -> bool:
    """Whether the even terms of each chunk of other dims, or of the steps along that on the partitions, follow each
    other where they come one by one.
    """
    others = prod(size for dim, size in enumerate(sizes[:-1]) if dim != k_dim)
    return k_dim < len(sizes) - 1 and (others == 1 or all(segment.steps == 1 for segment in segments))


def codes(pairs: Sequence[Block], operand: Operand, apart: int) -> list[Block]:
    """Those of even and of odd terms of each block [partitions, chunks, rows], or what they were decoded to, ``apart``
    bytes from each other.
    """
    return [
        Block(block.alloc, operand.dtype, block.offset + byte, block.dims, block.partition)
        for block in pairs
        for byte in (0, apart)
    ]


def bytes_apart(problem: Problem, operand: Operand, rows: int) -> int:
    """From what even terms are decoded to, in a block of so many rows, to what odd ones are: that of the longest
    segment.
    """
    pairs = max(map(prod, problem.all_chunks)) // 2
    return pairs * conversion.width(operand, rows) * itemsize(operand.dtype)


def apart(problem: Problem, blocks: Sequence[Block], segments: Sequence[Segment]) -> list[Block]:
    """The even and the odd terms of blocks [partitions, chunks, ...] of an operand that comes as it is."""
    found: list[Block] = []
    for number, block in enumerate(blocks):
        sizes = problem.chunks(segments[number % len(segments)])
        chunks, inner = block.dims[1], prod(sizes[len(problem.k) - 1 :])
        outer = chunks.size // (2 * inner)
        for half in range(2):
            left = Atom(inner, chunks.stride) if outer == 1 else Atom(outer, 2 * chunks.stride)
            moved = block.index(1, Affine(half * inner), inner)
            found.append(moved.of((block.dims[0], left, *block.dims[2:])))
    return found
