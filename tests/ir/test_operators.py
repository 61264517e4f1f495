"""The operator coverage table: its rows, the release constraints, and the problems found in small modules."""

import subprocess
import sys

import op_cases
import pytest

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo, operators
from neuronx_cc.ir.operators import OPERATORS, Problem, check_module


def problems(text: str, release: str = "latest") -> list[Problem]:
    return check_module(parse_text(text), release)


def entry(body: str, computations: str = "") -> str:
    return f"HloModule t\n{computations}\nENTRY main {{\n{body}\n}}\n"


def accepts(text: str, release: str) -> bool:
    return not [problem for problem in problems(text, release) if not problem.warns]


def test_a_row_for_every_opcode() -> None:
    assert set(OPERATORS) == {*hlo.OPCODES, "parameter"}
    assert list(OPERATORS) == sorted(OPERATORS)
    assert len(OPERATORS) == 136


def test_rows_are_consistent() -> None:
    for row in OPERATORS.values():
        assert row.status in ("native", "decomposed", "folded", "planned", "refused")
        assert (row.status in ("planned", "refused")) == bool(row.reason), row.opcode
        assert row.since in operators.RELEASES
        assert set(row.dtypes) <= set(OPERATORS["parameter"].dtypes)
        for limit in row.limits:
            assert set(limit.releases) <= set(operators.RELEASES)
            assert limit.sentence.endswith(".")


SEED = """
Abs Add Allgather Allreduce Atan2 Batchnorm Batchnormgrad Batchnorminference Broadcast BroadcastInDim Ceil Clamp
Compare Concatenate Constant ConstantLiteral ConvertElementType Cos Customcall Div Dot DotGeneral DynamicUpdateSlice
Eq Ge Gt Le Lt Ne Exp Floor Gather GetTupleElement Iota Log LogicalAnd LogicalNot Max Min Mul Neg Sub Pad Pow Reduce
Reshape Rev RngBitGenerator RngUniform Rsqrt Scatter Select ShiftRightLogical Sign Sin Sqrt Tanh Slice Transpose
Tuple
"""


def test_names_of_the_vendor_list() -> None:
    """The 60 names that ``list-operators`` of the 2022 releases printed all belong to rows known by release 2.3."""
    names = {name: row for row in OPERATORS.values() for name in row.names}
    assert len(SEED.split()) == 60
    for name in SEED.split():
        assert names[name].introduced("2.3"), name


def test_listing_is_sorted_and_holds_only_what_is_generated() -> None:
    lines = operators.listing()
    assert lines == sorted(lines)
    assert {"Add", "DotGeneral", "BroadcastInDim", "Eq", "Rev", "ConstantLiteral"} <= set(lines)
    generated = {name for row in OPERATORS.values() if row.status in operators.GENERATED for name in row.names}
    assert set(lines) == generated
    assert "Infeed" not in lines


def test_listing_follows_the_release() -> None:
    names = {release: set(operators.listing(release)) for release in operators.RELEASES}
    assert names["2.1"] < names["2.2"] < names["2.3"] < names["latest"]
    assert names["2.2"] - names["2.1"] == {"Atan2", "DynamicUpdateSlice", "LogicalNot", "Not"}
    assert names["2.3"] - names["2.2"] == {"Rev"}
    with pytest.raises(ValueError, match=r"unknown release '2\.9'"):
        operators.listing("2.9")


def test_verbose_listing_gives_types_release_and_constraints() -> None:
    line = next(line for line in operators.listing("2.1", verbose=True) if line.startswith("Pow "))
    for part in ("power", "f32", "since 2.1", "decomposed", "compile-time integer constant"):
        assert part in line
    latest = next(line for line in operators.listing(verbose=True) if line.startswith("Pow "))
    assert "compile-time" not in latest


def test_docs_page_has_a_row_for_every_opcode_and_target() -> None:
    page = operators.docs_page()
    assert all(f"| `{opcode}` |" in page for opcode in OPERATORS)
    assert all(f"| `{target}` |" in page for target in operators.CUSTOM_CALLS)


def test_importing_the_table_loads_neither_numpy_nor_xdsl() -> None:
    code = (
        "import sys, neuronx_cc.ir.operators as operators\n"
        "operators.listing(verbose=True)\n"
        "print('numpy' in sys.modules, 'xdsl' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]


# Constraints of vendor releases: text, then the releases that accept it.

POWER_VARIABLE = entry("p0 = f32[4] parameter(0)\n p1 = f32[4] parameter(1)\n ROOT r = f32[4] power(p0, p1)")
POWER_TWO = entry(
    "p0 = f32[4] parameter(0)\n two = f32[] constant(2)\n b = f32[4] broadcast(two), dimensions={}\n"
    " ROOT r = f32[4] power(p0, b)"
)
POWER_HALF = POWER_TWO.replace("constant(2)", "constant(0.5)")
REVERSE = entry("p0 = f32[4] parameter(0)\n ROOT r = f32[4] reverse(p0), dimensions={0}")
ATAN2 = POWER_VARIABLE.replace("power", "atan2")
LOGICAL_NOT = entry("p0 = pred[4] parameter(0)\n ROOT r = pred[4] not(p0)")
UPDATE_CONSTANT = entry(
    "p0 = f32[8] parameter(0)\n p1 = f32[2] parameter(1)\n i = s32[] constant(3)\n"
    " ROOT r = f32[8] dynamic-update-slice(p0, p1, i)"
)
UPDATE_VARIABLE = entry(
    "p0 = f32[8] parameter(0)\n p1 = f32[2] parameter(1)\n i = s32[] parameter(2)\n"
    " ROOT r = f32[8] dynamic-update-slice(p0, p1, i)"
)
REDUCE_ADD = entry(
    "p0 = f32[8,3] parameter(0)\n zero = f32[] constant(0)\n"
    " ROOT r = f32[8] reduce(p0, zero), dimensions={1}, to_apply=add_computation",
    op_cases.combiner("add", "f32"),
)
REDUCE_VARIABLE_INITIAL = REDUCE_ADD.replace("constant(0)", "parameter(1)")
REDUCE_AND = entry(
    "p0 = pred[8,3] parameter(0)\n t = pred[] constant(true)\n"
    " ROOT r = pred[8] reduce(p0, t), dimensions={1}, to_apply=and_computation",
    op_cases.combiner("and", "pred"),
)
LOOKUP = entry(
    "p0 = f32[9,4] parameter(0)\n p1 = s32[5] parameter(1)\n ROOT r = f32[5,4] gather(p0, p1), offset_dims={1}, "
    "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}"
)
GATHER_WINDOWS = entry(
    "p0 = f32[9,4] parameter(0)\n p1 = s32[5] parameter(1)\n ROOT r = f32[5,2,4] gather(p0, p1), offset_dims={1,2}, "
    "collapsed_slice_dims={}, start_index_map={0}, index_vector_dim=1, slice_sizes={2,4}"
)
REDUCE_DOUBLING = REDUCE_ADD.replace("add(a, b)", "add(b, b)")
XOR = entry("p0 = u32[4] parameter(0)\n ROOT r = u32[4] xor(p0, p0)")
LOOP_STATE = "(s32[], f32[4], s32[])"
LOOP = entry(
    f"p0 = f32[4] parameter(0)\n p1 = s32[] parameter(1)\n zero = s32[] constant(0)\n bound = s32[] constant(5)\n"
    f" start = {LOOP_STATE} tuple(zero, p0, bound)\n ROOT w = {LOOP_STATE} while(start), condition=more, body=again",
    f"more {{\n s = {LOOP_STATE} parameter(0)\n i = s32[] get-tuple-element(s), index=0\n"
    " n = s32[] get-tuple-element(s), index=2\n ROOT c = pred[] compare(i, n), direction=LT\n}\n"
    f"again {{\n s = {LOOP_STATE} parameter(0)\n i = s32[] get-tuple-element(s), index=0\n"
    " x = f32[4] get-tuple-element(s), index=1\n n = s32[] get-tuple-element(s), index=2\n"
    " one = s32[] constant(1)\n j = s32[] add(i, one)\n y = f32[4] add(x, x)\n"
    f" ROOT t = {LOOP_STATE} tuple(j, y, n)\n}}\n",
)
LOOP_TO_A_VARIABLE = LOOP.replace("tuple(zero, p0, bound)", "tuple(zero, p0, p1)")
LOOP_TO_A_CONSTANT = LOOP.replace("n = s32[] get-tuple-element(s), index=2\n ROOT", "n = s32[] constant(9)\n ROOT")
LOOP_ON_VALUES = LOOP.replace("j = s32[] add(i, one)", "j = s32[] multiply(i, i)")
ALL = {"2.1", "2.2", "2.3", "latest"}

ACCEPTED: dict[str, tuple[str, set[str]]] = {
    "power of a variable": (POWER_VARIABLE, {"2.3", "latest"}),
    "power of a constant integer": (POWER_TWO, ALL),
    "power of a constant fraction": (POWER_HALF, {"2.3", "latest"}),
    "reverse": (REVERSE, {"2.3", "latest"}),
    "atan2": (ATAN2, {"2.2", "2.3", "latest"}),
    "not": (LOGICAL_NOT, {"2.2", "2.3", "latest"}),
    "dynamic-update-slice at a constant": (UPDATE_CONSTANT, {"2.2", "2.3", "latest"}),
    "dynamic-update-slice at a variable": (UPDATE_VARIABLE, {"latest"}),
    "reduce add": (REDUCE_ADD, ALL),
    "reduce from a variable": (REDUCE_VARIABLE_INITIAL, {"latest"}),
    "reduce and": (REDUCE_AND, {"latest"}),
    "reduce that doubles": (REDUCE_DOUBLING, {"latest"}),
    "embedding lookup": (LOOKUP, ALL),
    "gather of windows": (GATHER_WINDOWS, {"latest"}),
    "xor, in no list": (XOR, {"latest"}),
    "loop to a constant": (LOOP_TO_A_CONSTANT, ALL),
    "loop to a constant in its state": (LOOP, ALL),
    "loop to a variable": (LOOP_TO_A_VARIABLE, {"latest"}),
    "loop that does not count": (LOOP_ON_VALUES, {"latest"}),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_release_constraints(name: str) -> None:
    text, releases = ACCEPTED[name]
    assert {release for release in operators.RELEASES if accepts(text, release)} == releases


def test_message_of_an_operator_that_came_later() -> None:
    (problem,) = problems(REVERSE, "2.2")
    assert problem.code == "EVRF001"
    assert problem.message == "operator reverse is not supported by release 2.2 (it came in 2.3)"
    assert problem.remedy == "compile with --release latest"
    assert problem.loc.name == "r"


def test_message_of_a_constraint() -> None:
    (problem,) = problems(POWER_VARIABLE, "2.1")
    assert problem.message == "power in release 2.1: The exponent must be a compile-time integer constant."
    assert "exp(y * log(x))" in problem.remedy


def test_ignored_seed_is_a_warning_of_the_old_releases() -> None:
    text = entry("p0 = u64[2] parameter(0)\n ROOT r = (u64[2], u32[4]) rng-bit-generator(p0), algorithm=rng_default")
    assert [p.message for p in problems(text, "2.2") if p.warns] == [
        "rng-bit-generator in release 2.2: Ignores the user's seed."
    ]
    assert not [p for p in problems(text) if p.warns]


def test_every_unsupported_operator_is_named_at_once() -> None:
    text = entry(
        """  p0 = f32[4,4] parameter(0)
  n = s32[] constant(3)
  a = f32[4,<=4] set-dimension-size(p0, n), dimensions={1}
  b = f32[4,4] add(p0, p0)
  c = f32[4,4] custom-call(b), custom_call_target="AwsNeuronGellu"
  t = token[] after-all()
  ROOT d = token[] outfeed(c, t), outfeed_shape=f32[4,4]"""
    ).replace("<=", "")
    found = problems(text)
    assert [(problem.code, problem.loc.name) for problem in found] == [
        ("EVRF001", "a"),
        ("EHCA005", "c"),
        ("EVRF001", "d"),
    ]
    assert all(problem.remedy for problem in found)


def test_unknown_custom_call_names_the_closest_target() -> None:
    text = entry('  p0 = f32[4] parameter(0)\n  ROOT c = f32[4] custom-call(p0), custom_call_target="AwsNeuronSoftmx"')
    (problem,) = problems(text)
    assert "AwsNeuronSoftmx" in problem.message
    assert problem.remedy.startswith("did you mean AwsNeuronSoftmax?")


@pytest.mark.parametrize(("target", "codes"), [("AwsNeuronSilu", []), ("QuantizeMX", ["EVRF001"])])
def test_known_custom_calls(target: str, codes: list[str]) -> None:
    text = entry(f'  p0 = f32[4] parameter(0)\n  ROOT c = f32[4] custom-call(p0), custom_call_target="{target}"')
    assert [problem.code for problem in problems(text)] == codes


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        ("f64", "ESPP004"),
        ("c128", "EVRF004"),
        ("s64", None),
        ("u64", None),
        ("bf16", None),
        ("f8e5m2", None),
    ],
)
def test_element_types(dtype: str, code: str | None) -> None:
    found = problems(entry(f"  p0 = {dtype}[4] parameter(0)\n  ROOT r = {dtype}[4] add(p0, p0)"))
    assert {problem.code for problem in found} == ({code} if code else set())
    if code:
        assert [problem.loc.name for problem in found] == ["p0", "r"]


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        ("s4", "ESPP004"),
        ("f8e4m3fn", "EVRF051"),
        ("f8e4m3fnuz", "EVRF005"),
        ("f8e5m2fnuz", "EVRF005"),
        ("f8e3m4", "ESPP047"),
    ],
)
def test_small_types_are_of_no_vendor_release(dtype: str, code: str) -> None:
    text = entry(f"  p0 = {dtype}[4] parameter(0)\n  ROOT r = {dtype}[4] add(p0, p0)")
    assert not problems(text)
    assert {problem.code for problem in problems(text, "2.3")} == {code}


def test_an_element_type_that_the_operator_does_not_take() -> None:
    (problem,) = problems(entry("  p0 = pred[4,4] parameter(0)\n  ROOT r = pred[4,4] clamp(p0, p0, p0)"))
    assert problem.code == "ESPP004"
    assert problem.message == "clamp: element type pred is not supported"


def test_called_computations_are_checked_and_combiners_are_not() -> None:
    computations = "inner {\n  x = f32[4,4] parameter(0)\n  ROOT c = c128[4,4] convert(x)\n}\n"
    text = entry("  p0 = f32[4,4] parameter(0)\n  ROOT r = c128[4,4] call(p0), to_apply=inner", computations)
    assert [problem.loc.name for problem in problems(text)] == ["c", "r"]
