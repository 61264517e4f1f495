"""Weights in 8 bits: the numbers that they become, where they are stored so, and what a program computes with them."""

import json
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import assert_close, compile_text, text_of
from jax import lax

import neuronx_cc
from neuronx_cc.driver import cli
from neuronx_cc.driver.policy_file import policy_of
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import UsageError
from neuronx_cc.passes import pipelines, quantize_weights
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes
from neuronx_cc.passes.precision.policy import rules_from
from neuronx_cc.passes.precision.quantization import FORMATS, quantized, rounded_weight

Array = np.ndarray[Any, Any]
STEP = {"int8": 0.5 / 127, "fp8_e4m3": 1 / 16}
"""The largest error, of the largest of a channel and of each element."""
RANDOM = np.random.default_rng(0)
W = (RANDOM.standard_normal((70, 33)) * RANDOM.uniform(0.01, 10, 33)).astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dims", [(1, 1), (70, 33), (3, 5, 7), (1000, 2)])
def test_numbers(dims: tuple[int, ...], form: str) -> None:
    random = np.random.default_rng(0)
    array = random.standard_normal(dims).astype(np.float32) * np.float32(10.0) ** random.integers(-20, 20, dims[-1])
    codes, scales = quantized(array, range(len(dims) - 1), form)
    assert codes.shape == array.shape
    assert scales.shape == dims[-1:]
    wide = codes.astype(np.float64) * scales
    largest = np.abs(array).max(axis=tuple(range(len(dims) - 1)))
    bound = STEP[form] * (largest if form == "int8" else np.maximum(np.abs(array), largest * 2.0**-6))
    assert (np.abs(wide - array) <= bound * (1 + 1e-5)).all()
    np.testing.assert_array_equal(rounded_weight(array, range(len(dims) - 1), form), wide.astype(np.float32))


@pytest.mark.parametrize("form", FORMATS)
def test_limits(form: str) -> None:
    """Zeros, channels of zeros, the smallest and the largest numbers."""
    array = np.array([[0, 0, 1e-45, 3.4e38, -3.4e38], [1, 0, 0, 1, -1]], np.float32)
    codes, scales = quantized(array, [0], form)
    wide = codes.astype(np.float64) * scales
    assert np.isfinite(wide).all()
    assert (wide[:, 1] == 0).all()
    np.testing.assert_allclose(wide[0, 3:], array[0, 3:], rtol=1e-6)
    assert abs(wide[1, 0] - 1) < 1e-6


@pytest.mark.parametrize("form", FORMATS)
def test_percentiles(form: str) -> None:
    """What is greater is clipped, all else is rounded more finely: less error where few elements are far out."""
    weights = RANDOM.standard_normal((2000, 3)).astype(np.float32)
    weights[7] = [50, -50, 3]
    weights[:, 2] *= np.arange(2000) == 7  # a percentile of 0
    codes, scales = quantized(weights, [0], f"{form}@99.9")
    reached = np.percentile(np.abs(weights), 99.9, axis=0)
    np.testing.assert_allclose(scales[:2] * FORMATS[form][1], reached[:2], rtol=1e-6)
    np.testing.assert_allclose(scales[2] * FORMATS[form][1], np.abs(weights[:, 2]).max(), rtol=1e-6)
    near = np.abs(weights[:, :2]) <= reached[:2]
    assert (codes.astype(np.float32)[7, :2] == [FORMATS[form][1], -FORMATS[form][1]]).all()
    rounded = {name: rounded_weight(weights, [0], name) for name in (form, f"{form}@100", f"{form}@99.9")}
    np.testing.assert_array_equal(rounded[form], rounded[f"{form}@100"])
    errors = {name: np.linalg.norm((wide - weights)[:, :2][near]) for name, wide in rounded.items()}
    assert errors[f"{form}@99.9"] < errors[form] * (0.2 if form == "int8" else 1.05)


@pytest.mark.parametrize("form", ["int4", "int8@", "int8@x", "int8@nan", "int8@101", "int8@49", "int8@-1", "@99"])
def test_formats_that_there_are_not(form: str) -> None:
    with pytest.raises(UsageError, match="format"):
        policy_of(None, (), form)
    with pytest.raises(UsageError, match="weights is one of"):
        rules_from({"rules": [{"opcode": "dot", "weights": form}]}, "a policy")


def right(x: Any, w: Any) -> Any:
    return x @ w


def left(x: Any, w: Any) -> Any:
    return lax.dot_general(w, x, (((0,), (1,)), ((), ())))


def turned(x: Any, w: Any) -> Any:
    return x @ jnp.asarray(w.T.copy()).T


def of_16_bits(x: Any, w: Any) -> Any:
    return (x.astype(jnp.bfloat16) @ w.astype(ml_dtypes.bfloat16)).astype(jnp.float32)


def batched(x: Any, w: Any) -> Any:
    return jnp.einsum("mk,bkn->bmn", x, np.stack([w, -2 * w]))


def of_batches(x: Any, w: Any) -> Any:
    return jnp.einsum("bmk,bkn->bmn", jnp.stack([x, -x]), np.stack([w, 2 * w]))


FUNCTIONS = (right, left, turned, of_16_bits, batched, of_batches)


def stored(function: Callable[..., Any], x: Array, weights: str | None, *kept: str) -> list[str]:
    """Element types of the constants that dots read after the pass."""
    module = parse_text(text_of(function, x))
    options = PassOptions(auto_cast="none", policy=policy_of(None, kept, weights))
    names = pipelines.pass_names(pipelines.DEFAULT_PIPELINE)
    run_passes(module, names[: names.index("auto_cast")], PassContext(options))
    casts = [operand.owner for op in module.entry.block.ops if isinstance(op, hlo.DotOp) for operand in op.operands]
    return [hlo.shape_of(cast.operand).dtype for cast in casts if isinstance(cast, hlo.ConvertOp)]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_values(function: Callable[..., Any], form: str) -> None:
    """As with the numbers that the weights become, and as exact as FP32 is."""
    x = np.random.default_rng(1).standard_normal((5, 70)).astype(np.float32)
    assert FORMATS[form][0] in stored(partial(function, w=W), x, form)
    (result,) = compile_text(text_of(partial(function, w=W), x), policy=policy_of(None, (), form)).run([x])
    want = np.asarray(function(jnp.asarray(x), rounded_weight(W, [0], form)))
    assert_close(result, want, relative=2e-2 if function is of_16_bits else 2e-5)


def layers(x: Any, w: Any) -> Any:
    return lax.scan(lambda state, each: (jnp.tanh(state @ each), None), x, w)[0]


def turned_layers(x: Any, w: Any) -> Any:
    return lax.scan(lambda state, each: (jnp.tanh(state @ each.T), None), x, w, reverse=True)[0]


def layers_of_heads(x: Any, w: Any) -> Any:
    def layer(state: Any, each: Any) -> Any:
        heads = jnp.einsum("mhk,hkd->mhd", state.reshape(5, 4, 16), each.reshape(4, 16, 64)[:, :, :16])
        return jnp.tanh(heads.reshape(5, 64)), None

    return lax.scan(layer, x, w)[0]


def layers_in_the_middle(x: Any, w: Any) -> Any:
    stack = jnp.moveaxis(w, 0, 1)
    return lax.fori_loop(0, 14, lambda at, state: jnp.tanh(state @ stack[:, at]), x)


def layers_of_layers(x: Any, w: Any) -> Any:
    stack = w.reshape(7, 2, 64, 64)
    return lax.scan(lambda state, each: (layers(state, each) + 1, None), x, stack)[0]


def stages(x: Any, w: Any) -> Any:
    stack = np.concatenate([w] * 3).reshape(2, 21, 64, 64) / 2
    return lax.scan(lambda state, each: (layers(state, each) + 1, None), x, stack)[0]


def transposed_stages(x: Any, w: Any) -> Any:
    stack = np.concatenate([w] * 3).reshape(2, 21, 64, 64) / 2
    return lax.scan(lambda state, each: (turned_layers(state, each) + 1, None), x, stack, reverse=True)[0]


def pairs(x: Any, w: Any) -> Any:
    def pair(state: Any, each: Any) -> Any:
        return jnp.tanh(jnp.tanh(state @ each[0]) @ each[1]), None

    return lax.scan(pair, x, w.reshape(7, 2, 64, 64))[0]


def taken_at_random(x: Any, w: Any) -> Any:
    def body(_: Any, state: Any) -> Any:
        at = jnp.sum(jnp.abs(state)).astype(jnp.int32) % 20 - 3  # beyond both ends as well
        return jnp.tanh(state @ lax.dynamic_index_in_dim(w, at, 0, keepdims=False))

    return lax.fori_loop(0, 14, body, x)


def convolved(x: Any, w: Any) -> Any:
    def layer(state: Any, each: Any) -> Any:
        kernel = each.reshape(3, 3, 64 // 3, 64 // 3)
        return jnp.tanh(lax.conv_general_dilated(state, kernel, (1, 1), "SAME", dimension_numbers=FORM)), None

    image = jnp.tile(x.reshape(5, 1, 1, 64)[..., :21], (1, 4, 4, 1))
    return lax.scan(layer, image, w.reshape(14, -1)[:, : 9 * 21 * 21].reshape(14, 3, 3, 21, 21))[0]


FORM = ("NHWC", "HWIO", "NHWC")


def rounded_heads(w: Any, form: str) -> Any:
    heads = w.reshape(14, 4, 16, 64).copy()
    heads[..., :16] = rounded_weight(heads[..., :16], (2,), form)
    return heads.reshape(w.shape)


def rounded_kernels(w: Any, form: str) -> Any:
    flat, size = w.reshape(14, -1).copy(), 9 * 21 * 21
    flat[:, :size] = rounded_weight(flat[:, :size].reshape(14, 3, 3, 21, 21), (1, 2, 3), form).reshape(14, size)
    return flat.reshape(w.shape)


STACKS = {
    layers: (1,), turned_layers: (2,), layers_of_heads: rounded_heads, layers_in_the_middle: (1,),
    layers_of_layers: (1,), stages: (1,), transposed_stages: (2,), pairs: (1,), taken_at_random: (1,),
    convolved: rounded_kernels,
}  # fmt: skip
"""Models of a stack of 14 weights of 64 x 64 -> the axes that are summed over, or what rounds the stack."""


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("function", STACKS, ids=lambda function: function.__name__)
def test_stacks_of_weights(function: Callable[..., Any], form: str) -> None:
    """A loop takes codes and scales out of stacks."""
    random = np.random.default_rng(2)
    x, w = (random.standard_normal(dims).astype(np.float32) for dims in ((5, 64), (14, 64, 64)))
    w *= 0.2 * random.uniform(0.5, 2, (14, 1, 64)).astype(np.float32)
    how = STACKS[function]
    compiled = compile_text(text_of(partial(function, w=w), x), policy=policy_of(None, (), form))
    (result,) = compiled.run([x])
    plain = compile_text(text_of(partial(function, w=w), x))
    assert compiled.program.hbm_bytes < 0.5 * plain.program.hbm_bytes
    rounded = rounded_weight(w, how, form) if isinstance(how, tuple) else how(w, form)
    assert_close(result, np.asarray(function(jnp.asarray(x), rounded)), relative=1e-3)


@pytest.mark.parametrize("function", [layers, turned_layers, layers_in_the_middle])
def test_stacks_are_cast_and_laid_out_once(function: Callable[..., Any]) -> None:
    """A loop reads what it multiplies by, in BF16 as in FP32: nothing is cast or turned in it."""
    random = np.random.default_rng(2)
    x, w = (random.standard_normal(dims).astype(np.float32) for dims in ((5, 64), (14, 64, 64)))
    module = parse_text(text_of(partial(function, w=w * np.float32(0.1)), x))
    names = pipelines.pass_names(pipelines.DEFAULT_PIPELINE)
    run_passes(module, names, PassContext(PassOptions(auto_cast="matmult")))
    ops = [op for computation in module.computations() for op in computation.block.ops]
    weights = [op for op in ops if isinstance(op, hlo.ConstantOp) and op.shape.size == w.size]
    assert [op.shape.dtype for op in weights] == ["bf16"]
    assert all(hlo.shape_of(op.operands[0]).size != 64 * 64 for op in ops if isinstance(op, hlo.ConvertOp))


def test_what_stays() -> None:
    x = np.ones((5, 70), np.float32)
    assert stored(partial(right, w=W), x, None) == []
    assert stored(partial(right, w=W), x, "int8", "dot") == []  # kept in FP32
    assert stored(lambda x: x @ np.full((70, 3), np.inf, np.float32), x, "int8") == []
    assert stored(lambda x: x @ x.T, x, "int8") == []
    assert stored(lambda x: x @ jnp.ones((70, 3)), x, "int8") == []


def test_nothing_to_store_is_told() -> None:
    module = parse_text(text_of(lambda x, w: x @ w, np.ones((5, 70)), W))
    context = PassContext(PassOptions(policy=policy_of(None, (), "int8")))
    quantize_weights.run(module, context)
    assert [warning.code for warning in context.warnings] == ["EARG911"]
    assert "no contraction" in context.warnings[0].message


@pytest.mark.parametrize(("size", "told"), [(256, True), (1024, False)])
def test_small_weights_are_told(size: int, told: bool) -> None:
    """Reading them in 8 bits saves less time than scales take."""
    weights = np.ones((size, size), np.float32) + np.eye(size, dtype=np.float32)
    module = parse_text(text_of(lambda x: x @ weights, np.ones((5, size), np.float32)))
    context = PassContext(PassOptions(policy=policy_of(None, (), "int8")))
    quantize_weights.run(module, context)
    assert [warning.code for warning in context.warnings] == ["EARG911"] * told


def test_nothing_to_store_is_told_in_python() -> None:
    x = np.ones((5, 70), np.float32)
    with pytest.warns(UserWarning, match="EARG911"):
        neuronx_cc.compile(jax.jit(lambda x, w: x @ w), x, W, quantize_weights="int8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wide, large = np.ones((5, 700), np.float32), np.resize(W, (700, 700))
        neuronx_cc.compile(jax.jit(lambda x: x @ large), wide, quantize_weights="int8")


def test_what_is_kept_in_fp32_asks_for_no_weights_in_few_bits() -> None:
    module = parse_text(text_of(lambda x, w: x @ w, np.ones((5, 70)), W))
    context = PassContext(PassOptions(policy=policy_of(None, ("dot",), None)))
    quantize_weights.run(module, context)
    assert context.warnings == []


def test_command_line(tmp_path: Any) -> None:
    """The option, rules that count more, and what --dump-precision says."""
    source, neff, dump = (tmp_path / name for name in ("m.hlo", "m.neff", "p.txt"))
    source.write_text(text_of(lambda x: (x @ W) @ W.T, np.ones((5, 70), np.float32)))
    policy = json.dumps({"rules": [{"opcode": "dot", "shape": "f32[5,70]", "weights": "fp8_e4m3"}]})
    base = ["compile", str(source), "--output", str(neff), "--dump-precision", str(dump)]
    assert cli.main([*base, "--quantize-weights", "int8", "--precision-policy", policy]) == 0
    text = dump.read_text()
    assert "s8" in text
    assert "--quantize-weights int8" in text
    assert "f8e4m3" in text
    assert cli.main([*base, "--quantize-weights", "fp8@99.5"]) == 0
    assert "fp8@99.5" in dump.read_text()
    for bad in ("int3", "int8@200"):
        assert cli.main([*base, "--quantize-weights", bad]) == 2


def test_codes_of_parameters() -> None:
    """What ``neuronx_cc.quantize`` gives is for a model that takes codes and scales."""
    x = np.random.default_rng(1).standard_normal((5, 70)).astype(np.float32)
    for form in FORMATS:
        codes, scales = neuronx_cc.quantize(W, (0,), form)
        model = jax.jit(lambda x, codes, scales: (x @ codes.astype(x.dtype)) * scales)
        result = neuronx_cc.compile(model, x, codes, scales, auto_cast="none").run([x, codes, scales])
        want = x.astype(np.float64) @ rounded_weight(W, [0], form)
        assert_close(result.outputs[0], want.astype(np.float32), relative=2e-5)


@pytest.mark.parametrize(
    "arguments", [(W, (2,)), (W, ()), (W, (-1,)), (W, (0,), "int4"), (np.full((2, 2), np.nan, np.float32), (0,))]
)
def test_what_cannot_be_codes(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError):
        neuronx_cc.quantize(*arguments)
