"""Records to tables and back; limits on the way out, disbelief on the way in."""

import numpy as np
import pytest
from hypothesis import given, settings
from random_programs import programs

from neuronx_cc.ir.errors import CompileError, RunError
from neuronx_cc.ir.isa import limits
from neuronx_cc.ir.isa.decoding import decode
from neuronx_cc.ir.isa.encoding import encode
from neuronx_cc.ir.isa.format import LOOP, Encoded, StreamTables
from neuronx_cc.ir.isa.program import End, Instr, Loop, Record, Ref, Space, Stream, Wait

HBM = 1 << 20


def sbuf(offset=0, free=4, dtype="f32", parts=128, coefs=()):
    return Ref(Space.SBUF, dtype, offset, ((parts, 0), (free, 4)), 0, coefs)


def small_program() -> list[Record]:
    tile = sbuf(512, 16, coefs=((1, 64),))
    row = Ref(Space.HBM, "f32", 4096, ((128, 64), (16, 4)), 0, ((0, 8192),))
    scalar = Ref(Space.SBUF, "s32", 0, ((1, 0), (1, 4)))
    both = frozenset({Stream.DMA_LOAD, Stream.VECTOR})
    return [
        Instr("memset", Stream.VECTOR, (sbuf(),), imm=(0.5,)),
        Instr("reg_load", Stream.DMA_LOAD, (), (scalar,), imm=(9, 0, 3)),
        Loop(7, 0, ((1, 2),), both),
        Instr("dma_copy", Stream.DMA_LOAD, (tile,), (row,), waits=(Wait(Stream.VECTOR, -1, ((0, 1),)),), debug=1),
        Instr(
            "tensor_scalar",
            Stream.VECTOR,
            (tile,),
            (tile,),
            ("multiply", "add"),
            (2, -0.0),
            frozenset({"reverse0", "ap1"}),
            (Wait(Stream.DMA_LOAD, 1, ((0, 1),)),),
        ),
        End(),
        Instr("nop", Stream.SYNC, waits=(Wait(Stream.VECTOR, 8),)),
    ]


def test_round_trip_of_a_small_program():
    records = small_program()
    encoded = encode(records)
    assert list(encoded.streams) == [Stream.VECTOR, Stream.SYNC, Stream.DMA_LOAD]
    assert [len(part.records) for part in encoded.streams.values()] == [4, 1, 4]
    decoded = decode(encoded, 2, HBM)
    assert decoded == records
    assert [type(value) for value in decoded[4].imm] == [int, float]
    assert np.signbit(decoded[4].imm[1])


def test_streams_of_loops_are_filled_in():
    records = small_program()
    records[2] = Loop(7, 0, ((1, 2),))
    assert decode(encode(records), 2, HBM) == small_program()


def test_nothing_is_a_program():
    assert decode(encode([]), 0, 0) == []


@settings(deadline=None, max_examples=30)
@given(programs())
def test_round_trip(records):
    assert decode(encode(records), 10, HBM) == records


def test_encoding_does_not_depend_on_set_order():
    records = small_program()
    again = small_program()
    again[4].flags = frozenset(sorted(again[4].flags, reverse=True))
    for one, other in zip(encode(records).streams.values(), encode(again).streams.values(), strict=True):
        assert one.records.tobytes() == other.records.tobytes()
        assert one.operands.tobytes() == other.operands.tobytes()


@pytest.mark.parametrize(
    ("instr", "text"),
    [
        (Instr("x", Stream.VECTOR, ins=(sbuf(),) * 7), "7 operands"),
        (Instr("x", Stream.VECTOR, waits=(Wait(Stream.SCALAR, 1),) * 13), "13 waits"),
        (Instr("x", Stream.VECTOR, ins=(sbuf(coefs=((0, 1),) * 7),)), "7 address registers"),
        (Instr("x", Stream.VECTOR, ins=(sbuf(coefs=((64, 1),)),)), "register 64"),
        (Instr("x", Stream.VECTOR, waits=(Wait(Stream.SCALAR, 1, ((0, 1),) * 5),)), "5 registers"),
        (Instr("x", Stream.VECTOR, imm=(1.0,) * 9), "9 immediates"),
        (Instr("x", Stream.VECTOR, imm=(2**53 + 1,)), "not exact"),
        (Instr("x", Stream.VECTOR, ins=(Ref(Space.HBM, "f32", 0, ((1, 1),) * 6),)), "6 dims"),
        (Instr("x", Stream.VECTOR, ins=(Ref(Space.HBM, "f32", 1 << 70, ()),)), "62 bits"),
        (Instr("x", Stream.VECTOR, ins=(sbuf(free=0),)), "count"),
    ],
)
def test_limits(instr, text):
    with pytest.raises(CompileError, match=text) as info:
        encode([instr])
    assert info.value.code == "EBIR901"


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([End()], "none is open"),
        ([Loop(2, 0), Instr("nop", Stream.SYNC)], "no end"),
        ([Loop(2, 0), End()], "empty"),
        ([Loop(2, 0, (), frozenset({Stream.SYNC})), Instr("nop", Stream.SCALAR), End()], "does not name scalar"),
        ([Loop(0, 0), Instr("nop", Stream.SCALAR), End()], "trip count"),
    ],
)
def test_malformed_loops(records, text):
    with pytest.raises(CompileError, match=text):
        encode(records)


def spoil(stream, table, field, value, row=0):
    def apply(encoded: Encoded) -> None:
        getattr(encoded.streams[stream], table)[field][row] = value

    return apply


def drop_record(encoded: Encoded) -> None:
    part = encoded.streams[Stream.DMA_LOAD]
    encoded.streams[Stream.DMA_LOAD] = StreamTables(part.records[:-1], part.operands, part.waits)


def drop_operand(encoded: Encoded) -> None:
    part = encoded.streams[Stream.VECTOR]
    encoded.streams[Stream.VECTOR] = StreamTables(part.records, part.operands[1:], part.waits)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (spoil(Stream.VECTOR, "records", "kind", 9), "unknown kind"),
        (spoil(Stream.VECTOR, "records", "opcode", 200), "unknown opcode"),
        (spoil(Stream.VECTOR, "records", "debug", 2), "debug index"),
        (spoil(Stream.VECTOR, "records", "index", 77), "ascending"),
        (spoil(Stream.SYNC, "records", "index", 77), "gaps"),
        (spoil(Stream.SYNC, "records", "index", 0), "two records"),
        (spoil(Stream.VECTOR, "records", "flags", 1 << 20), "unknown flag"),
        (spoil(Stream.VECTOR, "records", "alu", 9, 2), "unknown ALU"),
        (spoil(Stream.VECTOR, "records", "outs", 255), "too many operands"),
        (spoil(Stream.VECTOR, "records", "count", 8, 1), "disagree"),
        (spoil(Stream.VECTOR, "records", "register", 64, 1), "unknown register"),
        (spoil(Stream.VECTOR, "records", "immediates", np.nan, 2), "integer"),
        (spoil(Stream.VECTOR, "operands", "space", 3), "unknown memory"),
        (spoil(Stream.VECTOR, "operands", "dtype", 3), "unknown element type"),
        (spoil(Stream.VECTOR, "operands", "partition", 1), "beyond partition"),
        (spoil(Stream.VECTOR, "operands", "offset", -1), "leaves SBUF"),
        (spoil(Stream.VECTOR, "operands", "offset", 1 << 62), "leaves SBUF"),
        (spoil(Stream.VECTOR, "operands", "counts", 0), "count of 0"),
        (spoil(Stream.VECTOR, "operands", "strides", 1 << 62), "partition stride"),
        (spoil(Stream.DMA_LOAD, "operands", "counts", 1 << 31, 2), "leaves HBM"),
        (spoil(Stream.DMA_LOAD, "operands", "coefs", 1 << 61, 2), "leaves HBM"),
        (spoil(Stream.DMA_LOAD, "operands", "registers", 5, 2), "which nothing sets"),
        (spoil(Stream.DMA_LOAD, "waits", "stream", 6), "unknown stream"),
        (spoil(Stream.DMA_LOAD, "waits", "n_coefs", 9), "too many registers"),
        (drop_record, "not open in its streams"),
        (drop_operand, "another number"),
    ],
)
def test_decoding_believes_nothing(change, text):
    encoded = encode(small_program())
    change(encoded)
    with pytest.raises(RunError, match=text) as info:
        decode(encoded, 2, HBM)
    assert info.value.code == "EBIR902"


def test_addresses_are_checked_for_all_register_values():
    records = small_program()
    decode(encode(records), 2, 4096 + 6 * 8192 + 127 * 64 + 64)
    with pytest.raises(RunError, match="leaves HBM"):
        decode(encode(records), 2, 4096 + 6 * 8192 + 127 * 64 + 63)


def load(register, least, most):
    return Instr("reg_load", Stream.VECTOR, (), (sbuf(0, 1, "s32", 1),), imm=(register, least, most))


def use(stride):
    return Instr("memset", Stream.VECTOR, (sbuf(0, 1, coefs=((5, stride),)),), imm=(0.0,))


def test_loaded_registers_cover_their_clamp_range():
    top = limits.SBUF_PARTITION_BYTES // 8 - 1
    decode(encode([load(5, 0, top), use(8), load(5, 0, 3), use(8 * top // 3)]), 1, 0)
    with pytest.raises(RunError, match="leaves SBUF"):
        decode(encode([load(5, 0, top + 1), use(8)]), 1, 0)
    with pytest.raises(RunError, match="leaves SBUF"):
        decode(encode([load(5, 0, 1), Loop(2, 0), use(8), load(5, 0, top + 1), End()]), 1, 0)


def test_a_loop_may_not_take_the_register_of_an_enclosing_one():
    records = [Loop(2, 0), Loop(2, 1, ((0, 2),)), use(0), End(), End()]
    with pytest.raises(RunError, match="enclosing loop"):
        decode(encode(records), 1, 0)


def test_registers_end_with_their_loop():
    records = [Loop(2, 5), use(4), End(), use(4)]
    assert encode(records).streams[Stream.VECTOR].records["kind"][0] == LOOP
    with pytest.raises(RunError, match="nothing sets"):
        decode(encode(records), 1, 0)
