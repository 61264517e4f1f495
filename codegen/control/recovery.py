"""What is computed once more, by other means, where sums turn out not to be finite.

Kernels look at what they make as it leaves PSUM (``convolutions.finite``) and add to one number a partition, 0 or NaN.
To ask for it at once would be a barrier, past which no engine may go on. So nobody asks before the program's end, or
before the first kernel that may run only once: one that others hear of, that writes into a parameter, or that goes
around until its numbers say so. If anything was found there, the program is run once more up to that place. These are
the same instructions: parameters are as they were, and everything else is made anew. Only then each of the kernels
asks, and what it does otherwise follows it. So that stands in the program once, and kernels after that place, which
cannot be run again, are followed by it as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import contextmanager

from neuronx_cc.codegen.emission.builder import Affine, Block, Builder
from neuronx_cc.codegen.emission.views import Atom, View
from neuronx_cc.ir.isa.program import DECIDER, Branch, Record, Stream, While

WORDS = 3
"""In each partition: what was found, a one, and in the first the answer."""


class Recovery:
    """Which kernels of one program have looked at their sums, and what they do where these are not finite."""

    def __init__(self, builder: Builder, once: Set[str]) -> None:
        self.builder = builder
        self.once = once
        """Computations with something that may run only once."""
        self.repeatable = True
        """Whether everything so far may be run once more."""
        self._words: Block | None = None
        self._pieces: list[tuple[int, list[Record]]] = []
        """Number of the record that follows a kernel, and what the kernel does otherwise."""

    @property
    def count(self) -> int:
        """Kernels that have looked at their sums and are followed by nothing yet."""
        return len(self._pieces)

    def prepare(self) -> Block:
        """The number in each partition, 0 until a sum turns out not to be finite. First asked for outside regions."""
        builder = self.builder
        if self._words is None:
            alloc = builder.sbuf.reserve(4 * WORDS, "found")
            partitions = Atom(builder.sizes.partitions, 1, True)
            self._words = Block(alloc, "f32", Affine(alloc.lo), (partitions, Atom(1, 4)))
            for place, value in enumerate((0.0, 1.0)):
                builder.emit("memset", Stream.VECTOR, [self._words.moved(4 * place)], [], imm=[value])
        return self._words

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """What is emitted inside runs where the kernel before has found something. All banks of PSUM must be free."""
        if not self.repeatable:
            with self._where_found():
                yield
            return
        builder = self.builder
        with _aside(builder) as records:
            register = builder.new_register()
            with builder.region(While(register, 1)), self._where_found():
                yield
            builder.release_register(register)
        self._pieces.append((len(builder.program.records), records))

    def settle(self) -> None:
        """What has been emitted so far is run once more where something was found; what follows cannot be."""
        records, self.repeatable = self.builder.program.records, False
        pieces, self._pieces = self._pieces, []
        if not pieces:
            return
        again: list[Record] = []
        start = 0
        for place, piece in pieces:
            again += records[start:place] + piece
            start = place
        again += records[start:]
        with self._where_found():
            self.builder.program.records += again

    @contextmanager
    def _where_found(self) -> Iterator[None]:
        """A branch that is taken where something was found, which is forgotten at its end."""
        builder, found = self.builder, self.prepare()
        ones, answer = found.moved(4), found.moved(8)
        answer = Block(answer.alloc, "s32", answer.offset, (Atom(1, 1, True), Atom(1, 4)))
        ring = builder.ring(builder.psum, 4, 1, "found")
        total = Block(ring.alloc, "f32", Affine(ring.alloc.lo), (Atom(1, 1, True), Atom(1, 4)))
        builder.multiply(total, found, ones)
        builder.emit("tensor_scalar", Stream.VECTOR, [answer], [total], ["not_equal"], [0.0])
        builder.psum.free(ring.alloc)
        register = builder.load_register(View(answer.alloc, "s32", answer.offset, ()), 0, 1, DECIDER)
        with builder.region(Branch(register, 2)):
            builder.next_case()
            yield
            builder.emit("memset", Stream.VECTOR, [found], [], imm=[0.0])
        builder.release_register(register)


@contextmanager
def _aside(builder: Builder) -> Iterator[list[Record]]:
    """One region, emitted inside, as a list of its own: what follows here is as if it were not there."""
    program, arenas = builder.program, (builder.hbm, builder.sbuf, builder.psum)
    records, known = program.records, [arena.known() for arena in arenas]
    made: list[Record] = []
    program.records = made
    yield made
    program.records = records
    for arena, accesses in zip(arenas, known, strict=True):
        arena.recall(accesses)
