"""Custom calls: every target of the coverage table is expanded, disappears, or is refused with a reason."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import assert_close, compile_text

from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.operators import CUSTOM_CALLS, OPERATORS
from neuronx_cc.passes.expand_custom_calls import RULES
from neuronx_cc.passes.expand_linear_algebra import EXPANSIONS

Array = np.ndarray[Any, Any]
NAMES = {"float32": "f32", "int32": "s32", "uint32": "u32", "int64": "s64", "bfloat16": "bf16"}
random = np.random.default_rng(0)
X, G = (random.standard_normal((4, 37)).astype(np.float32) for _ in range(2))
W = random.standard_normal(37).astype(np.float32)
IMAGE = random.standard_normal((2, 5, 6, 3)).astype(np.float32)


def shaped(array: Array) -> str:
    return f"{NAMES[array.dtype.name]}[{','.join(map(str, array.shape))}]"


def text(target: str, inputs: list[Array], results: list[Array], config: str = "") -> str:
    result = shaped(results[0]) if len(results) == 1 else f"({', '.join(map(shaped, results))})"
    lines = [f"  p{i} = {shaped(array)} parameter({i})" for i, array in enumerate(inputs)]
    attribute = f', backend_config="{config}"' if config else ""
    operands = ", ".join(f"p{i}" for i in range(len(inputs)))
    root = f'  ROOT r = {result} custom-call({operands}), custom_call_target="{target}"{attribute}'
    return "\n".join(["HloModule c", "ENTRY main {", *lines, root, "}", ""])


def check(target: str, inputs: list[Array], wanted: list[Any], config: str = "") -> None:
    arrays = [np.asarray(array) for array in wanted]
    results = compile_text(text(target, inputs, arrays, config)).run(inputs)
    for result, want in zip(results, arrays, strict=True):
        assert_close(result, want, 2e-5)


def slope(function: Any) -> Array:
    return np.asarray(jax.vmap(jax.grad(function))(X.reshape(-1)).reshape(X.shape))


def gelu(x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


ACTIVATIONS = {
    "AwsNeuronErf": jax.scipy.special.erf,
    "AwsNeuronGelu": gelu,
    "AwsNeuronGeluApprxTanh": jax.nn.gelu,
    "AwsNeuronSilu": jax.nn.silu,
}


@pytest.mark.parametrize("target", ACTIVATIONS)
def test_activations(target: str) -> None:
    check(target, [X], [ACTIVATIONS[target](X)])


@pytest.mark.parametrize(
    ("target", "function"), [("AwsNeuronGeluBackward", gelu), ("AwsNeuronSiluBackward", jax.nn.silu)]
)
def test_their_derivatives(target: str, function: Any) -> None:
    check(target, [X], [slope(function)])
    check(target, [G, X], [G * slope(function)])


def test_narrow_floats_are_computed_in_fp32() -> None:
    narrow = np.asarray(jnp.asarray(X).astype(jnp.bfloat16))
    check("AwsNeuronGelu", [narrow], [np.asarray(gelu(narrow.astype(np.float32))).astype(narrow.dtype)])


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax(axis: int) -> None:
    y = np.asarray(jax.nn.softmax(X, axis))
    check("AwsNeuronSoftmax", [X], [y], str(axis))
    check("AwsNeuronSoftmaxBackward", [G, y], [y * (G - (G * y).sum(axis, keepdims=True))], str(axis))


def test_rms_norm() -> None:
    wanted = X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-5) * W
    check("AwsNeuronRmsNorm", [X, W, np.asarray(1e-5, np.float32)], [wanted.astype(np.float32)], "1")


@pytest.mark.parametrize("axis", [0, 1])
def test_places_of_extremes(axis: int) -> None:
    rounded = np.round(X)
    check("AwsNeuronArgMax", [rounded], [rounded.argmax(axis).astype(np.uint32)], str(axis))
    check("AwsNeuronArgMin", [rounded], [rounded.argmin(axis).astype(np.int64)], str(axis))


@pytest.mark.parametrize("target", ["AwsNeuronTopK", "TopK"])
def test_top_k(target: str) -> None:
    values, places = jax.lax.top_k(np.round(X, 1), 5)
    check(target, [np.round(X, 1)], [values, np.asarray(places).astype(np.uint32)], "5" if target[0] == "A" else "")


@pytest.mark.parametrize("target", ["ApproxTopK", "PartialReduce"])
def test_first_of_a_sort(target: str) -> None:
    call = f"""HloModule a
before {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = s32[] parameter(2)
  d = s32[] parameter(3)
  ROOT e = pred[] compare(a, b), direction=GT
}}
ENTRY main {{
  x = f32[4,37] parameter(0)
  i = s32[4,37] iota(), iota_dimension=1
  l = f32[] constant(-inf)
  n = s32[] constant(-1)
  ROOT r = (f32[4,3], s32[4,3]) custom-call(x, i, l, n), custom_call_target="{target}", called_computations={{before}}
}}
"""
    for result, want in zip(compile_text(call).run([X]), jax.lax.top_k(X, 3), strict=True):
        np.testing.assert_array_equal(result, np.asarray(want))


def test_collective_matmul_of_one_device() -> None:
    config = "rhs_contracting_dim={},tp_degree={},num_groups=1,use_sb_to_sb=0"
    check("AwsNeuronCollectiveMatmul", [X, G], [X @ G.T], config.format(1, 1))
    check("AwsNeuronCollectiveMatmul", [X, np.ascontiguousarray(G.T)], [X @ G.T], config.format(0, 1))
    with pytest.raises(CompileError, match="tp_degree 8 gathers over devices"):
        compile_text(text("AwsNeuronCollectiveMatmul", [X, G], [X @ G.T], config.format(1, 8)))


def _nearest(source: int, target: int) -> Array:
    return np.floor(np.arange(target) * source / target).astype(int)


def test_resize_to_multiples() -> None:
    wide = IMAGE.repeat(2, 1).repeat(3, 2)
    check("ResizeNearest", [IMAGE], [wide], "00")
    check("ResizeNearestGrad", [wide], [IMAGE * 6], "00")
    check("ResizeBilinear", [IMAGE], [jax.image.resize(IMAGE, (2, 10, 18, 3), "bilinear")], "01")


def test_resize_to_other_sizes() -> None:
    rows, columns = _nearest(5, 8), _nearest(6, 4)
    check("ResizeNearest", [IMAGE], [IMAGE[:, rows][:, :, columns]], "00")
    gradient = np.zeros_like(IMAGE)
    ones = np.ones((2, 8, 4, 3), np.float32)
    np.add.at(gradient, (slice(None), rows[:, None], columns[None]), ones)
    check("ResizeNearestGrad", [ones], [gradient], "00")


def test_resize_with_aligned_corners() -> None:
    row = np.array([0, 10, 40], np.float32).reshape(1, 3, 1, 1)
    wanted = np.interp(np.arange(5) / 2, np.arange(3), row.reshape(-1)).reshape(1, 5, 1, 1)
    check("ResizeBilinear", [row], [wanted.astype(np.float32)], "10")
    check("ResizeNearest", [row], [row[:, [0, 1, 1, 2, 2]]], "10")


@pytest.mark.parametrize("target", [call.target for call in CUSTOM_CALLS.values() if call.status == "folded"])
def test_markers_disappear(target: str) -> None:
    check(target, [X], [X])


def test_markers_without_results() -> None:
    module = """HloModule m
      ENTRY main {
        x = f32[4,37] parameter(0)
        group = () custom-call(x), custom_call_target="xla.sdy.ShardingGroup", custom_call_has_side_effect=true
        ROOT sum = f32[4,37] add(x, x)
      }"""
    assert np.array_equal(compile_text(module).run([X])[0], X + X)


def test_the_order_of_execution_is_the_compilers() -> None:
    """JAX's ``control_deps.schedule``: also against the order of the program, and of values that nothing else reads."""
    module = """HloModule m
      ENTRY main {
        x = f32[4,37] parameter(0)
        first = f32[4,37] negate(x)
        second = f32[4,37] add(x, x)
        unread = f32[4,37] multiply(x, x)
        _ = () custom-call(second, first), custom_call_target="control_dep", custom_call_has_side_effect=true
        __ = () custom-call(unread, second), custom_call_target="control_dep", custom_call_has_side_effect=true
        ROOT sum = f32[4,37] subtract(second, first)
      }"""
    assert_close(compile_text(module).run([X])[0], 3 * X, 1e-6)


def test_markers_of_several_values() -> None:
    check("NeuronBoundaryMarker-End", [X, G], [X, G])
    with pytest.raises(CompileError, match="partitioned over several devices"):
        compile_text(text("SPMDFullToShardShape", [X], [X[:2]]))


@pytest.mark.parametrize("target", [call.target for call in CUSTOM_CALLS.values() if call.status == "refused"])
def test_refusals_say_why(target: str) -> None:
    with pytest.raises(CompileError, match="is not supported") as caught:
        compile_text(text(target, [X], [X]))
    assert CUSTOM_CALLS[target].reason in str(caught.value)


@pytest.mark.parametrize(
    ("target", "inputs", "config"),
    [
        ("AwsNeuronSoftmax", [X], "2"),
        ("AwsNeuronSoftmax", [X], "last"),
        ("AwsNeuronGelu", [X, X, X], ""),
        ("AwsNeuronRmsNorm", [X, G, W], "1"),
        ("ResizeNearest", [X], "00"),
        ("ResizeNearest", [IMAGE], ""),
    ],
)
def test_what_does_not_fit_is_an_error(target: str, inputs: list[Array], config: str) -> None:
    with pytest.raises(CompileError, match=f"custom call {target}: "):
        compile_text(text(target, inputs, [inputs[0]], config))


def test_unknown_targets_are_named() -> None:
    with pytest.raises(CompileError, match="did you mean AwsNeuronGelu"):
        compile_text(text("AwsNeuronGello", [X], [X]))


def test_the_table_and_the_rules_agree() -> None:
    """The coverage table is the only place that says what compiles."""
    compiled = {call.target for call in CUSTOM_CALLS.values() if call.status in ("decomposed", "folded")}
    assert compiled == RULES.keys() | (EXPANSIONS.keys() - OPERATORS.keys())
