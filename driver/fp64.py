"""What a module means in FP64: the reference semantics with every FP32 value as wide.

Input: a module that evaluates, in FP32. Output: how far the outputs of a program, and those of FP32 itself, are from
FP64. Where both are about as far, as in training steps that amplify last bits, a difference between them says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronx_cc.driver.check import Array, largest_difference
from neuronx_cc.driver.side_by_side import joined, side_by_side
from neuronx_cc.ir import hlo, reference
from neuronx_cc.ir.constants import is_splat
from neuronx_cc.ir.hlo.editing import insert_before, ops_of, retype

AS_NEAR = 2.0
"""Times the distance of FP32 semantics up to which outputs are as near to FP64."""


@dataclass(frozen=True, slots=True)
class FromFp64:
    """Relative 2-norms of the differences from FP64, of the worst output."""

    outputs: float
    fp32: float

    def __str__(self) -> str:
        judged = "as near as FP32 can be" if self.outputs <= AS_NEAR * self.fp32 else "farther than FP32 need be"
        return f"accuracy: outputs differ from FP64 by {self.outputs:.1e}, FP32 semantics by {self.fp32:.1e}: {judged}"


def from_fp64(module: hlo.HloModule, inputs: Sequence[Sequence[Array]], outputs: Sequence[Sequence[Array]]) -> FromFp64:
    """Of the outputs of a program for ``module``, given those of each device. Raises what the reference raises."""
    widest = widened(module)

    def wide(device: int) -> list[Array]:
        given = [array.astype(np.float64) if array.dtype == np.float32 else array for array in inputs[device]]
        return reference.evaluate(widest, given)

    exact = joined(side_by_side(widest, wide))
    narrow = joined(side_by_side(module, lambda device: reference.evaluate(module, list(inputs[device]))))
    return FromFp64(largest_difference(joined(outputs), exact), largest_difference(narrow, exact))


def widened(module: hlo.HloModule) -> hlo.HloModule:
    """A copy in which f32 is f64; only where bits are looked at are values f32 for that long."""
    wide = module.copy()
    for computation in wide.computations():
        for argument in computation.block.args:
            retype(argument, _wider(argument.type))
        for op in ops_of(computation.block):
            if isinstance(op, hlo.BitcastConvertOp):
                _between(op)
                continue
            if isinstance(op, hlo.ConstantOp) and op.shape.dtype == "f32":
                op.properties["value"] = hlo.ConstantAttr(wide.constants.add(_exactly(wide, op), "f64"))
            for result in op.results:
                retype(result, _wider(result.type))
    return wide


def _wider(type_: Any) -> Any:
    if isinstance(type_, hlo.TupleType):
        return hlo.tuple_type(tuple(_wider(part) for part in type_.data))
    if isinstance(type_, hlo.ArrayType) and type_.data.dtype == "f32":
        return hlo.array_type("f64", type_.data.dims)
    return type_


def _exactly(module: hlo.HloModule, op: hlo.ConstantOp) -> Array:
    array = module.constants[op.value.data]
    if is_splat(array):
        return np.broadcast_to(array[(0,) * array.ndim].astype(np.float64), array.shape)
    return array.astype(np.float64)


def _between(op: hlo.BitcastConvertOp) -> None:
    """Bits of f32 stay those of f32."""
    (operand,), result = op.operands, op.results[0]
    shape = hlo.shape_of(operand)
    if shape.dtype == "f64":
        op.operands = [insert_before(op, hlo.ConvertOp, (operand,), hlo.array_type("f32", shape.dims), op.loc)]
    if op.shape.dtype == "f32":
        users = [(use.operation, use.index) for use in result.uses]
        following = op.next_op
        assert following is not None
        made = insert_before(following, hlo.ConvertOp, (result,), hlo.array_type("f64", op.shape.dims), op.loc)
        for user, index in users:
            user.operands[index] = made
