"""The arrays of an attention in HBM, all with the same dims around blocks of rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from neuronx_cc.codegen.attention.geometry import by_dim, is_one, marked
from neuronx_cc.codegen.attention.pattern import Attention
from neuronx_cc.codegen.attention.steps import Step, leaves_of
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.views import Atom, View, align, coalesce
from neuronx_cc.codegen.movement.straight import pays
from neuronx_cc.codegen.view_ops import apply_view
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.stored import is_given

Parts = tuple[View | None, View | None]
"""By dims of the scores, and its other dim."""
Homes = Callable[[hlo.SSAValue], View]
"""Finds or makes a home in HBM."""


@dataclass(frozen=True, slots=True)
class Array:
    """One array."""

    view: View
    """By dims of the scores."""
    row: Atom
    column: Atom
    other: Atom
    """The contracted dim of queries and keys; the free one of values and result."""
    outer: tuple[Atom, ...]
    """Of each dim around."""
    stream: Stream
    chunk: int = 0
    """Bytes from a block of rows on the partitions to the next."""

    def rows(self, indices: Sequence[Affine], start: Affine, size: int) -> Block:
        """``size`` rows from ``start`` on, as [row, other]; on chip a block of rows."""
        block = self.at(indices)
        if not self.row.partition:
            return block.index(0, start, size).select([0, 2])
        blocks = Affine(start.const // self.row.size, tuple([(each, by // self.row.size) for each, by in start.terms]))
        return block.moved(blocks * self.chunk).select([0, 2]).on_partitions(size)

    def at(self, indices: Sequence[Affine]) -> Block:
        """What lies at ``indices`` of the dims around, as [row, column, other]."""
        offset = self.view.start
        for atom, index in zip(self.outer, indices, strict=True):
            offset = offset + index * atom.stride
        return Block(self.view.alloc, self.view.dtype, offset, (self.row, self.column, self.other))


@dataclass(frozen=True, slots=True)
class Arrays:
    """All of them."""

    sizes: tuple[int, ...]
    """Of the dims around; those that keys and values repeat along come last."""
    heads: int
    """How many of these dims keys and values have."""
    queries: Array
    keys: Array
    values: Array
    result: Array
    masks: dict[hlo.SSAValue, Array]
    """What steps read."""


def arrays_of(context: Context, attention: Attention, home: View | None = None) -> Arrays:
    """Find or make a home of each array that has rows and columns in one piece; ``home`` is that of the result, if it
    stays on chip.
    """
    result = _written(context, attention, home or _stored(context, attention))
    order, heads = _order(attention)
    dims = [attention.dims[axis] for axis in order]
    for homes in ((context.hbm, partial(_repeated, context), context.dense), (context.dense,)):
        bound = [*_all_read(context, attention, homes), result]
        around = [each.view.of(tuple(each.view.dims[axis] for axis in order)) for each in bound]
        space = align(around, dims, frozenset([heads]))
        if space is not None:
            break
    assert space is not None, "dense arrays nest"
    found = [_array(attention, each, atoms) for each, atoms in zip(bound, space.atoms, strict=True)]
    masks = {each.value: array for each, array in zip(bound[3:-1], found[3:-1], strict=True)}
    queries, keys, values = found[:3]
    heads = sum(axis < heads for axis in space.axes)
    return Arrays(tuple(space.sizes), heads, queries, keys, values, found[-1], masks)


def _array(attention: Attention, bound: _Bound, around: Sequence[Atom]) -> Array:
    *outer, rows = bound.view.dims[attention.row] or (Atom(attention.dims[attention.row], 0),)
    chunk = outer[0].stride if outer and rows.partition else 0
    return Array(
        bound.view,
        rows if rows.partition else _one(bound.view.dims[attention.row], attention.dims[attention.row]),
        _one(bound.view.dims[attention.column], attention.dims[attention.column]),
        bound.other,
        tuple(around),
        bound.stream,
        chunk,
    )


def _repeated(context: Context, value: hlo.SSAValue) -> View:
    """A view of a dense home of what ``value`` repeats, such as a bias that all of a batch have."""
    op = value.owner
    view = apply_view(op, context.dense(op.operand)) if isinstance(op, hlo.BroadcastOp) else None
    return view or context.dense(value)


def _order(attention: Attention) -> tuple[list[int], int]:
    """The dims of the scores around rows and columns; the first ones are those of keys or values."""
    outer = [axis for axis in range(len(attention.dims)) if axis not in (attention.row, attention.column)]
    own = attention.own_dims()
    order = [*own, *(axis for axis in outer if axis not in own)]
    return order, len(own)


@dataclass(frozen=True, slots=True)
class _Bound:
    value: hlo.SSAValue
    view: View
    """By dims of the scores."""
    other: Atom
    stream: Stream


def _all_read(context: Context, attention: Attention, homes: Sequence[Homes]) -> list[_Bound]:
    """Queries, keys, values and what steps read."""
    scores, product, keys = attention.scores, attention.product, 1 - attention.queries
    queries = _read(context, attention, scores.operands[attention.queries], attention.queried, homes)
    found = [
        replace(queries, stream=Stream.DMA_LOAD),  # wanted before all keys and values are there
        _read(context, attention, scores.operands[keys], attention.keyed, homes),
        _read(context, attention, product.operands[1 - attention.weights], attention.valued, homes),
    ]
    for step in attention.steps:
        for leaf in leaves_of(step):
            if context.splat(leaf) is None:
                found.append(_read(context, attention, leaf, _beside(attention, step), homes))
    return found


def _beside(attention: Attention, step: Step) -> Callable[[View], Parts]:
    return lambda view: (by_dim(attention.dims, step.marks, view), None)


def _read(
    context: Context, attention: Attention, value: hlo.SSAValue, parts: Callable[[View], Parts], homes: Sequence[Homes]
) -> _Bound:
    source = context.source_of(value)
    stream = Stream.DMA_WEIGHT if is_given(source) else Stream.DMA_LOAD
    for home in homes:
        stored = home(source)
        view, other = parts(stored)
        if view is None or (other is not None and not is_one(other.dims[0])):
            continue
        if not all(is_one(view.dims[axis]) for axis in (attention.row, attention.column)):
            continue
        within = [_one(view.dims[axis], 1) for axis in (attention.row, attention.column)]
        beside = _one(other.dims[0] if other is not None else (), 1)
        if home is homes[-1] or not _is_scattered(context, source, stored, (*within, beside), other is None):
            return _Bound(value, view, beside, stream)
    raise AssertionError("a dense array aligns")


def _is_scattered(context: Context, value: hlo.SSAValue, view: View, within: Sequence[Atom], beside: bool) -> bool:
    """Whether blocks of an array would be loaded element by element, so that a dense copy of it is quicker.

    ``within``: its rows, columns and other dim. Operands of products may lie either way, since they are transposed on
    their way; what lies ``beside`` the scores may not.
    """
    size = itemsize(view.dtype)
    moving = [atom for atom in within if atom.stride and atom.size > 1]
    if not moving or any(atom.stride == size for atom in (moving[-1:] if beside else moving)):
        return False
    nbytes = prod(atom.size for atoms in view.dims for atom in atoms if atom.stride) * size
    return pays(context, value, view, nbytes, context.timing.transfer(nbytes, size).bound)


def _written(context: Context, attention: Attention, home: View) -> _Bound:
    context.homes[attention.result] = [home]
    view, other = attention.made(home)
    assert view is not None, "a dense array aligns"
    return _Bound(attention.result, view, _one(other.dims[0], 1), Stream.DMA_STORE)


def _stored(context: Context, attention: Attention) -> View:
    """A home of the result in HBM, as its only reader wants it, but for its rows, which are stored as they are made."""
    value = attention.result
    shape = hlo.shape_of(value)
    if value in context.outputs:
        return context.new_hbm(value)
    order = stored_order(attention)
    stored = context.own_hbm(value, hlo.Shape(shape.dtype, tuple(shape.dims[axis] for axis in order)))
    return from_stored(stored, order)


def stored_order(attention: Attention) -> list[int]:
    """The dims of the result in the order in which they are stored, outermost first."""
    wide = attention.wide()
    return [*(axis for axis in wanted_order(attention.result) if axis not in wide), *wide]


def from_stored(view: View, order: Sequence[int]) -> View:
    """``view``, of dims that are stored in ``order``, with these as they are numbered."""
    return view.transpose([order.index(axis) for axis in range(len(order))])


def wanted_order(value: hlo.SSAValue) -> list[int]:
    """The dims of ``value`` in the order in which its only reader goes through them, outermost first."""
    dims = hlo.shape_of(value).dims
    view, uses = marked(dims), list(value.uses)
    while len(uses) == 1 and isinstance(op := uses[0].operation, hlo.TransposeOp | hlo.ReshapeOp):
        after = apply_view(op, view)
        if after is None:
            break
        view, uses = after, list(op.result.uses)
    strides = [prod(dims[axis + 1 :]) for axis in range(len(dims))]
    order: list[int] = []
    for atom in (atom for atoms in view.dims for atom in atoms if atom.size > 1):
        within = range(len(dims))
        order += [a for a in within if dims[a] > 1 and atom.stride <= strides[a] < atom.stride * atom.size]
    order = list(dict.fromkeys(order))
    return [*(axis for axis in range(len(dims)) if axis not in order), *order]


def _one(atoms: Sequence[Atom], size: int) -> Atom:
    merged = coalesce(tuple(atoms))
    return merged[0] if merged else Atom(size, 0)
