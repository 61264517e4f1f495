"""What devices cut out at places of their own, they cut out at one place where the rest can be made to fit.

A partitioner lets every device cut its part out of what it has joined from neighbours' parts, at a place by the
device's number. Input: a module of one replica for several devices. Output, where the numbers of all devices are known:

* what all of them cut out at the same place is a slice;
* of a pad of which each device cuts out all that is padded, or nothing, none is made: gradients of rows of an array
  that is split;
* gradients of pooling whose windows lie a few rows apart on the first device, which has no neighbour before it, have
  their windows at one place: rows that come in are hidden, and what windows that come in would spread is zero.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule
from neuronx_cc.ir.hlo.editing import defining_op, ops_of, replace, users
from neuronx_cc.passes.analysis.devices import device_counts, numbers_of
from neuronx_cc.passes.analysis.masks import Array, Masks
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.analysis.windows import selection
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.manager import PassContext, only_for

Spread = dict[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of ``whole`` along ``axis``, which starts where ``starts`` says of each device."""

    whole: Value
    axis: int
    starts: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Read:
    """What a gradient of pooling reads: a part of which each device shows some rows; ``filler`` hides the others."""

    cut: Cut
    shown: Array
    """[device, row]."""
    filler: float


@only_for(hlo.DynamicSliceOp)
def run(module: HloModule, context: PassContext) -> None:
    replicas, partitions = device_counts(module)
    if replicas != 1 or partitions == 1:
        return
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.DynamicSliceOp):
                _simplify(op, module)
    for computation in module.computations():
        for op in list(ops_of(computation.block)):
            if isinstance(op, hlo.SelectAndScatterOp):
                _align(op, module)


def _simplify(op: hlo.DynamicSliceOp, module: HloModule) -> None:
    cut = _cut(op, module)
    if cut is None:
        return
    build = Build.before(module, op)
    if len(set(cut.starts)) == 1:
        replace(op, build.slice(cut.whole, cut.axis, cut.starts[0], cut.starts[0] + cut.size))
        return
    pad = defining_op(cut.whole)
    number = splat_number(pad.rhs, module) if isinstance(pad, hlo.PadOp) else None
    if not isinstance(pad, hlo.PadOp) or number is None or not _pads_along(pad, cut.axis):
        return
    low, size = pad.padding.data[cut.axis].low, hlo.shape_of(pad.lhs).dims[cut.axis]
    seen = [max(0, min(low + size, start + cut.size) - max(low, start)) for start in cut.starts]
    places = {low - start for start, rows in zip(cut.starts, seen, strict=True) if rows}
    if any(rows not in (0, size) for rows in seen) or len(places) != 1:
        return
    place = places.pop()
    edges = [(0, 0)] * hlo.shape_of(pad.lhs).rank
    edges[cut.axis] = (place, cut.size - place - size)
    made = build.pad(pad.lhs, edges, number)
    has = build.compare(_of_device(build, [int(rows > 0) for rows in seen]), build.number(1, "s32"), "EQ")
    everywhere = build.broadcast(has, hlo.shape_of(made).dims)
    replace(op, build.select(everywhere, made, build.number_like(number, made)))


def _cut(op: hlo.Operation | None, module: HloModule) -> Cut | None:
    """The cut that ``op`` makes; None for all else, and where devices' numbers do not show."""
    if not isinstance(op, hlo.DynamicSliceOp):
        return None
    dims, sizes = hlo.shape_of(op.operands[0]).dims, op.dynamic_slice_sizes.data
    axes = [axis for axis, (dim, size) in enumerate(zip(dims, sizes, strict=True)) if dim != size]
    numbers = numbers_of(op.operands[1 + axes[0]], module) if len(axes) == 1 else None
    if numbers is None:
        return None
    (axis,) = axes
    most = dims[axis] - sizes[axis]
    return Cut(op.operands[0], axis, tuple(min(max(0, number), most) for number in numbers), sizes[axis])


def _pads_along(pad: hlo.PadOp, axis: int) -> bool:
    """Whether ``pad`` adds rows before and after those along ``axis``, and nothing else."""
    edges = [(edge.low, edge.high, edge.interior) for edge in pad.padding.data]
    low, high, between = edges.pop(axis)
    return min(low, high) >= 0 and not between and not any(map(any, edges))


def _of_device(build: Build, numbers: Sequence[int]) -> Value:
    """The number of this device, a scalar."""
    number = build.op(hlo.PartitionIdOp, [], "u32", ())
    table = build.array(np.array(numbers), "s32")
    return build.reshape(build.dynamic_slice(table, [number], [1]), ())


def _align(op: hlo.SelectAndScatterOp, module: HloModule) -> None:
    """Put the windows of ``op`` at one place on all devices."""
    reader = users(op.results[0])
    out = _cut(reader[0], module) if len(reader) == 1 else None
    chosen = selection(op, module)
    if out is None or chosen is None or (chosen.keeps, chosen.kind) != ("GE", "add"):
        return
    window = op.window.data[out.axis]
    if window.pad_low or op.padding is not None or splat_number(op.operands[2], module) != 0:
        return
    masks = Masks(module)
    array = _read(op.operands[0], out.axis, float("-inf"), masks, module)
    source = _read(op.operands[1], out.axis, 0.0, masks, module)
    if array is None or source is None:
        return
    triples = Counter(zip(array.cut.starts, source.cut.starts, out.starts, strict=True))
    if len(triples) == 1:
        return
    moves = ((_moved(array, at), _moved(source, first), _at(out, place)) for at, first, place in triples)
    moved = next((each for each in moves if _is_same((array, source, out), each, window)), None)
    if moved is None:
        return
    build = Build.before(module, op)
    operands = [_made(build, read) for read in moved[:2]]
    properties = dict(op.properties)
    made = build.typed(hlo.SelectAndScatterOp, [*operands, op.operands[2]], op.results[0].type, **properties)
    cut = reader[0]
    assert isinstance(cut, hlo.DynamicSliceOp)
    start = moved[2].starts[0]
    replace(cut, Build.before(module, cut).slice(made, out.axis, start, start + out.size))


def _is_same(before: tuple[Read, Read, Cut], after: tuple[Read, Read, Cut], window: hlo.WindowDim) -> bool:
    """Whether all devices select and add the same with windows of ``after`` as with those of ``before``."""
    devices = range(len(before[2].starts))
    if any(_spread(*before, device, window) != _spread(*after, device, window) for device in devices):
        return False
    return all(_in_runs(read.shown) for read in after[:2])


def _read(value: Value, axis: int, filler: float, masks: Masks, module: HloModule) -> Read | None:
    """What ``value`` is; None where a mask hides anything but rows along ``axis``, or with another number."""
    op, mask = defining_op(value), None
    if isinstance(op, hlo.SelectOp):
        mask = masks.of(op.operands[0])
        if mask is None or splat_number(op.operands[2], module) != filler:
            return None
        if any(length != 1 for at, length in enumerate(mask.shape[1:]) if at != axis):
            return None
        value = op.operands[1]
    size, devices = hlo.shape_of(value).dims[axis], device_counts(module)[1]
    cut = _cut(defining_op(value), module) or Cut(value, axis, (0,) * devices, size)
    if cut.axis != axis:
        return None
    shown = np.ones((devices, size), bool) if mask is None else mask.reshape(mask.shape[0], -1)
    return Read(cut, np.broadcast_to(shown, (devices, size)), filler)


def _at(cut: Cut, start: int) -> Cut:
    """The same cut, at one place on all devices."""
    return Cut(cut.whole, cut.axis, (start,) * len(cut.starts), cut.size)


def _moved(read: Read, start: int) -> Read:
    """The same rows shown where all devices cut at ``start``."""
    shown = np.zeros_like(read.shown)
    for device, old in enumerate(read.cut.starts):
        low, high = max(0, old - start), min(read.cut.size, read.cut.size + old - start)
        if low < high:
            shown[device, low:high] = read.shown[device, low + start - old : high + start - old]
    return Read(_at(read.cut, start), shown, read.filler)


def _spread(array: Read, source: Read, out: Cut, device: int, window: hlo.WindowDim) -> tuple[range, Spread]:
    """The rows of the uncut array that are made; and the rows among which each window selects that reaches these.

    Windows are named by their rows of the uncut source; those whose source is hidden add nothing.
    """
    start, first = array.cut.starts[device], source.cut.starts[device]
    rows = range(start + out.starts[device], start + out.starts[device] + out.size)
    found: Spread = {}
    for number in np.flatnonzero(source.shown[device]).tolist():
        low, high = number * window.stride, number * window.stride + window.size
        if start + high > rows.start and start + low < rows.stop:
            seen = np.flatnonzero(array.shown[device, low:high]) + start + low
            found[first + number] = tuple(seen.tolist())
    return rows, found


def _in_runs(shown: Array) -> bool:
    """Whether each device shows neighbouring rows."""
    return bool((np.diff(shown.astype(int), axis=1, prepend=0) > 0).sum(axis=1).max() <= 1)


def _made(build: Build, read: Read) -> Value:
    """The rows of ``read``, which all devices cut at one place; out of what is padded, where they lie in it."""
    cut, value = read.cut, read.cut.whole
    start, end = cut.starts[0], cut.starts[0] + cut.size
    pad = defining_op(value)
    if isinstance(pad, hlo.PadOp) and _pads_along(pad, cut.axis):
        low = pad.padding.data[cut.axis].low
        if low <= start and end <= low + hlo.shape_of(pad.lhs).dims[cut.axis]:
            value, start, end = pad.lhs, start - low, end - low
    value = build.slice(value, cut.axis, start, end)
    if read.shown.all():
        return value
    dims = hlo.shape_of(value).dims
    row = build.iota(dims, cut.axis)
    count = read.shown.sum(axis=1)
    lows = np.where(count > 0, read.shown.argmax(axis=1), 0)
    from_low, to_high = (
        build.compare(row, build.broadcast(_of_device(build, numbers.tolist()), dims), direction)
        for numbers, direction in ((lows, "GE"), (lows + count, "LT"))
    )
    inside = build.each(hlo.AndOp, from_low, to_high)
    return build.select(inside, value, build.number_like(read.filler, value))
