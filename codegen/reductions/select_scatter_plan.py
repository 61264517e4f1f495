"""How the kernel of pooling gradients cuts its result: what lies on the partitions, and the block of every dim.

A partition owns a block of the result and goes through all windows that touch it, so neighbouring blocks visit the
windows between them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

from neuronx_cc.codegen.reductions.window_plan import moved
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.pooling import BOUNDS
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, Stage, Timing, total

BUFFERS = 2
"""Tiles under way between two stages."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A free dim: ``size`` elements of the operand, ``out`` windows; strides in bytes."""

    size: int
    out: int
    window: int
    stride: int
    low: int
    pitch: int
    out_pitch: int

    def first(self) -> int:
        """The first window that touches element 0; it may lie before all windows."""
        return -((self.window - 1 - self.low) // self.stride)

    def windows(self, block: int) -> int:
        """Windows that touch ``block`` elements from a multiple of the stride on."""
        return (block - 1 + self.low) // self.stride - self.first() + 1

    def inputs(self, block: int) -> int:
        return (self.windows(block) - 1) * self.stride + self.window

    def smaller(self, block: int) -> int:
        """About half of ``block``, again a multiple of the stride."""
        return max(self.stride, -(-(block // 2) // self.stride) * self.stride)


@dataclass(frozen=True, slots=True)
class Part:
    """``count`` neighbouring blocks with the same bounds."""

    count: int
    block: int
    own: int
    """Elements of each that exist."""
    x: tuple[int, int]
    """Inputs that exist, in elements of the tile."""
    windows: tuple[int, int]


def parts(axis: Axis, size: int) -> list[Part]:
    """The blocks of ``axis``: whole ones away from the edges together, every other on its own."""
    count, inputs = axis.windows(size), axis.inputs(size)
    found: list[Part] = []
    for block in range(-(-axis.size // size)):
        own = min(size, axis.size - block * size)
        window = block * size // axis.stride + axis.first()
        start = window * axis.stride - axis.low
        x = (min(inputs, max(0, -start)), max(0, min(inputs, axis.size - start)))
        windows = (min(count, max(0, -window)), max(0, min(count, axis.out - window)))
        part = Part(1, block, own, x, windows)
        last = found[-1] if found else None
        whole = (own, x, windows) == (size, (0, inputs), (0, count))
        if last and whole and (last.own, last.x, last.windows) == (own, x, windows):
            found[-1] = replace(last, count=last.count + 1)
        else:
            found.append(part)
    return found


@dataclass(frozen=True, slots=True)
class Plan:
    """``blocks``: elements of each axis that a partition owns; ``on_blocks``: partitions are blocks of axis 0."""

    blocks: tuple[int, ...]
    on_blocks: bool
    groups: int = 1
    """Elements of the leading dims side by side on the partitions."""


def best_plan(timing: Timing, axes: Sequence[Axis], leading: int, itemsize: int, room: int) -> Plan:
    """The cheapest cut whose tiles take at most ``room`` bytes a partition."""
    whole = tuple(-(-axis.size // axis.stride) * axis.stride for axis in axes)
    starts = [Plan(whole, False)] if leading > 1 else []
    for groups in range(1, min(16, leading) + 1):
        if leading % groups == 0:
            partitions = timing.sizes.partitions // groups
            block = -(-axes[0].size // (partitions * axes[0].stride)) * axes[0].stride
            starts.append(Plan((block, *whole[1:]), True, groups))
    best, least = starts[0], inf
    for plan in starts:
        plan = _shrunk(timing, axes, plan, leading, itemsize, room)
        time = cost(timing, axes, plan, leading, itemsize)
        if time < least:
            best, least = plan, time
    return best


def tile_bytes(axes: Sequence[Axis], plan: Plan, itemsize: int) -> int:
    """Bytes a partition: two tiles each of inputs, windows and results, and the bounds."""
    inputs, windows = _extents(axes, plan)
    return 2 * (prod(inputs) + prod(windows) + prod(plan.blocks)) * itemsize + 8 * BOUNDS * len(axes)


def _extents(axes: Sequence[Axis], plan: Plan) -> tuple[list[int], list[int]]:
    pairs = list(zip(axes, plan.blocks, strict=True))
    return [axis.inputs(block) for axis, block in pairs], [axis.windows(block) for axis, block in pairs]


def _shrunk(timing: Timing, axes: Sequence[Axis], plan: Plan, leading: int, itemsize: int, room: int) -> Plan:
    while tile_bytes(axes, plan, itemsize) > room:
        options = []
        for place, (axis, block) in enumerate(zip(axes, plan.blocks, strict=True)):
            if axis.smaller(block) < block:
                blocks = (*plan.blocks[:place], axis.smaller(block), *plan.blocks[place + 1 :])
                options.append(replace(plan, blocks=blocks))
        if not options:
            return plan
        plan = min(options, key=lambda option: cost(timing, axes, option, leading, itemsize))
    return plan


def cost(timing: Timing, axes: Sequence[Axis], plan: Plan, leading: int, itemsize: int) -> float:
    """Nanoseconds of a pipeline of loads, GpSimd's program and stores."""
    counts = [-(-axis.size // block) for axis, block in zip(axes, plan.blocks, strict=True)]
    inputs, windows = _extents(axes, plan)
    partitions = timing.sizes.partitions
    if plan.on_blocks:
        filled = min(partitions, counts[0] * plan.groups)
        tiles = prod(counts[1:]) * -(-leading // plan.groups) * -(-counts[0] * plan.groups // partitions)
    else:
        filled, tiles = min(partitions, leading), prod(counts) * -(-leading // partitions)
    positions = [number for axis in axes for number in (0, axis.window)]
    program = timing.engine("select_scatter", Stream.GPSIMD, prod(windows), ins=(F32, F32), imm=positions)
    sizes, outs = [axis.size for axis in axes], [axis.out for axis in axes]
    loads = [moved(timing, block, whole, filled, itemsize) for block, whole in ((inputs, sizes), (windows, outs))]
    loaded = Stage(total(load.work for load in loads), max(load.latency for load in loads))
    stored = moved(timing, plan.blocks, sizes, filled, itemsize, "write")
    return timing.pipeline([loaded, timing.done(program, Stream.GPSIMD), stored], tiles, BUFFERS)
