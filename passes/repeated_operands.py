"""Contractions of operands that repeat their elements multiply each of them once.

Input: canonical hlo. An operand that is the same along a free dim has its product made for one index, and repeated.
One that is the same along a batch dim, or along a part of it, as keys that several heads share are, is multiplied with
all rows of the other operand at once: these indices are no batch.
One that is the same along all contracted dims (a splat, as the gradient of a sum is, or one number for each batch) is
a factor of the sum of the other operand's elements, taken before it is summed, so that what overflows is what did. Sums
are FP32, as TensorE's are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace
from neuronx_cc.ir.types import FLOATS, INTEGERS
from neuronx_cc.passes.analysis.repeats import Repeat, repeats, without
from neuronx_cc.passes.analysis.values import splat_of
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

NUMBERS = FLOATS | INTEGERS


@only_for(hlo.DotOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in module.computations():
        for op in ops_of(computation.block):
            if isinstance(op, hlo.DotOp) and op.shape.dtype in NUMBERS:
                _rewrite(module, op)


def _rewrite(module: HloModule, op: hlo.DotOp) -> None:
    dots = [op]
    while dots and (op := dots.pop()).shape.size:
        b, sides = Build.before(module, op), _sides(op, module)
        if any(side.repeated for side in sides):
            replace(op, _once(b, op, sides))
        elif (shared := _shared(sides, module)) is not None:
            dots.append(_as_rows(b, op, sides, *shared))


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand of a contraction."""

    value: Value
    batch: tuple[int, ...]
    contracted: tuple[int, ...]
    alike: frozenset[int] = frozenset()
    """The dims of more than one index along which elements are the same."""

    @property
    def dims(self) -> tuple[int, ...]:
        return hlo.shape_of(self.value).dims

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(dim for dim in range(len(self.dims)) if dim not in (*self.batch, *self.contracted))

    @property
    def repeated(self) -> bool:
        """Whether products with it are made more than once."""
        return not self.alike.isdisjoint(self.free) or self.is_factor

    @property
    def is_factor(self) -> bool:
        """Whether it is one number for each batch index."""
        alone = {dim for dim, size in enumerate(self.dims) if size > 1} - self.alike
        return alone <= set(self.batch) and not self.alike.isdisjoint(self.contracted)

    def without(self, b: Build) -> _Side:
        """One index of each free dim along which elements are the same."""
        value = self.value
        for dim in self.alike.intersection(self.free):
            value = b.slice(value, dim, 0, 1)
        return _Side(value, self.batch, self.contracted)


def _sides(op: hlo.DotOp, module: HloModule) -> tuple[_Side, _Side]:
    dims = op.dims.data
    return (
        _Side(op.lhs, dims.lhs_batch, dims.lhs_contracting, _alike(op.lhs, module)),
        _Side(op.rhs, dims.rhs_batch, dims.rhs_contracting, _alike(op.rhs, module)),
    )


def _alike(value: Value, module: HloModule) -> frozenset[int]:
    made, dims = defining_op(value), hlo.shape_of(value).dims
    kept = set(range(len(dims)))
    if splat_of(value, module) is not None:
        kept = set()
    elif isinstance(made, hlo.BroadcastOp):
        kept = {to for to, size in zip(made.dimensions.data, hlo.shape_of(made.operand).dims, strict=True) if size > 1}
    return frozenset(dim for dim, size in enumerate(dims) if size > 1 and dim not in kept)


# ---- batch dims -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shared:
    """How elements of an operand repeat along a batch dim: ``count`` times each, one after the other if ``inner``, or
    all of them as a whole.
    """

    place: int
    """Among the batch dims."""
    repeated: frozenset[Repeat]
    count: int
    inner: bool


def _shared(sides: tuple[_Side, _Side], module: HloModule) -> tuple[int, _Shared] | None:
    """The operand whose elements repeat along a batch dim, and how."""
    for number, side in enumerate(sides):
        atoms = repeats(side.value, module)
        for place, dim in enumerate(side.batch):
            same = [atom.repeat is not None for atom in atoms[dim]]
            if any(same) and same in (sorted(same), sorted(same, reverse=True)):
                repeated = frozenset(atom.repeat for atom in atoms[dim] if atom.repeat is not None)
                count = prod(atom.size for atom in atoms[dim] if atom.repeat is not None)
                return number, _Shared(place, repeated, count, same == sorted(same))
    return None


def _as_rows(b: Build, op: hlo.DotOp, sides: tuple[_Side, _Side], number: int, shared: _Shared) -> hlo.DotOp:
    """``op`` with what repeats along a batch dim as rows of the other operand; the new contraction."""
    own, other = sides[number], sides[1 - number]
    axis, at = own.batch[shared.place], other.batch[shared.place]
    array = without(b, own.value, shared.repeated)
    size, count = own.dims[axis] // shared.count, shared.count
    split = (size, count) if shared.inner else (count, size)
    rows = at + shared.inner
    wide = b.reshape(other.value, (*other.dims[:at], *split, *other.dims[at + 1 :]))

    def moved(dims: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dim + (dim > at or (dim == at and not shared.inner)) for dim in dims)

    kept = _Side(array, own.batch, own.contracted)
    spread = _Side(wide, moved(other.batch), moved(other.contracted))
    lhs, rhs = (kept, spread) if number == 0 else (spread, kept)
    numbers = hlo.DotDims(lhs.contracted, rhs.contracted, lhs.batch, rhs.batch)
    result = [*_sizes(lhs, (*lhs.batch, *lhs.free)), *_sizes(rhs, rhs.free)]
    made = b.typed(
        hlo.DotOp, (lhs.value, rhs.value), hlo.array_type(op.shape.dtype, tuple(result)),
        **{**op.properties, "dims": hlo.DotDimsAttr(numbers)},
    )  # fmt: skip
    beyond = len(lhs.batch) + (0 if spread is lhs else len(lhs.free)) + spread.free.index(rows)
    order = [dim for dim in range(len(result)) if dim != beyond]
    order.insert(shared.place + shared.inner, beyond)
    replace(op, b.reshape(b.transpose(made, order), op.shape.dims))
    assert isinstance(made.owner, hlo.DotOp)
    return made.owner


def _once(b: Build, op: hlo.DotOp, sides: tuple[_Side, _Side]) -> Value:
    """The result of ``op``, each product made once."""
    lhs, rhs = (side.without(b) for side in sides)
    kept = [*(lhs.dims[dim] for dim in (*lhs.batch, *lhs.free)), *(rhs.dims[dim] for dim in rhs.free)]
    if sides[0].is_factor or sides[1].is_factor:
        one = _scaled_sum(b, op, lhs, rhs, sides[0].is_factor)
    else:
        one = b.typed(hlo.DotOp, (lhs.value, rhs.value), hlo.array_type(op.shape.dtype, tuple(kept)), **op.properties)
    varying = [dim for dim, size in enumerate(kept) if size == op.shape.dims[dim]]
    return b.broadcast(b.reshape(one, [kept[dim] for dim in varying]), op.shape.dims, varying)


def _scaled_sum(b: Build, op: hlo.DotOp, lhs: _Side, rhs: _Side, left: bool) -> Value:
    """[batch, lhs free, rhs free] of a contraction one operand of which is one number for each batch index."""
    factor, other = (lhs, rhs) if left else (rhs, lhs)
    dtype = "f32" if op.shape.dtype in FLOATS else op.shape.dtype
    first = factor.value
    for dim in (*factor.contracted, *factor.free):
        first = b.slice(first, dim, 0, 1)
    first = b.transpose(first, (*factor.batch, *factor.contracted, *factor.free))
    numbers = b.reshape(first, _sizes(factor, factor.batch))
    spread = b.broadcast(b.convert(numbers, dtype), other.dims, other.batch)
    summed = b.sum(b.mul(b.convert(other.value, dtype), spread), sorted(other.contracted))
    rest = [dim for dim in range(len(other.dims)) if dim not in other.contracted]
    ordered = b.transpose(summed, [rest.index(dim) for dim in (*other.batch, *other.free)])
    ones, batch, free = [1] * len(factor.free), _sizes(other, other.batch), _sizes(other, other.free)
    dims = [*batch, *ones, *free] if left else [*batch, *free, *ones]
    return b.convert(b.reshape(ordered, dims), op.shape.dtype)


def _sizes(side: _Side, dims: tuple[int, ...]) -> list[int]:
    return [side.dims[dim] for dim in dims]
