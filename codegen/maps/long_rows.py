"""Rows of which several whole ones do not fit SBUF: whether they are taken in stages (``stages``), and with what."""

from __future__ import annotations

from collections.abc import Container
from contextlib import ExitStack
from functools import partial
from math import ceil, prod

from neuronx_cc.codegen.emission.interleave import AHEAD
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.maps.between import gathered, gathered_bytes
from neuronx_cc.codegen.maps.box import Box
from neuronx_cc.codegen.maps.inputs import kept_in
from neuronx_cc.codegen.maps.overlap import overlap_of
from neuronx_cc.codegen.maps.packed_rows import may_be_packed, pack, packed_bytes
from neuronx_cc.codegen.maps.plan import load_stream
from neuronx_cc.codegen.maps.space import loops_of
from neuronx_cc.codegen.maps.staged import Derived, Sections
from neuronx_cc.codegen.maps.stages import SEVERAL, STORING, Room, Stage, choose, stages_of, steps_of, to_keep
from neuronx_cc.ir import hlo

TURNS = 0.8
"""Of the time that the ops of a tile take in turn, what tiles take of which no two are emitted together."""


def are_long(box: Box) -> bool:
    """Whether two tiles of whole rows do not fit, or no two of many that had better be emitted together, and stages
    have less to do in turn.
    """
    if not box.kernel.reduced or box.kernel.folded or box.kernel.scanned >= 0 or box.crossing is not None:
        return False
    rows = loops_of(box.sizes, box.whole, 1)
    spread = {value: box.spread_bytes(value) for value in box.inputs if box.is_spread(value)}
    loaded, alive = box.loaded(), box.alive()
    repeated = box.inputs.keys() - {*spread, *loaded, *box.resident()}
    each, room = box.bytes_of(alive, repeated, rows), int(box.builder.sbuf.largest_gap() * 0.95)
    left = room - sum(spread.values())
    if 2 * each > left:
        return True
    if 4 * each <= left:  # two are under way, with one that is loaded and one that is stored
        return False
    tiles = box.tiles_of(rows, alive.element_bytes, each, 0, left, loaded)
    if not overlap_of(tiles, box.builder.timing).crowded:
        return False
    _, _, stages = _in_stages(box, _long_rows(box, room // 2), room)
    fusion = box.fusion.copy()
    box.deferred(rows, (), fusion, box.kernel.ops)
    as_made = {*box.sums.values()}
    in_stages = (ceil(steps_of(box.kernel, stage.ops, stage.fusion, as_made) / 2) for stage in stages)
    return sum(in_stages) <= TURNS * steps_of(box.kernel, box.kernel.ops, fusion, as_made)


def _in_stages(
    box: Box, packed: Container[hlo.SSAValue], room: int
) -> tuple[dict[hlo.SSAValue, bool], tuple[hlo.SSAValue, ...], tuple[Stage, ...]]:
    """Operands that sections load -> whether they may stay, what stays of what is made, and the stages, where rows
    that are ``packed`` come from elsewhere, in ``room`` bytes.
    """
    kernel, timing, on_chip = box.kernel, box.builder.timing, box.resident()
    folded = {dim for dim, reduced in enumerate(box.reduced) if reduced}
    along = {
        value: box.blocks[value]
        for value in box.inputs
        if value not in on_chip
        and value not in packed
        and any(box.blocks[value].dims[dim + 1].stride for dim in folded)
    }
    loaded = {
        value: all(atom.stride for atom in block.dims[1:]) and gathered(timing, block) is None
        for value, block in along.items()
    } | dict.fromkeys(box.plan.iotas, False)
    row = prod(box.sizes[dim] for dim in folded)
    made = to_keep(kernel, box.member, box.fusion, loaded, on_chip, int(room * 0.7), row)
    wanted = {value for value in box.blocks if value not in box.inputs}
    defer = partial(box.deferred, loops_of(box.sizes, folded, 1), {*made})
    return loaded, made, stages_of(kernel, box.member, box.fusion, wanted, {*on_chip, *made}, defer)


def _long_rows(box: Box, room: int) -> dict[hlo.SSAValue, int]:
    """Rows that all partitions read and that stay on few of them: as many as ``room`` bytes hold, and PSUM their
    sections, and the bytes.
    """
    sizes = box.builder.sizes
    rows = {x: box.blocks[x] for x in box.inputs if x not in box.signed and may_be_packed(sizes, box.blocks[x])}
    casts = {value: box.fusion.loaded.get(value, block.dtype) for value, block in rows.items()}
    if len(rows) * (SEVERAL + AHEAD) > _banks(box):
        return {}
    return kept_in({x: packed_bytes(sizes, block, casts[x]) for x, block in rows.items()}, room)


def _banks(box: Box) -> int:
    """Of PSUM, that are free."""
    return box.builder.psum.largest_gap() // box.builder.sizes.bank_bytes


def emit(box: Box) -> None:
    """Emit long rows stage by stage: operands that rows have in common and columns stay if there is room enough."""
    timing, kernel = box.builder.timing, box.kernel
    folded = {dim for dim, reduced in enumerate(box.reduced) if reduced}
    loops = loops_of(box.sizes, folded, 1)
    room = box.builder.sbuf.largest_gap()
    staying = kept_in(box.columns_to_keep(), room // 8)
    rows = {value: box.spread_bytes(value) for value in box.inputs if box.is_spread(value)}
    for value in _long_rows(box, room // 2):
        block = box.blocks[value]
        dtype = box.fusion.loaded.get(value, block.dtype)
        box.packed[value] = pack(box.context, box.pool, block, dtype, load_stream(value))
    box.spread(kept_in({value: rows[value] for value in rows if value not in box.packed}, room // 3), loops)
    kept = box.keep_columns(loops, staying)
    box.defer_partitions(loops)
    room = int(box.builder.sbuf.largest_gap() * 0.9)
    loaded, made, stages = _in_stages(box, box.packed, room)
    sizes = [size if reduced else 1 for size, reduced in zip(box.sizes, box.reduced, strict=True)]
    together = max(sum(value in stage.inputs for value in box.packed) for stage in stages)
    results = {value for value in box.blocks if value not in box.inputs} - box.resident()
    stored = [value for value in results if not kernel.is_row(hlo.shape_of(value))]
    staged = choose(kernel, stages, timing, sizes, loaded, made, Room(room, stored, _banks(box), together))
    box.pool.buffers = staged.buffers
    box.loads, box.stores = (TilePool(box.builder, box.pool.name, n) for n in (staged.loading, STORING))
    more = gathered_bytes(timing, [box.blocks[x] for x in loaded if x in box.blocks], [*loops, *staged.loops])
    box.loads.gathers = more * staged.loading * (staged.under_way + 1) <= room // 2
    there = {x: box.pool.apart(sizes, hlo.shape_of(x).dtype, box.partitions) for x in made}
    with ExitStack() as stack:
        apart = [staged.buffers] * (len(stages) if staged.apart else 1)
        held, *pools = (
            stack.enter_context(TilePool(box.builder, box.pool.name, buffers))
            for buffers in (max(1, staged.kept_buffers), *apart)
        )
        pools = pools if staged.apart else pools * len(stages)
        sections = Sections(box.body(), staged, held, there, pools, Derived(box.pool, {}))
        box.nest(loops, {}, box.blocks, sections.steps)
    box.store_columns(kept)
