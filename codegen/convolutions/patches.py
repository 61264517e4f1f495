"""Convolutions of each feature by itself, patch by patch: the problem as plans see it, and schedules that fit.

The outputs of a feature are cut into patches of ``a x b``. Each meets a few patches of the input, of ``a x b`` times
the stride positions. Positions of a patch, of as many features as there is room for, are what TensorE contracts: a
product with the matrix of one patch of the input, where the kernel meets it, gives a share of all outputs of a patch.
So a product of 128 rows and columns has few zeros, where one that contracts features alone has but a diagonal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from neuronx_cc.codegen.convolutions import problem as convolutions
from neuronx_cc.codegen.convolutions.axis import Axis
from neuronx_cc.codegen.convolutions.finite import checks
from neuronx_cc.codegen.convolutions.problem import Home, Operand
from neuronx_cc.codegen.dots.problem import divisor
from neuronx_cc.codegen.dots.schedule import EPILOGUE_BUFFERS, array_name, between_name
from neuronx_cc.codegen.emission.tiles import room_of
from neuronx_cc.codegen.epilogues.work import Epilogue
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

MOST_OUTPUTS = 16
"""Of a patch along one axis."""
BUFFERS = 2
"""Of results, and of parts that are transposed next."""
LOADS = (8, 4, 2)
"""Buffers of what is loaded: a tile comes in the latency of a transfer, and is transposed in less."""
MOST_PATCHES = 12
"""Kinds of patches that are tried."""
FEWER = 3
"""Blocks of features are tried at so many sizes."""


@dataclass(frozen=True)
class Cut:
    """An axis of positions whose outputs are cut into patches of ``count``."""

    axis: Axis
    count: int

    @cached_property
    def inputs(self) -> int:
        """Input positions of a patch."""
        return self.axis.step * self.count

    @cached_property
    def patches(self) -> int:
        """Of outputs; the last one may have fewer."""
        return -(-self.axis.out // self.count)

    @cached_property
    def met(self) -> int:
        """Patches of the input that a patch of outputs meets."""
        taps = self.axis.taps[0]
        union = (self.count - 1) * self.axis.step + (taps.count - 1) * taps.stride + 1
        return -(-union // self.inputs)

    @cached_property
    def sources(self) -> int:
        """Patches of the input that all patches of outputs meet."""
        return self.patches + self.met - 1

    def existing(self, patch: int) -> tuple[int, int]:
        """First position of a patch of the input that exists, and the first after it that does not."""
        start = patch * self.inputs + self.axis.low
        first, end = max(0, -start), min(self.inputs, self.axis.size - start)
        return (first, end) if first < end else (0, 0)

    @cached_property
    def places(self) -> int:
        """Where an input position may lie from the first tap of an output: ``windows`` are parts of these."""
        return (self.count - 1) * self.axis.step + self.met * self.inputs

    def window(self, output: int, patch: int) -> int:
        """The place of the first position of patch ``patch`` of the input, seen from an output of the patch."""
        return (self.count - 1 - output) * self.axis.step + patch * self.inputs

    def meeting(self, patch: int) -> range:
        """Outputs of the patch from the first to the last at which the kernel meets patch ``patch`` of the input."""
        taps = self.axis.taps[0]
        places = [tap * taps.stride - patch * self.inputs for tap in range(taps.count)]
        step, within = self.axis.step, range(self.inputs)
        met = [at for at in range(self.count) if any(place + at * step in within for place in places)]
        return range(met[0], met[-1] + 1) if met else range(0)

    def taps_at(self, kernel: int) -> np.ndarray:
        """[kernel index, place]: one where an input position at that place meets it."""
        taps = self.axis.taps[0]
        found, tap = np.zeros((kernel, self.places), np.float32), np.arange(taps.count)
        found[taps.first + tap * taps.step, (self.count - 1) * self.axis.step + tap * taps.stride] = 1
        return found


@dataclass(frozen=True)
class Problem:
    """All that plans depend on, but the machine: arrays in HBM, [batch, features, rows, columns]."""

    axes: tuple[Axis, Axis, Axis]
    """The batch, rows and columns."""
    kernel: tuple[int, int]
    features: int
    x: Operand
    w: Operand
    out: Operand
    dtype: str
    """Of the products on TensorE."""
    flags: tuple[str, ...]
    fast: bool
    """Whether TensorE transposes values as such."""
    room: int
    """Bytes of each partition of SBUF in one piece."""
    arrays: tuple[Operand, ...] = ()
    """What the epilogue reads beside the sums, with the dims of ``out``."""
    epilogue: Epilogue | None = None

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    def loaded(self, array: Operand) -> str:
        """The element type of tiles of an array."""
        return "f32" if is_one(array) else array.dtype


def is_one(array: Operand) -> bool:
    """Whether an array is one number."""
    return not any(atom.stride for atom in array.dims)


def applies(posed: convolutions.Problem, rows: int) -> bool:
    """Whether a convolution is of each feature by itself, of images in HBM, with at most ``rows`` taps."""
    arrays = (posed.x, posed.out, *posed.arrays)
    return (
        (posed.inputs, posed.outputs, posed.batch_groups, len(posed.axes)) == (1, 1, 1, 3)
        and posed.groups > 1
        and 1 < posed.taps <= rows
        and posed.moves_values
        and posed.pack > 1
        and not any(array.on_chip for array in arrays)
        and posed.w.home in (Home.HBM, Home.CONSTANT)
        and all(axis.phases == 1 and axis.taps[0].count for axis in posed.axes)
    )


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that emission needs to know beside the problem."""

    outputs: tuple[int, int]
    """Of a patch."""
    pack: int
    """Features whose patches lie on the partitions together."""
    images: int
    """That are computed together, at most."""
    rows: int
    """Of patches of outputs that are."""
    columns: int
    """Of patches whose sums lie on the partitions together."""
    features: int
    """That are on chip together."""
    loaded: int
    """Columns of patches of the input that are loaded together."""
    stored: int
    """Columns of patches of outputs that are stored together: all ``columns`` that lie on partitions."""
    buffers: int
    """Of what is loaded."""

    def cuts(self, problem: Problem) -> tuple[Cut, Cut]:
        """Rows and columns in patches."""
        rows, columns = (Cut(axis, count) for axis, count in zip(problem.axes[1:], self.outputs, strict=True))
        return rows, columns

    def line(self, problem: Problem) -> str:
        """Problem and schedule for whoever reads along."""
        images = "x".join(f"{axis.size}" for axis in problem.axes)
        kernel, patch = ("x".join(map(str, each)) for each in (problem.kernel, self.outputs))
        epilogue = "" if problem.epilogue is None else f" + {problem.epilogue}"
        return (
            f"{images} of {problem.features} features, each by itself, {kernel} kernel {problem.dtype}{epilogue}: "
            f"patches of {patch} outputs of {self.pack} features, {self.images} x {self.rows} x {self.columns} of them "
            f"on the partitions, {self.features} features on chip, {self.loaded} columns loaded x{self.buffers}, "
            f"{self.stored} stored together"
        )


def candidates(problem: Problem, timing: Timing) -> Iterator[Schedule]:
    """Schedules that fit, of the patches for which TensorE has least to do: of all, and of those of which all features
    fit, so that neighbours are long runs.
    """
    found = []
    for outputs, frame in _frames(problem, timing.sizes):
        least = replace(_moved(problem, replace(frame, columns=1), timing), buffers=LOADS[-1])
        whole = problem.x.near(1) and fits(problem, least, timing.sizes)
        found.append((_columns(problem, frame), outputs, whole, frame))
    found.sort(key=lambda each: each[:2])
    best = [frame for *_, frame in found[:MOST_PATCHES]]
    best += [frame for *_, whole, frame in found if whole][:MOST_PATCHES]
    for frame in dict.fromkeys(best):
        yield from _of_patches(problem, frame, timing)


def least_products(problem: Problem, timing: Timing) -> float:
    """Nanoseconds that products take, with the matrices of the kernel, whatever the patches."""
    columns = min((_products(problem, frame) for _, frame in _frames(problem, timing.sizes)), default=0)
    return columns * timing.column(problem.dtype, problem.flags)


def _frames(problem: Problem, sizes: Sizes) -> Iterator[tuple[tuple[int, ...], Schedule]]:
    """Outputs of patches, and what their schedules have in common."""
    for outputs in product(*(_counts(axis.out) for axis in problem.axes[1:])):
        frame = _frame(problem, outputs, sizes)
        if frame is not None:
            yield outputs, frame


def _counts(total: int) -> list[int]:
    """Outputs of a patch along an axis: as even as can be."""
    return sorted({_even(total, count) for count in range(1, min(total, MOST_OUTPUTS) + 1)})


def _even(total: int, most: int) -> int:
    """Size of parts of ``total``, ``most`` at most, as even as can be."""
    return -(-total // -(-total // most))


def _frame(problem: Problem, outputs: tuple[int, ...], sizes: Sizes) -> Schedule | None:
    """What schedules of patches of ``outputs`` have in common, with all features on chip; None where none fit."""
    height = min(sizes.rows, sizes.columns)
    rows, columns = (Cut(axis, count) for axis, count in zip(problem.axes[1:], outputs, strict=True))
    most = height // max(rows.inputs * columns.inputs, prod(outputs))
    if not most:
        return None
    pack = divisor(problem.features, most)
    high = _even(rows.patches, height - rows.met + 1)
    images = _even(problem.axes[0].size, max(1, height // (high + rows.met - 1)))
    wide = 1 if problem.out.near(3) else _even(columns.patches, height // (high * images))
    return Schedule((rows.count, columns.count), pack, images, high, wide, problem.features, 1, 1, 1)


def _columns(problem: Problem, schedule: Schedule) -> int:
    """Columns that TensorE moves: of sums, of transposes, and of what matrices are made of."""
    packs, sources = problem.features // schedule.pack, schedule.cuts(problem)[1].sources
    transposed = packs * sources * transposed_rows(problem, schedule) * (2 - problem.fast)
    return _products(problem, schedule) + blocks_of(problem, schedule) * transposed


def _products(problem: Problem, schedule: Schedule) -> int:
    """The same without transposes."""
    rows, columns = schedule.cuts(problem)
    made = problem.features * prod(schedule.outputs) * rows.met * columns.met
    return made * (1 + blocks_of(problem, schedule) * -(-columns.patches // schedule.columns))


def _of_patches(problem: Problem, frame: Schedule, timing: Timing) -> Iterator[Schedule]:
    packs, found = problem.features // frame.pack, 0
    parts = [each for each in range(1, packs + 1) if packs % each == 0]
    for part, together in product(parts, sorted({1, frame.columns})):
        schedule = replace(frame, columns=together, features=packs // part * frame.pack)
        frames = (replace(_moved(problem, schedule, timing), buffers=buffers) for buffers in LOADS)
        fitting = next((each for each in frames if fits(problem, each, timing.sizes)), None)
        if fitting is not None:
            yield fitting
            found += together == 1
        if found == FEWER:
            return


def _moved(problem: Problem, schedule: Schedule, timing: Timing) -> Schedule:
    """With as many columns loaded and stored together as make long runs."""
    columns, found = schedule.cuts(problem)[1], []
    for operand, wide, total in (
        (problem.x, columns.inputs, columns.sources),
        (problem.out, columns.count, columns.patches),
    ):
        width = max(itemsize(operand.dtype), itemsize(problem.dtype))
        near = schedule.features == problem.features if operand.near(1) else operand.near(3)
        run = wide * width * (problem.features if operand.near(1) else 1)
        found.append(min(total, -(-timing.long_run // run)) if near else 1)
    loaded, stored = found
    return replace(schedule, loaded=loaded, stored=stored if schedule.columns == 1 else schedule.columns)


def fits(problem: Problem, schedule: Schedule, sizes: Sizes) -> bool:
    return room_of(footprint(problem, schedule, sizes)) <= problem.room


def blocks_of(problem: Problem, schedule: Schedule) -> int:
    """Times that images, and rows of patches of them, are computed together, of each block of features."""
    return -(-problem.axes[0].size // schedule.images) * -(-schedule.cuts(problem)[0].patches // schedule.rows)


def transposed_rows(problem: Problem, schedule: Schedule) -> int:
    """Patches of the input of one column of patches, of one feature, on chip together."""
    return schedule.images * (schedule.rows + schedule.cuts(problem)[0].met - 1)


def positions_of(problem: Problem, schedule: Schedule) -> int:
    """Elements a partition that are loaded together."""
    return prod(cut.inputs for cut in schedule.cuts(problem)) * schedule.loaded * schedule.features


def footprint(problem: Problem, schedule: Schedule, sizes: Sizes) -> dict[tuple[str, int], int]:
    """Bytes a partition of all tiles in SBUF: (name, buffers) -> bytes of one buffer."""
    rows, columns = schedule.cuts(problem)
    width, packs = itemsize(problem.dtype), schedule.features // schedule.pack
    made = schedule.pack * prod(schedule.outputs)
    raw = positions_of(problem, schedule) * width
    result = prod(schedule.outputs) * schedule.stored // schedule.columns * schedule.features
    tiles = {
        ("positions", schedule.buffers): raw,
        ("input", 1): packs * columns.sources * transposed_rows(problem, schedule) * width,
        ("kernel", 1): packs * rows.met * columns.met * made * width,
        ("taps", 1): rows.places * columns.places * width,
        ("kernel of each feature", BUFFERS): schedule.features * width,
        ("own features", 1): schedule.pack * 4,
        ("result", BUFFERS): result * itemsize(problem.out.dtype),
    }
    if not problem.fast:
        tiles["bits", BUFFERS] = raw
    for number, array in enumerate(problem.arrays):
        size = 1 if is_one(array) else schedule.features if array.stays else result
        tiles[array_name(number), EPILOGUE_BUFFERS] = size * itemsize(problem.loaded(array))
    for number in range(0 if problem.epilogue is None else problem.epilogue.tiles):
        tiles[between_name(0, number), EPILOGUE_BUFFERS] = 4 * sizes.bank_columns
    tiles |= checks(sizes)
    return {ring: sizes.aligned(nbytes) for ring, nbytes in tiles.items()}


def images_first(problem: Problem, schedule: Schedule) -> bool:
    """Whether all rows of an image follow each other on the partitions, not the same row of all images: whichever
    takes fewer transfers.
    """
    rows = schedule.cuts(problem)[0]
    padded = sum(rows.existing(row) != (0, rows.inputs) for row in range(rows.sources))
    return schedule.images * (1 + padded) < schedule.rows + rows.met - 1


def packs_of_bank(schedule: Schedule, sizes: Sizes) -> int:
    """Packs whose sums share a bank of PSUM."""
    packs = schedule.features // schedule.pack
    most = max(1, sizes.bank_columns // (schedule.pack * prod(schedule.outputs)))
    return _even(packs, most)
