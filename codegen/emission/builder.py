"""The tile program builder: loops, rotating tiles and instructions, with synchronisation done on the way.

Kernels write straight-line code and counted loops; addresses are affine in the loop registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict, Unpack

from neuronx_cc.codegen.emission.accesses import Alloc
from neuronx_cc.codegen.emission.block import Block as Block
from neuronx_cc.codegen.emission.block import merge_free as merge_free
from neuronx_cc.codegen.emission.block import ref
from neuronx_cc.codegen.emission.block import split_scalars as split_scalars
from neuronx_cc.codegen.emission.frames import Frame
from neuronx_cc.codegen.emission.memory import Arena
from neuronx_cc.codegen.emission.sync import Synchroniser
from neuronx_cc.codegen.emission.views import Affine as Affine
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.ir.errors import CompileError, Loc
from neuronx_cc.ir.isa.limits import MAX_WAIT_COEFS
from neuronx_cc.ir.isa.program import (
    MAX_FREE_DIMS,
    Branch,
    Debug,
    Else,
    End,
    Instr,
    Loop,
    Owner,
    Program,
    Ref,
    Space,
    Stream,
    While,
)
from neuronx_cc.ir.isa.timing import Timing
from neuronx_cc.ir.machine import Machine, Sizes
from neuronx_cc.ir.types import FLOATS

LAST_REGISTERS = 16
"""Free registers from which on loops take those of closed ones: phases, which must not be overwritten, need theirs."""


@dataclass(slots=True)
class Ring:
    """``count`` buffers of ``nbytes`` used in turn, so that one is filled while others are read."""

    alloc: Alloc
    count: int
    nbytes: int
    phases: int = 1
    """Straight-line code in a loop turns through one in so many of them, those of its iteration: for rings of which an
    iteration takes few."""
    turn: int = 0


@dataclass(slots=True)
class Builder:
    """Emits one program for one machine."""

    machine: Machine
    timing: Timing = field(init=False)
    sizes: Sizes = field(init=False)
    hbm: Arena = field(init=False)
    sbuf: Arena = field(init=False)
    psum: Arena = field(init=False)
    program: Program = field(default_factory=Program)
    sync: Synchroniser = field(default_factory=Synchroniser)
    _free_registers: list[int] = field(default_factory=lambda: list(range(63, -1, -1)))
    _unrolled: list[Frame] = field(default_factory=list)
    """Scopes whose iterations are being unrolled, innermost last."""
    _closed_registers: list[int] = field(default_factory=list)
    _debug: dict[Debug, int] = field(default_factory=dict)
    _current_debug: int = 0
    _marked: tuple[str, Loc] | None = None
    kernel: str = ""

    def __post_init__(self) -> None:
        self.timing = Timing(self.machine)
        self.sizes = sizes = self.timing.sizes
        alignment = int(self.machine["sram.min_align"])
        self.hbm = Arena(Space.HBM, sizes.hbm_bytes, alignment)
        self.sbuf = Arena(Space.SBUF, sizes.sbuf_bytes, alignment)
        self.psum = Arena(Space.PSUM, sizes.psum_bytes, sizes.bank_bytes)

    def at(self, kernel: str, loc: Loc) -> None:
        """Instructions from here on belong to ``kernel`` and come from the HLO op at ``loc``."""
        self.kernel = kernel
        self.mark(loc)

    def mark(self, loc: Loc) -> None:
        """Instructions from here on come from the HLO op at ``loc``."""
        if self._marked == (self.kernel, loc):
            return
        self._marked = self.kernel, loc
        debug = Debug(self.kernel, loc.name, loc.op_name, loc.source_file, loc.source_line)
        self._current_debug = self._debug.setdefault(debug, len(self.program.debug))
        if self._current_debug == len(self.program.debug):
            self.program.debug.append(debug)

    @contextmanager
    def loop(self, count: int) -> Iterator[Affine]:
        """A counted loop; yields its index. A single iteration needs no loop."""
        if count == 1:
            yield Affine()
            return
        register = self._loop_register()
        frame = self.sync.open_loop(count, register)
        frame.reusable = set(self._closed_registers)
        start = Loop(count, register)
        self.program.records.append(start)
        yield Affine(0, ((register, 1),))
        start.phases = tuple((phase, modulus) for modulus, phase in frame.phases.items())
        self.sync.close_loop()
        start.streams = frozenset(frame.finished)
        self.program.records.append(End())
        # an enclosing loop may still claim a phase register, which an inner loop must not overwrite
        self._closed_registers += [register, *frame.phases.values()]
        if len(self.sync.frames) == self.sync.outermost:
            self._free_registers += self._closed_registers
            self._closed_registers = []

    @contextmanager
    def region(self, start: While | Branch) -> Iterator[None]:
        """A region: what is emitted inside is its body, or with ``next_case`` its cases."""
        self.program.records.append(start)
        counting = isinstance(start, While) and start.count > 0
        if counting:
            self.sync.loaded.add(start.register)
            self.sync.register_range[start.register] = start.count  # type: ignore[union-attr]
        self._barrier()
        self.sync.open_region()
        yield
        self.sync.close_region()
        self._barrier()
        if counting:
            self.sync.loaded.discard(start.register)
        self.program.records.append(End())

    def next_case(self) -> None:
        """The next case of the innermost region."""
        self.program.records.append(Else())
        self.sync.close_region()
        self._barrier()
        self.sync.open_region()

    def _barrier(self) -> None:
        for arena in (self.hbm, self.sbuf, self.psum):
            arena.forget()

    def each(self, count: int, unroll: int = 4, body: int = 1) -> Iterator[Affine]:
        """Indices of a loop, ``body`` in an iteration; constants of short ones, and of those too deep for waits."""
        if count <= unroll or self.open_loops >= MAX_WAIT_COEFS:
            with self.unrolled_if(count > 1):
                yield from map(Affine, range(count))
            return
        whole, left = divmod(count, min(body, count))
        with self.unrolled_if(left > 0):
            with self.loop(whole) as index, self.unrolled_if(body > 1):
                yield from (index * body + at for at in range(min(body, count)))
            yield from map(Affine, range(count - left, count))

    @contextmanager
    def unrolled(self) -> Iterator[None]:
        """What is emitted inside is straight-line code of the innermost loop's body: rings turn with every use."""
        self._unrolled.append(self.sync.frames[-1])
        yield
        self._unrolled.pop()

    def unrolled_if(self, several: bool) -> AbstractContextManager[None]:
        """``unrolled`` where ``several`` pieces, or loops over them, follow each other; else nothing."""
        return self.unrolled() if several else nullcontext()

    def tiles(self, total: int, step: int) -> list[tuple[int, int, int]]:
        """Cut ``total`` into (start, count of tiles, tile size): the full tiles, then the rest."""
        full, rest = divmod(total, step)
        pieces = [(0, full, step)] if full else []
        return pieces + ([(full * step, 1, rest)] if rest else [])

    def pieces(self, total: int, step: int) -> Iterator[tuple[Affine, int]]:
        """Start and size of each tile of a dim: of the full ones, as by ``each``, then of the rest."""
        cut = self.tiles(total, step)
        with self.unrolled_if(len(cut) > 1):
            for start, count, size in cut:
                for index in self.each(count):
                    yield index * size + start, size

    @property
    def open_loops(self) -> int:
        """Loops of its kernel around what is emitted next."""
        return len(self.sync.frames) - self.sync.outermost

    @property
    def registers_left(self) -> int:
        """Registers that loops may still take."""
        return len(self._free_registers)

    def new_register(self) -> int:
        """A free register; ``release_register`` gives it back."""
        if not self._free_registers:
            raise CompileError("IREG001", "loops need more than the 64 sequencer registers", "nest fewer loops")
        return self._free_registers.pop()

    def _loop_register(self) -> int:
        """A register for a loop's index: when few are free, that of a closed loop, which sets it anew."""
        if len(self._free_registers) > LAST_REGISTERS or not self._closed_registers:
            return self.new_register()
        return self._take_closed(self._closed_registers[-1])

    def _phase_register(self, frame: Frame) -> int:
        """A register for a phase of ``frame``: when few are free, one that no loop inside it sets."""
        if len(self._free_registers) > LAST_REGISTERS or not frame.reusable:
            return self.new_register()
        return self._take_closed(min(frame.reusable))

    def _take_closed(self, register: int) -> int:
        self._closed_registers.remove(register)
        for frame in self.sync.frames:
            frame.reusable.discard(register)
        return register

    def load_register(self, view: View, low: int, high: int, stream: Stream, register: int | None = None) -> int:
        """Load the integer scalar at ``view`` into a (new) register of ``stream``, clamped to [low, high]."""
        register = self.new_register() if register is None else register
        self.sync.register_range[register] = high + 1
        self.sync.loaded.add(register)
        source = Block(view.alloc, view.dtype, view.start, () if view.in_sbuf else (Atom(1, 0), Atom(1, 0)))
        self.emit("reg_load", stream, [], [source], imm=[register, low, high])
        return register

    def group(self, groups: tuple[tuple[int, ...], ...]) -> int:
        """Number of ``groups`` in the program's table."""
        if groups not in self.program.groups:
            self.program.groups.append(groups)
        return self.program.groups.index(groups)

    def release_register(self, register: int) -> None:
        """Give a register back that no instruction from here on uses."""
        self._free_registers.append(register)

    def ring(self, arena: Arena, nbytes: int, count: int, name: str = "") -> Ring:
        """At most ``count`` buffers of ``nbytes`` (a partition, on chip): as many as fit one gap of ``arena``.

        Raises EXSP001 when not even one does. ``tiles.TilePool`` frees rings at the end of a kernel.
        """
        nbytes = -(-nbytes // arena.alignment) * arena.alignment
        alloc = None
        while alloc is None and count:
            alloc = arena.allocate(nbytes * count, name)
            count -= alloc is None
        if alloc is None:
            raise arena.full(nbytes, name or "tiles")
        alloc.parts = count
        return Ring(alloc, count, nbytes)

    def slot(self, ring: Ring, several: bool = False) -> Affine:
        """Offset of the ring's next buffer: by the phase of the innermost loop, or fixed in straight-line code.

        Iterations that are unrolled count as straight-line code, also inside a loop. So does a loop's body with
        ``several``, for rings that have more than one turn in an iteration: each takes the next buffer.
        """
        tile = len(self.program.tiles)
        self.program.tiles.append((self.sync.regions, len(self.sync.frames) - 1))
        ring.turn, offset, modulus = self._next(ring, several)
        terms = ((self._phase(self.sync.frames[-1], modulus), ring.nbytes),) if modulus else ()
        return Affine(offset, terms, tile)

    def next_offset(self, ring: Ring) -> int:
        """Where the next buffer of ``ring`` begins; in a loop, in its first iteration."""
        return self._next(ring)[1]

    @property
    def place(self) -> tuple[bool, bool]:
        """Whether code is in a loop, and whether that is unrolled: with a ring's turn, what its next buffer is."""
        frame = self.sync.frames[-1]
        return frame.register >= 0 and not frame.iterations, bool(self._unrolled) and self._unrolled[-1] is frame

    @property
    def scope(self) -> object:
        """The innermost loop that code is in, to be told from others by identity."""
        return self.sync.frames[-1]

    def _next(self, ring: Ring, several: bool = False) -> tuple[int, int, int]:
        """Turn and offset of the next buffer, and around what the phase of the innermost loop counts, or 0."""
        start = ring.alloc.lo
        if ring.count == 1:
            return 0, start, 0
        looped, unrolled = self.place
        straight = several or unrolled
        if straight and looped and ring.count >= 2 * ring.phases > 2:
            turn = (ring.turn + 1) % (ring.count // ring.phases)
            return turn, start + turn * ring.phases * ring.nbytes, ring.phases
        if straight or not looped:
            turn = (ring.turn + 1) % ring.count
            return turn, start + turn * ring.nbytes, 0
        return ring.turn, start, ring.count

    def _phase(self, frame: Frame, modulus: int) -> int:
        """The register that counts the iterations of a loop around ``modulus``."""
        if modulus not in frame.phases:
            register = self._phase_register(frame)
            frame.phases[modulus] = register
            self.sync.loaded.discard(register)
            self.sync.register_range[register] = modulus
        return frame.phases[modulus]

    def _origins(self, blocks: Iterable[Block]) -> tuple[tuple[int, int], ...]:
        """What operands mean: the numbers of their pieces of memory, and of the tiles in these."""
        found = []
        for block in blocks:
            alloc = block.alloc
            assert not alloc.freed, f"{alloc.name or 'memory'} is used after it was freed"
            if alloc.owner < 0:
                alloc.owner = len(self.program.owners)
                self.program.owners.append(Owner(alloc.space, alloc.lo, alloc.hi, alloc.name))
            found.append((alloc.owner, block.offset.tile))
        return tuple(found)

    def emit(
        self,
        op: str,
        stream: Stream,
        outs: Sequence[Block] = (),
        ins: Sequence[Block] = (),
        alu: Sequence[str] = (),
        imm: Sequence[float] = (),
        flags: Sequence[str] = (),
    ) -> Instr:
        """Append one instruction; operands are blocks whose first dim is the partition dim."""
        blocks, written = (*outs, *ins), len(outs)
        refs = tuple([ref(block) for block in blocks])
        instr = Instr(op, stream, refs[:written], refs[written:], tuple(alu), tuple(imm), frozenset(flags))
        self._append(instr, self._origins(blocks), [block.alloc for block in blocks])
        return instr

    def _append(self, instr: Instr, origins: tuple[tuple[int, int], ...], allocs: Sequence[Alloc]) -> None:
        instr.debug, instr.origins = self._current_debug, origins
        self.sync.record(instr, allocs)
        self.program.records.append(instr)

    def memset(self, block: Block, value: float) -> None:
        """``value`` everywhere: floats by Vector, integers by GpSimd, exactly."""
        engine = Stream.VECTOR if block.dtype in FLOATS else Stream.GPSIMD
        self.emit("memset", engine, [block], [], imm=[value])

    def multiply(self, sums: Block, stationary: Block, moving: Block, flags: Sequence[str] = ()) -> None:
        """``sums[column, place] = stationary[row, column] * moving[row, place]``, added up over the rows, in PSUM."""
        self.emit("load_stationary", Stream.TENSOR, [], [stationary], flags=[flag for flag in flags if flag == "tf32"])
        self.emit("multiply_moving", Stream.TENSOR, [sums], [moving], flags=flags)

    def multiply_each(
        self, several: Sequence[tuple[Block, Block, Block]], flags: Sequence[str] = (), adds: int | None = None
    ) -> None:
        """The same of ``several`` sums at each index of dim 1 of their blocks, one index after the other.

        ``adds``: the first index from which on products are added to what is there; none for None.
        """
        count, loads = several[0][0].dims[1].size, frozenset(flags) & {"tf32"}
        begins = frozenset(flags)
        adding = begins | {"accumulate"}
        made = [(_Along.of(self, [left]), _Along.of(self, [sums, right])) for sums, left, right in several]
        for at in range(count):
            modifiers = begins if adds is None or at < adds else adding
            for left, product in made:
                stationary, sums, moving = *left.refs(at), *product.refs(at)
                loading = Instr("load_stationary", Stream.TENSOR, (), (stationary,), (), (), loads)
                self._append(loading, left.origins, left.allocs)
                multiplying = Instr("multiply_moving", Stream.TENSOR, (sums,), (moving,), (), (), modifiers)
                self._append(multiplying, product.origins, product.allocs)

    def finish(self) -> Program:
        """The program, with its waits and its use of memory."""
        self.sync.resolve()
        self.program.sbuf_peak = self.sbuf.peak
        self.program.hbm_bytes = self.hbm.peak
        return self.program


class _Along(NamedTuple):
    """Operands that move along their dim 1."""

    operands: list[tuple[Ref, int]]
    """At the first index, and the bytes to the next."""
    origins: tuple[tuple[int, int], ...]
    allocs: list[Alloc]

    @classmethod
    def of(cls, builder: Builder, blocks: Sequence[Block]) -> _Along:
        operands = [(ref(block.index(1, Affine())), block.dims[1].stride) for block in blocks]
        return cls(operands, builder._origins(blocks), [block.alloc for block in blocks])

    def refs(self, at: int) -> list[Ref]:
        """The operands at an index."""
        return [
            Ref(each.space, each.dtype, each.offset + at * step, each.dims, each.partition, each.coefs)
            for each, step in self.operands
        ]


class Modifiers(TypedDict, total=False):
    """What says how an instruction computes, as in ``Instr``."""

    alu: Sequence[str]
    imm: Sequence[float]
    flags: Sequence[str]


def emit_over(
    builder: Builder,
    op: str,
    stream: Stream,
    outs: Sequence[Block],
    ins: Sequence[Block],
    **modifiers: Unpack[Modifiers],
) -> None:
    """Emit an elementwise instruction or a copy over blocks of equal sizes, dim by dim.

    Neighbouring dims that all blocks can merge are merged; what is left over four free dims is looped.
    Dim 0 is the partition dim of every on-chip block. The last of ``ins`` may have no other: one value a partition.
    """
    tiles, scalars = split_scalars(outs, ins)
    blocks = merge_free([*outs, *tiles])
    if len(blocks[0].dims) > MAX_FREE_DIMS + 1:
        with builder.loop(blocks[0].dims[1].size) as index:
            inner = [block.index(1, index) for block in blocks]
            emit_over(builder, op, stream, inner[: len(outs)], [*inner[len(outs) :], *scalars], **modifiers)
        return
    builder.emit(op, stream, blocks[: len(outs)], [*blocks[len(outs) :], *scalars], **modifiers)
