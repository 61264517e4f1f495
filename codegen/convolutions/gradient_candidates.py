"""Schedules of a gradient of a kernel that fit, and the time that each takes: pure functions of problem and machine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from neuronx_cc.codegen.convolutions.gradient_diagonal import drained
from neuronx_cc.codegen.convolutions.gradient_plan import ENOUGH, GROUP, Loading, blocks_of, transposed_columns
from neuronx_cc.codegen.convolutions.gradient_problem import Problem, loadings
from neuronx_cc.codegen.convolutions.gradient_schedule import Frame, Schedule, frame, frame_of
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

MAX_SUMS = 64
"""Sums that are unrolled at a time."""


def candidates(problem: Problem, timing: Timing) -> Iterator[Schedule]:
    """Whichever operand the taps move, however positions come: all features or ever fewer, ever smaller blocks."""
    for face, stated in enumerate(problem.faces):
        for loaded in product(*map(loadings, stated.operands)):
            for framed in _stacked(problem, face, loaded, timing):
                yield from _blocks(framed)
            for framed in _frames(problem, face, loaded, timing):
                whole = False
                for schedule in _blocks(framed):
                    yield schedule
                    filled = prod(framed.spread(schedule.rows).partitions) >= ENOUGH * framed.tile_rows
                    whole |= filled and (framed.parts == 1 or list(schedule.rows) == [a.rows for a in stated.axes])
                if whole:
                    break  # fewer features would only repeat transposes


def _frames(problem: Problem, face: int, loaded: tuple[Loading, ...], timing: Timing) -> Iterator[Frame]:
    """Groups, and features of both sides, to be summed together: all, and ever fewer."""
    left, right = problem.faces[face].kept
    how = loaded[0], loaded[1]
    pack = min(problem.groups, min(timing.sizes.rows, timing.sizes.columns) // max(left, right))
    while pack > 1:
        yield frame_of(problem, face, how, pack, False, (pack * left, pack * right), timing)
        pack //= 2
    while True:
        framed = frame_of(problem, face, how, 1, False, (left, right), timing)
        if max(left, right) <= framed.tile_rows or len(framed.pairs) <= MAX_SUMS:
            yield framed
        if max(left, right) == 1:
            return
        # of equal numbers that with taps, which has more tiles to transpose
        left, right = (left, -(-right // 2)) if right > left else (-(-left // 2), right)


def _stacked(problem: Problem, face: int, loaded: tuple[Loading, ...], timing: Timing) -> Iterator[Frame]:
    """Groups of one feature whose taps fill the rows of sums: half of those of the last axis, or all of it.

    All groups are staged together, or those that share products.
    """
    stated, how = problem.faces[face], (loaded[0], loaded[1])
    counts = [tap.count for tap in stated.taps if tap.count > 1]
    if stated.kept != (1, 1) or not counts:
        return
    height = min(timing.sizes.rows, timing.sizes.columns)
    packs = (height // stack for stack in (max(2, -(-counts[-1] // 2)), counts[-1]))
    even = [-(-problem.groups // -(-problem.groups // pack)) for pack in packs if pack > 1]
    for pack in dict.fromkeys(even):
        one = frame_of(problem, face, how, pack, True, (pack, pack), timing)
        if 1 < pack <= height // 2 and one.parts == 1:
            for slab in dict.fromkeys((problem.groups, pack)):
                yield frame_of(problem, face, how, pack, True, (slab, slab), timing)


def _blocks(framed: Frame) -> Iterator[Schedule]:
    """Blocks of positions that fit, down to the first that do not fill the partitions."""
    room, totals = framed.problem.room, [axis.rows for axis in framed.face.axes]
    fits = False
    for rows in blocks_of(totals, framed.spread, framed.tile_rows):
        if fits and prod(rows) <= ENOUGH * framed.tile_rows:
            return
        needed = framed.staged(rows)
        if needed > room:
            continue
        transposed = sum(framed.transposed(rows))
        if needed + transposed > room:
            continue
        fits = True
        twice = rows != totals and needed + 2 * transposed <= room
        yield Schedule(framed.number, framed.loaded, framed.pack, framed.stacked, framed.slabs, tuple(rows), 1 + twice)


def estimate(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Nanoseconds: of products and transposes, of loads as far as these do not hide them, and of storing the result."""
    framed = frame(problem, schedule, timing)
    face, spread, column = framed.face, framed.spread(schedule.rows), timing.column(problem.dtype)
    blocks = prod(-(-axis.rows // size) for axis, size in zip(face.axes, schedule.rows, strict=True))
    again = framed.parts if blocks > 1 else 1
    rounds = -(-problem.groups // framed.together)
    for total, size in zip(face.kept, schedule.slabs, strict=True):
        rounds *= -(-total * framed.together // size)
    tensor = (spread.products + again * spread.transposes) * column + again * _turnarounds(framed, schedule)
    # what is transposed is staged meanwhile; of what is loaded in place, a second buffer of tiles
    tensor = max(tensor, again * framed.loads(schedule.rows) * column)
    loads = again * spread.loads * column
    block = max(tensor, loads) if schedule.transposed_buffers > 1 else tensor + loads
    # a block more is a stop of the engines
    stops = timing.transfer_latency * (blocks * again * rounds - 1) / schedule.transposed_buffers
    return block * blocks * rounds + min(tensor, loads) + stops + _drained(framed) * rounds + _stored(framed)


def _turnarounds(framed: Frame, schedule: Schedule) -> float:
    """Nanoseconds that TensorE waits until transposes of a block have left PSUM, beyond transposing the next ones."""
    timing, spread = framed.timing, framed.spread(schedule.rows)
    column, wait = timing.column(framed.problem.dtype), 0.0
    each = timing.latency(Stream.TENSOR) + timing.latency(Stream.SCALAR) + 2 * timing.semaphore
    tiles = spread.tiles, prod(spread.inner)
    for count, loaded, features in zip(tiles, schedule.loaded, schedule.slabs, strict=True):
        if loaded is Loading.TURNED:
            wait += count / GROUP * max(0.0, each - GROUP * transposed_columns(framed.pace, features) * column)
    return wait


def _drained(framed: Frame) -> float:
    """Nanoseconds of taking diagonals out of PSUM, before products go on."""
    if not framed.stacked:
        return 0.0
    sums = framed.groups(*framed.slabs)
    return sum(drained(framed.pack, len(group), framed.timing) for group in sums)


def _stored(framed: Frame) -> float:
    """Nanoseconds of storing the result, whose rows lie on the partitions."""
    out, width = framed.face.out, itemsize(framed.problem.out_dtype)
    run, free = width, [out[0], *out[2:]] if framed.columns_are_left else [out[1]]
    for atom in sorted(free, key=lambda atom: atom.stride):
        if atom.size > 1 and atom.stride != run:
            break
        run *= atom.size
    return framed.timing.transfer(prod(atom.size for atom in out) * width, run, "write").bound


def bound(problem: Problem, timing: Timing) -> float:
    """Nanoseconds that no schedule undercuts: products that fill TensorE, or operands and result at the DMA's rate."""
    face, sizes = problem.faces[0], timing.sizes
    positions = prod(axis.rows for axis in face.axes)
    result = prod(atom.size for atom in face.out)
    elements = sum(prod(atom.size for atom in lies.dims) * itemsize(lies.dtype) for lies in face.operands)
    columns = positions * result / (sizes.rows * sizes.columns)
    moved = elements + result * itemsize(problem.out_dtype)
    return max(columns * timing.column(problem.dtype), moved / timing.dma_rate)
