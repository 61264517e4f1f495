"""Sums over the partitions: products of what is summed with the ones that TensorE holds."""

from __future__ import annotations

from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, emit_over
from neuronx_cc.ir.isa.program import Stream


def add_up(builder: Builder, sums: Block, source: Block, dim: int = 1) -> None:
    """Add ``source`` [partitions, free dims] to ``sums`` [1, free dims], which hold a part of each dim."""
    if dim == len(source.dims):
        emit_over(builder, "multiply_moving", Stream.TENSOR, [sums], [source], flags=["accumulate"])
        return
    for at, count in builder.pieces(source.dims[dim].size, sums.dims[dim].size):
        add_up(builder, sums.index(dim, Affine(), count), source.index(dim, at, count), dim + 1)
