"""Factorisations of many matrices, one in each partition: nothing goes from partition to partition.

A step takes one column out of those after it, row by row: one instruction a row, of all matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.ir.types import itemsize


def groups(builder: Builder, batch: int) -> Iterator[tuple[Affine, int]]:
    """The first matrix and the number of those that are factorised together."""
    most = builder.sizes.partitions
    for start, count, size in builder.tiles(batch, most):
        with builder.loop(count) as index:
            yield index * size + start, size


def matrices(view: View, first: Affine, count: int) -> Block:
    """[matrix, element] of a dense array in HBM."""
    size = itemsize(view.dtype)
    each = prod(view.shape[1:])
    offset = view.start + first * (each * size)
    return Block(view.alloc, view.dtype, offset, (Atom(count, each * size), Atom(each, size)))


def element(row: Block, at: int | Affine) -> Block:
    """One number a partition of ``row``."""
    return row.index(1, at if isinstance(at, Affine) else Affine(at), 1)


def spread(row: Block, size: int) -> Block:
    """``row`` for each of ``size`` rows."""
    return row.of((row.dims[0], Atom(size, 0), row.dims[1]))


def columns_of(block: Block) -> Block:
    """A tile [row, column] read as [column, row]."""
    return block.of((block.dims[0], block.dims[2], block.dims[1]))
