"""Brings ops on 64-bit integers into forms that can be taken apart.

Each computation on scalars serves one op, so that what one op gives it does not make another's wider. Where 64 bits are
kept, the largest elements are the first of a sort, and the gradient of pooling is made of whole arrays.
"""

from typing import Any, cast

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import ops_of, replace
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.analysis.intervals import NARROW
from neuronx_cc.passes.expand_select_and_scatter import sweep
from neuronx_cc.passes.expansions.build import Build, Value, replace_elements
from neuronx_cc.passes.expansions.combiners import duplicate


def run(module: HloModule, exact: bool) -> None:
    taken: set[str] = set()
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):  # the elements after an op are erased with it
            if exact and isinstance(op, hlo.TopkOp) and _is_wide(op.operand):
                _sort(module, op)
            elif exact and isinstance(op, hlo.SelectAndScatterOp) and _is_wide(op.results[0]):
                replace(op, sweep(module, op))
    for computation in list(module.computations()):
        for op in ops_of(computation.block):
            if hasattr(op, "to_apply"):
                _own(module, op, taken)


def _is_wide(value: Value) -> bool:
    return isinstance(value.type, hlo.ArrayType) and value.type.data.dtype in NARROW


def _own(module: HloModule, op: hlo.HloOp, taken: set[str]) -> None:
    names = list(cast(Any, op).to_apply.data)
    for place, name in enumerate(names):
        body = module.computation(name)
        if not any(_is_wide(value) for value in body.block.args):
            continue
        if name in taken and not any(called_names(inner) for inner in ops_of(body.block)):
            names[place] = Build.before(module, op).fresh_name(name)
            module.op.body.block.insert_op_after(duplicate(module, body, names[place]), body)
        taken.add(names[place])
    op.properties["to_apply"] = hlo.StrsAttr(tuple(names))


def _sort(module: HloModule, op: hlo.TopkOp) -> None:
    """A stable sort of the elements with their places, of which the first are the result."""
    b = Build.before(module, op)
    shape = hlo.shape_of(op.operand)
    axis = shape.rank - 1
    places = b.iota(shape.dims, axis)
    scalars = [hlo.array_type(dtype, ()) for dtype in (shape.dtype, shape.dtype, "s32", "s32")]
    body, inner = b.computation(b.fresh_name("top_k"), scalars)
    left, right = body.block.args[:2]
    body.block.last_op.operands = [inner.compare(left, right, "GT" if op.largest.data else "LT")]  # type: ignore[union-attr]
    properties: dict[str, hlo.Attribute] = {
        "dimension": hlo.IntAttr(axis),
        "is_stable": hlo.BoolAttr(True),
        "to_apply": hlo.StrsAttr((body.computation_name,)),
    }
    types = hlo.tuple_type((op.operand.type, places.type))
    both = b.typed(hlo.SortOp, (op.operand, places), types, **properties)
    replace_elements(op, [b.slice(b.element(both, place), axis, 0, op.k.data) for place in (0, 1)])
