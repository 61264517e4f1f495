"""Operands of contractions that are stored in fewer bits than TensorE takes: loaded as stored, converted on chip.

The DMA would move them in the wider type. Scalar and Vector share the elements, each as many as it converts in the
same time, while TensorE multiplies and the DMA loads others.
"""

from __future__ import annotations

from math import prod

from neuronx_cc.codegen.dots.problem import Operand, Problem
from neuronx_cc.codegen.emission.builder import Affine, Block, merge_free
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import NOTHING, Tile, Timing, Work

BUFFERS = 3
"""Of what is loaded and not converted yet: two under way while one is converted."""
ELEMENTS = 2000
"""Elements of a row that are measured: neither starts nor latencies count in long ones."""


def works(timing: Timing, stored: str, dtype: str) -> tuple[Work, Work]:
    """What Scalar and Vector do for ``ELEMENTS`` elements a partition."""
    tiles = (Tile(dtype),), (Tile(stored),)
    return (
        timing.engine("activation", Stream.SCALAR, ELEMENTS, *tiles, ("copy",)),
        timing.engine("tensor_copy", Stream.VECTOR, ELEMENTS, *tiles),
    )


def share(timing: Timing, operand: Operand, dtype: str) -> float:
    """The part of the elements that Scalar converts to ``dtype``: none of what it takes out of PSUM, transposed."""
    if operand.transposed:
        return 0.0
    scalar, vector = works(timing, operand.stored, dtype)
    return vector.bound / (scalar.bound + vector.bound)


def of_all(problem: Problem, operand: Operand, timing: Timing) -> Work:
    """Of all of one operand of one batch index, once; nothing where it is not converted."""
    if not operand.converted:
        return NOTHING
    elements = problem.products * max(1, prod(problem.m if operand is problem.lhs else problem.n))
    dtype = problem.turned(operand) if operand.transposed else operand.dtype
    if dtype == operand.stored:
        return NOTHING
    scalar, vector = works(timing, operand.stored, dtype)
    part, count = share(timing, operand, dtype), elements / ELEMENTS
    return scalar.times(part * count) + vector.times((1 - part) * count)


def convert(emitter: Emitter, operand: Operand, target: Block, source: Block) -> None:
    """``target = source``, both on chip and of the same dims; exact, for every 8-bit value is one of ``target``'s.

    Each engine takes neighbours, so that neither seems to write what the other does.
    """
    blocks = merge_free([target, source])
    if len(blocks[0].dims) < 2:
        blocks = [target, source]  # one element a partition
    size, dim = blocks[0].dims[1].size, 1
    first = round(size * share(emitter.builder.timing, operand, target.dtype))
    if first:
        ends = [block.index(dim, Affine(0), first) for block in blocks]
        emitter.over("activation", Stream.SCALAR, ends[:1], ends[1:], alu=["copy"], imm=[1.0])
    if first < size:
        ends = [block.index(dim, Affine(first), size - first) for block in blocks]
        emitter.over("tensor_copy", Stream.VECTOR, ends[:1], ends[1:])
