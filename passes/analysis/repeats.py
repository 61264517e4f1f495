"""Along which dims an array repeats its elements, through the views that it is made by. No pass: passes ask it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.expansions.build import Build, Value

Repeat = tuple[hlo.Operation, int]
"""A broadcast, and the dim that it adds."""


@dataclass(frozen=True, slots=True)
class Atom:
    """A part of a dim, the parts outermost first."""

    size: int
    repeat: Repeat | None = None
    """What repeats elements along it; None where they differ."""


Dims = tuple[tuple[Atom, ...], ...]


def repeats(value: Value, module: HloModule) -> Dims:
    """The atoms of each dim of ``value``; those of size 1 are left out."""
    op = defining_op(value)
    while isinstance(op, hlo.ElementwiseOp) and (varying := _varying(op, module)) is not None:
        value, op = varying, defining_op(varying)
    shape = hlo.shape_of(value)
    dims = shape.dims
    if isinstance(op, hlo.TransposeOp):
        inner = repeats(op.operand, module)
        return tuple(inner[dim] for dim in op.dimensions.data)
    if isinstance(op, hlo.ReshapeOp) and shape.size:
        return _cut([atom for atoms in repeats(op.operand, module) for atom in atoms], dims)
    if isinstance(op, hlo.BroadcastOp):
        inner, kept = repeats(op.operand, module), op.dimensions.data
        sizes = hlo.shape_of(op.operand).dims
        own = {to: atoms for to, atoms, size in zip(kept, inner, sizes, strict=True) if size == dims[to]}
        return tuple(own.get(dim, _whole(size, (op, dim))) for dim, size in enumerate(dims))
    return tuple(_whole(size) for size in dims)


def _varying(op: hlo.ElementwiseOp, module: HloModule) -> Value | None:
    """The only operand of ``op`` that is no splat."""
    varying = [operand for operand in op.operands if splat_number(operand, module) is None]
    return varying[0] if len(varying) == 1 else None


def _whole(size: int, repeat: Repeat | None = None) -> tuple[Atom, ...]:
    return (Atom(size, repeat),) if size != 1 else ()


def _cut(atoms: Sequence[Atom], dims: Sequence[int]) -> Dims:
    """``atoms`` as those of ``dims``. One that is cut is none that repeats."""
    left, found = list(atoms), []
    for size in dims:
        own: list[Atom] = []
        while (rest := size // prod(atom.size for atom in own)) > 1:
            atom = left.pop(0)
            if rest % atom.size == 0:
                own.append(atom)
            elif atom.size % rest == 0:
                own.append(Atom(rest))
                left.insert(0, Atom(atom.size // rest))
            else:  # neighbours are cut together
                left[0] = Atom(atom.size * left[0].size)
        found.append(tuple(own))
    return tuple(found)


def without(b: Build, value: Value, repeated: Set[Repeat]) -> Value:
    """``value`` with one index along the atoms ``repeated``, whose dims are as much smaller."""
    op, atoms = defining_op(value), repeats(value, b.module)
    if not any(atom.repeat in repeated for each in atoms for atom in each):
        return value
    dims = [prod(atom.size for atom in each if atom.repeat not in repeated) for each in atoms]
    if isinstance(op, hlo.BroadcastOp):
        return b.broadcast(without(b, op.operand, repeated), dims, op.dimensions.data)
    if isinstance(op, hlo.ReshapeOp):
        return b.reshape(without(b, op.operand, repeated), dims)
    if isinstance(op, hlo.TransposeOp):
        return b.transpose(without(b, op.operand, repeated), op.dimensions.data)
    assert isinstance(op, hlo.ElementwiseOp), "repeats looks through these"
    varying, operands = _varying(op, b.module), []
    for operand in op.operands:
        number = splat_number(operand, b.module)
        known = None if operand is varying or number is None else b.number(number, hlo.shape_of(operand).dtype, dims)
        operands.append(known or without(b, operand, repeated))
    return b.op(type(op), operands, op.shape.dtype, dims, **op.properties)
