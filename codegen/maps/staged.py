"""Emits tiles of long rows: stage by stage, section by section (see ``stages``)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import ceil, prod

from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.maps import inputs as map_inputs
from neuronx_cc.codegen.maps.body import Blocks, Body, Round
from neuronx_cc.codegen.maps.counting import Starts
from neuronx_cc.codegen.maps.plan import counted_axes, load_stream
from neuronx_cc.codegen.maps.stages import Stage, Staged
from neuronx_cc.codegen.maps.staggered import Staggered
from neuronx_cc.codegen.movement.transfer import copy
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace

UNROLL = 32
"""Sections of a loop's body."""


MOST_DERIVED = 16
"""Numbers of a row that are kept so."""
Derivation = tuple[str, Hashable]
"""What is made, and the value of the rows, or what was made, of which it is."""


@dataclass(slots=True)
class Derived:
    """What sections make of values of the rows, such as inverses: the first of them that wants it."""

    pool: TilePool
    rows: Blocks
    """Those values, of the tile that is emitted."""
    kept: dict[Derivation, Block] = field(default_factory=dict)
    """Where it lies, for all tiles."""
    there: dict[Derivation, object] = field(default_factory=dict)
    """What has been made for this one, and in which loop: others may have another tile's."""

    def __call__(self, what: str, of: Block) -> tuple[Block, bool] | None:
        known = chain(self.rows.items(), self.kept.items())
        source = next((x for x, tile in known if tile.alloc is of.alloc and tile.offset == of.offset), None)
        if source is None or any(atom.stride and atom.size > 1 for atom in of.dims[1:]):
            return None
        key = what, source
        if key not in self.kept and len(self.kept) == MOST_DERIVED:
            return None
        scope = self.pool.builder.scope
        is_there = key in self.there and self.there[key] is scope
        if key not in self.kept:
            self.kept[key] = self.pool.apart([1], "f32", of.dims[0].size)
        self.there[key] = scope
        tile = self.kept[key]
        return tile.of((tile.dims[0], *(Atom(atom.size, 0) for atom in of.dims[1:]))), is_there


@dataclass(frozen=True, slots=True)
class Sections:
    """Of one tile of rows."""

    body: Body
    staged: Staged
    kept: TilePool
    """Of the operands that stay for all stages."""
    made: Blocks
    """Where what a stage makes stays for the next ones."""
    pools: Sequence[TilePool]
    """Of what each stage makes."""
    derived: Derived
    """What they make of values of the rows."""

    def steps(self, starts: Starts, blocks: Blocks) -> Iterator[None]:
        """The tile of ``blocks`` that starts there, a row a partition."""
        body = self.body
        folded = [dim for dim, reduced in enumerate(body.tiles.reduced) if reduced]
        along = {value for value in body.inputs if any(blocks[value].dims[dim + 1].stride for dim in folded)}
        once = {dim: (Affine(), 1) for dim in folded}
        first = {value: _cut(block, once) for value, block in blocks.items()}
        rows = map_inputs.load_all(
            body.context,
            body.loads,
            {value: block for value, block in first.items() if value in body.inputs and value not in along},
            body.tiles.partitions,
            body.signed.__contains__,
            body.fusion.loaded,
        )
        missing, whole = {value: blocks[value] for value in self.staged.kept}, dict(self.made)
        for value, block in missing.items():
            whole[value] = self.kept.like(block, body.fusion.loaded.get(value, block.dtype))
        self.derived.rows, self.derived.there = rows, {}
        for stage, pool in zip(self.staged.stages, self.pools, strict=True):
            inner = self._of(stage, pool)
            iotas = {
                value: axis for value, axis in body.plan.iotas.items() if any(value in op.sources for op in stage.rows)
            }
            yield from body.steps({**starts, **once}, first, Round(stage.rows, {}, (), iotas, rows))
            if not stage.ops:
                continue
            count = prod(ceil(body.tiles.sizes[dim] / step) for dim, step in self.staged.loops)
            parts = {op: body.pool.tile([count], op.shape.dtype, body.tiles.partitions) for op in stage.folds}
            hidden = {*stage.again, *(op.result for op in parts)}
            shown = {value: block for value, block in blocks.items() if value not in hidden}
            loads = {value: missing.pop(value) for value in [*missing] if value in stage.inputs}
            inputs = [value for value in body.inputs if value in stage.inputs and value in along and value not in whole]
            counts = {value: axis for value, axis in body.plan.iotas.items() if value in stage.inputs}
            stay = rows.keys() | whole.keys()
            dying = {at: [value for value in values if value not in stay] for at, values in stage.dying.items()}
            begins = len(self.staged.stages) > 1 and stage is self.staged.stages[0]
            beside = self.staged.stages[-1].ops if begins else ()  # the last stage of the tile before
            work = Round(stage.ops, dying, inputs, counts, {}, frozenset(parts), beside)
            sections = partial(self._section, inner, starts, (rows, whole, parts), loads, stage.there, work)
            counted = counts and {*counts.values()} & counted_axes(body.plan)
            most = count if counted or body.packed else UNROLL  # sections of rows begin at places that are known
            steps = sum(op not in stage.fusion for op in stage.ops)
            staggered = Staggered(body.context.builder, body.tiles.sizes, sections, steps, self.staged.under_way, most)
            if self.staged.loops:
                staggered.emit(self.staged.loops, {}, shown)
            else:
                yield from sections({}, shown)
            for op, block in parts.items():
                rows[op.result] = body.fold_parts(op, block, first.get(op.result), rows)
                body.pool.give_back(block)
        for value in self.staged.kept:
            self.kept.give_back(whole[value])
        body.give_back(rows, first)

    def _of(self, stage: Stage, pool: TilePool) -> Body:
        """What emits ``stage``."""
        operands = replace(self.body.operands, fusion=stage.fusion)
        operands.partition_places = {**operands.partition_places, **stage.places}
        return replace(self.body, fusion=stage.fusion, operands=operands, pool=pool, derived=self.derived)

    def _section(
        self,
        body: Body,
        starts: Starts,
        there: tuple[Blocks, Blocks, Mapping[hlo.ReduceOp, Block]],
        loads: Blocks,
        on_chip: Set[hlo.SSAValue],
        work: Round,
        at: Starts,
        blocks: Blocks,
    ) -> Iterator[None]:
        """Emit the section of ``blocks`` that starts ``at``, of a tile of rows that ``starts`` there."""
        sizes = [1] * len(body.tiles.sizes)
        rows, whole, parts = there
        place, number = {**at}, Affine()
        for dim, reduced in enumerate(body.tiles.reduced):
            if reduced:
                sizes[dim] = place.setdefault(dim, (Affine(), body.tiles.sizes[dim]))[1]
        for dim, step in self.staged.loops:
            number = number * ceil(body.tiles.sizes[dim] / step) + _over(at[dim][0], step)
        for value, block in loads.items():
            copy(body.context.builder, _cut(whole[value], place), _cut(block, place), load_stream(value))
        here = {value: _cut(block, place) for value, block in (rows | whole).items()}
        here |= {value: blocks[value] for value in on_chip if value not in whole}
        for op, block in parts.items():
            sums = block.index(1, number)
            here[op.result] = sums.of((*sums.dims, *(Atom(size, 0) for size in sizes)))
        yield from body.steps({**starts, **at}, blocks, replace(work, here=here))


def _over(position: Affine, step: int) -> Affine:
    """The number of the section that begins at ``position``, a multiple of ``step``."""
    return Affine(position.const // step, tuple((register, each // step) for register, each in position.terms))


def _cut(block: Block, at: Starts) -> Block:
    for dim, (position, size) in at.items():
        block = block.index(dim + 1, position, size)
    return block
