"""Numbers that are known at compile time, without the dims along which they repeat.

Places of a gather are often made of counts along one or two of many dims. An array here has the rank of its value, and
size 1 along dims in which all numbers are the same, so that it is no larger than what it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.passes.expansions.repeated import groups

Array = np.ndarray[Any, Any]
MOST_NUMBERS = 1 << 24
"""Of an array that is computed at compile time."""
MOST_OPS = 256
"""Ops that such an array is made by."""


def known_places(value: hlo.SSAValue, module: HloModule) -> Array | None:
    """What ``value`` is in every run, where it is made of constants and counts alone, elementwise and by views."""
    from neuronx_cc.ir.reference import evaluator

    order: list[hlo.HloOp] = []
    if not _listed(value, order, set()):
        return None
    engine, values = evaluator(module), dict[hlo.SSAValue, Array]()
    for op in order:
        made = _made(op, [values[operand] for operand in op.operands], module, engine)
        if made is None or made.size > MOST_NUMBERS:
            return None
        values[op.results[0]] = made
    return values[value]


def _listed(value: hlo.SSAValue, order: list[hlo.HloOp], seen: set[hlo.SSAValue]) -> bool:
    """Whether it is so; ``order`` gets the ops, each after those that it uses."""
    if value in seen:
        return True
    seen.add(value)
    op = defining_op(value)
    kinds = hlo.ElementwiseOp | hlo.ViewOp | hlo.IdentityOp | hlo.ConcatenateOp | hlo.ConstantOp | hlo.IotaOp
    if not isinstance(op, kinds) or isinstance(op, hlo.OpaqueOp | hlo.ApplyingOp) or len(seen) > MOST_OPS:
        return False
    if not all(_listed(operand, order, seen) for operand in op.operands):
        return False
    order.append(op)
    return True


def _made(op: hlo.HloOp, operands: Sequence[Array], module: HloModule, engine: Any) -> Array | None:
    dims = op.shape.dims
    if isinstance(op, hlo.ConstantOp):
        array = module.constants[op.value.data]
        return array[(slice(0, 1),) * array.ndim] if array.size and not any(array.strides) else array
    if isinstance(op, hlo.IotaOp):
        axis = op.iota_dimension.data
        return np.arange(dims[axis]).astype(NUMPY_DTYPE[op.shape.dtype]).reshape(_along(axis, dims))
    if isinstance(op, hlo.BroadcastOp):
        sizes = [1] * len(dims)
        for axis, size in zip(op.dimensions.data, operands[0].shape, strict=True):
            sizes[axis] = size
        return operands[0].reshape(sizes)
    if isinstance(op, hlo.ReshapeOp | hlo.BitcastOp):
        return _reshaped(operands[0], hlo.shape_of(op.operands[0]).dims, dims)
    if isinstance(op, hlo.TransposeOp):
        return operands[0].transpose(op.dimensions.data)
    if isinstance(op, hlo.ReverseOp):
        return np.flip(operands[0], op.dimensions.data)
    if isinstance(op, hlo.SliceOp):
        cuts = [slice(dim.start, dim.limit, dim.stride) for dim in op.slice.data]
        return operands[0][
            tuple(cut if size > 1 else slice(None) for cut, size in zip(cuts, operands[0].shape, strict=True))
        ]
    if isinstance(op, hlo.ConcatenateOp):
        axis = op.dimension.data
        shared = [max(sizes) for sizes in zip(*(each.shape for each in operands), strict=True)]
        parts = []
        for each, operand in zip(operands, op.operands, strict=True):
            shared[axis] = hlo.shape_of(operand).dims[axis]
            parts.append(np.broadcast_to(each, shared))
        return np.concatenate(parts, axis)
    if isinstance(op, hlo.IdentityOp):
        return operands[0]
    scalars = [
        each if each.ndim == len(dims) else each.reshape((1,) * len(dims))
        for each in operands
        if each.ndim in (0, len(dims))
    ]
    if len(scalars) < len(operands):
        return None
    if prod(max(sizes) for sizes in zip(*(each.shape for each in scalars), strict=True)) > MOST_NUMBERS:
        return None
    return np.asarray(engine.apply(op, scalars))


def _along(axis: int, dims: Sequence[int]) -> list[int]:
    return [size if dim == axis else 1 for dim, size in enumerate(dims)]


def _reshaped(array: Array, before: Sequence[int], after: Sequence[int]) -> Array:
    """Dims that stay, and those that are joined or split while nothing varies along them, go on repeating."""
    sizes: list[int] = []
    filled: list[int] = []
    for old, new in groups(before, after):
        group, given = before[old.start : old.stop], array.shape[old.start : old.stop]
        made = after[new.start : new.stop]
        if all(size == 1 for size in given):
            filled += given
            sizes += [1] * len(made)
        else:
            kept = [size for size in group if size > 1] == [size for size in made if size > 1]
            varies = iter([size for size, whole in zip(given, group, strict=True) if whole > 1])
            filled += given if kept else group
            sizes += [next(varies) if kept and size > 1 else size for size in made]
    return np.broadcast_to(array, filled).reshape(sizes)
