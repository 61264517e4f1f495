"""Arithmetic of a map kernel with one value a partition that Vector does inside the instruction of its only user.

Such are the differences from a mean on the way into their product: an instruction takes a scalar operand of each
partition first, then another one, a constant, or a tile (hardware sheet 3.2, ``tensor_scalar`` and others).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.emitter import Deferred, Readable
from neuronx_cc.codegen.formation.graph import Kernel, trace
from neuronx_cc.codegen.maps.elementwise import ARITHMETIC
from neuronx_cc.codegen.maps.fusion import Fusion
from neuronx_cc.ir import hlo

FIRST = frozenset(ARITHMETIC) - hlo.opcodes(hlo.ExtremeOp)


def defer_partitions(
    kernel: Kernel,
    member: dict[hlo.SSAValue, Kernel],
    blocks: Mapping[hlo.SSAValue, Block],
    steps: Mapping[int, int],
    fusion: Fusion,
    splat: Callable[[hlo.SSAValue], float | None],
) -> dict[hlo.HloOp, int]:
    """Add to the ops of ``fusion`` that are part of another's instruction; which operand is one a partition.

    ``blocks``: of what comes from outside or is wanted there; ``steps``: sizes of a tile along looped free dims.
    """
    found: dict[hlo.HloOp, int] = {}
    deferred, narrowed = fusion.users, {made: cast for cast, made in fusion.casts.items()}
    taken = {*deferred, *deferred.values()} - {made for made in narrowed if made.opcode in ARITHMETIC}
    taken.update(fusion.functions)
    for op in kernel.ops:
        value = op.results[0]
        if op.opcode not in FIRST or op in taken or value in blocks or not value.has_one_use():
            continue
        user = next(iter(value.uses)).operation
        if not isinstance(user, hlo.HloOp) or user.opcode not in ARITHMETIC or user in taken:
            continue
        if member.get(user.results[0]) is not kernel or not _is_whole(op, kernel) or not _is_whole(user, kernel):
            continue
        partitions = [_is_partition(blocks.get(operand), steps) for operand in op.sources]
        if sum(partitions) != 1 or trace(op.sources[partitions.index(True)], kernel, member) is not None:
            continue
        array = op.sources[partitions.index(False)]
        source = trace(array, kernel, member)
        if splat(array) is None and not (isinstance(source, hlo.OpResult) and source.op in deferred):
            found[op], deferred[op] = partitions.index(True), narrowed.get(user, user)
            taken |= {op, user}
    return found


def _is_partition(block: Block | None, steps: Mapping[int, int]) -> bool:
    """Whether each tile has one value a partition of ``block``."""
    if block is None or block.dtype != "f32":
        return False
    sizes = (min(atom.size, steps.get(dim, atom.size)) for dim, atom in enumerate(block.dims[1:]))
    return all(not atom.stride or size == 1 for atom, size in zip(block.dims[1:], sizes, strict=True))


def _is_whole(op: hlo.HloOp, kernel: Kernel) -> bool:
    return op.shape.dtype == "f32" and prod(op.shape.dims) == prod(kernel.shape)


def rows_of(operand: Readable, row_dims: Sequence[int]) -> Readable:
    """``operand`` of an op on rows."""
    if isinstance(operand, Block):
        return operand.select(row_dims)
    if isinstance(operand, Deferred):
        scale = None if operand.scale is None else operand.scale.select(row_dims)
        return replace(operand, block=operand.block.select(row_dims), scale=scale)
    return operand
