"""Programs that name more than there is room for: refused in words, and soon."""

import pytest

import neuronx_cc
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.passes import inline_calls
from tests.support.seconds import at_most


def doubling(levels: int, op: str) -> str:
    """Computations each of which calls the one before twice."""
    calls = {"call": "call({}), to_apply=", "fusion": "fusion({}), kind=kLoop, calls="}
    bodies = ["fn0 { x = f32[4] parameter(0) ROOT r = f32[4] tanh(x) }"]
    for level in range(1, levels):
        if op == "conditional":
            last = f"conditional(p, x, x), true_computation=fn{level - 1}, false_computation=fn{level - 1}"
            bodies.append(
                f"fn{level} {{ x = f32[4] parameter(0) s = f32[1] slice(x), slice={{[0:1]}} y = f32[] reshape(s) "
                f"z = f32[] constant(0) p = pred[] compare(y, z), direction=LT ROOT r = f32[4] {last} }}"
            )
            continue
        first, second = (calls[op].format(value) + f"fn{level - 1}" for value in "xa")
        bodies.append(f"fn{level} {{ x = f32[4] parameter(0) a = f32[4] {first} ROOT b = f32[4] {second} }}")
    entry = f"ENTRY main {{ x = f32[4] parameter(0) ROOT r = f32[4] call(x), to_apply=fn{levels - 1} }}"
    return "HloModule m\n" + "\n".join([*bodies, entry])


@pytest.mark.parametrize("op", ["call", "fusion", "conditional"])
@pytest.mark.parametrize("levels", [30, 300])
def test_exponential_calls_are_refused_at_once(op: str, levels: int) -> None:
    with (
        at_most(2),
        pytest.raises(CompileError, match=r"EVRF007.* more than 2\d\d,\d+ instructions.*call it fewer times"),
    ):
        neuronx_cc.compile(doubling(levels, op))


def test_branches_count_for_the_time_that_they_take() -> None:
    """4,096 calls of a function compile in a second, as many branches would take 14."""
    module = parse_text(doubling(13, "conditional"))
    with at_most(1), pytest.raises(CompileError, match=r"EVRF007.*of which a loop or branch counts 48"):
        inline_calls.check_repeats(module)
    inline_calls.check_repeats(parse_text(doubling(12, "conditional")))
    inline_calls.check_repeats(parse_text(doubling(13, "call")))


def nested(depth: int) -> str:
    """Loops in loops."""
    state, bodies, inner = "(s32[], f32[4])", "", "y = f32[4] tanh(x)"
    for level in range(depth):
        given = f"s = {state} parameter(0) i = s32[] get-tuple-element(s), index=0"
        bodies += (
            f"go{level} {{ {given} n = s32[] constant(2) ROOT r = pred[] compare(i, n), direction=LT }}\n"
            f"do{level} {{ {given} one = s32[] constant(1) j = s32[] add(i, one) "
            f"x = f32[4] get-tuple-element(s), index=1 {inner} ROOT r = {state} tuple(j, y) }}\n"
        )
        inner = (
            f"z = s32[] constant(0) t = {state} tuple(z, x) w = {state} while(t), condition=go{level}, body=do{level} "
            f"y = f32[4] get-tuple-element(w), index=1"
        )
    return f"HloModule m\n{bodies}ENTRY main {{ x = f32[4] parameter(0) {inner} ROOT r = f32[4] negate(y) }}"


def test_loops_nest_as_deep_as_there_are_registers() -> None:
    assert neuronx_cc.compile(nested(48)).program.records
    for depth in (49, 100, 1000):
        with pytest.raises(CompileError, match=r"EVRF901.*while: expected loops .* at most 48 deep, found 49"):
            neuronx_cc.compile(nested(depth))


@pytest.mark.parametrize("types", ["c64 f32 f32", "f32 c64 c64", "c64 c64 f32", "s32 c64 c64", "f32 f32 c64"])
def test_complex_and_real_do_not_mix_in_contractions(types: str) -> None:
    lhs, rhs, result = types.split()
    texts = (
        f"x = {lhs}[4,3] parameter(0) w = {rhs}[3,5] parameter(1) "
        f"ROOT r = {result}[4,5] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
        f"x = {lhs}[1,4,4,2] parameter(0) w = {rhs}[3,3,2,5] parameter(1) "
        f"ROOT r = {result}[1,2,2,5] convolution(x, w), window={{size=3x3}}, dim_labels=b01f_01io->b01f",
    )
    for text in texts:
        with pytest.raises(CompileError, match=r"EVRF064.*all complex or all real"):
            neuronx_cc.compile(f"HloModule m\nENTRY main {{ {text} }}")


def test_what_is_no_escape_is_refused() -> None:
    """As XLA refuses it."""
    text = r'HloModule m ENTRY main { ROOT x = f32[4] parameter(0), metadata={op_name="a\x" source_file="\xg\q"} }'
    with pytest.raises(CompileError, match=r"EVRF064.*expected an escape of C"):
        neuronx_cc.compile(text)
