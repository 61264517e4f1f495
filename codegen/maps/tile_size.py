"""How many elements a partition of one tile of a map has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import ceil, prod

from neuronx_cc.codegen.emission.builder import Block, Builder
from neuronx_cc.codegen.emission.views import run_of
from neuronx_cc.codegen.maps import transposed
from neuronx_cc.codegen.maps.axes import SMALL_SHARE
from neuronx_cc.codegen.maps.between import elements_of
from neuronx_cc.codegen.maps.overlap import LONG_BODY, UNROLL
from neuronx_cc.codegen.maps.plan import MapPlan
from neuronx_cc.codegen.maps.space import BUFFERS, streamed_elements
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.timing import Stage, Timing, total
from neuronx_cc.ir.types import itemsize

TILE_SHARE = (6, 11)
"""Of a partition of SBUF: most that the tiles of a map take together."""
LEAST_ROW = 512
"""Elements of a row from which instructions of its own, with one value a partition, take less time than tiles of such
values that are read beside the others."""


def tile_elements(
    builder: Builder,
    plan: MapPlan,
    blocks: Mapping[hlo.SSAValue, Block],
    inputs: Collection[hlo.SSAValue],
    sizes: Sequence[int],
    walk: Sequence[int],
    ops: int,
    most: int,
) -> int:
    """Small tiles overlap, large ones amortise; ``most`` fit.

    ``sizes``: of the free dims; ``walk``: those scanned; ``ops``: that are emitted for all elements.
    """
    timing, kernel = builder.timing, plan.kernel
    moved = {v: block for v, block in blocks.items() if block.alloc.space is Space.HBM and block.dims[0].stride}
    whole = prod(sizes)
    streamed, large = bool(moved), [block for block in moved.values() if elements_of(block) * SMALL_SHARE > whole]
    wide = kernel.reduced or not large
    size = streamed_elements(timing, itemsize("f32") if wide else max(itemsize(block.dtype) for block in large))
    live = len(kernel.ops) + len(inputs) + 2
    room = min(builder.sizes.sbuf_share(TILE_SHARE), int(builder.sbuf.largest_gap() * 0.7))
    if streamed and walk and walk[-1] < len(sizes):
        # rows that lie apart are loaded in runs that a DMA moves well
        rows = prod(sizes[dim - 1] for dim in walk)
        return max(1, min(most, 2 * rows * timing.long_run // 4))
    if plan.transposed:
        # columns of what is transposed are stored in such runs
        return max(1, min(most, max(size, transposed.least_elements(timing, plan))))
    if streamed and whole > 2 * size:
        few = room // (8 * min(live, 10))
        if not kernel.reduced:
            few = min(_alike([blocks[value] for value in inputs], sizes, size), 2 * most // BUFFERS)
        return max(1, min(size, few, most))
    fits = max(1, min(room // (4 * min(live, 12)), most))
    # several engines overlap tile by tile, each as long as the others wait for a result
    least = ceil(timing.latency(Stream.VECTOR) / timing.cycle(Stream.VECTOR))
    if len(kernel.ops) > 1 and whole > least:
        tiles = UNROLL if len(kernel.ops) < LONG_BODY else UNROLL // 2
        if moved:
            loads = [moved[value] for value in inputs if value in moved]
            stores = [block for value, block in moved.items() if value not in inputs]
            tiles = _tiles(timing, loads, stores, whole, ops, tiles)
        return min(fits, max(least, -(-whole // tiles)))
    return fits


def whole_runs(
    builder: Builder, plan: MapPlan, sizes: Sequence[int], reduced: Sequence[bool], elements: int, most: int
) -> int:
    """Elements of a tile of whole rows: as many rows as a bank has sums of, more than ``elements`` where neighbours in
    memory are of neighbouring rows; ``most`` fit.
    """
    row = prod(size for size, folded in zip(sizes, reduced, strict=True) if folded)
    if plan.kernel.reduced and plan.kernel.scanned < 0 and reduced and not reduced[-1]:
        run = min(sizes[-1], builder.timing.long_run // itemsize("f32"))
        elements = max(elements, min(most, row * run))
    return min(elements, builder.sizes.bank_columns * row) if plan.spreads_rows else elements


def _tiles(timing: Timing, loads: Sequence[Block], stores: Sequence[Block], whole: int, ops: int, most: int) -> int:
    """Tiles, at most ``most``, of ``whole`` elements a partition of least estimated time: runs get short."""

    def moving(blocks: Sequence[Block], tiles: int, way: str) -> Stage:
        works = []
        for block in blocks:
            size = itemsize(block.dtype)
            nbytes = ceil(elements_of(block) / tiles) * size
            run = min(nbytes, run_of([block.dims[dim] for dim in block.varying], size))
            works.append(timing.transfer(block.dims[0].size * nbytes, run, way))
        return Stage(total(works), timing.transfer_latency)

    def time(tiles: int) -> float:
        work = timing.engine("activation", Stream.SCALAR, ceil(whole / tiles), alu=("copy",)).times(ops)
        worked = Stage(work, ops * timing.latency(Stream.SCALAR))
        stages = [moving(loads, tiles, "read"), worked, moving(stores, tiles, "write")]
        return timing.pipeline([stage for stage in stages if stage.work.bound], tiles, tiles)

    return min(range(1, most + 1), key=time)


def _alike(blocks: Sequence[Block], sizes: Sequence[int], most: int) -> int:
    """Elements at the end of a tile of ``most`` for which arrays that vary ahead of them have one value a partition."""
    alike = most
    for block in blocks:
        last = max(block.varying, default=0)
        inner = prod(sizes[last:])
        if last and block.dims[0].stride and LEAST_ROW <= inner < alike:
            alike = inner
    return alike
