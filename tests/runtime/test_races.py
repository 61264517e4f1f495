"""The race check finds every missing wait and nothing else."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from race_model import meet, unrolled, verdict
from race_twins import check

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.program import (
    Debug,
    End,
    Instr,
    Loop,
    Program,
    Record,
    Ref,
    Space,
    Stream,
    Variable,
    Wait,
)
from neuronx_cc.runtime import race_maps, race_native, race_pairs, races
from neuronx_cc.runtime.footprints import Footprints, Patterns
from neuronx_cc.runtime.race_sites import describe
from tests.support.seconds import at_most

TILE = 2048
ROWS = 128


def sbuf(offset, free=512, coefs=(), parts=ROWS, partition=0, stride=4, dtype="f32"):
    return Ref(Space.SBUF, dtype, offset, ((parts, 0), (free, stride)), partition, coefs)


def hbm(offset, pitch=TILE, free=512, coefs=(), rows=ROWS):
    return Ref(Space.HBM, "f32", offset, ((rows, pitch), (free, 4)), 0, coefs)


def inputs(nbytes):
    return Variable("x", "input", 0, nbytes, "u8", (nbytes,), 0)


def program(records: Sequence[Record], input_bytes=1 << 20) -> Program:
    debug = [Debug("kernel", "unknown")]
    for record in records:
        if isinstance(record, Instr):
            record.debug = len(debug)
            debug.append(Debug("kernel", f"op.{len(debug)}", "jit(f)/op", "model.py", 100 + len(debug)))
    return Program(list(records), debug, [inputs(input_bytes)], 1 << 24)


def double_buffered(trips=7) -> Program:
    """Load, add 1, gelu, store; two buffers each; HBM tiles side by side in each row."""
    pitch = trips * TILE
    row = ((0, TILE),)
    two = ((1, TILE),)
    streams = frozenset({Stream.DMA_LOAD, Stream.VECTOR, Stream.SCALAR, Stream.DMA_STORE})
    a, b, c = sbuf(0, coefs=two), sbuf(2 * TILE, coefs=two), sbuf(4 * TILE, coefs=two)
    previous = ((0, 1),)
    return program(
        [
            Loop(trips, 0, ((1, 2),), streams),
            Instr(
                "dma_copy",
                Stream.DMA_LOAD,
                (a,),
                (hbm(0, pitch, coefs=row),),
                waits=(Wait(Stream.VECTOR, -1, previous),),
            ),
            Instr(
                "tensor_scalar",
                Stream.VECTOR,
                (b,),
                (a,),
                ("add",),
                (1.0,),
                waits=(Wait(Stream.DMA_LOAD, 1, previous), Wait(Stream.SCALAR, -1, previous)),
            ),
            Instr(
                "activation",
                Stream.SCALAR,
                (c,),
                (b,),
                ("gelu",),
                (1.0,),
                waits=(Wait(Stream.VECTOR, 1, previous), Wait(Stream.DMA_STORE, -1, previous)),
            ),
            Instr(
                "dma_copy",
                Stream.DMA_STORE,
                (hbm(ROWS * pitch, pitch, coefs=row),),
                (c,),
                waits=(Wait(Stream.SCALAR, 1, previous),),
            ),
            End(),
        ],
        ROWS * pitch,
    )


def refused(records: Program | Sequence[Record], code="ERUN911") -> str:
    with pytest.raises(RunError) as info:
        check(records if isinstance(records, Program) else program(records))
    assert info.value.code == code, info.value
    return str(info.value)


def test_a_double_buffered_loop_is_free_of_races():
    summary = check(double_buffered())
    assert summary.instructions == 4 * 7
    assert summary.finished == {Stream.VECTOR: 7, Stream.SCALAR: 7, Stream.DMA_LOAD: 7, Stream.DMA_STORE: 7}
    assert summary.waits == 7 * 3 + 5 * 3


@pytest.mark.parametrize(
    ("row", "wait", "later", "earlier"),
    [(1, 0, 1, 2), (2, 0, 2, 1), (2, 1, 2, 3), (3, 0, 3, 2), (3, 1, 3, 4), (4, 0, 4, 3)],
)
def test_each_wait_of_the_loop_is_needed(row, wait, later, earlier):
    broken = double_buffered()
    instr = broken.records[row]
    instr.waits = tuple(each for i, each in enumerate(instr.waits) if i != wait)
    message = refused(broken)
    streams = [broken.records[i].stream.name.lower() for i in (later, earlier)]
    assert f"(record {later}" in message
    assert f"(record {earlier}" in message
    assert f"%op.{later}" in message
    assert f"%op.{earlier}" in message
    assert f"missing: {streams[0]} has to wait until {streams[1]} has finished" in message
    assert f"model.py:{100 + later}" in message


def test_a_wait_for_the_iteration_before_the_last_but_one_is_too_weak():
    broken = double_buffered()
    broken.records[1].waits = (Wait(Stream.VECTOR, -2, ((0, 1),)),)
    assert "iteration 2" in refused(broken)


def test_one_buffer_in_place_of_two():
    broken = double_buffered()
    for row in (1, 2):
        instr = broken.records[row]
        instr.outs, instr.ins = (
            tuple(replace(ref, coefs=()) if ref.offset == 0 and ref.space is Space.SBUF else ref for ref in group)
            for group in (instr.outs, instr.ins)
        )
    refused(broken)


def test_the_result_is_kept_with_the_program():
    fine = double_buffered()
    first = check(fine)
    fine.records[1].waits = ()
    assert check(fine) is first
    assert Program() == replace(Program(), race_summary=first)


def writer(stream, offset=0, free=512, waits=(), **more):
    return Instr("memset", stream, (sbuf(offset, free, **more),), imm=(0.0,), waits=waits)


def reader(stream, offset=0, free=512, waits=(), **more):
    return Instr("tensor_copy", stream, (sbuf(65536 + 4096 * stream),), (sbuf(offset, free, **more),), waits=waits)


def test_order_is_transitive():
    copies = [
        writer(Stream.VECTOR),
        Instr("nop", Stream.SYNC, waits=(Wait(Stream.VECTOR, 1),)),
        Instr("nop", Stream.SCALAR, waits=(Wait(Stream.SYNC, 1),)),
    ]
    check(program([*copies, reader(Stream.SCALAR)]))
    refused([*copies[:2], Instr("nop", Stream.SCALAR), reader(Stream.SCALAR)])


def test_waiting_for_a_later_instruction_covers_the_earlier_ones_of_its_stream():
    check(
        program(
            [
                writer(Stream.VECTOR),
                writer(Stream.VECTOR, 8192),
                reader(Stream.SCALAR, 0, 512, (Wait(Stream.VECTOR, 2),)),
            ]
        )
    )


def test_an_engine_is_ordered_with_itself():
    check(program([writer(Stream.VECTOR), reader(Stream.VECTOR), writer(Stream.VECTOR)]))


def copy(out, source, waits=(), stream=Stream.DMA_LOAD):
    return Instr("dma_copy", stream, (out,), (source,), waits=waits)


def test_a_queue_is_not_ordered_with_itself():
    refused([copy(sbuf(0), hbm(0)), copy(sbuf(0), hbm(0))])
    refused([copy(sbuf(0), hbm(0)), copy(sbuf(4096), sbuf(0))])
    check(program([copy(sbuf(0), hbm(0)), copy(sbuf(4096), sbuf(0), (Wait(Stream.DMA_LOAD, 1),))]))


def test_knowledge_of_a_queue_comes_back_through_others():
    there_and_back = [
        copy(sbuf(0), hbm(0)),
        Instr("nop", Stream.SYNC, waits=(Wait(Stream.DMA_LOAD, 1),)),
        copy(sbuf(0), hbm(0), (Wait(Stream.SYNC, 1),)),
    ]
    check(program(there_and_back))


def test_a_transfer_over_itself_is_no_race():
    check(program([copy(sbuf(0), hbm(0)), copy(sbuf(0), sbuf(0), (Wait(Stream.DMA_LOAD, 1),))]))


def test_interleaved_columns_do_not_meet():
    heads = [
        copy(hbm(1 << 20, 12 * 256, 64, rows=ROWS, coefs=()), sbuf(0), (Wait(Stream.VECTOR, 1),), Stream.DMA_STORE)
        for _ in range(12)
    ]
    for head, instr in enumerate(heads):
        instr.outs = (replace(instr.outs[0], offset=(1 << 20) + 256 * head),)
    check(program([writer(Stream.VECTOR), *heads]))
    heads[5].outs = (replace(heads[5].outs[0], offset=(1 << 20) + 256 * 5 - 4),)
    assert "128 runs of 256" in refused([writer(Stream.VECTOR), *heads])


def test_even_and_odd_elements_do_not_meet():
    even = writer(Stream.VECTOR, 0, 100, stride=8)
    odd = writer(Stream.GPSIMD, 4, 100, stride=8)
    check(program([even, odd]))
    refused([even, writer(Stream.GPSIMD, 2, 100, stride=8)])


def test_partitions_count():
    check(program([writer(Stream.VECTOR, parts=64), writer(Stream.GPSIMD, parts=64, partition=64)]))
    refused([writer(Stream.VECTOR, parts=65), writer(Stream.GPSIMD, parts=64, partition=64)])


def test_negative_strides_reach_down():
    check(program([writer(Stream.VECTOR, 400, 100, stride=-4), writer(Stream.GPSIMD, 404, 100)]))
    refused([writer(Stream.VECTOR, 400, 100, stride=-4), writer(Stream.GPSIMD, 0, 2)])


def test_memory_must_be_written_before_it_is_read():
    assert "nothing has written" in refused([reader(Stream.VECTOR)], "ERUN912")
    refused([writer(Stream.VECTOR, 0, 511), reader(Stream.VECTOR)], "ERUN912")
    refused([copy(sbuf(0), hbm(1 << 21))], "ERUN912")
    check(program([writer(Stream.VECTOR, 0, 256), writer(Stream.VECTOR, 1024, 256), reader(Stream.VECTOR)]))


@pytest.mark.parametrize("runs", [1 << 22, 50])
def test_hbm_is_defined_column_by_column(monkeypatch, runs):
    """As one map, and in parts, into which some footprints reach."""
    monkeypatch.setattr(race_maps, "MAX_RUNS", runs)
    monkeypatch.setattr(race_maps, "_SMALLEST", 512)
    column = TILE // 8
    stores = [
        copy(hbm((1 << 20) + column * i, free=column // 4), sbuf(0), (Wait(Stream.VECTOR, 1),), Stream.DMA_STORE)
        for i in range(8)
    ]
    back = copy(sbuf(8192), hbm(1 << 20), (Wait(Stream.DMA_STORE, 8),))
    check(program([writer(Stream.VECTOR), *stores, back]))
    last = stores[7].outs[0]
    for part in (replace(last, dims=((ROWS - 1, TILE), last.dims[1])), replace(last, dims=((ROWS, TILE), (63, 4)))):
        stores[7].outs = (part,)
        refused([writer(Stream.VECTOR), *stores, back], "ERUN912")


def test_partitions_are_defined_one_by_one():
    rows = [writer(Stream.VECTOR, 64, 16, parts=1, partition=row) for row in range(ROWS)]
    check(program([*rows, reader(Stream.VECTOR, 64, 16)]))
    for missing in (0, 63, 64, 127):
        refused([*rows[:missing], *rows[missing + 1 :], reader(Stream.VECTOR, 64, 16)], "ERUN912")


def test_accumulation_reads_its_result():
    psum = Ref(Space.PSUM, "f32", 0, ((128, 0), (512, 4)))
    weights = Instr("load_stationary", Stream.TENSOR, (), (sbuf(0, 128),))
    first = Instr("multiply_moving", Stream.TENSOR, (psum,), (sbuf(0),))
    more = Instr("multiply_moving", Stream.TENSOR, (psum,), (sbuf(0),), flags=frozenset({"accumulate"}))
    start = writer(Stream.VECTOR)
    sync = Instr("nop", Stream.TENSOR, waits=(Wait(Stream.VECTOR, 1),))
    check(program([start, sync, weights, first, more]))
    refused([start, sync, weights, more, first], "ERUN912")


def test_predicated_copies_read_what_they_leave():
    select = Instr("copy_predicated", Stream.VECTOR, (sbuf(8192),), (sbuf(0, dtype="u32"), sbuf(0)))
    refused([writer(Stream.VECTOR), select], "ERUN912")
    check(program([writer(Stream.VECTOR), writer(Stream.VECTOR, 8192), select]))


def test_waits_must_end():
    text = refused([Instr("nop", Stream.SYNC, waits=(Wait(Stream.VECTOR, 1),)), writer(Stream.VECTOR)], "ERUN913")
    assert "deadlock" in text
    assert "only 0 are issued before it" in text
    refused([writer(Stream.VECTOR), Instr("nop", Stream.SYNC, waits=(Wait(Stream.VECTOR, 2),))], "ERUN913")
    refused([writer(Stream.VECTOR, waits=(Wait(Stream.VECTOR, 1),))], "ERUN913")
    check(program([writer(Stream.VECTOR, waits=(Wait(Stream.SYNC, 0), Wait(Stream.SYNC, -3)))]))


def load_register(least, most, stream=Stream.DMA_DYNAMIC):
    return Instr("reg_load", stream, (), (Ref(Space.HBM, "s32", 0, ((1, 4), (1, 4))),), imm=(9, least, most))


def test_loaded_addresses_touch_their_clamp_range():
    dynamic = [
        writer(Stream.VECTOR, 0, 4096),
        load_register(2, 5),
        copy(sbuf(0, 16, ((9, 64),)), hbm(0, free=16), (Wait(Stream.VECTOR, 1),), Stream.DMA_DYNAMIC),
    ]
    check(program([*dynamic, reader(Stream.VECTOR, 0, 32), reader(Stream.VECTOR, 6 * 64, 16)]))
    for tile in range(2, 6):
        refused([*dynamic, reader(Stream.VECTOR, tile * 64, 16)])
    refused([dynamic[0], dynamic[2]], "ERUN913")


def test_addresses_stay_inside_their_memory():
    refused([writer(Stream.VECTOR, 196608 - 4, 2)], "ERUN914")
    refused([writer(Stream.VECTOR, 0, 2, stride=-4)], "ERUN914")
    refused([Loop(3, 0), writer(Stream.VECTOR, 196608 - 8, 1, coefs=((0, 4),)), End()], "ERUN914")


def test_nested_loops_and_phases_that_keep_counting():
    """Three inner trips over two buffers: the second entry begins with the other buffer."""
    two = ((2, TILE),)
    waits = (Wait(Stream.VECTOR, -1, ((0, 3), (1, 1))),)
    body = [
        copy(sbuf(0, coefs=two), hbm(0, free=512), waits),
        Instr(
            "tensor_copy",
            Stream.VECTOR,
            (sbuf(8192),),
            (sbuf(0, coefs=two),),
            waits=(Wait(Stream.DMA_LOAD, 1, ((0, 3), (1, 1))),),
        ),
    ]
    nest = [Loop(4, 0), Loop(3, 1, ((2, 2),)), *body, End(), End()]
    assert check(program(nest)).instructions == 24
    body[0].waits = (Wait(Stream.VECTOR, -2, ((0, 3), (1, 1))),)
    refused(nest)


def test_scattered_footprints_are_exact():
    even = writer(Stream.VECTOR, 0, 1000, stride=8)
    odd = writer(Stream.GPSIMD, 4, 1000, stride=8)
    check(program([even, odd]))
    refused([even, writer(Stream.SCALAR, 8, 1, stride=8)])


def test_what_a_disjoint_access_to_the_same_rows_hides_is_found():
    """The last write to a hull is not the one that conflicts: neither of the two is ordered with the other."""
    even = writer(Stream.VECTOR, 0, 1000, stride=8)
    odd = writer(Stream.GPSIMD, 4, 1000, stride=8)
    later = reader(Stream.SCALAR, 0, 1, (Wait(Stream.GPSIMD, 1),))
    assert "missing: scalar has to wait until vector" in refused([even, odd, later])


# against a brute-force model -----------------------------------------------------------------------------------


def small_refs():
    free = st.lists(st.tuples(st.integers(1, 4), st.integers(-9, 9)), max_size=2).map(tuple)
    on_chip = st.builds(
        lambda dtype, offset, parts, partition, dims: Ref(Space.SBUF, dtype, offset, ((parts, 0), *dims), partition),
        st.sampled_from(["u8", "bf16"]),
        st.integers(60, 70),
        st.integers(1, 2),
        st.integers(0, 2),
        free,
    )
    hbm_refs = st.builds(lambda offset, dims: Ref(Space.HBM, "u8", offset, dims), st.integers(60, 70), free)
    return st.one_of(on_chip, hbm_refs)


@st.composite
def small_programs(draw):
    streams = [Stream.VECTOR, Stream.SCALAR, Stream.DMA_LOAD, Stream.DMA_STORE]
    emitted = dict.fromkeys(streams, 0)
    instrs = []
    for _ in range(draw(st.integers(2, 7))):
        stream = draw(st.sampled_from(streams))
        waits = tuple(
            Wait(other, draw(st.integers(0, emitted[other])))
            for other in draw(st.lists(st.sampled_from(streams), max_size=3))
        )
        outs = tuple(draw(st.lists(small_refs(), min_size=1, max_size=1)))
        ins = tuple(draw(st.lists(small_refs(), max_size=1)))
        instrs.append(Instr(draw(st.sampled_from(["memset", "copy_predicated"])), stream, outs, ins, waits=waits))
        emitted[stream] += 1
    return instrs


@settings(max_examples=150)
@given(small_programs(), st.booleans())
def test_agrees_with_a_model_of_explicit_graphs(instrs, all_defined):
    # everything is written once at the start, unless undefined reads are to be found, too
    everything = Ref(Space.SBUF, "u8", 0, ((4, 0), (128, 1)))
    if all_defined:
        synced = [Instr("memset", Stream.SYNC, (everything,))]
        for stream in {instr.stream for instr in instrs}:
            synced.append(Instr("nop", stream, waits=(Wait(Stream.SYNC, 1),)))
        started = {instr.stream: 1 for instr in synced[1:]}
        instrs = synced + [
            replace(
                instr,
                waits=tuple(replace(wait, count=wait.count + started.get(wait.stream, 0)) for wait in instr.waits),
            )
            for instr in instrs
        ]
    expected, _ = verdict(instrs, [Ref(Space.HBM, "u8", 0, ((200, 1),))])
    found = ""
    try:
        check(program(instrs, 200))
    except RunError as error:
        found = error.code
    if expected in ("", "ERUN913") or found in ("", "ERUN913"):
        assert found == expected
    # of several errors at one instruction, either may be named


@st.composite
def looping_programs(draw):
    streams = [Stream.VECTOR, Stream.SCALAR, Stream.DMA_LOAD]

    def coefs(registers):
        return tuple((register, draw(st.sampled_from([0, 1, 1, 2]))) for register in registers if draw(st.booleans()))

    def block(depth, registers):
        records = []
        for _ in range(draw(st.integers(1, 3))):
            if depth < 2 and draw(st.booleans()):
                fresh = (depth, 8 + depth)
                loop = Loop(draw(st.integers(1, 4)), fresh[0], ((fresh[1], draw(st.integers(1, 3))),))
                records += [loop, *block(depth + 1, (*registers, *fresh)), End()]
                continue
            refs = [
                Ref(
                    Space.SBUF,
                    "u8",
                    draw(st.integers(0, 8)),
                    ((1, 0), (draw(st.integers(1, 4)), 1)),
                    0,
                    coefs(registers),
                )
                for _ in range(2)
            ]
            waits = tuple(
                Wait(stream, draw(st.integers(-6, 3)), coefs(registers))
                for stream in draw(st.lists(st.sampled_from(streams), max_size=3))
            )
            op = draw(st.sampled_from(["tensor_copy", "memset"]))
            ins = (refs[1],) if op == "tensor_copy" else ()
            records.append(Instr(op, draw(st.sampled_from(streams)), (refs[0],), ins, waits=waits))
        return records

    everything = Ref(Space.SBUF, "u8", 0, ((1, 0), (64, 1)))
    started = [Instr("nop", stream, waits=(Wait(Stream.SYNC, 1),)) for stream in streams]
    return [Instr("memset", Stream.SYNC, (everything,)), *started, *block(0, ())]


@settings(max_examples=150)
@given(looping_programs())
def test_loops_mean_what_they_unroll_to(records):
    found = []
    for version in (records, unrolled(records)):
        try:
            found.append(check(program(version)).finished)
        except RunError as error:
            # of several errors at one instruction, either may be named
            found.append("ERUN911" if error.code == "ERUN912" else error.code)
    assert found[0] == found[1]


def test_unbalanced_loops_are_refused():
    refused([End()], "EBIR902")
    refused([Loop(2, 0), writer(Stream.VECTOR)], "EBIR902")


@settings(max_examples=200)
@given(st.lists(small_refs(), min_size=1, max_size=6))
def test_footprints_are_exact(refs):
    patterns = Patterns()
    numbers, bases = np.array([patterns.number(ref, ()) for ref in refs]).T
    places = bases + [ref.offset for ref in refs]
    found, owners = Footprints.of(patterns, numbers, places, np.ones(len(refs), bool))
    for i, one in enumerate(refs):
        for j, other in enumerate(refs):
            pair = owners[[i]], owners[[j]]
            together = one.space is other.space and found.hulls_meet(*pair)[0] and found.overlap(*pair)[0]
            assert together == meet(one, other)


def test_reads_of_weights_cost_nothing():
    loads = [copy(sbuf(4096 * i), hbm(TILE * i)) for i in range(4)]
    assert check(program(loads)).accesses == 4 * 2
    assert describe(program(loads), 0) == "dma_copy on dma_load (record 0 of %op.1)"


@pytest.mark.parametrize("trips", [(10**7,), (10**6, 10**6), (2**32 - 1,) * 5])
def test_loops_too_long_to_be_unrolled_are_refused_before_they_are(trips: tuple[int, ...]) -> None:
    tile = Ref(Space.SBUF, "f32", 0, ((1, 0), (8, 4)))
    fill = Instr("memset", Stream.VECTOR, (tile,), imm=(1.0,))
    loops = [Loop(count, register, (), frozenset([Stream.VECTOR])) for register, count in enumerate(trips)]
    said = f"make {8 * prod(trips)} instructions, waits and accesses"
    with at_most(0.5), pytest.raises(RunError, match=said) as error:
        races.check(Program([*loops, *[fill] * 4, *[End()] * len(loops)]))
    assert error.value.code == "ERUN920"


def loop_of_two(second: int) -> Program:
    """Two engines that do not wait for each other fill every other element; the second one from ``second`` bytes on."""
    tiles = [Ref(Space.SBUF, "f32", offset, ((1, 0), (100, 8)), 0, ((0, 16),)) for offset in (0, second)]
    streams = (Stream.VECTOR, Stream.GPSIMD)
    fills = [Instr("memset", stream, (tile,), imm=(1.0,)) for stream, tile in zip(streams, tiles, strict=True)]
    return Program([Loop(100, 0, (), frozenset([Stream.VECTOR, Stream.GPSIMD])), *fills, End()])


@pytest.mark.parametrize("limit", ["MAX_PAIRS", "MAX_CANDIDATES", "MAX_LOOKED"])
def test_more_pairs_than_are_looked_at_are_refused_unless_one_is_a_race(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check(loop_of_two(4)).accesses == 200
    if limit == "MAX_LOOKED":  # of the passes without native code
        monkeypatch.setattr(race_native, "load", lambda: None)
    elif race_native.load() is None:
        pytest.skip("the native passes are not built")
    if limit == "MAX_PAIRS":  # then those without native code go on
        monkeypatch.setattr(race_pairs, "MAX_LOOKED", 2000)
    monkeypatch.setattr(race_pairs if limit == "MAX_LOOKED" else race_native, limit, 2000)
    with pytest.raises(RunError, match="more accesses may be running at the same time") as error:
        races.check(loop_of_two(4))
    assert error.value.code == "ERUN920"
    monkeypatch.setattr(race_pairs, "_AT_ONCE", 100)
    with pytest.raises(RunError, match="missing: gpsimd has to wait until vector") as error:
        races.check(loop_of_two(8))
    assert error.value.code == "ERUN911"
