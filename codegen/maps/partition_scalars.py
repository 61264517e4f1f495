"""Operands of one value a partition, which an instruction reads beside its tiles."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from neuronx_cc.codegen.emission.builder import Block, Builder, merge_free
from neuronx_cc.codegen.emission.emitter import Emitter, Operand
from neuronx_cc.ir.isa.program import MAX_FREE_DIMS, Stream


def partition_scalar(operand: Operand) -> bool:
    """One f32 value a partition: usable as the scalar operand of an instruction."""
    return (
        isinstance(operand, Block)
        and operand.dtype == "f32"
        and all(atom.stride == 0 or atom.size == 1 for atom in operand.dims[1:])
    )


def partition_block(block: Block) -> Block:
    """The [P, 1] block behind a partition scalar."""
    return replace(block, dims=block.dims[:1])


def with_partitions(
    e: Emitter,
    op: str,
    stream: Stream,
    out: Block,
    block: Block,
    scalar: Block,
    alu: list[str],
    imm: list[float],
    flags: list[str],
) -> None:
    """An instruction over a tile, with an operand of one value a partition."""
    size = prod(atom.size for atom in out.dims[1:])
    if stream is Stream.VECTOR:
        e.vector_load += max(64, size)
    else:
        e.scalar_load += max(64, size)
    _emit_partitions(e.builder, op, stream, [out, block], [scalar], alu, imm, flags)


def over_partitions(
    e: Emitter,
    op: str,
    out: Block,
    blocks: list[Block],
    scalars: list[Block],
    alu: list[str],
    imm: list[float],
    flags: list[str],
) -> None:
    """An instruction of Vector over tiles, with operands of one value a partition after them."""
    e.vector_load += max(64, prod(atom.size for atom in out.dims[1:]) * len(blocks))
    _emit_partitions(e.builder, op, Stream.VECTOR, [out, *blocks], scalars, alu, imm, flags)


def _emit_partitions(
    builder: Builder,
    op: str,
    stream: Stream,
    tiles: list[Block],
    scalars: list[Block],
    alu: list[str],
    imm: list[float],
    flags: list[str],
) -> None:
    """``tiles``: the result and the operands of its sizes."""
    tiles = merge_free(tiles)
    if len(tiles[0].dims) > MAX_FREE_DIMS + 1:
        with builder.loop(tiles[0].dims[1].size) as index:
            _emit_partitions(builder, op, stream, [tile.index(1, index) for tile in tiles], scalars, alu, imm, flags)
        return
    builder.emit(op, stream, tiles[:1], [*tiles[1:], *scalars], alu, imm, flags)
