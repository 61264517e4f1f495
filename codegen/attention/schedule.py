"""Problems and schedules: the scores of a block of rows and a section of columns are in SBUF.

The scores of a block, [rows, columns], leave PSUM a bank at a time; Vector finds the greatest of each row, Scalar makes
exponentials and their sums of them, TensorE transposes these and multiplies them with the values. Where one section has
all columns, keys and values stay in SBUF for all blocks of rows that share them. Else a bunch of blocks goes over one
section after the other, and what it has of earlier ones is scaled whenever the greatest score of a row grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import ceil, prod
from typing import NamedTuple

from neuronx_cc.codegen.dots.schedule import ROW_BUFFERS as BITS_BUFFERS
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

PIECES = 4
"""Times as many rows as there are partitions that are loaded at once to be transposed, at most."""
ROW_BUFFERS = (4, 2)
"""Of rows that are loaded to be transposed: the more, the less DMA waits for TensorE."""
PRODUCT_BUFFERS = 3
"""Of products of keys and queries that Vector makes."""
BROUGHT = (4, 3)
"""Sections of keys, and of values, that are there where columns lie on the partitions."""
TRANSPOSED_BUFFERS = 3
"""Of keys that TensorE has transposed for a block whose columns are on the partitions."""
QUERY_BUFFERS = 2
"""Of queries that are loaded to be transposed."""
UNDER_WAY = 4
"""Steps from the scores of a block to what is made of them."""
STAGED = UNDER_WAY
"""Heads, or sections, whose keys and values are there, where blocks of several are under way at once."""
AHEAD = 2
"""How many times as many, where they are so small that their transfers wait for each other more than they take."""
BUNCHES = (4, 8, 16)
"""Blocks of rows that go over a section while its keys and values are there."""
SECTIONS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Into how many the columns are cut."""
MOST_CHUNKS = 16384
"""Chunks of columns of all blocks of rows that are unrolled, each with products of its own."""
SMALL_TILES = 64
"""Tiles of a few numbers, at most."""
UNROLLED_BLOCKS = 64
"""Blocks of rows that are no loop."""
LEAST_UNROLLED, UNROLLED_CHUNKS = 8, 256
"""Blocks of an iteration of a loop, at least, and chunks of columns of all of them: the engines have to be filled with
work in each iteration, which takes most where blocks are short."""
MULTIPLIED = 2048
"""Products of keys and queries on a partition that an instruction makes, if that many: enough that its start does not
count, few enough that other work comes between.
"""
TAKEN_AT_ONCE = 4
"""Banks of scores that Vector and Scalar go over at once."""
MOST_TOGETHER = 16
"""Heads whose blocks of rows are taken together, at most."""
TOGETHER_TWICE = 8192
"""Columns of heads that are taken together where scores are computed twice: so many hide what waits in between."""
MASK_BUFFERS = 2
"""Of what is read beside the scores."""
SPAN = 4
"""Blocks of rows whose queries are loaded at once."""
SPANS = 3
"""Of these that are there, beside those that sections want again."""
RINGS = 3
"""Of banks of PSUM: what is transposed, scores, and sums of weighted values."""
RAW_BUFFERS = 4
"""Of scores that masks leave something out of, before their greatest are found."""
PARTS = 3
"""Numbers of BF16 of which a sum is the greatest score of a row."""
SCRATCH = 4
"""Tiles that a step and its rule use besides, at most."""


class Leaf(NamedTuple):
    """What is read for each score."""

    size: int
    """Bytes."""
    shared: bool
    """Whether it is the same for all heads of the innermost dim around."""
    repeated: bool
    """Whether it is the same for all rows of a head."""


@dataclass(frozen=True, slots=True)
class Problem:
    """All that plans depend on, but the machine."""

    heads: int
    """Pairs of keys and values."""
    beside: int
    """How many of them the innermost dim around has."""
    around: int
    """Indices of the next dim around."""
    groups: int
    """Queries of each."""
    rows: int
    columns: int
    depth: int
    """Contracted terms of a score."""
    width: int
    """Of the values."""
    dtype: str
    """Of queries and keys on TensorE."""
    weight_dtype: str
    """Of exponentials and values there."""
    flags: tuple[str, ...]
    """``tf32``, where TensorE rounds queries and keys."""
    weight_flags: tuple[str, ...]
    """The same of exponentials and values."""
    steps: int
    """Passes over the scores between the two products, beside those of the softmax and a first factor."""
    leaves: tuple[Leaf, ...]
    """What is read beside the scores."""
    direct: bool
    """Whether the first op on scores reads them in PSUM: queries are multiplied with the factor, if there is one."""
    banded: bool
    """Whether row numbers decide what is computed."""
    computed: float
    """The share of the scores that is."""
    masked: float
    """The share of what is seen in chunks that masks cut."""
    seen: float
    """The share of the scores that is computed where columns ahead of those with weight are left out as well."""
    near: bool
    """Whether kernels apart find queries, keys and values on chip, and leave the scores there; not of few rows."""
    stored: tuple[int, int, int]
    """Bytes of an element of queries, keys and values in HBM."""
    abreast: tuple[bool, ...]
    """Whether rows of several heads lie beside each other there: of queries, keys, values and the result."""
    dense: tuple[bool, ...]
    """Whether rows of one head follow each other there, with nothing between them: of the same."""
    runs: tuple[int, int, int]
    """Elements of a query, of a key and of a value that lie in one run there."""
    pitches: tuple[int, int]
    """Elements there from a key, and from a value, to the next one of its head."""
    moves_values: bool
    """Whether TensorE may transpose 16-bit values as such."""
    room: int
    """Bytes of each partition of SBUF."""
    stays: bool = False
    """Whether the result stays on chip, rows on the partitions."""
    bare: bool = False
    """Whether nothing but masks and a positive factor is between the products, and what masks leave out has no weight:
    exponentials are of the products themselves."""

    @property
    def moves_keys(self) -> bool:
        """Whether TensorE transposes keys as values."""
        return self.moves_values and itemsize(self.dtype) < 4

    @property
    def read(self) -> int:
        """Bytes that are read for each score."""
        return sum(leaf.size for leaf in self.leaves)


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is decided."""

    scores: int
    """Blocks of rows whose scores are under way."""
    staged: int
    """Heads, or sections, whose keys and values are there."""
    section: int
    """Columns whose scores are there at once."""
    bunch: int
    """Blocks of rows that an iteration takes."""
    pack: int = 0
    """Heads, all queries of each, whose few rows are a block with the columns on the partitions; 0: a block has rows
    of one query."""
    contracted: bool = False
    """Whether TensorE multiplies keys with queries there, and transposes the keys; else Vector does."""
    streamed: int = 0
    """Columns of which such a block has keys, or values, at once."""
    together: int = 1
    """Heads whose blocks of rows are taken together, without one of several heads."""
    loaded: int = ROW_BUFFERS[0]
    """Buffers of rows that are loaded to be transposed."""
    twice: bool = False
    """Whether scores are computed again with the columns on the partitions, instead of being transposed."""
    alternating: int = 1
    """Blocks that take turns row by row, so that a partition stores as many neighbours in one run."""

    @property
    def span(self) -> int:
        """Blocks of rows whose queries are loaded at once."""
        return SPAN if self.scores > 1 else 1

    @property
    def heads(self) -> int:
        """How many have their keys and values brought together."""
        return max(self.pack, self.together)

    def sections(self, problem: Problem) -> int:
        """Into how many the columns are cut."""
        return ceil(problem.columns / self.section)

    def line(self, problem: Problem) -> str:
        """For people."""
        p, cut = problem, self.sections(problem) > 1
        return (
            f"attention of {p.heads} x {p.groups} x {p.rows} rows, {p.columns} columns, depth {p.depth}, width "
            f"{p.width}, {p.dtype}: scores of {self.scores} blocks of rows in SBUF, keys and values of {self.staged}"
            + (f", {self.bunch} blocks by sections of {self.section} columns" if cut else "")
            + (f", {self.together} heads together" if self.together > 1 else "")
            + (f", {self.pack} heads to a block, columns on the partitions" if self.pack else "")
            + (", keys transposed" if self.contracted else "")
            + (", computed twice" if self.twice else "")
            + (f", {self.alternating} rows stored side by side" if self.alternating > 1 else "")
            + (f", {self.streamed} of them at once" if self.pack and self.streamed < p.columns else "")
            + (", the result stays on chip" if p.stays else "")
        )


def tiles_of(problem: Problem, schedule: Schedule, sizes: Sizes) -> dict[tuple[str, int], int]:
    """(name, buffers) -> bytes a partition of each buffer, of the tiles that grow with the problem."""
    if schedule.pack:
        return _upright_tiles(problem, schedule, sizes)
    p, size, weight = problem, itemsize(problem.dtype), itemsize(problem.weight_dtype)
    columns, cut, heads = schedule.section, schedule.sections(problem) > 1, schedule.heads
    chunks, deep, beside = ceil(columns / sizes.rows), ceil(p.depth / sizes.rows), schedule.together
    tiles = {
        ("keys", schedule.staged): heads * deep * columns * size,
        ("values", schedule.staged): heads * chunks * (p.width + schedule.twice) * weight,
        ("queries", query_buffers(p, schedule)): beside * deep * spanned(p, schedule, sizes) * size,
        ("transposed", schedule.scores): beside * chunks * sizes.columns * weight,
        ("result", schedule.scores): heads * schedule.alternating * p.width * 4,
    }
    if schedule.twice:
        raw = beside * min(columns, sizes.bank_columns) * 4 * p.banded
        return tiles | {
            ("raw scores", RAW_BUFFERS): raw,
            ("shifts", schedule.scores): beside * sizes.columns * itemsize("bf16"),
        }
    tiles["scores", schedule.scores] = beside * columns * 4
    tiles["exponentials", schedule.scores] = beside * columns * weight
    if cut:
        tiles["running greatest", schedule.bunch + UNDER_WAY] = 4
        tiles["running sums", schedule.bunch] = 4
        tiles["running result", schedule.bunch] = p.width * 4
    return tiles


def _upright_tiles(problem: Problem, schedule: Schedule, sizes: Sizes) -> dict[tuple[str, int], int]:
    p, heads, own, chunks = problem, schedule.pack, problem.groups * problem.rows, ceil(problem.columns / sizes.rows)
    at_once, cut = ceil(schedule.streamed / sizes.rows), schedule.streamed < p.columns
    size, weight, each = itemsize(p.dtype), itemsize(p.weight_dtype), heads * own * chunks
    tiles = {
        ("keys", schedule.staged): heads * at_once * p.depth * size,
        ("values", schedule.staged): heads * at_once * p.width * weight,
        ("sums of sections", schedule.scores): heads * p.width * 4 * cut,
        ("shares", schedule.scores): each * weight,
        ("result", schedule.scores): heads * p.width * 4,
    }
    tiles |= {(name, schedule.scores): each * 4 for name in ("scores", "shifted", "exponentials")}
    if not schedule.contracted:
        products = prod(multiplied_at_once(p, schedule, sizes)) * p.depth * 4
        tiles |= {("products", PRODUCT_BUFFERS): products, ("raw scores", 2): each * 4}
        return tiles | {("queries", QUERY_BUFFERS): heads * own * p.depth * size}
    deep = ceil(p.depth / sizes.rows)
    return tiles | {
        ("transposed keys", TRANSPOSED_BUFFERS): deep * heads * at_once * sizes.rows * size,
        ("rows of queries", QUERY_BUFFERS): p.depth * size,
        ("queries", query_buffers(p, schedule)): deep * spanned(p, schedule, sizes) * size,
    }


def spread_at_once(problem: Problem, schedule: Schedule, sizes: Sizes) -> tuple[int, int]:
    """Heads, and rows of each, whose queries are a bank of PSUM on each partition."""
    own, terms = problem.groups * problem.rows, sizes.bank_columns // problem.depth
    return min(schedule.pack, max(1, terms // own)), min(own, terms)


def multiplied_at_once(problem: Problem, schedule: Schedule, sizes: Sizes) -> tuple[int, int, int]:
    """Heads, rows and chunks of columns whose products Vector makes in one instruction."""
    heads, rows = spread_at_once(problem, schedule, sizes)
    chunks = max(1, problem.columns // sizes.rows)
    each = chunks * problem.depth
    return (
        min(heads, max(1, MULTIPLIED // (rows * each))),
        min(rows, max(1, MULTIPLIED // each)),
        min(chunks, max(1, MULTIPLIED // problem.depth)),
    )


def taken_columns(problem: Problem, sizes: Sizes) -> int:
    """Columns that Vector and Scalar take at once: long enough for few instructions, short enough to alternate; those
    of a bank where other ops follow, which have tiles of their own.
    """
    return sizes.bank_columns * (1 if problem.steps else TAKEN_AT_ONCE)


def at_once(length: int, sizes: Sizes) -> int:
    """Times as many rows of so many elements as there are partitions that are loaded at once to be transposed."""
    return max(1, min(PIECES, sizes.bank_columns // length))


def spanned(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Rows whose queries are loaded at once."""
    if schedule.pack:
        return sizes.columns
    return min(schedule.span, ceil(problem.rows / sizes.columns)) * sizes.columns


def query_buffers(problem: Problem, schedule: Schedule) -> int:
    """How many such queries are there: all those of a bunch, which sections want again."""
    if schedule.pack:
        return schedule.scores
    ahead = SPANS if schedule.scores > 1 else 1
    return ahead + (ceil(schedule.bunch / schedule.span) if schedule.sections(problem) > 1 else 0)


def footprint(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Bytes of each partition of SBUF."""
    p, size, weight = problem, itemsize(problem.dtype), itemsize(problem.weight_dtype)
    planned = sum(count * sizes.aligned(nbytes) for (_, count), nbytes in tiles_of(p, schedule, sizes).items())
    if schedule.pack:
        scores = schedule.pack * p.groups * p.rows * ceil(p.columns / sizes.rows)
        taken = p.depth * scores // (schedule.pack * p.groups * p.rows)
        bits = 8 * BITS_BUFFERS * (taken + sizes.bank_columns) if schedule.contracted and not p.moves_keys else 0
        steps = (2 * p.steps + SCRATCH + 2 * (p.read > 0)) * scores * 4
        return planned + steps + bits + SMALL_TILES * sizes.alignment
    long = schedule.section if p.pitches[1] == 1 else p.width  # rows of values that are transposed
    heads = [schedule.together if beside else 1 for beside in p.abreast]
    lengths = ((heads[0] * p.depth, size), (heads[1] * p.depth, size), (heads[2] * long, weight))
    loaded = schedule.loaded * sum(at_once(length, sizes) * length * each for length, each in lengths)
    exact = p.moves_values and max(size, weight) < 4
    most = max(at_once(length, sizes) * length for length, _ in lengths)
    bits = 0 if exact else 8 * BITS_BUFFERS * (most + sizes.bank_columns)
    pieces = (2 * p.steps + SCRATCH + 2 * (p.read > 0)) * min(p.columns, sizes.bank_columns) * 4 if p.steps else 0
    return planned + loaded + bits + pieces + SMALL_TILES * sizes.alignment


def candidates(problem: Problem, sizes: Sizes) -> Iterator[Schedule]:
    """Schedules that fit."""
    for schedule in schedules(problem, sizes):
        fitting = (each for each, nbytes in by_room(problem, schedule, sizes) if nbytes <= problem.room)
        yield from islice(fitting, 1)


def by_room(problem: Problem, schedule: Schedule, sizes: Sizes) -> list[tuple[Schedule, int]]:
    """A schedule and the bytes of each partition that it takes, and the same with fewer buffers and smaller tiles."""
    forms = [replace(schedule, loaded=loaded) for loaded in ROW_BUFFERS]
    forms += [replace(forms[-1], alternating=1)] * (schedule.alternating > 1)
    return [(form, footprint(problem, form, sizes)) for form in forms]


def schedules(problem: Problem, sizes: Sizes) -> Iterator[Schedule]:
    """Whatever room there is; none for values of more features than a bank of PSUM has sums of."""
    if sizes.banks < RINGS or problem.width > sizes.bank_columns:
        return
    p, blocks = problem, problem.groups * ceil(problem.rows / sizes.columns)
    ahead = 2 if blocks > 2 else STAGED
    heads_there = sorted({2, ahead, AHEAD * ahead})
    whole = ((2, ahead), (2, AHEAD * ahead), (1, 1)) if p.heads > 1 else ((2, 1), (1, 1))
    bunch = _bunch(p, 1, sizes)
    found = [Schedule(scores, staged, p.columns, bunch) for scores, staged in whole]
    for count in SECTIONS:
        section = sizes.bank_columns * ceil(p.columns / (count * sizes.bank_columns))
        if section < p.columns and found[-1].section != section:
            for bunch in BUNCHES:
                found += [
                    Schedule(2, 2 if min(bunch, blocks) > 2 else STAGED, section, bunch),
                    Schedule(1, 1, section, bunch),
                ]
    most = min(p.beside, MOST_TOGETHER) if p.columns <= sizes.bank_columns else 1  # more fill banks by themselves
    if p.bare and p.width < sizes.bank_columns:
        twice = [each for each in found if each.section == p.columns]
        twice += [Schedule(2, 1, p.columns, bunch)] * (p.heads > 1)
        twice += _together(p, sizes, min(p.beside, MOST_TOGETHER, max(1, TOGETHER_TWICE // p.columns)), heads_there)
        again = [replace(each, twice=True) for each in twice]
    else:
        again = []
    found += [*_together(p, sizes, most, heads_there), *again]
    own = p.groups * p.rows
    packs = [heads for heads in range(1, p.beside + 1) if not p.beside % heads]
    packs += [p.beside * several for several in range(2, p.around + 1) if not p.around % several]
    packs = [heads for heads in packs if heads * own <= sizes.columns]
    if not p.banded and not p.stays:
        for streamed in _streams(p, sizes):
            upright = [
                Schedule(2, staged, p.columns, bunch, pack, streamed=streamed)
                for pack, staged in product(packs, BROUGHT)
            ]
            found += upright if p.depth <= sizes.bank_columns else []
            found += [replace(each, contracted=True) for each in upright]
    for schedule in found:
        written = blocks if p.banded else min(blocks, schedule.bunch)
        if written * ceil(p.columns / sizes.rows) <= MOST_CHUNKS:
            yield replace(schedule, alternating=_alternating(p, schedule, sizes))


def _alternating(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Blocks whose rows may alternate: where no mask goes by their numbers, and neighbours are stored in one run."""
    all_heads = problem.abreast[3] and schedule.together == problem.beside
    near = problem.dense[3] or all_heads
    if not near or problem.banded or problem.stays or schedule.pack:
        return 1
    return min(schedule.span, ceil(problem.rows / sizes.columns))


def _bunch(problem: Problem, together: int, sizes: Sizes) -> int:
    """Blocks of rows of an iteration, for ``together`` heads: of as few iterations as there can be, equally many."""
    blocks, chunks = ceil(problem.rows / sizes.columns), together * ceil(problem.columns / sizes.rows)
    return ceil(blocks / ceil(blocks / _blocks_at_once(chunks)))


def _blocks_at_once(chunks: int) -> int:
    """Blocks of rows, of so many chunks of columns, that an iteration takes, at most."""
    return min(UNROLLED_BLOCKS, max(LEAST_UNROLLED, UNROLLED_CHUNKS // chunks))


def _together(problem: Problem, sizes: Sizes, most: int, heads_there: Sequence[int]) -> list[Schedule]:
    """Up to ``most`` heads together, equally many each time; ``heads_there``: of how many keys and values are there."""
    beside = [heads for heads in range(2, most + 1) if not problem.beside % heads]
    return [
        Schedule(2, staged, problem.columns, _bunch(problem, heads, sizes), together=heads)
        for heads, staged in product(beside, heads_there)
    ]


def _streams(problem: Problem, sizes: Sizes) -> list[int]:
    """Columns whose keys come at once: all, or whole chunks in 2, 4, ... sections of as many."""
    found = [problem.columns]
    while found[-1] > sizes.rows:
        found.append(sizes.rows * ceil(problem.columns / (2 ** len(found) * sizes.rows)))
    return found


def heads_at_once(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Heads, or as many as are taken together or are a block, whose blocks follow each other in straight-line code."""
    if schedule.pack:
        return max(1, UNROLLED_BLOCKS // schedule.pack)
    written = problem.groups * ceil(problem.rows / sizes.columns) * schedule.sections(problem)
    return max(1, UNROLLED_BLOCKS // (written * schedule.together))


def unrolled(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Blocks of rows, or sections of them, that follow each other in straight-line code."""
    blocks, sections = ceil(problem.rows / sizes.columns), schedule.sections(problem)
    if problem.groups * blocks * sections <= UNROLLED_BLOCKS:
        return heads_at_once(problem, schedule, sizes) * problem.groups * blocks * sections
    if problem.banded or blocks * sections <= UNROLLED_BLOCKS:
        return blocks * sections * groups_at_once(problem, schedule, sizes)
    return min(blocks, schedule.bunch) * sections


def groups_at_once(problem: Problem, schedule: Schedule, sizes: Sizes) -> int:
    """Queries of a head whose blocks follow each other in straight-line code."""
    written = ceil(problem.rows / sizes.columns) * schedule.sections(problem)
    return max(1, _blocks_at_once(schedule.together * ceil(schedule.section / sizes.rows)) // written)
