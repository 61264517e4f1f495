"""Operands of one value a partition, which an instruction reads beside its tiles."""

from __future__ import annotations

from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.emitter import Operand
from neuronx_cc.ir.frozen import replace


def partition_scalar(operand: Operand) -> bool:
    """One f32 value a partition: usable as the scalar operand of an instruction."""
    return (
        isinstance(operand, Block)
        and operand.dtype == "f32"
        and all(atom.stride == 0 or atom.size == 1 for atom in operand.dims[1:])
    )


def partition_block(block: Block) -> Block:
    """The [P, 1] block of a partition scalar."""
    return replace(block, dims=block.dims[:1])
