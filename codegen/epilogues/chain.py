"""The ops of an epilogue on tiles, by the rules of maps: emitted, or recorded for whoever plans.

A ``Chain`` is what a kernel computes after its contraction: elementwise ops in order, the last of which makes the
result, and the arrays that they read beside the sums. ``Ready`` knows which of these are one value a row, and so what
each instruction does on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Unpack

from neuronx_cc.codegen.context import Context
from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.builder import Affine, Block, Modifiers, split_scalars
from neuronx_cc.codegen.emission.emitter import Emitter
from neuronx_cc.codegen.emission.tiles import dense
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.codegen.epilogues.work import Epilogue, Step, slots
from neuronx_cc.codegen.formation.graph import Kernel, squeeze
from neuronx_cc.codegen.maps import elementwise
from neuronx_cc.codegen.maps.elementwise import IN_FP32
from neuronx_cc.codegen.maps.fusion import Fusion
from neuronx_cc.codegen.maps.lifetimes import Member, last_uses
from neuronx_cc.codegen.maps.operands import Operands
from neuronx_cc.codegen.maps.partitions import defer_partitions
from neuronx_cc.ir import hlo
from neuronx_cc.ir.isa.program import Space, Stream
from neuronx_cc.ir.isa.timing import Tile
from neuronx_cc.ir.types import itemsize

Room = Callable[[int, Block, str], Block]
"""``room(number, like, dtype)``: tile ``number`` of those beside operands and result, of the sizes of ``like``."""


@dataclass
class Chain:
    """``ops`` compute the result of ``start``, the sums as they come."""

    context: Context
    start: hlo.SSAValue
    ops: tuple[hlo.HloOp, ...]
    arrays: tuple[hlo.SSAValue, ...]
    """What they read beside, but constants."""
    _ready: dict[tuple[bool, ...], Ready] = field(default_factory=dict)

    @classmethod
    def of(cls, context: Context, start: hlo.SSAValue, ops: Sequence[hlo.HloOp]) -> Chain | None:
        """None without ops."""
        made = {start, *(op.results[0] for op in ops)}
        read = dict.fromkeys(operand for op in ops for operand in op.sources if operand not in made)
        arrays = tuple(operand for operand in read if context.splat(operand) is None)
        return cls(context, start, tuple(ops), arrays) if ops else None

    @cached_property
    def spelling(self) -> Hashable:
        """Equal for chains of the same ops on arrays of the same types."""
        values = (self.start, *self.arrays, *(op.results[0] for op in self.ops))
        numbers, splat = {value: at for at, value in enumerate(values)}, self.context.splat

        def seen(value: hlo.SSAValue) -> Hashable:
            shape = hlo.shape_of(value)
            return numbers[value] if value in numbers else (repr(splat(value)), shape.dtype, shape.dims)

        types = map(hlo.shape_of, values)
        ops = [(op.opcode, *sorted(op.properties.items()), *map(seen, op.sources)) for op in self.ops]
        return tuple([(shape.dtype, shape.dims) for shape in types]), tuple(ops)

    def epilogue(self, columns: Sequence[bool], arrays: Sequence[str], result: str, factor: float) -> Epilogue:
        """What it does to a tile (``Ready.record``), of equal chains found once."""
        key = self.spelling, tuple(columns), tuple(arrays), result, factor
        known = self.context.planner.epilogues
        if key not in known:
            known[key] = self.ready(tuple(columns)).record(arrays, result, factor)
        return known[key]

    def ready(self, columns: tuple[bool, ...]) -> Ready:
        """``columns``: for each array, whether it is one value a row."""
        found = self._ready.get(columns)
        if found is None:
            found = self._ready[columns] = Ready.of(self, columns)
        return found


@dataclass(slots=True)
class Ready:
    """A chain whose instructions are known."""

    chain: Chain
    columns: tuple[bool, ...]
    operands: Operands
    dying: Mapping[int, list[hlo.SSAValue]]
    """Op number -> values that nothing after it reads."""
    stay_in_bank: frozenset[hlo.HloOp]
    """Ops that replace what lies in PSUM, if nothing reads that any more."""

    @classmethod
    def of(cls, chain: Chain, columns: tuple[bool, ...]) -> Ready:
        """Decide what is computed inside which instruction."""
        context, result = chain.context, chain.ops[-1].results[0]
        kernel = Kernel(0, list(chain.ops), squeeze(hlo.shape_of(result).dims), is_map=True)
        member: Member = {op.results[0]: kernel for op in chain.ops}
        fusion = Fusion(context, kernel, member, {result}, lambda _: False, lambda _: False)
        blocks = {array: _tile("f32", 2, column) for array, column in zip(chain.arrays, columns, strict=True)}
        blocks[result] = _tile("f32", 2)
        places = defer_partitions(kernel, member, blocks, {}, fusion, context.splat)
        return cls(
            chain,
            columns,
            Operands(context, kernel, member, fusion, places),
            last_uses(kernel, member, fusion.within),
            _better_in_bank(chain, fusion),
        )

    def record(self, arrays: Sequence[str], result: str, factor: float) -> Epilogue:
        """What ``steps`` would emit, for a tile as wide as a bank; ``arrays`` and ``result`` are element types."""
        builder = self.chain.context.builder
        width, most, nowhere = builder.sizes.bank_columns, 0, Alloc(Space.SBUF, 0, 0)

        def room(number: int, like: Block, dtype: str) -> Block:
            nonlocal most
            most = max(most, number + 1)
            return Block(nowhere, dtype, Affine(), (like.dims[0], *dense([atom.size for atom in like.dims[1:]], dtype)))

        recorder = _Recorder(builder, lambda like, dtype: like)
        tiles = [_tile(dtype, width, column) for dtype, column in zip(arrays, self.columns, strict=True)]
        sums = _tile("f32", width, space=Space.PSUM)
        deque(self.steps(recorder, room, _tile(result, width), sums, tiles, factor), 0)
        return Epilogue(tuple(recorder.steps), most)

    def steps(
        self, emitter: Emitter, room: Room, out: Block, sums: Block, arrays: Sequence[Block], factor: float
    ) -> Iterator[None]:
        """Emit ``out = ops(factor * sums, arrays)``, blocks of equal sizes of at most a bank, op by op.

        ``sums`` are overwritten.
        """
        chain, fusion = self.chain, self.operands.fusion
        busy: list[bool] = []
        held: dict[hlo.SSAValue, int] = {}
        lent: list[int] = []

        def take(like: Block, dtype: str) -> Block:
            at = slots(busy)
            busy[at : at + 1] = [True]
            lent.append(at)
            return room(at, like, dtype)

        emitter.scratch = take
        emitter.vector_load, emitter.scalar_load = 1, 0  # whatever either engine can do first is for Scalar
        dtype, in_bank = hlo.shape_of(chain.start).dtype, chain.start
        here = {chain.start: sums, **dict(zip(chain.arrays, arrays, strict=True))}
        if dtype != "f32":
            here[chain.start] = take(sums, dtype)
            held[chain.start] = lent.pop()
        if factor != 1 or dtype != "f32":
            emitter.leave(here[chain.start], sums, factor)
            yield
        for index, op in enumerate(chain.ops):
            dying = self.dying.get(index, ())
            if op not in fusion:
                result = op.results[0]
                if op is chain.ops[-1]:
                    here[result] = out
                elif in_bank in dying and op in self.stay_in_bank:
                    here[result], in_bank = sums, result
                else:
                    here[result] = take(out, op.shape.dtype)
                    held[result] = lent.pop()
                made = fusion.casts.get(op, op)
                emitter.mark(op.loc)
                elementwise.emit(emitter, made, here[result], self.operands.of(made, here))
                yield
            for value in dying:
                if value in held:
                    busy[held.pop(value)] = False
            while lent:
                busy[lent.pop()] = False


def _better_in_bank(chain: Chain, fusion: Fusion) -> frozenset[hlo.HloOp]:
    """Ops of one instruction whose FP32 results Vector reads beside other tiles, which takes half the time if one of
    both lies in PSUM.
    """
    made = {op.results[0] for op in chain.ops} | set(chain.arrays)
    return frozenset(
        op
        for op in chain.ops
        if op not in fusion
        and op.shape.dtype == "f32"
        and op.opcode in IN_FP32
        and any(
            sum(operand in made for operand in use.operation.operands) > 1 and use.operation in chain.ops
            for use in op.results[0].uses
        )
    )


class _Recorder(Emitter):
    """Keeps what it would emit."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]  # as the class that it stands for
        self.steps: list[Step] = []

    def mark(self, loc: object) -> None:
        """Nothing is emitted for it."""

    def issue(
        self, op: str, stream: Stream, outs: Sequence[Block], ins: Sequence[Block], **modifiers: Unpack[Modifiers]
    ) -> None:
        """Note it."""
        tiles, _ = split_scalars(outs, ins)
        alu, imm, flags = modifiers.get("alu", ()), modifiers.get("imm", ()), modifiers.get("flags", ())
        seen = tuple(map(_seen, outs)), tuple(map(_seen, tiles))
        self.steps.append(Step(op, stream, *seen, tuple(alu), tuple(imm), tuple(flags)))


def _seen(block: Block) -> Tile:
    return Tile(block.dtype, block.alloc.space is Space.PSUM)


def _tile(dtype: str, width: int, column: bool = False, space: Space = Space.SBUF) -> Block:
    """A tile of two rows that lies nowhere."""
    stride = 0 if column else itemsize(dtype)
    return Block(Alloc(space, 0, 0), dtype, Affine(), (Atom(2, 1, True), Atom(width, stride)))
