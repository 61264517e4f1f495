"""Vector's instructions as factorisations write them: operands that may be numbers or one value a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronx_cc.codegen.emission.builder import Block, Builder
from neuronx_cc.ir.isa.program import Stream


@dataclass(frozen=True, slots=True)
class Vector:
    """Emits on Vector."""

    builder: Builder

    def scaled(self, out: Block, row: Block, alu: Sequence[str], *scalars: Block | float) -> None:
        """``out = row op0 s0 op1 s1``, of numbers or one value a partition."""
        given = [each for each in scalars if isinstance(each, Block)]
        flags = [f"ap{at}" for at, each in enumerate(scalars) if isinstance(each, Block)]
        imm = [0.0 if isinstance(each, Block) else each for each in scalars]
        self.builder.emit("tensor_scalar", Stream.VECTOR, [out], [row, *given], alu, imm, flags)

    def combined(
        self,
        out: Block,
        row: Block,
        first: str,
        scalar: Block | float,
        second: str,
        other: Block,
        reverse: bool = False,
    ) -> None:
        """``out = (row first scalar) second other``, or with ``reverse`` ``other second (row first scalar)``."""
        is_block = isinstance(scalar, Block)
        given, imm = ([scalar], []) if isinstance(scalar, Block) else ([], [scalar])
        flags = ["ap0"] * is_block + ["reverse1"] * reverse
        self.builder.emit(
            "scalar_tensor_tensor", Stream.VECTOR, [out], [row, other, *given], [first, second], imm, flags
        )

    def both(self, out: Block, left: Block, alu: str, right: Block) -> None:
        """``out = left op right``."""
        self.builder.emit("tensor_tensor", Stream.VECTOR, [out], [left, right], [alu])

    def folded(self, out: Block, rows: Block, alu: str) -> None:
        """Each row of ``rows`` [partition, rows, elements] as one number."""
        self.builder.emit("tensor_reduce", Stream.VECTOR, [out], [rows], [alu])

    def copied(self, out: Block, source: Block) -> None:
        self.builder.emit("tensor_copy", Stream.VECTOR, [out], [source])

    def filled(self, out: Block, number: float) -> None:
        self.builder.emit("memset", Stream.VECTOR, [out], [], imm=[number])
