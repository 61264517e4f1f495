"""The verifier: every opcode's good module passes, and each rule refuses what breaks it, saying expected and found."""

import pytest
from opcode_texts import ADD, DOUBLE, LOOP, TEXTS, entry

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.verify import Verifier, op_problem, verify_module, verify_op
from neuronx_cc.ir.verify.rule import RULES


def test_every_opcode_has_a_rule() -> None:
    assert set(RULES) == set(hlo.OPCODES)


@pytest.mark.parametrize("opcode", sorted(TEXTS))
def test_good_modules_pass(opcode: str) -> None:
    module = parse_text(TEXTS[opcode])
    verify_module(module)
    for computation in module.computations():
        for op in computation.block.ops:
            if isinstance(op, hlo.HloOp):
                verify_op(op)


BAD: dict[str, tuple[str, str, str, str]] = {
    # name: opcode whose text is changed, old, new, message
    "add dims": ("add", "b = f32[2,3]", "b = f32[3,2]", "expected operands of one shape, found f32[2,3] and f32[3,2]"),
    "add dtype": ("add", "b = f32", "b = bf16", "expected operands of one shape"),
    "exp of integers": ("exponential", "f32", "s32", "floating-point or complex"),
    "floor of integers": ("floor", "f32", "s32", "floating-point"),
    "popcnt of floats": ("popcnt", "s32", "f32", "integer"),
    "not of floats": ("not", "s32", "f32", "integer or pred"),
    "shift of floats": ("shift-left", "u32", "f32", "integer"),
    "negate pred": ("negate", "f32", "pred", "numeric"),
    "subtract pred": ("subtract", "f32", "pred", "numeric"),
    "is-finite result": ("is-finite", "r = pred", "r = f32", "element type pred, found f32"),
    "complex part": ("real", "r = f32", "r = f64", "element type f32, found f64"),
    "complex of halves": ("complex", "f32", "f16", "f32 or f64"),
    "convert complex": ("convert", "a = f32", "a = c64", "complex result"),
    "compare direction": ("compare", "direction=GE", "direction=XX", "in direction"),
    "compare kind": ("compare", "type=TOTALORDER", "type=SIGNED", "FLOAT or TOTALORDER"),
    "compare result": ("compare", "r = pred", "r = f32", "element type pred"),
    "select predicate": ("select", "pred[4]", "pred[5]", "predicate"),
    "select choices": ("select", "b = f32[4]", "b = f32[5]", "both choices"),
    "clamp bound": ("clamp", "a = f32[]", "a = f32[3]", "minimum"),
    "reduce-precision bits": ("reduce-precision", "exponent_bits=8", "exponent_bits=0", "at least 1 exponent bit"),
    "iota dimension": ("iota", "iota_dimension=1", "iota_dimension=2", "between 0 and 1"),
    "iota of pred": ("iota", "s32", "pred", "numeric"),
    "reshape size": ("reshape", "r = f32[3,8]", "r = f32[3,9]", "24 elements"),
    "reshape dtype": ("reshape", "r = f32", "r = s32", "element type f32"),
    "bitcast size": ("bitcast", "r = f32[3,2]", "r = f32[3,3]", "192 bits"),
    "bitcast-convert dims": ("bitcast-convert", "r = u8[2,3,4]", "r = u8[2,3,2]", "[2,3,4], found [2,3,2]"),
    "bitcast-convert wide": ("bitcast-convert", "r = u8[2,3,4]", "r = u64[2]", "last dim is 2"),
    "broadcast rank": ("broadcast", "dimensions={1}", "dimensions={}", "one of dimensions for each"),
    "broadcast range": ("broadcast", "dimensions={1}", "dimensions={2}", "between 0 and 1"),
    "broadcast size": ("broadcast", "dimensions={1}", "dimensions={0}", "expected result dims [0] to be [3]"),
    "transpose permutation": ("transpose", "{2,0,1}", "{2,0,0}", "permute the 3 dims"),
    "transpose result": ("transpose", "r = f32[2,4,6]", "r = f32[4,2,6]", "[2,4,6], found [4,2,6]"),
    "reverse twice": ("reverse", "{0,1}", "{0,0}", "distinct"),
    "concatenate dims": ("concatenate", "b = f32[2,1]", "b = f32[3,1]", "agree outside dimension 1"),
    "concatenate result": ("concatenate", "r = f32[2,4]", "r = f32[2,5]", "[2,4], found [2,5]"),
    "slice limit": ("slice", "[0:8:2]", "[0:9:2]", "limit <= 8"),
    "slice stride": ("slice", "[0:8:2]", "[0:8:0]", "stride >= 1"),
    "slice rank": ("slice", "{[0:8:2], [3:5]}", "{[0:8:2]}", "2 dimensions"),
    "pad value": ("pad", "z = f32[]", "z = s32[]", "padding value of f32[]"),
    "pad result": ("pad", "r = f32[13,4]", "r = f32[12,4]", "[13,4], found [12,4]"),
    "pad below zero": ("pad", "x0_-1", "x0_-9", "padded size of 0 or more"),
    "dynamic-slice indices": ("dynamic-slice", "(a, i, i)", "(a, i)", "2 start indices, found 1"),
    "dynamic-slice index type": ("dynamic-slice", "i = s32[]", "i = f32[]", "integer type"),
    "dynamic-slice size": ("dynamic-slice", "{2,5}", "{2,6}", "within f32[4,5]"),
    "dynamic-update-slice fit": ("dynamic-update-slice", "u = f32[2,1]", "u = f32[5,1]", "fits into f32[4,5]"),
    "gather index type": ("gather", "i = s32[3,1]", "i = f32[3,1]", "integer type"),
    "gather vector": ("gather", "index_vector_dim=1", "index_vector_dim=3", "between 0 and 2"),
    "gather map": ("gather", "start_index_map={0}", "start_index_map={0,1}", "1 indexed dims"),
    "gather sizes": ("gather", "slice_sizes={1,7}", "slice_sizes={1,8}", "within f32[5,7]"),
    "gather collapsed": ("gather", "slice_sizes={1,7}", "slice_sizes={2,7}", "at most 1 in collapsed"),
    "gather result": ("gather", "r = f32[3,7]", "r = f32[3,6]", "[3,7], found [3,6]"),
    "scatter updates": ("scatter", "u = f32[3,7]", "u = f32[4,7]", "[3] beside the window, found [4]"),
    "scatter window": ("scatter", "u = f32[3,7]", "u = f32[3,8]", "at most 7, found 8"),
    "scatter result": ("scatter", "r = f32[5,7]", "r = f32[5,6]", "type f32[5,7], found f32[5,6]"),
    "ragged-dot contracting": ("ragged-dot", "rhs_contracting_dims={1}", "rhs_contracting_dims={1,2}", "equal sizes"),
    "ragged-dot ragged": ("ragged-dot", "lhs_ragged_dims={0}", "lhs_ragged_dims={0,1}", "one lhs ragged dim"),
    "ragged-dot no ragged": ("ragged-dot", "lhs_ragged_dims={0}", "lhs_ragged_dims={}", "one lhs ragged dim"),
    "ragged-dot groups": ("ragged-dot", "rhs_group_dims={0}", "rhs_group_dims={7}", "1 rhs group dims"),
    "ragged-dot no groups": ("ragged-dot", "rhs_group_dims={0}", "rhs_group_dims={}", "1 rhs group dims"),
    "ragged-dot contracted groups": ("ragged-dot", "rhs_group_dims={0}", "rhs_group_dims={1}", "distinct rhs group"),
    "dot contracting": ("dot", "b = f32[5,3,4]", "b = f32[5,2,4]", "contracting dims of equal sizes"),
    "dot batch": ("dot", "b = f32[5,3,4]", "b = f32[6,3,4]", "batch dims of equal sizes"),
    "dot range": ("dot", "lhs_contracting_dims={2}", "lhs_contracting_dims={3}", "between 0 and 2"),
    "dot result": ("dot", "r = f32[5,2,4]", "r = f32[5,4,2]", "[5,2,4], found [5,4,2]"),
    "convolution result": ("convolution", "r = f32[1,4,8,6]", "r = f32[1,4,9,6]", "[1,4,8,6], found [1,4,9,6]"),
    "convolution window": ("convolution", "size=3x3", "size=3x2", "as large as the kernel"),
    "convolution features": ("convolution", "feature_group_count=2", "feature_group_count=4", "2 x 4 input features"),
    "convolution rank": ("convolution", "a = f32[1,8,8,4]", "a = f32[1,8,8,4,1]", "rank 4"),
    "convolution stride": ("convolution", "stride=2x1", "stride=0x1", "1 or more"),
    "reduce dims": ("reduce", "dimensions={1}", "dimensions={0}", "[3], found [2]"),
    "reduce range": ("reduce", "dimensions={1}", "dimensions={2}", "between 0 and 1"),
    "reduce init": ("reduce", "z = f32[] constant(0)", "z = f32[2] constant({0,0})", "scalar initial values"),
    "reduce body type": ("reduce", "z = f32[] constant(0)", "z = s32[] constant(0)", "expected add to take"),
    "reduce-window result": ("reduce-window", "r = f32[4,3]", "r = f32[4,4]", "[4,3], found [4,4]"),
    "select-and-scatter source": ("select-and-scatter", "s = f32[2,3]", "s = f32[2,2]", "[2,3], found [2,2]"),
    "select-and-scatter selector": ("select-and-scatter", "select=ge", "select=add", "expected add to return pred[]"),
    "sort dimension": ("sort", "dimensions={1}", "dimensions={2}", "between 0 and 1"),
    "map result": ("map", "r = f32[4]", "r = f32[5]", "[4], found [5]"),
    "topk k": ("topk", "k=3", "k=10", "within the last dim"),
    "batch-norm features": ("batch-norm-training", "s = f32[3]", "s = f32[2]", "operand 1 of type f32[3]"),
    "cholesky square": ("cholesky", "f32[3,3]", "f32[3,4]", "square"),
    "triangular-solve b": ("triangular-solve", "f32[4,2]", "f32[3,2]", "b to match"),
    "fft result": ("fft", "r = c64[2,5]", "r = c64[2,8]", "[2,5], found [2,8]"),
    "fft real": ("fft", "a = f32", "a = c64", "real operand"),
    "rng parameter": ("rng", "a = f32[]", "a = s32[]", "scalar parameters of f32"),
    "rng distribution": ("rng", "rng_uniform", "rng_other", "expected rng_uniform, rng_normal"),
    "rng state": ("rng-bit-generator", "u64[2]", "s64[2]", "unsigned integers"),
    "tuple type": ("tuple", "r = (f32[4], f32[4])", "r = (f32[4])", "(f32[4], f32[4])"),
    "tuple index": ("get-tuple-element", "index=1", "index=2", "between 0 and 1, found 2"),
    "tuple element": ("get-tuple-element", "r = s32[]", "r = s32[1]", "type s32[], found s32[1]"),
    "call operands": ("call", "call(a)", "call(a, a)", "1 operands, the parameters of double, found 2"),
    "call type": ("call", "a = f32[4]", "a = f32[5]", "operand 0 of type f32[4]"),
    "fusion result": ("fusion", "ROOT r = f32[4] fusion", "ROOT r = f32[5] fusion", "type f32[4], as double returns"),
    "while state": ("while", "(s32[], f32[4]) while", "(s32[], f32[5]) while", "(s32[], f32[4])"),
    "while condition": ("while", "condition=cond", "condition=body", "as body returns"),
    "conditional selector": ("conditional", "p = pred[]", "p = f32[]", "pred[] or s32[]"),
    "conditional operands": ("conditional", "(p, a, a)", "(p, a)", "one operand for each of 2 branches"),
    "after-all operand": ("after-all", "a = token[] after-all()", "a = f32[] constant(1)", "tokens as operands"),
    "all-gather result": ("all-gather", "r = f32[4,3]", "r = f32[5,3]", "divides f32[5,3]"),
    "all-gather-start dims": ("all-gather-start", "dimensions={0}", "dimensions={2}", "between 0 and 1, found [2]"),
    "all-gather-start parts": ("all-gather-start", "(f32[2,3], f32[4,3])", "f32[4,3]", "operands and results"),
    "all-gather-start operand": ("all-gather-start", "(f32[2,3],", "(f32[2,2],", "type f32[2,3]"),
    "all-gather-start result": ("all-gather-start", "f32[4,3])", "f32[5,3])", "divides f32[5,3]"),
    "permute-start result": ("collective-permute-start", "(f32[4], f32[4]", "(f32[4], f32[5]", "type f32[4]"),
    "reduce-scatter result": ("reduce-scatter", "r = f32[2]", "r = f32[3]", "divides f32[4]"),
    "all-reduce result": ("all-reduce", "r = f32[2,3]", "r = f32[3,2]", "type f32[2,3]"),
    "partition-id": ("partition-id", "u32[]", "s32[]", "u32[]"),
    "copy-done": ("copy-done", "r = f32[4] copy-done", "r = f32[5] copy-done", "type f32[4]"),
    "async-start": ("async-start", "(a), calls", "(a, a), calls", "result, ...)"),
    "operand count": ("select", "select(p, a, b)", "select(p, a)", "expected 3 operands, found 2"),
    "tuple operand": ("negate", "a = f32[2,3]", "a = (f32[2,3])", "expected arrays as operands, found (f32[2,3])"),
    "tuple result": ("negate", "r = f32[2,3]", "r = (f32[2,3])", "expected an array as result"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_modules_are_refused(name: str) -> None:
    opcode, old, new, message = BAD[name]
    text = TEXTS[opcode]
    assert old in text
    changed = text.replace(old, new)
    with pytest.raises(CompileError) as caught:
        parse_text(changed, "bad.hlo")
    error = caught.value
    assert error.code == "EVRF064"
    assert message in error.message
    assert "expected" in error.message
    assert "found" in error.message
    assert error.message.startswith("bad.hlo:")
    line = int(error.message.split(":")[1])
    assert error.loc.text_line == line
    assert f"{opcode}(" in changed.split("\n")[line - 1]


def test_a_comparator_must_return_pred() -> None:
    text = TEXTS["sort"].replace("ROOT r = pred[] compare(x, y), direction=LT", "ROOT r = f32[] add(x, y)")
    with pytest.raises(CompileError, match=r"expected less to return pred\[\], found f32\[\]"):
        parse_text(text)


def test_ops_that_passes_build_are_checked_with_their_location() -> None:
    module = parse_text(entry("a = f32[4] parameter(0)", 'r = f32[4] negate(a), metadata={op_name="neg"}'))
    first = module.entry.block.first_op
    assert isinstance(first, hlo.NegateOp)
    bad = hlo.NegateOp.make([first.results[0]], hlo.array_type("f32", (5,)), first.loc)
    module.entry.block.insert_op_after(bad, first)
    assert op_problem(first) == ""
    with pytest.raises(CompileError) as caught:
        verify_op(bad)
    assert caught.value.loc == first.loc
    with pytest.raises(CompileError):
        verify_module(module)


def test_structure_use_before_definition() -> None:
    module = parse_text(entry("a = f32[4] parameter(0)", "b = f32[4] negate(a)", "r = f32[4] abs(b)"))
    first = module.entry.block.first_op
    assert isinstance(first, hlo.NegateOp)
    second = first.next_op
    assert second is not None
    first.detach()
    module.entry.block.insert_op_after(first, second)
    with pytest.raises(CompileError, match="defined above their use"):
        verify_module(module)


def test_structure_callees_come_first() -> None:
    module = parse_text(entry("a = f32[4] parameter(0)", "r = f32[4] call(a), to_apply=double", before=DOUBLE))
    callee = module.computation("double")
    callee.detach()
    with pytest.raises(CompileError, match="defined above its caller, found double"):
        verify_module(module)


def test_structure_needs_its_return() -> None:
    module = parse_text(TEXTS["negate"])
    last = module.entry.block.last_op
    assert last is not None
    last.detach()
    with pytest.raises(CompileError, match="expected a return"):
        verify_module(module)


def test_constants_must_be_in_the_pool() -> None:
    module = parse_text(TEXTS["constant"])
    op = module.entry.block.first_op
    assert isinstance(op, hlo.ConstantOp)
    op.properties["value"] = hlo.ConstantAttr("0" * 32)
    with pytest.raises(CompileError, match="constant pool"):
        verify_module(module)


@pytest.mark.parametrize("change", ["result", "operand", "property", "callee"])
def test_what_changed_since_is_verified_again(change: str) -> None:
    text = entry(
        "a = f32[4] parameter(0)",
        "b = f32[4] negate(a)",
        "c = f32[4] reverse(b), dimensions={0}",
        "r = f32[4] call(c), to_apply=double",
        before=DOUBLE,
    )
    module = parse_text(text)
    verifier = Verifier(module)
    verifier.verify()
    verifier.verify()
    negate, reverse, _ = (op for op in module.entry.block.ops if isinstance(op, hlo.HloOp))
    if change == "result":
        reverse.results[0]._type = hlo.array_type("f32", (5,))
    elif change == "operand":
        negate.results[0]._type = hlo.array_type("f32", (5,))
    elif change == "property":
        reverse.properties["dimensions"] = hlo.IntsAttr((1,))
    else:
        for op in module.computation("double").block.ops:
            for result in op.results:
                result._type = hlo.array_type("f32", (5,))
    with pytest.raises(CompileError):
        verifier.verify()


def test_combiners_may_differ_in_precision() -> None:
    """XLA lets a reduction run in a wider float than its operand."""
    text = entry(
        "a = bf16[4,3] parameter(0)",
        "z = f32[] constant(0)",
        "r = f32[4] reduce(a, z), dimensions={1}, to_apply=add",
        before=ADD,
    )
    verify_module(parse_text(text))


def test_loops_verify_their_bodies() -> None:
    with pytest.raises(CompileError, match="add: expected a result"):
        parse_text(TEXTS["while"].replace("w = f32[4] add(v, v)", "w = f32[5] add(v, v)"))
    assert LOOP in TEXTS["while"]
