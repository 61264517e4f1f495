"""Rewrites ``select-and-scatter`` where no kernel takes it: computations of their own, dilation, many dims.

Input: an inlined module. Output: every one left compares by order and scatters by sum, product, maximum or minimum (see
``selection``). The others become array operators: a sweep over the positions of a window keeps the selected element and
its position (the first one that exists, then whatever the computation does not keep), another sweep spreads the source
over those elements of each position that were selected, the earlier window first. Padding is never selected.
"""

from itertools import product

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule, PadDim, SliceDim, WindowDim
from neuronx_cc.ir.hlo.editing import defining_op, erase, ops_of, replace, users
from neuronx_cc.passes.analysis.values import splat_number
from neuronx_cc.passes.analysis.windows import runs, selection
from neuronx_cc.passes.expansions.bodies import apply_body
from neuronx_cc.passes.expansions.build import Build, Value
from neuronx_cc.passes.expansions.strided import padded, strided_slice
from neuronx_cc.passes.manager import PassContext, only_for

Tap = tuple[int, ...]


@only_for(hlo.SelectAndScatterOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):  # the elements after an op are erased with it
            if not isinstance(op, hlo.SelectAndScatterOp):
                continue
            if selection(op, module) is None:
                replace(op, sweep(module, op))
            else:
                _take_in_pad(op, module)


def sweep(module: HloModule, op: hlo.SelectAndScatterOp) -> Value:
    """The result of ``op``, built above it of whole arrays."""
    return _Sweep(module, op).result()


def _take_in_pad(op: hlo.SelectAndScatterOp, module: HloModule) -> None:
    """``slice(select-and-scatter(pad(x, -inf)))`` as one op on ``x``: what frameworks make of padded pooling."""
    pad, uses = defining_op(op.operands[0]), users(op.results[0])
    chosen = selection(op, module)
    if not isinstance(pad, hlo.PadOp) or len(uses) != 1 or chosen is None or chosen.keeps not in ("GE", "GT"):
        return
    cut, edges, dims = uses[0], pad.padding.data, hlo.shape_of(pad.lhs).dims
    if splat_number(pad.rhs, module) != float("-inf") or not isinstance(cut, hlo.SliceOp):
        return
    inside = tuple(SliceDim(edge.low, edge.low + size) for edge, size in zip(edges, dims, strict=True))
    if cut.slice.data != inside or any(edge.low < 0 or edge.high < 0 or edge.interior for edge in edges):
        return
    window = op.window.data
    if any((dim.pad_low, dim.pad_high) != (0, 0) for dim in window):
        return
    padded_window = tuple(
        WindowDim(dim.size, dim.stride, edge.low, edge.high) for dim, edge in zip(window, edges, strict=True)
    )
    if runs(padded_window) != runs(window):
        return
    properties = {
        "window": hlo.WindowAttr(padded_window),
        "to_apply": op.to_apply,
        "padding": hlo.StrAttr("lowest"),
    }
    operands = (pad.lhs, *op.operands[1:])
    replace(cut, Build.before(module, op).typed(hlo.SelectAndScatterOp, operands, cut.results[0].type, **properties))
    erase(op)


class _Sweep:
    def __init__(self, module: HloModule, op: hlo.SelectAndScatterOp):
        self.op, self.build = op, Build.before(module, op)
        self.select, self.scatter = (module.computation(name) for name in op.to_apply.data)
        self.operand, self.source, self.start = op.operands
        self.window = op.window.data
        self.padding = [PadDim(dim.pad_low, dim.pad_high, dim.lhs_dilation - 1) for dim in self.window]
        self.out = hlo.shape_of(self.source).dims

    def result(self) -> Value:
        build, dims = self.build, hlo.shape_of(self.operand).dims
        if 0 in dims or 0 in self.out:
            return build.broadcast(self.start, dims)
        zero = build.number(0, hlo.shape_of(self.operand).dtype)
        values = padded(build, self.operand, zero, self.padding)
        exists = padded(build, build.number(1, "pred", dims), build.number(0, "pred"), self.padding)
        taps = list(product(*(range(dim.size) for dim in self.window)))
        place = self.selected(values, exists, taps)
        total = build.broadcast(self.start, hlo.shape_of(values).dims)
        for number, tap in reversed(list(enumerate(taps))):
            chosen = build.compare(place, build.number_like(number, place), "EQ")
            total = self.spread(total, chosen, tap)
        for axis, (dim, size) in enumerate(zip(self.window, dims, strict=True)):
            # what the padding crops is not in ``total``
            first, step = dim.pad_low, dim.lhs_dilation
            low = max(0, -(first // step)) if first < 0 else 0
            limit = hlo.shape_of(total).dims[axis]
            kept = len([i for i in range(low, size) if first + i * step < limit])
            total = strided_slice(build, total, axis, first + low * step if kept else 0, max(kept, 0), step)
            edge = [PadDim(0, 0)] * len(dims)
            edge[axis] = PadDim(low, size - low - kept)
            total = padded(build, total, self.start, edge)
        return total

    def selected(self, values: Value, exists: Value, taps: list[Tap]) -> Value:
        """Number of the tap that each window selects (s32); the number of taps where no element exists."""
        build = self.build
        place = build.number(len(taps), "s32", self.out)
        best, found = self.cut(values, taps[0]), build.number(0, "pred", self.out)
        for number, tap in enumerate(taps):
            value, here = self.cut(values, tap), self.cut(exists, tap)
            (keeps,) = apply_body(self.op, self.select, [best, value], self.out)
            loses = build.each(hlo.NotOp, build.each(hlo.AndOp, found, keeps))
            takes = build.each(hlo.AndOp, here, loses)
            best = build.select(takes, value, best)
            place = build.select(takes, build.number_like(number, place), place)
            found = build.each(hlo.OrOp, found, here)
        return place

    def cut(self, value: Value, tap: Tap) -> Value:
        """The element of every window at position ``tap``."""
        for axis, (dim, at) in enumerate(zip(self.window, tap, strict=True)):
            value = strided_slice(self.build, value, axis, at * dim.rhs_dilation, self.out[axis], dim.stride)
        return value

    def spread(self, total: Value, chosen: Value, tap: Tap) -> Value:
        """``total`` with the source combined in at position ``tap`` of the windows that are ``chosen``."""
        build, dims = self.build, hlo.shape_of(total).dims
        padding = []
        for dim, at, count, size in zip(self.window, tap, self.out, dims, strict=True):
            low = at * dim.rhs_dilation
            padding.append(PadDim(low, size - low - (count - 1) * dim.stride - 1, dim.stride - 1))
        mask = padded(build, chosen, build.number(0, "pred"), padding)
        source = padded(build, self.source, build.number(0, hlo.shape_of(self.source).dtype), padding)
        (combined,) = apply_body(self.op, self.scatter, [total, source], dims)
        return build.select(mask, combined, total)
