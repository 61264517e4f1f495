"""Where the arrays of a convolution lie, in canonical order, and the problem that this poses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.convolutions import patches, posing
from neuronx_cc.codegen.convolutions.form import Form
from neuronx_cc.codegen.convolutions.posing import Lying, problems_of, through_hbm
from neuronx_cc.codegen.convolutions.problem import (
    Contracted,
    Home,
    Problem,
    Segment,
    operand,
    stride_of,
)
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.epilogues.arrays import views_of_cast
from neuronx_cc.codegen.epilogues.chain import Chain
from neuronx_cc.codegen.epilogues.contraction import LEAST_RESIDENT
from neuronx_cc.codegen.maps.plan import RESIDENT_STEPS, load_stream, partitions_of, resident_view
from neuronx_cc.codegen.maps.spread import Partitions, partition_divisor
from neuronx_cc.codegen.movement import column_kernel
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.codegen.movement.straight import pays
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import FLOATS, itemsize
from neuronx_cc.passes.features_first import CHANNELS


@dataclass(frozen=True, slots=True)
class Convolving:
    """A kernel that is to be placed: the op, and what is computed of its sums as they leave PSUM."""

    op: hlo.ConvolutionOp
    result: hlo.SSAValue
    step: int
    chain: Chain | None = None


@dataclass(frozen=True)
class Placed:
    """A problem with the arrays that pose it."""

    op: hlo.ConvolutionOp
    chain: Chain | None
    problem: Problem
    x: View
    w: View
    out: View
    adds: tuple[View, ...]
    """Where what the chain reads lies."""
    data: np.ndarray | None
    """The kernel's bytes, if it is a constant."""
    input: hlo.SSAValue
    weights: hlo.SSAValue
    """What ``x`` and ``w`` are homes of."""
    columns: TilePool
    """Those of ``adds`` that were brought on chip, until all is computed."""


def dense_view(context: Context, value: hlo.SSAValue, order: Sequence[int], channels: int) -> View:
    """``value`` in HBM, every dim one progression; it has ``channels`` features a group."""
    found = context.hbm(value)
    hbm = found.transpose(order)
    # features_first has transposed images of few channels, which lie side by side, into planes
    beside = channels <= CHANNELS and stride_of(hbm, 1) == itemsize(hbm.dtype)
    if beside or not _is_even(hbm) or _lies_across(context, value, found, order):
        hbm = context.dense(value).transpose(order)
    return hbm


def _lies_across(context: Context, value: hlo.SSAValue, view: View, order: Sequence[int]) -> bool:
    """Whether neighbours in memory are of different images, so that a DMA would move one element at a time, and a
    dense copy takes less time than that.
    """
    dtype, dims = view.dtype, view.transpose(order).dims
    size = itemsize(dtype)
    if any(abs(atom.stride) == size for atoms in dims[1:] for atom in atoms):
        return False
    nbytes = prod(view.shape) * size
    return pays(context, value, view, nbytes, context.timing.transfer(nbytes, size).bound)


def place(context: Context, convolving: Convolving, apart: bool) -> Placed:
    """Find or make homes for operands and result. ``apart``: groups share no products."""
    op = convolving.op
    form, sizes = Form(op), context.builder.sizes
    height = min(sizes.rows, sizes.columns)
    pack = _pack(form, height, height, apart)
    value, weights = (context.source_of(each) for each in (op.lhs, op.rhs))
    x, features, pack = _input(context, form, value, pack)
    out = _output(context, form, convolving, pack, height)
    w, data = _kernel(context, weights, form.orders[1])
    # made here because it takes room, and because staging asks for it inside loops
    context.fixed.identity(carrier_of(form.pe_dtype, not apart and context.moves_values(form.pe_dtype)))
    lying = Lying(x, w, out, data is not None, features, pack)
    moved = None if apart else through_hbm(context, form, value, lying)
    if moved is not None:
        if out.in_sbuf:
            context.give_back(convolving.result, out.alloc)
            out = _stored(context, form, convolving.result)
        lying = replace(lying, x=moved, out=out, features=None)
    last = not out.in_sbuf and stride_of(out, 1) == itemsize(out.dtype) and form.sizes[2][1] > 1
    if last and not lying.x.in_sbuf:
        lying = replace(lying, pack=_pack(form, height, sizes.bank_columns, apart))
    chain, given = convolving.chain, () if convolving.chain is None else convolving.chain.arrays
    columns = TilePool(context.builder, "columns of an epilogue")
    adds = tuple(_brought(_array(context, form, value, out), out, load_stream(value), columns) for value in given)
    arrays = tuple(operand(view, Home.CHIP if view.in_sbuf else Home.HBM) for view in adds)
    problems = problems_of(context, form, lying, apart, arrays)
    if chain is not None:
        read, like = problems[0].repeats, [problems[0].loaded(array) for array in arrays]
        epilogue = chain.epilogue([*map(read, arrays)], like, out.dtype, 1.0)
        problems = [replace(problem, epilogue=epilogue) for problem in problems]
    return Placed(op, chain, context.planner.easiest(problems), lying.x, w, out, adds, data, value, weights, columns)


def patches_of(placed: Placed, sizes: Sizes) -> patches.Problem | None:
    """The same as a problem of patches; None where it is none."""
    found = posing.patches_of(placed.problem, sizes)
    if found is None or placed.chain is None:
        return found
    ones, like = [patches.is_one(array) for array in found.arrays], [found.loaded(array) for array in found.arrays]
    return replace(found, epilogue=placed.chain.epilogue(ones, like, found.out.dtype, 1.0))


def _pack(form: Form, most_inputs: int, most_outputs: int, apart: bool) -> int:
    """Groups whose features share a tile."""
    if apart:
        return 1
    return max(1, min(most_inputs // form.inputs, most_outputs // form.outputs, form.groups))


def _input(context: Context, form: Form, value: hlo.SSAValue, pack: int) -> tuple[View, Contracted | None, int]:
    """On chip with its features on the partitions, and how they lie there, else in HBM; groups that share a tile."""
    for view in (view.transpose(form.orders[0]) for view in context.views(value)):
        found = _on_chip(form, view, pack) if view.in_sbuf else None
        if found is not None:
            return (view, *found)
    return dense_view(context, value, form.orders[0], form.inputs), None, pack


def _on_chip(form: Form, view: View, pack: int) -> tuple[Contracted, int] | None:
    """Contraction and groups a tile of a view on chip that has whole packs, or tiles of one group, on partitions."""
    partitions = partitions_of(view)
    if (
        form.batch_groups > 1
        or partitions is None
        or partitions.axis != 1
        or partitions.inner != 1
        or len(coalesce(view.dims[1])) > 2
    ):
        return None
    others = [dim for axis, dim in enumerate(view.dims) if axis != 1]
    if any(len(coalesce(dim)) > 1 or any(atom.partition for atom in dim) for dim in others):
        return None
    size, inputs = partitions.size, form.inputs
    if size % inputs == 0 and size // inputs <= pack:
        return Contracted(inputs, (Segment(0, inputs, 1, 1, inputs, 0),)), size // inputs
    if size % inputs and inputs % size == 0 and size >= min(64, inputs):
        return Contracted(inputs, (Segment(0, size, inputs // size, 1, size, 0),)), pack
    return None


def _array(context: Context, form: Form, value: hlo.SSAValue, out: View) -> View:
    """The home of what the epilogue reads: on chip with features where those of the result are, else in HBM."""
    order, cast = form.orders[2], views_of_cast(context, value)
    for view in cast or context.views(value):
        lies = view.transpose(order)
        if lies.in_sbuf and out.in_sbuf and _alike(lies, out):
            return lies
        if not lies.in_sbuf and _is_even(lies):
            return lies
    found = context.hbm(value)
    return (found if _is_even(found) else context.dense(value)).transpose(order)


def _brought(view: View, out: View, stream: Stream, columns: TilePool) -> View:
    """``view``, or its values on chip, all at once, if it has one for each of several features a partition of ``out``.

    Blocks of results would each load theirs, and wait for that.
    """
    partitions, others = partitions_of(out), [atom for axis, dim in enumerate(view.dims) if axis != 1 for atom in dim]
    features = coalesce(view.dims[1])
    if view.in_sbuf or partitions is None or any(atom.stride for atom in others) or len(features) != 1:
        return view
    ((count, stride),) = ((atom.size, atom.stride) for atom in features)
    size = partitions.size
    if view.dtype not in FLOATS or count <= size or partitions.axis != 1 or partitions.inner != 1:
        return view
    tile = columns.apart([count // size], "f32", size)
    lies = Block(view.alloc, view.dtype, view.start, (Atom(size, stride), Atom(count // size, size * stride)))
    column_kernel.copy(columns.builder, tile, lies, stream)
    dims = tuple(tile.dims[::-1] if axis == 1 else (Atom(view.shape[axis], 0),) for axis in range(len(view.dims)))
    return View(tile.alloc, "f32", tile.offset, dims)


def _alike(view: View, out: View) -> bool:
    """Whether features lie on the same partitions, and all other dims are progressions off them. One number a partition
    is an operand in FP32 only.
    """
    features, others = coalesce(view.dims[1]), [coalesce(dim) for axis, dim in enumerate(view.dims) if axis != 1]
    there = [(atom.size, atom.partition) for atom in coalesce(out.dims[1])]
    even = all(len(dim) < 2 and not any(atom.partition for atom in dim) for dim in others)
    varies = any(atom.stride for dim in others for atom in dim)
    same = [(atom.size, atom.partition) for atom in features] == there
    return even and same and (varies or view.dtype == "f32")


def _output(context: Context, form: Form, convolving: Convolving, pack: int, height: int) -> View:
    """On chip with output features on the partitions where that fits, else in HBM."""
    result, step = convolving.result, convolving.step
    shape = hlo.shape_of(result)
    total, wide = form.groups * form.outputs, pack * form.outputs
    partitions = wide if form.groups > pack else partition_divisor(total)
    even = form.groups % pack == 0 and wide <= height if form.groups > pack else total % partitions == 0
    only_result = result in context.outputs and context.last_use(result) <= step
    if even and partitions >= min(LEAST_RESIDENT, total) and partitions > 1 and not only_result:
        near = context.last_use(result) - step <= RESIDENT_STEPS
        per_partition = prod(shape.dims) // partitions * itemsize(shape.dtype)
        alloc = context.new_resident(result, per_partition) if near else None
        if alloc is not None:
            home = resident_view(alloc, shape.dtype, shape.dims, Partitions(form.orders[2][1], partitions, 1))
            context.homes[result] = [home]
            return home.transpose(form.orders[2])
    return _stored(context, form, result)


def _stored(context: Context, form: Form, result: hlo.SSAValue) -> View:
    home = context.new_hbm(result)
    context.homes[result] = [home]
    return home.transpose(form.orders[2])


def _kernel(context: Context, value: hlo.SSAValue, order: Sequence[int]) -> tuple[View, np.ndarray | None]:
    """A constant's bytes, or the kernel in HBM; every dim one progression."""
    literal = context.literal(value)
    if literal is not None and _is_even(literal[0]):
        return literal[0].transpose(order), literal[1]
    view = context.hbm(value).transpose(order)
    return (view if _is_even(view) else context.dense(value).transpose(order)), None


def _is_even(view: View) -> bool:
    return all(len(coalesce(atoms)) <= 1 for atoms in view.dims)
