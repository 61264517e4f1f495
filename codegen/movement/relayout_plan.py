"""How a copy into HBM is put into order on chip, where a DMA alone would move it in short runs.

Input: two blocks over common dims, the target in HBM. Output: a ``Relayout``, which ``relayout_kernel`` carries out, or
None where the DMA alone is about as quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.isa.limits import PARTITIONS
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.timing import Tile, Timing
from neuronx_cc.ir.machine import Sizes
from neuronx_cc.ir.types import itemsize

LEAST_ELEMENTS = 2048
"""Below this a DMA that moves element by element is as quick."""
RUN_SHARES = ((1, 8), (1, 2), (2, 1), (8, 1))
"""Runs in HBM that are tried: so many times (first over second) one that takes as long as all shorter ones."""
SHARE = (8, 11)
"""Of a partition of SBUF: most that the tiles of a copy take."""
MOST_GROUPS = 16
"""Transfers that fill a tile."""
GAIN = 1.5
"""How many times quicker a relayout must be than the DMA alone."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A common dim: its size and its strides in bytes, the source's of either sign or 0 where it repeats."""

    size: int
    target: int
    source: int


@dataclass(frozen=True, slots=True)
class Copied:
    """What is copied."""

    dims: tuple[Dim, ...]
    size: int
    """Bytes of an element."""
    partitions: int
    """On which the source lies; 0 for HBM."""


@dataclass(frozen=True, slots=True)
class Relayout:
    """Tiles of a copy: ``pieces[d]`` elements of dim ``d`` lie in each partition."""

    pieces: tuple[int, ...]
    partition: int
    """The dim whose pieces lie on the partitions; -1 when the source is on chip, or the tile has one partition."""
    group: int
    """A dim of which ``groups`` pieces share the partitions; -1 without."""
    groups: int
    buffers: int
    ns: float


def ordered(target: Block, source: Block) -> tuple[Block, Block]:
    """The same copy with the target's dims from the largest stride to the smallest, all positive, and merged.

    A partition dim of the source stays first. Elements of more than four bytes become words.
    """
    if (size := itemsize(target.dtype)) > 4:
        words = (Atom(size // 4, 4),)
        target = Block(target.alloc, "u32", target.offset, target.dims + words, target.partition)
        source = Block(source.alloc, "u32", source.offset, source.dims + words, source.partition)
    for dim, atom in enumerate(target.dims):
        if atom.stride < 0 and not source.dims[dim].partition:
            target, source = (block.backwards([dim]) for block in (target, source))
    free = [dim for dim, atom in enumerate(source.dims) if not atom.partition and atom.size > 1]
    order = sorted(free, key=lambda dim: -target.dims[dim].stride)
    head = [dim for dim, atom in enumerate(source.dims) if atom.partition]
    order = order if order or head else [*range(len(source.dims))][:1]
    merged: list[tuple[Atom, Atom]] = []
    for dim in order:
        inner, other = target.dims[dim], source.dims[dim]
        if merged and all(a.stride == b.stride * b.size for a, b in zip(merged[-1], (inner, other), strict=True)):
            count = merged.pop()[0].size * inner.size
            inner, other = Atom(count, inner.stride), Atom(count, other.stride)
        merged.append((inner, other))
    targets, sources = (tuple(pair[side] for pair in merged) for side in (0, 1))
    return (
        target.of((*(target.dims[dim] for dim in head), *targets)),
        source.of((*(source.dims[dim] for dim in head), *sources)),
    )


def dims_of(target: Block, source: Block) -> tuple[Dim, ...]:
    """The free dims of two ordered blocks."""
    pairs = zip(target.dims, source.dims, strict=True)
    return tuple(Dim(a.size, a.stride, b.stride) for a, b in pairs if not b.partition)


def most_room(sizes: Sizes) -> int:
    """Bytes a partition that the tiles of a copy take at most."""
    return sizes.sbuf_share(SHARE)


def is_long(timing: Timing, run: int) -> bool:
    """Whether a DMA moves runs of so many bytes well: at half of its rate at the least."""
    return 2 * run >= timing.long_run


def plan(
    timing: Timing, target: Block, source: Block, room: int, blank: bool = False, cut_ns: float = 0.0
) -> Relayout | None:
    """The quickest relayout of two ordered blocks in ``room`` bytes a partition; None where a DMA will do.

    ``blank``: what lies between the target's elements may be written, too. ``cut_ns``: what it costs besides to cut the
    last dim.
    """
    partitions = source.dims[0].size if source.dims and source.dims[0].partition else 0
    dims = dims_of(target, source)
    total = prod(dim.size for dim in dims) * max(partitions, 1)
    if target.dtype != source.dtype or target.alloc.space is not Space.HBM or total < LEAST_ELEMENTS or not dims:
        return None
    size = itemsize(target.dtype)
    run = direct_run(dims, size)
    if is_long(timing, run) or any(dim.target == 0 for dim in dims):
        return None
    best = _best(timing, Copied(dims, size, partitions), room, blank, cut_ns)
    return best if best is not None and best.ns * GAIN < direct_ns(timing, total * size, run) else None


def direct_run(dims: Sequence[Dim], size: int) -> int:
    """Bytes of the runs that are contiguous on both sides."""
    run = size
    for dim in reversed(dims):
        if dim.target != run or dim.source != run:
            break
        run *= dim.size
    return run


def direct_ns(timing: Timing, nbytes: int, run: int) -> float:
    """Time of a DMA of ``nbytes`` in runs of ``run`` bytes."""
    return timing.transfer(nbytes, run).bound + timing.transfer_latency


@lru_cache(maxsize=256)
def _best(timing: Timing, copied: Copied, room: int, blank: bool, cut_ns: float) -> Relayout | None:
    dims, size, partitions = copied.dims, copied.size, copied.partitions
    found: dict[tuple[int, ...], Relayout] = {}
    runs = [timing.long_run * times // parts for times, parts in RUN_SHARES]
    for written in runs:
        for read in (0,) if partitions else (0, *runs):
            pieces = _pieces(timing, dims, size, read, written)
            if pieces in found:
                continue
            stored = as_stored(timing, dims, pieces, size, blank)
            loaded = None if partitions else as_loaded(timing, dims, pieces, size)
            nbytes = stored.nbytes + (loaded.nbytes if loaded is not None else 0)
            buffers = 2 if 2 * nbytes <= room else 1
            if nbytes <= room:
                found[pieces] = _estimated(timing, copied, pieces, stored, loaded, buffers)
    return min(found.values(), key=lambda way: way.ns + cut_ns * (way.pieces[-1] < dims[-1].size), default=None)


def _pieces(timing: Timing, dims: Sequence[Dim], size: int, read: int, written: int) -> tuple[int, ...]:
    """Elements of each dim that make runs of ``read`` and ``written`` bytes in the source and the target."""
    pieces = [1] * len(dims)
    for bytes_wanted, strides in (
        (written, {dim: dims[dim].target for dim in reversed(range(len(dims)))}),
        (read, {dim: abs(dims[dim].source) for dim in range(len(dims)) if dims[dim].source}),
    ):
        reach = size
        for dim in sorted(strides, key=lambda dim: strides[dim]):
            if reach >= bytes_wanted or (strides[dim] > reach and is_long(timing, strides[dim])):
                break
            count = min(dims[dim].size, -(-bytes_wanted // max(strides[dim], 1)))
            pieces[dim] = max(pieces[dim], even(dims[dim].size, count))
            reach = (pieces[dim] - 1) * strides[dim] + reach
            if pieces[dim] < dims[dim].size:
                break
            reach = max(reach, pieces[dim] * strides[dim])
    return tuple(pieces)


def even(total: int, most: int) -> int:
    """A piece of at most ``most`` elements of ``total`` that leaves no rest, if that is not much shorter."""
    divisor = next(count for count in range(most, 0, -1) if total % count == 0)
    return divisor if divisor * 2 >= most else most


@dataclass(frozen=True, slots=True)
class Extent:
    """A tile as it is loaded or stored."""

    nbytes: int
    run: int
    """Bytes of its runs."""
    strides: dict[int, int]
    """The tile's strides of the dims that are not repeated."""
    outside: tuple[int, ...]
    """Dims of which each element is another run."""


def as_loaded(timing: Timing, dims: Sequence[Dim], counts: Sequence[int], size: int) -> Extent:
    """How ``counts`` elements of each dim are loaded.

    A run takes in what lies between its elements while that costs the DMA no more than another run would.
    """
    strides = {dim: abs(dims[dim].source) for dim in range(len(dims)) if dims[dim].source}
    return _extent(strides, counts, size, timing.long_run)


def as_stored(timing: Timing, dims: Sequence[Dim], counts: Sequence[int], size: int, blank: bool) -> Extent:
    """How they are stored; with ``blank``, in runs that take in what lies between if no other tile writes there."""
    strides = {dim: dims[dim].target for dim in range(len(dims))}
    partial = [dims[dim].target for dim in strides if counts[dim] < dims[dim].size]
    return _extent(strides, counts, size, timing.long_run if blank else 0, min(partial, default=-1))


def _extent(strides: dict[int, int], counts: Sequence[int], size: int, gap: int, last: int = -1) -> Extent:
    made: dict[int, int] = {}
    outside: list[int] = []
    run = nbytes = size
    for dim in sorted((dim for dim in strides if counts[dim] > 1), key=lambda dim: strides[dim]):
        stride = strides[dim]
        if not outside and stride <= max(run, gap if last < 0 or stride <= last else 0):
            made[dim] = stride
            run = nbytes = (counts[dim] - 1) * stride + run
            continue
        outside.append(dim)
        made[dim] = nbytes = -(-nbytes // 4) * 4
        nbytes *= counts[dim]
    return Extent(nbytes, run, made, tuple(outside))


def _estimated(
    timing: Timing, copied: Copied, pieces: tuple[int, ...], stored: Extent, loaded: Extent | None, buffers: int
) -> Relayout:
    dims, size, partitions = copied.dims, copied.size, copied.partitions
    counts = [ceil(dim.size / piece) for dim, piece in zip(dims, pieces, strict=True)]
    partition, group, groups, rows = -1, -1, 1, partitions
    if not partitions:
        partition = max(range(len(dims)), key=lambda dim: (min(counts[dim], PARTITIONS), -dim))
        rows = min(counts[partition], PARTITIONS)
        others = [dim for dim in range(len(dims)) if dim != partition]
        group = max(others, key=lambda dim: counts[dim], default=-1)
        groups = min(PARTITIONS // rows, counts[group], MOST_GROUPS) if group >= 0 else 1
        rows *= groups
    total = prod(counts) * max(partitions, 1)
    tiles = ceil(total / rows)
    load = timing.transfer(total * loaded.nbytes, loaded.run).bound if loaded is not None else 0.0
    dma = load + timing.transfer(total * stored.nbytes, stored.run, "write").bound
    step = min((max(abs(dim.source), dim.target) for dim in dims), default=0)
    dtype = {1: "u8", 2: "bf16"}.get(size, "f32")
    moved = timing.engine("tensor_copy", Stream.VECTOR, prod(pieces), (Tile(dtype),), (Tile(dtype, stride=step),))
    vector = tiles * moved.bound
    if (blanks := stored.nbytes // size - prod(pieces)) > 0:
        vector += tiles * timing.engine("memset", Stream.VECTOR, blanks, (Tile(dtype),), ()).bound
    latency = timing.transfer_latency
    alone = tiles * (2 + (groups > 1)) * latency + dma + vector
    ns = alone if buffers == 1 else max(dma, vector, alone / 4) + 2 * latency + (dma + vector) / max(tiles, 1)
    return Relayout(pieces, partition, group if groups > 1 else -1, groups, buffers, ns)


def start_of(block: Block, dims: Sequence[int]) -> Affine:
    """The lowest address of the dims ``dims`` of an HBM block."""
    below = sum((block.dims[dim].size - 1) * block.dims[dim].stride for dim in dims if block.dims[dim].stride < 0)
    return block.offset + below
