"""Rewrites windows that no kernel takes as they are.

Input: an inlined module. Output: every ``reduce-window`` left has one operand and a one-operator computation, no base
dilation, and is either a running fold along the last dim or folds no dim from end to end.

* Windows are no larger than what they hold of the array (average pooling over more than an image, as EfficientNet of
  transformers has).
* Running folds (cumulative sums and the like) along other dims are scans, or of blocks of rows, or are brought to the
  last dim.
* A window over a whole dim is a ``reduce``.
* Computations of their own are applied to whole arrays: shifted slices are combined in order, by doubling where windows
  are long. The initial value takes part once in each window and the elements of the padding do not, as in XLA; where
  there is padding, a flag goes with each element that says whether it exists.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo import HloModule, PadDim, WindowDim
from neuronx_cc.ir.hlo.editing import defining_op, insert_constant, ops_of
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import FLOATS, NUMPY_DTYPE
from neuronx_cc.passes import scans_in_rows
from neuronx_cc.passes.analysis.values import computation_kind, identity_of, same_number, splat_number
from neuronx_cc.passes.analysis.windows import PLAIN, is_running, trimmed, windowed
from neuronx_cc.passes.expansions import log_sum_exp, scans
from neuronx_cc.passes.expansions.bodies import apply_body
from neuronx_cc.passes.expansions.build import Build, Value, replace_results
from neuronx_cc.passes.expansions.combiners import duplicate
from neuronx_cc.passes.expansions.masked_loops import apply_loops, loops_on_scalars
from neuronx_cc.passes.expansions.strided import padded, strided_slice
from neuronx_cc.passes.manager import PassContext, only_for

MOST_DIMS = 3
"""Dims of more than one element of what is scanned along one that is not the last."""
LEAST_STEPS = 128
"""Along such a dim: shorter ones are transposed, and so is what ``scans_in_rows`` has too few elements of."""
FEW_TAPS = 6
"""Elements of a window that are combined one after the other."""


@only_for(hlo.ReduceWindowOp)
def run(module: HloModule, context: PassContext) -> None:
    for computation in list(module.computations()):
        for op in list(ops_of(computation.block)):  # the elements after an op are erased with it
            if not isinstance(op, hlo.ReduceWindowOp):
                continue
            kind = computation_kind(module.computation(op.to_apply.data[0])) if len(op.operands) == 2 else ""
            _trim(module, op, kind)
            results = (
                [_Known(module, op, kind, context.timing).result()] if kind else own_windows(module, op, context.timing)
            )
            if results[0] is not op.results[0]:
                replace_results(op, results)


def _trim(module: HloModule, op: hlo.ReduceWindowOp, kind: str) -> None:
    """Leave out of the windows what lies in the padding for all, also where the program pads with a neutral number."""
    pad, window = defining_op(op.operands[0]), op.window.data
    if kind and isinstance(pad, hlo.PadOp) and splat_number(pad.rhs, module) == identity_of(kind, op.shape.dtype):
        pairs = list(zip(window, pad.padding.data, strict=True))
        if all(dim.lhs_dilation == 1 and min(place.low, place.high) >= 0 for dim, place in pairs):
            joint = [_joint(*each) for each in pairs]
            short = tuple(map(trimmed, joint, hlo.shape_of(pad.lhs).dims))
            if any(dim.size < other.size for dim, other in zip(short, window, strict=True)):
                op.operands = [pad.lhs, op.operands[1]]
                window = short
    window = tuple(map(trimmed, window, hlo.shape_of(op.operands[0]).dims))
    op.properties["window"] = hlo.WindowAttr(window)


def _joint(dim: WindowDim, pad: PadDim) -> WindowDim:
    """The window of an array that ``pad`` pads."""
    return replace(dim, pad_low=dim.pad_low + pad.low, pad_high=dim.pad_high + pad.high, lhs_dilation=pad.interior + 1)


def own_windows(module: HloModule, op: hlo.ReduceWindowOp, timing: Timing) -> list[Value]:
    """The results of ``op``, built above it; its computation is of operators on scalars and loops of them."""
    return _Own(module, op, timing).results()


class _Known:
    """A window of one operand whose computation is the combiner ``kind``."""

    def __init__(self, module: HloModule, op: hlo.ReduceWindowOp, kind: str, timing: Timing):
        self.op, self.kind, self.module = op, kind, module
        self.build = Build.before(module, op, timing)
        self.dtype = op.shape.dtype

    def result(self) -> Value:
        op, build = self.op, self.build
        value, start = op.operands
        window = op.window.data
        if 0 in hlo.shape_of(value).dims or op.shape.size == 0:
            return build.broadcast(start, op.shape.dims)
        if (enlarged := self.enlarged()) is not None:
            return enlarged
        if any(dim.lhs_dilation != 1 for dim in window):
            gaps = [PadDim(0, 0, dim.lhs_dilation - 1) for dim in window]
            value = padded(build, value, self.neutral(), gaps)
            window = tuple(_changed(dim, lhs_dilation=1) for dim in window)
        axes = windowed(window)
        dims = hlo.shape_of(value).dims
        special = [axis for axis in axes if is_whole(window[axis], dims[axis]) or is_running(window[axis], dims[axis])]
        # code generation takes plain windows, and running folds of the last dim
        last = len(axes) == 1 and is_running(window[axes[0]], dims[axes[0]]) and prod(dims[axes[0] + 1 :]) == 1
        if axes and value is op.operands[0] and (last or not special):
            return op.results[0]
        for axis in special:
            first = start if axes == [axis] else self.neutral()
            if is_whole(window[axis], dims[axis]):
                value = self.reduced(value, first, axis)
            else:
                value = self.running(value, first, axis, window[axis])
            axes.remove(axis)
            window = (*window[:axis], PLAIN, *window[axis + 1 :])
        if axes:
            return self.again(value, start, window)
        if special:
            return value
        return build.each(hlo.OPCODES[self.kind], build.broadcast(start, op.shape.dims), value)

    def enlarged(self) -> Value | None:
        """The sum of a padded array of which each window holds one element: that one, for each of its windows."""
        pad, window = defining_op(self.op.operands[0]), self.op.window.data
        if self.kind != "add" or splat_number(self.op.operands[1], self.module) != 0:
            return None
        value, padding = self.op.operands[0], [PadDim(0, 0)] * len(window)
        if isinstance(pad, hlo.PadOp) and splat_number(pad.rhs, self.module) == 0:
            value, padding = pad.lhs, list(pad.padding.data)
        if padding != [PadDim(0, 0)] * len(window) and any(dim.lhs_dilation != 1 for dim in window):
            return None
        pairs = list(zip(window, padding, strict=True))
        apart = [place.interior + dim.lhs_dilation for dim, place in pairs]
        for (dim, place), step in zip(pairs, apart, strict=True):
            edges = place.low + dim.pad_low, place.high + dim.pad_high
            if dim.stride != 1 or dim.rhs_dilation != 1 or dim.size != step or edges != (step - 1, step - 1):
                return None
        if max(apart, default=1) == 1:
            return None
        value = self.build.add(value, self.build.number_like(0, value))  # as the sum does with -0
        parts = [part for size, step in zip(hlo.shape_of(value).dims, apart, strict=True) for part in (size, step)]
        spread = self.build.broadcast(value, parts, range(0, len(parts), 2))
        return self.build.reshape(spread, self.op.shape.dims)

    def in_blocks(self, value: Value, start: Value, axis: int, dim: WindowDim, blocks: int) -> Value:
        """A running fold along a leading dim, without turning the array: a fold of blocks, and one of their totals."""
        build, dims = self.build, hlo.shape_of(value).dims
        length, reverse = dims[axis] // blocks, dim.pad_high > 0
        cut = build.reshape(value, (*dims[:axis], blocks, length, *dims[axis + 1 :]))
        kind = hlo.OPCODES[self.kind]
        rows = [build.slice(cut, axis + 1, place, place + 1) for place in range(length)]
        total = rows[0]
        for row in rows[1:]:
            total = build.each(kind, total, row)
        short = (*dims[:axis], blocks, *dims[axis + 1 :])
        window = WindowDim(blocks, pad_low=0 if reverse else blocks - 1, pad_high=blocks - 1 if reverse else 0)
        carried = self.brought_last(build.reshape(total, short), start, axis, window)
        first = build.broadcast(start, (*dims[:axis], 1, *dims[axis + 1 :]))
        kept = build.slice(carried, axis, int(reverse), blocks - 1 + int(reverse))
        before = build.concatenate([kept, first] if reverse else [first, kept], axis)
        local = scans.insert(build, [cut], build.combiner(kind, self.dtype), axis + 1, reverse)
        spread = [place for place in range(len(dims) + 1) if place != axis + 1]
        both = build.each(kind, build.broadcast(before, hlo.shape_of(cut).dims, spread), local)
        return build.reshape(both, dims)

    def neutral(self) -> Value:
        number = identity_of(self.kind, self.dtype)
        assert number is not None, "simple combiners have an identity"
        array = np.array(number).astype(NUMPY_DTYPE[self.dtype])
        return insert_constant(self.module, self.op, array, self.dtype, self.op.loc)

    def reduced(self, value: Value, start: Value, axis: int) -> Value:
        dims = list(hlo.shape_of(value).dims)
        kept = [size for place, size in enumerate(dims) if place != axis]
        properties = {"dimensions": hlo.IntsAttr((axis,)), "to_apply": self.op.to_apply}
        total = self.build.op(hlo.ReduceOp, (value, start), self.dtype, kept, **properties)
        return self.build.reshape(total, [1 if place == axis else size for place, size in enumerate(dims)])

    def running(self, value: Value, start: Value, axis: int, dim: WindowDim) -> Value:
        dims = hlo.shape_of(value).dims
        blocks = scans.blocks_of_rows(hlo.shape_of(value), axis)
        # a product of later elements may overflow that meets a zero from before
        if blocks and (self.kind != "multiply" or self.dtype not in FLOATS):
            return self.in_blocks(value, start, axis, dim, blocks)
        if self.is_scan(dims, axis):  # passes.scans_in_rows brings its steps together
            initial = None
            if not same_number(splat_number(start, self.module), identity_of(self.kind, self.dtype)):
                initial = self.build.broadcast(start, dims)
            name = self.build.combiner(hlo.OPCODES[self.kind], self.dtype)
            return scans.insert(self.build, [value], name, axis, dim.pad_high > 0, initial=initial)
        return self.brought_last(value, start, axis, dim)

    def brought_last(self, value: Value, start: Value, axis: int, dim: WindowDim) -> Value:
        """A running fold of what is transposed for it."""
        dims = hlo.shape_of(value).dims
        order = [place for place in range(len(dims)) if place != axis] + [axis]
        back = [order.index(place) for place in range(len(dims))]
        transposed = self.build.transpose(value, order)
        window = tuple(dim if place == len(dims) - 1 else PLAIN for place in range(len(dims)))
        return self.build.transpose(self.again(transposed, start, window), back)

    def is_scan(self, dims: Sequence[int], axis: int) -> bool:
        """Whether map kernels scan rows along ``axis``, which lie apart."""
        body = self.module.computation(self.op.to_apply.data[0])
        fits = self.dtype in ("f32", "s32", "u32") and self.kind in ("add", "multiply", "maximum", "minimum")
        fits &= sum(size > 1 for size in dims) <= MOST_DIMS
        fits &= dims[axis] >= LEAST_STEPS and prod(dims) >= scans_in_rows.LEAST
        return fits and prod(dims[axis + 1 :]) > 1 and dims[axis] <= scans.longest(self.build, body)

    def again(self, value: Value, start: Value, window: tuple[WindowDim, ...]) -> Value:
        dims = [_windows(size, dim) for size, dim in zip(hlo.shape_of(value).dims, window, strict=True)]
        properties = {"window": hlo.WindowAttr(window), "to_apply": self.op.to_apply}
        return self.build.op(hlo.ReduceWindowOp, (value, start), self.dtype, dims, **properties)


def is_whole(dim: WindowDim, size: int) -> bool:
    """Whether there is one window, over all of the dim."""
    return size > 1 and dim == WindowDim(size, dim.stride)


def _changed(dim: WindowDim, lhs_dilation: int) -> WindowDim:
    return WindowDim(dim.size, dim.stride, dim.pad_low, dim.pad_high, lhs_dilation, dim.rhs_dilation, dim.reversal)


def _windows(size: int, dim: WindowDim) -> int:
    reach = (dim.size - 1) * dim.rhs_dilation + 1
    return max(0, (size + dim.pad_low + dim.pad_high - reach) // dim.stride + 1)


class _Own:
    """Windows with a computation of their own, on any number of operands."""

    def __init__(self, module: HloModule, op: hlo.ReduceWindowOp, timing: Timing):
        self.op, self.module = op, module
        self.build = Build.before(module, op, timing)
        self.body = module.computation(op.to_apply.data[0])
        count = len(op.operands) // 2
        self.arrays, self.starts = list(op.operands[:count]), list(op.operands[count:])
        self.loops = loops_on_scalars(module, self.body)
        self.flagged = False

    def results(self) -> list[Value]:
        build, window = self.build, self.op.window.data
        out = hlo.shape_of(self.op.results[0]).dims if len(self.arrays) == 1 else self.out_dims()
        starts = [build.broadcast(start, out) for start in self.starts]
        dims = hlo.shape_of(self.arrays[0]).dims
        if prod(out) == 0 or 0 in dims:
            return starts
        arrays = self.arrays
        running = [axis for axis, dim in enumerate(window) if is_running(dim, dims[axis])]
        rest = tuple(PLAIN if axis in running else dim for axis, dim in enumerate(window))
        padding = [PadDim(dim.pad_low, dim.pad_high, dim.lhs_dilation - 1) for dim in rest]
        if any(dim.low > 0 or dim.high > 0 or dim.interior for dim in padding):
            self.flagged = True
            arrays = [*arrays, build.number(1, "pred", dims)]
            fills = [*self.starts, build.number(0, "pred")]
        else:
            fills = list(self.starts)
        arrays = [padded(build, array, fill, padding) for array, fill in zip(arrays, fills, strict=True)]
        for axis in reversed(range(len(window))):
            if axis in running:
                arrays = self.run(arrays, axis, window[axis].pad_high > 0)
            else:
                arrays = self.slide(arrays, axis, rest[axis])
        return self.first(starts, arrays)

    def out_dims(self) -> tuple[int, ...]:
        type_ = self.op.results[0].type
        assert isinstance(type_, hlo.TupleType)
        first = type_.data[0]
        assert isinstance(first, hlo.ArrayType)
        return first.data.dims

    def combine(self, left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        """``left`` before ``right``; what does not exist leaves the other as it is."""
        if not self.flagged:
            return self.applied([*left, *right])
        *values, here = left
        *others, there = right
        both = self.applied([*values, *others], self.build.each(hlo.AndOp, here, there) if self.loops else None)
        chosen = []
        for combined, value, other in zip(both, values, others, strict=True):
            chosen.append(self.build.select(here, self.build.select(there, combined, value), other))
        return [*chosen, self.build.each(hlo.OrOp, here, there)]

    def first(self, starts: list[Value], arrays: list[Value]) -> list[Value]:
        if not self.flagged:
            neutral = log_sum_exp.matches(self.body) and splat_number(self.starts[0], self.module) == -np.inf
            return arrays if neutral else self.applied([*starts, *arrays])
        *values, here = arrays
        both = self.applied([*starts, *values], here)
        return [self.build.select(here, *pair) for pair in zip(both, starts, strict=True)]

    def applied(self, operands: Sequence[Value], live: Value | None = None) -> list[Value]:
        """The computation; of what is not ``live`` any result will do."""
        dims = hlo.shape_of(operands[0]).dims
        if self.loops:
            return apply_loops(self.build, self.body, operands, dims, live)
        return apply_body(self.op, self.body, operands, dims)

    def shifted(self, arrays: Sequence[Value], axis: int, start: int, count: int, step: int = 1) -> list[Value]:
        return [strided_slice(self.build, array, axis, start, count, step) for array in arrays]

    def slide(self, arrays: list[Value], axis: int, dim: WindowDim) -> list[Value]:
        """Windows along ``axis`` of arrays that have their padding already."""
        size = hlo.shape_of(arrays[0]).dims[axis]
        count = _windows(size, WindowDim(dim.size, dim.stride, rhs_dilation=dim.rhs_dilation))

        def taps(source: Sequence[Value], tap: int) -> list[Value]:
            return self.shifted(source, axis, tap * dim.rhs_dilation, count, dim.stride)

        if dim.size <= FEW_TAPS:
            result = taps(arrays, 0)
            for tap in range(1, dim.size):
                result = self.combine(result, taps(arrays, tap))
            return result
        # ``arrays`` hold folds of 1, 2, 4, ... neighbours; the parts of the window follow each other
        levels, reach = [arrays], 1
        while 2 * reach <= dim.size:
            size -= reach * dim.rhs_dilation
            ahead = self.shifted(levels[-1], axis, reach * dim.rhs_dilation, size)
            levels.append(self.combine(self.shifted(levels[-1], axis, 0, size), ahead))
            reach *= 2
        result, place = taps(levels[-1], 0), reach
        for level, folds in reversed(list(enumerate(levels[:-1]))):
            if dim.size & (1 << level):
                result, place = self.combine(result, taps(folds, place)), place + (1 << level)
        return result

    def exchanged(self) -> hlo.ComputationOp:
        """The computation with left and right exchanged, made if the module lacks it."""
        name = f"{self.body.computation_name}.exchanged"
        for computation in self.module.computations():
            if computation.computation_name == name:
                return computation
        copy = duplicate(self.module, self.body, name)
        self.module.op.body.block.insert_op_after(copy, self.body)
        count = len(copy.block.args) // 2
        for left, right in zip(copy.block.args[:count], copy.block.args[count:], strict=True):
            uses = list(left.uses)
            right.replace_all_uses_with(left)
            for use in uses:
                use.operation.operands[use.index] = right
        return copy

    def run(self, arrays: list[Value], axis: int, reverse: bool) -> list[Value]:
        """Folds of all elements up to each one, or from each one on."""
        size, reach = hlo.shape_of(arrays[0]).dims[axis], 1
        if not self.flagged and scans.fits(self.body):
            # a window that ends at the last element is folded from its first one on, too
            body = self.exchanged() if reverse else self.body
            return scans.running(self.build, arrays, body, axis, reverse)
        while reach < size:
            low, high = (self.shifted(arrays, axis, start, size - reach) for start in (0, reach))
            both = self.combine(low, high)
            edge = self.shifted(arrays, axis, size - reach if reverse else 0, reach)
            pairs = zip(both, edge, strict=True) if reverse else zip(edge, both, strict=True)
            arrays = [self.build.concatenate(pair, axis) for pair in pairs]
            reach *= 2
        return arrays
