"""Scans as one op: a custom call ``neuronx_cc.scan`` that passes make and map kernels compute along one dim.

Operands: k arrays of one shape. ``called``: one computation that combines k scalars of what comes before with k scalars
of what follows, associatively. Result: array ``result`` of the k folds of all elements up to each one along ``axis``
(from each one on with ``reverse``). There is no initial value: the first element stays as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.ir.types import FLOATS
from neuronx_cc.passes.build import Build, Value
from neuronx_cc.passes.values import COMBINERS

TARGET = "neuronx_cc.scan"

RECURRENCES = frozenset([("add", "multiply"), ("maximum", "add"), ("minimum", "add")])
"""(outer, inner) of ``h = outer(inner(a, h), b)`` where the inner op distributes over the outer one."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan op says about itself."""

    axis: int
    reverse: bool
    result: int
    body: str


def scan_of(op: hlo.Operation) -> Scan | None:
    """None for other ops."""
    if not isinstance(op, hlo.CustomCallOp) or op.target.data != TARGET:
        return None
    assert op.backend_config is not None
    assert op.called is not None
    axis, reverse, result = (int(word) for word in op.backend_config.data.split())
    return Scan(axis, bool(reverse), result, op.called.data[0])


def body_of(op: hlo.HloOp) -> hlo.ComputationOp:
    """The computation that the scan ``op`` calls."""
    scan, caller = scan_of(op), op.parent_op()
    assert scan is not None
    assert caller is not None
    assert caller.parent is not None
    for computation in caller.parent.ops:
        if isinstance(computation, hlo.ComputationOp) and computation.computation_name == scan.body:
            return computation
    raise AssertionError(f"no computation {scan.body}")


def insert(
    build: Build, arrays: Sequence[Value], body: str, axis: int, reverse: bool = False, result: int = 0
) -> Value:
    """Array ``result`` of the scan of ``arrays`` along ``axis`` by the computation ``body``."""
    properties = {
        "target": hlo.StrAttr(TARGET),
        "backend_config": hlo.StrAttr(f"{axis} {int(reverse)} {result}"),
        "called": hlo.StrsAttr((body,)),
    }
    return build.typed(hlo.CustomCallOp, arrays, arrays[result].type, **properties)


def recurrence_body(build: Build, outer: str, inner: str, dtype: str) -> str:
    """Name of the computation that composes two steps ``h -> outer(inner(a, h), b)``, made if the module lacks it."""
    name = f"recurrence.{outer}.{inner}.{dtype}"
    if any(computation.computation_name == name for computation in build.module.computations()):
        return name
    scalar = hlo.array_type(dtype, ())
    computation, inside = build.computation(name, [scalar] * 4)
    a, b, later_a, later_b = computation.block.args
    both = inside.each(hlo.OPCODES[inner], later_a, a)
    value = inside.each(hlo.OPCODES[outer], inside.each(hlo.OPCODES[inner], later_a, b), later_b)
    packed = inside.typed(hlo.TupleOp, [both, value], hlo.tuple_type((scalar, scalar)))
    computation.block.last_op.operands = [packed]  # type: ignore[union-attr]
    return name


def recurrence(body: hlo.ComputationOp) -> tuple[str, str] | None:
    """(outer, inner) when ``body`` composes two steps ``h -> outer(inner(a, h), b)`` of floats; else None."""
    args, root = list(body.block.args), defining_op(body.root)
    if len(args) != 4 or not isinstance(root, hlo.TupleOp) or hlo.shape_of(args[0]).dtype not in FLOATS:
        return None
    a, b, later_a, later_b = args
    both, value = (defining_op(part) for part in root.operands)
    if both is None or value is None or set(both.operands) != {a, later_a} or len(both.operands) != 2:
        return None
    if type(value) not in COMBINERS or later_b not in value.operands:
        return None
    carried = next((defining_op(part) for part in value.operands if part is not later_b), None)
    if carried is None or type(carried) is not type(both) or set(carried.operands) != {later_a, b}:
        return None
    kinds = COMBINERS[type(value)], COMBINERS.get(type(carried), "")
    return kinds if kinds in RECURRENCES else None
