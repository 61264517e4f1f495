"""How a convolution is computed: a frozen value that says all that was decided, and prints in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from math import prod

from neuronx_cc.codegen.convolutions.copies import Copies
from neuronx_cc.codegen.convolutions.finite import checks
from neuronx_cc.codegen.convolutions.folding import Fold
from neuronx_cc.codegen.convolutions.problem import Home, Operand, Problem
from neuronx_cc.codegen.dots.problem import divisor
from neuronx_cc.codegen.dots.schedule import EPILOGUE_BUFFERS, array_name, between_name
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

ROW_BUFFERS = 2
"""Of what is transposed next, or moved between its padding."""
KERNEL_BUFFERS = 8
"""Of parts of a kernel that are transposed or spread next, at most: each takes the latency of a transfer to come."""
KERNEL_SHARE = 16
"""They take one part in so many of the room."""
MOST_TILES = 8
"""Of positions that are loaded together, to be transposed one after the other."""
POSITION_BUFFERS = 3
"""Of results with positions on the partitions."""


class Comes(Enum):
    """How blocks of the input come to where TensorE reads them."""

    CHIP = "in place"
    """Copied where there is padding, or another type."""
    LOADED = "loaded"
    BESIDE = "loaded in long runs, moved between its padding"
    TILES = "transposed by tiles of neighbouring positions"
    ROWS = "transposed by columns of whole rows"
    RESIDUES = "loaded by residues of rows"

    @property
    def transposed(self) -> bool:
        return self in (Comes.TILES, Comes.ROWS)


class Kernel(Enum):
    """How the kernel comes: with the contracted features on the partitions, or to be transposed."""

    LAID_OUT = "laid out"
    LOADED = "loaded"
    TRANSPOSED = "transposed"
    SPREAD = "spread over its groups"


@dataclass(frozen=True, slots=True)
class Part:
    """What of a kernel is loaded or multiplied together."""

    chunks: int
    """Tiles of contracted features."""
    axes: int
    """So many of the last axes with all their positions, the others one position at a time."""

    def taps(self, problem: Problem) -> int:
        """Its kernel positions."""
        return prod(problem.kernel[len(problem.kernel) - self.axes :])


@dataclass(frozen=True, slots=True)
class Schedule:
    """All that emission needs to know beside the problem."""

    fold: Fold | None
    """Outputs that are features of one sum; all else is said of what that makes of the problem."""
    copies: Copies | None
    comes: Comes
    rows: tuple[int, ...]
    """Outputs a phase of each axis in one block."""
    outputs: int
    """Output features of a pack whose kernel is on chip together."""
    streamed: Part | None
    """What of the kernel comes at a time, past sums of a whole block in open banks; None: all of it is there first."""
    natural: Part
    """What is loaded at a time to be transposed."""
    weight_buffers: int
    input_buffers: int
    result_buffers: int
    row_bytes: int
    """Of positions that are loaded to be transposed, or collected to be stored, at most."""
    raw_bytes: int
    """Of input that is loaded beside."""
    row_groups: int
    """Parts of a row of results that lie on partitions of their own; 0: neighbouring positions do."""
    row_parts: int
    """The same of the input, where columns of whole rows are transposed."""
    abreast: bool
    """Whether all packs of a block of positions are staged, computed and stored together: their features are
    neighbours.
    """
    unrolled: int
    """The axis from which on loops over blocks are unrolled, so that the next one is staged during products."""

    def line(self, problem: Problem) -> str:
        """Problem and schedule for whoever reads along."""
        images = "x".join(f"{axis.size}" for axis in problem.axes)
        taps = "x".join(map(str, problem.kernel)) or "1"
        groups = f" in {problem.groups} groups, {problem.pack} together" if problem.groups > 1 else ""
        posed, problem = problem, problem.under(self.fold)
        folded = "" if self.fold is None else f"{self.fold.count} along axis {self.fold.axis} together, "
        copies = "" if self.copies is None else f" in {self.copies.outer} x {self.copies.inner} shifted copies"
        block = "x".join(map(str, self.rows))
        parts = f" in {self.row_parts} parts" if self.row_parts > 1 else ""
        parts += " of all groups" if self.abreast else ""
        streamed = "" if self.streamed is None else f" streamed {self.streamed.taps(problem)} positions at a time"
        stored = f" as {problem.kernel_stored}" if problem.converts_kernel else ""
        partitions = "positions" if problem.positions_on_partitions else "features"
        epilogue = "" if problem.epilogue is None else f" + {problem.epilogue}"
        return (
            f"{images} of {problem.inputs} features, {taps} kernel{groups} -> {posed.outputs} {problem.dtype}"
            f"{epilogue}: {folded}images {self.comes.value}{parts}{copies} by {block} x{self.input_buffers}, "
            f"kernel {kernel_way(problem).value}{stored}{streamed} for {self.outputs} x{self.weight_buffers}, "
            f"{partitions} on the partitions"
        )


def kernel_way(problem: Problem) -> Kernel:
    """How the kernel comes."""
    if problem.w.home is Home.CONSTANT:
        return Kernel.LAID_OUT
    if problem.given.kernel_is_spread:
        return Kernel.SPREAD
    return Kernel.LOADED if problem.given.kernel_is_direct else Kernel.TRANSPOSED


def extents_of(problem: Problem, schedule: Schedule) -> list[int]:
    """Input positions of a block along each axis, as a partition holds them."""
    extents = [axis.extent(rows) for axis, rows in zip(problem.axes, schedule.rows, strict=True)]
    return extents if schedule.copies is None else schedule.copies.packed(extents)


def outs_of(problem: Problem, schedule: Schedule) -> list[int]:
    """Output positions of a block along each axis."""
    return [min(axis.out, rows * axis.phases) for axis, rows in zip(problem.axes, schedule.rows, strict=True)]


def tile_shape(counts: Sequence[int], limit: int) -> list[int]:
    """Tiles of at most ``limit`` of ``counts`` positions along each axis: inner axes whole as far as they fit."""
    shape: list[int] = []
    left = limit
    for count in reversed(counts):
        size = max(1, min(count, left))
        size = -(-count // -(-count // size))
        shape.insert(0, size)
        left = left // size if size == count else 0
    return shape


def row_phases(problem: Problem) -> int:
    """Of neighbouring results along a row, which are stored together."""
    return problem.axes[-1].phases


def row_parts(width: int, most: int) -> list[tuple[int, int, int]]:
    """A row of ``width`` positions in at most ``most`` equal parts, and what is left: (first, positions, parts).

    Parts that leave nothing may be half as many.
    """
    parts = divisor(width, most)
    if 2 * parts <= min(width, most):
        parts = width // -(-width // most)
    whole = width - width % parts
    return [(0, whole, parts), (whole, width - whole, 1)][: 1 + (whole < width)]


def staged_groups(problem: Problem, schedule: Schedule) -> int:
    """Groups whose features are loaded and stored together."""
    return problem.groups if schedule.abreast else min(problem.pack, problem.groups)


def rounds_of_packs(problem: Problem, schedule: Schedule) -> int:
    """Times that a block of positions is staged, for all packs."""
    return 1 if schedule.abreast else problem.packs


def stored_outputs(problem: Problem, schedule: Schedule) -> int:
    """Output features that are stored together."""
    return problem.groups * problem.outputs if schedule.abreast else schedule.outputs


def tiles_together(problem: Problem, schedule: Schedule) -> int:
    """Tiles of positions that are loaded together."""
    features = staged_groups(problem, schedule) * problem.inputs * itemsize(problem.dtype)
    return max(1, min(MOST_TILES, schedule.row_bytes // features))


def footprint(problem: Problem, schedule: Schedule, sizes: Sizes) -> dict[tuple[str, int], int]:
    """Bytes a partition of all tiles in SBUF: (name, buffers) -> bytes of one buffer."""
    problem = problem.under(schedule.fold)
    given = problem.given
    size, copies = itemsize(problem.dtype), schedule.copies
    chunks = problem.packs if schedule.abreast else problem.chunks
    held = chunks * prod(extents_of(problem, schedule)) * size
    features = staged_groups(problem, schedule) * problem.inputs * size
    tiles = {("zeros", 1): sizes.bank_columns * size, ("input", schedule.input_buffers): held}
    if problem.x.on_chip and not _is_copied(problem, schedule):
        del tiles["input", schedule.input_buffers]
    bits = 0
    if schedule.comes is Comes.BESIDE:
        tiles["raw input", ROW_BUFFERS] = min(schedule.raw_bytes, held)
    elif schedule.comes.transposed:
        rows = schedule.comes is Comes.ROWS
        bits = max(schedule.row_bytes, features) if rows else tiles_together(problem, schedule) * features
        tiles["positions", ROW_BUFFERS] = bits
    part = schedule.streamed
    taps, chunks = (given.taps, problem.chunks) if part is None else (part.taps(problem), part.chunks)
    outputs = schedule.outputs if problem.fold is None else given.pack_outputs
    tiles["kernel", schedule.weight_buffers] = chunks * taps * outputs * size
    if problem.fold is not None:
        tiles["folded kernel", schedule.weight_buffers] = chunks * problem.taps * schedule.outputs * size
    if copies is not None:
        groups = prod(tap.count for tap in copies.grouped()[1:])
        tiles["copies of kernel", schedule.weight_buffers] = groups * schedule.outputs * size
        if copies.in_steps:
            inner = prod(copies.inner_sizes(problem.kernel))
            tiles["inner copies of kernel", schedule.weight_buffers] = inner * schedule.outputs * size
    if problem.converts_kernel:
        loaded = natural_bytes(given, schedule.natural) // size
        if kernel_way(problem) is not Kernel.TRANSPOSED:
            loaded = chunks * taps * outputs
        tiles["unconverted kernel", ROW_BUFFERS] = loaded * itemsize(problem.kernel_stored)
    if kernel_way(problem) is Kernel.TRANSPOSED:
        natural = natural_bytes(given, schedule.natural)
        tiles["natural kernel", kernel_buffers(problem, schedule, sizes)] = natural
        bits = max(bits, natural)
        if problem.pack > 1:
            tiles["features of each output", 1] = given.pack * given.inputs * itemsize("bf16")
            tiles["outputs of each feature", 1] = given.pack_outputs * itemsize("f32")
    if kernel_way(problem) is Kernel.SPREAD:
        tiles["kernel of each group", kernel_buffers(problem, schedule, sizes)] = given.taps * given.outputs * size
        if given.kernel_in_rows:
            tiles["natural kernel", ROW_BUFFERS] = given.pack_outputs * size
            bits = max(bits, given.pack_outputs * size)
    if bits and not problem.fast:
        tiles["bits", ROW_BUFFERS] = bits
    tiles |= _result(problem, schedule, sizes) | _epilogue(problem, schedule, sizes)
    if problem.shares_products:
        tiles |= checks(sizes)
    return {ring: sizes.aligned(nbytes) for ring, nbytes in tiles.items()}


def _result(problem: Problem, schedule: Schedule, sizes: Sizes) -> dict[tuple[str, int], int]:
    """Tiles of results: none of those that stay on chip."""
    width = itemsize(problem.out.dtype)
    if problem.positions_on_partitions:
        least = stored_outputs(problem, schedule) * width
        nbytes = max(schedule.row_bytes, least * row_phases(problem)) if schedule.row_groups else least
        return {("result", tile_buffers(problem, schedule, sizes, POSITION_BUFFERS)): nbytes}
    if problem.out.on_chip:
        return {}
    tiles = -(-schedule.outputs // min(sizes.rows, sizes.columns))
    return {("result", schedule.result_buffers): tiles * prod(outs_of(problem, schedule)) * width}


def _epilogue(problem: Problem, schedule: Schedule, sizes: Sizes) -> dict[tuple[str, int], int]:
    """Tiles of what the epilogue reads, and of what it has between the sums and the result."""
    tiles = {}
    for number, array in enumerate(problem.arrays):
        if not array.on_chip:
            buffers = EPILOGUE_BUFFERS
            if problem.positions_on_partitions and not array.stays:
                buffers = tile_buffers(problem, schedule, sizes, EPILOGUE_BUFFERS)
            tiles[array_name(number), buffers] = _array_bytes(problem, schedule, array, sizes)
    between = range(0 if problem.epilogue is None else problem.epilogue.tiles)
    together = interleaved_banks(problem, schedule, sizes)
    for slot, number in product(range(together), between):
        tiles[between_name(slot, number), between_buffers(slot, together)] = 4 * sizes.bank_columns
    return tiles


def sum_banks(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Banks of PSUM for sums; the others are for what is transposed."""
    way = kernel_way(problem)
    kernel = way is Kernel.TRANSPOSED or (way is Kernel.SPREAD and problem.given.kernel_in_rows)
    return sizes.banks // 2 if kernel or schedule.comes.transposed else sizes.banks


def interleaved_banks(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Banks of sums whose epilogues are interleaved, step by step, while as many add up: no more than a block has."""
    if problem.epilogue is None or len(problem.epilogue.steps) == 1:
        return 1
    wide = min(sizes.rows, sizes.columns) if problem.positions_on_partitions else sizes.bank_columns
    together, tiles = max(1, sum_banks(problem, schedule, sizes) // 2), -(-prod(outs_of(problem, schedule)) // wide)
    while together > tiles:
        together //= 2
    return together


def tile_buffers(problem: Problem, schedule: Schedule, sizes: Sizes, least: int) -> int:
    """Buffers of results with positions on the partitions, or of what is read with them: of whole rows, or of one bank
    of sums each.
    """
    together = interleaved_banks(problem, schedule, sizes)
    return least if schedule.row_groups or together == 1 else max(least, 2 * together)


def between_buffers(slot: int, together: int) -> int:
    """Buffers of a tile between the sums and the result of bank ``slot`` of those that are interleaved; the first
    also stands alone, where a loop's body has one bank.
    """
    return EPILOGUE_BUFFERS if slot == 0 else max(1, 2 * EPILOGUE_BUFFERS // together)


def _array_bytes(problem: Problem, schedule: Schedule, array: Operand, sizes: Sizes) -> int:
    """Bytes a partition of a tile of what the epilogue reads of an array."""
    width = itemsize(problem.loaded(array))
    if not problem.positions_on_partitions:
        outs, atoms = outs_of(problem, schedule), (array.dims[0], *array.dims[2:])
        varying = prod(out for out, atom in zip(outs, atoms, strict=True) if atom.stride)
        return -(-schedule.outputs // min(sizes.rows, sizes.columns)) * varying * width
    outputs = stored_outputs(problem, schedule)
    features = 1 if problem.repeats(array) else outputs
    if array.stays or not schedule.row_groups:
        return features * width
    phases = row_phases(problem)
    columns = max(1, schedule.row_bytes // (phases * outputs * itemsize(problem.out.dtype))) * phases
    return columns * features * width


def natural_bytes(problem: Problem, part: Part) -> int:
    """Bytes a partition of what is loaded of a kernel to be transposed."""
    features = problem.inputs if part.chunks >= problem.chunks else part.chunks * problem.partitions
    return features * part.taps(problem) * itemsize(problem.dtype)


def kernel_buffers(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Of what is loaded of a kernel to be transposed, or spread: of as many parts as there are, in a share of the
    room."""
    given, natural = problem.given, schedule.natural
    if kernel_way(problem) is Kernel.SPREAD:
        parts, nbytes = given.packs, given.taps * given.outputs * itemsize(given.dtype)
    else:
        outputs = schedule.outputs if problem.fold is None else given.pack_outputs
        parts = -(-outputs // min(sizes.rows, sizes.columns)) * -(-given.chunks // natural.chunks)
        parts, nbytes = parts * (given.taps // natural.taps(given)), natural_bytes(given, natural)
    return max(ROW_BUFFERS, min(KERNEL_BUFFERS, parts, given.room // KERNEL_SHARE // sizes.aligned(nbytes)))


def _is_copied(problem: Problem, schedule: Schedule) -> bool:
    """Whether any block of an input on chip is copied."""
    pieces = (axis.pieces(rows) for axis, rows in zip(problem.axes, schedule.rows, strict=True))
    padded = any(piece.before or piece.after for several in pieces for piece in several)
    return padded or problem.x.dtype != problem.dtype or schedule.copies is not None
