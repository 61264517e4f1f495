"""Float constants, and elements of stacks of them that are taken at run time, as loops over layers do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.types import NUMPY_DTYPE, WIDE_FLOATS
from neuronx_cc.passes.expansions.build import Build

Array = np.ndarray[Any, np.dtype[Any]]
CAST = WIDE_FLOATS | {"f8e4m3", "f8e5m2"}
"""Types that the core has."""
MADE = hlo.TransposeOp | hlo.ReshapeOp | hlo.SliceOp | hlo.ConvertOp | hlo.DynamicSliceOp


@dataclass(frozen=True, slots=True)
class Stack:
    """A constant with the dims of a value after those of the stack that the value is taken from."""

    array: Array
    places: tuple[hlo.SSAValue, ...] = ()
    """Of the value in each dim of the stack."""

    def with_each(self, change: Callable[[Array, int], Array]) -> Stack:
        """``change`` is given the array, and how many dims of the stack there are ahead of the value's."""
        return Stack(change(self.array, len(self.places)), self.places)


def constant_of_stack(module: hlo.HloModule, value: hlo.SSAValue) -> Stack | None:
    """What movement and casts make of a constant that is no splat, or of an element of one."""
    op = defining_op(value)
    if hlo.shape_of(value).dtype not in CAST:
        return None
    if isinstance(op, hlo.ConstantOp):
        array = module.constants[op.value.data]
        return Stack(array) if array.ndim == len(op.shape.dims) and any(array.strides) else None
    inner = constant_of_stack(module, op.operands[0]) if isinstance(op, MADE) else None
    if inner is None:
        return None
    if isinstance(op, hlo.DynamicSliceOp):
        return None if inner.places else _element(inner.array, op)
    if isinstance(op, hlo.TransposeOp):
        order = op.dimensions.data
        return inner.with_each(lambda array, n: array.transpose([*range(n), *(n + axis for axis in order)]))
    if isinstance(op, hlo.SliceOp):
        parts = [slice(dim.start, dim.limit, dim.stride) for dim in op.slice.data]
        return inner.with_each(lambda array, n: array[tuple([*[slice(None)] * n, *parts])])
    shape = hlo.shape_of(value)
    if isinstance(op, hlo.ReshapeOp):
        return inner.with_each(lambda array, n: array.reshape((*array.shape[:n], *shape.dims)))
    return inner.with_each(lambda array, _: array.astype(NUMPY_DTYPE[shape.dtype]))


def _element(array: Array, op: hlo.DynamicSliceOp) -> Stack | None:
    """What ``op`` takes at one place along some dims, and whole along the others; None where it takes more or less."""
    sizes = op.dynamic_slice_sizes.data
    cut = [axis for axis, size in enumerate(sizes) if size != array.shape[axis]]
    if any(sizes[axis] != 1 for axis in cut):
        return None
    stacked = np.moveaxis(array, cut, range(len(cut)))
    places = tuple(op.operands[1 + axis] for axis in cut)
    return Stack(np.expand_dims(stacked, [len(cut) + axis for axis in cut]), places)


def element(b: Build, stack: hlo.SSAValue, places: tuple[hlo.SSAValue, ...]) -> hlo.SSAValue:
    """What is at ``places`` in the first dims of ``stack``."""
    if not places:
        return stack
    dims = hlo.shape_of(stack).dims[len(places) :]
    zero = b.number_like(0, places[0])
    part = b.dynamic_slice(stack, [*places, *(zero for _ in dims)], [*(1 for _ in places), *dims])
    return b.reshape(part, dims)
