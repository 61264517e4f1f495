"""Long rows in sections: with room for one tile only, engines and transfers follow each other section by section.

Each op is emitted section by section; so one that reads what another engine makes, the store of a result, and the load
of the next tile wait for a section, not for the whole row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from neuronx_cc.codegen.emission.builder import Affine, Block
from neuronx_cc.codegen.emission.emitter import Deferred, Emitter, Readable, Splat
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.maps import elementwise
from neuronx_cc.codegen.maps.row_reduction import reduce_rows
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Stream
from neuronx_cc.ir.isa.timing import Timing


@dataclass(frozen=True, slots=True)
class Sections:
    """``count`` sections of at most ``step`` elements of a block's dim ``dim``, which has ``total``."""

    dim: int
    step: int
    total: int

    @property
    def count(self) -> int:
        return ceil(self.total / self.step)

    def of(self, *blocks: Block) -> Iterator[tuple[Block, ...]]:
        """The blocks section by section."""
        for number in range(self.count):
            yield tuple(self.cut(block, number) for block in blocks)

    def cut(self, block: Block, number: int) -> Block:
        start = number * self.step
        return block.index(self.dim, Affine(start), min(self.step, self.total - start))

    def operand(self, operand: Readable, number: int) -> Readable:
        """Section ``number`` of what an op reads."""
        if isinstance(operand, Splat):
            return operand
        if isinstance(operand, Deferred):
            parts = [part and self.cut(part, number) for part in (operand.block, operand.scale, operand.partition)]
            assert parts[0] is not None, "a deferred operand has a block"
            return replace(operand, block=parts[0], scale=parts[1], partition=parts[2])
        return self.cut(operand, number)

    def sum(self, parts: Block, out: Block, number: int) -> Block:
        """Where the sum of section ``number`` goes: of ``parts`` [partition, section], with the dims of ``out``."""
        section = self.cut(out, number)
        repeated = (Atom(atom.size, 0) for atom in section.dims[1:])
        return parts.index(1, Affine(number)).of((parts.dims[0], *repeated))


def sections_of(timing: Timing, sizes: Sequence[int], reduced: Sequence[bool]) -> Sections | None:
    """Of tiles of one row a partition that is much longer than what an engine makes while another waits for it."""
    long = [dim for dim, size in enumerate(sizes) if size > 1]
    if len(long) != 1 or not reduced[long[0]]:
        return None
    step = ceil(timing.transfer_latency / timing.cycle(Stream.VECTOR))
    total = prod(sizes)
    count = total // step
    return Sections(long[0] + 1, ceil(total / count), total) if count > 1 else None


def emit_sections(
    sections: Sections,
    pool: TilePool,
    emitter: Emitter,
    op: hlo.HloOp,
    out: Block,
    ins: Sequence[Readable],
    row_dims: Sequence[int],
) -> None:
    """Emit ``op`` section by section; the sums of its rows, dims ``row_dims``, are those of their sections' sums."""
    total = emitter.summing[1] if emitter.summing is not None else None
    parts = pool.tile([sections.count], "f32", out.dims[0].size)
    missed = 0
    for number in range(sections.count):
        section = sections.cut(out, number)
        emitter.summing = (section, sections.sum(parts, out, number)) if total is not None else None
        elementwise.emit(emitter, op, section, [sections.operand(x, number) for x in ins])
        missed += emitter.summing is not None
    if total is not None and not missed:
        kept = total.select(row_dims)
        ones = [Atom(1, 0)] * (len(kept.dims) - 1)
        reduce_rows(emitter, "add", kept, parts.of((parts.dims[0], *ones, parts.dims[1])))
    emitter.summing = (out, total) if total is not None and missed else None
    pool.give_back(parts)
