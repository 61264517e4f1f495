"""Copies between views by DMA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf, prod

from neuronx_cc.codegen.emission.builder import Block, Builder, emit_over
from neuronx_cc.codegen.emission.views import Atom, Nested, View, align
from neuronx_cc.codegen.movement import crossed, relayout_kernel, relayout_plan, transpose_kernel
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.rules import MAX_COUNT
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.small_types import COMPUTED
from neuronx_cc.ir.types import itemsize

DETOUR = 6
"""How many times as long as in runs a copy may take before what lies on chip goes through HBM."""


def blocks_of(views: Sequence[View], shape: Sequence[int]) -> list[Block] | None:
    """Blocks over the common dims of ``views``, partition dim first; None when they have no common dims."""
    space = align(views, shape)
    if space is None:
        return None
    partition_dims = {dim for atoms in space.atoms for dim, atom in enumerate(atoms) if atom.partition}
    if len(partition_dims) > 1:
        return None
    first = partition_dims.pop() if partition_dims else None
    order = [dim for dim in range(len(space.sizes)) if dim != first]
    blocks = []
    for view, atoms in zip(views, space.atoms, strict=True):
        on_chip = view.alloc.space is not Space.HBM
        head = atoms[first] if first is not None else Atom(1, 1 if on_chip else 0, on_chip)
        if on_chip and not head.partition:
            return None
        blocks.append(Block(view.alloc, view.dtype, view.start, (head, *(atoms[dim] for dim in order))))
    return blocks


def is_scattered(timing: Timing, target: Block, source: Block, alone: bool = False) -> bool:
    """Whether neighbours in ``target`` lie apart, so that a large copy takes several times as long as one in runs.

    What lies on chip is stored as it lies then, and put into order between two arrays in HBM. ``alone``: by one DMA.
    """
    if target.alloc.space is not Space.HBM or _in_runs(timing, target, source):
        return False
    total = prod(atom.size for atom in target.dims)
    if len(target.dims) < 2:
        return False
    ordered, room = relayout_plan.ordered(target, source), relayout_plan.most_room(timing.sizes)
    relayout = None if alone else relayout_plan.plan(timing, *ordered, room)
    ns = relayout.ns if relayout is not None else _direct_ns(timing, target, source)
    ns = min(ns, crossed.nanoseconds(timing, target, source) or ns)
    return ns > DETOUR * relayout_plan.direct_ns(timing, total * itemsize(target.dtype), timing.long_run)


def loaded_ns(timing: Timing, target: View, source: View) -> float:
    """Time of one DMA from HBM; infinite where none expresses it."""
    blocks = blocks_of([target, source], source.shape)
    return inf if blocks is None else _direct_ns(timing, *reversed(blocks))  # runs are the same either way


def transfer(builder: Builder, target: View, source: View, stream: Stream, force: bool = False) -> bool:
    """Copy ``source`` to ``target`` (same logical shape).

    False, and nothing emitted, when no DMA expresses it, or (unless ``force``) when it would scatter what lies on chip.
    """
    blocks = blocks_of([target, source], source.shape)
    if blocks is None or (source.in_sbuf and not force and is_scattered(builder.timing, blocks[0], blocks[1])):
        return False
    reordered(builder, blocks[0], blocks[1], stream)
    return True


def reordered(builder: Builder, target: Block, source: Block, stream: Stream, load: Stream = Stream.DMA_LOAD) -> None:
    """Copy by DMA on ``stream``, or through SBUF, where elements are put in order, when that is quicker."""
    target, source = _of_core(target, source)
    timing = builder.timing
    if target.alloc.space is not Space.HBM or _in_runs(timing, target, source):
        copy(builder, target, source, stream)
        return
    least, relayout, squares = _quickest(builder, target, source)
    if is_crossed(builder, target, source, least):
        crossed.copy(builder, target, source, stream)
    elif squares:
        transpose_kernel.copy(builder, target, source, load)
    elif relayout is not None:
        relayout_kernel.copy(
            builder, *relayout_plan.ordered(target, source), relayout, load=load, store=Stream.DMA_STORE
        )
    else:
        copy(builder, *relayout_plan.ordered(target, source), stream)


def _quickest(builder: Builder, target: Block, source: Block) -> tuple[float, relayout_plan.Relayout | None, bool]:
    """(nanoseconds, how elements are put in order, whether by squares instead) of a copy into HBM."""
    timing, ordered = builder.timing, relayout_plan.ordered(target, source)
    relayout = relayout_plan.plan(timing, *ordered, room(builder))
    least = relayout.ns if relayout is not None else _direct_ns(builder.timing, target, source)
    far = source.alloc.space is Space.HBM
    if far and transpose_kernel.applies(target, source) and transpose_kernel.fits(builder, target, source):
        squares = transpose_kernel.estimated_ns(timing, target, source)
        if squares < least:
            return squares, relayout, True
    return least, relayout, False


def nanoseconds(builder: Builder, target: View, source: View) -> float:
    """Time of a copy between two views in HBM; infinite where no DMA expresses it."""
    blocks = blocks_of([target, source], source.shape)
    return inf if blocks is None else _quickest(builder, *blocks)[0]


def stored_ns(builder: Builder, target: View, source: View) -> float:
    """Time of ``put`` of what lies on chip; infinite where no DMA expresses it."""
    blocks = blocks_of([target, source], source.shape)
    if blocks is None:
        return inf
    there, here = blocks
    least = _direct_ns(builder.timing, there, here)
    ns = crossed.nanoseconds(builder.timing, there, here) if is_crossed(builder, there, here, least) else None
    return least if ns is None else ns


def put(builder: Builder, target: Block, source: Block, stream: Stream) -> None:
    """Copy by one DMA, what lies on chip put in order ahead of it where that is quicker."""
    target, source = _of_core(target, source)
    if is_crossed(builder, target, source, _direct_ns(builder.timing, target, source)):
        crossed.copy(builder, target, source, stream)
    else:
        copy(builder, *relayout_plan.ordered(target, source), stream)


def _of_core(target: Block, source: Block) -> tuple[Block, Block]:
    """Both as bytes, where engines have no such elements."""
    if target.dtype == source.dtype in COMPUTED:
        return replace(target, dtype="u8"), replace(source, dtype="u8")
    return target, source


def _direct_ns(timing: Timing, target: Block, source: Block) -> float:
    """Time of one DMA."""
    nbytes, ordered = (
        prod(atom.size for atom in target.dims) * itemsize(target.dtype),
        relayout_plan.ordered(target, source),
    )
    run = relayout_plan.direct_run(relayout_plan.dims_of(*ordered), itemsize(ordered[0].dtype))
    return relayout_plan.direct_ns(timing, nbytes, run)


def is_crossed(builder: Builder, target: Block, source: Block, least: float) -> bool:
    """Whether Vector puts what lies on chip in order ahead of the DMA, in less than ``least`` nanoseconds."""
    ns = crossed.nanoseconds(builder.timing, target, source)
    return ns is not None and ns < least and crossed.nbytes(target, source) <= builder.sbuf.largest_gap()


def room(builder: Builder) -> int:
    """Bytes a partition for the tiles of a copy."""
    return min(relayout_plan.most_room(builder.sizes), builder.sbuf.largest_gap() * 9 // 10)


def _in_runs(timing: Timing, target: Block, source: Block) -> bool:
    """Whether the last dim is contiguous on both sides, and long."""
    size = itemsize(target.dtype)
    if not target.dims or target.dims[-1].partition or source.dims[-1].partition:
        return False
    long = relayout_plan.is_long(timing, target.dims[-1].size * size)
    return long and target.dims[-1].stride == source.dims[-1].stride == size


def copy(builder: Builder, target: Block, source: Block, stream: Stream) -> None:
    """One DMA, or several: of each group of rows, and in a loop where a dim is longer than an access pattern counts."""
    if any(isinstance(block.dims[0], Nested) for block in (target, source)):
        for there, here in zip(*_groups(target, source), strict=True):
            copy(builder, there, here, stream)
        return
    for dim, atom in enumerate(target.dims):
        if atom.size > MAX_COUNT:
            inner = next((size for size in range(32768, 511, -1) if atom.size % size == 0), 0)
            if inner:
                copy(builder, _split(target, dim, inner), _split(source, dim, inner), stream)
                return
            for at, size in builder.pieces(atom.size, 32768):
                copy(builder, target.index(dim, at, size), source.index(dim, at, size), stream)
            return
    if not target.dims[0].partition and not source.dims[0].partition:
        target, source = _spread(target, source)
    emit_over(builder, "dma_copy", stream, [target], [source])


def _groups(*blocks: Block) -> Iterator[list[Block]]:
    """The groups of rows of each of ``blocks``, of which the one in HBM has some."""
    groups, rows = next(atom.levels for atom in (block.dims[0] for block in blocks) if isinstance(atom, Nested))
    for block in blocks:
        if isinstance(block.dims[0], Nested):
            one = block.of((rows, *block.dims[1:]))
            yield [one.moved(group * groups.stride) for group in range(groups.size)]
        else:
            assert block.dims[0].partition, "groups of rows go to partitions"
            firsts = (block.partition + group * rows.size for group in range(groups.size))
            yield [block.on_partitions(rows.size, first) for first in firsts]


def _split(block: Block, dim: int, inner: int) -> Block:
    atom = block.dims[dim]
    pair = (Atom(atom.size // inner, atom.stride * inner), Atom(inner, atom.stride))
    return Block(
        block.alloc, block.dtype, block.offset, (*block.dims[:dim], *pair, *block.dims[dim + 1 :]), block.partition
    )


def _spread(target: Block, source: Block) -> tuple[Block, Block]:
    """Drop a leading dim of size 1 between two HBM blocks, so that the first dim spreads over the DMA engines."""
    if len(target.dims) > 1 and target.dims[0].size == 1:
        keep = range(1, len(target.dims))
        return target.select(keep), source.select(keep)
    return target, source
