"""Regions of the instruction set: values, course, clock and race check, on programs written by hand."""

from io import StringIO

import numpy as np
import pytest
from trace_checker import check_trace, slices_of

from neuronx_cc.ir.errors import RunError
from neuronx_cc.ir.isa.cost import barrier_ns
from neuronx_cc.ir.isa.program import (
    Branch,
    Debug,
    Else,
    End,
    Instr,
    Loop,
    Program,
    Ref,
    Space,
    Stream,
    Variable,
    Wait,
    While,
)
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.runtime import races
from neuronx_cc.runtime.clock_regions import simulate
from neuronx_cc.runtime.course import assumed
from neuronx_cc.runtime.executable import Executable
from neuronx_cc.runtime.profiling.trace import write_trace

TRN1 = find_machine("trn1")
COUNT = Ref(Space.HBM, "s32", 0, ((1, 4), (1, 4)))
SCALAR = Ref(Space.SBUF, "s32", 0, ((1, 0), (1, 4)))
OUT = Ref(Space.HBM, "s32", 4, ((1, 4), (1, 4)))


def load(stream: Stream = Stream.SYNC, source: Ref = COUNT, waits: tuple[Wait, ...] = (), most: int = 1) -> Instr:
    return Instr("reg_load", stream, (), (source,), imm=(5, 0, most), waits=waits)


def add(amount: int, waits: tuple[Wait, ...] = ()) -> Instr:
    return Instr("int_tensor_tensor", Stream.GPSIMD, (SCALAR,), (SCALAR,), ("add",), (amount,), waits=waits)


def program(*records: object, last: int = 1) -> Program:
    """``records`` between a load of the input into SBUF and a store of it, which waits for GpSimd's number ``last``."""
    first = Instr("dma_copy", Stream.DMA_LOAD, (SCALAR,), (COUNT,))
    touch = add(0, (Wait(Stream.DMA_LOAD, 1),))
    end = Instr("dma_copy", Stream.DMA_STORE, (OUT,), (SCALAR,), waits=(Wait(Stream.GPSIMD, last),))
    variables = [
        Variable("n", "input", 0, 4, "s32", (), 0),
        Variable("out", "output", 4, 4, "s32", (), 0),
    ]
    return Program([first, touch, *records, end], [Debug("k", "op")], variables, 64)  # type: ignore[list-item]


def run(code: Program, value: int) -> tuple[int, float]:
    result = Executable.from_program(code, []).run([np.int32(value)])
    return int(result.outputs[0]), result.report.kernel_ns


COUNTDOWN = (
    load(source=SCALAR, waits=(Wait(Stream.GPSIMD, 1),)),
    While(5),
    add(-1),
    load(source=SCALAR, waits=(Wait(Stream.GPSIMD, 1),)),
    End(),
)


@pytest.mark.parametrize("trips", [0, 1, 7])
def test_run_time_loop(trips: int) -> None:
    value, _ = run(program(*COUNTDOWN), trips)
    assert value == 0


def test_an_iteration_costs_the_same_each_time() -> None:
    times = [run(program(*COUNTDOWN), trips)[1] for trips in (0, 1, 2, 1000)]
    one = times[1] - times[0]
    assert one > barrier_ns(TRN1)
    assert times[2] - times[1] == pytest.approx(one)
    assert times[3] - times[0] == pytest.approx(1000 * one)


def test_counted_loop_and_nesting() -> None:
    inner = (While(6, 3), add(10), End())
    value, time = run(program(While(7, 4), add(1), *inner, End()), 5)
    assert value == 5 + 4 * 31
    body, _ = run(program(add(1), last=2), 5)
    assert body == 6
    assert time > 4 * 5 * barrier_ns(TRN1)


@pytest.mark.parametrize(("value", "expected"), [(0, 100), (1, 3), (2, 2), (9, 9)])
def test_branch(value: int, expected: int) -> None:
    code = program(
        load(source=SCALAR, waits=(Wait(Stream.GPSIMD, 1),), most=2),
        Branch(5, 3),
        add(100),
        Else(),
        add(1),
        add(1),
        Else(),
        End(),
    )
    assert run(code, value)[0] == expected


def test_loop_register_addresses() -> None:
    """The count of a region takes part in addresses; counters after phase registers start anew in each iteration."""
    row = Ref(Space.SBUF, "s32", 64, ((1, 0), (1, 4)), 0, ((8, 4),))
    body = (Loop(3, 9, ((10, 2),)), Instr("memset", Stream.GPSIMD, (row,), (), imm=(7,)), End())
    code = program(While(8, 5), *body, End(), add(1), last=2)
    assert run(code, 2)[0] == 3


def test_timing_without_values() -> None:
    code = program(*COUNTDOWN, While(6, 3), add(1), End())
    course, guesses = assumed(code)
    assert guesses == 1
    report = Executable.from_program(code, []).run([], timing_only=True).report
    assert report.kernel_ns == simulate(code, TRN1, course=course).total
    assert "assumed to run once" in report.to_text()
    assert report.to_json()["assumed_regions"] == 1
    assert report.kernel_ns == pytest.approx(run(code, 1)[1])


def test_trace_shows_repeated_work_once() -> None:
    code = program(While(6, 50), add(1), End())
    result = Executable.from_program(code, []).run([np.int32(0)])
    text = StringIO()
    write_trace(text, [result.execution])
    trace = check_trace(text.getvalue())
    slices = slices_of(trace)
    assert any(event["name"] == "runs 50 times" for event in trace["traceEvents"])
    assert len(slices) == 4
    assert result.report.summary["gpsimd_engine_instruction_count"] == 51


def fails(code: str, *records: object, match: str = "") -> None:
    with pytest.raises(RunError) as caught:
        races.check(program(*records))
    assert caught.value.code == code
    assert match in caught.value.message


def store(waits: tuple[Wait, ...] = ()) -> Instr:
    return Instr("dma_copy", Stream.DMA_STORE, (OUT,), (SCALAR,), waits=waits)


def test_races_inside_a_region() -> None:
    fails("ERUN911", While(6, 3), add(1), store(), End(), match="race")
    races.check(program(While(6, 3), add(1), store((Wait(Stream.GPSIMD, 1),)), End()))


def test_barriers_order_iterations_and_what_is_around() -> None:
    races.check(program(While(6, 3), store(), End(), add(1), last=2))
    races.check(program(add(1), While(6, 3), store(), While(7, 2), add(1), End(), store(), End(), add(1), last=3))


def test_counts_start_from_nought_inside() -> None:
    fails("ERUN913", While(6, 3), store((Wait(Stream.GPSIMD, 1),)), End(), match="deadlock")


def test_counts_go_on_after() -> None:
    """The store at the end waits for one instruction of GpSimd: the one before the region, not those inside."""
    code = program(While(6, 3), add(1), add(1), End(), add(1))
    with pytest.raises(RunError, match="race"):
        races.check(code)


def test_memory_that_only_a_region_defines() -> None:
    fresh = Ref(Space.SBUF, "s32", 128, ((1, 0), (1, 4)))
    write = Instr("memset", Stream.GPSIMD, (fresh,), (), imm=(1,))
    read = Instr("int_tensor_tensor", Stream.GPSIMD, (SCALAR,), (fresh,), ("add",), (1,))
    begin = load(source=SCALAR, waits=(Wait(Stream.GPSIMD, 1),))
    again = load(source=SCALAR)
    races.check(program(While(6, 2), write, End(), read, last=2))
    fails("ERUN912", begin, While(5), write, again, End(), read, match="nothing has written")
    fails("ERUN912", begin, Branch(5, 2), write, Else(), End(), read, match="nothing has written")
    fails("ERUN912", begin, Branch(5, 2), read, Else(), write, End(), match="nothing has written")


@pytest.mark.parametrize(
    "records",
    [
        (While(5), End()),
        (Branch(5, 2), Else(), End()),
        (load(most=3), Branch(5, 2), Else(), End()),
        (load(), Branch(5, 2), End()),
        (load(), Branch(5, 1), Else(), End()),
        (Else(),),
        (While(6, 2), Else(), End()),
        (Loop(2, 1), While(6, 2), End(), End()),
        (While(6, 2),),
        (load(stream=Stream.GPSIMD), While(5), End()),
    ],
)
def test_malformed(records: tuple[object, ...]) -> None:
    fails("EBIR902", *records)
