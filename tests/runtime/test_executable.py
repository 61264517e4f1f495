"""Executables: inputs, faults, poison, determinism, stochastic rounding, reports and traces."""

import gc
import json
import weakref
from io import StringIO

import numpy as np
import pytest
from one_instruction import Bench, dense
from trace_checker import check_trace, slices_of

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import Debug, End, Instr, Loop, Program, Ref, Space, Stream, Variable, Wait
from neuronx_cc.ir.targets import find_machine, names
from neuronx_cc.runtime import Executable
from neuronx_cc.runtime.native import library
from neuronx_cc.runtime.profiling.trace import write_trace

HBM, SBUF = Space.HBM, Space.SBUF
ROWS, N, BLOCKS = 128, 512, 4
NATIVE = pytest.mark.skipif(library.load() is None, reason="the native core was not built")
BLOCK = ROWS * N * 4


def exp_program(blocks=BLOCKS, depth=2, step=BLOCK):
    """out[b] = exp(x[b]) + row, with loads, work and stores overlapped over ``depth`` rotating tiles."""
    program = Program(debug=[Debug("map", "exp.3", "jit(f)/exp", "model.py", 12)], kernels=["map"])
    size = blocks * BLOCK
    program.variables = [
        Variable("x", "input", 0, size, "f32", (blocks, ROWS, N), 0),
        Variable("row", "constant", size, N * 4, "f32", (N,), 0),
        Variable("y", "output", 2 * size, size, "f32", (blocks, ROWS, N), 0),
    ]
    program.hbm_bytes = 3 * size
    tile = Ref(SBUF, "f32", 0, ((ROWS, 0), (N, 4)), 0, ((4, 2048),))
    row = Ref(SBUF, "f32", 16384, ((ROWS, 0), (N, 4)))
    move = lambda base: Ref(HBM, "f32", base, ((ROWS, N * 4), (N, 4)), 0, ((3, step),))  # noqa: E731
    streams = frozenset([Stream.DMA_LOAD, Stream.SCALAR, Stream.VECTOR, Stream.DMA_STORE])
    after = lambda stream, count: Wait(stream, count, ((3, 1),))  # noqa: E731
    spread = Ref(HBM, "f32", size, ((ROWS, 0), (N, 4)))
    program.records = [
        Instr("dma_copy", Stream.DMA_WEIGHT, (row,), (spread,)),
        Loop(blocks, 3, ((4, depth),), streams),
        Instr("dma_copy", Stream.DMA_LOAD, (tile,), (move(0),), waits=(after(Stream.DMA_STORE, 1 - depth),)),
        Instr("activation", Stream.SCALAR, (tile,), (tile,), ("exp",), (1.0,), waits=(after(Stream.DMA_LOAD, 1),)),
        Instr(
            "tensor_tensor",
            Stream.VECTOR,
            (tile,),
            (tile, row),
            ("add",),
            waits=(after(Stream.SCALAR, 1), Wait(Stream.DMA_WEIGHT, 1)),
        ),
        Instr("dma_copy", Stream.DMA_STORE, (move(2 * size),), (tile,), waits=(after(Stream.VECTOR, 1),)),
        End(),
    ]
    return program


@pytest.fixture
def x():
    return np.random.default_rng(3).standard_normal((BLOCKS, ROWS, N)).astype(np.float32)


@pytest.fixture
def row():
    return np.arange(N, dtype=np.float32)


def test_a_loop_with_rotating_buffers(x, row):
    executable = Executable.from_program(exp_program(), [row])
    for data in (x, x + 1, x.copy()):
        np.testing.assert_allclose(executable(data)[0], np.exp(data) + row, rtol=3e-7)


def test_inputs_are_not_written_and_results_are_not_views(x, row):
    executable = Executable.from_program(exp_program(), [row])
    before = x.copy()
    first = executable(x)[0]
    kept = first.copy()
    x += 1
    second = executable(x)[0]
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_allclose(second, np.exp(before + 1) + row, rtol=3e-7)
    read_only = before.copy()
    read_only.setflags(write=False)
    np.testing.assert_array_equal(executable(read_only)[0], kept)
    strided = np.concatenate([before, before], axis=2)[:, :, :N]
    np.testing.assert_array_equal(executable(strided)[0], kept)


def test_results_are_computed_in_the_arrays_of_the_caller(x, row):
    """Also in such that share memory with an input, are not dense; earlier ones stay as they are."""
    executable = Executable.from_program(exp_program(), [row])
    wanted = executable.run([x]).outputs[0]
    first, apart, over = np.empty_like(x), np.empty((*x.shape[:2], 2 * N), np.float32)[:, :, ::2], x.copy()
    executable.compute([x], [first])
    executable.compute([x], [apart])
    executable.compute([over], [over])
    for found in (first, apart, over):
        np.testing.assert_array_equal(found, wanted)
    executable.compute([-x], [apart])
    assert not np.array_equal(apart, wanted)
    np.testing.assert_array_equal(first, wanted)
    np.testing.assert_array_equal(executable.run([x]).outputs[0], wanted)


def test_wrong_inputs_are_named(x, row):
    executable = Executable.from_program(exp_program(), [row])
    with pytest.raises(RunError, match=r"0 inputs given, the program takes 1: x"):
        executable.run([])
    with pytest.raises(RunError, match=r"input 0 \(x\) has shape \[4, 128\], expected \[4, 128, 512\]"):
        executable.run([x[..., 0]])
    with pytest.raises(RunError, match=r"input 0 \(x\) has element type float64, expected float32"):
        executable.run([x.astype(np.float64)])


def test_missing_constants():
    with pytest.raises(RunError, match="constant row is missing"):
        Executable.from_program(exp_program(), []).run([np.zeros((BLOCKS, ROWS, N), np.float32)])


def test_an_address_beyond_the_input_is_a_fault(x, row):
    program = exp_program(step=BLOCK + 4)
    with pytest.raises(RunError, match=r"record 5 \(dma_copy\): an operand at bytes \[\d+, \d+\) leaves HBM"):
        Executable.from_program(program, [row])
    program.sound = True  # as if nobody had looked
    executable = Executable.from_program(program, [row])
    with pytest.raises(
        RunError, match=r"dma_copy \(record 2, DMA_LOAD\) of kernel map: byte offset .*exp.3.*model.py:12"
    ):
        executable.run([x], check_races=False)


def test_uninitialised_memory_is_nan_for_floats():
    bench = Bench()
    out = bench.tile("f32", (4, 8))
    source = bench.tile("f32", (4, 8))
    bench.emit(Instr("tensor_copy", Stream.VECTOR, (out,), (source,)))
    (got,), _ = bench.run([out], check_races=False)
    assert np.isnan(got).all()


@pytest.mark.parametrize("check_races", [True, False])
def test_what_is_not_written_of_a_result_is_nan_in_each_run(check_races):
    program = Program(variables=[Variable("y", "output", 64, 16, "f32", (4,), 0)], hbm_bytes=128)
    executable = Executable.from_program(program, [])
    for _ in range(2):
        (got,) = executable.run([], check_races=check_races).outputs
        assert np.isnan(got).all()
        executable._memory.bytes[HBM][:128] = 0


def test_runs_are_checked_for_races(x, row):
    program = exp_program()
    program.records[3].waits = ()
    with pytest.raises(RunError, match="race"):
        Executable.from_program(program, [row]).run([x])


def rounded_sum(seed, times=64):
    """bf16 tile of ones, to which 2^-9 (half of half a unit) is added ``times`` times."""
    bench = Bench()
    tile = bench.load(np.ones((128, 64), np.float32), "f32")
    total = bench.tile("bf16", (128, 64))
    bench.emit(Instr("tensor_copy", Stream.VECTOR, (total,), (tile,)))
    for _ in range(times):
        bench.emit(Instr("tensor_scalar", Stream.VECTOR, (total,), (total,), ("add",), (2.0**-9,)))
    return bench.run([total], stochastic_rounding_seed=seed)[0][0].astype(np.float32)


def test_stochastic_rounding_is_unbiased_and_repeatable():
    assert (rounded_sum(None) == 1).all()
    first, again, other = rounded_sum(1), rounded_sum(1), rounded_sum(2)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    # 8192 sums of 64 draws with probability 1/4 of a step of 2^-7
    assert first.mean() == pytest.approx(1 + 64 * 2**-9, abs=5 * 2**-7 * np.sqrt(64 * 3 / 16 / 8192))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8e4m3", "f8e5m2"])
def test_stochastic_rounding_picks_a_neighbour(dtype):
    x = np.random.default_rng(5).standard_normal((128, 256)).astype(np.float32) * 3
    x[0, :4] = [0, np.inf, -np.inf, 1]
    bench = Bench()
    source, out = bench.load(x, "f32"), bench.tile(dtype, x.shape)
    bench.emit(Instr("tensor_copy", Stream.VECTOR, (out,), (source,)))
    (got,), _ = bench.run([out], stochastic_rounding_seed=9)
    value = got.astype(np.float32)
    step = {"bf16": 2.0**-7, "f16": 2.0**-10, "f8e4m3": 2.0**-3, "f8e5m2": 2.0**-2}[dtype]
    least = {"bf16": 0, "f16": 2.0**-24, "f8e4m3": 2.0**-9, "f8e5m2": 2.0**-16}[dtype]
    finite = np.isfinite(x)
    assert (np.abs(value[finite] - x[finite]) <= np.maximum(np.abs(x) * step, least)[finite]).all()
    np.testing.assert_array_equal(value[0, :4], x[0, :4])
    exact = x.astype(got.dtype).astype(np.float32) == x
    np.testing.assert_array_equal(value[exact], x[exact])
    assert (value != x.astype(got.dtype).astype(np.float32)).any()


def test_the_report_adds_up(x, row):
    executable = Executable.from_program(exp_program(), [row])
    report = executable.run([], timing_only=True).report
    s = report.summary
    assert report.time_ns == pytest.approx(report.kernel_ns + 16000)
    assert s["dma_transfer_count"] == 2 * BLOCKS + 1
    assert s["hbm_read_bytes"] == BLOCKS * BLOCK + BLOCK
    assert s["hbm_write_bytes"] == s["output_queue_bytes"] == BLOCKS * BLOCK
    assert s["input_queue_bytes"] == BLOCKS * BLOCK
    assert s["weight_queue_bytes"] == BLOCK
    assert s["scalar_engine_active_time"] == pytest.approx(BLOCKS * N / 1.4e9)
    assert [usage.name for usage in report.kernels] == ["map"]
    assert report.operators[0].busy_ns["vector"] == pytest.approx(BLOCKS * (2 * N + 19) / 1.12)
    assert json.loads(json.dumps(report.to_json()))["is_simulation"] is True
    for word in ("Simulated on trn1", "vector", "exp.3", "map", "KiB a partition"):
        assert word in str(report)


def test_values_do_not_change_the_timing_and_runs_repeat_it(x, row):
    executable = Executable.from_program(exp_program(), [row])
    with_values = executable.run([x]).report.to_json()
    assert with_values == Executable.from_program(exp_program(), [row]).run([], timing_only=True).report.to_json()


def test_machine_can_be_chosen_per_run(x, row):
    executable = Executable.from_program(exp_program(), [row])
    slow = find_machine("trn1").with_settings(["dma.fixed_latency_ns=10000"])
    plain = executable.run([], timing_only=True).report.kernel_ns
    assert executable.run([], timing_only=True, machine=slow).report.kernel_ns > plain + 8700
    assert executable.run([], timing_only=True).report.kernel_ns == plain
    for name in names():
        assert executable.run([], timing_only=True, machine=name).report.machine == name


def test_the_trace_has_a_slice_for_every_instruction(row):
    executable = Executable.from_program(exp_program(), [row])
    text = StringIO()
    write_trace(text, [executable.execution()])
    trace = check_trace(text.getvalue())
    slices = slices_of(trace)
    assert len(slices) == 4 * BLOCKS + 1
    assert {event["args"]["hlo_name"] for event in slices} == {"exp.3"}
    assert all(event["name"].startswith(event["args"]["opcode"]) for event in slices)
    assert {event["args"]["source"] for event in slices} == {"model.py:12"}
    lanes = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert {name.split(" (")[0] for name in lanes} == {
        *("program", "repetitions", "scalar", "vector", "qdma_load", "qdma_store", "qdma_weight")
    }
    assert any(event["ph"] == "s" for event in trace["traceEvents"])


def test_stationary_tile_survives_its_buffer():
    """The weights are loaded, their buffer is overwritten, then they are used, also around a loop."""
    w, x = np.arange(16, dtype=np.float32).reshape(4, 4), np.eye(4, 8, dtype=np.float32) + 1
    bench = Bench()
    weights, moving = bench.load(w, "f32"), bench.load(x, "f32")
    bank = dense(Space.PSUM, "f32", 0, (4, 8))
    bench.emit(Instr("load_stationary", Stream.TENSOR, (), (weights,)))
    bench.emit(Instr("memset", Stream.VECTOR, (weights,), (), imm=(0.0,)))
    bench.emit(Instr("multiply_moving", Stream.TENSOR, (bank,), (moving,)))
    (got,), _ = bench.run([bank])
    np.testing.assert_array_equal(got, w.T @ x)


def test_product_with_the_identity_keeps_the_rules_of_matmul():
    w = np.array([[1, -0.0, 3], [4, 5, 6], [7, 8, 9]], np.float32)
    for special in (None, np.inf, np.nan):
        data = w.copy()
        if special is not None:
            data[1, 2] = special
        bench = Bench()
        weights, moving = bench.load(data, "f32"), bench.load(np.eye(3, dtype=np.float32), "f32")
        bank = dense(Space.PSUM, "f32", 0, (3, 3))
        bench.emit(Instr("load_stationary", Stream.TENSOR, (), (weights,)))
        bench.emit(Instr("multiply_moving", Stream.TENSOR, (bank,), (moving,)))
        (got,), _ = bench.run([bank])
        expected = data.T.copy()
        if special is not None:
            expected[2, :] = [np.nan, special, np.nan]
        np.testing.assert_array_equal(got, expected)
        assert not np.signbit(got[1, 0])


@pytest.mark.parametrize("simulator", ["numpy", pytest.param("native", marks=NATIVE)])
@pytest.mark.parametrize("seed", [None, 3])
def test_memory_goes_with_the_executable(x, row, simulator, seed, monkeypatch):
    """At once, by counting references: the cycle collector counts objects, of which large memories are few."""
    monkeypatch.setenv("NEURONX_CC_SIMULATOR", simulator)
    executable = Executable.from_program(exp_program(), [row])
    executable.run([x], stochastic_rounding_seed=seed)
    memory = weakref.ref(executable._memory)
    collecting = gc.isenabled()
    gc.disable()
    try:
        del executable
        assert memory() is None
    finally:
        if collecting:
            gc.enable()
