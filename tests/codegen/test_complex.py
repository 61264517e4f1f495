"""Complex numbers as pairs of FP32 arrays, beside XLA, and the pass that splits them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, check_text, compile_text, text_of
from op_cases import module_text
from op_cases_math import complex_array

import neuronx_cc
from neuronx_cc.hlo_import.parser import parse_text
from neuronx_cc.ir import hlo
from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.hlo.editing import ops_of
from neuronx_cc.ir.reference import evaluate
from neuronx_cc.passes.manager import PassContext, run_passes

Z = complex_array((6, 20), "z")
W = complex_array((6, 20), "w")
SPECIAL = np.array([0, -0.0, 1, -1, np.inf, -np.inf, 1e-30, 1e30, 50, -100], np.float32)


def split_values(opcode: str, *inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``opcode`` on c64 vectors after the pass alone, by the reference semantics, and in complex128."""
    result = "f32" if opcode == "abs" else "c64"
    count = len(inputs[0])
    arguments = ", ".join(f"p{i}" for i in range(len(inputs)))
    text = module_text([("c64", (count,))] * len(inputs), f"  ROOT r = {result}[{count}] {opcode}({arguments})")
    module = parse_text(text)
    run_passes(module, ["split_complex"], PassContext(), verify_each=True)
    (got,) = evaluate(module, list(inputs))
    with np.errstate(all="ignore"):
        return got, EXACT[opcode](*(x.astype(np.complex128) for x in inputs))


EXACT = {
    "abs": np.abs,
    "add": np.add,
    "cosine": np.cos,
    "divide": np.divide,
    "exponential": np.exp,
    "exponential-minus-one": np.expm1,
    "log": np.log,
    "log-plus-one": np.log1p,
    "logistic": lambda z: 1 / (1 + np.exp(-z)),
    "multiply": np.multiply,
    "negate": np.negative,
    "power": np.power,
    "rsqrt": lambda z: 1 / np.sqrt(z),
    "sign": lambda z: z / np.abs(z),
    "sine": np.sin,
    "sqrt": np.sqrt,
    "subtract": np.subtract,
    "tan": np.tan,
    "tanh": np.tanh,
}


@pytest.mark.parametrize("opcode", sorted(EXACT))
@pytest.mark.parametrize("size", [4, 1e-3])
def test_functions_are_accurate(opcode: str, size: float) -> None:
    """Relative to the length of the exact number: a few units in the last place."""
    operands = 2 if opcode in ("add", "divide", "multiply", "power", "subtract") else 1
    inputs = [complex_array((2000,), f"{opcode}{i}", size) for i in range(operands)]
    got, exact = split_values(opcode, *inputs)
    assert np.max(np.abs(got - exact) / np.abs(exact)) < (2e-6 if opcode == "power" else 5e-7)


@pytest.mark.parametrize("opcode", ["abs", "exponential", "exponential-minus-one", "log", "sqrt"])
def test_special_values(opcode: str) -> None:
    """Infinities, signed zeros and numbers whose square overflows, where the exact result is a number."""
    grid = np.array([complex(x, y) for x in SPECIAL for y in SPECIAL], np.complex64)
    got, exact = split_values(opcode, grid)
    exact = exact.astype(got.dtype)
    known = ~np.isnan(exact) & (np.isfinite(grid.imag) | (opcode in ("abs", "log", "sqrt")))
    for part in (np.real, np.imag):
        np.testing.assert_allclose(part(got)[known], part(exact)[known], 1e-5, 1e-36)


def test_division_by_zero_and_by_infinity() -> None:
    x = np.array([1 + 2j, -3 + 1j, 2 + 1j], np.complex64)
    y = np.array([0, complex(np.inf, 1), complex(-1, -np.inf)], np.complex64)
    got, _ = split_values("divide", x, y)
    np.testing.assert_array_equal(got, np.array([complex(np.inf, np.inf), 0, 0], np.complex64))


def test_one_of_everything() -> None:
    def function(z, w, x):
        product = jnp.exp(z) * w + jnp.sqrt(w) / z - jnp.conj(z)
        mask = z == w
        return product, jnp.abs(z), jnp.angle(w), jnp.where(mask, z, w * 2), z + x, product.real, product.imag.T

    check_function(function, Z, W, np.real(Z))


def test_movement() -> None:
    def function(z):
        grown = jnp.concatenate([z[:, ::-1], z.T.reshape(6, 20)], axis=1)
        return grown[1:4, 3::7], jnp.pad(grown, ((0, 1), (2, 0))), z[::2], jnp.broadcast_to(z[0], (3, 20))

    check_function(function, Z)


@pytest.mark.parametrize("subscripts", ["ij,kj->ik", "ij,ij->i", "ij,kj->jik"])
def test_contraction(subscripts: str) -> None:
    check_function(lambda z, w: jnp.einsum(subscripts, z, w.conj(), precision="highest"), Z, W)


def test_reductions() -> None:
    check_function(lambda z: (z.sum(), z.sum(0), z[:, :4].prod(1), z.mean(1), jnp.linalg.norm(z)), Z)


def test_constants_and_results_that_are_parameters() -> None:
    constant = complex_array((3, 4), "constant")
    check_function(lambda z: (z, z, jnp.asarray(constant) * z[:3, :4], jnp.full((2, 2), 1 - 2j, jnp.complex64)), Z)


def test_a_large_array_streams() -> None:
    z = complex_array((300, 1100), "large")
    check_function(lambda z: (z * z).sum(1) + z[:, 0], z)


def test_state_of_a_loop_and_operands_of_branches() -> None:
    def function(z, n):
        z = jax.lax.fori_loop(0, 5, lambda i, s: (s[0] * s[1] * 0.5, s[1]), (z, jnp.exp(1j * z.real)))[0]
        return jax.lax.cond(n > 0, lambda z: z * 1j, lambda z: z.conj(), z)

    text = text_of(function, Z, np.int32(1))
    wanted = evaluate(parse_text(text), [Z, np.int32(1)])
    module = parse_text(text)
    run_passes(module, ["inline_calls", "dissolve_tuples", "split_complex"], PassContext(), verify_each=True)
    np.testing.assert_allclose(evaluate(module, [Z, np.int32(1)])[0], wanted[0], 1e-5)
    complex_ops = [
        op.opcode
        for computation in module.computations()
        for op in ops_of(computation.block)
        if isinstance(op.results[0].type, hlo.ArrayType) and op.shape.dtype == "c64"
    ]
    assert complex_ops == ["complex"]


SORT = """HloModule sort
before {
  a = c64[] parameter(0)
  b = c64[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ra = f32[] real(a)
  rb = f32[] real(b)
  ROOT less = pred[] compare(ra, rb), direction=LT
}
ENTRY main {
  z = c64[6,20] parameter(0)
  k = s32[6,20] iota(), iota_dimension=1
  s = (c64[6,20], s32[6,20]) sort(z, k), dimensions={1}, is_stable=true, to_apply=before
  first = c64[6,20] get-tuple-element(s), index=0
  second = s32[6,20] get-tuple-element(s), index=1
  ROOT r = (c64[6,20], s32[6,20]) tuple(first, second)
}
"""


def test_comparators_get_their_parameters_in_pairs() -> None:
    module = parse_text(SORT)
    wanted = evaluate(parse_text(SORT), [Z])
    run_passes(module, ["split_complex"], PassContext(), verify_each=True)
    for got, want in zip(evaluate(module, [Z]), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_scatters_that_add_replace_and_multiply() -> None:
    index = np.array([3, 1, 3, 5], np.int32)
    update = complex_array((4, 20), "update")
    for function in (
        lambda z, i, u: z.at[i].add(u),
        lambda z, i, u: z.at[i].set(u[0]),
        lambda z, i, u: z.at[i].multiply(u),
    ):
        text = text_of(function, Z, index, update)
        module = parse_text(text)
        run_passes(module, ["inline_calls", "dissolve_tuples", "split_complex"], PassContext(), verify_each=True)
        wanted = evaluate(parse_text(text), [Z, index, update])
        np.testing.assert_allclose(evaluate(module, [Z, index, update])[0], wanted[0], 1e-6, 1e-6)


def test_signature_and_files_keep_the_type() -> None:
    executable = neuronx_cc.compile(text_of(lambda z: z * 2j, Z).encode())
    np.testing.assert_allclose(executable.run([Z]).outputs[0], Z * 2j, 1e-6)


def test_real_and_imag_of_real_numbers() -> None:
    body = "  r = f32[5] real(p0)\n  i = f32[5] imag(p0)\n  ROOT t = (f32[5], f32[5]) tuple(r, i)"
    check_text(module_text([("f32", (5,))], body), np.arange(5, dtype=np.float32))


def test_what_has_no_complex_form_is_refused() -> None:
    body = "  ROOT r = c64[6,20] floor(p0)"
    with pytest.raises(CompileError) as error:
        compile_text(module_text([("c64", (6, 20))], body))
    assert error.value.code in ("EVRF004", "EVRF064")


def test_older_releases_refuse_complex_numbers() -> None:
    with pytest.raises(CompileError) as error:
        compile_text(text_of(lambda z: z + z, Z), release="2.3")
    assert error.value.code == "EVRF004"
