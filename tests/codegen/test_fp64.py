"""FP64 is refused, or computed in FP32 on demand: inputs and outputs keep their types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import compile_text, text_of
from op_cases import module_text

import neuronx_cc
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.passes.manager import PassContext, PassOptions, run_passes

X = np.random.default_rng(0).standard_normal((5, 6))


def check(function, *inputs: np.ndarray) -> None:
    with jax.enable_x64(True):
        text = text_of(function, *inputs)
        wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*inputs))]
    results = compile_text(text, fp64_as_fp32=True).run(list(inputs))
    for result, want in zip(results, wanted, strict=True):
        assert (result.dtype, result.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(result, want, 1e-5, 1e-6)


def test_arithmetic_reductions_and_constants() -> None:
    check(lambda x: (jnp.tanh(x @ x.T) + 2.5, x.sum(0), jnp.float64(3.5), x.astype(np.float32), x > 0), X)


def test_complex() -> None:
    check(lambda z, x: (z * 1j + x, jnp.abs(z), z.real), (X + 2j).astype(np.complex128), X)


def test_loops_and_branches() -> None:
    def function(x):
        halves = jax.lax.fori_loop(0, 3, lambda i, c: c * 0.5 + i, x)
        return jax.lax.cond(x[0, 0] > 0, lambda x: x + 1, lambda x: x - 1, halves)

    check(function, X)


def test_a_parameter_that_is_a_result_keeps_its_bits() -> None:
    text = module_text([("f64", (3,))], "  ROOT t = (f64[3], f64[3]) tuple(p0, p0)")
    x = np.array([np.pi, 1e300, -0.0])
    np.testing.assert_array_equal(compile_text(text, fp64_as_fp32=True).run([x])[1], x)


def test_one_warning() -> None:
    module = parse_text(module_text([("f64", (3,))], "  a = f64[3] add(p0, p0)\n  ROOT r = f64[3] multiply(a, a)"))
    context = PassContext(PassOptions(fp64_as_fp32=True))
    run_passes(module, ["check_operators", "demote_f64"], context, verify_each=True)
    assert [warning.code for warning in context.warnings] == ["ESPP004"]


def test_bits_of_fp64_are_refused() -> None:
    text = module_text([("f64", (3,))], "  ROOT r = u64[3] bitcast-convert(p0)")
    with pytest.raises(CompileError, match="ESPP004"):
        compile_text(text, fp64_as_fp32=True)


@pytest.mark.parametrize(("dtype", "code"), [("f64", "ESPP004"), ("c128", "EVRF004")])
def test_refused_without_the_option(dtype: str, code: str) -> None:
    with pytest.raises(CompileError, match=f"(?s){code}.*--fp64-as-fp32"):
        compile_text(module_text([(dtype, (3,))], f"  ROOT r = {dtype}[3] add(p0, p0)"))


def test_keyword_of_the_api() -> None:
    text = module_text([("f64", (3,))], "  ROOT r = f64[3] add(p0, p0)")
    outputs = neuronx_cc.compile(text.encode(), fp64_as_fp32=True).run([np.ones(3)]).outputs
    np.testing.assert_array_equal(outputs[0], np.full(3, 2.0))


@pytest.mark.parametrize("dims", [(256, 64), (130, 70), (30, 40, 36)])
def test_steps_of_fp64_are_transposed(dims):
    """Steps of a scan come to lie side by side, in whatever type they are stored."""

    def running(x):
        steps = (0.5 * x, x)
        return jax.lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), steps)[1]

    x = np.random.default_rng(0).uniform(-1, 1, dims)
    (result,) = compile_text(text_of(running, x.astype(np.float32)).replace("f32", "f64"), fp64_as_fp32=True).run([x])
    state = x[0]
    for place in range(1, len(x)):
        state = 0.5 * x[place] * state + x[place]
        np.testing.assert_allclose(result[place], state, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f64", "s64", "u64"])
def test_eight_bytes_are_transposed(dtype):
    x = np.arange(200 * 96).reshape(200, 96).astype({"f64": np.float64, "s64": np.int64, "u64": np.uint64}[dtype])
    text = module_text([(dtype, (200, 96))], f"  ROOT r = {dtype}[96,200] transpose(p0), dimensions={{1,0}}")
    (result,) = compile_text(text, fp64_as_fp32=True, int64="exact").run([x])
    np.testing.assert_array_equal(result, x.T)


BITS = np.array([0.0, -0.0, 1.0, -1.5, 2.0**-126, -(2.0**127), np.inf, -np.inf, np.nan])


def exact(function, *inputs: np.ndarray) -> list[np.ndarray]:
    """With 64-bit integers in two words, beside what XLA makes of it."""
    with jax.enable_x64(True):
        text = text_of(function, *inputs)
        wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*inputs))]
    results = compile_text(text, fp64_as_fp32=True, int64="exact").run(list(inputs))
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result, want, 1e-5, 1e-4)
    return results


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_bits(dtype: type) -> None:
    exact(lambda x: (jax.lax.bitcast_convert_type(x, dtype) >> 29, jnp.signbit(x)), BITS[:-1])
    exact(lambda bits: jax.lax.bitcast_convert_type(bits, np.float64), BITS.view(dtype))


def test_bits_beyond_fp32() -> None:
    """They are cut off: what is below 1 stays so; what is too large is infinite, what is too small zero."""
    numbers = np.array([1e300, -1e300, 1e-300, 5e-324, np.nextafter(2.0, 0)])
    with jax.enable_x64(True):
        text = text_of(lambda bits: jax.lax.bitcast_convert_type(bits, np.float64), numbers.view(np.uint64))
    (found,) = compile_text(text, fp64_as_fp32=True, int64="exact").run([numbers.view(np.uint64)])
    np.testing.assert_array_equal(found, [np.inf, -np.inf, 0, 0, 2 - 2.0**-23])


def test_random_numbers() -> None:
    exact(lambda: jax.random.normal(jax.random.key(3), (33, 5)))
    (found,) = exact(lambda: jax.random.uniform(jax.random.key(0), (4096,)))
    assert found.min() >= 0
    assert found.max() < 1


def test_bits_of_parts() -> None:
    with jax.enable_x64(True):
        text = text_of(lambda x: jax.lax.bitcast_convert_type(x, np.uint32), X)
    with pytest.raises(CompileError, match="bits of FP64"):
        compile_text(text, fp64_as_fp32=True, int64="exact")
