"""Inputs of a map whose neighbours in memory go to different partitions: transposed on their way into its tiles.

Rows of the array are loaded in long runs, and TensorE transposes the parts of their bit patterns, which is exact
(``movement.halves``): so a transposed operand costs hardly more than one that lies straight, and no pass over HBM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block, Ring, merge_free
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.codegen.emission.views import Atom, View, coalesce
from neuronx_cc.codegen.maps.axes import full_view, minor_axis
from neuronx_cc.codegen.maps.lifetimes import Member, last_uses, tiles_alive
from neuronx_cc.codegen.maps.plan import MapPlan, load_stream
from neuronx_cc.codegen.maps.spread import Partitions, partition_divisor
from neuronx_cc.codegen.movement.halves import HALVES, halves_of, part_of
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.rules import SQUARE
from neuronx_cc.ir.isa.timing import Tile, Timing, Work
from neuronx_cc.ir.types import itemsize

BUFFERS = 3
"""Of rows as they are loaded."""
PART_BUFFERS = 2
"""Of each part of their bit patterns."""
SUM_BUFFERS = 4
"""Of results in PSUM."""
MOST_TIMES = 3
"""How many times as many neighbours as make a long run are tried, and rows that are loaded as one."""
UNROLLED = 4
"""Groups of rows of a tile that are no loop."""
SPARE = 4
"""How many times the memory for all that there must be."""
TOGETHER = 2
"""Tiles with whole rows of a scan for which there must be room: those under way, and what becomes of them."""
SHARE = 64
"""How many times smaller than the space an operand is that may lie as it likes."""


def turn(context: Context, plan: MapPlan, member: Member, external: Sequence[hlo.SSAValue]) -> None:
    """Let ``plan`` turn what lies across, where all else lies straight and a copy ahead would take longer."""
    kernel, timing = plan.kernel, context.timing
    if kernel.reduced or kernel.folded or len(kernel.shape) < 2:
        return
    across: dict[hlo.SSAValue, View] = {}
    axes, last = set(), len(kernel.shape) - 1
    for value in external:
        views = [full_view(view, kernel) for view in context.views(value)]
        if prod(atom.size for atoms in views[0].dims for atom in atoms if atom.stride) * SHARE <= prod(kernel.shape):
            continue
        if any(view.in_sbuf for view in views):
            return
        minors = [minor_axis(view) for view in views]
        if last in minors:
            continue
        if minors[0] < 0 or not all(atom.stride for atoms in views[0].dims for atom in atoms):
            return
        across[value] = views[0]
        axes.add(minors[0])
    if len(axes) != 1 or any(views.start.terms for views in across.values()):
        return
    axis = axes.pop()
    sizes, size = {itemsize(view.dtype) for view in across.values()}, kernel.shape[axis]
    if len(sizes) != 1 or not sizes <= HALVES.keys() or min(size, kernel.shape[last]) < SQUARE:
        return
    width, others = min(sizes), prod(kernel.shape) // size
    follow = [
        coalesce(tuple(a for at, atoms in enumerate(v.dims) if at != axis for a in atoms)) for v in across.values()
    ]
    joint = all(len(atoms) == 1 for atoms in follow)
    dense = joint and all(atoms[0].stride == size * width for atoms in follow)
    column, most = kernel.shape[last], timing.sizes.partitions
    loads = ceil(others / most) if joint else others // column * ceil(column / most)
    deepest = size if kernel.scanned < 0 else _whole_rows(context, plan, member, external)
    if not deepest:
        return
    time, partitions, inner = partitions_of(timing, Problem(size, width, loads, column, dense, deepest))
    found, builder = Partitions(axis, partitions, inner), context.builder
    fits = SPARE * _nbytes(timing, found, width) <= builder.sbuf.largest_gap() and builder.psum.largest_gap()
    if fits and time < _ahead(timing, size, others, width):
        plan.partitions, plan.transposed, plan.deepest = found, across, deepest


def _whole_rows(context: Context, plan: MapPlan, member: Member, external: Sequence[hlo.SSAValue]) -> int:
    """How many whole rows of a scan a partition holds of all that is alive, while as many are under way."""
    kernel = plan.kernel
    alive = tiles_alive(kernel, external, last_uses(kernel, member)).element_bytes
    return context.builder.sbuf.largest_gap() // (TOGETHER * alive * kernel.shape[kernel.scanned])


@dataclass(frozen=True, slots=True)
class Problem:
    """Rows of ``count`` elements of ``width`` bytes."""

    count: int
    width: int
    loads: int
    """In how many parts the rows are loaded, one on each partition."""
    column: int
    """Rows that become a run of the result."""
    dense: bool
    """Whether rows follow each other in memory."""
    deepest: int
    """Neighbours on a partition at most."""


@lru_cache(maxsize=4096)
def partitions_of(timing: Timing, problem: Problem) -> tuple[float, int, int]:
    """(time, partitions, neighbours on each) for ``problem``; what is left of a row has partitions of its own."""
    most, best = timing.sizes.partitions, (float("inf"), 1, 1)
    deepest = min(MOST_TIMES * ceil(timing.long_run / (most * problem.width)), problem.count, problem.deepest)
    for inner in range(1, deepest + 1):
        each = problem.count // inner
        for partitions in {min(most, each), each // ceil(each / most), partition_divisor(each)}:
            count, rest = divmod(problem.count, partitions * inner)
            time = timing.transfer_latency + count * problem.loads * _here(timing, problem, partitions, inner)
            if time < best[0] and rest:
                time += partitions_of(timing, replace(problem, count=rest, dense=False))[0]
            if time < best[0]:
                best = time, partitions, inner
    return best


def interleaved(timing: Timing, run: int) -> int:
    """Rows of ``run`` bytes that follow each other in memory, loaded onto one partition."""
    return max(1, min(MOST_TIMES, ceil(timing.long_run / run)))


def _here(timing: Timing, problem: Problem, partitions: int, inner: int) -> float:
    """Time of rows on all partitions, transposed into ``inner`` elements of each on ``partitions``."""
    rows, run, width = timing.sizes.partitions, partitions * inner * problem.width, problem.width
    deep = interleaved(timing, run) if problem.dense and partitions == problem.count else 1
    part, carrier = "u16" if width > 2 else "u8", HALVES[width][1]
    work = timing.transfer(rows * run, run * deep)
    work += timing.transfer(rows * run, min(timing.long_run, problem.column * width), "write")
    for _ in range(2 if width > 1 else 1):
        work += timing.engine(
            "tensor_copy", Stream.VECTOR, partitions * inner, (Tile(carrier),), (Tile(part, stride=width),)
        )
        work += timing.transpose(rows, partitions, carrier, Tile(part, stride=width * deep)).times(inner)
    return work.bound


def _ahead(timing: Timing, size: int, rows: int, width: int) -> float:
    """The same where a copy in order is made ahead, by squares of words, and read again."""
    squares = ceil(size * width / (4 * SQUARE)) * ceil(rows / SQUARE)
    transposed: Work = timing.engine("transpose", Stream.VECTOR, SQUARE).times(squares)
    moved = timing.transfer(size * rows * width, timing.long_run)
    moved += timing.transfer(size * rows * width, timing.long_run, "write")
    return (transposed + moved).bound + moved.bound + 2 * timing.transfer_latency


def rest_partitions(timing: Timing, plan: MapPlan, shape: Sequence[int], rest: int) -> Partitions:
    """Partitions of the ``rest`` of the axis that is transposed, of a space of sizes ``shape``."""
    assert plan.partitions is not None, "what is transposed has partitions"
    loads = ceil(prod(shape) / shape[plan.partitions.axis] / timing.sizes.partitions)
    problem = Problem(rest, _width(plan), loads, shape[-1], False, plan.deepest)
    return Partitions(plan.partitions.axis, *partitions_of(timing, problem)[1:])


def least_elements(timing: Timing, plan: MapPlan) -> int:
    """Elements a partition of tiles that are stored in long runs."""
    assert plan.partitions is not None, "what is transposed has partitions"
    return plan.partitions.inner * ceil(timing.long_run / _width(plan))


def _width(plan: MapPlan) -> int:
    """Bytes of an element of what is transposed."""
    return itemsize(next(iter(plan.transposed.values())).dtype)


def _nbytes(timing: Timing, partitions: Partitions, width: int) -> int:
    """Bytes a partition of rows and parts of them, besides the tiles that they are transposed into."""
    return _run(timing, partitions, width) * (BUFFERS * width + 2 * PART_BUFFERS * itemsize(HALVES[width][1]))


def _run(timing: Timing, partitions: Partitions, size: int) -> int:
    """Most elements of the rows on a partition."""
    run = partitions.size * partitions.inner
    return run * (interleaved(timing, run * size) if partitions.inner == 1 else 1)


@dataclass(slots=True)
class Turner:
    """Loads tiles of the inputs of one map that are transposed."""

    context: Context
    pool: TilePool
    rows: Ring
    planes: tuple[Ring, ...]
    """For each part of a bit pattern."""
    banks: Ring

    @classmethod
    def of(cls, context: Context, pool: TilePool, plan: MapPlan) -> Turner | None:
        """None where nothing is transposed. To be made outside of loops, for the unit matrices."""
        if not plan.transposed or plan.partitions is None:
            return None
        size = _width(plan)
        carrier, run = HALVES[size][1], _run(context.timing, plan.partitions, size)
        context.fixed.identity(carrier)
        parts = range(2 if size > 1 else 1)
        planes = tuple(pool.ring(run * itemsize(carrier), PART_BUFFERS) for _ in parts)
        return cls(context, pool, pool.ring(run * size, BUFFERS), planes, pool.psum(SUM_BUFFERS, "transposed"))

    def load(self, value: hlo.SSAValue, block: Block, emitter: Emitter) -> Block:
        """The tile of ``block`` [partitions, free dims...] in HBM."""
        size, free = itemsize(block.dtype), range(1, len(block.dims))
        tile = self.pool.like(block)
        inner = next((dim for dim in free if block.dims[dim].stride == size and block.dims[dim].size > 1), -1)
        rows = max((dim for dim in free if dim != inner), key=lambda dim: (block.dims[dim].size > 1, dim))
        others = [dim for dim in free if dim not in (inner, rows) and block.dims[dim].size > 1]
        stream = load_stream(value)
        there, here = merge_free([_ordered(side, inner, [*others, rows]) for side in (tile, block)], 2)
        self._each(there, here, stream, emitter)
        return tile

    def _each(self, tile: Block, block: Block, stream: Stream, emitter: Emitter) -> None:
        """[partition, inner, ..., row]: loops over the dims that are neither on the partitions before nor after."""
        builder = self.context.builder
        if len(block.dims) > 3:
            with builder.loop(tile.dims[2].size) as index:
                self._each(tile.index(2, index), block.index(2, index), stream, emitter)
            return
        if len(block.dims) == 2:
            tile, block = (side.of((*side.dims, Atom(1, 0))) for side in (tile, block))
        partition, inner, row = block.dims
        run, deep = partition.size * itemsize(block.dtype), 1
        if inner.size == 1 and row.stride == run and row.size >= builder.sizes.partitions:
            deep = interleaved(builder.timing, run)
        for start, tiles, count in builder.tiles(row.size, builder.sizes.partitions * deep):
            for index in builder.each(tiles, UNROLLED):
                at = index * count + start
                parts = (count // deep * deep, deep), (count % deep, 1)
                for first, (rows, each) in zip((0, parts[0][0]), parts, strict=True):
                    if rows:
                        there, here = (_deal(side.index(2, at + first, rows), each) for side in (tile, block))
                        self._turn(there, here, stream, emitter)

    def _turn(self, tile: Block, block: Block, stream: Stream, emitter: Emitter) -> None:
        """Load ``block`` [partition, inner, row] as rows on partitions, and turn them into ``tile``.

        ``inner`` are neighbours on a partition, or rows that follow each other in memory.
        """
        builder, size = self.context.builder, itemsize(block.dtype)
        partition, inner, row = block.dims
        run = partition.size * inner.size
        steps = (partition.size, 1) if partition.stride == size else (1, inner.size)
        rows = tile_in(builder, self.rows, [run], block.dtype, row.size)
        copy(builder, rows, block.of((row, Atom(run, size))), stream)

        def room(carrier: str, number: int) -> Block:
            return tile_in(builder, self.planes[number], [run], carrier, row.size)

        for plane, part, byte in halves_of(rows, room, emitter.copy):
            width = itemsize(plane.dtype)
            atoms = (Atom(each.size, step * width) for each, step in zip((inner, partition), steps, strict=True))
            parts = plane.of((plane.dims[0], *atoms))
            self._products(parts, part_of(tile, part, byte), emitter)

    def _products(self, rows: Block, out: Block, emitter: Emitter) -> None:
        """``out[partition, inner, row] = rows[row, inner, partition]`` by unit matrices, as many as fit a bank
        together.
        """
        builder, height = self.context.builder, rows.dims[0].size
        for start, tiles, count in builder.tiles(rows.dims[1].size, max(1, builder.sizes.bank_columns // height)):
            for group in range(tiles):
                first = start + group * count
                taken = [rows.index(1, Affine(at)) for at in range(first, first + count)]
                bank = self.context.fixed.transposes(self.banks, taken, several=True)
                emitter.leave(out.index(1, Affine(first), count), bank)


def _deal(block: Block, deep: int) -> Block:
    """[partition, inner, row]: with ``deep`` neighbouring rows as ``inner`` if that is more than one."""
    partition, _, row = block.dims
    return (
        block if deep == 1 else block.of((partition, Atom(deep, row.stride), Atom(row.size // deep, row.stride * deep)))
    )


def _ordered(block: Block, inner: int, others: Sequence[int]) -> Block:
    """[partition, inner (of size 1 for -1), others...]."""
    run = block.dims[inner] if inner > 0 else Atom(1, 0)
    return block.of((block.dims[0], run, *(block.dims[dim] for dim in others)))
