"""All-reduces of which every device keeps a part of its own become reduce-scatters.

Input: ``resolve_collectives``'s form. Output: an all-reduce that is only read by dynamic slices, at places by which the
devices of a group take the parts of one dim between them, is a reduce-scatter; where several devices of a group take
the same part, an all-reduce of those follows, of that part. So a partitioner's gradients of weights that are split
among the devices that computed them (fully sharded training) are exchanged once, not twice, and never whole in memory.
"""

from collections import defaultdict
from dataclasses import dataclass

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import erase, ops_of, replace, users
from neuronx_cc.passes.analysis.devices import device_counts, numbers_of
from neuronx_cc.passes.analysis.effects import has_effects
from neuronx_cc.passes.expansions.build import Build
from neuronx_cc.passes.manager import PassContext

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Scatter:
    """How the sum is divided."""

    axis: int
    groups: Groups
    """Devices in the order of their parts."""
    same: Groups
    """Devices that take the same part of what different ``groups`` have summed."""


def run(module: HloModule, context: PassContext) -> None:
    if device_counts(module) == (1, 1):
        return
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.AllReduceOp) and not has_effects(op):
                scatter = _scatter(op, module)
                if scatter is not None:
                    _replace(op, scatter, module)


def _scatter(op: hlo.AllReduceOp, module: HloModule) -> Scatter | None:
    readers = users(op.results[0])
    first = readers[0] if readers else None
    if not isinstance(first, hlo.DynamicSliceOp) or op.replica_groups is None:
        return None
    whole, part = hlo.shape_of(op.results[0]).dims, hlo.shape_of(first.results[0]).dims
    cut = [axis for axis, size in enumerate(whole) if part[axis] != size]
    if len(cut) != 1 or whole[cut[0]] % part[cut[0]]:
        return None
    (axis,) = cut
    places = _places(first, axis, module)
    if places is None:
        return None
    for other in readers[1:]:
        if not isinstance(other, hlo.DynamicSliceOp) or other.operands[0] is not op.results[0]:
            return None
        if hlo.shape_of(other.results[0]).dims != part or _places(other, axis, module) != places:
            return None
    return _divided(op.replica_groups.data, places, whole[axis] // part[axis], axis)


def _places(reader: hlo.DynamicSliceOp, axis: int, module: HloModule) -> list[int] | None:
    """Which part of dim ``axis`` each device reads."""
    size = hlo.shape_of(reader.results[0]).dims[axis]
    last = hlo.shape_of(reader.operands[0]).dims[axis] - size
    starts = numbers_of(reader.operands[1 + axis], module)
    if starts is None:
        return None
    starts = [min(max(start, 0), last) for start in starts]
    return None if any(start % size for start in starts) else [start // size for start in starts]


def _divided(groups: Groups, places: list[int], parts: int, axis: int) -> Scatter | None:
    rows: list[tuple[int, ...]] = []
    same: list[tuple[int, ...]] = []
    for group in groups:
        takers: dict[int, list[int]] = defaultdict(list)
        for device in group:
            takers[places[device]].append(device)
        if len(takers) != parts or len({len(each) for each in takers.values()}) != 1:
            return None
        rows += zip(*(takers[part] for part in range(parts)), strict=True)
        same += [tuple(takers[part]) for part in range(parts)]
    # a reduce-scatter has groups of one size
    return Scatter(axis, tuple(rows), tuple(same)) if len({len(row) for row in rows}) == 1 else None


def _replace(op: hlo.AllReduceOp, scatter: Scatter, module: HloModule) -> None:
    build = Build.before(module, op)
    readers = users(op.results[0])
    made = build.typed(
        hlo.ReduceScatterOp,
        list(op.operands),
        readers[0].results[0].type,
        to_apply=op.to_apply,
        scatter_dimension=hlo.IntAttr(scatter.axis),
        replica_groups=hlo.GroupsAttr(scatter.groups),
    )
    if max(map(len, scatter.same)) > 1:
        made = build.typed(
            hlo.AllReduceOp, (made,), made.type, to_apply=op.to_apply, replica_groups=hlo.GroupsAttr(scatter.same)
        )
    for reader in readers:
        replace(reader, made)
    erase(op)
