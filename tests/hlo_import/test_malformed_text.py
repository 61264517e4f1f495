"""Malformed HLO text: every error names file, line and column, shows the line with a caret, and says the rule."""

import pytest

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.errors import CompileError
from tests.support.seconds import at_most


def entry(*lines: str) -> str:
    return "HloModule m\n\nENTRY main {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


A = "a = f32[4] parameter(0)"

CASES: dict[str, tuple[str, int, int, str]] = {
    # name: text, line, column, part of the message
    "no module": ("ENTRY main {\n}\n", 2, 1, "at least one instruction in computation main"),
    "no name": ("HloModule\nENTRY main {\n}\n", 2, 1, "expected the name of the module"),
    "unknown header attribute": ("HloModule m, foo=1\n" + entry(A)[12:], 1, 1, "found foo"),
    "header flag": ('HloModule m, is_scheduled="true"\n' + entry(A)[12:], 1, 1, "expected true or false"),
    "no replicas": ("HloModule m, replica_count=0\n" + entry(A)[12:], 1, 1, "replica_count of 1 or more"),
    "signature": ("HloModule m\nENTRY e (a: f32[4]) -> f32[5] {\n  " + A + "\n}\n", 2, 1, "a result of type f32[4]"),
    "signature without type": ("HloModule m\nENTRY e (a) -> f32[4] {\n  " + A + "\n}\n", 2, 11, "expected ':'"),
    "computation attribute": (entry(A)[:-1] + ", foo=1\n", 5, 9, "execution_thread of a computation, found foo"),
    "unknown attribute": (entry(A, "ROOT b = f32[4] negate(a), foo=1"), 5, 34, "an attribute of negate"),
    "attribute of another op": (entry(A, "ROOT b = f32[4] negate(a), dimensions={0}"), 5, 41, "found dimensions"),
    "sharding without braces": (
        entry(A, "ROOT b = f32[4] negate(a), sharding=replicated"),
        5,
        39,
        "a sharding such as",
    ),
    "quoted enum": (entry(A, 'ROOT b = pred[4] compare(a, a), direction="LT"'), 5, 45, "expected EQ, NE"),
    "predecessor": (entry(A, "ROOT b = f32[4] negate(a), control-predecessors={c}"), 5, 3, "defined above, found 'c'"),
    "own predecessor": (entry(A, "ROOT b = f32[4] negate(a), control-predecessors={b}"), 5, 3, "found 'b'"),
    "type that XLA does not infer": (entry(A, "ROOT b = reshape(a)"), 5, 3, "the type of the result"),
    "type that cannot be": (entry(A, "ROOT b = transpose(a), dimensions={7}"), 5, 3, "that make a type"),
    "no computation": ("HloModule m\n", 2, 1, "expected at least one computation"),
    "empty computation": (entry(), 4, 1, "at least one instruction"),
    "open computation": ("HloModule m\nENTRY main {\n  a = f32[] parameter(0)\n", 2, 1, "expected '}'"),
    "open bracket": ("HloModule m\nENTRY main {\n  a = f32[] parameter(0), sharding={{x}\n", 3, 36, "a closing '}'"),
    "crossed brackets": (entry("a = (f32[4}, f32[]) parameter(0)"), 4, 13, "expected a bracket that matches"),
    "open string": (entry(A, 'ROOT b = f32[4] negate(a), metadata={op_name="x}'), 5, 48, "closing quote"),
    "open comment": (entry(A, "ROOT b = (f32[4], /*index=1 f32[4]) tuple(a, a)"), 5, 21, "'*/'"),
    "no type": (entry("a = parameter(0)"), 4, 7, "expected a type"),
    "unknown type": (entry("a = f33[4] parameter(0)"), 4, 7, "expected an element type"),
    "bad dimension": (entry("a = f32[x] parameter(0)"), 4, 7, "expected integers as dimensions"),
    "negative dimension": (entry("a = f32[-1] parameter(0)"), 4, 7, "0 or more"),
    "absurd size": (entry("a = f32[999999999999,999999999999] parameter(0)"), 4, 7, "at most 2**47 bytes"),
    "absurd digits": (entry(f"a = f32[{'9' * 5000}] parameter(0)"), 4, 7, "at most 2**47 bytes"),
    "bad layout": (entry("a = f32[2,3]{0,0} parameter(0)"), 4, 7, "permutes the 2 dimensions"),
    "no opcode": (entry("a = f32[4]"), 5, 1, "expected an opcode"),
    "unknown opcode": (entry(A, "ROOT b = f32[4] negatee(a)"), 5, 19, "expected an HLO opcode, found 'negatee'"),
    "undefined operand": (entry(A, "ROOT b = f32[4] negate(c)"), 5, 3, "found 'c'"),
    "duplicate name": (entry(A, "a = f32[4] negate(a)"), 5, 3, "expected one instruction a"),
    "cycle": (entry(A, "b = f32[4] add(a, c)", "ROOT c = f32[4] negate(b)"), 5, 3, "defined above in main, found 'c'"),
    "self": (entry("ROOT c = f32[4] negate(c)"), 4, 3, "defined above in main, found 'c'"),
    "two roots": (entry("ROOT " + A, "ROOT b = f32[4] negate(a)"), 5, 3, "expected one ROOT"),
    "operand count": (entry(A, "ROOT b = f32[4] add(a)"), 5, 3, "expected 2 operands, found 1"),
    "wrong shape": (entry(A, "ROOT b = f32[5] add(a, a)"), 5, 3, "expected a result of f32[4], found f32[5]"),
    "wrong type": (entry(A, "ROOT b = s32[4] add(a, a)"), 5, 3, "expected a result of f32[4], found s32[4]"),
    "operand separator": (entry(A, "ROOT b = f32[4] add(a; a)"), 5, 24, "or ')' between operands"),
    "operand type differs": (entry(A, "ROOT b = f32[4] negate(f32[5] a)"), 5, 3, "expected operand a of type f32[4]"),
    "missing attribute": (entry(A, "ROOT b = f32[4] transpose(a)"), 5, 3, "expected attribute dimensions"),
    "bad attribute": (entry(A, "ROOT b = f32[4] reverse(a), dimensions={x}"), 5, 42, "expected an integer"),
    "attribute twice": (
        entry(A, "ROOT b = f32[4] reverse(a), dimensions={0}, dimensions={0}"),
        5,
        45,
        "expected attribute dimensions once",
    ),
    "text behind predecessors": (
        entry(A, "ROOT b = f32[4] negate(a), control-predecessors={}zz"),
        5,
        51,
        "expected a list in braces",
    ),
    "two strings": (
        entry(A, 'ROOT b = f32[4] custom-call(a), custom_call_target="t""u"'),
        5,
        54,
        "expected one quoted string",
    ),
    "bad window": (
        entry(A, "ROOT b = f32[4] reduce-window(a, a), window={size=3x3 pad=1_1}, to_apply=f"),
        5,
        47,
        "expected 2 values for window pad",
    ),
    "bad labels": (
        entry(A, "ROOT b = f32[4] convolution(a, a), dim_labels=bf0_io0->bff"),
        5,
        49,
        "in some order",
    ),
    "unknown callee": (entry(A, "ROOT b = f32[4] call(a), to_apply=f"), 5, 3, "found 'f'"),
    "recursion": (
        "HloModule m\nf {\n  a = f32[] parameter(0)\n  ROOT b = f32[] call(a), to_apply=f\n}\n"
        "ENTRY main {\n  a = f32[] parameter(0)\n  ROOT b = f32[] call(a), to_apply=f\n}\n",
        4,
        3,
        "stands above its caller, found 'f'",
    ),
    "two entries": (
        "HloModule m\nENTRY f {\n  a = f32[] parameter(0)\n}\nENTRY g {\n  a = f32[] parameter(0)\n}\n",
        5,
        1,
        "expected one ENTRY",
    ),
    "same computation twice": (
        "HloModule m\nf {\n  a = f32[] parameter(0)\n}\nf {\n  a = f32[] parameter(0)\n}\n"
        "ENTRY g {\n  a = f32[] parameter(0)\n}\n",
        5,
        1,
        "expected one computation f",
    ),
    "parameter number": (entry("a = f32[] parameter(1)"), 4, 3, "numbered 0 to 0, found 1"),
    "parameter text": (entry("a = f32[] parameter(x)"), 4, 23, "expected the number of a parameter"),
    "parameter twice": (entry(A, "b = f32[4] parameter(0)"), 5, 3, "expected one parameter(0)"),
    "elided constant": (entry("a = f32[4] constant({...})"), 4, 23, "placeholder {...}"),
    "short constant": (entry("a = f32[4] constant({1, 2})"), 4, 23, "expected 4 elements"),
    "nested constant": (entry("a = f32[4] constant({{1, 2}, {3, 4}})"), 4, 23, "expected 4 elements"),
    "large constant": (entry("a = f32[2000000000] constant({1, 2})"), 4, 32, "expected 2000000000 elements"),
    "integer range": (entry("a = s8[] constant(200)"), 4, 21, "between -128 and 127, found 200"),
    "unsigned range": (entry("a = u8[2] constant({1, -1})"), 4, 22, "between 0 and 255, found -1"),
    "not an integer": (entry("a = s32[] constant(1.5)"), 4, 22, "expected an integer of s32"),
    "not a number": (entry("a = f32[] constant(x)"), 4, 22, "expected a number of f32"),
    "nan payload": (entry("a = f32[] constant(nan(0xfffffff))"), 4, 22, "payload"),
    "not a truth": (entry("a = pred[] constant(x)"), 4, 23, "expected true, false"),
    "complex": (entry("a = c64[] constant(1)"), 4, 22, "complex numbers"),
    "tuple constant": (entry("a = (f32[], s32[]) constant((1))"), 4, 31, "expected 2 values of a tuple, found 1"),
    "no tuple": (entry("a = (f32[]) constant(1)"), 4, 24, "expected a tuple of values"),
    "token constant": (entry("a = token[] constant(1)"), 4, 24, "expected a constant of an array type"),
    "glued": (entry("a=f32[] constant(1)"), 4, 4, "expected a space after the name a"),
    "metadata": (entry('a = f32[] constant(1), metadata={op_name,="x"}'), 4, 35, "expected metadata such as"),
    "two signs": (entry("a = f32[2] iota(), iota_dimension= =0"), 4, 38, "expected a value of attribute"),
    "apart": (entry(A, "ROOT b = f32[4] slice(a), slice={[0 0:4]}"), 5, 35, "expected [start:limit:stride]"),
    "open constant": (entry("a = f32[] constant(1"), 4, 22, "expected ')'"),
    "alias": ("HloModule m, input_output_alias={ {0}: x }\n" + entry(A)[12:], 1, 1, "expected an alias"),
    "garbage at the end": (entry(A) + ")", 6, 1, "expected a computation"),
}


@pytest.mark.parametrize("name", CASES)
def test_error_shows_its_place(name: str) -> None:
    text, line, column, message = CASES[name]
    with pytest.raises(CompileError) as caught:
        parse_text(text, "model.hlo")
    shown = caught.value.message
    assert shown.startswith(f"model.hlo:{line}:{column}: ")
    assert message in shown
    _, excerpt, caret = shown.split("\n")
    assert caret.strip() == "^"
    assert caret.index("^") - 2 <= len(excerpt)
    if len(text.split("\n")[line - 1]) <= 80:
        assert excerpt[2:] == text.split("\n")[line - 1]
        assert caret.index("^") == column + 1


@pytest.mark.parametrize(
    ("type_", "code"),
    [("f32[<=10]", "EMOD025"), ("f32[?,2]", "EMOD025"), ("f4e2m1fn[4]", "ESPP004"), ("s1[4]", "ESPP004")],
)
def test_unsupported_types_have_vendor_codes(type_: str, code: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_text(entry(f"a = {type_} parameter(0)"), "model.hlo")
    assert caught.value.code == code
    assert caught.value.remedy


def test_unknown_opcode_has_the_vendor_code() -> None:
    with pytest.raises(CompileError) as caught:
        parse_text(CASES["unknown opcode"][0])
    assert caught.value.code == "EVRF001"


def test_elided_constants_say_how_to_print_them() -> None:
    with pytest.raises(CompileError) as caught:
        parse_text(CASES["elided constant"][0])
    assert "print_large_constants=True" in str(caught.value)


NESTED = {
    "braces": entry(A, f"ROOT b = f32[4] negate(a), sharding={'{' * 100_000}"),
    "tuples": entry(f"a = {'(' * 5000}f32[]{')' * 5000} parameter(0)"),
    "computations": "HloModule m\nENTRY main {\n" + "  a = f32[] call(a), to_apply={\n" * 2000,
    "parentheses": entry(f"a = c64[] constant({'(' * 100_000}"),
}


@pytest.mark.parametrize("name", NESTED)
def test_deep_nesting_is_an_error(name: str) -> None:
    with pytest.raises(CompileError):
        parse_text(NESTED[name])


def test_long_chains_do_not_recurse() -> None:
    """Ten thousand instructions, and a thousand computations that call each other in a row."""
    count = 10_000
    lines = [f"v{index} = f32[4] negate(v{index - 1})" for index in range(1, count + 1)]
    module = parse_text(entry("v0 = f32[4] parameter(0)", *lines, f"ROOT r = f32[4] negate(v{count})"))
    assert sum(1 for _ in module.entry.block.ops) == count + 2
    calls = ["g0 {\n  ROOT a = f32[] parameter(0)\n}\n"]
    calls += [
        f"g{n} {{\n  a = f32[] parameter(0)\n  ROOT b = f32[] call(a), to_apply=g{n - 1}\n}}\n" for n in range(1, 1000)
    ]
    module = parse_text("HloModule m\n" + "".join(calls).replace("g999 {", "ENTRY g999 {"))
    assert sum(1 for _ in module.computations()) == 1000


def test_hostile_text_ends_soon() -> None:
    """Inputs that make careless scanners quadratic; CPU time is bounded loosely, four orders below quadratic."""
    texts = (
        entry(A, "ROOT b = f32[4] negate(a)" + ", x={1}" * 20_000),
        entry(A, "ROOT b = f32[4] negate(a)" + " " * 200_000 + "!"),
        "HloModule m" + "/**/" * 50_000 + "\n",
        entry("a = f32[4] constant({" + "1," * 100_000 + "})"),
    )
    for text in texts:
        with at_most(5), pytest.raises(CompileError):
            parse_text(text)
