"""Windows folded by a combiner that engines know: pooling, moving sums; running folds go to ``scan_kernel``.

Input: ``reduce-window`` of one operand without base dilation. Each partition holds a block of outputs with the inputs
that their windows cover (``window_plan``); dims are folded one after the other on the chip, tap by tap or, for long
windows, by doubling. Padding is the combiner's neutral value, so that the initial value takes part once in each window:
tiles that reach over an edge are filled with it before the part inside is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Emitter, Splat
from neuronx_cc.codegen.emission.tiles import TilePool, dense
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.maps import elementwise
from neuronx_cc.codegen.maps.plan import load_stream
from neuronx_cc.codegen.movement.concatenate_kernel import fill
from neuronx_cc.codegen.movement.fill import one_a_partition
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.codegen.reductions import scan_kernel, window_plan
from neuronx_cc.codegen.reductions.window_plan import Dim, Plan
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.types import FLOATS, NARROW, itemsize
from neuronx_cc.passes.analysis.values import identity_of, same_number
from neuronx_cc.passes.analysis.windows import running_axis

REPEATABLE = hlo.opcodes(hlo.IdempotentOp)
SCANNED = hlo.opcodes(hlo.ExtremeOp)
"""Combiners that give the same bits in any order."""
LEAST_SCANNED = 32
"""Length of a window from which scans take less time than doubling."""


def lower(context: Context, op: hlo.ReduceWindowOp, step: int) -> None:
    """Emit ``op``, which is none of the forms that ``expand_windows`` rewrites."""
    del step
    opcode = context.combiners.get(op.to_apply.data[0])
    if len(op.operands) != 2 or opcode is None or any(dim.lhs_dilation != 1 for dim in op.window.data):
        raise AssertionError("expand_windows rewrites reduce-windows of this form")
    dims = hlo.shape_of(op.operands[0]).dims
    axis = running_axis(op)
    if axis is not None and all(size == 1 for size in dims[axis + 1 :]):
        scan_kernel.lower(context, op, opcode, op.window.data[axis].pad_high > 0)
        return
    target = context.new_hbm(op.results[0])
    context.homes[op.results[0]] = [target]
    if 0 in dims:
        fill(context, target, op.operands[1])
        return
    _Windows(context, op, opcode, target).emit()


@dataclass(frozen=True, slots=True)
class Part:
    """``count`` blocks of a dim, one after the other: where the first starts, and which inputs of each exist."""

    count: int
    block: int
    size: int
    """Outputs of each."""
    low: int
    high: int
    """Inputs [low, high) of the block lie inside the operand."""


def parts(dim: Dim, size: int) -> list[Part]:
    """The blocks of ``size`` outputs: neighbours that are whole and inside as one part, every other on its own."""
    found: list[Part] = []
    for block in range(dim.blocks(size)):
        own = min(size, dim.out - block * size)
        extent, first = dim.extent(own), block * size * dim.stride - dim.first
        low = min(extent, max(0, -first))
        part = Part(1, block, own, low, max(low, min(extent, dim.size - first)))
        last = found[-1] if found else None
        same = (part.size, part.low, part.high) == (size, 0, extent)
        if last and same and (last.size, last.low, last.high) == (size, 0, extent):
            found[-1] = replace(last, count=last.count + 1)
        else:
            found.append(part)
    return found


@dataclass(frozen=True, slots=True)
class Range:
    """A block of a dim in one tile: ``at`` is its first output."""

    at: Affine
    part: Part


@dataclass(frozen=True, slots=True)
class Spread:
    """Blocks of a dim that lie side by side on the partitions: ``first``, and (place, part) of all."""

    first: Affine
    placed: list[tuple[int, Part]]

    @property
    def count(self) -> int:
        return sum(part.count for _, part in self.placed)

    def blocks(self) -> Iterator[tuple[int, Part]]:
        """(place, part of one block)."""
        for place, part in self.placed:
            for number in range(part.count):
                yield place + number, replace(part, count=1)


class _Windows:
    def __init__(self, context: Context, op: hlo.ReduceWindowOp, opcode: str, target: View) -> None:
        self.context, self.builder, self.opcode = context, context.builder, opcode
        operand, self.init = op.operands
        self.source, self.target = context.dense(operand), target
        self.stream = load_stream(operand)
        widest = max(dim.size for dim in op.window.data)
        self.dtype = _computed_in(opcode, op.shape.dtype, widest)
        self.size = itemsize(self.dtype)
        shape = hlo.shape_of(operand).dims
        window = zip(shape, op.shape.dims, op.window.data, strict=True)
        self.dims = window_plan.merged(
            [Dim(n, out, w.size, w.stride, w.rhs_dilation, w.pad_low) for n, out, w in window]
        )
        self.strides = [atom.stride for atom in dense([dim.size for dim in self.dims], self.source.dtype)]
        self.out_strides = [atom.stride for atom in dense([dim.out for dim in self.dims], target.dtype)]
        room = int(self.builder.sbuf.largest_gap() * 0.8)
        largest = int(self.builder.machine["memory.sbuf_max_elements"])
        room = min(room, largest * self.size * 2)
        self.plan: Plan = window_plan.best_plan(self.builder.timing, self.dims, self.size, room)
        self.dims = window_plan.lying(self.builder.timing, self.dims, self.plan)
        self.tiles = TilePool(self.builder, "window", 2)
        self.work = TilePool(self.builder, "partial windows", 1)
        self.emitter = Emitter(self.builder, self._scratch)
        neutral = identity_of(opcode, self.dtype)
        assert neutral is not None, "simple combiners have an identity"
        self.neutral = neutral
        self.start = self._start()
        self.scans: dict[int, bool] = {}
        """Bytes of a tile -> whether there is room for scans of it."""

    def emit(self) -> None:
        plan = self.plan
        inner = [axis for axis in range(len(self.dims)) if axis not in (plan.partition, plan.group)]
        for groups in self._spread(plan.group, plan.groups):
            for partitions in self._spread(plan.partition, 128 // plan.groups):
                self._nest(inner, {}, partitions, groups)
        self.tiles.free()
        self.work.free()

    def _scratch(self, like: Block, dtype: str) -> Block:
        return self.work.like(like, dtype)

    def _start(self) -> Splat | Block | None:
        """The initial value, or None where it changes nothing."""
        constant = self.context.splat(self.init)
        if constant is not None:
            return None if same_number(constant, self.neutral) else Splat(constant, self.dtype)
        return one_a_partition(self.builder, self.work, self.context.hbm(self.init))

    # which blocks make a tile

    def _spread(self, axis: int, most: int) -> Iterator[Spread]:
        """The blocks of a dim that lie side by side in each tile, at most so many; a block of no dim for -1."""
        if axis < 0:
            yield Spread(Affine(), [(0, Part(1, 0, 1, 0, 1))])
            return
        found: list[tuple[int, list[Part]]] = []
        room = 0
        for part in parts(self.dims[axis], self.plan.blocks[axis]):
            block, left = part.block, part.count
            while left:
                if room == 0:
                    found.append((block, []))
                    room = most
                count = min(left, room)
                found[-1][1].append(replace(part, block=block, count=count))
                block, left, room = block + count, left - count, room - count
        for first, count, placed in _repeated(found, most):
            with self.builder.loop(count) as index:
                yield Spread(index * most + first, placed)

    def _nest(self, axes: Sequence[int], ranges: dict[int, Range], partitions: Spread, groups: Spread) -> None:
        if not axes:
            self._tile(ranges, partitions, groups)
            return
        axis, size = axes[0], self.plan.blocks[axes[0]]
        for part in parts(self.dims[axis], size):
            with self.builder.loop(part.count) as index:
                at = (index + part.block) * size
                self._nest(axes[1:], {**ranges, axis: Range(at, part)}, partitions, groups)

    # one tile

    def _tile(self, ranges: dict[int, Range], partitions: Spread, groups: Spread) -> None:
        plan, axes = self.plan, range(len(self.dims))
        spread = (plan.partition, plan.group)
        outs = [plan.blocks[axis] if axis in spread else ranges[axis].part.size for axis in axes]
        extents = [dim.extent(size) for dim, size in zip(self.dims, outs, strict=True)]
        tile = self.tiles.tile(extents, self.dtype, partitions.count * groups.count)
        boxes: list[tuple[int, dict[int, Range]]] = []
        for group, beside in groups.blocks():
            for place, part in partitions.placed:
                box = {**ranges, plan.partition: self._range(plan.partition, partitions, place, part)}
                if plan.group >= 0:
                    box[plan.group] = self._range(plan.group, groups, group, beside)
                boxes.append((group * partitions.count + place, box))
        self._fill(tile, [{axis: each.part for axis, each in box.items()} for _, box in boxes])
        for first, box in boxes:
            self._load(tile, box, first)
        out = self._fold(tile, outs)
        for first, box in boxes:
            self._store(out, box, first)
        self.tiles.give_back(tile)
        self.tiles.give_back(out)

    def _fill(self, tile: Block, boxes: Sequence[dict[int, Part]]) -> None:
        """The neutral value ahead of and after what all ``boxes`` have inside the operand, along each dim.

        On GpSimd, which has nothing else to do, so that what is loaded next need not wait for the folds of this tile.
        """
        for axis in range(len(self.dims)):
            low, high = max(box[axis].low for box in boxes), min(box[axis].high for box in boxes)
            size = tile.dims[axis + 1].size
            low = min(low, size)
            for start, end in ((0, low), (max(low, high), size)):
                if start < end:
                    strip = tile.index(axis + 1, Affine(start), end - start)
                    self.emitter.over("memset", Stream.GPSIMD, [strip], [], imm=[self.neutral])
            if low >= high:
                return
            tile = tile.index(axis + 1, Affine(low), high - low)

    def _range(self, axis: int, spread: Spread, place: int, part: Part) -> Range:
        return Range((spread.first + place) * self.plan.blocks[axis], part)

    def _load(self, tile: Block, box: dict[int, Range], first: int) -> None:
        """A block of inputs for each of the partitions from ``first`` on."""
        plan = self.plan
        offset, into, atoms = self.source.start, tile, []
        for axis, dim in enumerate(self.dims):
            part, at = box[axis].part, box[axis].at
            if part.high <= part.low:
                return
            offset += at * (dim.stride * self.strides[axis]) + (part.low - dim.first) * self.strides[axis]
            into = into.index(axis + 1, Affine(part.low), part.high - part.low)
            atoms.append(Atom(part.high - part.low, self.strides[axis]))
        count = box[plan.partition].part.count
        step = plan.blocks[plan.partition] * self.dims[plan.partition].stride * self.strides[plan.partition]
        source = Block(self.source.alloc, self.source.dtype, offset, (Atom(count, step), *atoms))
        copy(self.builder, into.on_partitions(count, first), source, self.stream)

    def _store(self, out: Block, box: dict[int, Range], first: int) -> None:
        plan = self.plan
        offset, atoms = self.target.start, []
        for axis, stride in enumerate(self.out_strides):
            size = box[axis].part.size
            out = out.index(axis + 1, Affine(0), size)
            offset += box[axis].at * stride
            atoms.append(Atom(size, stride))
        count = box[plan.partition].part.count
        step = plan.blocks[plan.partition] * self.out_strides[plan.partition]
        target = Block(self.target.alloc, self.target.dtype, offset, (Atom(count, step), *atoms))
        copy(self.builder, target, out.on_partitions(count, first), Stream.DMA_STORE)

    # folding a tile

    def _fold(self, tile: Block, outs: Sequence[int]) -> Block:
        """The windows of ``tile`` as a tile of ``outs`` elements; the last step writes there."""
        out = self.tiles.tile(outs, self.dtype, tile.dims[0].size)
        folded = [axis for axis, dim in enumerate(self.dims) if dim.window > 1]
        current, mine = tile, False
        for axis, dim in enumerate(self.dims):
            if dim.window == 1:
                current = current.every(axis + 1, 0, outs[axis], dim.stride)
        for axis in folded:
            sizes = [atom.size for atom in current.dims[1:]]
            sizes[axis] = outs[axis]
            result = out if axis == folded[-1] else self.work.tile(sizes, self.dtype, tile.dims[0].size)
            self._fold_dim(result, current, axis + 1, self.dims[axis])
            if mine:
                self.work.give_back(current)
            current, mine = result, True
        if not folded:
            self.emitter.over("tensor_copy", self._engine(), [out], [current])
        if isinstance(self.start, Splat):
            self._combine(out, out, self.start)
        elif self.start is not None:
            self._combine(out, out, self.start.repeated(out))
        return out

    def _engine(self) -> Stream:
        return Stream.VECTOR if self.dtype in FLOATS else Stream.GPSIMD

    def _combine(self, out: Block, lhs: Block, rhs: Block | Splat) -> None:
        elementwise.emit_binary(self.emitter, self.opcode, self.dtype, out, lhs, rhs)

    def _fold_dim(self, result: Block, source: Block, dim: int, window: Dim) -> None:
        if window.whole:
            self._fold_whole(result, source, dim, window)
            return
        if self._pays_scans(source, dim, window):
            self._fold_by_scans(result, source, dim, window.window)
            return
        size = result.dims[dim].size
        before, after = (prod(atom.size for atom in block.dims[1:]) for block in (source, result))

        def taps(start: int) -> Block:
            return source.every(dim, start, size, window.stride)

        if not window_plan.by_doubling(self.builder.timing, window.window, before, after):
            self._combine(result, taps(0), taps(window.dilation))
            for tap in range(2, window.window):
                self._combine(result, result, taps(tap * window.dilation))
            return
        # ``source`` holds folds of 1, 2, 4, ... neighbours; the window is put together from the powers of two in it
        # two of the greatest power that overlap, where what counts twice changes nothing
        length, reach, place, repeatable = source.dims[dim].size, 1, 0, self.opcode in REPEATABLE
        while True:
            if window.window & reach and not repeatable:
                part = taps(place * window.dilation)
                if place:
                    self._combine(result, result, part)
                else:
                    self.emitter.over("tensor_copy", self._engine(), [result], [part])
                place += reach
            if 2 * reach > window.window:
                break
            length -= reach * window.dilation
            low = source.index(dim, Affine(0), length)
            self._combine(low, low, source.index(dim, Affine(reach * window.dilation), length))
            reach *= 2
        if repeatable:
            self._combine(result, taps(0), taps((window.window - reach) * window.dilation))

    def _fold_whole(self, result: Block, source: Block, dim: int, window: Dim) -> None:
        """Tap by tap, each into the outputs that it meets: tiles have no padding along ``dim``. What a tap meets first
        is copied, but for the first one, which is combined with the second as it lies.
        """

        def made(low: int, high: int) -> Block:
            return result.index(dim, Affine(low), high - low)

        def tap(number: int, low: int, high: int) -> Block:
            first = low * window.stride + number * window.dilation - window.low
            return source.every(dim, first, high - low, window.stride)

        (one, *done), *others = window.met
        held: Callable[[int, int], Block] = partial(tap, one)
        for other, low, high in others or [(one, done[1], done[1])]:
            both = max(low, done[0]), min(high, done[1])
            new: Callable[[int, int], Block] = partial(tap, other)
            if both[0] < both[1]:
                self._combine(made(*both), held(*both), new(*both))
            pieces = [(new, low, both[0]), (new, both[1], high)]
            if held is not made:
                pieces += [(held, done[0], both[0]), (held, both[1], done[1])]
            for given, start, end in pieces:
                if start < end:
                    self.emitter.over("tensor_copy", self._engine(), [made(start, end)], [given(start, end)])
            done, held = [min(low, done[0]), max(high, done[1])], made

    def _pays_scans(self, source: Block, dim: int, window: Dim) -> bool:
        """Whether two scans of blocks as long as the window take less time than doubling."""
        nbytes = prod(atom.size for atom in source.dims[1:]) * self.size
        simple = nbytes == source.dims[dim].size * self.size and window.stride == window.dilation == 1
        if not simple or self.dtype != "f32" or self.opcode not in SCANNED or window.window < LEAST_SCANNED:
            return False
        # tiles of a size that was met before are there already
        return self.scans.setdefault(nbytes, self.builder.sbuf.largest_gap() >= 2 * nbytes + 4 * LEAST_SCANNED)

    def _fold_by_scans(self, result: Block, source: Block, dim: int, length: int) -> None:
        """A window is the end of one block of ``length`` elements and the beginning of the next.

        Tiles hold the folds from the beginning of each element's block, and from the element to the end (van Herk 1992;
        Gil and Werman 1993).
        """
        size, partitions = source.dims[dim].size, source.dims[0].size
        sizes = [atom.size for atom in source.dims[1:]]
        ahead, trailing = (self.work.tile(sizes, self.dtype, partitions) for _ in range(2))
        one = self.work.tile([1], self.dtype, partitions)
        self.emitter.copy(one, Splat(1.0, self.dtype))
        row = source.select([0, dim])
        for tile, backward in ((ahead, False), (trailing, True)):
            for start, blocks, count in self.builder.tiles(size, length):
                with self.builder.loop(blocks) as index:
                    out, terms = (
                        block.index(1, index * length + start, count) for block in (tile.select([0, dim]), row)
                    )
                    if backward:
                        out, terms = out.backwards([1]), terms.backwards([1])
                    first = terms.index(1, Affine())
                    self.emitter.over("tensor_copy", Stream.VECTOR, [out.index(1, Affine())], [first])
                    if count > 1:
                        rest, others = (block.index(1, Affine(1), count - 1) for block in (out, terms))
                        ins = [others, one.repeated(others), first]
                        alu = [elementwise.ARITHMETIC[self.opcode], "multiply"]
                        self.builder.emit("tensor_tensor_scan", Stream.VECTOR, [rest], ins, alu, flags=["ap0"])
        self._combine(
            result,
            trailing.index(dim, Affine(0), result.dims[dim].size),
            ahead.index(dim, Affine(length - 1), result.dims[dim].size),
        )
        for tile in (ahead, trailing, one):
            self.work.give_back(tile)


def _computed_in(opcode: str, dtype: str, widest: int) -> str:
    """FP32 where floats are added up or multiplied, and where long windows are scanned; the DMA casts both ways."""
    scanned = opcode in SCANNED and widest >= LEAST_SCANNED
    return "f32" if dtype in NARROW and (scanned or opcode not in REPEATABLE) else dtype


def _repeated(tiles: Sequence[tuple[int, list[Part]]], most: int) -> Iterator[tuple[int, int, list[tuple[int, Part]]]]:
    """(first block, count, partitions): neighbouring tiles of one full part as a loop."""
    index = 0
    while index < len(tiles):
        first, found = tiles[index]
        count = 1
        while (
            len(found) == 1
            and found[0].count == most
            and index + count < len(tiles)
            and tiles[index + count][1] == [replace(found[0], block=tiles[index + count][0])]
        ):
            count += 1
        partitions, partition = [], 0
        for part in found:
            partitions.append((partition, part))
            partition += part.count
        yield first, count, partitions
        index += count
