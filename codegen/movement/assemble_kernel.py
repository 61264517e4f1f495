"""Concatenations of short rows, such as stacked arrays: rows are put together on chip, and stored whole.

The DMA would write each short row as a transfer of its own. Every array is a matrix here, whose
rows are what lies side by side in the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring, emit_over
from neuronx_cc.codegen.emission.pace import tile_columns
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.codegen.movement.relayout_plan import GAIN, LEAST_ELEMENTS, direct_ns, is_long
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Stage, Timing
from neuronx_cc.ir.types import itemsize

BUFFERS = 2
"""Tiles under way between two stages."""
MOST_OPERANDS = 64
SHARE = (1, 11)
"""Of a partition of SBUF: most of the rows on it, assembled."""


def applies(context: Context, op: hlo.ConcatenateOp) -> bool:
    """Whether assembling the result of ``op`` on chip is quicker than a DMA for each operand."""
    dims, axis, size = op.shape.dims, op.dimension.data, itemsize(op.shape.dtype)
    rows, unit = prod(dims[:axis]), prod(dims[axis + 1 :]) * size
    widths = [hlo.shape_of(operand).dims[axis] * unit for operand in op.args]
    if op.shape.size < LEAST_ELEMENTS or rows < 2 or len(widths) > MOST_OPERANDS:
        return False
    timing = context.timing
    deep = _depth(timing, rows, sum(widths))
    room = context.builder.sbuf.largest_gap() * 9 // 10
    if 2 * deep * sum(width + max(width, timing.long_run // deep) for width in widths) > room:
        return False
    runs = [width for width in widths if width]
    direct = sum(direct_ns(timing, rows * run, run) for run in runs)
    assembled = sum(direct_ns(timing, rows * run, deep * run) for run in (*runs, sum(runs)))
    return GAIN * assembled < direct


def lower(context: Context, op: hlo.ConcatenateOp, target: View) -> None:
    """Write ``op`` to the dense HBM array ``target``; ``applies`` must hold."""
    builder, dtype, axis = context.builder, op.shape.dtype, op.dimension.data
    size = itemsize(dtype)
    dtype, step = ("u32", 4) if size > 4 else (dtype, size)
    rows, pitch = prod(op.shape.dims[:axis]), prod(op.shape.dims[axis:]) * size
    deep = _depth(context.timing, rows, pitch)
    pool, parts, start = TilePool(builder, "concatenate"), [], 0
    for operand in op.args:
        width = prod(hlo.shape_of(operand).dims[axis:]) * size
        if width:
            matrix, apart = _matrix(context, operand, rows, width)
            loaded = (deep - 1) * apart + width
            parts.append(_Part(matrix, apart, width, start, pool.ring(loaded, 2, "rows")))
        start += width
    ring = pool.ring(deep * pitch, 2, "assembled")

    def tile(first: Affine, partitions: int, deep: int) -> None:
        made = Block(ring.alloc, dtype, builder.slot(ring), (Atom(partitions, 1, True),))
        for part in parts:
            loaded = Block(part.ring.alloc, dtype, builder.slot(part.ring), made.dims)
            run = Atom(((deep - 1) * part.apart + part.width) // step, step)
            there = Block(part.matrix.alloc, dtype, first * part.apart + part.matrix.start, ())
            there = replace(there, dims=(Atom(partitions, part.apart * deep), run))
            copy(builder, loaded.of((*made.dims, run)), there, Stream.DMA_LOAD)
            row = Atom(part.width // step, step)
            taken = loaded.of((*made.dims, Atom(deep, part.apart), row))
            place = made.moved(part.start).of((*made.dims, Atom(deep, pitch), row))
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
    matrix: View
    apart: int
    """Bytes from row to row."""
    width: int
    """Bytes of a row."""
    start: int
    """Where its rows begin in those of the result, in bytes."""
    ring: Ring


def _depth(timing: Timing, rows: int, pitch: int) -> int:
    """Rows on a partition: as many as take least time from the loads to the stores."""

    def stages(deep: int) -> list[Stage]:
        nbytes = deep * pitch
        copied = timing.engine("tensor_copy", Stream.VECTOR, ceil(nbytes / 4))
        read, written = (timing.moved(PARTITIONS * nbytes, nbytes, way) for way in ("read", "write"))
        return [read, timing.done(copied, Stream.VECTOR), written]

    most = min(timing.sizes.sbuf_share(SHARE) // pitch, rows // PARTITIONS)
    return tile_columns(timing, max(1, rows // PARTITIONS), max(1, most), BUFFERS, stages)


def _matrix(context: Context, value: hlo.SSAValue, rows: int, width: int) -> tuple[View, int]:
    """``value`` in HBM as rows that lie not far apart, and how many bytes that is."""
    size = itemsize(hlo.shape_of(value).dtype)
    for view in [view for view in context.views(value) if not view.in_sbuf]:
        matrix = view.reshape((rows, width // size))
        if matrix is None or any(len(atoms) > 1 for atoms in matrix.dims):
            continue
        apart, step = (atoms[0].stride if atoms else 0 for atoms in matrix.dims)
        if (
            (step == size or width == size)
            and width <= apart
            and (width == apart or not is_long(context.timing, apart))
        ):
            return matrix, apart
    return context.dense(value), width
