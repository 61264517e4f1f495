"""How a reduction over any set of dims goes through the chip: the problem, the schedules that fit, the time of each.

A tile is a stretch of memory a partition, read in long runs whatever is reduced. Vector folds what is reduced of its
free dims, through a view whose last dims these are; sums whose partitions are all reduced are products with ones,
which TensorE adds up in PSUM tile after tile. What is reduced across partitions comes last, of few elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil, prod

from neuronx_cc.codegen.movement.halves import transposing
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.rules import SQUARE
from neuronx_cc.ir.isa.timing import F32, F32_PSUM, Tile, Timing, Work
from neuronx_cc.ir.types import FLOATS, WIDE_FLOATS, itemsize

BUFFERS = 2
"""Of sums and what becomes of them."""
BUFFERED = 3
"""Tiles of the operand that are under way at a time."""
MOST_GROUPS = 16, 64
"""Indices of a dim that have partitions of their own side by side: a DMA each moves a tile."""
HALVINGS = 9
"""Sizes of tiles that are tried: the largest for which there is room, half of it, and so on."""


@dataclass(frozen=True, slots=True)
class Dim:
    """``stride`` in the operand and ``out`` in the result are bytes; ``out`` is of kept dims only."""

    size: int
    stride: int
    kept: bool
    out: int = 0
    partition: bool = False
    """Of an operand on chip: the dim that lies on the partitions."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A reduction of ``dims``, outermost in memory first."""

    dims: tuple[Dim, ...]
    dtype: str
    """As the operand lies."""
    acc: str
    """In which it is computed."""
    opcode: str
    room: int
    """Bytes a partition for tiles."""

    @property
    def on_chip(self) -> bool:
        return any(dim.partition for dim in self.dims)

    @property
    def adds(self) -> bool:
        return self.opcode == "add" and self.acc == "f32"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Dims ``first`` to ``last`` lie on the partitions, or these two, for kept elements: ``on_partitions`` indices of
    each, ``inner`` neighbours of ``last``.
    """

    first: int
    last: int
    on_partitions: tuple[int, ...]
    """Of every dim; 1 where it is not on the partitions."""
    inner: int
    pieces: tuple[int, ...]
    """Elements of every dim in the free dims of a tile."""
    engine: Stream

    def step(self, dim: int) -> int:
        """Elements from a partition to the next along ``dim``."""
        return self.inner if dim == self.last else 1

    @property
    def partitions(self) -> int:
        return prod(self.on_partitions)

    @property
    def columns(self) -> int:
        return prod(self.pieces)

    def kept(self, problem: Problem) -> int:
        """Kept elements a partition of a tile."""
        return prod(piece for piece, dim in zip(self.pieces, problem.dims, strict=True) if dim.kept)


@lru_cache(maxsize=4096)
def _divisors(size: int) -> tuple[int, ...]:
    small = [each for each in range(1, int(size**0.5) + 1) if size % each == 0]
    return tuple(sorted({*small, *(size // each for each in small)}))


def _near(size: int, most: int) -> int:
    """A piece of at most ``most`` elements of ``size``: a divisor where one is near."""
    most = max(1, min(size, most))
    best = max(each for each in _divisors(size) if each <= most)
    return best if 2 * best > most else most


def _placements(problem: Problem, timing: Timing) -> Iterator[tuple[int, int, tuple[int, ...], int]]:
    """(first, last, partitions, inner) of schedules."""
    dims, most = problem.dims, timing.sizes.partitions
    ones = [1] * len(dims)
    for last, dim in enumerate(dims):
        if dim.partition:
            yield last, last, (*ones[:last], dim.size, *ones[last + 1 :]), 1
        if problem.on_chip:
            continue
        for inner in sorted({1, max(1, dim.size // most), ceil(dim.size / most), dim.size // _near(dim.size, most)}):
            yield last, last, (*ones[:last], min(most, dim.size // inner), *ones[last + 1 :]), inner
        if itemsize(problem.acc) < 4:
            continue  # words only change places with their partitions
        for first in range(last):
            between = prod(each.size for each in dims[first + 1 : last])
            pairs = list(pairwise(dims[first : last + 1]))
            joint = all(a.stride == b.stride * b.size for a, b in pairs)
            # neighbours on the partitions are stored as neighbours
            stored = all(a.out == b.out * b.size for a, b in pairs if a.kept and b.kept)
            if not joint or not stored or 2 * between > most:
                continue
            # as many neighbours of the last dim as possible, or of the first
            for left in {most // between, max(1, most // between // dims[first].size)}:
                here = max(each for each in _divisors(dim.size) if each <= left)
                outer = _near(dims[first].size, most // (between * here))
                if outer * between > 1:
                    several = [outer, *(each.size for each in dims[first + 1 : last]), here]
                    yield first, last, (*ones[:first], *several, *ones[last + 1 :]), dim.size // here
        for first, apart in enumerate(dims[:last]):
            if not (dim.kept and apart.kept) or apart.stride == dim.stride * dim.size:
                continue
            for groups in dict.fromkeys(max(n for n in _divisors(apart.size) if n <= each) for each in MOST_GROUPS):
                here = _near(dim.size, most // groups)
                if groups > 1 < here:
                    several = [groups, *ones[first + 1 : last], here]
                    yield first, last, (*ones[:first], *several, *ones[last + 1 :]), dim.size // here


def candidates(problem: Problem, timing: Timing) -> Iterator[Schedule]:
    """Schedules that fit the machine."""
    seen = set()
    for first, last, partitions, inner in _placements(problem, timing):
        folded = not any(problem.dims[dim].kept for dim in range(first, last + 1))
        engines = [Stream.VECTOR]
        if problem.adds and folded and problem.dtype in WIDE_FLOATS:
            engines.append(Stream.TENSOR)
        most = problem.room // (BUFFERED * itemsize(problem.dtype))
        for columns in [max(1, most >> halving) for halving in range(HALVINGS)]:
            for engine in engines:
                pieces = _pieces(problem, timing, (last, partitions, inner), columns, engine)
                schedule = Schedule(first, last, partitions, inner, pieces, engine)
                if schedule not in seen and _nbytes(problem, schedule, timing) <= problem.room:
                    seen.add(schedule)
                    yield schedule


def _pieces(
    problem: Problem, timing: Timing, place: tuple[int, tuple[int, ...], int], columns: int, engine: Stream
) -> tuple[int, ...]:
    """As many neighbours in memory as ``columns`` holds, of what does not lie on the partitions."""
    last, partitions, inner = place
    kept_left = timing.sizes.bank_columns if engine is Stream.TENSOR else columns
    pieces = []
    for index, dim in reversed(list(enumerate(problem.dims))):
        size = inner if index == last else 1 if partitions[index] > 1 else dim.size
        piece = _near(size, min(columns, kept_left) if dim.kept else columns)
        pieces.append(piece)
        columns //= piece
        kept_left //= piece if dim.kept else 1
    return tuple(reversed(pieces))


def _nbytes(problem: Problem, schedule: Schedule, timing: Timing) -> int:
    swapped = timing.sizes.partitions if _changes_places(problem, schedule, timing) else 0
    sums = timing.sizes.aligned(4 * (schedule.kept(problem) + swapped))
    tiles = 0 if problem.on_chip else BUFFERED * schedule.columns * itemsize(problem.dtype)
    whole = schedule.columns * 4 if problem.acc not in FLOATS else 0  # scratch of exact integers
    return tiles + whole + (3 * BUFFERS + 2) * sums


def estimate(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """Nanoseconds of ``schedule``."""
    dims, size = problem.dims, itemsize(problem.dtype)
    boxes = [_boxes(problem, schedule, index) for index in range(len(dims))]
    tiles = prod(boxes)
    blocks = prod(count for count, dim in zip(boxes, dims, strict=True) if dim.kept)
    elements = prod(dim.size for dim in dims)
    run = size
    for dim, piece in reversed(list(zip(dims, schedule.pieces, strict=True))):
        if dim.stride != run:
            break
        run *= piece
        if piece < dim.size:
            break
    last = _combined(problem, schedule, timing)
    stages = [] if problem.on_chip else [timing.moved(ceil(elements / tiles) * size, run)]
    work = _folded(problem, schedule, timing) + last.times((blocks - 1) / tiles)
    stages.append(timing.done(work, schedule.engine))
    end = sum(timing.latency(stream) for stream in (Stream.TENSOR, Stream.VECTOR, Stream.VECTOR))
    end += timing.transfer_latency + last.bound
    return timing.pipeline(stages, tiles, BUFFERED) + blocks * _waits(problem, schedule, timing) + end


def _boxes(problem: Problem, schedule: Schedule, index: int) -> int:
    """Tiles along a dim."""
    size, partitions, piece = problem.dims[index].size, schedule.on_partitions[index], schedule.pieces[index]
    if index != schedule.last:
        return ceil(size / (partitions * piece))
    step = partitions * schedule.inner
    full, rest = divmod(size, step)
    several = ceil(schedule.inner / piece)
    return (full + (rest >= schedule.inner)) * several + ceil(rest % schedule.inner / piece)


def is_one_tile(problem: Problem, schedule: Schedule) -> bool:
    """Whether all that belongs to a block is one tile."""
    folded = [index for index, dim in enumerate(problem.dims) if not dim.kept]
    return all(_boxes(problem, schedule, index) == 1 for index in folded)


def is_summed_by_folds(problem: Problem, schedule: Schedule) -> bool:
    """Whether a block's sums are the folds of its one tile: floats are added to +0, not to -0."""
    return is_one_tile(problem, schedule) and not problem.adds


def _minor(problem: Problem, schedule: Schedule) -> int:
    """Bytes between neighbours as Vector reads a tile: along the last dim that is reduced."""
    stride, found = itemsize(problem.dtype), 0
    for dim, piece in reversed(list(zip(problem.dims, schedule.pieces, strict=True))):
        step = dim.stride if problem.on_chip else stride
        if piece > 1 and not found and not dim.kept:
            found = step
        stride *= piece
    return found or itemsize(problem.dtype)


def _folded(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """The work on one tile."""
    kept, columns = schedule.kept(problem), schedule.columns
    if schedule.engine is Stream.TENSOR:
        bank = timing.sizes.bank_columns
        each = min(columns, bank // max(1, min(kept, bank)) * min(kept, bank))
        return timing.product(1, each, problem.dtype, loaded=False).times(ceil(columns / each))
    work = Work()
    if problem.acc not in FLOATS and problem.acc != "pred":
        if columns > kept:
            work += timing.engine("tensor_copy", Stream.GPSIMD, columns, (Tile("s32"),), (Tile("s32"),))
        left = columns // kept
        while left > 1:
            half = left // 2
            tile = Tile("s32")
            work += timing.engine("int_tensor_tensor", Stream.GPSIMD, half * kept, (tile,), (tile, tile), ("add",))
            left -= half
        return work
    if columns > kept:
        source = Tile(problem.dtype, stride=_minor(problem, schedule))
        work += timing.engine("tensor_reduce", Stream.VECTOR, columns, (F32,), (source,), ("add",))
    if not is_summed_by_folds(problem, schedule):
        work += timing.engine("tensor_tensor", Stream.VECTOR, kept, ins=(F32, F32), alu=("add",))
    elif columns == kept and problem.dtype != problem.acc:
        work += timing.engine("tensor_copy", Stream.VECTOR, kept, ins=(Tile(problem.dtype),))
    return work


def _combined(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """The work on the sums of a block: across partitions, and out."""
    dims, kept = problem.dims, schedule.kept(problem)
    inside = range(schedule.first, schedule.last + 1)
    folded = [schedule.on_partitions[dim] for dim in inside if not dims[dim].kept]
    stays = prod(schedule.on_partitions[dim] for dim in inside if dims[dim].kept)
    work, run = Work(), 4 * (kept if not stays > 1 else 1)
    if schedule.engine is Stream.TENSOR:
        work += timing.engine("tensor_reduce", Stream.VECTOR, timing.sizes.bank_columns, (F32,), (F32_PSUM,), ("add",))
        work += timing.engine("activation", Stream.SCALAR, timing.sizes.bank_columns, (F32_PSUM,), (F32,), ("copy",))
    elif prod(folded) > 1 and stays == 1 and problem.adds:
        work += timing.product(1, kept, "f32") + timing.engine("tensor_copy", Stream.VECTOR, kept, ins=(F32_PSUM,))
    elif prod(folded) > 1 and stays == 1 and gathers(problem, schedule, timing):
        work += _gathered(problem, schedule, timing)
    elif prod(folded) > 1:
        work += _transposed(problem, schedule, timing)
        run = 4 * max(1, kept // timing.sizes.partitions) if stays == 1 else 4
    else:
        run = 4 * kept
    return work + timing.transfer(4 * kept * stays, run, "write")


def _transposed(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """Sums change places with their partitions, and are folded there."""
    columns = schedule.partitions * ceil(schedule.kept(problem) / timing.sizes.partitions)
    work = (_by_parts if _prefers_parts(problem, schedule, timing) else _by_squares)(problem, schedule, timing)
    if problem.acc in FLOATS or problem.acc == "pred":
        return work + timing.engine("tensor_reduce", Stream.VECTOR, columns, alu=("add",))
    work += timing.engine("tensor_copy", Stream.GPSIMD, columns, (Tile("s32"),), (Tile("s32"),))
    least = timing.engine("int_tensor_tensor", Stream.GPSIMD, 1, (Tile("s32"),), (Tile("s32"),) * 2, ("add",))
    return work + least.times(schedule.partitions.bit_length())


def _by_squares(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """Vector transposes sums square by square."""
    squares = ceil(schedule.partitions / SQUARE) * ceil(schedule.kept(problem) / SQUARE)
    return timing.engine("transpose", Stream.VECTOR, SQUARE).times(squares)


def _by_parts(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """TensorE transposes the parts of their bit patterns."""
    columns = timing.sizes.partitions
    each = transposing(timing, schedule.partitions, columns, problem.acc, fast=False)
    return each.times(ceil(schedule.kept(problem) / columns))


def on_tensor(problem: Problem, schedule: Schedule, timing: Timing) -> bool:
    """Whether sums change places with their partitions, and TensorE transposes them, not Vector."""
    return _changes_places(problem, schedule, timing) and _prefers_parts(problem, schedule, timing)


def _changes_places(problem: Problem, schedule: Schedule, timing: Timing) -> bool:
    inside = range(schedule.first, schedule.last + 1)
    folded = prod(schedule.on_partitions[dim] for dim in inside if not problem.dims[dim].kept)
    alone = folded == schedule.partitions and (problem.adds or gathers(problem, schedule, timing))
    return folded > 1 and not alone and schedule.engine is Stream.VECTOR


def _prefers_parts(problem: Problem, schedule: Schedule, timing: Timing) -> bool:
    time = _by_parts(problem, schedule, timing).vector + _wait_for_parts(problem, schedule, timing)
    return time < _by_squares(problem, schedule, timing).bound


def _wait_for_parts(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """What Vector waits for TensorE, which begins with the first parts, and for the last bank of these."""
    work, sizes = _by_parts(problem, schedule, timing), timing.sizes
    banks = ceil(schedule.kept(problem) / sizes.partitions) * schedule.partitions / sizes.bank_columns
    return max(0.0, work.tensor - work.vector / 2) + work.scalar / max(1, 2 * banks) + _handed(timing)


def _waits(problem: Problem, schedule: Schedule, timing: Timing) -> float:
    """For how long Vector waits in every block: for TensorE, or for loops of its own transposes to end."""
    if on_tensor(problem, schedule, timing):
        return _wait_for_parts(problem, schedule, timing)
    if _changes_places(problem, schedule, timing) and schedule.kept(problem) > timing.sizes.partitions:
        return 2 * timing.latency(Stream.VECTOR) + timing.transfer_latency / BUFFERS
    return 0.0


def _handed(timing: Timing) -> float:
    """Until Vector has what it gave TensorE, beside the work itself."""
    return sum(timing.latency(stream) for stream in (Stream.VECTOR, Stream.TENSOR, Stream.SCALAR))


def _gathered(problem: Problem, schedule: Schedule, timing: Timing) -> Work:
    """GpSimd folds all partitions of every sum."""
    return timing.engine("partition_reduce", Stream.GPSIMD, schedule.kept(problem))


def gathers(problem: Problem, schedule: Schedule, timing: Timing) -> bool:
    """Whether GpSimd folds what is reduced of all partitions, if that is no product; few, or no words."""
    words = itemsize(problem.acc) == 4
    return not words or _gathered(problem, schedule, timing).bound <= _transposed(problem, schedule, timing).bound


@lru_cache(maxsize=4096)
def choose(problem: Problem, timing: Timing) -> Schedule | None:
    """The schedule that takes least by estimate; None where nothing fits."""
    return min(candidates(problem, timing), key=lambda each: estimate(problem, each, timing), default=None)
