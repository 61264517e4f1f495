"""The time that a convolution takes patch by patch, as a pure function of the machine's timing.

TensorE makes the matrices of the kernel, transposes patches and adds up products one after the other, each in the time
of the busiest resource. To that comes what nothing hides: the first patches, the last results, and a part of what the
DMA moves meanwhile.
"""

from __future__ import annotations

from math import prod

from neuronx_cc.codegen.convolutions.estimate import UNHIDDEN, balanced
from neuronx_cc.codegen.convolutions.patches import (
    Problem,
    Schedule,
    blocks_of,
    packs_of_bank,
    transposed_rows,
)
from neuronx_cc.codegen.convolutions.problem import Operand
from neuronx_cc.codegen.movement.halves import HALVES
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, NOTHING, Tile, Timing, Work, total
from neuronx_cc.ir.types import itemsize

EXPOSED = 5
"""Latencies of a transfer that nothing hides: kernel, matrices, first patches and what engines hand each other; of 100
drawn convolutions.
"""


def estimate(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Nanoseconds."""
    columns = schedule.cuts(problem)[1]
    parts = problem.features // schedule.features
    loads, stores = -(-columns.sources // schedule.loaded), -(-columns.patches // schedule.stored)
    staged = _staged(problem, schedule, timing).times(columns.sources)
    kernel = _kernel(problem, schedule, timing)
    sums = _sums(problem, schedule, timing).times(-(-columns.patches // schedule.columns))
    loaded, stored = _loaded(problem, schedule, timing), _stored(problem, schedule, timing)
    count = blocks_of(problem, schedule) * parts
    # of a block what its buffers hold comes during the sums of the one before, all else while it is transposed
    coming = max(loaded.dma / count, loads * timing.transfer_latency / schedule.buffers)
    late = coming * (1 - min(1.0, schedule.buffers / loads))
    phases = kernel.bound * parts + (max(staged.bound, late) + sums.bound) * count
    moved = total([kernel.times(parts), loaded, stored]).dma
    first = EXPOSED * timing.transfer_latency + coming / loads
    ends = timing.latency(Stream.TENSOR) + timing.latency(Stream.SCALAR) + timing.transfer_latency
    ends += 0.0 if problem.epilogue is None else problem.epilogue.latency(timing)
    return max(phases, moved) + UNHIDDEN * min(phases, moved) + first + ends + stored.dma / (count * stores)


def bound(problem: Problem, timing: Timing) -> float:
    """Nanoseconds that no schedule is below: each array is moved once, in long runs."""
    given = problem.features * prod(axis.size for axis in problem.axes) * itemsize(problem.x.dtype)
    made = problem.features * prod(axis.out for axis in problem.axes) * itemsize(problem.out.dtype)
    return timing.transfer(given + made, timing.long_run).bound


def _staged(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """A column of patches of the input is transposed."""
    rows, columns = schedule.cuts(problem)
    patch, packs = rows.inputs * columns.inputs, schedule.features // schedule.pack
    tall = transposed_rows(problem, schedule)
    width, carrier, out, times, extract = itemsize(problem.dtype), problem.dtype, Tile(problem.dtype), 1, NOTHING
    if not problem.fast:
        part, carrier = HALVES[width]
        times, out = width // itemsize(part), Tile(part, stride=width)
        extract = balanced(patch * schedule.features, (Tile(carrier),), (out,), timing)
    together = min(packs, max(1, timing.sizes.bank_columns // tall))
    leave = balanced(together * tall, (out,), (F32_PSUM,), timing).times(packs / together)
    one = timing.product(schedule.pack * patch, tall, carrier).times(packs) + leave + extract
    return one.times(times)


def _kernel(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """The matrices of a block of features."""
    rows, columns = schedule.cuts(problem)
    pairs = [sum(len(cut.meeting(patch)) for patch in range(cut.met)) for cut in (rows, columns)]
    partitions = schedule.pack * rows.inputs * columns.inputs
    columns_of_bank = timing.sizes.bank_columns
    wide = min(schedule.features, columns_of_bank)
    one = timing.product(partitions, wide, problem.dtype)
    masked = timing.engine(
        "tensor_tensor", Stream.VECTOR, columns_of_bank, (Tile(problem.dtype),), (F32_PSUM, F32), alu=("multiply",)
    )
    one += masked.times(wide / columns_of_bank)
    made = schedule.features * prod(schedule.outputs) * rows.met * columns.met
    met = prod(pairs) / (prod(schedule.outputs) * rows.met * columns.met)
    zeros = timing.engine("memset", Stream.VECTOR, max(1, round(made * (1 - met))), (Tile(problem.dtype),), ())
    width = max(itemsize(problem.w.dtype), itemsize(problem.dtype))
    run = schedule.features * width if problem.w.near(0) else width
    load = timing.transfer(problem.taps * schedule.features * width, run)
    return one.times(prod(pairs) * schedule.features / wide) + zeros + load


def _sums(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """Of one column of patches of outputs, or of several that are on the partitions together."""
    rows, columns = schedule.cuts(problem)
    packs, made = schedule.features // schedule.pack, schedule.pack * prod(schedule.outputs)
    positions = schedule.columns * schedule.images * schedule.rows
    products = timing.product(positions, made, problem.dtype, flags=problem.flags)
    wide = packs_of_bank(schedule, timing.sizes) * made
    left = timing.engine("activation", Stream.SCALAR, wide, (Tile("bf16"),), (F32_PSUM,), ("copy",))
    if problem.epilogue is None:
        left += balanced(wide, (Tile(problem.out.dtype),), (F32_PSUM,), timing)
    else:
        left += problem.epilogue.work(wide, timing)
    return products.times(packs * rows.met * columns.met) + left.times(packs * made / wide)


def _loaded(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """All of the input, rows that several blocks meet more than once."""
    rows, columns = schedule.cuts(problem)
    width = max(itemsize(problem.x.dtype), itemsize(problem.dtype))
    blocks, tall = -(-rows.patches // schedule.rows), min(rows.axis.size, (schedule.rows + rows.met - 1) * rows.inputs)
    nbytes = problem.features * problem.axes[0].size * blocks * tall * columns.axis.size * width
    run = _run(problem, schedule, problem.x, schedule.loaded * columns.inputs, width, rows.inputs)
    return timing.transfer(nbytes, run)


def _stored(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """All results, and all that the epilogue reads with them."""
    positions = prod(axis.out for axis in problem.axes)
    beside = schedule.stored // schedule.columns * schedule.outputs[1]
    works = []
    for array, way in ((problem.out, "write"), *((array, "read") for array in problem.arrays if not array.stays)):
        width = itemsize(array.dtype)
        run = _run(problem, schedule, array, beside, width, schedule.outputs[0])
        works.append(timing.transfer(problem.features * positions * width, run, way))
    return total(works)


def _run(problem: Problem, schedule: Schedule, array: Operand, beside: int, width: int, rows: int) -> int:
    """Bytes that are neighbours, of ``beside`` columns of ``rows`` rows."""
    if array.near(3):
        whole = beside == array.dims[3].size and array.dims[2].stride == beside * array.dims[3].stride
        return beside * width * (rows if whole else 1)
    if not array.near(1):
        return width
    return schedule.features * width * (beside if schedule.features == problem.features else 1)
