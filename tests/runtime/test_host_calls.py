"""Calls of functions of the host in compiled programs: order, types, faults, and that no file holds them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from generated import compile_text

from neuronx_cc.ir.errors import CompileError, RunError
from neuronx_cc.ir.isa.host import HOST_CALL, slots
from neuronx_cc.ir.neff import Neff
from neuronx_cc.ir.operators_table import CUSTOM_CALLS
from neuronx_cc.runtime.devices import compute_devices, replicate
from neuronx_cc.runtime.executable import Executable

Array = np.ndarray[Any, Any]

CALL = 'custom-call({}), custom_call_target="neuron_host_call", backend_config="{}"'
EFFECT = CALL + ", custom_call_has_side_effect=true"
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def executable(body: str, more: str = "", header: str = "") -> Executable:
    """A program of the parameter x = f32[2,3]."""
    text = f"HloModule m{header}\n{more}\nENTRY main {{\n  x = f32[2,3] parameter(0)\n{body}\n}}\n"
    compiled = compile_text(text)
    return Executable.from_program(compiled.program, compiled.constants)


def test_the_target_is_listed() -> None:
    assert CUSTOM_CALLS[HOST_CALL].status == "native"


def test_slots_are_aligned_and_without_gaps() -> None:
    found, nbytes = slots([("u8", (3,)), ("f32", (2,)), ("bf16", ()), ("s32", (0, 4)), ("pred", (1,))])
    assert [slot.offset for slot in found] == [10, 0, 8, 8, 13]
    assert nbytes == 14


def test_values_go_to_the_host_and_back() -> None:
    def function(given: Sequence[Array]) -> list[Array]:
        assert [array.tolist() for array in given] == [(X + 1).tolist(), X.T.tolist(), 7]
        return [given[0] * 2, np.arange(5, dtype=np.uint8)]

    program = executable(
        f"""  one = f32[] constant(1)
  ones = f32[2,3] broadcast(one), dimensions={{}}
  y = f32[2,3] add(x, ones)
  t = f32[3,2] transpose(x), dimensions={{1,0}}
  seven = s32[] constant(7)
  c = (f32[2,3], u8[5]) {CALL.format("y, t, seven", 4)}
  a = f32[2,3] get-tuple-element(c), index=0
  b = u8[5] get-tuple-element(c), index=1
  s = f32[2,3] subtract(a, x)
  ROOT r = (f32[2,3], u8[5]) tuple(s, b)"""
    )
    first, second = program.run([X], functions={4: function}).outputs
    np.testing.assert_array_equal(first, (X + 1) * 2 - X)
    np.testing.assert_array_equal(second, np.arange(5))


def test_effects_keep_their_order_whatever_they_need() -> None:
    seen: list[str] = []
    functions = {number: lambda given, number=number: seen.append(f"{number}") or [] for number in range(4)}
    deep = "\n".join(f"  y{i + 1} = f32[2,3] sine(y{i})" for i in range(6))
    program = executable(
        f"""  c3 = () {EFFECT.format("x", 3)}
  y0 = f32[2,3] cosine(x)
{deep}
  c1 = () {EFFECT.format("y6", 1)}
  c0 = () {EFFECT.format("", 0)}
  c2 = () {EFFECT.format("x", 2)}
  ROOT r = f32[2,3] negate(x)"""
    )
    report = program.run([X], functions=functions).report
    assert seen == ["0", "1", "2", "3"]
    assert report.host_calls == 4
    assert "the host takes for 4 calls" in str(report)
    assert report.to_json()["host_calls"] == 4
    assert program.run([], timing_only=True).report.host_calls == 4
    assert seen == ["0", "1", "2", "3"]


LOOP = """body {
  s = (s32[], f32[2,3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[2,3] get-tuple-element(s), index=1
BODY
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], f32[2,3]) tuple(j, x)
}
condition {
  s = (s32[], f32[2,3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(LIMIT)
  ROOT less = pred[] compare(i, n), direction=LT
}"""
LOOP_ENTRY = """  zero = s32[] constant(0)
  start = (s32[], f32[2,3]) tuple(zero, x)
  loop = (s32[], f32[2,3]) while(start), condition=condition, body=body
  ROOT r = f32[2,3] negate(x)"""


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_loops_without_results_run_for_their_effects(trips: int) -> None:
    seen: list[int] = []
    body = f"  c = s32[] {EFFECT.format('i', 0)}"
    program = executable(LOOP_ENTRY, LOOP.replace("LIMIT", str(trips)).replace("BODY", body))
    program.run([X], functions={0: lambda given: seen.append(given[0].item()) or [np.int32(0)]})
    assert seen == list(range(trips))


BRANCHES = f"""yes {{
  p = (f32[2,3]) parameter(0)
  x = f32[2,3] get-tuple-element(p), index=0
  c = () {EFFECT.format("x", 0)}
  ROOT t = (f32[2,3]) tuple(x)
}}
no {{
  ROOT p = (f32[2,3]) parameter(0)
}}
"""
IN_A_BRANCH = """  d = f32[2,3] sine(x)
  p = (f32[2,3]) tuple(d)
  two = s32[] constant(2)
  low = pred[] compare(i, two), direction=LT
  k = (f32[2,3]) conditional(low, p, p), true_computation=yes, false_computation=no"""


def test_branches_with_effects_stay_in_a_loop_that_loses_other_ops() -> None:
    seen: list[int] = []
    program = executable(LOOP_ENTRY, BRANCHES + LOOP.replace("LIMIT", "4").replace("BODY", IN_A_BRANCH))
    program.run([X], functions={0: lambda given: seen.append(1) or []})
    assert seen == [1, 1]


def test_calls_without_effects_go_with_their_results_and_merge() -> None:
    seen: list[int] = []
    program = executable(
        f"""  a = f32[2,3] {CALL.format("x", 1)}
  b = f32[2,3] {CALL.format("x", 1)}
  c = f32[2,3] {CALL.format("x", 2)}
  ROOT r = f32[2,3] add(a, b)"""
    )
    (result,) = program.run([X], functions={1: lambda given: seen.append(1) or given}).outputs
    np.testing.assert_array_equal(result, 2 * X)
    assert seen == [1]


def test_what_the_host_is_given_is_its_own() -> None:
    kept: list[Array] = []
    program = executable(f"  ROOT r = f32[2,3] {CALL.format('x', 0)}")
    for number in range(3):
        program.run([X + number], functions={0: lambda given: kept.append(given[0]) or given})
    assert [array[0, 0] for array in kept] == [0, 1, 2]


def test_one_partition_calls_and_sends() -> None:
    seen: list[float] = []
    program = executable(f"  ROOT r = f32[2,3] {EFFECT.format('x', '0 1')}", header=", num_partitions=3")
    devices = replicate(program)
    outputs = [[np.zeros_like(X)] for _ in devices]
    functions = {0: lambda given: seen.append(float(given[0][0, 0])) or [given[0] * 10]}
    compute_devices(devices, [[X + number] for number in range(3)], outputs, functions=functions)
    assert seen == [1]
    for (output,) in outputs:
        np.testing.assert_array_equal(output, (X + 1) * 10)


def test_errors_of_the_host() -> None:
    program = executable(f"  ROOT r = f32[2,3] {CALL.format('x', 0)}")

    def fail(given: Sequence[Array]) -> Sequence[Array]:
        raise ValueError("said the host")

    for functions, code, text in (
        (None, "ERUN918", "process that compiled it"),
        ({1: fail}, "ERUN918", "host function 0 is not there"),
        ({0: fail}, "ERUN919", "ValueError: said the host"),
    ):
        with pytest.raises(RunError) as caught:
            program.run([X], functions=functions)
        assert caught.value.code == code
        assert text in str(caught.value)
    np.testing.assert_array_equal(program.run([X], functions={0: lambda given: given}).outputs[0], X)


def test_no_file_holds_them() -> None:
    program = executable(f"  ROOT r = f32[2,3] {CALL.format('x', 0)}")
    with pytest.raises(CompileError, match=r"EHCA901.*%r"):
        Neff(program.program, [], {}, "trn1").to_bytes()
