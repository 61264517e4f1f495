"""What is made of the products of a block of rows: elementwise ops and folds of its rows, by the rules of maps."""

from __future__ import annotations

from collections.abc import Sequence

from neuronx_cc.codegen.chains.pattern import Chain, Sink, made_by
from neuronx_cc.codegen.chains.schedule import Extent, Schedule
from neuronx_cc.codegen.chains.shifted import Shifted, take_shifted
from neuronx_cc.codegen.chains.slots import Slots
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Deferred, Emitter, Readable, Splat
from neuronx_cc.codegen.emission.tiles import TilePool, pieces
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.formation.graph import Kernel, squeeze, trace
from neuronx_cc.codegen.maps import elementwise
from neuronx_cc.codegen.maps.elementwise import ARITHMETIC
from neuronx_cc.codegen.maps.fusion import Fusion
from neuronx_cc.codegen.maps.lifetimes import Member, last_uses
from neuronx_cc.codegen.maps.operands import Operands
from neuronx_cc.codegen.maps.partition_scalars import partition_block
from neuronx_cc.codegen.maps.partitions import rows_of
from neuronx_cc.codegen.maps.row_reduction import reduce_rows, sums_of
from neuronx_cc.ir import hlo
from neuronx_cc.ir.frozen import replace
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.passes.analysis.values import identity_of

ROWS = [0]
"""The dims of a block of rows that what is folded has: the partitions."""


def inner_fusion(context: Context, chain: Chain) -> tuple[Kernel, Member, Fusion, dict[hlo.HloOp, Shifted]]:
    """What a chain computes between its contractions, as a map kernel, and which of its ops are part of another's
    instruction."""
    kernel, member, stored = inner_kernel(chain)
    fusion = Fusion(context, kernel, member, stored, lambda _: False, lambda _: False)
    return kernel, member, fusion, take_shifted(kernel, member, fusion, context.splat)


def inner_kernel(chain: Chain) -> tuple[Kernel, Member, set[hlo.SSAValue]]:
    """What a chain computes between its contractions, as a map kernel; and what of it the last ones read."""
    kernel = Kernel(0, list(chain.inner), squeeze(chain.dims), 1, True)
    member: Member = {op.result: kernel for op in (*chain.sources, *chain.inner)}
    return kernel, member, {*chain.stored, *(sink.value for sink in chain.sinks)}


class Body:
    """Emits it, for one block of rows after the other."""

    def __init__(
        self, context: Context, chain: Chain, schedule: Schedule, pool: TilePool, slots: Slots, emitter: Emitter
    ) -> None:
        self._chain, self.slots = chain, slots
        self.context, self.schedule, self.pool, self.emitter = context, schedule, pool, emitter
        self._stored = {*chain.stored, *(sink.value for sink in chain.sinks)}
        self.kernel, self.member, self.fusion, self._shifted = inner_fusion(context, chain)
        self.sums = sums_of(context, self.kernel, self.member)
        self.operands = Operands(context, self.kernel, self.member, self.fusion)
        self.dying = last_uses(self.kernel, self.member, self.fusion.within)
        self._place = {op: index for index, op in enumerate(self.kernel.ops)}
        self._scratch: list[Block] = []
        self.extent = Extent(schedule.row_parts, 0, schedule.columns)
        """Of the block of which something is emitted."""

    @property
    def order(self) -> list[hlo.HloOp | Sink]:
        """What is emitted: contractions right before their first reader, those of what is made right after it."""
        sources: dict[hlo.SSAValue, hlo.DotOp] = {op.result: op for op in self._chain.sources}
        found: dict[hlo.HloOp | Sink, None] = {}
        for op in self.kernel.ops:
            read = self._read_by(op) if op not in self.fusion else []
            found |= dict.fromkeys((*(sources[x] for x in read if x in sources), op))
            sinks = [sink for sink in self._chain.sinks if sink.value is op.result]
            for across in (True, False):
                found |= dict.fromkeys(sink for sink in sinks if sink.across is across)
        return list(found)

    @property
    def staying(self) -> set[hlo.DotOp]:
        """First contractions whose products arithmetic reads beside another array, which takes half the time while
        they are in PSUM; what else reads them wants the port there longer than Scalar does to copy them.
        """
        made: dict[hlo.SSAValue, hlo.DotOp] = {op.result: op for op in self._chain.sources}
        found = set[hlo.DotOp]()
        for op in self.kernel.ops:
            read = [made_by(x, self._chain.dims) for x in op.operands if self.context.splat(x) is None]
            arrays = [x for x in read if squeeze(hlo.shape_of(x).dims) == self._chain.dims]
            if op.opcode in ARITHMETIC and len(arrays) > 1:
                found.update(made[x] for x in arrays if x in made)
        return found

    @property
    def ends(self) -> dict[hlo.HloOp | Sink, list[hlo.SSAValue]]:
        """Behind what nothing reads the values that are contracted in the end."""
        last: dict[hlo.SSAValue, hlo.HloOp | Sink] = {}
        for op in self.order:
            read = [op.value] if isinstance(op, Sink) else self._read_by(op)
            last |= {value: op for value in read if value in self._stored}
        found: dict[hlo.HloOp | Sink, list[hlo.SSAValue]] = {}
        for value, op in last.items():
            found.setdefault(op, []).append(value)
        return found

    def _read_by(self, op: hlo.HloOp) -> list[hlo.SSAValue]:
        """What the instruction of ``op`` reads, that of ops without one included."""
        found: list[hlo.SSAValue] = []
        for value in (made_by(x, self._chain.dims) for x in op.operands):
            made = value.owner
            inside = isinstance(made, hlo.HloOp) and made in self.fusion
            found += self._read_by(made) if isinstance(made, hlo.HloOp) and inside else [value]
        return found

    @property
    def steps(self) -> int:
        """Ops with an instruction of their own."""
        return sum(op not in self.fusion for op in self.kernel.ops)

    def scratch(self, like: Block, dtype: str) -> Block:
        """A tile until the end of the op."""
        self._scratch.append(self.pool.tile([atom.size for atom in like.dims[1:]], dtype, like.dims[0].size))
        return self._scratch[-1]

    def factor_of(self, op: hlo.DotOp) -> tuple[hlo.HloOp, float] | None:
        """The product with a constant that alone reads those of ``op``."""
        readers = [each for each in self.kernel.ops if op.result in self._read_by(each)]
        if len(readers) != 1 or readers[0] in self._shifted or not isinstance(readers[0], hlo.MultiplyOp):
            return None
        (reader,) = readers
        splats = [splat for x in reader.operands if (splat := self.context.splat(x)) is not None]
        plain = splats and reader.shape.dtype == op.shape.dtype == "f32" and reader.result not in self._stored
        return (reader, splats[0]) if plain and reader not in self.fusion.within.values() else None

    def leave_at_once(self, bank: Block, factor: float) -> Block:
        """Products in SBUF, times ``factor``, where nothing else wants them in PSUM: Scalar takes less time there."""
        out = self._tile("f32", False)
        for start, size in pieces(self.extent.columns, self.context.sizes.bank_columns):
            self.emitter.leave(out.index(1, Affine(start), size), bank.index(1, Affine(start), size), factor)
        self.slots.give_back(bank)
        return out

    def leave(self, out: Block, bank: Block) -> None:
        """Copy or cast what TensorE made, on the engine that has less to do."""
        self.emitter.copy(out, bank)

    def emit(self, op: hlo.HloOp, here: dict[hlo.SSAValue, Block], summed: set[hlo.HloOp]) -> bool:
        """Emit ``op``; ``here`` has the tiles of what it reads, ``summed`` the sums that came with what they add up.
        False where it has no instruction of its own.
        """
        e = self.emitter
        if op in self.fusion:
            return False
        e.mark(op.loc)
        is_row = self.kernel.is_row(op.shape)
        made = self.fusion.casts.get(op, op)
        shifted = self._shifted.get(op)
        if op.result not in here:
            reused = self._in_place(op, shifted, here) or self._selected(op, here)
            here[op.result] = reused or self._tile(op.shape.dtype, is_row)
        out = here[op.result].select(ROWS) if is_row else here[op.result]
        total = self.sums.get(op)
        if isinstance(op, hlo.ReduceOp):
            self._reduce(op, out, self.operands.of(made, here), op in summed)
        elif shifted is not None:
            if total is not None:
                here[total.result] = self._tile(total.shape.dtype, True)
                summed.add(total)
            self._shift(shifted, out, None if total is None else here[total.result], here)
        else:
            ins = self.operands.of(made, here)
            if total is not None:
                here[total.result] = self._tile(total.shape.dtype, True)
                e.summing = out, here[total.result]
            elementwise.emit(e, made, out, [rows_of(x, ROWS) for x in ins] if is_row else ins)
            if total is not None and e.summing is None:
                summed.add(total)
            e.summing = None
        while self._scratch:
            self.pool.give_back(self._scratch.pop(0))
        for value in self.dying.get(self._place[op], ()):
            if value in here and value not in self._stored and here[value] is not here[op.result]:
                self.pool.give_back(here[value])
                self.slots.give_back(here[value])
        return True

    def _in_place(self, op: hlo.HloOp, shifted: Shifted | None, here: dict[hlo.SSAValue, Block]) -> Block | None:
        """The products that ``op`` alone still reads, if arithmetic with another array reads what it makes: from PSUM
        Vector reads that in half the time.
        """
        if shifted is None or shifted.function != "copy" or op.result in self._stored or op in self.sums:
            return None
        source = trace(shifted.array, self.kernel, self.member)
        block = here.get(shifted.array if source is None else source)
        if block is None or not self.slots.has(block) or source not in self.dying.get(self._place[op], ()):
            return None
        users = [use.operation for use in op.result.uses]
        return block if all(isinstance(user, hlo.MultiplyOp) for user in users) else None

    def _selected(self, op: hlo.HloOp, here: dict[hlo.SSAValue, Block]) -> Block | None:
        """The tile of what ``op`` keeps where a mask says so, if nothing else reads it and a constant stands elsewhere:
        that is written over it.
        """
        if not isinstance(op, hlo.SelectOp) or self.context.splat(op.operands[2]) is None or op in self.fusion.casts:
            return None
        source = trace(op.operands[1], self.kernel, self.member)
        if source is None or source not in here or source not in self.dying.get(self._place[op], ()):
            return None
        block = here[source]
        return block if block.dtype == op.shape.dtype and block.alloc.space is Space.SBUF else None

    def _shift(self, shifted: Shifted, out: Block, total: Block | None, here: dict[hlo.SSAValue, Block]) -> None:
        """``shifted``, bank by bank of PSUM, and the sums of what it makes."""
        e, s = self.emitter, shifted
        source, summand = (self.operands.read(x, here) for x in (s.array, s.summand))
        factor = s.factor if isinstance(s.factor, float) else self.operands.read(s.factor, here)
        assert isinstance(source, Block), "made on chip"
        assert isinstance(summand, Block), "one a row"
        assert not isinstance(factor, Deferred | Splat), "one a row, or a constant"
        in_psum = Space.PSUM in (source.alloc.space, out.alloc.space)
        banks = list(pieces(self.extent.columns, self.context.sizes.bank_columns if in_psum else self.schedule.columns))
        parts = total
        if total is not None and len(banks) > 1:
            parts = self.scratch(total.of((total.dims[0], Atom(len(banks), 4))), "f32")
        scalars = [partition_block(x) for x in (factor, summand) if isinstance(x, Block)]
        imm = [factor if isinstance(factor, float) else 1.0]
        for at, (start, size) in enumerate(banks):
            made, read = (x.index(1, Affine(start), size) for x in (out, source))
            if parts is not None or s.function != "copy" or e.scalar_is_free(size):
                sums = [] if parts is None else [partition_block(parts.index(1, Affine(at * (parts is not total)), 1))]
                flags = ["scale_ap"] * (len(scalars) > 1) + ["bias"] + ["accumulate"] * bool(sums)
                e.scalar_load += size
                self.context.builder.emit(
                    "activation", Stream.SCALAR, [made, *sums], [read, *scalars], [s.function], imm, flags
                )
            else:
                e.vector_load += size
                flags = ["ap0"] * (len(scalars) > 1) + ["ap1"]
                self.context.builder.emit(
                    "tensor_scalar", Stream.VECTOR, [made], [read, *scalars], ["multiply", "add"],
                    imm if len(scalars) == 1 else [], flags,
                )  # fmt: skip
        if total is not None and parts is not None and parts is not total:
            reduce_rows(e, "add", partition_block(total), parts, False)

    def _tile(self, dtype: str, is_row: bool) -> Block:
        return self.room(self.pool.tile([1 if is_row else self.schedule.columns], dtype, self.schedule.row_parts))

    def room(self, tile: Block) -> Block:
        """What is computed of a block in ``tile`` of a whole one; a number of each row is repeated."""
        wide = tile.dims[1] if tile.dims[1].size > 1 else Atom(1, 0)
        rows = tile.on_partitions(self.extent.rows)
        return rows.of((rows.dims[0], replace(wide, size=self.extent.columns)))

    def _reduce(self, op: hlo.ReduceOp, out: Block, ins: Sequence[Readable], summed: bool) -> None:
        opcode, dtype = self.context.combiners[op.to_apply.data[0]], op.shape.dtype
        source, init = ins
        assert isinstance(source, Block), "folds read arrays"
        if not summed:
            made = trace(op.operands[0], self.kernel, self.member)
            own = made in self.dying.get(self._place[op], ()) and source.alloc.space is Space.SBUF
            reduce_rows(self.emitter, opcode, out, source, own)
        start = rows_of(init, ROWS)
        assert not isinstance(start, Deferred), "only arithmetic reads deferred operands"
        if not isinstance(start, Splat) or start.value != identity_of(opcode, dtype):
            elementwise.emit_binary(self.emitter, opcode, dtype, out, out, start)
