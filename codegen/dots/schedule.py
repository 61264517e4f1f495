"""How a contraction is computed: a frozen value that says all that was decided, and prints in one line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import product
from math import prod

from neuronx_cc.codegen.dots import conversion, scaled, splitting
from neuronx_cc.codegen.dots.problem import PART, PARTS, Operand, Problem, Segment, run_of
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

RESULT_BUFFERS = (4, 3)
"""As many as rows of tiles that are unrolled, where there is room."""
RESULT_TILES = 4
"""Tiles of a row of the result that are stored together."""
UNROLLED_TILES = 96
"""Tiles multiplied or transposed in an iteration of a loop: where it has many, what iterations wait for each other is
short beside it."""
UNROLLED_BLOCKS = 4
"""Blocks along one dim that are unrolled."""
MORE_INSIDE = 2
"""Times as many indices are an iteration of a loop around others, all of theirs counted."""
SUM_BUFFERS = 2
EPILOGUE_BUFFERS = 2
TAKING_TURNS = 2
"""Tiles whose epilogues take turns, op by op."""
TRANSPOSED_SUMS = "transposed sums"
"""The tile of sums that Vector has transposed, for an epilogue."""
ZEROS = "zeros"
"""The tile that patterns which tell NaNs are multiplied with."""
FEW = 16
"""Rows of an operand that may come straight to the partitions: the runs of each are by themselves."""
ROW_BUFFERS = 2
"""Of parts of bit patterns that are transposed next, and of rows of the result."""

UNCONVERTED_SHARE = 58
"""What is loaded at a time to be converted takes at most one part in so many of the room: the buffers of both operands
leave three quarters for blocks."""


class Way(Enum):
    """How blocks of an operand come to where TensorE reads them."""

    IN_PLACE = "in place"
    STAGED = "staged"
    LOADED = "loaded"
    LAID_OUT = "laid out"
    """Loaded as the compiler has laid out a constant: one run a partition."""
    TRANSPOSED = "transposed"


class Sums(Enum):
    """Where partial sums live."""

    PSUM = "PSUM"
    """Over all of k."""
    SBUF = "SBUF"
    """Over blocks of k, each of which is summed up in PSUM."""
    BANKS = "banks of PSUM"
    """Over blocks of k, each of which is added to as many banks as a block of columns fills, with lhs whole."""


class Leaves(Enum):
    """How the result leaves."""

    CHIP = "stays on chip"
    TILES = "stored by tiles"
    ROWS = "stored by whole rows"
    """Collected on chip: its columns are computed in another order than they lie in."""


class Kept(Enum):
    """For how long what is loaded of an array stays on every partition."""

    TILE = "for a tile of rows"
    BLOCK = "for a block of columns"
    """Of a row: it would come again with each tile of rows."""
    WHOLE = "for all"
    COLUMN = "for all, one value of each row"


@dataclass(frozen=True)
class Coming:
    """How one operand comes."""

    rows: int
    """Of a block, along its tiled dim."""
    buffers: int
    ways: tuple[Way, ...]
    """For each segment of k."""
    kept: bool = False
    """Whether transposed blocks are kept in HBM, for when the next block of the other operand wants them."""
    beside: int = 1
    """Rows that come side by side to a partition, to be transposed: neighbours in memory, which are one long run, or
    of tiles that are staged together.
    """

    def __str__(self) -> str:
        ways = "/".join(dict.fromkeys(way.value for way in self.ways)) + (" once, kept in HBM" if self.kept else "")
        beside = f" {self.beside} side by side" if self.beside > 1 else ""
        return f"{self.rows} x{self.buffers} {ways}{beside}"


@dataclass(frozen=True)
class Schedule:
    """All that emission needs to know beside the problem."""

    stays: str
    """The operand (lhs or rhs) whose block stays while blocks of the other stream past."""
    lhs: Coming
    rhs: Coming
    group: int
    """Tiles of m that are staged together, neighbours along another dim (``Problem.m_around``)."""
    boxes: tuple[tuple[int, ...], ...]
    """For each segment of k, how many along each dim of its chunks are staged together."""
    sums: Sums
    leaves: Leaves
    columns: int
    """Of the result that are stored together, at most."""
    row_bytes: int
    """Of a row that is loaded to be transposed, at most."""
    row_buffers: int
    """Of such rows, for each operand."""
    result_buffers: int
    swapped: int
    """Tiles of at most so many rows stream past the columns instead, and Vector transposes the sums; 0 for none."""
    bias_whole: bool
    """Whether all of the bias is on chip."""
    rows: tuple[Kept, ...]
    """How long parts of each array that the epilogue reads stay on chip."""
    batches: int
    """Products of a batch that are unrolled, of all its dims together."""
    blocks: int
    """Blocks along one dim that are unrolled."""
    body: int
    """Blocks that are an iteration of a loop."""
    row_body: int
    """Tiles of the rows of a block that are."""
    transposes: int
    """Banks of transposes of one tile that are unrolled."""
    straight: bool = False
    """Whether no blocks of k are a loop, in which they would wait for each other."""
    beside: int = 1
    """Rows of the result, at most, whose sums leave side by side from each partition: those of tiles that are staged
    together, or those of lhs that come so.
    """
    array_tiles: int = EPILOGUE_BUFFERS
    """Buffers of tiles of each array that the epilogue reads, whose parts stay no longer than a tile of the result."""

    def coming(self, operand: Operand) -> Coming:
        """How ``operand`` comes."""
        return self.lhs if operand.name == "lhs" else self.rhs

    def with_coming(self, operand: Operand, coming: Coming) -> Schedule:
        """With ``operand`` coming so."""
        return replace(self, lhs=coming) if operand.name == "lhs" else replace(self, rhs=coming)

    def boxes_of(self, problem: Problem, operand: Operand) -> tuple[tuple[int, ...], ...]:
        """Chunks of each segment of k that a block of ``operand`` holds."""
        whole = problem.in_pairs or (self.sums is Sums.BANKS and operand.name == "lhs")
        return problem.all_chunks if whole else self.boxes

    def rows_of(self, problem: Problem, operand: Operand) -> list[tuple[int, ...]]:
        """Chunks of each row of ``operand`` that is loaded to be transposed: of all segments, if blocks hold them."""
        problem, operand = problem.carried(operand)
        boxes = self.boxes_of(problem, operand)
        if self.sums is Sums.SBUF or boxes != problem.all_chunks:
            return list(boxes)
        return [(*boxes[0][:-1], sum(box[-1] for box in boxes))]

    def k_blocks(self, problem: Problem) -> int:
        """Blocks of k."""
        return sum(
            prod(-(-size // part) for size, part in zip(chunks, box, strict=True))
            for chunks, box in zip(problem.all_chunks, self.boxes, strict=True)
        )

    def rows_a_bank(self, problem: Problem, sizes: Sizes) -> int:
        """Rows of a partition that leave side by side, of which a bank holds the sums."""
        return max(1, min(self.beside, sizes.bank_columns // max(1, problem.n_tiled)))

    def array_buffers(self, problem: Problem, kept: Kept) -> int:
        """Of what is loaded of an array that the epilogue reads: one for each block of columns that is under way, as
        what waits for a buffer keeps all transfers after it.
        """
        if kept is Kept.BLOCK:
            blocks = -(-self.rhs.buffers // self.k_blocks(problem))
            if problem.rhs.transposed and itemsize(problem.rhs.stored) == 1:  # rows come ahead of their blocks
                blocks += 1 + min(self.row_buffers, self.row_buffers * problem.partitions // max(1, self.rhs.rows))
            return max(EPILOGUE_BUFFERS, blocks)
        return self.array_tiles if kept is Kept.TILE else 1

    def array_phases(self, sizes: Sizes) -> int:
        """Iterations of a loop whose tiles of such an array have buffers of their own."""
        rows, columns = -(-self.together // sizes.columns), -(-self.rhs.rows // sizes.bank_columns)
        return max(1, self.array_tiles // (self.body * rows * columns))

    def batch_bodies(self, problem: Problem) -> list[int]:
        """Of each batch dim, how many indices are an iteration of its loop, with those of the dims inside of it; all of
        them where it is no loop.
        """
        bodies, inside = list[int](), 1
        for dim, size in reversed(list(enumerate(problem.b))):
            whole = size <= self.batches // prod(problem.b[dim + 1 :])
            body = self.body if inside == 1 else MORE_INSIDE * self.body // inside
            bodies.insert(0, size if whole else min(size, max(1, body)))
            inside *= bodies[0]
        return bodies

    @property
    def together(self) -> int:
        """Rows of m that are staged together."""
        return self.lhs.rows * self.group

    def line(self, problem: Problem) -> str:
        """Problem and schedule for whoever reads along."""

        def dims(sizes: tuple[int, ...], partitions: int = -1) -> str:
            return "x".join(f"{size}{'p' * (dim == partitions)}" for dim, size in enumerate(sizes)) or "1"

        def comes(operand: Operand) -> str:
            narrow = itemsize(operand.stored) < itemsize(problem.dtype) and not operand.on_chip
            pairs = "pairs of " * operand.paired
            return f"{self.coming(operand)}{f' as {pairs}{operand.stored}' if narrow else ''}"

        batch = f"b {dims(problem.b)} " if problem.b else ""
        what = f"{batch}m {dims(problem.m)} n {dims(problem.n)} k {dims(problem.k, problem.k_dim)} {problem.dtype}"
        cut = "+".join(dims(box) for box in self.boxes)
        whole = "all" if self.boxes == problem.all_chunks else f"{cut} of {'+'.join(map(dims, problem.all_chunks))}"
        group = f" in groups of {self.group}" if self.group > 1 else ""
        stays = f"{self.stays} stays" if self.sums is Sums.PSUM else "both stream"
        adds = " + row" * problem.bias + f" + {problem.epilogue}" * (problem.epilogue is not None)
        swapped = ", short rows stream" if self.swapped or problem.out.across else ""
        operands = f"lhs {comes(problem.lhs)}{group}, rhs {comes(problem.rhs)}"
        return (
            f"{what}{adds}: {stays}, {operands}, k {whole} chunks summed in {self.sums.value}{swapped}, "
            f"{self.leaves.value}"
            + (f" of {self.columns} columns" if self.leaves is Leaves.TILES else "")
            + (f", {self.beside} rows side by side" if self.beside > 1 else "")
            + (f", columns on {problem.out.across} partitions" if problem.out.across else "")
        )


def together(problem: Problem, chunks: tuple[int, ...], row_bytes: int) -> list[int]:
    """How many along each of these dims of chunks are loaded as rows and transposed before the next ones are."""
    counts, left = list(chunks), max(1, row_bytes // (problem.partitions * itemsize(problem.dtype)))
    for dim in reversed(range(len(chunks))):
        pieces = -(-chunks[dim] // left)
        counts[dim] = -(-chunks[dim] // pieces)
        left = max(1, left // chunks[dim]) if pieces == 1 else 1
    return counts


def row_run(problem: Problem, schedule: Schedule, operand: Operand) -> int:
    """Bytes that lie one after the other of a row that is loaded to be transposed, or of a part of it."""
    problem, operand = problem.carried(operand)
    segment, width = problem.segments[0], itemsize(operand.stored)
    parts = together(problem, schedule.rows_of(problem, operand)[0], schedule.row_bytes)
    others = [atom for dim, atom in enumerate(operand.contracted) if dim != problem.k_dim]
    atoms = [Atom(size, atom.stride) for size, atom in zip(parts[:-1], others, strict=True)]
    if problem.k_dim >= 0:
        along, steps = segment.strides(operand.contracted[problem.k_dim].stride)
        atoms += [Atom(parts[-1], steps), Atom(segment.partitions, along)]
    return run_of(atoms, width)


def unconverted_bytes(problem: Problem, sizes: Sizes) -> int:
    """Bytes a partition of what is loaded at a time to be converted."""
    return max(1, min(conversion.UNCONVERTED * sizes.bank_bytes, problem.room // UNCONVERTED_SHARE))


def block_name(operand: Operand, segment: Segment) -> str:
    """Of the tiles that hold its blocks."""
    return f"{operand.name} block {segment.start}"


def suspects_name(operand: Operand, segment: Segment) -> str:
    """Of the tiles with the patterns that tell its NaNs."""
    return f"{operand.name} suspects {segment.start}"


def parts_name(operand: Operand, segment: Segment) -> str:
    """Of the tiles with the parts of its blocks."""
    return f"{operand.name} parts {segment.start}"


def row_tiles(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Banks of the sums that are stored together."""
    columns = max(1, min(schedule.rhs.rows, schedule.columns))
    beside = -(-schedule.beside // schedule.rows_a_bank(problem, sizes))
    return beside * -(-problem.width(columns) // sizes.bank_columns)


def count_row_tiles(problem: Problem, sizes: Sizes) -> int:
    """Tiles of rows of one batch index."""
    rows = max(1, problem.m_tiled)
    return max(1, prod(problem.m)) // rows * -(-rows // sizes.columns)


def array_name(number: int) -> str:
    """Of the tiles of an array that the epilogue reads."""
    return f"array {number}"


def between_name(slot: int, number: int) -> str:
    """Of tiles that the epilogue has between the sums and the result."""
    return f"epilogue {slot} {number}"


def _of_operand(
    problem: Problem, schedule: Schedule, operand: Operand, rows: int, sizes: Sizes
) -> dict[tuple[str, int], int]:
    """The same of the tiles of one operand, in blocks of so many rows."""
    tiles: dict[tuple[str, int], int] = {}
    coming, boxes = schedule.coming(operand), schedule.boxes_of(problem, operand)
    for segment, box, way in zip(problem.segments, boxes, coming.ways, strict=True):
        if operand.split:
            tiles[parts_name(operand, segment), coming.buffers] = prod(box) * rows * PARTS * itemsize(PART)
            tiles |= splitting.footprint(problem, operand, sizes)
        if way not in (Way.IN_PLACE, Way.STAGED):
            elements = prod(box) * conversion.width(operand, rows)
            nbytes = elements * itemsize(operand.dtype)
            if operand.paired and operand.decoded:  # numbers of odd terms lie after those of even ones
                longest = max(map(prod, boxes)) * conversion.width(operand, rows) * itemsize(operand.dtype)
                nbytes = (longest + nbytes) // 2
            tiles[block_name(operand, segment), coming.buffers] = nbytes
            if operand.suspected:
                suspects = conversion.suspect_bytes(elements)
                tiles[suspects_name(operand, segment), coming.buffers] = suspects
                tiles[ZEROS, 1] = conversion.suspect_bytes(1)
    if operand.scales:
        tiles |= scaled.footprint(problem, operand, rows, sizes)
    elif operand.converted:
        tiles[f"{operand.name} unconverted", conversion.BUFFERS] = unconverted_bytes(problem, sizes)
    if not operand.transposed:
        return tiles
    carried_in, carried = problem.carried(operand)
    longest = max(prod(together(problem, row, schedule.row_bytes)) for row in schedule.rows_of(problem, operand))
    taken = longest * problem.partitions * coming.beside
    if not operand.on_chip:
        tiles[f"{operand.name} rows", schedule.row_buffers] = taken * itemsize(carried_in.transposed_as(carried))
    elif operand.stored != operand.dtype:
        tiles[f"{operand.name} cast", 1] = taken * itemsize(operand.dtype)
    if width := carried_in.bit_bytes(carried):
        tiles["bits", ROW_BUFFERS] = taken * width
    return tiles


def footprint(problem: Problem, schedule: Schedule, sizes: Sizes) -> dict[tuple[str, int], int]:
    """Bytes a partition of all tiles in SBUF: (name, buffers) -> bytes of one buffer."""
    tiles: dict[tuple[str, int], int] = {}
    for operand, rows in ((problem.lhs, schedule.together), (problem.rhs, schedule.rhs.rows)):
        for ring, nbytes in _of_operand(problem, schedule, operand, rows, sizes).items():
            tiles[ring] = max(nbytes, tiles.get(ring, 0))
    summed = schedule.sums is Sums.SBUF
    columns = min(problem.n_tiled if schedule.sums is Sums.PSUM else schedule.rhs.rows, schedule.columns)
    columns = problem.width(columns) * schedule.beside
    tiles |= splitting.sums_footprint(problem, sizes.bank_columns if schedule.swapped else columns)
    if schedule.leaves is Leaves.ROWS:
        tiles["rows", ROW_BUFFERS] = prod(problem.n) * itemsize(problem.out.dtype)
    elif schedule.leaves is Leaves.TILES:
        tiles["result", schedule.result_buffers] = columns * itemsize(problem.out.dtype)
    for at, (array, kept) in enumerate(zip(problem.arrays, schedule.rows, strict=True)):
        if not array.on_chip:
            wide = {Kept.TILE: columns, Kept.BLOCK: max(1, schedule.rhs.rows), Kept.WHOLE: problem.n_tiled}
            taken = wide[kept] if not array.repeats else 1 if kept is Kept.TILE else count_row_tiles(problem, sizes)
            tiles[array_name(at), schedule.array_buffers(problem, kept)] = taken * itemsize(array.loaded)
    if problem.epilogue is not None:
        for slot, at in product(range(TAKING_TURNS), range(problem.epilogue.tiles)):
            tiles[between_name(slot, at), EPILOGUE_BUFFERS] = 4 * min(columns, sizes.bank_columns)
    if schedule.swapped:
        tiles[TRANSPOSED_SUMS, EPILOGUE_BUFFERS] = 4 * min(columns, sizes.bank_columns)
        if problem.rhs.transposed:
            sums = -(-max(1, schedule.rhs.rows) // sizes.columns) * problem.side_by_side * problem.m_tiled
            tiles[splitting.LEFT, splitting.BUFFERS] = itemsize("f32") * min(sizes.bank_columns, sums)
    if problem.bias:
        whole = schedule.bias_whole
        tiles["bias", 1 if whole else 2] = 4 * (prod(problem.n) if whole else sizes.bank_columns)
    if summed:
        tiles["sums", SUM_BUFFERS] = schedule.group * -(-schedule.lhs.rows // sizes.columns) * schedule.rhs.rows * 4
    return {ring: sizes.aligned(nbytes) for ring, nbytes in tiles.items()}
