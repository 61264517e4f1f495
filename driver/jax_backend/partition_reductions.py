"""Reductions over dims that are split over devices: each device reduces its part, and an all-reduce combines the parts.

jaxlib's passes combine the parts by addition, whatever the reduction does. ``combines`` says of which reductions the
parts may be combined; ``correct`` puts their own operation in the place of the additions afterwards.
"""

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

GIVEN = "neuron.given"
"""Marks the all-reduces and reduce-scatters that the program itself has."""

_SUMS = ("stablehlo.all_reduce", "stablehlo.reduce_scatter")
_IDEMPOTENT = {
    "stablehlo.maximum": stablehlo.MaxOp,
    "stablehlo.minimum": stablehlo.MinOp,
    "stablehlo.and": stablehlo.AndOp,
    "stablehlo.or": stablehlo.OrOp,
}
"""Each part may start from the initial value, whatever it is."""
_NEUTRAL = {"stablehlo.add": (stablehlo.AddOp, 0), "stablehlo.multiply": (stablehlo.MulOp, 1)}
"""Each part starts from the initial value, which must not count."""


def combines(op: Any) -> bool:
    """Whether what ``op``, a ``stablehlo.reduce``, makes of parts of its operand can be combined by an all-reduce."""
    if len(op.operands) != 2:
        return False
    kind = kind_of(op)
    return kind in _IDEMPOTENT or (kind in _NEUTRAL and is_splat(op.operands[1], _NEUTRAL[kind][1]))


def kind_of(op: Any) -> str:
    """The binary op that the computation of a reduction or scatter of one operand is, or nothing."""
    block = op.regions[0].blocks[0]
    inner = [each.operation for each in block.operations]
    if len(inner) != 2 or set(inner[0].operands) != set(block.arguments):
        return ""
    return str(inner[0].name)


def is_splat(value: Any, wanted: int) -> bool:
    """Whether ``value`` is a constant of one number, or an array made of it."""
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.operation.name in ("stablehlo.broadcast_in_dim", "sdy.reshard"):
        owner = owner.operation.operands[0].owner
    if isinstance(owner, ir.Block) or owner.operation.name not in ("stablehlo.constant", "sdy.constant"):
        return False
    elements = ir.DenseElementsAttr(owner.operation.attributes["value"])
    number: Any = elements.get_splat_value() if elements.is_splat else None
    return number is not None and bool(number.value == wanted)


def mark_given(module: Any) -> None:
    """Mark what ``correct`` must leave alone."""

    def mark(op: Any) -> Any:
        if op.name in _SUMS:
            op.attributes[GIVEN] = ir.UnitAttr.get()
        return ir.WalkResult.ADVANCE

    module.operation.walk(mark)


def correct(module: Any) -> None:
    """Let the all-reduces that the passes have made combine as the reductions do whose parts they take.

    Raises ValueError for a reduction whose parts do not combine.
    """
    found: list[Any] = []

    def note(op: Any) -> Any:
        if op.name in _SUMS:
            if GIVEN in op.attributes:
                del op.attributes[GIVEN]
            else:
                found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(note)
    for op in found:
        part = op.operands[0].owner
        if isinstance(part, ir.Block) or part.operation.name != "stablehlo.reduce":
            continue
        kind = kind_of(part.operation) if len(part.operation.operands) == 2 else ""
        if kind in _IDEMPOTENT:
            _apply(op, _IDEMPOTENT[kind])
        elif kind in _NEUTRAL:
            _apply(op, _NEUTRAL[kind][0])
        else:
            raise ValueError("parts of a reduction of another kind are combined")


def _apply(op: Any, combiner: Any) -> None:
    block = op.regions[0].blocks[0]
    old = next(iter(block.operations)).operation
    with ir.InsertionPoint(old), op.location:
        new = combiner(*block.arguments)
    old.results[0].replace_all_uses_with(new.result)
    old.erase()
