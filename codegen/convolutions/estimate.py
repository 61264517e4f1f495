"""The time that a convolution takes with a schedule, as a pure function of the machine's timing.

Work is added up for each resource of the core; the busiest one sets the time. To that comes what nothing hides: the
first blocks of input and kernel, the last results, parts of a streamed kernel that come later than they are wanted, and
a part of what the other resources do, for no schedule overlaps perfectly.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import NamedTuple

from neuronx_cc.codegen.convolutions.problem import Problem
from neuronx_cc.codegen.convolutions.schedule import (
    Comes,
    Kernel,
    Schedule,
    kernel_way,
    natural_bytes,
    outs_of,
    rounds_of_packs,
    row_parts,
    staged_groups,
    stored_outputs,
    tile_shape,
    tiles_together,
)
from neuronx_cc.codegen.dots import conversion
from neuronx_cc.codegen.movement.halves import HALVES
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, NOTHING, Tile, Timing, Work, total
from neuronx_cc.ir.types import itemsize

UNHIDDEN = 0.15
"""Part of the second busiest resource's work that takes time nevertheless."""


def estimate(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Nanoseconds."""
    problem = problem.under(schedule.fold)
    blocks, parts = _blocks(problem, schedule), -(-problem.pack_outputs // schedule.outputs)
    streamed = schedule.streamed is not None
    image, image_latency = _image(problem, schedule, timing)
    kernel, kernel_latency = _kernel(problem, schedule, timing)
    again = 1 if streamed or blocks == 1 else parts
    staged = blocks * rounds_of_packs(problem, schedule)
    loads = staged * again
    images = image.times(loads)
    kernels = kernel.times(parts * problem.packs * (blocks if streamed else 1))
    sums = _sums(problem, schedule, timing).times(blocks * parts * problem.packs)
    stored, read = _stored(problem, schedule, timing), _read(problem, schedule, timing)
    work = total([images, kernels, sums, stored, read])
    engines = max(work.tensor, work.vector, work.scalar, work.gpsimd, work.psum_port, work.sbuf_port)
    others = sorted((work.tensor, work.vector, work.scalar, work.gpsimd, work.dma))[-2]
    rounds = problem.packs * parts * (blocks if streamed else 1)
    wait = timing.transfer_latency * (not problem.x.on_chip) + image_latency + max(0.0, image.dma - image.tensor)
    if streamed:
        busy = sums.times(1 / (rounds * _rounds(problem, schedule))).tensor
        late = (kernel.dma / _rounds(problem, schedule) + kernel_latency) / schedule.weight_buffers - busy
        wait += kernel_latency + max(0.0, late) * rounds * _rounds(problem, schedule)
    else:
        first = kernel_latency + max(0.0, kernel.dma - kernel.tensor)
        # a folded kernel is made after the sums of the one before, in every engine's order
        wait += first * (rounds if schedule.weight_buffers == 1 or problem.fold is not None else 1)
        if schedule.abreast:
            wait += kernel.dma * (problem.packs - 1)
    count = staged * parts
    each, last = sums.times(1 / count), stored.times(1 / count)
    ends = timing.latency(Stream.TENSOR) + timing.latency(Stream.SCALAR)
    ends += 0.0 if problem.epilogue is None else problem.epilogue.latency(timing)
    if schedule.comes.transposed or streamed or schedule.copies is not None:
        # transposes are emitted after the products of the block before, or the loads after its parts of the kernel
        wait += image_latency * (loads - 1)
    else:
        came = image.bound + image_latency + timing.transfer_latency * (not problem.x.on_chip)
        left = last.bound + timing.transfer_latency * (not problem.out.on_chip)
        stages = (came + each.bound + ends) / schedule.input_buffers, (left + ends) / schedule.result_buffers
        wait += max(0.0, max(stages) - (image + each + last).bound) * (count - 1)
    # tiles that are transposed wait for each other's buffers, and results of one block for each other's stores
    loaded = _loads(problem, schedule, timing) * loads * timing.transfer_latency
    left = stored.dma + _stores(problem, schedule, timing) * count * timing.transfer_latency
    loaded += images.dma + read.dma
    longest = max(engines + wait, work.dma + work.tensor / count, loaded, left)
    if _alone(problem, schedule):
        longest += images.bound
    return longest + UNHIDDEN * others + ends + last.bound + timing.transfer_latency * (not problem.out.on_chip)


def _alone(problem: Problem, schedule: Schedule) -> bool:
    """Whether a loop holds one block, whose copies wait for the products of the block before."""
    if schedule.copies is None:
        return False
    counts = [-(-axis.rows // rows) for axis, rows in zip(problem.axes, schedule.rows, strict=True)]
    return prod(counts[: schedule.unrolled]) > 1 and prod(counts[schedule.unrolled :]) == 1


def bound(problem: Problem, timing: Timing) -> float:
    """Nanoseconds that no schedule is below: all products, each array moved once in long runs."""
    positions = prod(axis.out for axis in problem.axes)
    taps = problem.taps / prod(axis.phases for axis in problem.axes)
    terms = problem.groups * problem.outputs * problem.inputs * taps
    sizes = timing.sizes
    products = positions * terms / (sizes.rows * sizes.columns) * timing.column(problem.dtype, problem.flags)
    nbytes = problem.groups * problem.outputs * problem.inputs * problem.taps * itemsize(problem.w.dtype)
    if not problem.x.on_chip:
        images = problem.groups * problem.inputs * prod(axis.size for axis in problem.axes)
        nbytes += images * itemsize(problem.x.dtype)
    if not problem.out.on_chip:
        nbytes += problem.groups * problem.outputs * positions * itemsize(problem.out.dtype)
    for array in problem.arrays:
        if not array.on_chip and not array.stays:
            nbytes += problem.groups * problem.outputs * positions * itemsize(array.dtype)
    return max(products, timing.transfer(nbytes, timing.long_run).bound)


def _blocks(problem: Problem, schedule: Schedule) -> int:
    return prod(-(-axis.rows // rows) for axis, rows in zip(problem.axes, schedule.rows, strict=True))


# ---- the input ------------------------------------------------------------------------------------------------


def _image(problem: Problem, schedule: Schedule, timing: Timing) -> tuple[Work, float]:
    """One block of the input of one pack: its work, and from its start until it is there beyond that."""
    extents = [min(a.extent(rows), a.size) for a, rows in zip(problem.axes, schedule.rows, strict=True)]
    elements = problem.chunks * prod(extents)
    padded = any(a.low < 0 or a.extent(a.rows) + a.low > a.size for a in problem.axes)
    comes, way = schedule.comes, problem.x
    if comes is Comes.CHIP:
        if not padded and way.dtype == problem.dtype and schedule.copies is None:
            return NOTHING, 0.0
        return _moved(problem, elements, timing, way.dtype), timing.latency(Stream.GPSIMD)
    width, latency = max(itemsize(way.dtype), itemsize(problem.dtype)), timing.transfer_latency
    if comes.transposed:
        work, latency = _transposed_image(problem, schedule, extents, timing), _turnaround(problem, timing)
        more, spread = _copied(problem, schedule, extents, timing)
        return work + more, latency + spread + more.dma
    by_rows = (comes is Comes.LOADED and padded) or comes is Comes.RESIDUES
    loads = []
    for segment in problem.features.segments_of(min(problem.pack, problem.groups)):
        run = way.run((extents[0], segment.neighbours, *extents[1:]))
        run = min(run, extents[-1] * width) if by_rows else run
        loads.append(timing.transfer(segment.size * prod(extents) * width, run))
    work = total(loads)
    if comes is Comes.BESIDE and padded:
        work, latency = work + _moved(problem, elements, timing, problem.dtype), latency + timing.latency(Stream.GPSIMD)
    more, spread = _copied(problem, schedule, extents, timing)
    return work + more, latency + spread


def _loads(problem: Problem, schedule: Schedule, timing: Timing) -> int:
    """Transfers of one block of the input that is transposed."""
    if not schedule.comes.transposed:
        return 0
    extents = [min(a.extent(rows), a.size) for a, rows in zip(problem.axes, schedule.rows, strict=True)]
    return _transposing(problem, schedule, extents, min(timing.sizes.rows, timing.sizes.columns)).loads


def _stores(problem: Problem, schedule: Schedule, timing: Timing) -> int:
    """Transfers of the results of one block."""
    if problem.out.on_chip:
        return 0
    height, outs = min(timing.sizes.rows, timing.sizes.columns), outs_of(problem, schedule)
    if not problem.positions_on_partitions:
        return 1 if problem.fold is None else min(problem.fold.count, problem.given.pack_outputs)
    if schedule.row_groups:
        width = max(1, schedule.row_bytes // (stored_outputs(problem, schedule) * itemsize(problem.out.dtype)))
        span = -(-outs[-1] // schedule.row_groups)
        return prod(outs[:-2]) * -(-outs[-2] * schedule.row_groups // height) * -(-span // width)
    shape = tile_shape(outs, height)
    return prod(-(-size // step) for size, step in zip(outs, shape, strict=True))


def _copied(problem: Problem, schedule: Schedule, extents: list[int], timing: Timing) -> tuple[Work, float]:
    """The shifted copies of a block, and how long they take beyond that."""
    copies = schedule.copies
    if copies is None:
        return NOTHING, 0.0
    more = copies.partitions * (copies.count - copies.residues) * prod(extents) // copies.residues
    work = timing.transfer(max(1, more * itemsize(problem.dtype)), timing.long_run, "chip")
    return work, timing.transfer_latency * ((copies.inner > 1) + (copies.outer > copies.residues))


def _moved(problem: Problem, elements: int, timing: Timing, dtype: str) -> Work:
    """A copy on chip, by GpSimd; of other types by Vector."""
    stream = Stream.GPSIMD if dtype == problem.dtype else Stream.VECTOR
    return timing.engine("tensor_copy", stream, elements, (Tile(problem.dtype),), (Tile(dtype),))


def _transposed_image(problem: Problem, schedule: Schedule, extents: list[int], timing: Timing) -> Work:
    """Positions are loaded onto the partitions, and transposed."""
    height = min(timing.sizes.rows, timing.sizes.columns)
    width = max(itemsize(problem.x.dtype), itemsize(problem.dtype))
    transposed = _transposing(problem, schedule, extents, height)
    features = problem.groups * problem.inputs if schedule.abreast else problem.partitions * problem.chunks
    loaded = timing.transfer(features * prod(extents) * width, transposed.run * width)
    tiles = problem.packs if schedule.abreast else 1
    return loaded + _transposed(problem, transposed, timing).times(tiles)


class Transposing(NamedTuple):
    """How a block is transposed."""

    run: int
    """Elements that are neighbours in HBM."""
    loads: int
    rows: int
    """Positions of a transpose."""
    transposes: int
    together: int
    """Transposes of one chunk that may leave PSUM at once."""
    apart: int
    """Positions between those of a transpose."""


def _transposing(problem: Problem, schedule: Schedule, extents: list[int], height: int) -> Transposing:
    features = staged_groups(problem, schedule) * problem.inputs
    columns = extents[-1] if len(extents) > 1 else 1
    lines = extents[-2] if len(extents) > 1 else 1
    images = prod(extents) // (columns * lines)
    if schedule.comes is Comes.ROWS:
        loads = transposes = 0
        for _, size, parts in row_parts(columns, schedule.row_parts):
            wide, rounds = size // parts, -(-lines // (height // parts))
            loads += rounds * -(-wide * features * itemsize(problem.dtype) // schedule.row_bytes)
            transposes += rounds * wide
        _, whole, parts = row_parts(columns, schedule.row_parts)[0]
        rows, span = min(-(-lines // -(-lines // (height // parts))) * parts, height), whole // parts
        wide = max(1, min(span, schedule.row_bytes // (features * itemsize(problem.dtype))))
        run = wide * features if features == problem.groups * problem.inputs else features
        return Transposing(run, loads * images, rows, transposes * images, 1, span)
    together = tiles_together(problem, schedule)
    if columns > height:
        tiles = -(-columns // height)
        loads, rows, transposes = lines * -(-tiles // together), -(-columns // tiles), lines * tiles
    else:
        several = min(lines, max(1, height // columns))
        tiles = -(-lines // several)
        merged = len(problem.x.dims) < 4 or problem.x.dims[-2].stride == columns * problem.x.dims[-1].stride
        loads, rows, transposes = -(-tiles // together) * (1 if merged else several), several * columns, tiles
    return Transposing(features, loads * images, rows, transposes * images, min(together, tiles), 1)


def _transposed(problem: Problem, transposed: Transposing, timing: Timing) -> Work:
    """Transposes of positions with all chunks of features."""
    chunks, partitions, sizes, rows = problem.chunks, problem.partitions, timing.sizes, transposed.rows
    width, parts, carrier, extract = itemsize(problem.dtype), 1, problem.dtype, NOTHING
    if not problem.fast:
        part, carrier = HALVES[width]
        parts = width // itemsize(part)
        tiles = (Tile(carrier),), (Tile(part, stride=width),)
        extract = balanced(chunks * partitions, *tiles, timing)
    stride = transposed.apart * width
    out = Tile(problem.dtype, stride=stride) if parts == 1 else Tile(HALVES[width][0], stride=stride)
    count = chunks if chunks > 1 else transposed.together
    banks = max(1, -(-count * rows // sizes.bank_columns))
    left = balanced(min(count * rows, sizes.bank_columns), (out,), (F32_PSUM,), timing).times(banks)
    one = timing.product(partitions, rows, carrier).times(chunks) + left.times(chunks / count) + extract
    return one.times(transposed.transposes * parts)


def balanced(size: int, outs: tuple[Tile, ...], ins: tuple[Tile, ...], timing: Timing) -> Work:
    """A copy by whichever of Vector and Scalar has less to do."""
    vector = timing.engine("tensor_copy", Stream.VECTOR, size, outs, ins)
    if {outs[0].dtype, ins[0].dtype} & {"u32", "s32"}:
        return vector
    return vector.times(0.5) + timing.engine("activation", Stream.SCALAR, size, outs, ins, ("copy",)).times(0.5)


def _turnaround(problem: Problem, timing: Timing) -> float:
    """From the last transpose of a block until it has left PSUM."""
    left = balanced(timing.sizes.bank_columns, (Tile(problem.dtype),), (F32_PSUM,), timing).bound
    return timing.latency(Stream.TENSOR) + left + timing.latency(Stream.SCALAR)


# ---- the kernel -----------------------------------------------------------------------------------------------


def _rounds(problem: Problem, schedule: Schedule) -> int:
    """Parts that a kernel for one block of outputs comes in."""
    part = schedule.streamed
    return 1 if part is None else -(-problem.chunks // part.chunks) * problem.taps // part.taps(problem)


def _kernel(problem: Problem, schedule: Schedule, timing: Timing) -> tuple[Work, float]:
    """The kernel of one block of outputs: its work, and from its start until it is there beyond that."""
    if problem.folded is not None:
        posed = replace(schedule, fold=None, copies=None, outputs=problem.given.pack_outputs)
        work, latency = _kernel(problem.given, posed, timing)
        wide = timing.engine("memset", Stream.GPSIMD, problem.chunks * problem.taps * schedule.outputs, ins=())
        part = timing.engine("tensor_copy", Stream.GPSIMD, problem.chunks * problem.given.taps * posed.outputs)
        more, copied = _spread(problem, schedule, timing)
        through = timing.latency(Stream.GPSIMD) + wide.bound + part.bound * problem.folded.count
        return work + wide + part.times(problem.folded.count) + more, latency + through + copied
    way, latency = kernel_way(problem), timing.transfer_latency
    width = max(itemsize(problem.w.dtype), itemsize(problem.kernel_stored))
    elements = problem.partitions * problem.chunks * problem.taps * schedule.outputs
    taps = (
        problem.kernel if schedule.streamed is None else problem.kernel[len(problem.kernel) - schedule.streamed.axes :]
    )
    box = (1,) * (len(problem.kernel) - len(taps)) + tuple(taps)
    if way is Kernel.SPREAD:
        run = problem.w.run((problem.outputs, 1, *problem.kernel))
        nbytes = problem.partitions * problem.taps * problem.outputs * width
        spread = timing.engine("affine_select", Stream.GPSIMD, problem.taps * schedule.outputs, alu=("is_equal",))
        work, latency = timing.transfer(nbytes, run) + spread, latency + spread.bound + timing.latency(Stream.GPSIMD)
        if problem.kernel_in_rows:
            rows = min(problem.taps, timing.sizes.rows)
            transposed = Transposing(0, 0, rows, -(-problem.taps // rows) * problem.outputs, 1, 1)
            work = timing.transfer(nbytes, schedule.outputs * width) + spread + _transposed(problem, transposed, timing)
            latency += _turnaround(problem, timing)
    elif way is Kernel.LAID_OUT:
        work = timing.transfer(elements * width, prod(taps) * schedule.outputs * width)
    elif way is Kernel.LOADED:
        together = schedule.outputs if problem.pack == 1 else problem.outputs
        nbytes = problem.taps * schedule.outputs * width
        work = total(
            timing.transfer(segment.size * nbytes, problem.w.run((together, segment.neighbours, *box)))
            for segment in problem.features.segments
        )
    else:
        natural = schedule.natural
        box = tuple(problem.kernel[at] if at >= len(problem.kernel) - natural.axes else 1 for at in range(len(box)))
        inputs = natural_bytes(problem, natural) // (natural.taps(problem) * itemsize(problem.dtype))
        elements = problem.inputs * problem.taps * schedule.outputs
        # features of one tile lie apart where neighbours share a partition
        dense = natural.chunks >= problem.chunks or all(each.partition_step == 1 for each in problem.features.segments)
        work = timing.transfer(elements * width, problem.w.run((1, inputs if dense else 1, *box)))
        height = min(timing.sizes.rows, timing.sizes.columns)
        tiles = -(-schedule.outputs // height)
        transposed = Transposing(0, 0, min(schedule.outputs, height), tiles * problem.taps, 1, 1)
        work += _transposed(problem, transposed, timing)
        latency += _turnaround(problem, timing)
        if problem.pack > 1:
            outputs = problem.taps * schedule.outputs
            work += timing.engine("tensor_tensor", Stream.VECTOR, outputs, (F32,), (F32_PSUM, F32), alu=("multiply",))
    if problem.converts_kernel:
        converted = _converted(problem, schedule, timing)
        work, latency = work + converted, latency + converted.bound
    more, copied = _spread(problem, schedule, timing)
    return work + more, latency + copied


def _converted(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """What engines do to the kernel of one block of outputs that is stored in 8 bits."""
    elements = problem.chunks * problem.taps * schedule.outputs
    if kernel_way(problem) is Kernel.TRANSPOSED:
        height = min(timing.sizes.rows, timing.sizes.columns)
        elements = -(-schedule.outputs // height) * problem.inputs * problem.taps
    return conversion.of(timing, problem.kernel_stored, problem.dtype, elements)


def _spread(problem: Problem, schedule: Schedule, timing: Timing) -> tuple[Work, float]:
    """Copies of a kernel beside those of the input, and how long they take beyond that."""
    if schedule.copies is None:
        return NOTHING, 0.0
    width, dense = itemsize(problem.dtype), problem.fold is not None or problem.w.near(0)
    nbytes = problem.partitions * problem.chunks * problem.taps * schedule.outputs * width
    # a kernel that is loaded as it lies has its outputs where those lie
    run = width if kernel_way(problem) is Kernel.LOADED and not dense else schedule.outputs * width
    work = timing.transfer(nbytes, run, "chip")
    return work, timing.transfer_latency * (1 + schedule.copies.in_steps)


# ---- sums -----------------------------------------------------------------------------------------------------


def _sums(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """Products of one block of positions with one block of outputs, and what leaves PSUM."""
    sizes, copies = timing.sizes, schedule.copies
    height = min(sizes.rows, sizes.columns)
    works = []
    outs = outs_of(problem, schedule)
    for phases in product(*(range(axis.phases) for axis in problem.axes)):
        counts = [a.rows_of(phase, out) for a, phase, out in zip(problem.axes, phases, outs, strict=True)]
        taps = [axis.taps[phase] for axis, phase in zip(problem.axes, phases, strict=True)]
        terms = problem.chunks * prod(tap.count for tap in (taps if copies is None else copies.grouped()))
        if not all(counts):
            continue
        if not problem.positions_on_partitions:
            shape = tile_shape(counts, sizes.bank_columns)
            tiles = -(-schedule.outputs // (problem.out.partitions or height))
            columns, moving = min(schedule.outputs, problem.out.partitions or height), prod(shape)
        else:
            tiles = -(-schedule.outputs // sizes.bank_columns)
            columns, moving = prod(tile_shape(counts, height)), min(schedule.outputs, sizes.bank_columns)
            shape = tile_shape(counts, height)
            if schedule.row_groups:
                lines = -(-counts[-2] // -(-counts[-2] // height))
                shape = [*(1 for _ in counts[:-2]), lines, max(1, schedule.row_groups)]
                columns = lines * schedule.row_groups
        count = tiles * prod(-(-size // step) for size, step in zip(counts, shape, strict=True))
        one = timing.product(columns, moving, problem.dtype, flags=problem.flags).times(terms)
        one += _left(problem, moving, timing)
        if problem.shares_products:
            one += timing.engine("activation", Stream.SCALAR, moving, (Tile("bf16"),), (F32_PSUM,), ("copy",))
        works.append(one.times(count))
    return total(works)


def _left(problem: Problem, columns: int, timing: Timing) -> Work:
    """A bank of sums leaves PSUM."""
    if problem.epilogue is not None:
        return problem.epilogue.work(columns, timing)
    return balanced(columns, (Tile(problem.out.dtype),), (F32_PSUM,), timing)


def _read(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """What the epilogue reads of all arrays that differ from position to position."""
    work, outs = NOTHING, outs_of(problem, schedule)
    for array in problem.arrays:
        if array.on_chip or array.stays:
            continue
        atoms = zip(problem.axes, (array.dims[0], *array.dims[2:]), strict=True)
        features = problem.groups * problem.outputs if array.dims[1].stride else 1
        width = itemsize(problem.loaded(array))
        nbytes = features * prod(axis.out for axis, atom in atoms if atom.stride) * width
        rows = _row_run(problem, schedule, outs, width)
        run = rows if problem.positions_on_partitions else array.run((outs[0], 1, *outs[1:]))
        work += timing.transfer(max(1, nbytes), run)
    return work


def _stored(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """All results."""
    if problem.out.on_chip:
        return NOTHING
    outs, width = outs_of(problem, schedule), itemsize(problem.out.dtype)
    nbytes = problem.groups * problem.outputs * prod(axis.out for axis in problem.axes) * width
    if not problem.positions_on_partitions:
        return timing.transfer(nbytes, problem.out.run((outs[0], 1, *outs[1:])), "write")
    return timing.transfer(nbytes, _row_run(problem, schedule, outs, width), "write")


def _row_run(problem: Problem, schedule: Schedule, outs: list[int], width: int) -> int:
    """Bytes that are neighbours of a result with positions on the partitions, or of an array of its dims."""
    run = stored_outputs(problem, schedule) * width
    if not schedule.row_groups or run < problem.groups * problem.outputs * width:
        return run
    return max(run, min(schedule.row_bytes, run * (outs[-1] // schedule.row_groups)))
