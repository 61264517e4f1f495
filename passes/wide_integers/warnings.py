"""What ``--int64 truncate`` warns about (ESFH002): values that may not fit 32 bits, each at its op."""

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import argument_block, defining_op
from neuronx_cc.passes.analysis.intervals import NARROW, inside, narrow_range
from neuronx_cc.passes.analysis.ranges import Ranges
from neuronx_cc.passes.analysis.values import argument_names, constant_of, splat_number
from neuronx_cc.passes.manager import PassContext

CODE = "ESFH002"
MOVING = (hlo.ConstantOp, hlo.MovementOp)
"""Ops that hand on what is warned about where it comes from."""


class Warnings:
    """Collects while the splitter works; nothing in ``exact`` mode."""

    def __init__(self, module: HloModule, ranges: Ranges, exact: bool):
        self.module, self.ranges, self.exact = module, ranges, exact
        self.inputs: set[hlo.SSAValue] = set()
        self.constants: dict[hlo.SSAValue, str] = {}

    def of_ops(self, context: PassContext) -> None:
        """What computed values may leave."""
        for op, (low, high) in {} if self.exact else self.ranges.raw.items():
            dtype = op.shape.dtype
            if dtype not in NARROW or isinstance(op, MOVING) or inside((low, high), narrow_range(dtype)):
                continue
            message = f"{op.opcode} on {dtype} may leave the range of {NARROW[dtype]}"
            context.warn(CODE, f"{message} (bounds {low} to {high}); it wraps", op.loc)

    def cut(self, value: hlo.SSAValue) -> None:
        """Only 32 bits of ``value``, of 64, are used."""
        if self.exact:
            return
        block, source = argument_block(value), defining_op(value)
        if block is not None:
            self.inputs.add(value)
        elif (worst := self._lost(value)) is not None:
            dtype = hlo.shape_of(value).dtype
            self.constants[value] = f"{dtype} constant {worst} does not fit 32 bits and wraps"
        elif isinstance(source, hlo.BitcastConvertOp):
            self.constants[value] = f"{source.shape.dtype} made from words is computed on 32 bits"
        elif source is not None and not self._is_constant(value):
            for operand in source.operands:
                self.cut(operand)

    def _is_constant(self, value: hlo.SSAValue) -> bool:
        return constant_of(value, self.module) is not None or splat_number(value, self.module) is not None

    def _lost(self, value: hlo.SSAValue) -> int | None:
        """An element of the constant ``value`` that does not fit."""
        array, number = constant_of(value, self.module), splat_number(value, self.module)
        low, high = narrow_range(hlo.shape_of(value).dtype)
        if number is not None:
            return None if low <= number <= high else int(number)
        if array is None or not array.size:
            return None
        out = (array < low) | (array > high)
        return int(array[out].flat[0]) if out.any() else None

    def of_values(self, context: PassContext) -> None:
        if self.inputs:
            called = zip(self.module.entry.block.args, argument_names(self.module.entry), strict=True)
            names = [name or hlo.loc_of(value).name for value, name in called if value in self.inputs]
            context.warn(CODE, f"64-bit integer inputs are truncated to 32 bits: {', '.join(names)}")
        for value, message in self.constants.items():
            context.warn(CODE, message, hlo.loc_of(value))
