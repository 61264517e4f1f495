"""What an op of a map, or of an epilogue, reads: tiles, constants, and what its own instruction computes first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.emitter import Deferred, Readable, Splat
from neuronx_cc.codegen.formation.graph import Kernel, trace
from neuronx_cc.codegen.maps import elementwise
from neuronx_cc.codegen.maps.fusion import Fusion
from neuronx_cc.codegen.maps.lifetimes import Member
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace


@dataclass(slots=True)
class Operands:
    """Of the ops of one kernel."""

    context: Context
    kernel: Kernel
    member: Member
    fusion: Fusion
    partition_places: Mapping[hlo.HloOp, int] = field(default_factory=dict)
    """Arithmetic inside its user's instruction -> which operand is one value a partition."""
    sources: dict[hlo.SSAValue, hlo.SSAValue | None] = field(default_factory=dict)
    """Operands met so far -> the value of the kernel that each is."""

    def of(self, op: hlo.HloOp, here: Mapping[hlo.SSAValue, Block]) -> list[Readable]:
        """What the instruction of ``op`` reads; of an activation of several ops what it is the function of."""
        if op not in self.fusion.functions:
            return [self.read(operand, here) for operand in op.sources]
        name, start = self.fusion.functions[op]
        block = self.read(start, here)
        assert not isinstance(block, Splat), "a function of a constant is one"
        whole = Deferred(block, "multiply", 1.0, False) if isinstance(block, Block) else block
        return [replace(whole, function=name)]

    def read(self, operand: hlo.SSAValue, here: Mapping[hlo.SSAValue, Block]) -> Readable:
        """``operand``, of which the tiles are ``here``."""
        if operand not in self.sources:
            self.sources[operand] = trace(operand, self.kernel, self.member)
        source = self.sources[operand]
        if isinstance(source, hlo.OpResult) and source.op in self.fusion:
            op = source.op
            assert isinstance(op, hlo.HloOp)
            if op in self.fusion.widened or op in self.fusion.rounded:
                return self.read(op.sources[0], here)
            if isinstance(op, hlo.ConvertOp):  # of a comparison
                return self.read(op.sources[0], here)
            ins = [self.read(value, here) for value in op.sources]
            if isinstance(op, hlo.CompareOp):
                return elementwise.defer_comparison(op, ins)
            deferred = elementwise.defer(op, ins, self.fusion.scales.get(op, -1), self.partition_places.get(op, -1))
            assert deferred is not None, "deferred ops have one constant operand"
            return deferred
        if source is not None:
            dtype = hlo.shape_of(operand).dtype
            same = dtype == hlo.shape_of(source).dtype  # else a bit cast lies between
            return here[source] if same else replace(here[source], dtype=dtype)
        constant = self.context.splat(operand)
        if constant is not None:
            return Splat(constant, hlo.shape_of(operand).dtype)
        return here[operand]
