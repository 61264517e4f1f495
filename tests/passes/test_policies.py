"""Precision policies: which ops their rules choose, what is cast then, and what a rule that chooses nothing is told."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import neuronx_cc
from neuronx_cc.driver.policy_file import canonical, written
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.flatten_control import inlined
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names
from neuronx_cc.passes.precision.policy import PATTERNS, SETTINGS, TYPES, Policy, entries_of, make_rule, rules_from

TEXT = """HloModule m

sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}

ENTRY main {
  x = f32[5,12] parameter(0)
  w = f32[12,7] parameter(1)
  v = f32[7,3] parameter(2)
  zero = f32[] constant(0)
  a = f32[5,7] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, METADATA1
  e = f32[5,7] exponential(a), METADATA2
  b = f32[5,3] dot(e, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}, METADATA3
  t = f32[5,3] tanh(b), METADATA4
  ROOT r = f32[5] reduce(t, zero), dimensions={1}, to_apply=sum
}
"""
OPS = (("layer_0/dot_general", 7), ("layer_0/exp", 8), ("layer_1/dot_general", 7), ("layer_1/tanh", 9))
for _number, (_name, _line) in enumerate(OPS, 1):
    _metadata = f'metadata={{op_name="jit(f)/{_name}" source_file="/home/me/model.py" source_line={_line}}}'
    TEXT = TEXT.replace(f"METADATA{_number}", _metadata)


def arrays() -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [(0.4 * random.standard_normal(dims)).astype(np.float32) for dims in ((5, 12), (12, 7), (7, 3))]


def types(mode: str = "none", **rules: str) -> dict[tuple[str, str], str]:
    """Type of each operand and result that a decision was made on."""
    _, context = cast(mode, rules)
    return {(row.name, row.operand): row.to_dtype for row in context.precision}


def cast(mode: str, *rules: dict[str, str]):
    module = parse_text(TEXT)
    policy = Policy(tuple(make_rule(f"rule {number}", **rule) for number, rule in enumerate(rules)))
    context = PassContext(PassOptions(auto_cast=mode, policy=policy))
    run_passes(module, ["auto_cast", "clean_casts", "dce"], context, verify_each=True)
    return module, context


@pytest.mark.parametrize(
    "pattern",
    [
        {"name": "^b$"},
        {"op_name": "layer_1/dot"},
        {"either": "layer_1/dot_general$"},
        {"opcode": "dot", "shape": "f32[5,3]"},
        {"opcode": "d*", "op_name": "layer_1"},
        {"source": "model.py:7", "shape": "*,3]"},
        {"source": "me/model.py", "op_name": "layer_1/dot"},
    ],
)
def test_patterns_choose_one_dot(pattern: dict[str, str]) -> None:
    found = types(**pattern, operands="bf16")
    assert found["b", "operand 0"] == found["b", "operand 1"] == "bf16"
    assert found["a", "operand 0"] == "f32"


def test_the_last_match_counts_and_is_the_reason() -> None:
    every, but = {"opcode": "dot", "operands": "fp16"}, {"name": "a", "operands": "fp32"}
    _, context = cast("matmult", every, but)
    rows = {(row.name, row.operand): row for row in context.precision}
    assert rows["a", "operand 0"].to_dtype == "f32"
    assert rows["a", "operand 0"].reason == "rule 1 (name a, operands fp32)"
    assert rows["b", "operand 1"].to_dtype == "f16"


@pytest.mark.parametrize("dtype", [*TYPES])
@pytest.mark.parametrize("mode", ["none", "matmult", "all"])
def test_results_are_rounded_to_the_type_of_their_rule(mode: str, dtype: str) -> None:
    """Of an elementwise op, of a contraction and of a reduction; what is chosen alone changes the values alone."""
    for name in ("e", "b", "r"):
        rule = {"name": f"^{name}$", "result": dtype}
        module, _ = cast(mode, rule)
        assert [op for op in ops_of(module.entry.block)][-1].shape.dtype == "f32"
        (got,), (plain,) = evaluate(module, arrays()), evaluate(cast(mode)[0], arrays())
        unchanged = dtype == "fp32" if mode != "all" else dtype == "bf16" or (dtype == "fp32" and name != "e")
        if mode == "all" and dtype == "bf16":
            assert np.allclose(got, plain, rtol=0.05)
        elif unchanged:
            assert np.array_equal(got, plain)
        else:
            assert np.allclose(got, plain, rtol=0.3 if dtype == "fp8_e4m3" else 0.05, atol=0.3)


def test_types_of_neighbours_may_differ() -> None:
    rules = [{"name": "^e$", "result": "fp16"}, {"name": "^t$", "result": "tf32"}, {"name": "^b$", "operands": "bf16"}]
    module, context = cast("none", *rules)
    rows = {(row.name, row.operand): row.to_dtype for row in context.precision}
    assert (rows["e", "result"], rows["t", "result"], rows["b", "operand 0"]) == ("f16", "tf32", "bf16")
    x, w, v = arrays()
    e = np.exp((x @ w).astype(np.float16)).astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(evaluate(module, [x, w, v])[0], np.tanh(e @ v).sum(1), rtol=2e-2, atol=2e-2)


def test_reductions_add_in_the_type_of_their_result_on_request() -> None:
    module, _ = cast("none", {"opcode": "reduce", "result": "bf16", "accumulate": "result"})
    (reduction,) = [op for op in ops_of(module.entry.block) if op.opcode == "reduce"]
    assert reduction.shape.dtype == "bf16"


@pytest.mark.parametrize("mode", ["none", "matmult", "all"])
def test_compiled_programs_keep_what_a_rule_keeps(mode: str) -> None:
    """All in FP32 by rule is the program of no mode, in value."""
    kept = neuronx_cc.compile(TEXT, auto_cast=mode, keep_fp32=["."]).run(arrays()).outputs[0]
    plain = neuronx_cc.compile(TEXT, auto_cast="none").run(arrays()).outputs[0]
    np.testing.assert_array_equal(kept, plain)


def test_rules_in_every_interface() -> None:
    rules = {"rules": [{"opcode": "dot", "operands": "bf16"}]}
    wanted = neuronx_cc.compile(TEXT, auto_cast="matmult")(*arrays())
    got = neuronx_cc.compile(TEXT, auto_cast="none", precision_policy=rules)(*arrays())
    np.testing.assert_array_equal(got, wanted)


def test_a_rule_that_matches_nothing_is_told_what_is_near() -> None:
    for patterns, hint in (
        ({"name": "dott"}, "near names are t"),
        ({"op_name": "jit(f)/layer_0/dot_generic"}, "jit(f)/layer_0/dot_general"),
        ({"source": "model.py:8", "opcode": "dot"}, "model.py:8"),
        ({"opcode": "exponentiate"}, "exponential"),
        ({"name": "zzzzzzzz"}, "no name is like 'zzzzzzzz'; there are "),
        ({"either": "zzzzzzzz"}, "no name or path is like 'zzzzzzzz'; there are "),
        ({"op_name": "z" * 5000}, f"like '{'z' * 60}'; there are jit(f)/layer_0/dot_general"),
    ):
        with pytest.raises(UsageError) as caught:
            Policy((make_rule("rule 1", **patterns, operands="bf16"),)).check(parse_text(TEXT), inlined)
        assert caught.value.code == "EARG910"
        assert hint in caught.value.remedy
        assert len(caught.value.message) < 600


def test_a_rule_whose_ops_are_gone_warns() -> None:
    module = parse_text(TEXT.replace("ROOT r =", "q = f32[5,3] cosine(t)\n  ROOT r ="))
    policy = Policy((make_rule("rule 1", opcode="cosine", result="bf16"),))
    context = PassContext(PassOptions(auto_cast="none", policy=policy))
    policy.check(module, inlined)
    run_passes(module, pass_names(DEFAULT_PIPELINE), context)
    assert [warning.code for warning in context.warnings] == ["EARG911"]


@pytest.mark.parametrize(
    ("rule", "warns"),
    [
        ({"opcode": "tanh", "operands": "bf16"}, "operands is for contractions of FP32"),
        ({"opcode": "tanh", "accumulate": "result"}, "accumulate is for reductions"),
        ({"opcode": "tanh", "result": "bf16"}, ""),
        ({"opcode": "tanh", "operands": "bf16", "result": "bf16"}, ""),
        ({"opcode": "tanh", "operands": "fp32", "result": "fp32"}, ""),
        ({"opcode": "*", "operands": "bf16"}, ""),
    ],
)
def test_rules_for_ops_that_take_no_such_type_warn(rule: dict[str, str], warns: str) -> None:
    module = parse_text(TEXT)
    context = PassContext(PassOptions(auto_cast="none", policy=Policy((make_rule("rule 1", **rule),))))
    run_passes(module, pass_names(DEFAULT_PIPELINE), context)
    said = [warning.message for warning in context.warnings if warning.code == "EARG911"]
    assert len(said) == bool(warns)
    assert not warns or warns in said[0]


@pytest.mark.parametrize(
    "value",
    [
        [], "x", None, {}, {"rules": {}}, {"rules": [3]}, {"rules": [], "more": 1}, {"rules": [{}]},
        {"rules": [{"name": "a"}]}, {"rules": [{"operands": "int8"}]}, {"rules": [{"operand": "bf16"}]},
        {"rules": [{"name": "(", "operands": "bf16"}]}, {"rules": [{"name": 3, "operands": "bf16"}]},
        {"rules": [{"name": "", "operands": "bf16"}]}, {"rules": [{"operands": ["bf16"]}]},
    ],
)  # fmt: skip
def test_malformed_rules_are_refused(value) -> None:
    with pytest.raises(UsageError) as caught:
        rules_from(value, "policy.json")
    assert caught.value.code == "EARG909"
    assert "policy.json" in caught.value.message
    assert all(key in caught.value.remedy for key in (*PATTERNS, *SETTINGS))


def test_files_of_each_format_are_the_same_rules(tmp_path) -> None:
    rules = [{"opcode": "dot", "operands": "fp32"}, {"name": "^a$", "operands": "tf32", "result": "bf16"}]
    toml = "\n".join("[[rules]]\n" + "\n".join(f"{key} = '{value}'" for key, value in rule.items()) for rule in rules)
    (tmp_path / "policy.toml").write_text(toml)
    (tmp_path / "policy.json").write_text(json.dumps({"rules": rules}))
    assert canonical(str(tmp_path / "policy.toml")) == canonical(str(tmp_path / "policy.json"))
    assert json.loads(canonical(str(tmp_path / "policy.toml"))) == {"rules": [dict(sorted(r.items())) for r in rules]}


def test_configurations_of_neural_compressor_are_rules(tmp_path) -> None:
    kept = {"activation": {"dtype": ["fp32"]}, "weight": {"dtype": ["fp32"]}}
    (tmp_path / "conf.json").write_text(
        json.dumps({"op_type_dict": {"MatMul": kept, "Conv2D": kept}, "op_name_dict": {"layer_1.*": kept}})
    )
    rules = json.loads(canonical(str(tmp_path / "conf.json")))["rules"]
    assert [rule.get("opcode", rule.get("either")) for rule in rules] == ["dot", "convolution", "layer_1.*"]
    assert all(rule["operands"] == "fp32" for rule in rules)
    yaml = pytest.importorskip("yaml")
    (tmp_path / "conf.yaml").write_text(yaml.safe_dump({"mixed_precision": {"op_wise": {"conv1": kept}}}))
    assert json.loads(canonical(str(tmp_path / "conf.yaml")))["rules"][0]["either"] == "conv1"


@pytest.mark.parametrize("data", [b"\xff\xfe", b"{", b"rules = 3", b"[[rules]]\nx = ", b"{}" * 900_000, b"[" * 100_000])
def test_damaged_files_are_refused(data, tmp_path) -> None:
    (tmp_path / "policy.toml").write_bytes(data)
    with pytest.raises(UsageError) as caught:
        canonical(str(tmp_path / "policy.toml"))
    assert caught.value.code == "EARG909"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.json", "null", "found None in its place"),
        ("p.json", "[]", "found [] in its place"),
        ("p.json", '{"rules": {}}', "found {} as rules"),
        ("p.json", "rules = []", "is no JSON"),
        ("p.toml", '{"rules": []}', "is no TOML"),
        ("p", '{"rules": ', "is no JSON"),
        ("p.json", '{"rules": [{"operands": "bf16", "operands": "fp32"}]}', "'operands' stands twice"),
    ],
)
def test_what_a_file_is_says_its_name(name: str, text: str, said: str, tmp_path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        canonical(str(tmp_path / name))
    assert said in caught.value.message


@pytest.mark.parametrize("cast_type", ["bf16", "fp16", "tf32", "fp8_e4m3"])
def test_a_cast_stands_above_all_that_use_it(cast_type: str) -> None:
    """A parameter that an elementwise op takes before a contraction does."""
    text = TEXT.replace(
        "ROOT r =",
        "k = f32[7,3] multiply(v, v)\n  q = f32[5,3] dot(e, v), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={0}\n  u = f32[5,3] dot(e, k), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={0}\n  o = f32[5,3] add(q, u)\n  ROOT r =",
    ).replace("reduce(t,", "reduce(o,")
    lines = text.splitlines()
    early = next(number for number, line in enumerate(lines) if " k = " in line)
    lines.insert(next(number for number, line in enumerate(lines) if " a = " in line), lines.pop(early))
    module = parse_text("\n".join(lines))
    context = PassContext(PassOptions(auto_cast="all", auto_cast_type=cast_type))
    run_passes(module, pass_names(DEFAULT_PIPELINE), context, verify_each=True)


@pytest.mark.parametrize("name", ["policy.json", "policy.toml", "policy", "p.TOML"])
def test_files_are_read_as_what_was_written(name: str, tmp_path: Path) -> None:
    """Regular expressions hold all that has to be quoted."""
    odd = "".join(map(chr, (*range(1, 0x100), 0x2028, 0x1F600)))
    rules = [
        make_rule("one", name=re.escape(odd), operands="bf16"),
        make_rule("two", opcode="dot", weights="int8@99.9"),
    ]
    for policy in (Policy(tuple(rules)), Policy(())):
        path = tmp_path / name
        path.write_text(written(policy, name), encoding="utf-8", newline="")
        assert json.loads(canonical(str(path))) == entries_of(policy)


CALLED = """
HloModule called

inner {
  a = f32[8,8] parameter(0)
  ROOT d = f32[8,8] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="dot_general"}
}

ENTRY main {
  x = f32[8,8] parameter(0)
  ROOT c = f32[8,8] call(x), to_apply=inner, metadata={op_name="jit(f)/while/body/closed_call"}
}
"""


@pytest.mark.parametrize("path", ["^dot_general$", "^jit\\(f\\)/while/body/closed_call/dot_general$"])
def test_ops_of_functions_have_their_path_and_the_whole_one(path: str) -> None:
    """That is what errors by op and precision reports call them."""
    module = parse_text(CALLED)
    Policy((make_rule("rule 1", op_name=path, operands="bf16"),)).check(module, inlined)
    assert [op.opcode for op in module.entry.block.ops if hasattr(op, "opcode")] == ["call"]
    with pytest.raises(UsageError, match="closed_call/dot_general"):
        Policy((make_rule("rule 1", op_name="closed_call/dit_general$", operands="bf16"),)).check(module, inlined)
