"""The body of a map kernel's loops: its ops on one tile, in instructions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from math import prod

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Block, Ring
from neuronx_cc.codegen.emission.emitter import Deferred, Emitter, Readable, Splat
from neuronx_cc.codegen.emission.tiles import TilePool, tile_in
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.formation.graph import Kernel, trace
from neuronx_cc.codegen.maps import elementwise, ends, scan_rows, transposed
from neuronx_cc.codegen.maps import inputs as map_inputs
from neuronx_cc.codegen.maps.column_sums import ColumnSums
from neuronx_cc.codegen.maps.counting import Counting, Starts
from neuronx_cc.codegen.maps.crossing import MOST_ADDED, Crossing
from neuronx_cc.codegen.maps.fusion import Fusion
from neuronx_cc.codegen.maps.lifetimes import Member
from neuronx_cc.codegen.maps.operands import Operands
from neuronx_cc.codegen.maps.packed_rows import PackedRow
from neuronx_cc.codegen.maps.partitions import rows_of
from neuronx_cc.codegen.maps.plan import MapPlan
from neuronx_cc.codegen.maps.row_reduction import only_on_scalar, only_on_vector, reduce_rows, sums_as_made
from neuronx_cc.codegen.maps.space import TileSpace
from neuronx_cc.codegen.movement.transfer import put
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.scans import scan_of
from neuronx_cc.ir.types import itemsize
from neuronx_cc.passes.analysis.values import identity_of

Blocks = dict[hlo.SSAValue, Block]


@dataclass(frozen=True, slots=True)
class Round:
    """What of a tile is emitted at once."""

    ops: Sequence[hlo.HloOp]
    dying: Mapping[int, Sequence[hlo.SSAValue]]
    """Number of one of ``ops`` -> values that nothing after it reads."""
    inputs: Collection[hlo.SSAValue]
    """That are loaded for it."""
    iotas: Mapping[hlo.SSAValue, int]
    """Operands that count -> the axis along which."""
    here: Blocks = field(default_factory=dict)
    """What is on chip already, and where results go that have a place; all others are added."""
    partial: Set[hlo.HloOp] = frozenset()
    """Reductions of which it makes a part."""
    beside: Sequence[hlo.HloOp] = ()
    """What else is emitted for these elements, at another time."""


@dataclass(slots=True)
class Body:
    """Emits the ops of one kernel."""

    context: Context
    plan: MapPlan
    member: Member
    tiles: TileSpace
    fusion: Fusion
    operands: Operands
    inputs: Collection[hlo.SSAValue]
    """All that others made."""
    sums: Mapping[hlo.HloOp, hlo.ReduceOp]
    """Ops whose results' rows are added up -> the sum."""
    signed: frozenset[hlo.SSAValue]
    """Operands whose zeros' signs show in what is computed."""
    counting: Counting
    turner: transposed.Turner | None
    columns: ColumnSums | None
    crossing: Crossing | None
    at_once: Set[hlo.HloOp]
    """Sums over the partitions that the next instruction reads in PSUM."""
    banks: Mapping[hlo.SSAValue, Ring]
    """Values of rows, or results of divisions for the inverses of what divides -> where they lie in PSUM."""
    pool: TilePool
    loads: TilePool
    stores: TilePool
    packed: Mapping[hlo.SSAValue, PackedRow]
    """Rows of which sections are repeated over the partitions."""
    derived: Callable[[str, Block], tuple[Block, bool] | None] | None = None
    """Where what is made of a value of the rows lies that stays for all sections, and whether it is there."""

    @property
    def kernel(self) -> Kernel:
        return self.plan.kernel

    def steps(self, starts: Starts, blocks: Blocks, work: Round) -> Iterator[None]:
        """Emit the tile of ``blocks`` that starts there, op by op."""
        builder, reduced = self.context.builder, self.tiles.reduced
        sizes = [starts[dim][1] if dim in starts else size for dim, size in enumerate(self.tiles.sizes)]
        row_dims = [0, *(dim + 1 for dim, folded in enumerate(reduced) if not folded)]
        scratch, summed = list[Block](), dict[hlo.HloOp, Block]()
        emitter = self._emitter(scratch)
        ahead, here = self._loads(emitter, blocks, sizes, work), work.here
        here |= self._load(emitter, blocks, sizes, starts, work)
        yield
        for index, op in enumerate(work.ops):
            if op in self.fusion or self.kernel.sums_columns(op):
                continue
            builder.mark(op.loc)
            emitter.vector_load -= ahead.get(op, 0)
            result = op.results[0]
            is_row, home = self.kernel.is_row(hlo.shape_of(result)), blocks.get(result)
            if (cast := self._written(op, home, here)) is not None:
                self.store(home, cast.select(row_dims) if is_row else cast, row_dims, is_row)
                self.give_back({value: here[value] for value in work.dying.get(index, ()) if value in here}, blocks)
                yield
                continue
            if result not in here:
                here[result] = self.destination(result, home, sizes, is_row)
            out = here[result].select(row_dims) if is_row else here[result]
            total = self.sums.get(op)
            op = self.fusion.casts.get(op, op)
            ins = self.operands.of(op, here)
            if isinstance(op, hlo.ReduceOp):
                if isinstance(ins[0], Splat):
                    scratch.append(self._filled(emitter, ins[0], sizes))
                    ins[0] = scratch[-1]
                parts = (
                    summed[op].select(row_dims)
                    if op in summed
                    else self._fold(emitter, op, out, ins[0], blocks, bool(work.beside))
                )
                if op in summed and op in self.at_once:
                    scratch.append(summed[op])
                if op not in work.partial:
                    self.begin(emitter, op, out, parts, rows_of(ins[1], row_dims))
            elif isinstance(op, hlo.IotaOp):
                self._count(op, here[result], is_row, starts)
            elif scan_of(op) is not None:
                scan_rows.emit(self.context, self.pool, op, out, ins, self.tiles.walk)
            else:
                emitter.inverses = partial(self._in_bank, result) if result in self.banks else None
                arrays = [rows_of(x, row_dims) for x in ins] if is_row else ins
                summed |= self._compute(emitter, op, total, out, arrays, sizes, blocks, work)
            if home is not None and result in self.plan.ends:
                self.store(*ends.stored_of(home, out, self.tiles.walk, self.plan.ends[result]), row_dims, is_row)
            else:
                self.store(home, out, row_dims, is_row)
            while scratch:
                self.pool.give_back(scratch.pop(0))
            self.give_back({value: here[value] for value in work.dying.get(index, ()) if value in here}, blocks)
            if op not in self.at_once:
                yield
        yield from self._sum_columns(blocks, work)
        builder.mark(self.kernel.ops[-1].loc)

    def _loads(self, emitter: Emitter, blocks: Blocks, sizes: Sequence[int], work: Round) -> dict[hlo.HloOp, int]:
        """Tell ``emitter`` what else engines have to do; ops of ``work`` -> what Vector alone can read for them."""
        within, size = {*self.fusion.users, *self.fusion.functions}, prod(sizes)
        made = [op for op in work.ops if not (isinstance(op, hlo.ReduceOp) and self._is_on_tensor(op, sizes))]
        ahead, beside = (
            only_on_vector(ops, within, self.sums, partial(self._is_array, blocks), size, blocks)
            for ops in (made, work.beside)
        )
        emitter.vector_load = sum(ahead.values()) + sum(beside.values())
        emitter.scalar_load = size * len(only_on_scalar(work.beside, self.kernel, self.sums))
        return ahead

    def _compute(
        self,
        emitter: Emitter,
        op: hlo.HloOp,
        total: hlo.ReduceOp | None,
        out: Block,
        ins: Sequence[Readable],
        sizes: Sequence[int],
        blocks: Blocks,
        work: Round,
    ) -> dict[hlo.HloOp, Block]:
        """Emit an elementwise op. A ``total`` of the rows that it makes -> what Scalar adds up of it on the way."""
        timing = self.context.timing
        if total is None or total not in work.ops or not sums_as_made(timing, sizes, self.tiles.reduced):
            elementwise.emit(emitter, op, out, ins)
            return {}
        sums = self._sums_tile(total, blocks, sizes, work.here)
        emitter.summing = out, sums
        elementwise.emit(emitter, op, out, ins)
        if emitter.summing is None:
            return {total: sums}
        emitter.summing = None
        if total in self.at_once:
            self.pool.give_back(sums)
        return {}

    def _filled(self, emitter: Emitter, number: Splat, sizes: Sequence[int]) -> Block:
        tile = self.pool.tile(sizes, number.dtype, self.tiles.partitions)
        emitter.copy(tile, number)
        return tile

    def _count(self, op: hlo.IotaOp, out: Block, is_row: bool, starts: Starts) -> None:
        """Numbers along a dim; of rows, once for what is folded."""
        head, *free = out.dims
        once = (Atom(1, 0) if is_row and fold else atom for atom, fold in zip(free, self.tiles.reduced, strict=True))
        self.counting.emit(out.of((head, *once)), self.kernel.axis_of(op.shape.dims, op.iota_dimension.data), starts)

    def _sum_columns(self, blocks: Blocks, work: Round) -> Iterator[None]:
        """Add the tile to the column sums, which are the last ops."""
        for index, op in enumerate(work.ops):
            if not self.kernel.sums_columns(op):
                continue
            self.context.builder.mark(op.loc)
            source = self.operands.read(op.sources[0], work.here)
            assert isinstance(source, Block), "sums of constants are constants"
            assert self.columns is not None, "a kernel with column sums has them"
            self.columns.add(op, source)
            dying = {value: work.here[value] for value in work.dying.get(index, ()) if value in work.here}
            self.give_back(dying, blocks)
            yield

    def _emitter(self, scratch: list[Block]) -> Emitter:
        """Of one tile; its temporaries are added to ``scratch``."""

        def make(like: Block, dtype: str) -> Block:
            scratch.append(self.pool.like(like, dtype))
            return scratch[-1]

        return Emitter(self.context.builder, make, pace=pace(self.context.builder.timing), stays=self.derived)

    def give_back(self, tiles: Mapping[hlo.SSAValue, Block], blocks: Blocks) -> None:
        """The tiles of values that nothing reads any more."""
        for value, tile in tiles.items():
            for pool in {id(pool): pool for pool in (self.pool, self.loads, self.stores)}.values():
                pool.give_back(tile, stored=value in blocks and value not in self.inputs)

    def _written(self, op: hlo.HloOp, home: Block | None, here: Blocks) -> Block | None:
        """What the DMA casts as it stores the result of ``op`` in ``home``, if it may: it does not put it in order."""
        if op not in self.fusion.written or home is None or home.alloc.space is not Space.HBM:
            return None
        made = self.operands.read(op.sources[0], here)
        across = home.dims[0].size > 1 and abs(home.dims[0].stride) == itemsize(home.dtype)
        on_chip = isinstance(made, Block) and made.alloc.space is Space.SBUF
        return made if isinstance(made, Block) and on_chip and not across else None

    def store(self, home: Block | None, out: Block, row_dims: Sequence[int], is_row: bool) -> None:
        """Store what is ``out`` where it lives, if that is HBM."""
        if home is None or home.alloc.space is not Space.HBM:
            return
        home = home.select(row_dims) if is_row else home
        if is_row and self.crossing is not None:  # every partition has it
            home, out = home.of((Atom(1, 0), *home.dims[1:])), out.on_partitions(1)
        put(self.context.builder, home, out, Stream.DMA_STORE)

    def _load(
        self, emitter: Emitter, blocks: Blocks, sizes: Sequence[int], starts: Starts, work: Round
    ) -> dict[hlo.SSAValue, Block]:
        """The tiles of what others made, and of what counts."""
        partitions, turned = self.tiles.partitions, self.plan.transposed
        inputs = {value: blocks[value] for value in work.inputs if value not in turned}
        signed, casts = self.signed.__contains__, self.fusion.loaded
        here = map_inputs.load_all(self.context, self.loads, inputs, partitions, signed, casts, self.packed)
        if self.turner is not None:
            here |= {value: self.turner.load(value, blocks[value], emitter) for value in turned}
        for value, axis in work.iotas.items():
            here[value] = self.pool.tile(sizes, hlo.shape_of(value).dtype, partitions)
            self.counting.emit(here[value], axis, starts)
        return here

    def _sums_tile(self, op: hlo.ReduceOp, blocks: Blocks, sizes: Sequence[int], here: Blocks) -> Block:
        """Where what is made is added up for ``op``: its result, or what the partitions have of that."""
        if op in self.at_once:
            return self._repeated(self.pool.tile(self._kept(sizes), op.shape.dtype, self.tiles.partitions), sizes)
        if op.result not in here:
            here[op.result] = self.destination(op.result, blocks.get(op.result), sizes, True)
        return here[op.result]

    def _kept(self, sizes: Sequence[int]) -> list[int]:
        """The sizes of a row value."""
        return [1 if fold else size for fold, size in zip(self.tiles.reduced, sizes, strict=True)]

    def _repeated(self, home: Block, sizes: Sequence[int]) -> Block:
        """A row value with the reduced dims as repetitions."""
        dims = zip(self.tiles.reduced, sizes, home.dims[1:], strict=True)
        return home.of((home.dims[0], *(Atom(size, 0) if fold else atom for fold, size, atom in dims)))

    def destination(self, value: hlo.SSAValue, home: Block | None, sizes: Sequence[int], is_row: bool) -> Block:
        """The resident ``home`` of ``value``, or a tile; of a row value, with the reduced dims as repetitions."""
        dtype, kept = hlo.shape_of(value).dtype, self._kept(sizes) if is_row else list(sizes)
        if is_row and value in self.banks:
            home = self._in_bank(value, kept)
        elif is_row and value.owner in self.at_once:
            assert self.crossing is not None, "sums over the partitions"
            home = tile_in(self.context.builder, self.crossing.banks, kept, "f32", self.tiles.partitions)
        elif home is None or home.alloc.space is Space.HBM:
            home = (self.pool if home is None else self.stores).tile(kept, dtype, self.tiles.partitions)
        return self._repeated(home, sizes) if is_row else home

    def _in_bank(self, value: hlo.SSAValue, sizes: Sequence[int]) -> Block:
        return tile_in(self.context.builder, self.banks[value], sizes, "f32", self.tiles.partitions)

    def _is_on_tensor(self, op: hlo.ReduceOp, sizes: Sequence[int]) -> bool:
        """Whether TensorE adds up all that ``op`` folds, of a tile of ``sizes``."""
        folded = prod(size for size, reduced in zip(sizes, self.tiles.reduced, strict=True) if reduced)
        return self.kernel.sums_columns(op) or (self.crossing is not None and folded <= MOST_ADDED)

    def _is_array(self, blocks: Blocks, operand: hlo.SSAValue) -> bool:
        """Whether a tile has several values of a row on a partition of ``operand``, or those of many rows on each."""
        source = trace(operand, self.kernel, self.member)
        if source is not None:
            return self.crossing is not None or not self.kernel.is_row(hlo.shape_of(source))
        block = blocks.get(operand)
        return block is None or any(
            atom.stride and atom.size > 1 and (self.tiles.reduced[dim] or self.crossing is not None)
            for dim, atom in enumerate(block.dims[1:])
        )

    def _fold(
        self, emitter: Emitter, op: hlo.ReduceOp, out: Block, source: Readable, blocks: Blocks, copies: bool
    ) -> Block:
        """Fold rows into ``out``, and return it; or ``source``, where TensorE adds up all that rows have.

        ``copies``: what comes from outside may be copied as it is added up.
        """
        assert isinstance(source, Block), "deferred ops have one user, an elementwise op"
        kept = [0, *(dim + 1 for dim, reduced in enumerate(self.tiles.reduced) if not reduced)]
        folded = [dim + 1 for dim, reduced in enumerate(self.tiles.reduced) if reduced]
        if self._is_on_tensor(op, [atom.size for atom in source.dims[1:]]):
            return source.select([*kept, *(dim for dim in folded if source.dims[dim].size > 1)])
        if self.crossing is not None and out.alloc.space is Space.PSUM:
            out = emitter.scratch(out, "f32")  # TensorE reads it
        made = self.operands.sources[op.sources[0]]
        own = blocks.get(op.sources[0] if made is None else made) is None
        reduce_rows(
            emitter, self.context.combiners[op.to_apply.data[0]], out, source.select([*kept, *folded]), own, copies
        )
        return out

    def fold_parts(self, op: hlo.ReduceOp, parts: Block, home: Block | None, here: Blocks) -> Block:
        """The result of ``op`` from those of sections, ``parts`` [partition, section]: of one row a partition."""
        row_dims = [0, *(dim + 1 for dim, folded in enumerate(self.tiles.reduced) if not folded)]
        whole = self.destination(op.result, home, [1] * len(self.tiles.sizes), True)
        out, scratch = whole.select(row_dims), list[Block]()
        emitter = self._emitter(scratch)
        ones = [Atom(1, 0)] * (len(row_dims) - 1)
        source = parts.of((parts.dims[0], *ones, parts.dims[1]))
        reduce_rows(emitter, self.context.combiners[op.to_apply.data[0]], out, source)
        self.begin(emitter, op, out, out, rows_of(self.operands.read(op.sources[1], here), row_dims))
        self.store(home, out, row_dims, True)
        for tile in scratch:
            self.pool.give_back(tile)
        return whole

    def begin(self, emitter: Emitter, op: hlo.ReduceOp, out: Block, parts: Block, start: Readable) -> None:
        """Let ``out`` be what was folded, ``parts`` of it where rows lie across partitions, and ``start``."""
        if self.crossing is not None:
            self.crossing.add(emitter, out, parts)
        opcode, dtype = self.context.combiners[op.to_apply.data[0]], op.shape.dtype
        assert not isinstance(start, Deferred), "only arithmetic reads deferred operands"
        # the engines sum from +0, which either zero leaves as it is
        if not isinstance(start, Splat) or start.value != identity_of(opcode, dtype):
            elementwise.emit_binary(emitter, opcode, dtype, out, out, start)


def pace(timing: Timing) -> float:
    """How many elements Scalar makes while Vector makes one."""
    return timing.cycle(Stream.VECTOR) / timing.cycle(Stream.SCALAR)
