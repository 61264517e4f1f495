"""Records to tables and back; limits on the way out, disbelief on the way in."""

import numpy as np
import pytest
from hypothesis import given, settings
from random_programs import programs

from neuronx_cc.ir.errors import CompileError, RunError
from neuronx_cc.ir.isa import limits
from neuronx_cc.ir.isa.decoding import decode
from neuronx_cc.ir.isa.encoding import encode
from neuronx_cc.ir.isa.format import ELSE, LOOP, WHILE, Encoded, StreamTables
from neuronx_cc.ir.isa.program import Branch, Else, End, Instr, Loop, Record, Ref, Space, Stream, Wait, While

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


@settings(max_examples=30)
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
        ([While(0, 2), End()], "without instructions"),
        ([Loop(2, 0), While(1, 2), Instr("nop", Stream.SYNC), End(), End()], "inside a counted loop"),
        ([Instr("nop", Stream.SYNC), Branch(0, 2), End()], "has 1 cases, not 2"),
        ([Instr("nop", Stream.SYNC), Branch(0, 1), Else(), End()], "has 2 cases, not 1"),
        ([Instr("nop", Stream.SYNC), While(0, 2), Else(), End()], "no branch is open"),
        ([Else()], "no branch is open"),
        ([Instr("nop", Stream.SYNC), While(0, 2)], "no end"),
        ([Instr("nop", Stream.SYNC), While(64, 2), End()], "register 64"),
        ([Instr("nop", Stream.SYNC), While(0, -1), End()], "a count of -1"),
        ([Instr("nop", Stream.SYNC), Branch(0, 0), End()], "a count of 0"),
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


def regions() -> list[Record]:
    """All kinds of regions; records 1 to 9 stand in both streams."""
    decide = Instr("reg_load", Stream.SYNC, (), (Ref(Space.HBM, "pred", 0, ((1, 1),)),), imm=(6, 0, 1))
    return [
        decide,
        While(6),
        Branch(6, 2),
        use(0),
        Else(),
        End(),
        While(7, 9),
        Instr("memset", Stream.VECTOR, (sbuf(0, 1, coefs=((7, 64),)),), imm=(0.0,)),
        End(),
        decide,
        End(),
    ]


def test_regions_stand_in_all_streams():
    records = [load(5, 0, 0), *regions()]
    encoded = encode(records)
    assert [len(part.records) for part in encoded.streams.values()] == [10, 9]
    assert decode(encoded, 1, HBM) == records


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (spoil(Stream.SYNC, "records", "kind", ELSE, 1), "two records"),
        (spoil(Stream.SYNC, "records", "register", 9, 1), "disagree"),
        (spoil(Stream.SYNC, "records", "count", 9, 1), "disagree"),
    ],
)
def test_streams_agree_about_regions(change, text):
    encoded = encode([load(5, 0, 0), *regions()])
    change(encoded)
    with pytest.raises(RunError, match=text):
        decode(encoded, 1, HBM)


def in_both(field, value, row):
    """Spoil the same record in both streams: ``row`` counts the records of regions."""

    def apply(encoded: Encoded) -> None:
        for part in encoded.streams.values():
            rows = np.flatnonzero(part.records["kind"] != 0)
            part.records[field][rows[row]] = value

    return apply


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (in_both("kind", ELSE, 0), "not open"),
        (in_both("kind", WHILE, 1), "begins a case of no branch"),
        (in_both("kind", LOOP, 0), "without iterations"),
        (in_both("count", 0, 1), "without cases"),
        (in_both("count", 3, 1), "lacks 1 cases"),
        (in_both("count", 1, 1), "one too many"),
        (in_both("register", 200, 0), "unknown register"),
        (in_both("register", 8, 0), "register 8, which nothing sets"),
        (in_both("count", 1 << 31, 4), "leaves SBUF"),
        (in_both("register", 6, 4), "register 7, which nothing sets"),
    ],
)
def test_decoding_believes_nothing_about_regions(change, text):
    encoded = encode([load(5, 0, 0), *regions()])
    change(encoded)
    with pytest.raises(RunError, match=text) as info:
        decode(encoded, 1, HBM)
    assert info.value.code == "EBIR902"


def test_a_region_missing_in_a_stream():
    encoded = encode([load(5, 0, 0), *regions()])
    part = encoded.streams[Stream.SYNC]
    kept = np.ones(len(part.records), bool)
    kept[np.flatnonzero(part.records["index"] == 7)] = False
    encoded.streams[Stream.SYNC] = StreamTables(part.records[kept], part.operands, part.waits)
    with pytest.raises(RunError, match="missing in a stream"):
        decode(encoded, 1, HBM)


def test_a_branch_on_what_may_be_no_case():
    records = [load(5, 0, 0), *regions()]
    records[1] = Instr("reg_load", Stream.SYNC, (), records[1].ins, imm=(6, 0, 2))
    with pytest.raises(RunError, match="a branch of 2 cases on a register that holds 0 to 2"):
        decode(encode(records), 1, HBM)


def test_registers_that_a_region_may_not_have_set():
    for start in (While(5, 2), While(6)):
        region = [load(7, 0, 3), start, load(8, 0, 3), End()]
        decide = Instr("reg_load", Stream.SYNC, (), (Ref(Space.HBM, "pred", 0, ((1, 1),)),), imm=(6, 0, 1))
        after = Instr("memset", Stream.VECTOR, (sbuf(0, 1, coefs=((8, 4),)),), imm=(0.0,))
        if start.count:
            decode(encode([decide, *region, after]), 1, HBM)
            continue
        with pytest.raises(RunError, match="register 8, which nothing sets"):
            decode(encode([decide, *region, after]), 1, HBM)


def test_a_counted_region_keeps_its_register():
    with pytest.raises(RunError, match="counts in register 5"):
        decode(encode([load(1, 0, 0), While(5, 2), While(5, 2), End(), End()]), 1, HBM)
    with pytest.raises(RunError, match="enclosing loop"):
        decode(encode([While(5, 2), Loop(3, 5), load(1, 0, 0), End(), End()]), 1, HBM)
