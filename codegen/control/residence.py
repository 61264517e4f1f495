"""Where the state of a loop lies: which elements are worth a place on chip, and their buffers.

An element stays on chip when it is small and only on-chip instructions read it. What the loop only reads, and is small,
gets a copy there for all iterations.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.dots.problem import PE_DTYPES, order_of
from neuronx_cc.codegen.emission.builder import emit_over
from neuronx_cc.codegen.emission.views import View, linear, unplaced
from neuronx_cc.codegen.formation.graph import ELEMENTWISE, base, is_view, same_order, squeeze
from neuronx_cc.codegen.maps.plan import resident_layout
from neuronx_cc.codegen.movement.concatenate_kernel import fill, put
from neuronx_cc.codegen.movement.halves import carrier_of
from neuronx_cc.codegen.movement.transfer import DETOUR, blocks_of, loaded_ns, transfer
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.passes.analysis.calls import called_names
from neuronx_cc.passes.analysis.loop_state import Invariants

STATE_SHARE = (1, 22)
"""Of a partition of SBUF: the largest element of a loop's state that stays on chip."""
GIVEN_SHARE = (1, 88)
"""The same for what a loop only reads: a copy that saves loading it in each iteration."""

LEAST_TRIPS, LEAST_WINDOW = 4, 512
"""Iterations, and elements of a window of one, from which it pays to put them side by side ahead of the loop."""


def state_home(
    context: Context,
    op: hlo.WhileOp,
    index: int,
    after: Sequence[hlo.SSAValue],
    value: hlo.SSAValue,
    dead: bool,
    filled: bool,
    contracted: Set[tuple[int, ...]],
) -> View:
    """The buffer of element ``index`` of the state, holding its initial ``value``: on chip where that is of use.

    ``dead``: nothing else needs the initial value. ``filled``: the loop writes all of it, and reads nothing of it.
    ``contracted``: what ``contracted_states`` gives.
    """
    shape = hlo.shape_of(value)
    owner = after[0] if after else op.result
    wanted = next((context.outputs[element] for element in after if element in context.outputs), None)
    on_chip = shape.size and stays_on_chip(context, op, index)
    most, layout = context.sizes.sbuf_share(STATE_SHARE), None
    if on_chip:
        layout = resident_layout(context.timing, shape, most, squeeze(shape.dims) in contracted)
    lent = context.carried.get(value)
    for element in after:
        context.lies_within(element, owner)
    near = lent is not None and (lent.in_sbuf or layout is None or context.prefix)  # small parameters move on chip
    fits = lent is not None and (wanted in (None, lent) or lent.in_sbuf) and not (lent.in_sbuf and layout is None)
    if dead and lent is not None and near and fits:
        context.adopt(owner, value)
        return lent
    alloc = context.new_resident(owner, layout[0]) if layout is not None else None
    if alloc is not None and layout is not None:
        home = layout[1](alloc)
        assign(context, home, value)
        return home
    known = base(value) in context.homes and same_order(value, base(value))
    if dead and known and wanted is None and base(value) not in context.outputs:
        for view in context.views(value):
            if context.may_overwrite(value, view) and _is_dense(view, shape):
                context.adopt(owner, value)
                return view
    if wanted is None or not _is_dense(wanted, shape):
        wanted = context.own_hbm(owner, shape)
    if not filled and not context.lies_in(value, wanted):
        assign(context, wanted, value)
    return wanted


def given_homes(context: Context, op: hlo.WhileOp, index: int, value: hlo.SSAValue, trips: int | None) -> list[View]:
    """Homes of an element that the loop does not change; small ones also get one on chip, for all iterations.

    What lies on chip and is read through HBM is stored once, ahead of the loop; windows whose neighbours lie apart are
    put side by side there.
    """
    views, on_chip = list(context.views(value)), stays_on_chip(context, op, index)
    shape = hlo.shape_of(value)
    layout = resident_layout(context.timing, shape, context.sizes.sbuf_share(GIVEN_SHARE)) if shape.size else None
    if trips != 0 and shape.size and not on_chip and all(view.in_sbuf for view in views):
        views.append(context.hbm(value))
    if trips is None or trips >= LEAST_TRIPS:
        windows = shape.size // shape.dims[0] if shape.rank > 1 and shape.size else 0
        if windows >= LEAST_WINDOW and not on_chip and all(map(_is_across, views)):
            views.insert(0, context.dense(value))
    if trips == 0 or layout is None or any(view.in_sbuf for view in views):
        return views
    alloc = context.new_resident(op.result, layout[0]) if on_chip else None
    if alloc is None:
        return views
    home = layout[1](alloc)
    assign(context, home, value)
    return [home, *views]


def result_home(context: Context, found: Sequence[hlo.SSAValue]) -> View:
    """A fresh buffer for a result of branches, which is read as ``found``."""
    shape = hlo.shape_of(found[0])
    target = context.outputs.get(found[0])
    if target is not None and target.in_sbuf:
        return target
    most = context.sizes.sbuf_share(STATE_SHARE)
    layout = resident_layout(context.timing, shape, most) if target is None and shape.size else None
    if layout is not None and all(_read_on_chip(context, element) for element in found):
        alloc = context.new_resident(found[0], layout[0])
        if alloc is not None:
            return layout[1](alloc)
    return context.new_hbm(found[0])


def origin(computation: hlo.ComputationOp, index: int) -> int | None:
    """The element of the parameter that element ``index`` of the root is, perhaps updated in place; else None."""
    root = computation.root.owner
    assert isinstance(root, hlo.TupleOp), "flatten_control gives roots that are tuples"
    value = root.operands[index]
    while isinstance(value, hlo.OpResult):
        op = value.op
        if isinstance(op, hlo.DynamicUpdateSliceOp):
            value = op.args[0]
        elif not isinstance(op, hlo.GetTupleElementOp):
            return None
        elif op.operand is computation.block.args[0]:
            return op.index.data
        elif isinstance(op.operand.owner, hlo.WhileOp) and isinstance(op.operand.owner.operand.owner, hlo.TupleOp):
            value = op.operand.owner.operand.owner.operands[op.index.data]
        else:
            return None
    return None


def make_identities(context: Context, computation: hlo.ComputationOp) -> None:
    """Make ahead of a loop what the transposes of its contractions need, instead of in each iteration."""
    for op in computation.block.ops:
        if isinstance(op, hlo.DotOp):
            for operand in (op.lhs, op.rhs):
                dtypes = {hlo.shape_of(operand).dtype}
                if operand in context.load_casts:
                    dtypes.add(hlo.shape_of(context.load_casts[operand]).dtype)
                for dtype in sorted(dtypes & PE_DTYPES):
                    context.fixed.identity(carrier_of(dtype, context.moves_values(dtype)))
        elif isinstance(op, hlo.RegionOp):
            for name in called_names(op):
                make_identities(context, context.module.computation(name))


def _is_across(view: View) -> bool:
    """Whether neighbours in HBM belong to different windows along the first dim."""
    strides = [atoms[-1].stride for atoms in view.dims if atoms]
    return not view.in_sbuf and len(strides) > 1 and abs(strides[0]) < min(map(abs, strides[1:]))


def _is_dense(view: View, shape: hlo.Shape) -> bool:
    return not view.in_sbuf and view == linear(view.alloc, view.start, shape.dtype, shape.dims)


def assign(context: Context, target: View, value: hlo.SSAValue) -> None:
    """Copy ``value`` to a dense HBM view, or to one on chip: there by an engine where partitions agree."""
    shape = hlo.shape_of(value)
    if shape.size == 0:
        return
    number = context.splat(value)
    if number is not None and not target.in_sbuf:
        while isinstance(value, hlo.OpResult) and not isinstance(value.op, hlo.ConstantOp):
            value = value.op.operands[0]
        fill(context, target, value)
        return
    if number is not None:
        found = blocks_of([target], shape.dims)
        assert found is not None, "one view aligns with itself"
        engine = Stream.VECTOR if shape.dtype in hlo.FLOATS else Stream.GPSIMD
        emit_over(context.builder, "memset", engine, found, [], imm=[number])
        return
    for view in context.views(value):
        blocks = blocks_of([target, view], shape.dims) if target.in_sbuf and view.in_sbuf else None
        if blocks is not None and blocks[0].partition == blocks[1].partition:
            emit_over(context.builder, "tensor_copy", Stream.VECTOR, blocks[:1], blocks[1:])
            return
    if not (target.in_sbuf and _loaded_in_order(context, target, value)):
        put(context, target, value)


def _loaded_in_order(context: Context, target: View, value: hlo.SSAValue) -> bool:
    """Load ``value`` from a dense array, into which it is put in order, where no other home comes in runs."""
    shape, timing = hlo.shape_of(value), context.timing
    homes = [view for view in context.views(value) if not view.in_sbuf] or [context.hbm(value)]
    dense = loaded_ns(timing, target, unplaced(shape.dtype, shape.dims))
    if min(loaded_ns(timing, target, home) for home in homes) <= DETOUR * dense:
        return False
    return transfer(context.builder, target, context.dense(value), Stream.DMA_LOAD)


def stays_on_chip(context: Context, op: hlo.WhileOp, index: int) -> bool:
    """Whether body and condition read element ``index`` by elementwise ops, reductions and contractions alone.

    Inner loops and branches may do so in turn; a number may also say where a window starts.
    """
    names = (*op.body.data, *op.condition.data)
    return all(_parameter(context, name, index) for name in names)


def contracted_states(context: Context, op: hlo.WhileOp) -> set[tuple[int, ...]]:
    """The dims, without those of size 1, of states of which the body contracts the first dim with what stays the same:
    states of these dims are made alike, too, and what stays lies in the same chunks.
    """
    found = set[tuple[int, ...]]()
    same = Invariants(context.module, op)
    old = {element for each in context.elements(same.body.block.args[0]).values() for element in each}
    for dot in (each for each in ops_of(same.body.block) if isinstance(each, hlo.DotOp)):
        for index, value in enumerate(dot.operands):
            value = context.source_of(value)
            state = base(value)
            if state not in old or state in same or context.source_of(dot.operands[1 - index]) not in same:
                continue
            dims, (_, _, folded) = hlo.shape_of(value).dims, order_of(dot, index)
            wide = [axis for axis, size in enumerate(dims) if size > 1]
            if same_order(value, state) and [axis for axis in folded if dims[axis] > 1] == wide[:1]:
                found.add(squeeze(hlo.shape_of(state).dims))
    return found


def _parameter(context: Context, name: str, index: int) -> bool:
    parameter = context.module.computation(name).block.args[0]
    return all(_read_on_chip(context, element) for element in context.elements(parameter).get(index, ()))


def _read_on_chip(context: Context, value: hlo.SSAValue) -> bool:
    return all(_reads_on_chip(context, use.operation, use.index) for use in value.uses)


def _reads_on_chip(context: Context, user: hlo.Operation, place: int) -> bool:
    if isinstance(user, hlo.TupleOp):
        return all(_hands_on(context, use.operation, use.index, place) for use in user.result.uses)
    if not isinstance(user, hlo.HloOp):
        return False
    if is_view(user):
        return _read_on_chip(context, user.results[0])
    if isinstance(user, hlo.DynamicSliceOp):
        return place >= 1
    if isinstance(user, hlo.DynamicUpdateSliceOp):
        return place >= 2
    return user.opcode in ELEMENTWISE or isinstance(user, hlo.ReduceOp | hlo.DotOp)


def _hands_on(context: Context, user: hlo.Operation, operand: int, index: int) -> bool:
    """A tuple whose element ``index`` is the value, as an operand of ``user``."""
    if isinstance(user, hlo.WhileOp):
        return stays_on_chip(context, user, index)
    if isinstance(user, hlo.ConditionalOp):
        return operand == 0 or _parameter(context, user.branches.data[operand - 1], index)
    return isinstance(user, hlo.ReturnOp)
