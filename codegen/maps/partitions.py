"""Arithmetic of a map kernel with one value a partition that Vector does inside the instruction of its only user.

Such are the differences from a mean on the way into their product: an instruction takes a scalar operand of each
partition first, then another one, a constant, or a tile (hardware sheet 3.2, ``tensor_scalar`` and others).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.emitter import Deferred, Readable
from neuronx_cc.codegen.formation.graph import Kernel, trace
from neuronx_cc.codegen.maps.elementwise import ACTIVATION, ARITHMETIC, is_rectifier
from neuronx_cc.codegen.maps.fusion import Fusion
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace

FIRST = frozenset(ARITHMETIC) - hlo.opcodes(hlo.ExtremeOp)


def defer_partitions(
    kernel: Kernel,
    member: dict[hlo.SSAValue, Kernel],
    blocks: Mapping[hlo.SSAValue, Block],
    steps: Mapping[int, int],
    fusion: Fusion,
    splat: Callable[[hlo.SSAValue], float | None],
    single: bool = False,
) -> dict[hlo.HloOp, int]:
    """Add to the ops of ``fusion`` that are part of another's instruction; which operand is one a partition.

    ``blocks``: of what comes from outside or is wanted there; ``steps``: sizes of a tile along looped free dims;
    ``single``: whether a partition of a tile has one row.
    """
    found: dict[hlo.HloOp, int] = {}
    deferred, narrowed = fusion.users, {made: cast for cast, made in fusion.casts.items()}
    full = {user for part, user in deferred.items() if narrowed.get(part) is not user}
    taken = {*deferred, *deferred.values()}
    taken -= {made for made, cast in narrowed.items() if made.opcode in ARITHMETIC and cast not in full}
    taken.update(fusion.functions)
    for op in kernel.ops:
        value = op.results[0]
        if op.opcode not in FIRST or op in taken or value in blocks or not value.has_one_use():
            continue
        user = next(iter(value.uses)).operation
        if not isinstance(user, hlo.HloOp) or user.opcode not in ARITHMETIC or user in taken:
            continue
        place = _place(op, kernel, member, blocks, steps)
        if place is None or member.get(user.results[0]) is not kernel or not _is_whole(user, kernel):
            continue
        array = op.sources[1 - place]
        if splat(array) is None and _inside(array, kernel, member, fusion) is None:
            found[op], deferred[op] = place, narrowed.get(user, user)
            taken |= {op, user}
    for op in kernel.ops if single else ():  # differences from a value of the row that are squared, and nothing else
        user = _square_of(op, kernel, member)
        if user is None or {op, user} & taken or op.results[0] in blocks or user in fusion.users.values():
            continue
        rows = [_is_of_row(operand, kernel, member) for operand in op.sources]
        other = op.sources[rows.index(False)] if sum(rows) == 1 else None
        if other is not None and splat(other) is None and _inside(other, kernel, member, fusion) is None:
            found[op], deferred[op] = rows.index(True), user
            taken |= {op, user}
    for op in kernel.ops:  # sums on the way into activations, whose products may be above
        if op.opcode != "add" or op in deferred or op.results[0] in blocks:
            continue
        root, place = _activation_of(op, kernel, member, fusion, splat), _place(op, kernel, member, blocks, steps)
        if root is None or place is None or splat(op.sources[1 - place]) is not None:
            continue
        inner = _inside(op.sources[1 - place], kernel, member, fusion)
        if inner is None or (inner.opcode == "multiply" and deferred.get(inner) is op):
            found[op], deferred[op] = place, narrowed.get(root, root)
    return found


def _place(
    op: hlo.HloOp,
    kernel: Kernel,
    member: dict[hlo.SSAValue, Kernel],
    blocks: Mapping[hlo.SSAValue, Block],
    steps: Mapping[int, int],
) -> int | None:
    """Which operand of ``op``, and that alone, is one value a partition from outside; None for rows, too."""
    partitions = [_is_partition(blocks.get(operand), steps) for operand in op.sources]
    if sum(partitions) != 1 or not _is_whole(op, kernel):
        return None
    place = partitions.index(True)
    return place if trace(op.sources[place], kernel, member) is None else None


def _square_of(op: hlo.HloOp, kernel: Kernel, member: dict[hlo.SSAValue, Kernel]) -> hlo.HloOp | None:
    """The product of sum or difference ``op``, of whole rows, with itself, if nothing else reads that."""
    readers = {use.operation for use in op.results[0].uses}
    user = readers.pop() if len(readers) == 1 else None
    if op.opcode not in ("add", "subtract") or not isinstance(user, hlo.MultiplyOp) or not _is_whole(op, kernel):
        return None
    squares = user.operands[0] is user.operands[1] is op.results[0]
    return user if squares and _is_whole(user, kernel) and member.get(user.results[0]) is kernel else None


def _is_of_row(value: hlo.SSAValue, kernel: Kernel, member: dict[hlo.SSAValue, Kernel]) -> bool:
    """Whether ``value`` repeats FP32 numbers of the rows that ``kernel`` makes."""
    source = trace(value, kernel, member)
    if source is None or hlo.shape_of(source).dtype != "f32" or hlo.shape_of(value).dtype != "f32":
        return False
    return kernel.is_row(hlo.shape_of(source)) and not kernel.is_row(hlo.shape_of(value))


def _inside(
    value: hlo.SSAValue, kernel: Kernel, member: dict[hlo.SSAValue, Kernel], fusion: Fusion
) -> hlo.HloOp | None:
    """The op that makes ``value`` inside the instruction of another."""
    source = trace(value, kernel, member)
    owner = source.owner if source is not None else None
    return owner if isinstance(owner, hlo.HloOp) and owner in fusion.users else None


def _activation_of(
    op: hlo.HloOp,
    kernel: Kernel,
    member: dict[hlo.SSAValue, Kernel],
    fusion: Fusion,
    splat: Callable[[hlo.SSAValue], float | None],
) -> hlo.HloOp | None:
    """What alone reads ``op`` if it is an activation, of one op or several, which adds one value a partition itself."""
    value = op.results[0]
    readers = {use.operation for use in value.uses}
    for root, (_, start) in fusion.functions.items():
        ends = {root, fusion.users.get(root, root)}
        if start is value and readers <= {*ends, *(part for part, user in fusion.users.items() if user in ends)}:
            return root
    user = next(iter(value.uses)).operation if value.has_one_use() else None
    if not isinstance(user, hlo.HloOp) or member.get(user.results[0]) is not kernel or not _is_whole(user, kernel):
        return None
    computes = fusion.within.get(user)
    if user in fusion.functions or (computes is not None and fusion.casts.get(computes) is not user):
        return None
    limits = [limit for operand in user.sources if (limit := splat(operand)) is not None]
    rectifies = user.opcode == "maximum" and any(map(is_rectifier, limits))
    return user if user.opcode in ACTIVATION or rectifies else None


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
        scale, partition = (
            None if each is None else each.select(row_dims) for each in (operand.scale, operand.partition)
        )
        return replace(operand, block=operand.block.select(row_dims), scale=scale, partition=partition)
    return operand
