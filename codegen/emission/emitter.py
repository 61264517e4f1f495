"""What rules emit instructions with: operands, constants, and the emitter that balances engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Unpack

from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, Modifiers, emit_over, merge_free, split_scalars
from neuronx_cc.ir.errors import Loc
from neuronx_cc.ir.isa.program import MAX_FREE_DIMS, Space, Stream
from neuronx_cc.ir.types import FLOATS, itemsize

SCALAR_COPIES = FLOATS | {"u8", "u16"}
"""Types whose values pass Scalar's FP32 unchanged (NaN payloads aside, which no cast keeps)."""


@dataclass(frozen=True, slots=True)
class Splat:
    """An operand that is one compile-time constant everywhere."""

    value: float
    dtype: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """``block alu constant`` in FP32, computed by the instruction that reads it."""

    block: Block
    alu: str
    constant: float
    reverse: bool
    """``constant alu block`` instead."""
    scale: Block | None = None
    """A factor with few values a partition, instead of ``constant``."""
    partition: Block | None = None
    """One value a partition, instead of ``constant``."""
    bias: Block | None = None
    """One value a partition, added to that product: only activations read it."""
    function: str = ""
    """Of Scalar's tables: what the reading op computes of all that, if it is an activation of several ops."""

    @property
    def dtype(self) -> str:
        return self.block.dtype


Operand = Block | Splat
Readable = Operand | Deferred
"""What float arithmetic and activations read; other rules take operands."""


def reads_at_once(blocks: Sequence[Block]) -> bool:
    """Whether Vector reads both operands of arithmetic at the rate of one: narrow ones, or one of them in PSUM."""
    narrow = all(block.dtype == "bf16" and block.dims[-1].stride == itemsize("bf16") for block in blocks)
    return narrow or len({block.alloc.space is Space.PSUM for block in blocks}) > 1


@dataclass(slots=True)
class Emitter:
    """What a rule may use: the builder, scratch tiles, and the balance between Vector and Scalar."""

    builder: Builder
    scratch: Callable[[Block, str], Block]
    """A tile of the first argument's sizes in another element type."""
    vector_load: int = 0
    """Elements that it reads, as an operand of an instruction."""
    scalar_load: int = 0
    inverses: Callable[[Sequence[int]], Block] | None = None
    """A tile of these sizes for the inverses of divisors, which are read beside another tile."""
    pace: float = 1.0
    """Elements that Scalar is taken to read while Vector reads one."""
    summing: tuple[Block, Block] | None = None
    """A result whose rows an activation adds up as it makes them, and where to: the same dims, rows as repetitions."""

    stays: Callable[[str, Block], tuple[Block, bool] | None] | None = None
    """Where what is made of a block lies, if it stays, and whether it is there."""

    def derived(self, what: str, of: Block) -> tuple[Block, bool]:
        """Where ``what`` is made of ``of``, in FP32, and whether it is there already."""
        there = self.stays(what, of) if self.stays is not None else None
        return there or (self.scratch(of, "f32"), False)

    def over(
        self, op: str, stream: Stream, outs: Sequence[Block], ins: Sequence[Block], **modifiers: Unpack[Modifiers]
    ) -> None:
        """Emit over blocks of equal sizes, within the rules for operands in PSUM (hardware sheet 1.4, 3.4).

        Operands of one value a partition, which have the partition dim alone, follow the others.
        """
        in_psum = [block for block in (*outs, *ins) if block.alloc.space is Space.PSUM]
        if in_psum:
            ins = self._legal_inputs(stream, list(ins))
        tiles, scalars = split_scalars(outs, ins)
        if in_psum:
            parts = _in_banks(merge_free([*outs, *tiles]), self.builder.sizes.bank_bytes)
            if len(parts) > 1:
                for part in parts:
                    self.over(op, stream, part[: len(outs)], [*part[len(outs) :], *scalars], **modifiers)
                return
        elif op == "activation" and self._adds_up(outs[0], ins, **modifiers):
            return
        size = prod(atom.size for atom in outs[0].dims[1:])
        if stream is Stream.VECTOR:
            self.vector_load += max(64, size * (2 if len(tiles) > 1 and not reads_at_once([*outs, *tiles]) else 1))
        elif stream is Stream.SCALAR:
            self.scalar_load += max(64, size)
        self.issue(op, stream, outs, ins, **modifiers)

    def scalar_is_free(self, size: int = 0) -> bool:
        """Whether Scalar is done sooner than Vector with what either has to do, and ``size`` elements more."""
        return self.scalar_load + size < self.vector_load * self.pace

    def mark(self, loc: Loc) -> None:
        """What is emitted from here on comes from the HLO op at ``loc``."""
        self.builder.mark(loc)

    def issue(
        self, op: str, stream: Stream, outs: Sequence[Block], ins: Sequence[Block], **modifiers: Unpack[Modifiers]
    ) -> None:
        """Emit what is within those rules."""
        emit_over(self.builder, op, stream, outs, ins, **modifiers)

    def _adds_up(self, out: Block, ins: Sequence[Block], **modifiers: Unpack[Modifiers]) -> bool:
        """Emit an activation that makes what is to be ``summing`` up, one instruction a row."""
        if self.summing is None or out != self.summing[0]:
            return False
        sums = self.summing[1]
        tiles, scalars = split_scalars([out], ins)
        kept = sums.varying
        rows = [[sums, out, *tiles]]
        for dim in reversed(kept):
            rows = [[x.index(dim, Affine(at)) for x in row] for row in rows for at in range(sums.dims[dim].size)]
        merged = [(row[0].select([0]), merge_free(row[1:])) for row in rows]
        if any(len(blocks[0].dims) > MAX_FREE_DIMS + 1 for _, blocks in merged):
            return False
        modifiers["flags"] = [*modifiers.get("flags", ()), "accumulate"]
        for total, (made, *read) in merged:
            self.scalar_load += max(64, prod(atom.size for atom in made.dims[1:]))
            self.builder.emit("activation", Stream.SCALAR, [made, total], [*read, *scalars], **modifiers)
        self.summing = None
        return True

    def _legal_inputs(self, stream: Stream, ins: list[Block]) -> list[Block]:
        """At most one input in PSUM, none for GpSimd: the others are copied to SBUF."""
        allowed = 0 if stream is Stream.GPSIMD else 1
        for position, block in enumerate(ins):
            if block.alloc.space is not Space.PSUM:
                continue
            if allowed:
                allowed -= 1
                continue
            ins[position] = self.scratch(block, block.dtype)
            self.over("tensor_copy", Stream.VECTOR, [ins[position]], [block])
        return ins

    def copy(self, out: Block, source: Operand) -> None:
        """Copy or cast (float to float, integer to float, same type) on the less loaded engine."""
        if isinstance(source, Splat):
            self.over("memset", Stream.VECTOR, [out], [], imm=[source.value])
        elif (self.scalar_is_free() or self.summing is not None) and {out.dtype, source.dtype} <= SCALAR_COPIES:
            self.over("activation", Stream.SCALAR, [out], [source], alu=["copy"], imm=[1.0])
        else:
            self.over("tensor_copy", Stream.VECTOR, [out], [source])

    def leave(self, out: Block, bank: Block, factor: float = 1.0) -> None:
        """Copy or cast ``factor`` times what TensorE made: on Scalar if it can, which takes less time, and keeps Vector
        from PSUM."""
        if factor != 1.0 or {out.dtype, bank.dtype} <= SCALAR_COPIES:
            self.over("activation", Stream.SCALAR, [out], [bank], alu=["copy"], imm=[factor])
        else:
            self.copy(out, bank)


def _in_banks(blocks: list[Block], bank: int) -> list[list[Block]]:
    """``blocks`` in parts that are within a bank of PSUM, ``bank`` bytes, each; their outermost dim is cut."""
    wide = [block for block in blocks if block.alloc.space is Space.PSUM and _reach(block) > bank]
    if not wide:
        return [blocks]
    free = range(1, len(wide[0].dims))
    dim = max(free, key=lambda dim: abs(wide[0].dims[dim].stride) * (wide[0].dims[dim].size > 1))
    atom = wide[0].dims[dim]
    step = max(1, bank // abs(atom.stride))
    return [
        [block.index(dim, Affine(start), min(step, atom.size - start)) for block in blocks]
        for start in range(0, atom.size, step)
    ]


def _reach(block: Block) -> int:
    """Bytes of a partition from the first element of ``block`` to after its last."""
    return sum((atom.size - 1) * abs(atom.stride) for atom in block.dims[1:]) + itemsize(block.dtype)


def fill(e: Emitter, like: Block, splat: Splat) -> Block:
    tile = e.scratch(like, splat.dtype)
    e.over("memset", Stream.VECTOR, [tile], [], imm=[splat.value])
    return tile


def block_of(e: Emitter, like: Block, operand: Operand) -> Block:
    return operand if isinstance(operand, Block) else fill(e, like, operand)


def gpsimd(
    e: Emitter, op: str, alu: str, out: Block, lhs: Operand, rhs: Operand | None = None, imm: Sequence[float] = ()
) -> None:
    """A GpSimd instruction; a constant operand goes into the immediate."""
    if rhs is None:
        e.over(op, Stream.GPSIMD, [out], [block_of(e, out, lhs)], alu=[alu], imm=imm)
    elif isinstance(rhs, Splat):
        e.over(op, Stream.GPSIMD, [out], [block_of(e, out, lhs)], alu=[alu], imm=[rhs.value])
    elif isinstance(lhs, Splat):
        e.over(op, Stream.GPSIMD, [out], [rhs], alu=[alu], imm=[lhs.value], flags=["reverse"])
    else:
        e.over(op, Stream.GPSIMD, [out], [lhs, rhs], alu=[alu])
