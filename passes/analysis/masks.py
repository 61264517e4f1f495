"""What masks by place and device are. No pass: passes that move what they hide ask it."""

from functools import reduce
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.reference.elementwise import ELEMENTWISE
from neuronx_cc.passes.analysis.devices import device_counts, numbers_of
from neuronx_cc.passes.analysis.values import splat_of

Array = np.ndarray[Any, Any]
MOST_ELEMENTS = 1 << 16
"""Of a mask on all devices together, with dims along which it is the same counted as 1."""


class Masks:
    """What values that depend on places and the device's number alone are: [device, dims...], where dims along which
    a value is the same have size 1.
    """

    def __init__(self, module: HloModule) -> None:
        self._module = module
        self._devices = int(np.prod(device_counts(module)))
        self._known: dict[hlo.SSAValue, Array | None] = {}

    def of(self, value: hlo.SSAValue) -> Array | None:
        """None for a value that depends on others too."""
        if value not in self._known:
            self._known[value] = None
            self._known[value] = self._made(value)
        return self._known[value]

    def _made(self, value: hlo.SSAValue) -> Array | None:
        op = defining_op(value)
        if not isinstance(op, hlo.HloOp) or not isinstance(op.results[0].type, hlo.ArrayType):
            return None
        shape = hlo.shape_of(value)
        known = splat_of(value, self._module)
        if known is not None:
            return known.reshape((1,) * (1 + shape.rank))
        if shape.size == 1:
            numbers = numbers_of(value, self._module) if shape.dtype in ("s32", "u32") else None
            return None if numbers is None else np.array(numbers).reshape(-1, *(1,) * shape.rank)
        if isinstance(op, hlo.IotaOp):
            dim = op.iota_dimension.data
            return np.arange(shape.dims[dim]).reshape([-1 if axis == dim + 1 else 1 for axis in range(1 + shape.rank)])
        if isinstance(op, hlo.BroadcastOp | hlo.TransposeOp):
            return self._moved(op)
        return self._computed(op) if isinstance(op, hlo.ElementwiseOp) else None

    def _moved(self, op: hlo.BroadcastOp | hlo.TransposeOp) -> Array | None:
        given = self.of(op.operands[0])
        if given is None:
            return None
        to = op.dimensions.data
        if isinstance(op, hlo.TransposeOp):
            return given.transpose([0, *(1 + axis for axis in to)])
        sizes = dict(zip(to, given.shape[1:], strict=True))
        return given.reshape(given.shape[0], *(sizes.get(dim, 1) for dim in range(hlo.shape_of(op.results[0]).rank)))

    def _computed(self, op: hlo.HloOp) -> Array | None:
        given: list[Array] = []
        for operand in op.operands:
            array = self.of(operand)
            if array is None:
                return None
            given.append(array)
        shape = reduce(np.broadcast_shapes, (array.shape for array in given))
        if np.prod(shape) > MOST_ELEMENTS or op.opcode not in ELEMENTWISE:
            return None
        return np.asarray(ELEMENTWISE[op.opcode](op, *given))
