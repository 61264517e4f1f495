"""Concatenations of short rows, such as stacked arrays: rows are put together on chip, and stored whole.

The DMA would write each short row as a transfer of its own. Every array is a matrix here, whose rows are what lies side
by side in the result. Rows of one matrix that lie a step apart are loaded with what lies between, once for all parts
that have some of it: columns of an array, for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block, emit_over
from neuronx_cc.codegen.emission.pace import tile_columns
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.movement.relayout_plan import GAIN, LEAST_ELEMENTS, direct_ns, is_long
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Stage, Timing, total
from neuronx_cc.ir.types import itemsize

BUFFERS = 2
"""Tiles under way between two stages."""
MOST_OPERANDS = 64
SHARE = (2, 11)
"""Of a partition of SBUF: most of the rows on it, assembled."""
ROOM = (9, 10)
"""Of the largest gap in SBUF, for all tiles."""


def applies(context: Context, op: hlo.ConcatenateOp) -> bool:
    """Whether assembling the result of ``op`` on chip is quicker than a DMA for each operand."""
    rows, widths = _matrices(op)
    if op.shape.size < LEAST_ELEMENTS or rows < 2 or len(widths) > MOST_OPERANDS:
        return False
    timing, sources = context.timing, _sources(_parts(context, op, rows, widths))
    room = _room(context)
    if _nbytes(sources, sum(widths), 1) > room:
        return False
    deep = _depth(timing, rows, sources, widths, room)
    direct = sum(direct_ns(timing, rows * width, width) for width in widths if width)
    loaded = sum(direct_ns(timing, rows * source.apart, source.loaded(deep)) for source in sources)
    return GAIN * (loaded + direct_ns(timing, rows * sum(widths), deep * sum(widths))) < direct


def lower(context: Context, op: hlo.ConcatenateOp, target: View) -> None:
    """Write ``op`` to the dense HBM array ``target``; ``applies`` must hold."""
    builder, dtype = context.builder, op.shape.dtype
    size = itemsize(dtype)
    dtype, step = ("u32", 4) if size > 4 else (dtype, size)
    rows, widths = _matrices(op)
    pitch = sum(widths)
    parts = [_made(context, part) for part in _parts(context, op, rows, widths)]
    sources = _sources(parts)
    deep = _depth(context.timing, rows, sources, widths, _room(context))
    pool = TilePool(builder, "concatenate")
    rings = [pool.ring(source.loaded(deep), BUFFERS, "rows") for source in sources]
    ring = pool.ring(deep * pitch, BUFFERS, "assembled")

    def tile(first: Affine, partitions: int, deep: int) -> None:
        made = Block(ring.alloc, dtype, builder.slot(ring), (Atom(partitions, 1, True),))
        for source, rotating in zip(sources, rings, strict=True):
            loaded = Block(rotating.alloc, dtype, builder.slot(rotating), made.dims)
            run = Atom(source.loaded(deep) // step, step)
            there = Block(source.view.alloc, dtype, first * source.apart + source.start, ())
            there = replace(there, dims=(Atom(partitions, source.apart * deep), run))
            copy(builder, loaded.of((*made.dims, run)), there, Stream.DMA_LOAD)
            for part in source.parts:
                row = Atom(part.width // step, step)
                taken = loaded.moved(part.view.start.const - source.start.const)
                taken = taken.of((*made.dims, Atom(deep, source.apart), row))
                place = made.moved(part.first).of((*made.dims, Atom(deep, pitch), row))
                emit_over(builder, "tensor_copy", Stream.VECTOR, [place], [taken])
        run = Atom(deep * pitch // step, step)
        whole = Block(target.alloc, dtype, first * pitch + target.start, (Atom(partitions, deep * pitch), run))
        copy(builder, whole, made.of((*made.dims, run)), Stream.DMA_STORE)

    for at, count in builder.pieces(rows, PARTITIONS * deep):
        for start, partitions, each in builder.tiles(count, deep):
            tile(at + start, partitions, each)
    pool.free()


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one operand."""

    value: hlo.SSAValue
    view: View
    """In HBM, as they lie; on chip, or as they do not lie in steps, before they are copied."""
    apart: int
    """Bytes from row to row; 0 for one that has to be copied."""
    width: int
    """Bytes of a row."""
    first: int
    """Where its rows begin in those of the result, in bytes."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Parts whose rows lie in the same rows of memory."""

    parts: tuple[_Part, ...]

    @property
    def view(self) -> View:
        return self.parts[0].view

    @property
    def apart(self) -> int:
        return self.parts[0].apart or self.parts[0].width

    @property
    def start(self) -> Affine:
        """Of the part that begins first."""
        return self.parts[0].view.start

    @property
    def extent(self) -> int:
        """Bytes of a row from the first part to the last one's end."""
        return max(part.view.start.const + part.width for part in self.parts) - self.start.const

    def loaded(self, deep: int) -> int:
        """Bytes of ``deep`` rows with what lies between."""
        return (deep - 1) * self.apart + (self.extent if self.parts[0].apart else self.parts[0].width)


def _matrices(op: hlo.ConcatenateOp) -> tuple[int, list[int]]:
    """Rows of all, and bytes of a row of each operand."""
    axis, size = op.dimension.data, itemsize(op.shape.dtype)
    return prod(op.shape.dims[:axis]), [prod(hlo.shape_of(operand).dims[axis:]) * size for operand in op.args]


def _parts(context: Context, op: hlo.ConcatenateOp, rows: int, widths: Sequence[int]) -> list[_Part]:
    """The operands that have elements, as they lie in HBM where rows are not far apart for all that share them."""
    parts, first = [], 0
    for value, width in zip(op.args, widths, strict=True):
        if width:
            view, apart = _lies(context, value, rows, width)
            parts.append(_Part(value, view, apart, width, first))
        first += width
    shared = Counter(_rows_of(part) for part in parts)

    def far(part: _Part) -> bool:
        return part.apart > part.width and is_long(context.timing, ceil(part.apart / shared[_rows_of(part)]))

    return [replace(part, view=context.views(part.value)[0], apart=0) if far(part) else part for part in parts]


def _rows_of(part: _Part) -> object:
    """Equal for parts that may lie in the same rows of memory."""
    return part.view.alloc, part.view.start.terms, part.apart


def _lies(context: Context, value: hlo.SSAValue, rows: int, width: int) -> tuple[View, int]:
    """``value`` in HBM as rows, and how many bytes from one to the next; 0 where it does not lie so."""
    views, size = context.views(value), itemsize(hlo.shape_of(value).dtype)
    for view in [view for view in views if not view.in_sbuf]:
        matrix = view.reshape((rows, width // size))
        if matrix is None or any(len(atoms) > 1 for atoms in matrix.dims):
            continue
        apart, step = (atoms[0].stride if atoms else 0 for atoms in matrix.dims)
        if (step == size or width == size) and width <= apart:
            return matrix, apart
    return views[0], 0


def _made(context: Context, part: _Part) -> _Part:
    """``part`` as it lies in HBM, dense if it does not lie in steps yet."""
    return part if part.apart else replace(part, view=context.dense(part.value), apart=part.width)


def _sources(parts: Sequence[_Part]) -> list[_Source]:
    """Parts with others in the same rows of one array, in the order in which they lie."""
    found: dict[object, list[_Part]] = {}
    for part in sorted(parts, key=lambda part: part.view.start.const):
        alone = not part.apart or part.apart == part.width
        key = part.first if alone else _rows_of(part)
        others = found.setdefault(key, [])
        if others and part.view.start.const + part.width - others[0].view.start.const > part.apart:
            key = (key, part.first)
            others = found.setdefault(key, [])
        others.append(part)
    return [_Source(tuple(each)) for each in found.values()]


def _room(context: Context) -> int:
    share, whole = ROOM
    return context.builder.sbuf.largest_gap() * share // whole


def _nbytes(sources: Sequence[_Source], pitch: int, deep: int) -> int:
    """Of a partition, for tiles of ``deep`` rows."""
    return BUFFERS * (sum(source.loaded(deep) for source in sources) + deep * pitch)


def _depth(timing: Timing, rows: int, sources: Sequence[_Source], widths: Sequence[int], room: int) -> int:
    """Rows on a partition: as many as take least time from the loads to the stores, of those that fit ``room``."""
    pitch, parts = sum(widths), [width for width in widths if width]

    def stages(deep: int) -> list[Stage]:
        loads = [source.loaded(deep) for source in sources]
        read = total(timing.transfer(PARTITIONS * nbytes, nbytes) for nbytes in loads)
        copied = total(timing.engine("tensor_copy", Stream.VECTOR, ceil(deep * width / 4)) for width in parts)
        written = timing.moved(PARTITIONS * deep * pitch, deep * pitch, "write")
        return [Stage(read, timing.transfer_latency), timing.done(copied, Stream.VECTOR), written]

    one = _nbytes(sources, pitch, 1)
    more = _nbytes(sources, pitch, 2) - one
    most = min(timing.sizes.sbuf_share(SHARE) // pitch, rows // PARTITIONS, 1 + (room - one) // more)
    return tile_columns(timing, max(1, rows // PARTITIONS), max(1, most), BUFFERS, stages)
