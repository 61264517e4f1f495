"""What is made of the products of a block of rows: elementwise ops and folds of its rows, by the rules of maps."""

from __future__ import annotations

from collections.abc import Sequence

from neuronx_cc.codegen.chains.pattern import Chain, Sink, made_by
from neuronx_cc.codegen.chains.schedule import Schedule
from neuronx_cc.codegen.chains.slots import Slots
from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.builder import Block
from neuronx_cc.codegen.emission.emitter import Deferred, Emitter, Readable, Splat
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.formation.graph import Kernel, squeeze
from neuronx_cc.codegen.maps import elementwise
from neuronx_cc.codegen.maps.fusion import Fusion
from neuronx_cc.codegen.maps.lifetimes import Member, last_uses
from neuronx_cc.codegen.maps.operands import Operands
from neuronx_cc.codegen.maps.partitions import rows_of
from neuronx_cc.codegen.maps.row_reduction import reduce_rows, sums_of
from neuronx_cc.ir import hlo
from neuronx_cc.passes.analysis.values import identity_of

ROWS = [0]
"""The dims of a block of rows that what is folded has: the partitions."""


def inner_kernel(chain: Chain) -> tuple[Kernel, Member, set[hlo.SSAValue]]:
    """What a chain computes between its contractions, as a map kernel; and what of it the last ones read."""
    kernel = Kernel(0, list(chain.inner), squeeze(chain.dims), 1, True)
    member: Member = {op.result: kernel for op in (*chain.sources, *chain.inner)}
    return kernel, member, {sink.value for sink in chain.sinks}


class Body:
    """Emits it, for one block of rows after the other."""

    def __init__(
        self, context: Context, chain: Chain, schedule: Schedule, pool: TilePool, slots: Slots, emitter: Emitter
    ) -> None:
        self._chain, self.slots = chain, slots
        self.context, self.schedule, self.pool, self.emitter = context, schedule, pool, emitter
        self.kernel, member, stored = inner_kernel(chain)
        self._stored = stored
        self.fusion = Fusion(context, self.kernel, member, stored, lambda _: False, lambda _: False)
        self.sums = sums_of(context, self.kernel, member)
        self.operands = Operands(context, self.kernel, member, self.fusion)
        self.dying = last_uses(self.kernel, member, self.fusion.within)
        self._place = {op: index for index, op in enumerate(self.kernel.ops)}
        self._scratch: list[Block] = []

    @property
    def order(self) -> list[hlo.HloOp | Sink]:
        """What is emitted: contractions right before their first reader, those of what is made right after it."""
        sources: dict[hlo.SSAValue, hlo.DotOp] = {op.result: op for op in self._chain.sources}
        found: dict[hlo.HloOp | Sink, None] = {}
        wanted: dict[hlo.HloOp, list[hlo.DotOp]] = {}
        for op in self.kernel.ops:
            made = (made_by(x, self._chain.dims) for x in op.operands)
            wanted.setdefault(self._reader(op), []).extend(sources[x] for x in made if x in sources)
        for op in self.kernel.ops:
            found |= dict.fromkeys((*wanted.get(op, ()), op))
            sinks = [sink for sink in self._chain.sinks if sink.value is op.result]
            for across in (True, False):
                found |= dict.fromkeys(sink for sink in sinks if sink.across is across)
        return list(found)

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
        inside = [op, *(part for part in self.fusion.within if self._reader(part) is op)]
        return [made_by(x, self._chain.dims) for each in inside for x in each.operands]

    def _reader(self, op: hlo.HloOp) -> hlo.HloOp:
        """The op by whose instruction ``op`` is computed."""
        while op in self.fusion.within:
            op = self.fusion.within[op]
        return op

    @property
    def steps(self) -> int:
        """Ops with an instruction of their own."""
        return sum(op not in self.fusion for op in self.kernel.ops)

    def scratch(self, like: Block, dtype: str) -> Block:
        """A tile until the end of the op."""
        self._scratch.append(self.pool.tile([atom.size for atom in like.dims[1:]], dtype, like.dims[0].size))
        return self._scratch[-1]

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
        if op.result not in here:
            here[op.result] = self._tile(op.shape.dtype, is_row)
        out = here[op.result].select(ROWS) if is_row else here[op.result]
        made = self.fusion.casts.get(op, op)
        ins = self.operands.of(made, here)
        if isinstance(op, hlo.ReduceOp):
            self._reduce(op, out, ins, op in summed)
        else:
            total = self.sums.get(op)
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
            if value in here and value not in self._stored:
                self.pool.give_back(here[value])
                self.slots.give_back(here[value])
        return True

    def _tile(self, dtype: str, is_row: bool) -> Block:
        s = self.schedule
        tile = self.pool.tile([1 if is_row else s.columns], dtype, s.row_parts)
        return tile.of((tile.dims[0], Atom(s.columns, 0))) if is_row else tile

    def _reduce(self, op: hlo.ReduceOp, out: Block, ins: Sequence[Readable], summed: bool) -> None:
        opcode, dtype = self.context.combiners[op.to_apply.data[0]], op.shape.dtype
        source, init = ins
        assert isinstance(source, Block), "folds read arrays"
        if not summed:
            reduce_rows(self.emitter, opcode, out, source, False)
        start = rows_of(init, ROWS)
        assert not isinstance(start, Deferred), "only arithmetic reads deferred operands"
        if not isinstance(start, Splat) or start.value != identity_of(opcode, dtype):
            elementwise.emit_binary(self.emitter, opcode, dtype, out, out, start)
