"""Instructions of a chain that multiply an array, and add to it, by numbers of its rows on the way into a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from neuronx_cc.codegen.formation.graph import Kernel, trace
from neuronx_cc.codegen.maps.elementwise import ACTIVATION
from neuronx_cc.codegen.maps.fusion import Fusion
from neuronx_cc.codegen.maps.lifetimes import Member
from neuronx_cc.ir import hlo

Value = hlo.SSAValue


@dataclass(frozen=True, slots=True)
class Shifted:
    """``function(array * factor + summand)``."""

    function: str
    """Of Scalar's tables; ``copy`` where there is none."""
    array: Value
    factor: Value | float
    """A number of each row, or of all."""
    summand: Value
    """A number of each row."""


def take_shifted(
    kernel: Kernel, member: Member, fusion: Fusion, splat: Callable[[Value], float | None]
) -> dict[hlo.HloOp, Shifted]:
    """The ops with such instructions; adds what these compute besides to the ops of ``fusion`` that are part of one."""

    def is_row(value: Value) -> bool:
        source = trace(value, kernel, member)
        return source is not None and kernel.is_row(hlo.shape_of(source))

    found: dict[hlo.HloOp, Shifted] = {}
    for op in kernel.ops:
        wide = isinstance(op, hlo.AddOp) and op.shape.dtype == "f32" and not kernel.is_row(op.shape)
        rows = [is_row(x) for x in op.operands] if wide else []
        if sum(rows) != 1 or op in fusion.users or op in fusion.casts.values():
            continue
        array, summand = op.operands[rows.index(False)], op.operands[rows.index(True)]
        factor: Value | float = 1.0
        root, inside, function = op, list[hlo.HloOp](), "copy"
        product = array.owner
        if isinstance(product, hlo.MultiplyOp) and fusion.only_user(product) is op:
            for x, y in (product.operands, reversed(product.operands)):
                constant = splat(y)
                if constant is not None or is_row(y):
                    inside, array, factor = [product], x, y if constant is None else constant
        user = fusion.only_user(op)
        if user is not None and user.opcode in ACTIVATION and user.shape.dtype == "f32" and user not in fusion.within:
            root, inside, function = user, [*inside, op], ACTIVATION[user.opcode]
        if splat(array) is None and fusion.functions.keys().isdisjoint((root, *inside)):
            fusion.users.update(dict.fromkeys(inside, root))
            found[root] = Shifted(function, array, factor, summand)
    return found
