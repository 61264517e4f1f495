"""Schedules of a convolution that fit the machine: pure functions of problem and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from neuronx_cc.codegen.convolutions.copies import Copies, copies_of
from neuronx_cc.codegen.convolutions.folding import Fold, folds_of
from neuronx_cc.codegen.convolutions.problem import Home, Operand, Problem
from neuronx_cc.codegen.convolutions.schedule import (
    Comes,
    Kernel,
    Part,
    Schedule,
    footprint,
    kernel_way,
    natural_bytes,
    outs_of,
    rounds_of_packs,
    row_phases,
    staged_groups,
    stored_outputs,
    tile_shape,
)
from neuronx_cc.codegen.dots.problem import divisor
from neuronx_cc.codegen.emission.tiles import room_of
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

MAX_UNROLLED = 72
"""Products of one sum that are unrolled; more of them become loops."""
MAX_ABREAST = 16
"""Packs that are computed together."""
MAX_UNROLLED_PACKS = 288
"""Products of all of these."""
MAX_BANDS = 8
"""Blocks of an image that are unrolled."""
NATURAL_SHARE = (1, 11)
"""Of a partition of SBUF: most of a kernel that is loaded at once to be transposed, and of input loaded beside."""
ROW_SHARE = (1, 22)
"""The same for a row of positions that are moved at once."""
LARGE_IMAGE = 8192
"""Positions from which a single image is staged in bands, so that loading and products overlap."""
ENOUGH_TILES = 4
"""Tiles of positions from which a block is worth its transfer."""
MAX_LOOPS = 8
"""Loops over tiles of positions for which the sequencer's registers suffice."""
FINER = 3
"""Blocks are tried at this many sizes, each half as large as the one before."""


def candidates(problem: Problem, timing: Timing) -> Iterator[Schedule]:
    """Schedules that fit; none where not even the smallest blocks do."""
    yield from dict.fromkeys(_all(problem, timing))


def _all(problem: Problem, timing: Timing) -> Iterator[Schedule]:
    for fold in _folds(problem, timing.sizes):
        yield from _under(problem.under(fold), timing)


def _under(problem: Problem, timing: Timing) -> Iterator[Schedule]:
    sizes = timing.sizes
    for copies in _copies(problem):
        for comes in _ways(problem, copies):
            for frame in _kernels(problem, _frame(problem, copies, comes, sizes), sizes):
                for blocks in _blocks(problem, frame, sizes):
                    # whole rows of results, and of what is read with them, take more room than their tiles
                    for each in _results(problem, blocks, timing):
                        if each is blocks or _fits(problem, each, sizes):
                            yield from _parts(problem, each, timing)


def _folds(problem: Problem, sizes: Sizes) -> Iterator[Fold | None]:
    """None, and neighbouring rows of outputs together; where features are neighbours, positions of a row."""
    yield None
    last = problem.positions_on_partitions
    at = len(problem.kernel) - (1 if last else 2)
    if at < 0 or problem.out.on_chip or not problem.moves_values or problem.batch_groups > 1:
        return
    axis, most = problem.axes[1 + at], min(sizes.rows, sizes.columns)
    dense = problem.out.dims[-1].stride == problem.groups * problem.outputs * itemsize(problem.out.dtype)
    if problem.kernel[at] == 1 or (last and not (dense and problem.packs == 1)):
        return
    if last and not all(_folds_along(problem, each) for each in problem.arrays):
        return
    packs = [pack for pack in range(problem.pack, 0, -1) if problem.groups % pack == 0]
    for pack in packs[:1] if last or problem.x.on_chip else packs:
        for count in folds_of(axis, most // (pack * problem.outputs))[:FINER]:
            yield Fold(at, count, pack, last or count < pack * problem.outputs)


def _folds_along(problem: Problem, array: Operand) -> bool:
    """Whether features of neighbouring positions of what an epilogue reads follow each other, or are the same."""
    dense = array.dims[-1].stride == problem.groups * problem.outputs * array.dims[1].stride
    return array.stays or (dense and array.near(1))


def _copies(problem: Problem) -> Iterator[Copies | None]:
    yield None
    if not problem.features.packs_partitions or problem.groups % problem.pack or problem.batch_groups > 1:
        return
    far = not problem.x.on_chip and not problem.turns_input
    for residues in (False, True)[: 1 + far]:
        found = copies_of(problem.partitions, problem.axes, MAX_UNROLLED, residues)
        if found is not None and (found.residues > 1) == residues:
            yield found


def _ways(problem: Problem, copies: Copies | None) -> list[Comes]:
    if copies is not None and copies.residues > 1:
        return [Comes.RESIDUES]
    if problem.x.on_chip:
        return [Comes.CHIP]
    if problem.turns_input:
        return [Comes.TILES, Comes.ROWS][: 1 + (problem.batch_groups == 1 and len(problem.axes) > 1)]
    return [Comes.LOADED, Comes.BESIDE]


def _frame(problem: Problem, copies: Copies | None, comes: Comes, sizes: Sizes) -> Schedule:
    """What schedules have in common, with all of the kernel and of the positions in one block."""
    return Schedule(
        fold=problem.fold,
        copies=copies,
        comes=comes,
        rows=tuple(max(1, axis.rows) for axis in problem.axes),
        outputs=problem.pack_outputs,
        streamed=None,
        natural=_natural(problem.given, sizes),
        weight_buffers=1,
        input_buffers=2 if copies is None else 3,
        result_buffers=2,
        row_bytes=min(sizes.sbuf_share(ROW_SHARE), problem.room // 16),
        raw_bytes=min(sizes.sbuf_share(NATURAL_SHARE), problem.room // 8),
        row_groups=0,
        row_parts=1,
        abreast=False,
        unrolled=len(problem.axes),
    )


def most_natural(sizes: Sizes, room: int) -> int:
    """Bytes a partition of a kernel that are loaded at once to be transposed, at most."""
    return min(sizes.sbuf_share(NATURAL_SHARE), room // 16)


def _natural(problem: Problem, sizes: Sizes) -> Part:
    """As many chunks of a kernel as a part of the room holds, else one of them, else some of its positions."""
    most = most_natural(sizes, problem.room)
    one = Part(1, len(problem.kernel))
    whole = natural_bytes(problem, Part(problem.chunks, one.axes)) <= most
    chunks = problem.chunks if whole else max(1, min(problem.chunks, most // natural_bytes(problem, one)))
    fitting = [Part(chunks, axes) for axes in range(one.axes, -1, -1)]
    return next((part for part in fitting if natural_bytes(problem, part) <= 2 * most), fitting[-1])


# ---- kernels --------------------------------------------------------------------------------------------------


def _kernels(problem: Problem, frame: Schedule, sizes: Sizes) -> Iterator[Schedule]:
    """All of the kernel on chip, of ever fewer outputs, or in parts past open banks."""
    taken = itemsize(problem.dtype) * problem.chunks * problem.taps
    if problem.fold is not None:
        if taken * problem.pack_outputs <= problem.room // 2:
            yield replace(frame, weight_buffers=min(2, problem.packs))
        return
    if _are_neighbours(problem, frame):
        yield replace(frame, abreast=True, weight_buffers=problem.packs)
    cut = (replace(frame, outputs=size) for size in _output_blocks(problem, sizes))
    fitting = [each.outputs for each in cut if _fits(problem, _least(each), sizes)]
    # small kernels come whole while the kernel before is computed
    small = fitting[:1] == [problem.pack_outputs] and 2 * fitting[0] * taken <= problem.room
    for outputs in fitting[: 1 if small else FINER]:
        several = outputs < problem.pack_outputs or problem.packs > 1
        for buffers in (1, 2)[: 1 + several]:
            yield replace(frame, outputs=outputs, weight_buffers=buffers)
    if frame.copies is None and taken * problem.pack_outputs > problem.room // 4:
        outputs = _streamed_outputs(problem, sizes)
        transposed = kernel_way(problem) is Kernel.TRANSPOSED
        for axes in range(len(problem.kernel), -1, -1):
            part = Part(1, axes)
            schedule = replace(frame, outputs=outputs, streamed=part, weight_buffers=2)
            schedule = replace(schedule, natural=part) if transposed else schedule
            if outputs and room_of(footprint(problem, _least(schedule), sizes)) <= problem.room // 2:
                yield schedule
                return
        if outputs:
            yield replace(frame, outputs=outputs, streamed=Part(1, 0), natural=Part(1, 0), weight_buffers=1)


def _are_neighbours(problem: Problem, frame: Schedule) -> bool:
    """Whether packs are parts of rows of features, of the input and of the results, and few enough to be unrolled."""
    return (
        1 < problem.packs <= MAX_ABREAST
        and frame.comes.transposed
        and frame.copies is None
        and problem.positions_on_partitions
        and problem.features.packs_partitions
        and problem.batch_groups == 1
        and problem.packs * problem.taps <= MAX_UNROLLED_PACKS
        and problem.taps <= MAX_UNROLLED
    )


def _least(schedule: Schedule) -> Schedule:
    return replace(schedule, rows=tuple(1 for _ in schedule.rows))


def _output_blocks(problem: Problem, sizes: Sizes) -> list[int]:
    """Output features of a pack that are computed together: all, and ever fewer."""
    total, tile = problem.pack_outputs, problem.out.partitions or min(sizes.rows, sizes.columns)
    if problem.pack > 1:
        return [total]
    found, tiles = [total], -(-total // tile)
    while tiles > 1:
        tiles = -(-tiles // 2)
        found.append(tiles * tile)
    while not problem.out.on_chip and found[-1] > sizes.columns // 4:
        found.append(-(-min(found[-1], total) // 2))
    return sorted({min(total, each) for each in found}, reverse=True)


def _streamed_outputs(problem: Problem, sizes: Sizes) -> int:
    """Output features that add up in the partitions, or the columns, of one bank; 0 where these are not whole packs."""
    most = (
        sizes.bank_columns
        if problem.positions_on_partitions
        else problem.out.partitions or min(sizes.rows, sizes.columns)
    )
    if problem.pack > 1:
        return problem.pack_outputs if problem.pack_outputs <= most else 0
    return min(most, problem.pack_outputs)


# ---- blocks of positions --------------------------------------------------------------------------------------


def _blocks(problem: Problem, frame: Schedule, sizes: Sizes) -> Iterator[Schedule]:
    """Some images, or bands of a large one, at a time, and ever fewer."""
    if len(frame.rows) > 3:
        yield from _boxes(problem, frame, sizes)
    rows = list(frame.rows)
    positions = max(1, prod(rows[1:]))
    rows[0] = min(rows[0], max(1, -(-ENOUGH_TILES * sizes.bank_columns // positions)))
    if len(rows) > 2 and positions > LARGE_IMAGE:
        bands = -(-(2 if frame.copies is not None else 4) * positions // LARGE_IMAGE)
        rows[1] = -(-rows[1] // (bands + bands % 2 if frame.copies is not None else bands))
    for _ in range(FINER):
        schedule = _shrunk(problem, replace(frame, rows=tuple(rows)), sizes)
        if schedule is None:
            return
        yield schedule
        rows = list(schedule.rows)
        wide = next((axis for axis, size in enumerate(rows) if size > 1), None)
        if wide is None:
            return
        rows[wide] = -(-rows[wide] // 2)


def _boxes(problem: Problem, frame: Schedule, sizes: Sizes) -> Iterator[Schedule]:
    """Boxes of whole rows of a large volume, which no slabs are, of ever fewer positions: of each size that of which
    least is loaded twice.
    """
    _, *axes = problem.axes
    *others, row = (max(1, axis.rows) for axis in axes)
    most, found = LARGE_IMAGE // 2, 0
    if prod(others) * row <= most:
        return
    while found < FINER and most >= row:
        boxes = [(*box, row) for box in _boxes_of(others, max(1, most // row))]
        best = min(boxes, key=lambda box: prod(a.extent(n) * -(-a.rows // n) for a, n in zip(axes, box, strict=True)))
        schedule = _finished(problem, replace(frame, rows=(1, *best)))
        most = prod(best) // 2
        if list(best[1:-1]) != others[1:] and _fits(problem, schedule, sizes):
            yield schedule
            found += 1


def _boxes_of(totals: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Sizes along some axes, at most ``most`` positions together, even parts of ``totals``."""
    if not totals:
        yield ()
        return
    for parts in range(1, totals[0] + 1):
        size = -(-totals[0] // parts)
        if size <= most and (parts == 1 or size < -(-totals[0] // (parts - 1))):
            yield from ((size, *rest) for rest in _boxes_of(totals[1:], most // size))


def _shrunk(problem: Problem, schedule: Schedule, sizes: Sizes) -> Schedule | None:
    """With fewer positions a block until it fits, and until sums of a streamed kernel fit the banks."""
    while True:
        finished = _finished(problem, schedule)
        fits = _fits(problem, finished, sizes)
        if fits and (schedule.streamed is None or _tiles(problem, schedule, sizes) <= sizes.banks // 2):
            return finished
        rows = list(schedule.rows)
        wide = next((axis for axis, size in enumerate(rows) if size > 1), None)
        if wide is None:
            return finished if fits else None
        rows[wide] = -(-rows[wide] // 2)
        schedule = replace(schedule, rows=tuple(rows))


def _fits(problem: Problem, schedule: Schedule, sizes: Sizes) -> bool:
    return room_of(footprint(problem, schedule, sizes)) <= problem.room


def _tiles(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Of a block's positions."""
    limit = min(sizes.rows, sizes.columns) if problem.positions_on_partitions else sizes.bank_columns
    shape = tile_shape(schedule.rows, limit)
    return prod(-(-size // step) for size, step in zip(schedule.rows, shape, strict=True))


def _finished(problem: Problem, schedule: Schedule) -> Schedule:
    """With what follows from the blocks."""
    counts = [-(-axis.rows // rows) for axis, rows in zip(problem.axes, schedule.rows, strict=True)]
    several = prod(counts) * rounds_of_packs(problem, schedule) > 1
    unrolled = len(counts)
    # what is loaded overlaps in loops, too
    if several and schedule.streamed is None and (schedule.copies is not None or schedule.comes.transposed):
        unrolled = next(axis for axis in range(len(counts) + 1) if prod(counts[axis:]) <= MAX_BANDS)
    if several:
        return replace(schedule, unrolled=unrolled)
    return replace(schedule, unrolled=unrolled, input_buffers=1, result_buffers=1)


def _results(problem: Problem, schedule: Schedule, timing: Timing) -> Iterator[Schedule]:
    """Neighbouring positions on the partitions of a result, or whole rows or parts of them, stored in long runs."""
    if schedule.streamed is not None or not problem.positions_on_partitions:
        yield schedule
        return
    counts, sizes = outs_of(problem, schedule), timing.sizes
    height = min(sizes.rows, sizes.columns)
    width = stored_outputs(problem, schedule) * itemsize(problem.out.dtype)
    short = width < timing.long_run
    if problem.folded is not None and not problem.folded.whole:
        # rows end within what is a position here: they are stored row by row
        if schedule.rows[-1] == problem.axes[-1].rows and counts[-1] * width <= schedule.row_bytes:
            yield replace(schedule, row_groups=1)
        return
    found = []
    if len(counts) > 1 and short and counts[-1] > 1 and problem.out.home is Home.HBM:
        lines, phases = -(-counts[-2] // problem.axes[-2].phases), row_phases(problem)
        rows = -(-lines // -(-lines // height))
        even = problem.axes[-1].out % phases == 0
        found = [n for n in range(1, height // rows + 1) if counts[-1] % (n * phases) == 0] if even else []
    steps = [-(-count // step) for count, step in zip(counts, tile_shape(counts, height), strict=True)]
    blocks = prod(len(axis.pieces(rows)) for axis, rows in zip(problem.axes, schedule.rows, strict=True))
    loops = blocks * prod(axis.phases for axis in problem.axes) * sum(step > 4 for step in steps)
    if not found or loops <= MAX_LOOPS:
        yield schedule
    long = [groups for groups in found if counts[-1] // groups * width >= timing.long_run]
    for groups in dict.fromkeys([*found[:1], *long[-1:], *found[-1:]]):
        yield replace(schedule, row_groups=groups)


def _parts(problem: Problem, schedule: Schedule, timing: Timing) -> Iterator[Schedule]:
    """Parts of rows on partitions of their own: one, as many as fill the partitions, or as are moved in long runs."""
    yield schedule
    if schedule.comes is not Comes.ROWS:
        return
    lines, columns = (min(a.extent(n), a.size) for a, n in list(zip(problem.axes, schedule.rows, strict=True))[-2:])
    most = min(columns, min(timing.sizes.rows, timing.sizes.columns) // min(lines, timing.sizes.rows))
    features = staged_groups(problem, schedule) * problem.inputs * itemsize(problem.x.dtype)
    long = divisor(columns, max(1, min(most, columns * features // timing.long_run)))
    for parts in sorted({each for each in (most, long) if each > 1}):
        yield replace(schedule, row_parts=parts)
