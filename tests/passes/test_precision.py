"""Cast modes against an evaluator that rounds FP32 values at the places the rules name, and the decision report."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import text_of
from jax import lax
from special_inputs import assert_same_bits

from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.reference import CALLING, REFERENCE, Evaluator, evaluate
from neuronx_cc.passes.manager import PassContext, PassOptions, precision_report, run_passes
from neuronx_cc.passes.pipelines import DEFAULT_PIPELINE, pass_names
from neuronx_cc.passes.precision.rounding import RoundingEvaluator, casts_of

NUMPY = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp8_e4m3": ml_dtypes.float8_e4m3}

KEEPS_FP32 = ("dot", "reduce", "constant", "iota", "tuple", "parameter", "scatter", "sort")


def to_tf32(array):
    """Rounds f32 to 10 mantissa bits, ties to even."""
    bits = np.asarray(array, np.float32).view(np.uint32)
    rounded = ((bits + 0xFFF + ((bits >> 13) & 1)) & ~np.uint32(0x1FFF)).view(np.float32)
    return np.where(np.isfinite(array), rounded, array).astype(np.float32)


def rounding(cast_type):
    if cast_type == "tf32":
        return to_tf32
    return lambda array: np.asarray(array).astype(NUMPY[cast_type]).astype(np.float32)


class Rounding(Evaluator):
    """Evaluates in FP32, rounding the operands of dots, and in mode ``all`` every operand and result of other ops.

    tf32 is a type of dots in every mode.
    """

    def __init__(self, module: hlo.HloModule, mode: str, cast_type: str):
        super().__init__(module, REFERENCE, CALLING)
        self.mode = mode if cast_type != "tf32" else "matmult"
        self.round = rounding(cast_type)

    def apply(self, op: hlo.HloOp, operands: Any) -> Any:
        def rounded(value: Any) -> Any:
            return self.round(value) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value

        if op.opcode == "dot" or (self.mode == "all" and op.opcode not in KEEPS_FP32):
            operands = [rounded(operand) for operand in operands]
        value = super().apply(op, operands)
        if self.mode == "all" and op.opcode not in KEEPS_FP32:
            return rounded(value)
        return value


MODEL = """HloModule model
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }
max { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] maximum(a, b) }
ENTRY main {
  x = f32[5,12] parameter(0)
  w = f32[12,7] parameter(1)
  b = f32[7] parameter(2)
  n = s32[5,7] parameter(3)
  zero = f32[] constant(0)
  mean = f32[5] reduce(x, zero), dimensions={1}, to_apply=sum
  low = f32[] constant(-inf)
  wide = f32[5,12] broadcast(mean), dimensions={0}
  c = f32[5,12] subtract(x, wide)
  d = f32[5,7] dot(c, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  bias = f32[5,7] broadcast(b), dimensions={1}
  e = f32[5,7] add(d, bias)
  m = f32[5] reduce(e, low), dimensions={1}, to_apply=max
  mw = f32[5,7] broadcast(m), dimensions={0}
  s = f32[5,7] subtract(e, mw)
  p = f32[5,7] exponential(s)
  f = f32[5,7] convert(n)
  q = f32[5,7] multiply(p, f)
  t = f32[7,5] transpose(q), dimensions={1,0}
  g = f32[7,12] dot(t, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  k = s32[5,7] add(n, n)
  ROOT r = (f32[5,7], f32[7,12], s32[5,7], f32[5,7]) tuple(q, g, k, d)
}
"""


def inputs():
    random = np.random.default_rng(11)
    return [
        random.standard_normal((5, 12)).astype(np.float32),
        random.standard_normal((12, 7)).astype(np.float32),
        random.standard_normal(7).astype(np.float32),
        random.integers(-9, 9, (5, 7)).astype(np.int32),
    ]


def cast(
    text, mode, cast_type, passes=("auto_cast", "clean_casts", "canonicalize", "fold_constants", "dce"), **options
):
    module = parse_text(text)
    context = PassContext(PassOptions(auto_cast=mode, auto_cast_type=cast_type, **options))
    run_passes(module, passes, context, verify_each=True)
    return module, context


@pytest.mark.parametrize("cast_type", ["bf16", "fp16", "tf32", "fp8_e4m3"])
@pytest.mark.parametrize("mode", ["matmult", "all"])
def test_casts_round_where_the_rules_say(mode, cast_type):
    original = parse_text(MODEL)
    arrays = inputs()
    want = Rounding(original, mode, cast_type).call("main", *arrays)
    module, _ = cast(MODEL, mode, cast_type)
    assert_same_bits(list(want), evaluate(module, arrays))


@pytest.mark.parametrize("cast_type", ["bf16", "tf32"])
@pytest.mark.parametrize("mode", ["none", "matmult", "all"])
def test_pipeline_rounds_where_the_rules_say(mode, cast_type):
    """The whole pipeline too, within what reassociated sums and the two exact forms of a quotient allow."""
    original = parse_text(MODEL)
    arrays = inputs()
    want = Rounding(original, mode, cast_type).call("main", *arrays) if mode != "none" else evaluate(original, arrays)
    module, _ = cast(MODEL, mode, cast_type, pass_names(DEFAULT_PIPELINE))
    for expected, got in zip(want, evaluate(module, arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["none", "matmult", "all"])
def test_boundary_types_are_kept(mode):
    module, _ = cast(MODEL, mode, "bf16", pass_names(DEFAULT_PIPELINE))
    original = parse_text(MODEL)
    assert [a.type for a in module.entry.block.args] == [a.type for a in original.entry.block.args]
    assert module.entry.root.type == original.entry.root.type


def test_report_names_each_decision():
    plain = "g = f32[7,12] dot(t, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    place = 'metadata={op_name="jit(f)/dot" source_file="model.py" source_line=31}'
    text = MODEL.replace(plain, f"{plain}, operand_precision={{highest,highest}}, {place}")
    _, context = cast(text, "matmult", "bf16")
    rows = {(r.name, r.operand): r for r in context.precision}
    assert (rows["d", "operand 0"].from_dtype, rows["d", "operand 0"].to_dtype) == ("f32", "bf16")
    assert rows["d", "operand 1"].reason == "--auto-cast matmult"
    exempt = rows["g", "operand 0"]
    assert (exempt.to_dtype, exempt.reason) == ("f32", "operand_precision={highest,highest}")
    assert (exempt.op_name, exempt.source) == ("jit(f)/dot", "model.py:31")
    report = precision_report(context)
    assert len(report.splitlines()) == 1 + len(context.precision)
    assert "model.py:31" in report


def test_report_of_mode_all_covers_every_fp32_result():
    _, context = cast(MODEL, "all", "bf16", ("auto_cast",))
    reported = {r.name for r in context.precision if r.operand == "result"}
    original = parse_text(MODEL)
    fp32 = {
        op.loc.name
        for op in original.entry.block.ops
        if isinstance(op, hlo.HloOp)
        and str(op.results[0].type).find("f32") >= 0
        and op.opcode not in ("constant", "tuple")
    }
    assert fp32 <= reported


def test_constant_weights_are_cast_once():
    text = """HloModule weights
ENTRY main {
  x = f32[2,3] parameter(0)
  w = f32[2,3] constant({{1.001,2,3},{4,5,6}})
  t = f32[3,2] transpose(w), dimensions={1,0}
  b = f32[3,2] broadcast(t), dimensions={0,1}
  ROOT d = f32[2,2] dot(x, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""
    module, _ = cast(text, "matmult", "bf16", pass_names(DEFAULT_PIPELINE))
    constants = [op for op in module.entry.block.ops if isinstance(op, hlo.ConstantOp)]
    assert [str(op.shape.dtype) for op in constants] == ["bf16"]
    assert module.constants.nbytes == 12


@pytest.mark.parametrize("cast_type", ["bf16", "fp16", "fp8_e4m3"])
def test_finite_constants_stay_finite(cast_type):
    """A row of scores that is masked everywhere has equal weights, not NaN."""
    text = """HloModule masked
ENTRY main {
  x = f32[4] parameter(0)
  p = pred[4] parameter(1)
  least = f32[] constant(-3.40282347e+38)
  w = f32[4] constant({1e30, -1e30, 2, inf})
  wide = f32[4] broadcast(least), dimensions={}
  s = f32[4] select(p, x, wide)
  m = f32[4] subtract(s, s)
  y = f32[4] multiply(x, w)
  ROOT r = (f32[4], f32[4]) tuple(m, y)
}"""
    module, _ = cast(text, "all", cast_type)
    arrays = [np.array([0.5, 0.25, 3, 0], np.float32), np.zeros(4, bool)]
    masked, scaled = evaluate(module, arrays)
    np.testing.assert_array_equal(masked, np.zeros(4))
    assert list(np.isfinite(scaled)) == [True, True, True, False]
    original = parse_text(text)
    told = RoundingEvaluator(original, casts_of(original, PassOptions(auto_cast="all", auto_cast_type=cast_type)))
    np.testing.assert_array_equal(told.call("main", *arrays)[0], masked)


@pytest.mark.parametrize("cast_type", ["bf16", "fp16", "fp8_e4m3"])
def test_what_integers_are_made_of_is_not_cast(cast_type):
    text = """HloModule places
ENTRY main {
  n = u32[3] parameter(0)
  x = f32[3] parameter(1)
  f = f32[3] convert(n)
  h = f32[3] constant({0.1, 1, 3})
  q = f32[3] multiply(f, h)
  zero = f32[3] constant({0, 0, 70000})
  below = pred[3] compare(q, zero), direction=LT
  none = s32[3] constant({-1, -1, -1})
  whole = s32[3] convert(q)
  i = s32[3] select(below, none, whole)
  y = f32[3] multiply(x, h)
  j = s32[3] convert(x)
  ROOT r = (s32[3], f32[3], s32[3]) tuple(i, y, j)
}"""
    arrays = [np.array([1001, 100003, 23334], np.uint32), np.array([300.7, 7.3, 1e6], np.float32)]
    module, context = cast(text, "all", cast_type)
    places, product, whole = evaluate(module, arrays)
    np.testing.assert_array_equal(places, [100, 100003, 70002])
    np.testing.assert_array_equal(whole, [300, 7, 1000000])
    assert not np.array_equal(product, np.float32([30.07, 7.3, 3e6]))
    assert {row.name: row.reason for row in context.precision}["q"] == "integers alone are made of it"


def stacked(x: Any, w: Any) -> Any:
    return lax.scan(lambda state, each: (jnp.tanh(state @ each), jnp.exp(state)), x, w)


def trained(x: Any, w: Any) -> Any:
    return jax.grad(lambda w: jnp.sum(stacked(x, w)[0] ** 2))(w)


def replaced(x: Any, w: Any) -> Any:
    def body(state: Any, each: Any) -> Any:
        cache = lax.dynamic_update_slice(each, state, (3, 0))
        return jnp.tanh(state @ cache), cache

    return lax.scan(body, x, w)


def read_from(x: Any, w: Any) -> Any:
    def body(at: Any, state: Any) -> Any:
        return jnp.tanh(state[0] + state[1][0, :8]), lax.dynamic_update_slice(state[1], state[0][None], (at, 0, 0))

    return lax.fori_loop(0, 17, body, (x, w))


@pytest.mark.parametrize("cast_type", ["bf16", "fp16"])
@pytest.mark.parametrize("function", [stacked, trained, replaced, read_from])
def test_iterations_cast_what_they_take_alone(function, cast_type):
    """Of a stack of which each takes or replaces one: else a loop would cast as often as it has iterations."""
    random = np.random.default_rng(0)
    x, w = (0.1 * random.standard_normal(dims).astype(np.float32) for dims in ((8, 64), (17, 64, 64)))
    module = parse_text(text_of(function, x, w))
    whole = evaluate(module, [x, w])
    options = PassOptions(auto_cast="all", auto_cast_type=cast_type)
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(options))
    for each in module.computations():
        casts = [op.shape.size for op in ops_of(each.block) if isinstance(op, hlo.ConvertOp)]
        # ahead of the loops, states that all iterations cast are
        assert max(casts, default=0) <= (17 * 8 * 64 if each is module.entry else 64 * 64)
    for found, expected in zip(evaluate(module, [x, w]), whole, strict=True):
        assert np.linalg.norm(found - expected) <= 2e-2 * np.linalg.norm(expected)


def drawn(key: Any, x: Any) -> Any:
    normal, keys = jax.random.normal(key, x.shape), jax.random.split(key)
    return x + 0.1 * normal, jax.random.gumbel(keys[0], x.shape), jax.random.bernoulli(keys[1], 0.999, x.shape)


@pytest.mark.parametrize("cast_type", ["bf16", "fp16"])
def test_draws_are_rounded_once(cast_type):
    """A uniform number just below one that was rounded to one on the way would make an infinite normal one."""
    key, x = np.uint32([3, 4]), np.random.default_rng(0).standard_normal((200, 300), np.float32)
    module = parse_text(text_of(drawn, key, x))
    whole = evaluate(module, [key, x])
    options = PassOptions(auto_cast="all", auto_cast_type=cast_type)
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(options))
    found = evaluate(module, [key, x])
    np.testing.assert_array_equal(found[2], whole[2])
    for one, other in zip(found[:2], whole[:2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=2e-2)


def stepped(count: Any, mean: Any, square: Any, gradient: Any) -> Any:
    mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
    corrected = square / (1 - 0.999**count)
    return mean / (1 - 0.9**count) / (jnp.sqrt(corrected) + 1e-8)


def test_factors_of_steps_differ_from_zero():
    """Single numbers stay as they are: 1 - 0.999 would be nothing in BF16, and what is divided by it infinite."""
    gradient = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    inputs = [np.float32(1), np.zeros_like(gradient), np.zeros_like(gradient), gradient]
    module = parse_text(text_of(stepped, *inputs))
    run_passes(module, pass_names(DEFAULT_PIPELINE), PassContext(PassOptions(auto_cast="all")))
    [found] = evaluate(module, inputs)
    np.testing.assert_allclose(found, np.sign(gradient), rtol=3e-2)
