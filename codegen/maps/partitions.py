"""Arithmetic of a map kernel with one value a partition that Vector does inside the instruction of its only user.

Such are the differences from a mean on the way into their product: an instruction takes a scalar operand of each
partition first, then another one, a constant, or a tile (hardware sheet 3.2, ``tensor_scalar`` and others).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
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
    ops: Sequence[hlo.HloOp] | None = None,
    made: Collection[hlo.SSAValue] = (),
) -> dict[hlo.HloOp, int]:
    """Add to the ops of ``fusion`` that are part of another's instruction; which operand is one a partition.

    ``blocks``: of what comes from outside or is wanted there; ``steps``: sizes of a tile along looped free dims;
    ``single``: whether a partition of a tile has one row; ``ops``: those of the kernel that are emitted together, by
    default all; ``made``: what is wanted on chip.
    """
    found: dict[hlo.HloOp, int] = {}
    ops = kernel.ops if ops is None else ops
    search = _Search(kernel, member, blocks, steps, fusion, splat, {*kernel.ops} - {*ops})
    deferred, narrowed = fusion.users, {made: cast for cast, made in fusion.casts.items()}
    full = {user for part, user in deferred.items() if narrowed.get(part) is not user}
    taken = {*deferred, *deferred.values()}
    taken -= {made for made, cast in narrowed.items() if made.opcode in ARITHMETIC and cast not in full}
    taken.update(fusion.functions, (value.owner for value in made if isinstance(value.owner, hlo.HloOp)))
    for op in ops:
        value, user = op.results[0], search.only_reader(op)
        if op.opcode not in FIRST or op in taken or value in blocks:
            continue
        if user is None or user.opcode not in ARITHMETIC or user in taken or not search.is_whole(user):
            continue
        place = search.place(op)
        if place is None and single and search.takes_rows(user, value):
            place = search.row_of(op)
        if place is not None and search.is_array(op.sources[1 - place]):
            found[op], deferred[op] = place, narrowed.get(user, user)
            taken |= {op, user}
    for op in ops if single else ():  # differences from a value of the row that are squared, and nothing else
        square, place = search.square_of(op), search.row_of(op)
        if square is None or place is None or {op, square} & taken or op.results[0] in blocks:
            continue
        if square not in fusion.users.values() and search.is_array(op.sources[1 - place]):
            found[op], deferred[op] = place, square
            taken |= {op, square}
    for op in ops:  # sums on the way into activations, whose products may be above
        if op.opcode not in ("add", "subtract") or op in deferred or op.results[0] in blocks:
            continue
        root, place = search.activation_of(op), search.place(op) if op.opcode == "add" else None
        if place is None and single and op not in taken:
            place = search.row_of(op)
        if root is None or place is None or splat(op.sources[1 - place]) is not None:
            continue
        inner = search.inside(op.sources[1 - place])
        if inner is None or (op.opcode == "add" and inner.opcode == "multiply" and deferred.get(inner) is op):
            found[op], deferred[op] = place, narrowed.get(root, root)
    return found


@dataclass(frozen=True, slots=True)
class _Search:
    """What ops of a kernel read, and are read by."""

    kernel: Kernel
    member: dict[hlo.SSAValue, Kernel]
    blocks: Mapping[hlo.SSAValue, Block]
    steps: Mapping[int, int]
    fusion: Fusion
    splat: Callable[[hlo.SSAValue], float | None]
    others: Set[hlo.HloOp]
    """Ops of the kernel that are emitted at another time, and read nothing of this one."""

    def place(self, op: hlo.HloOp) -> int | None:
        """Which operand of ``op``, and that alone, is one value a partition from outside; None for rows, too."""
        partitions = [_is_partition(self.blocks.get(operand), self.steps) for operand in op.sources]
        if sum(partitions) != 1 or not self.is_whole(op):
            return None
        place = partitions.index(True)
        return place if trace(op.sources[place], self.kernel, self.member) is None else None

    def row_of(self, op: hlo.HloOp) -> int | None:
        """Which operand of ``op``, and that alone, repeats a value of the row."""
        rows = [self._is_of_row(operand) for operand in op.sources]
        return rows.index(True) if sum(rows) == 1 and self.is_whole(op) else None

    def readers(self, op: hlo.HloOp) -> list[hlo.Operation]:
        """What reads the result of ``op``, once for each operand."""
        return [use.operation for use in op.results[0].uses if use.operation not in self.others]

    def only_reader(self, op: hlo.HloOp) -> hlo.HloOp | None:
        """The op that reads the result of ``op``, as one of its operands, if nothing else does."""
        readers = self.readers(op)
        return readers[0] if len(readers) == 1 and isinstance(readers[0], hlo.HloOp) else None

    def takes_rows(self, user: hlo.HloOp, value: hlo.SSAValue) -> bool:
        """Whether ``user`` computes with ``value`` and one number a partition, as Vector does after another such op."""
        others = [operand for operand in user.sources if operand is not value]
        return len(others) == 1 and (self.splat(others[0]) is not None or self._is_of_row(others[0]))

    def square_of(self, op: hlo.HloOp) -> hlo.HloOp | None:
        """The product of sum or difference ``op``, of whole rows, with itself, if nothing else reads that."""
        readers = {*self.readers(op)}
        user = readers.pop() if len(readers) == 1 else None
        if op.opcode not in ("add", "subtract") or not isinstance(user, hlo.MultiplyOp) or not self.is_whole(op):
            return None
        squares = user.operands[0] is user.operands[1] is op.results[0]
        return user if squares and self.is_whole(user) else None

    def activation_of(self, op: hlo.HloOp) -> hlo.HloOp | None:
        """What alone reads ``op`` if it is an activation, of one op or several, which adds one value a partition."""
        value, fusion, readers = op.results[0], self.fusion, {*self.readers(op)}
        for root, (_, start) in fusion.functions.items():
            ends = {root, fusion.users.get(root, root)}
            if start is value and readers <= {*ends, *(part for part, user in fusion.users.items() if user in ends)}:
                return root
        user = self.only_reader(op)
        if user is None or not self.is_whole(user):
            return None
        computes = fusion.within.get(user)
        if user in fusion.functions or (computes is not None and fusion.casts.get(computes) is not user):
            return None
        limits = [limit for operand in user.sources if (limit := self.splat(operand)) is not None]
        rectifies = user.opcode == "maximum" and any(map(is_rectifier, limits))
        return user if user.opcode in ACTIVATION or rectifies else None

    def is_array(self, value: hlo.SSAValue) -> bool:
        """Whether ``value`` is no constant, and not made inside the instruction of another op."""
        return self.splat(value) is None and self.inside(value) is None

    def inside(self, value: hlo.SSAValue) -> hlo.HloOp | None:
        """The op that makes ``value`` inside the instruction of another."""
        source = trace(value, self.kernel, self.member)
        owner = source.owner if source is not None else None
        return owner if isinstance(owner, hlo.HloOp) and owner in self.fusion.users else None

    def is_whole(self, op: hlo.HloOp) -> bool:
        """Whether ``op`` is one of the kernel that makes FP32 numbers of all of its space."""
        own = self.member.get(op.results[0]) is self.kernel
        return own and op.shape.dtype == "f32" and prod(op.shape.dims) == prod(self.kernel.shape)

    def _is_of_row(self, value: hlo.SSAValue) -> bool:
        """Whether ``value`` repeats FP32 numbers of the rows that the kernel makes."""
        source = trace(value, self.kernel, self.member)
        if source is None or hlo.shape_of(source).dtype != "f32" or hlo.shape_of(value).dtype != "f32":
            return False
        return self.kernel.is_row(hlo.shape_of(source)) and not self.kernel.is_row(hlo.shape_of(value))


def _is_partition(block: Block | None, steps: Mapping[int, int]) -> bool:
    """Whether each tile has one value a partition of ``block``."""
    if block is None or block.dtype != "f32":
        return False
    sizes = (min(atom.size, steps.get(dim, atom.size)) for dim, atom in enumerate(block.dims[1:]))
    return all(not atom.stride or size == 1 for atom, size in zip(block.dims[1:], sizes, strict=True))


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
