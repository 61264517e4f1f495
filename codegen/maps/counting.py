"""Operands of a map kernel that count along an axis: made by GpSimd where they are read, never loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, emit_over
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.maps.space import TileSpace
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import MAX_FREE_DIMS, Stream

Starts = dict[int, tuple[Affine, int]]
"""Looped free dim -> (first index, size) of the current tile."""


@dataclass(slots=True)
class Counting:
    """Operands that count along an axis of the kernel's space: its dims are the digits of a mixed-radix number."""

    builder: Builder
    pool: TilePool
    tiles: TileSpace
    origin: Sequence[int]
    """Index along each axis at which the tiles begin."""
    counters: dict[int, Block] = field(default_factory=dict)
    """Looped free dim -> counter of the counting operands along it, [partitions, 1] s32."""

    def weight(self, dim: int) -> int:
        """Elements along the axis of free dim ``dim`` that one step of it skips."""
        space, position = self.tiles.space, self.tiles.order[dim]
        axis = space.axes[position]
        inner = (size for at, size in enumerate(space.sizes) if space.axes[at] == axis and at > position)
        return prod(inner)

    def axis(self, dim: int) -> int:
        """The axis of the kernel's space that free dim ``dim`` is part of."""
        return self.tiles.space.axes[self.tiles.order[dim]]

    def start(self, dim: int, value: int) -> None:
        """Begin a loop over ``dim``: a loop index is no immediate, so a counter in SBUF follows it."""
        block = self.pool.apart([1], "s32", self.tiles.partitions)
        self.builder.emit("memset", Stream.GPSIMD, [block], [], imm=[value])
        self.counters[dim] = block

    def step(self, dim: int, amount: int) -> None:
        """Behind an iteration of the loop over ``dim``."""
        counter = self.counters[dim]
        self.builder.emit("int_tensor_tensor", Stream.GPSIMD, [counter], [counter], ["add"], [amount])

    def emit(self, out: Block, axis: int, starts: Starts) -> None:
        """Fill ``out`` with the index along ``axis`` (zeros when the axis has size 1, ``axis`` -1)."""
        digits = [dim for dim in range(len(self.tiles.space.sizes)) if self.tiles.space.axes[dim] == axis]
        weights: dict[int, int] = {}
        weight = 1
        for dim in reversed(digits):
            weights[dim] = weight
            weight *= self.tiles.space.sizes[dim]
        partition = sum(weights.get(dim, 0) for dim in self.tiles.partition_dims)
        steps = [weights.get(dim, 0) for dim in self.tiles.order]
        counted = [dim for dim in starts if dim in self.counters and steps[dim]]
        first = self.origin[axis] if axis >= 0 else 0
        first += sum(at.const * steps[dim] for dim, (at, _) in starts.items() if dim not in counted)
        if not counted:
            self._iota(out, first, partition, steps)
            return
        sizes = [atom.size for atom in out.dims[1:]]
        total = out if out.dtype in ("s32", "u32") else self.pool.tile(sizes, "s32", self.tiles.partitions)
        self._iota(total, first, partition, steps)
        for dim in counted:
            counter = self.counters[dim]
            spread = replace(counter, dims=(counter.dims[0], *(Atom(size, 0) for size in sizes)))
            emit_over(self.builder, "int_tensor_tensor", Stream.GPSIMD, [total], [total, spread], alu=["add"])
        if total is not out:
            emit_over(self.builder, "convert", Stream.GPSIMD, [out], [total])
            self.pool.give_back(total)

    def _iota(self, out: Block, first: int, partition: int, steps: Sequence[int]) -> None:
        dims = [dim for dim in range(len(steps)) if out.dims[dim + 1].size > 1]
        if len(dims) > MAX_FREE_DIMS:
            outer = dims[0]
            for index in range(out.dims[outer + 1].size):
                self._iota(out.index(outer + 1, Affine(index), 1), first + index * steps[outer], partition, steps)
            return
        target = out.select([0, *(dim + 1 for dim in dims)])
        self.builder.emit("iota", Stream.GPSIMD, [target], [], imm=[first, partition, *(steps[dim] for dim in dims)])
