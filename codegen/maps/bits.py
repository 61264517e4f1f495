"""Bits and integers: which engine combines, shifts and turns them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.emitter import Emitter, Operand, Splat, block_of, gpsimd
from neuronx_cc.ir import hlo
from neuronx_cc.ir.combiners import OF_PREDICATES
from neuronx_cc.ir.isa.names import engine_name
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.semantics import BITVEC
from neuronx_cc.ir.types import itemsize

BITWISE = {opcode: engine_name(opcode) for opcode in hlo.opcodes(hlo.BitwiseOp)}
SHIFTS = hlo.opcodes(hlo.ShiftOp)
ROTATE = "rotate-left"
GPSIMD_ELEMENTS = 512
"""Elements a partition from which GpSimd combines bits of two streams sooner than Vector."""


def bitwise(e: Emitter, alu: str, out: Block, lhs: Operand, rhs: Operand) -> None:
    """On Vector; on GpSimd, which takes two streams at a higher clock, where they are long enough for its start."""
    if isinstance(lhs, Splat):
        lhs, rhs = rhs, lhs
    block = block_of(e, out, lhs)
    if isinstance(rhs, Splat):
        e.over("tensor_scalar", Stream.VECTOR, [out], [block], alu=[alu], imm=[rhs.value])
    elif out.dtype in ("s32", "u32") and prod(atom.size for atom in out.dims[1:]) >= GPSIMD_ELEMENTS:
        e.over("int_tensor_tensor", Stream.GPSIMD, [out], [block, rhs], alu=[alu.removeprefix("bitwise_")])
    else:
        e.over("tensor_tensor", Stream.VECTOR, [out], [block, rhs], alu=[alu])


def shift(e: Emitter, opcode: str, out: Block, lhs: Operand, rhs: Operand) -> None:
    """By a constant that leaves bits: one stream for Vector."""
    alu = engine_name(opcode)
    if alu in BITVEC and isinstance(rhs, Splat) and isinstance(lhs, Block) and 0 <= rhs.value < 8 * itemsize(lhs.dtype):
        e.over("tensor_scalar", Stream.VECTOR, [out], [lhs], alu=[alu], imm=[rhs.value])
    else:
        gpsimd(e, "int_tensor_tensor", opcode, out, lhs, rhs)


def rotation(op: hlo.HloOp, splat: Callable[[hlo.SSAValue], float | None]) -> tuple[hlo.HloOp, hlo.HloOp] | None:
    """The two shifts of one value whose union ``op`` is, when together they turn it round; the left one first."""
    if op.opcode not in ("or", "xor", "add") or op.shape.dtype not in ("s32", "u32"):
        return None
    shifts = {user.opcode: user for user in (operand.owner for operand in op.sources) if isinstance(user, hlo.HloOp)}
    left, right = shifts.get("shift-left"), shifts.get("shift-right-logical")
    if left is None or right is None or left.operands[0] is not right.operands[0]:
        return None
    counts = [splat(shift.sources[1]) for shift in (left, right)]
    if None in counts or sum(count for count in counts if count is not None) != 32 or 0 in counts:
        return None
    return left, right


def logical_alu(opcode: str) -> str:
    """The bit operator that combines pred values as ``opcode`` does."""
    return BITWISE[OF_PREDICATES.get(opcode, opcode)]
