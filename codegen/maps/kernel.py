"""Map kernels: elementwise ops and row reductions over one iteration space, tile by tile.

The iteration space is refined to dims that all inputs and outputs address with one stride each. One of
them goes to the partitions; the rest are free dims of the tile, of which the outermost become loops
when a tile would be too large. Inputs that live in SBUF are read where they are, others are loaded;
outputs are written where they will stay resident, or stored.
"""

from __future__ import annotations

from itertools import chain

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import View
from neuronx_cc.codegen.formation.columns import sections_of, sums_in
from neuronx_cc.codegen.formation.graph import Kernel, trace
from neuronx_cc.codegen.maps import apart, ends, long_rows, shared_rows, transposed
from neuronx_cc.codegen.maps.ahead import copy_ahead
from neuronx_cc.codegen.maps.area import Area, is_cut_by
from neuronx_cc.codegen.maps.axes import axes_view, full_view
from neuronx_cc.codegen.maps.box import Box
from neuronx_cc.codegen.maps.column_sums import ColumnSums
from neuronx_cc.codegen.maps.homes import choose_input, choose_output
from neuronx_cc.codegen.maps.joined import choose_plan
from neuronx_cc.codegen.maps.lifetimes import Member, last_uses, tiles_alive
from neuronx_cc.codegen.maps.parts import fits, fitting, too_long
from neuronx_cc.codegen.maps.plan import MapPlan, results_of
from neuronx_cc.codegen.maps.scanned import cuts_rows, handed_on
from neuronx_cc.codegen.maps.space import Views
from neuronx_cc.codegen.maps.spread import divides
from neuronx_cc.codegen.reductions import reduce_kernel
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace


def lower(context: Context, kernel: Kernel, member: Member, step: int) -> None:
    """Emit ``kernel``, in parts if rows that are reduced do not fit SBUF, and give its results homes."""
    # column sums come last: what they read stays while TensorE is at it, and no engine waits to write over it
    kernel.ops.sort(key=kernel.sums_columns)
    along = cuts_rows(context, kernel, member) and not fits(context, kernel, member, step)
    kernels = apart.parts_of(context, kernel, member)
    for part in chain.from_iterable(fitting(context, each, member, step) for each in kernels):
        first = part.ops[0]
        alone = len(part.ops) == 1 and (part.sums_columns(first) or bool(part.order))
        if isinstance(first, hlo.ReduceOp) and (alone or too_long(context, part, member)):
            reduce_kernel.lower(context, first, step)
        else:
            _lower_part(context, part, member, step, along)


def _folded_first(kernel: Kernel, member: Member) -> None:
    """Let arrays that are made of what was folded, and that no later fold needs, come after the ops that lead to the
    next fold: engines make them while TensorE adds up, or values of rows are computed; not where more tiles would be
    alive at once. Column sums stay last.
    """
    sources = {op: [trace(operand, kernel, member) for operand in op.sources] for op in kernel.ops}
    after: set[object] = set()
    for op in kernel.ops:
        if kernel.folds_rows(op) or any(source is not None and source.owner in after for source in sources[op]):
            after.add(op)
    needed: dict[object, int] = {}
    fold = last = len(kernel.ops)
    for place, op in reversed([*enumerate(kernel.ops)]):
        fold = place if kernel.folds_rows(op) else fold
        stays = kernel.is_row(op.shape) or op not in after
        needed[op] = min(fold, needed.get(op, last)) if stays else needed.get(op, last)
        for made in (source.owner for source in sources[op] if source is not None):
            needed[made] = min(needed[op], needed.get(made, last))
    ordered = replace(kernel, ops=sorted(kernel.ops, key=lambda op: (kernel.sums_columns(op), needed[op])))
    if ordered.ops != kernel.ops:
        now, then = (tiles_alive(each, (), last_uses(each, member)).element_bytes for each in (kernel, ordered))
        kernel.ops = ordered.ops if then <= now else kernel.ops


def _lower_part(context: Context, kernel: Kernel, member: Member, step: int, along: bool) -> None:
    if any(map(kernel.folds_rows, kernel.ops[:-1])):
        _folded_first(kernel, member)
    plan, external = choose_plan(context, kernel, member, step)
    kernel = plan.kernel
    results = results_of(context, kernel, member)
    transposed.turn(context, plan, member, external)
    copy_ahead(context, plan, external, results)
    ends.find(context, plan, results, step)
    shared_rows.copy_in_order(context, plan, external, results)
    inputs = {value: choose_input(context, plan, value) for value in external}
    outputs: Views = {}
    for value in results:
        if value in plan.ends:
            context.homes[value] = [ends.home_of(context, value)]
            outputs[value] = axes_view(context.homes[value][0], kernel)
            continue
        made = choose_output(context, plan, value, step, list(inputs.values()))
        home = handed_on(context, kernel, member, value, made, along)
        context.homes[value] = [home]
        outputs[value] = axes_view(home, kernel)
    area = Area(kernel.shape, (0,) * len(kernel.shape), inputs, outputs)
    if kernel.folded:
        _emit_sections(context, plan, member, area)
    else:
        _emit_boxes(context, plan, member, area, None)


def _emit_sections(context: Context, plan: MapPlan, member: Member, area: Area) -> None:
    """Emit a kernel with column sums, section by section of the columns; what is no view of each becomes dense."""
    kernel, homes = plan.kernel, dict[hlo.HloOp, View]()
    sections = sections_of(kernel, context.sizes)
    for op in sums_in(kernel):
        homes[op] = context.own_hbm(op.result, op.shape) if len(sections) > 1 else context.new_hbm(op.result)
        context.homes[op.result] = [homes[op]]
    inputs, outputs = dict(area.inputs), dict(area.outputs)
    for value in [value for value, view in inputs.items() if not is_cut_by(view, sections)]:
        inputs[value] = full_view(context.dense(value), kernel)
    for value in [value for value, view in outputs.items() if not is_cut_by(view, sections)]:
        context.homes[value] = [context.own_hbm(value, hlo.shape_of(value))]
        outputs[value] = axes_view(context.homes[value][0], kernel)
    for section in sections:
        part = replace(area, inputs=inputs, outputs=outputs)
        for cut in section.cuts:
            part = part.cut(*cut)
        with TilePool(context.builder, "column sums") as pool:
            sums = ColumnSums(context, kernel, section, pool)
            _emit_boxes(context, plan, member, part, sums)
            sums.store(homes)


def _emit_boxes(context: Context, plan: MapPlan, member: Member, area: Area, columns: ColumnSums | None) -> None:
    """Split off the rest of axes that its partitions do not divide, then emit each box."""
    partitions = plan.partitions
    if partitions is None or divides(area.shape, partitions):
        box = Box(context, plan, member, area, columns)
        with box.begun():
            if long_rows.are_long(box):
                long_rows.emit(box)
            else:
                box.emit_tiles()
        return
    axis, step = next((axis, step) for axis, step in partitions.steps if area.shape[axis] % step)
    total = area.shape[axis]
    whole, rest = total // step * step, total % step
    rest_partitions = partitions.of_rest(area.shape, axis, rest)
    if plan.transposed:
        rest_partitions = transposed.rest_partitions(context.timing, plan, area.shape, rest)
    for start, size, box_partitions in ((0, whole, partitions), (whole, rest, rest_partitions)):
        if size:
            cut = area.cut(axis, start, size)
            _emit_boxes(context, replace(plan, partitions=box_partitions), member, cut, columns)
