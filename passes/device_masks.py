"""Masks by device that a partitioner puts on what it has joined from neighbours' parts stay where they hide something.

Windows over a split dim read rows of neighbours: XLA joins these with a device's own rows and selects, by the device's
number and the place of each row, what lies inside of the whole array. Input: a module for several devices. Output:
selects by masks that are true for all rows of all devices are gone; of a concatenation only those parts pass through a
select that some device hides, and none that a device without a sender fills with zeros: it receives zeros.
"""

from functools import reduce
from typing import Any

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.ir.reference.elementwise import ELEMENTWISE
from neuronx_cc.passes.analysis.devices import device_counts, numbers_of
from neuronx_cc.passes.analysis.values import is_positive_zero, splat_number, splat_of
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext, only_for

Array = np.ndarray[Any, Any]
MOST_ELEMENTS = 1 << 16
"""Of a mask on all devices together, with dims along which it is the same counted as 1."""


@only_for(hlo.SelectOp)
def run(module: HloModule, context: PassContext) -> None:
    if device_counts(module) == (1, 1):
        return
    masks = _Masks(module)
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.SelectOp) and hlo.shape_of(op.operands[0]).rank:
                mask = masks.of(op.operands[0])
                if mask is not None:
                    _simplify(op, mask, module)


class _Masks:
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


def _simplify(op: hlo.SelectOp, mask: Array, module: HloModule) -> None:
    """``mask``: what the op selects by."""
    _, on_true, on_false = op.operands
    if mask.all() or not mask.any():
        replace(op, on_true if mask.all() else on_false)
        return
    for value, other, shown in ((on_true, on_false, mask), (on_false, on_true, ~mask)):
        joined, filler = defining_op(value), splat_number(other, module)
        if isinstance(joined, hlo.ConcatenateOp) and filler is not None:
            dim = joined.dimension.data
            if all(size == 1 for axis, size in enumerate(shown.shape[1:]) if axis != dim) and shown.shape[1 + dim] > 1:
                _mask_parts(op, joined, shown, is_positive_zero(filler), module)
            return


def _mask_parts(op: hlo.SelectOp, joined: hlo.ConcatenateOp, shown: Array, zeros: bool, module: HloModule) -> None:
    """Select parts of ``joined`` alone, if any part needs no select."""
    dim, start = joined.dimension.data, 0
    build = Build.before(module, op)
    hidden: list[tuple[int, int, bool]] = []
    for part in joined.operands:
        end = start + hlo.shape_of(part).dims[dim]
        rows = shown.take(range(start, end), axis=1 + dim).reshape(shown.shape[0], -1)
        hidden.append((start, end, not (rows.all() or (zeros and _is_zero_where(part, rows)))))
        start = end
    if all(is_hidden for *_, is_hidden in hidden):
        return
    first = op.operands[1] is joined.results[0]
    parts = []
    for part, (start, end, is_hidden) in zip(joined.operands, hidden, strict=True):
        if is_hidden:
            predicate, other = (build.slice(op.operands[at], dim, start, end) for at in (0, 2 if first else 1))
            part = build.select(predicate, *((part, other) if first else (other, part)))
        parts.append(part)
    replace(op, build.typed(hlo.ConcatenateOp, parts, op.results[0].type, dimension=hlo.IntAttr(dim)))


def _is_zero_where(part: hlo.SSAValue, rows: Array) -> bool:
    """Whether ``part`` holds zeros on each device that hides some of its rows (``rows``: those that it shows): what a
    device without a sender receives.
    """
    op = defining_op(part)
    while isinstance(op, hlo.TransposeOp | hlo.ReshapeOp | hlo.SliceOp | hlo.ReverseOp):
        op = defining_op(op.operands[0])
    if not isinstance(op, hlo.CollectivePermuteOp):
        return False
    receivers = {target for _, target in op.source_target_pairs.data}
    return all(row.all() or (len(rows) > 1 and device not in receivers) for device, row in enumerate(rows))
