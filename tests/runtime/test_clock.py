"""The clock against times worked out by hand, and against published measurements (hardware sheet 3.2, 3.3)."""

import pytest
from one_instruction import dense

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import End, Instr, Loop, Program, Ref, Space, Stream, Wait
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime.clock_regions import simulate

V, S, G, T = Stream.VECTOR, Stream.SCALAR, Stream.GPSIMD, Stream.TENSOR
MACHINE = find_machine("trn1")
V_NS, S_NS, T_NS = 1 / 1.12, 1 / 1.4, 1 / 2.8
RATE = MACHINE["pe.rate_limit"]
RUN = 2048 / 17 + 8
"""Nanoseconds of a run of 2 KiB on one DMA engine."""
SBUF, PSUM, HBM = Space.SBUF, Space.PSUM, Space.HBM
STREAMS = frozenset(Stream)


def tile(offset, n=512, dtype="f32", parts=128, space=SBUF):
    return dense(space, dtype, offset, (parts, n))


def add(out, a, b, waits=()):
    return Instr("tensor_tensor", V, (out,), (a, b), ("add",), waits=tuple(waits))


def run(*records, machine=MACHINE):
    return simulate(Program(records=list(records)), machine)


def test_tensor_tensor_of_8192_elements_takes_what_was_published():
    timing = run(add(tile(0, 8192), tile(32768, 8192), tile(65536, 8192)))
    assert timing.total == pytest.approx(14987, rel=0.002)


def test_independent_instructions_run_at_the_initiation_interval():
    timing = run(*(add(tile(8192 * i, 3), tile(8192 * i + 64, 3), tile(8192 * i + 128, 3)) for i in range(10)))
    assert timing.total == pytest.approx((10 * 64) * V_NS + 340)


def test_dependent_activations_take_264_cycles_each():
    one = tile(0, 1)
    timing = run(*(Instr("activation", S, (one,), (one,), ("copy",), (1.0,)) for _ in range(5)))
    assert timing.total == pytest.approx((4 * 264 + 64) * S_NS + 113)
    assert timing.streams[S].waited["dependency"] == pytest.approx(4 * 200 * S_NS)


def test_a_wait_starts_after_the_producer_and_the_semaphore():
    first = add(tile(0), tile(2048), tile(4096))
    second = Instr("activation", S, (tile(6144),), (tile(0),), ("copy",), (1.0,), waits=(Wait(V, 1),))
    timing = run(first, second)
    vector = (2 * 512 + 19) * V_NS + 340
    assert timing.nodes[1].first == pytest.approx(vector + 20)
    assert timing.total == pytest.approx(vector + 20 + 512 * S_NS + 113)
    assert timing.streams[S].waited["vector"] == pytest.approx(vector + 20)


def test_waits_in_loops_follow_their_iteration():
    load = Instr("dma_copy", Stream.DMA_LOAD, (tile(0),), (tile(0, space=HBM),))
    use = add(tile(2048), tile(0), tile(0), [Wait(Stream.DMA_LOAD, 1, ((3, 1),))])
    timing = run(Loop(5, 3, (), STREAMS), load, use, End())
    each = 128 * RUN / 16
    last = 4 * each + 1300 + 8 * RUN + 7
    assert timing.nodes[1].count == 5
    assert timing.total == pytest.approx(last + 20 + (1024 + 19) * V_NS + 340)


def test_matrix_multiplication_hides_the_load_of_the_stationary_tile():
    def pair(dtype):
        weights, moving = tile(0, 128, dtype), tile(4096, 512, dtype)
        return (
            Instr("load_stationary", T, (), (weights,)),
            Instr("multiply_moving", T, (tile(0, 512, space=PSUM),), (moving,)),
        )

    half, full = run(*(pair("bf16") * 20)), run(*(pair("f32") * 20))
    assert half.total == pytest.approx((32 + 20 * 512 / RATE) * T_NS + 142)
    assert full.total == pytest.approx(4 * (32 + 20 * 512 / RATE) * T_NS + 142)
    serial = run(*(pair("bf16") * 20), machine=MACHINE.with_settings(["pe.ls_background_depth=0"]))
    assert serial.total == pytest.approx(20 * (32 + 512 / RATE) * T_NS + 142)
    limited = run(*(pair("bf16") * 20), machine=MACHINE.with_settings(["pe.rate_limit=0.5"]))
    assert limited.total == pytest.approx((32 + 20 * 1024) * T_NS + 142)


def test_a_load_of_128_rows_of_2_kib():
    timing = run(Instr("dma_copy", Stream.DMA_LOAD, (tile(0),), (tile(0, space=HBM),)))
    assert timing.total == pytest.approx(1300 + 8 * RUN + 7)


def test_long_rows_saturate_the_dma_engines():
    copies = [Instr("dma_copy", Stream.DMA_LOAD, (tile(0, 4096),), (tile(0, 4096, space=HBM),)) for _ in range(50)]
    timing = run(*copies)
    nbytes = 50 * 128 * 16384
    assert nbytes / timing.total == pytest.approx(272, rel=0.03)


def test_short_rows_lose_bandwidth_as_published():
    """The published curve, of a platform that it does not name: its shape, with its own time of a short run."""
    machine = MACHINE.with_settings(["dma.elem_cost_ns=140"])
    for row_bytes, fraction in ((64, 0.028), (512, 0.209), (2048, 0.814), (4096, 0.967)):
        n = row_bytes // 4
        source = Ref(HBM, "f32", 0, ((128, row_bytes + 64), (n, 4)))
        timing = run(
            *(Instr("dma_copy", Stream.DMA_LOAD, (tile(0, n),), (source,)) for _ in range(200)), machine=machine
        )
        assert 200 * 128 * row_bytes / timing.total / 272 == pytest.approx(fraction, rel=0.1)


def test_two_queues_share_the_engines():
    source = tile(0, 4096, space=HBM)
    one = [Instr("dma_copy", Stream.DMA_LOAD, (tile(0, 4096),), (source,)) for _ in range(20)]
    two = [Instr("dma_copy", Stream.DMA_WEIGHT, (tile(32768, 4096),), (source,)) for _ in range(20)]
    alone, both = run(*one).total, run(*one, *two).total
    assert both == pytest.approx(2 * (alone - 3300) + 3300, rel=0.02)


def test_a_queue_completes_in_order():
    big = Instr("dma_copy", Stream.DMA_LOAD, (tile(0, 8192),), (tile(0, 8192, space=HBM),))
    small = Instr("dma_copy", Stream.DMA_LOAD, (tile(65536, 1, parts=1),), (tile(0, 1, parts=1, space=HBM),))
    timing = run(big, small)
    assert timing.nodes[1].last >= timing.nodes[0].last


def test_vector_and_gpsimd_take_turns_on_sbuf():
    vector = add(tile(0), tile(2048), tile(4096))
    pool = Instr("memset", G, (tile(8192),), (), imm=(0.0,))
    shared = run(vector, pool)
    apart = run(vector, pool, machine=MACHINE.with_settings(["excl.vec_pool_sbuf=ignore"]))
    assert shared.nodes[1].first == pytest.approx((1024 + 19) * V_NS)
    assert apart.nodes[1].first == 0
    assert shared.streams[G].waited["port"] == pytest.approx((1024 + 19) * V_NS)


def test_vector_and_scalar_take_turns_on_psum_but_not_on_sbuf():
    bank = tile(0, 512, space=PSUM)
    vector = Instr("tensor_copy", V, (tile(0),), (bank,))
    scalar = Instr("activation", S, (tile(4096),), (bank,), ("copy",), (1.0,))
    assert run(vector, scalar).nodes[1].first == pytest.approx((512 + 75) * V_NS)
    scalar = Instr("activation", S, (tile(4096),), (tile(8192),), ("copy",), (1.0,))
    assert run(vector, scalar).nodes[1].first == 0


def test_switching_function_tables_costs_once():
    def act(function, offset):
        return Instr("activation", S, (tile(offset),), (tile(offset + 2048),), (function,), (1.0,))

    same = run(act("exp", 0), act("log", 8192), act("copy", 16384))
    other = run(act("exp", 0), act("tanh", 8192), act("copy", 16384))
    assert other.total - same.total == pytest.approx(368)


def test_a_deadlock_says_who_waits_for_what():
    first = add(tile(0), tile(2048), tile(4096), [Wait(S, 1)])
    second = Instr("activation", S, (tile(6144),), (tile(0),), ("copy",), (1.0,), waits=(Wait(V, 1),))
    with pytest.raises(
        RunError, match=r"vector waits with tensor_tensor .* until scalar has finished 1 .* has finished 0"
    ):
        run(first, second)


def test_wait_for_more_than_a_stream_does():
    with pytest.raises(RunError, match="until gpsimd has finished 3 instructions; it has finished 0"):
        run(add(tile(0), tile(2048), tile(4096), [Wait(G, 3)]))


def test_control_instructions():
    index = Ref(SBUF, "s32", 0, ((1, 0), (1, 4)))
    timing = run(Instr("nop", Stream.SYNC), Instr("reg_load", Stream.SYNC, (), (index,), imm=(1, 0, 5)))
    assert timing.total == pytest.approx(9 + 51)
