"""Waits of small loops: enough for the race check, and each of them needed."""

from collections.abc import Callable

import pytest

from neuronx_cc.codegen.emission import sync
from neuronx_cc.codegen.emission.builder import Affine, Block, Builder, Ring
from neuronx_cc.codegen.emission.views import Atom
from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import Instr, Loop, Program, Stream, Variable
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime import races

TILE = 512
"""Bytes a partition."""
LANES = 128


class Bench:
    """A builder with an input and an output in HBM, seen as rows of tiles."""

    def __init__(self, tiles: int) -> None:
        self.builder = Builder(find_machine("trn1"))
        self.pitch = tiles * TILE
        self.source, self.target = (self._variable(kind) for kind in ("input", "output"))

    def _variable(self, kind: str) -> Block:
        nbytes = LANES * self.pitch
        alloc = self.builder.hbm.allocate(nbytes, kind)
        assert alloc is not None
        dims = (LANES, self.pitch // 4)
        self.builder.program.variables.append(Variable(kind, kind, alloc.lo, nbytes, "f32", dims, 0))
        return Block(alloc, "f32", Affine(alloc.lo), (Atom(LANES, self.pitch), Atom(TILE // 4, 4)))

    def ring(self, count: int) -> Ring:
        return self.builder.ring(self.builder.sbuf, TILE, count)

    def slot(self, ring: Ring) -> Block:
        return Block(ring.alloc, "f32", self.builder.slot(ring), (Atom(LANES, 1, True), Atom(TILE // 4, 4)))

    def at(self, block: Block, index: Affine) -> Block:
        return Block(block.alloc, block.dtype, block.offset + index * TILE, block.dims)

    def load(self, tile: Block, index: Affine) -> None:
        self.builder.emit("dma_copy", Stream.DMA_LOAD, [tile], [self.at(self.source, index)])

    def store(self, tile: Block, index: Affine) -> None:
        self.builder.emit("dma_copy", Stream.DMA_STORE, [self.at(self.target, index)], [tile])

    def scale(self, out: Block, source: Block) -> None:
        self.builder.emit("tensor_scalar", Stream.VECTOR, [out], [source], ["multiply"], [2.0])

    def exponential(self, out: Block, source: Block) -> None:
        self.builder.emit("activation", Stream.SCALAR, [out], [source], ["exp"], [1.0])


def straight() -> Program:
    bench = Bench(1)
    x, y = bench.slot(bench.ring(1)), bench.slot(bench.ring(1))
    bench.load(x, Affine())
    bench.scale(y, x)
    bench.exponential(y, y)
    bench.store(y, Affine())
    return bench.builder.finish()


def streamed(tiles: int, buffers: int) -> Program:
    bench = Bench(tiles)
    first, second = bench.ring(buffers), bench.ring(buffers)
    with bench.builder.loop(tiles) as index:
        x, y = bench.slot(first), bench.slot(second)
        bench.load(x, index)
        bench.scale(y, x)
        bench.store(y, index)
    return bench.builder.finish()


def two_engines(tiles: int, buffers: int) -> Program:
    """Vector and Scalar take turns on one tile."""
    bench = Bench(tiles)
    ring = bench.ring(buffers)
    with bench.builder.loop(tiles) as index:
        x = bench.slot(ring)
        bench.load(x, index)
        bench.scale(x, x)
        bench.exponential(x, x)
        bench.store(x, index)
    return bench.builder.finish()


def nested(outer: int, inner: int, buffers: int) -> Program:
    """The inner loop reads what the outer one has loaded."""
    bench = Bench(outer * inner)
    kept, tiles = bench.ring(buffers), bench.ring(buffers)
    with bench.builder.loop(outer) as row:
        x = bench.slot(kept)
        bench.load(x, row * inner)
        with bench.builder.loop(inner) as column:
            y = bench.slot(tiles)
            bench.scale(y, x)
            bench.store(y, row * inner + column)
    return bench.builder.finish()


def accumulated(tiles: int) -> Program:
    """A sum over the iterations in one buffer, stored after the loop."""
    bench = Bench(tiles)
    total, ring = bench.slot(bench.ring(1)), bench.ring(2)
    bench.builder.emit("memset", Stream.GPSIMD, [total], [], imm=[0.0])
    with bench.builder.loop(tiles) as index:
        x = bench.slot(ring)
        bench.load(x, index)
        bench.builder.emit("tensor_tensor", Stream.VECTOR, [total], [total, x], ["add"])
    bench.store(total, Affine())
    for index in range(1, tiles):
        bench.store(total, Affine(index))
    return bench.builder.finish()


def reused(tiles: int) -> Program:
    """A second loop in the bytes of the first, which have been given back."""
    bench = Bench(tiles)
    for _ in range(2):
        bench.builder.sbuf._cursor = 0
        ring = bench.ring(2)
        with bench.builder.loop(tiles) as index:
            x = bench.slot(ring)
            bench.load(x, index)
            bench.scale(x, x)
            bench.store(x, index)
        bench.builder.sbuf.free(ring.alloc)
    return bench.builder.finish()


def gaps() -> Program:
    """A reader of the columns that only the first of two writers has written; the second one's hull covers them."""
    bench = Bench(2)
    wide, narrow = bench.builder.ring(bench.builder.sbuf, 2 * TILE, 1), bench.ring(1)
    whole = Block(wide.alloc, "f32", bench.builder.slot(wide), (Atom(LANES, 1, True), Atom(2 * TILE // 4, 4)))
    rows = Block(bench.target.alloc, "f32", bench.target.offset, (Atom(LANES - 1, bench.pitch), whole.dims[1]))
    bench.builder.emit("memset", Stream.GPSIMD, [whole], [], imm=[0.0])
    first = Block(whole.alloc, "f32", whole.offset, (Atom(LANES - 1, 1, True), whole.dims[1]))
    bench.builder.emit("dma_copy", Stream.DMA_STORE, [rows], [first])
    tile = bench.slot(narrow)
    bench.load(tile, Affine())
    bench.store(tile, Affine())
    columns = bench.at(bench.target, Affine(1))
    columns = Block(columns.alloc, "f32", columns.offset, (Atom(LANES - 1, bench.pitch), columns.dims[1]))
    other = bench.slot(bench.ring(1))
    read = Block(other.alloc, "f32", other.offset, (Atom(LANES - 1, 1, True), columns.dims[1]))
    bench.builder.emit("dma_copy", Stream.DMA_LOAD, [read], [columns])
    return bench.builder.finish()


def in_step(written: int, read: int, shift: int = 0, again: bool = False) -> Program:
    """A loop reads the tiles of the one before, ``shift`` tiles on; ``again``: a third loop overwrites them."""
    bench = Bench(written)
    alloc, other = (bench.builder.sbuf.allocate(written * TILE) for _ in range(2))
    assert alloc is not None
    assert other is not None
    dims = (Atom(LANES, 1, True), Atom(TILE // 4, 4))
    row, made = (Block(each, "f32", Affine(each.lo), dims) for each in (alloc, other))
    with bench.builder.loop(written) as index:
        bench.load(bench.at(row, index), index)
        bench.scale(bench.at(row, index), bench.at(row, index))
    with bench.builder.loop(read) as index:
        bench.exponential(bench.at(made, index), bench.at(row, index + shift))
    if again:
        with bench.builder.loop(written) as index:
            bench.builder.emit("memset", Stream.GPSIMD, [bench.at(row, index)], [], imm=[0.0])
    with bench.builder.loop(read) as index:
        bench.store(bench.at(made, index), index)
    for index in range(read, written):
        bench.store(bench.at(made, Affine(read - 1)), Affine(index))
    return bench.builder.finish()


PROGRAMS: dict[str, Callable[[], Program]] = {
    "straight": straight,
    "one buffer": lambda: streamed(5, 1),
    "two buffers": lambda: streamed(5, 2),
    "three buffers": lambda: streamed(7, 3),
    "as many buffers as tiles": lambda: streamed(3, 3),
    "more buffers than tiles": lambda: streamed(2, 3),
    "engines in turn": lambda: two_engines(5, 2),
    "nested": lambda: nested(3, 4, 2),
    "nested, one buffer": lambda: nested(3, 4, 1),
    "sum": lambda: accumulated(4),
    "bytes used again": lambda: reused(4),
    "rows with gaps": gaps,
    "one loop after the other": lambda: in_step(6, 6),
    "some tiles later": lambda: in_step(6, 3, 2),
    "the last tiles": lambda: in_step(6, 3, 3),
    "tiles written again": lambda: in_step(5, 5, 0, True),
    "some tiles read and written again": lambda: in_step(7, 4, 2, True),
}


def waiting(program: Program) -> list[Instr]:
    return [record for record in program.records if isinstance(record, Instr) and record.waits]


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_race(name: str) -> None:
    program = PROGRAMS[name]()
    summary = races.check(program)
    assert summary.instructions >= sum(isinstance(record, Instr) for record in program.records)
    assert summary.waits > 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_more_waits_than_an_instruction_has_are_joined(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "MAX_WAITS", 0)
    program = PROGRAMS[name]()
    assert races.check(program).waits > 0
    for instr in waiting(program):
        streams = [wait.stream for wait in instr.waits]
        assert len(set(streams)) == len(streams) or name in IN_STEP


IN_VAIN = {"as many buffers as tiles", "more buffers than tiles", "sum"}
"""These hold instructions that wait in vain: their buffers never come round again, or hulls of columns overlap."""
REPEATED = {"some tiles later", "the last tiles", "some tiles read and written again"}
"""Of these, stores of a queue that has waited wait as well."""
IN_STEP = {"one loop after the other", "tiles written again", *REPEATED}
"""Of these, loops keep step, and what they wait for of each other is not joined."""
TIGHT = sorted(set(PROGRAMS) - IN_VAIN - REPEATED)


@pytest.mark.parametrize("name", TIGHT)
def test_an_instruction_without_its_waits_races(name: str) -> None:
    for position in range(len(waiting(PROGRAMS[name]()))):
        program = PROGRAMS[name]()
        waiting(program)[position].waits = ()
        with pytest.raises(RunError, match=r"ERUN91[12]"):
            races.check(program)


@pytest.mark.parametrize("stream", [Stream.DMA_LOAD, Stream.VECTOR, Stream.DMA_STORE])
def test_each_pair_of_neighbours_waits(stream: Stream) -> None:
    """Forwards for the data, backwards for the free buffer: without either there is a race."""
    neighbours = {
        Stream.DMA_LOAD: [Stream.VECTOR],
        Stream.VECTOR: [Stream.DMA_LOAD, Stream.DMA_STORE],
        Stream.DMA_STORE: [Stream.VECTOR],
    }
    for awaited in neighbours[stream]:
        program = streamed(5, 2)
        (instr,) = [instr for instr in waiting(program) if instr.stream is stream]
        kept = tuple(wait for wait in instr.waits if wait.stream is not awaited)
        assert len(kept) < len(instr.waits)
        instr.waits = kept
        with pytest.raises(RunError, match=r"ERUN91[12]"):
            races.check(program)


def test_loops_run_on_the_streams_they_hold() -> None:
    (loop,) = [record for record in streamed(5, 2).records if isinstance(record, Loop)]
    assert loop.streams == {Stream.DMA_LOAD, Stream.VECTOR, Stream.DMA_STORE}
    assert [modulus for _, modulus in loop.phases] == [2]


@pytest.mark.parametrize(("written", "read", "shift"), [(6, 6, 0), (6, 3, 2), (6, 3, 3)])
def test_a_loop_keeps_step_with_the_one_before(written: int, read: int, shift: int) -> None:
    records = [record for record in in_step(written, read, shift).records if isinstance(record, Instr)]
    (reader,) = [record for record in records if record.op == "activation"]
    (wait,) = [wait for wait in reader.waits if wait.stream is Stream.VECTOR]
    assert (wait.count, [step for _, step in wait.coefs]) == (1 + shift, [1])


def test_a_reader_of_the_first_tiles_waits_for_them_only() -> None:
    bench = Bench(8)
    alloc = bench.builder.sbuf.allocate(8 * TILE)
    assert alloc is not None
    row = Block(alloc, "f32", Affine(alloc.lo), (Atom(LANES, 1, True), Atom(TILE // 4, 4)))
    x = bench.slot(bench.ring(1))
    bench.load(x, Affine())
    with bench.builder.loop(8) as index:
        bench.scale(bench.at(row, index), x)
    for place in (0, 3, 7):
        bench.store(bench.at(row, Affine(place)), Affine(place))
    program = bench.builder.finish()
    races.check(program)
    stores = [record for record in program.records if isinstance(record, Instr) and record.stream is Stream.DMA_STORE]
    assert [wait.count for store in stores for wait in store.waits if wait.stream is Stream.VECTOR] == [2, 4, 8]
