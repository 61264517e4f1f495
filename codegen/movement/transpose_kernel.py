"""Transposing copies between HBM arrays, exact for every element type.

A DMA moves a transposed array element by element; here rows are loaded in long runs,
Vector transposes 32 x 32 blocks (bits are moved, never computed with), and columns are stored in long
runs. Elements of one or two bytes are transposed four or two at once, as words, and put apart afterwards.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil, prod

from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, Ring, emit_over
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.rules import SQUARE as SQUARE
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.types import itemsize

PAIR = "c64"
"""The type of two words that Vector transposes."""
BLOCK = 512
"""Most rows and columns of a block of a matrix."""


def contiguous_dim(block: Block) -> int:
    """The dim whose neighbours are adjacent in memory, or -1."""
    size = itemsize(block.dtype)
    return next((dim for dim, atom in enumerate(block.dims) if abs(atom.stride) == size and atom.size > 1), -1)


def applies(target: Block, source: Block) -> bool:
    """Whether a copy between two HBM blocks is a large transpose: contiguous along different dims."""
    across, along = contiguous_dim(source), contiguous_dim(target)
    return (
        across >= 0
        and along >= 0
        and across != along
        and target.dtype == source.dtype
        and itemsize(source.dtype) <= itemsize(PAIR)
        and min(target.dims[across].size, target.dims[along].size) >= 4
    )


def estimated_ns(timing: Timing, target: Block, source: Block) -> float:
    """Time of ``copy``."""
    across, along = contiguous_dim(source), contiguous_dim(target)
    others = prod(atom.size for atom in source.dims) / (source.dims[across].size * source.dims[along].size)
    source, target = source.select([along, across]), target.select([across, along])
    return others * _ns(timing, source, _shape(timing, source, target)) + 3 * timing.transfer_latency


def _ns(timing: Timing, source: Block, shape: _Shape) -> float:
    """Time of a matrix: Vector's, a square at a time, or that of its transfers, two under way at a time."""
    (height, width), size = (atom.size for atom in source.dims), itemsize(source.dtype)
    squares = ceil(ceil(width / shape.packed) / SQUARE) * ceil(height / SQUARE)
    vector = squares * timing.engine("transpose", Stream.VECTOR, SQUARE).bound
    if shape.packed > 1:
        vector += ceil(width * height / PARTITIONS) * timing.cycle(Stream.VECTOR)
    read, written = (min(side, BLOCK) * size for side in (width, height))
    nbytes = width * height * size
    dma = timing.transfer(nbytes, read * shape.rows).bound
    dma += timing.transfer(nbytes, written * shape.columns * shape.packed, "write").bound
    transfers = ceil(height / (PARTITIONS * shape.rows)) + ceil(width / (PARTITIONS * shape.columns * shape.packed))
    transfers += width % shape.packed > 0  # a word that is not full
    return max(vector, dma, transfers * timing.transfer_latency / 2)


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a matrix [height, width] lies on the partitions: ``packed`` elements make a word that Vector moves."""

    packed: int
    rows: int
    """Neighbouring rows of the source on a partition, loaded in one run."""
    columns: int
    """Neighbouring words of the source's rows on a partition once transposed, stored in one run."""


def _shape(timing: Timing, source: Block, target: Block) -> _Shape:
    """For ``target[a, b] = source[b, a]``: the one that takes least time."""
    (_, row), size = source.dims, itemsize(source.dtype)
    packed = 4 // size if size < 4 and row.size >= 8 * (4 // size) else 1
    shapes = [_packed(timing, source, target, each) for each in dict.fromkeys((packed, 1))]
    return min(shapes, key=lambda shape: _ns(timing, source, shape))


def _packed(timing: Timing, source: Block, target: Block, packed: int) -> _Shape:
    (rows, row), size = source.dims, itemsize(source.dtype)
    read, written = row.size * size, rows.size * size * packed
    whole = (
        row.size <= BLOCK and rows.stride == row.size * size and rows.size >= 2 * PARTITIONS and row.size % packed == 0
    )
    fits = rows.size <= BLOCK and target.dims[0].stride == rows.size * size and row.size >= 2 * PARTITIONS * packed
    return _Shape(
        packed,
        max(1, min(4, timing.long_run // read)) if whole else 1,
        max(1, min(4, timing.long_run // written)) if fits and row.size % packed == 0 else 1,
    )


def fits(builder: Builder, target: Block, source: Block) -> bool:
    """Whether there is room for what ``copy`` takes."""
    _, _, wanted = _wanted(builder.timing, target, source)
    return sum(map(builder.sizes.aligned, wanted.values())) <= builder.sbuf.largest_gap()


def _wanted(timing: Timing, target: Block, source: Block) -> tuple[tuple[int, int], _Shape, dict[str, int]]:
    """The dims that are contiguous in ``source`` and ``target``, how matrices lie, bytes of one buffer of each ring."""
    across, along = contiguous_dim(source), contiguous_dim(target)
    shape = _shape(timing, source.select([along, across]), target.select([across, along]))
    size, width, height = itemsize(source.dtype), *(min(BLOCK, source.dims[dim].size) for dim in (across, along))
    word = size * shape.packed
    words = ceil(width / shape.packed)
    chunks = ceil(words / PARTITIONS) + 2 * shape.columns
    wanted = {"rows": words * word * shape.rows, "transposed": chunks * height * word}
    if shape.packed > 1:
        wanted["unpacked"] = shape.columns * height * word
    return (across, along), shape, wanted


def copy(builder: Builder, target: Block, source: Block, load: Stream) -> None:
    """Copy with loops over all dims but the two that are contiguous on one side each."""
    if itemsize(source.dtype) == itemsize(PAIR):  # Vector moves pairs of words, whatever number they are
        target, source = replace(target, dtype=PAIR), replace(source, dtype=PAIR)
    (across, along), shape, wanted = _wanted(builder.timing, target, source)
    others = [dim for dim in range(len(source.dims)) if dim not in (across, along)]
    with TilePool(builder, "transpose") as pool, ExitStack() as loops:
        counts = _buffers(builder, wanted)
        builder.sbuf.make_room(sum(counts[name] * builder.sizes.aligned(nbytes) for name, nbytes in wanted.items()))
        rings = {name: pool.ring(nbytes, counts[name], name) for name, nbytes in wanted.items()}
        rings["rows"].phases = 2  # a matrix takes few
        for dim in others:
            index = loops.enter_context(builder.loop(source.dims[dim].size))
            target, source = target.index(dim, index, 1), source.index(dim, index, 1)
        _Turn(builder, rings, shape, load).matrix(target.select([across, along]), source.select([along, across]))


def _buffers(builder: Builder, wanted: dict[str, int]) -> dict[str, int]:
    """How many of each ring: four of rows and two of others where there is room, else fewer of what takes most."""
    counts = {name: 4 if name == "rows" else 2 for name in wanted}
    taken = {name: builder.sizes.aligned(nbytes) for name, nbytes in wanted.items()}
    while sum(counts[name] * taken[name] for name in counts) > builder.sbuf.largest_gap():
        several = [name for name in counts if counts[name] > 1]
        if not several:
            break
        counts[max(several, key=lambda name: counts[name] * taken[name])] -= 1
    return counts


@dataclass(slots=True)
class _Turn:
    """Transposes matrices through the tiles of ``rings``: rows as loaded, transposed, and with words taken apart."""

    builder: Builder
    rings: dict[str, Ring]
    shape: _Shape
    load: Stream

    def matrix(self, target: Block, source: Block) -> None:
        """``target[a, b] = source[b, a]`` in blocks of up to 512 x 512."""
        builder = self.builder
        for b_at, b_size in builder.pieces(source.dims[0].size, BLOCK):
            for a_at, a_size in builder.pieces(source.dims[1].size, BLOCK):
                self.block(
                    target.index(0, a_at, a_size).index(1, b_at, b_size),
                    source.index(0, b_at, b_size).index(1, a_at, a_size),
                )

    def block(self, target: Block, source: Block) -> None:
        """A block that fits the rings: rows are loaded and transposed, then what has become rows is stored."""
        builder, dtype, packed = self.builder, source.dtype, self.shape.packed
        b_size, a_size = (atom.size for atom in source.dims)
        word = itemsize(dtype) * packed
        transposed = Block(
            self.rings["transposed"].alloc, _word(dtype, packed), builder.slot(self.rings["transposed"]), ()
        )
        pieces = self._pieces(-(-a_size // packed), a_size % packed > 0)
        for at, count in builder.pieces(b_size, PARTITIONS * self.shape.rows):
            # a rest is one row a partition
            for start, several, each in builder.tiles(count, self.shape.rows):
                size, partitions = several * each, several if each == self.shape.rows else each
                self.rows(transposed, source.index(0, at + start, size), at + start, partitions, pieces, b_size)
        for piece in pieces:
            with builder.loop(piece.tiles) as index:
                place = (index * piece.columns + piece.slot) * (b_size * word)
                first = index * (piece.partitions * piece.columns) + piece.start
                made = transposed.moved(place).of((Atom(piece.partitions, 1, True),))
                self.store(target, made, first, piece, b_size, a_size)

    def rows(
        self, transposed: Block, part: Block, at: Affine, partitions: int, pieces: list[_Piece], b_size: int
    ) -> None:
        """Load rows of the source, several to a partition where they are short, and turn them."""
        builder, dtype, packed = self.builder, part.dtype, self.shape.packed
        size, a_size, ring = itemsize(dtype), part.dims[1].size, self.rings["rows"]
        word, deep = size * packed, part.dims[0].size // partitions
        pitch = -(-a_size // packed) * word
        tile = Block(ring.alloc, dtype, builder.slot(ring), (Atom(partitions, 1, True),))
        if a_size % packed:  # the rest of the last word is moved, too
            last = tile.moved(pitch - word).of((*tile.dims, Atom(packed, size)))
            builder.memset(last, 0)
        step = part.dims[0].stride
        rows = (Atom(deep, step),) if deep > 1 else ()
        there = part.of((Atom(partitions, step * deep), *rows, part.dims[1]))
        here = tile.of((*tile.dims, *(Atom(atom.size, pitch) for atom in rows), Atom(a_size, size)))
        builder.emit("dma_copy", self.load, [here], [there])
        words = replace(tile, dtype=transposed.dtype)
        with builder.loop(deep) as row:
            for piece in pieces:
                with builder.loop(piece.tiles) as index, builder.loop(piece.columns) as column:
                    first = index * (piece.partitions * piece.columns) + column + piece.start
                    taken = words.moved(row * pitch + first * word)
                    taken = taken.of((*tile.dims, Atom(piece.partitions, piece.columns * word)))
                    slot = (index * piece.columns + column + piece.slot) * b_size
                    place = transposed.moved((slot + at + row) * word)
                    place = place.of((Atom(piece.partitions, 1, True), Atom(partitions, deep * word)))
                    turn_squares(builder, place, taken)

    def store(self, target: Block, made: Block, first: Affine, piece: _Piece, b_size: int, a_size: int) -> None:
        """Store ``piece.columns`` words of each partition, as rows of the target."""
        builder, dtype, packed = self.builder, target.dtype, self.shape.packed
        size, step = itemsize(dtype), target.dims[0].stride
        partitions, deep = made.dims[0], piece.columns * packed
        if packed > 1:
            ring = self.rings["unpacked"]
            apart = Block(ring.alloc, dtype, builder.slot(ring), (partitions,))
            columns = (Atom(piece.columns, b_size * packed * size), Atom(packed, b_size * size), Atom(b_size, size))
            mixed = (Atom(piece.columns, b_size * packed * size), Atom(packed, size), Atom(b_size, packed * size))
            taken = replace(made, dtype=dtype, dims=(partitions, *mixed))
            emit_over(builder, "tensor_copy", Stream.VECTOR, [apart.of((partitions, *columns))], [taken])
            made = apart
        whole = piece.partitions - piece.ends
        for partition, count, rows in ((0, whole, deep), (whole, piece.partitions - whole, a_size % packed)):
            if not count:
                continue
            here = replace(
                made, partition=partition, dims=(Atom(count, 1, True), Atom(rows, b_size * size), Atom(b_size, size))
            )
            there = target.moved((first * packed + partition * deep) * step)
            there = there.of((Atom(count, deep * step), Atom(rows, step), target.dims[1]))
            emit_over(builder, "dma_copy", Stream.DMA_STORE, [there], [here])

    def _pieces(self, words: int, ragged: bool) -> list[_Piece]:
        """How the words of a row are dealt out over the partitions."""
        columns, found, slot = self.shape.columns, [], 0
        for start, tiles, count in self.builder.tiles(words, PARTITIONS * columns):
            partitions, rest = divmod(count, columns)
            if partitions:
                found.append(_Piece(start, tiles, partitions, columns, slot))
                slot += tiles * columns
            if rest:
                found.append(_Piece(start + partitions * columns, 1, rest, 1, slot))
                slot += 1
        last = found.pop()
        if last.tiles > 1 and ragged:  # the last word is not full
            found.append(replace(last, tiles=last.tiles - 1))
            skipped = last.tiles - 1
            start = last.start + skipped * last.partitions * last.columns
            last = replace(last, tiles=1, start=start, slot=last.slot + skipped * last.columns)
        return [*found, replace(last, ends=ragged)]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Words from ``start`` on, ``columns`` neighbours on each of ``partitions``, ``tiles`` times."""

    start: int
    tiles: int
    partitions: int
    columns: int
    slot: int
    """Where they lie once transposed, in columns of the ring."""
    ends: bool = False
    """Whether the last word of the row is among them, and is not full."""


def _word(dtype: str, packed: int) -> str:
    return dtype if packed == 1 else "u32"


def turn_squares(builder: Builder, target: Block, source: Block) -> None:
    """Transpose [b, a] into [a, b], both at most 128 x 128, square by square."""
    for b in range(0, source.dims[0].size, SQUARE):
        for a in range(0, source.dims[1].size, SQUARE):
            height, width = min(SQUARE, source.dims[0].size - b), min(SQUARE, source.dims[1].size - a)
            square = replace(
                source.index(1, Affine(a), width),
                partition=b,
                dims=(Atom(height, 1, True), replace(source.dims[1], size=width)),
            )
            transposed = replace(
                target.index(1, Affine(b), height),
                partition=a,
                dims=(Atom(width, 1, True), replace(target.dims[1], size=height)),
            )
            builder.emit("transpose", Stream.VECTOR, [transposed], [square])
