"""Takes parts of parts of a constant from the constant, where a loop inside another one walks through a part.

Input: ``flatten_control``'s form, after ``hoist_invariants``. A scan over stages that scan over layers takes the layers
of a stage from all weights, and hands them on to the inner loop, which takes one by one. Output: the inner loop is
handed the place, and takes the layer from all weights, so that these can be laid out once (``lay_out_stacks``):

    slice(reshape(slice(weights, i)), j)  ->  reshape(slice(weights, (i, j)))
"""

from collections.abc import Sequence
from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import copy_op, defining_op, erase, ops_of, replace, users
from neuronx_cc.passes.analysis.loop_state import Invariants
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext, only_for


@dataclass(frozen=True, slots=True)
class _Part:
    """An element of a constant along some dims, without these."""

    constant: hlo.ConstantOp
    cut: tuple[int, ...]
    places: tuple[hlo.SSAValue, ...]


@only_for(hlo.WhileOp)
def run(module: HloModule, context: PassContext) -> None:
    del context
    for computation in reversed(list(module.computations())):  # what is taken in an outer loop is handed on inwards
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.WhileOp):
                _hand_on(module, op)


def _hand_on(module: HloModule, loop: hlo.WhileOp) -> None:
    known = Invariants(module, loop)
    handed: dict[hlo.SSAValue, Sequence[hlo.SSAValue]] = {}
    for inside, outside in list(known.outside.items()):
        part, readers = _part(outside), [user for user in users(inside) if user is not known.body.root.owner]
        if part is None or not readers or not all(_takes_from(reader, inside) for reader in readers):
            continue
        if outside not in handed:
            handed[outside] = known.hand_in(part.places)
        for reader in readers:
            assert isinstance(reader, hlo.DynamicSliceOp)
            _take(module, reader, part, handed[outside])


def _takes_from(reader: hlo.Operation, value: hlo.SSAValue) -> bool:
    return isinstance(reader, hlo.DynamicSliceOp) and reader.operands[0] is value


def _part(value: hlo.SSAValue) -> _Part | None:
    reshape = defining_op(value)
    taken = defining_op(reshape.operands[0]) if isinstance(reshape, hlo.ReshapeOp) else None
    constant = defining_op(taken.operands[0]) if isinstance(taken, hlo.DynamicSliceOp) else None
    if not isinstance(taken, hlo.DynamicSliceOp) or not isinstance(constant, hlo.ConstantOp):
        return None
    whole, sizes = constant.shape.dims, taken.shape.dims
    cut = tuple(axis for axis, (dim, size) in enumerate(zip(whole, sizes, strict=True)) if dim != size)
    left = tuple(size for axis, size in enumerate(sizes) if axis not in cut)
    if any(sizes[axis] != 1 for axis in cut) or hlo.shape_of(value).dims != left:
        return None
    return _Part(constant, cut, tuple(taken.operands[1 + axis] for axis in cut))


def _take(module: HloModule, reader: hlo.DynamicSliceOp, part: _Part, places: Sequence[hlo.SSAValue]) -> None:
    b = Build.before(module, reader)
    constant = copy_op(part.constant, [])
    block = reader.parent
    assert block is not None
    block.insert_op_before(constant, reader)
    starts, sizes = list(reader.operands[1:]), list(reader.shape.dims)
    dtype = hlo.shape_of(starts[0]).dtype
    for axis, place in zip(part.cut, places, strict=True):
        starts.insert(axis, b.convert(place, dtype))
        sizes.insert(axis, 1)
    taken = b.dynamic_slice(constant.results[0], starts, sizes)
    for user in users(reader.results[0]):
        if isinstance(user, hlo.ReshapeOp):
            replace(user, b.reshape(taken, user.shape.dims))
    if reader.results[0].first_use is None:
        erase(reader)
    else:
        replace(reader, b.reshape(taken, reader.shape.dims))
