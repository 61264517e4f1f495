"""Estimates of ``ir.isa.timing`` against the clock, on instructions and on small emitted programs."""

from pathlib import Path

import pytest
from one_instruction import dense

from neuronx_cc.codegen.emission.builder import Block, Builder
from neuronx_cc.codegen.emission.tiles import TilePool
from neuronx_cc.codegen.emission.views import Atom, linear
from neuronx_cc.ir.isa.program import Instr, Program, Ref, Space, Stream
from neuronx_cc.ir.isa.timing import BF16, F32, F32_PSUM, NOTHING, Stage, Tile, Timing, Work
from neuronx_cc.ir.machine import Machine
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime.clock_regions import simulate

V, S, G, T = Stream.VECTOR, Stream.SCALAR, Stream.GPSIMD, Stream.TENSOR
LOAD, STORE = Stream.DMA_LOAD, Stream.DMA_STORE
MACHINES = [
    find_machine("trn1"),
    find_machine(Path(__file__).parent.parent / "machines" / "half.toml"),
    find_machine("trn1").with_settings(["pe.rate_limit=0.5", "dma.elem_cost_ns=60", "vec.overhead_sbuf_cycles=3"]),
]
SBUF, PSUM, HBM = Space.SBUF, Space.PSUM, Space.HBM


@pytest.fixture(params=MACHINES, ids=["trn1", "half", "settings"])
def machine(request: pytest.FixtureRequest) -> Machine:
    return request.param  # type: ignore[no-any-return]


def on_chip(tile: Tile, n: int, offset: int) -> Ref:
    return dense(PSUM if tile.psum else SBUF, tile.dtype, offset, (128, n))


ENGINE_CASES = [
    ("tensor_tensor", V, (F32,), (F32, F32), ("add",), ()),
    ("tensor_tensor", V, (F32,), (F32_PSUM, F32), ("multiply",), ()),
    ("tensor_tensor", V, (BF16,), (BF16, BF16), ("add",), ()),
    ("tensor_tensor", V, (F32,), (F32, F32), ("divide",), ()),
    ("tensor_scalar", V, (F32,), (F32,), ("add", "multiply"), (1.0, 2.0)),
    ("tensor_copy", G, (F32,), (F32,), (), ()),
    ("activation", S, (F32,), (F32_PSUM,), ("copy",), (1.0,)),
    ("reciprocal", V, (F32,), (F32,), (), ()),
]


@pytest.mark.parametrize("n", [1, 63, 512])
@pytest.mark.parametrize("case", ENGINE_CASES, ids=lambda case: f"{case[0]} {case[1].name}")
def test_engines_take_what_the_clock_says(case: tuple, n: int, machine: Machine) -> None:  # type: ignore[type-arg]
    op, stream, outs, ins, alu, imm = case
    refs = [on_chip(tile, n, 2048 * at) for at, tile in enumerate((*outs, *ins))]
    instr = Instr(op, stream, tuple(refs[: len(outs)]), tuple(refs[len(outs) :]), alu or ("",), imm or (1.0,))
    timing = Timing(machine)
    work = timing.engine(op, stream, n, outs, ins, alu, imm)
    total = work.bound + timing.latency(stream) - timing.semaphore
    assert simulate(Program(records=[instr]), machine).total == pytest.approx(total)
    assert work == timing.of(instr)
    assert work.psum_port == (work.bound if any(tile.psum for tile in (*outs, *ins)) else 0.0)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(("columns", "moving"), [(128, 512), (128, 64), (7, 1), (1, 3), (128, 1)])
def test_products_take_what_the_clock_says(columns: int, moving: int, dtype: str, machine: Machine) -> None:
    weights, rows = on_chip(Tile(dtype), columns, 0), on_chip(Tile(dtype), moving, 4096)
    out = dense(PSUM, "f32", 0, (columns, moving))
    pair = [Instr("load_stationary", T, (), (weights,)), Instr("multiply_moving", T, (out,), (rows,))]
    timing = Timing(machine)
    each = timing.product(columns, moving, dtype).tensor
    long, short = (simulate(Program(records=pair * count), machine).total for count in (40, 20))
    assert (long - short) / 20 == pytest.approx(each)
    alone = timing.product(columns, moving, dtype, loaded=False).tensor
    again = simulate(Program(records=[pair[0], *[pair[1]] * 20]), machine).total
    assert again == pytest.approx(timing.load_stationary(columns, dtype).tensor + 20 * alone + 142)


@pytest.mark.parametrize("run", [4, 256, 2048, 2400, 8192, 65536])
@pytest.mark.parametrize("way", ["read", "write", "copy", "chip"])
def test_transfers_take_what_the_clock_says(run: int, way: str, machine: Machine) -> None:
    count = 128
    near, far, other = (
        dense(SBUF, "f32", 0, (count, run // 4)),
        Ref(HBM, "f32", 0, ((count, 2 * run), (run // 4, 4))),
        Ref(HBM, "f32", 1 << 24, ((count, 2 * run), (run // 4, 4))),
    )
    out, source = {"read": (near, far), "write": (far, near), "copy": (other, far), "chip": (near, near)}[way]
    instr = Instr("dma_copy", LOAD, (out,), (source,))
    timing = Timing(machine)
    assert simulate(Program(records=[instr]), machine).total == pytest.approx(
        timing.arrival(count * run, run, way) - timing.semaphore
    )
    assert timing.of(instr) == timing.transfer(count * run, run, way)
    many = simulate(Program(records=[instr] * 21), machine).total - simulate(Program(records=[instr]), machine).total
    assert many / 20 == pytest.approx(timing.transfer(count * run, run, way).bound)


def test_long_runs_come_near_the_rate(machine: Machine) -> None:
    timing = Timing(machine)
    least = timing.transfer(1 << 20, timing.long_run).bound
    assert (1 << 20) / timing.dma_rate <= least <= 1.3 * (1 << 20) / timing.dma_rate
    assert timing.transfer(1 << 20, timing.long_run // 2).bound == pytest.approx(2 * least, rel=0.01)
    assert timing.transfer(1 << 20, 1 << 20).bound == pytest.approx((1 << 20) / timing.dma_rate, rel=0.01)


def test_both_directions_together_are_quicker_than_one() -> None:
    timing = Timing(MACHINES[0])
    read, write = timing.transfer(1 << 20, 4096, "read"), timing.transfer(1 << 20, 4096, "write")
    assert 1.05 * timing.dma_rate * (read + write).bound < 2 << 20
    assert (read + read).bound == pytest.approx(2 * read.bound)


def test_work_adds_up() -> None:
    timing = Timing(MACHINES[0])
    copy = timing.engine("activation", S, 512, (F32,), (F32_PSUM,), ("copy",))
    add = timing.engine("tensor_tensor", V, 512, (F32,), (F32_PSUM, F32), ("add",))
    both = copy + add
    assert both.bound == both.psum_port == pytest.approx(copy.scalar + add.vector), "they take turns at PSUM"
    assert (both + NOTHING) == both
    assert both.times(3).bound == pytest.approx(3 * both.bound)


@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize("columns", [64, 512, 4096])
@pytest.mark.parametrize("passes", [1, 4])
def test_pipelines_take_about_what_the_clock_says(buffers: int, columns: int, passes: int, machine: Machine) -> None:
    """Load, some passes of Vector, store, in a loop with rotating buffers."""
    count = 40
    builder = Builder(machine)
    nbytes = count * 128 * columns * 4
    home, target = (builder.hbm.allocate(nbytes, name) for name in ("x", "y"))
    assert home is not None
    assert target is not None
    source, goal = (linear(alloc, alloc.lo, "f32", (count, 128, columns)) for alloc in (home, target))
    with TilePool(builder, "t", buffers) as pool:
        x, y = pool.ring(columns * 4, buffers), pool.ring(columns * 4, buffers)
        with builder.loop(count) as index:
            tiles = [
                Block(ring.alloc, "f32", builder.slot(ring), (Atom(128, 1, True), Atom(columns, 4))) for ring in (x, y)
            ]
            places = [
                Block(
                    view.alloc,
                    "f32",
                    view.start + index * (128 * columns * 4),
                    (Atom(128, columns * 4), Atom(columns, 4)),
                )
                for view in (source, goal)
            ]
            builder.emit("dma_copy", LOAD, [tiles[0]], [places[0]])
            for _ in range(passes):
                builder.emit("tensor_scalar", V, [tiles[1]], [tiles[0]], ["add"], [1.0])
            builder.emit("dma_copy", STORE, [places[1]], [tiles[1]])
    clock = simulate(builder.finish(), machine).total
    timing = Timing(machine)
    loaded, stored = (timing.moved(128 * columns * 4, columns * 4, way) for way in ("read", "write"))
    once = timing.engine("tensor_scalar", V, columns, alu=("add",), imm=(1.0,))
    chained = Work(*once.times(passes)) + Work(vector=(passes - 1) * timing.dependent(V))
    estimate = timing.pipeline([loaded, timing.done(chained, V), stored], count, buffers)
    assert estimate == pytest.approx(clock, rel=0.2), (estimate, clock)


def test_pipelines_without_work_take_no_time() -> None:
    timing = Timing(MACHINES[0])
    assert timing.pipeline([], 5) == 0.0
    assert timing.pipeline([Stage(Work(vector=1.0))], 0) == 0.0
