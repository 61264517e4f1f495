"""Random numbers: bit generators bit for bit, states through all their 64 bits, distributions, JAX's generators."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import check_function, check_text, compile_text

from neuronx_cc.ir.errors import CompileError
from neuronx_cc.ir.isa.program import Instr

Array = np.ndarray[Any, Any]
STATE = np.array([2**63 + 12345, 2**64 - 3, 2**64 - 1], np.uint64)
"""Counters that carry into their high words at once."""


def generator(algorithm: str, words: int, shape: str) -> str:
    return (
        f"HloModule t\nENTRY main {{\n  s = u64[{words}] parameter(0)\n"
        f"  ROOT r = (u64[{words}], {shape}) rng-bit-generator(s), algorithm={algorithm}\n}}\n"
    )


@pytest.mark.parametrize("dims", ["", "7", "8", "3,5", "6,5,7", "129", "0,3"])
@pytest.mark.parametrize(("algorithm", "words"), [("rng_three_fry", 2), ("rng_philox", 3), ("rng_default", 2)])
def test_bits_and_the_advanced_state(algorithm: str, words: int, dims: str) -> None:
    check_text(generator(algorithm, words, f"u32[{dims}]"), STATE[:words])


@pytest.mark.parametrize("dtype", ["u8", "u16", "u64"])
@pytest.mark.parametrize("algorithm", ["rng_three_fry", "rng_philox"])
def test_bits_of_other_types(algorithm: str, dtype: str) -> None:
    check_text(generator(algorithm, 2, f"{dtype}[5,6]"), STATE[:2])


@pytest.mark.parametrize("algorithm", ["rng_three_fry", "rng_philox"])
def test_bits_without_the_state(algorithm: str) -> None:
    text = generator(algorithm, 2, "u32[5,6]")
    check_text(text.replace("(u64[2], u32[5,6])", "u32[5,6]"), STATE[:2])


def test_a_state_of_another_size_is_refused() -> None:
    with pytest.raises(CompileError, match="expected a state of u64"):
        compile_text(generator("rng_three_fry", 3, "u32[4]"))


def test_words_of_parameters_and_results() -> None:
    """Both words are read, through views too, and both are written; what is computed has its sign for a high word."""
    text = """HloModule w
ENTRY main {
  x = u64[2,3] parameter(0)
  y = s64[4] parameter(1)
  z = s64[4] parameter(2)
  t = u64[3,2] transpose(x), dimensions={1,0}
  w = u32[3,2,2] bitcast-convert(t)
  v = s64[2] slice(y), slice={[1:3]}
  c = s64[4] add(z, z)
  d = s32[4,2] bitcast-convert(c)
  k = u64[2] constant({18446744073709551615, 5})
  f = f32[2,2] bitcast-convert(k)
  ROOT r = (u32[3,2,2], s64[2], s32[4,2], u64[2], f32[2,2], u64[2,3]) tuple(w, v, d, k, f, x)
}
"""
    x = np.arange(6, dtype=np.uint64).reshape(2, 3) * np.uint64(2**40 + 9)
    check_text(text, x, np.array([5, -(2**62), 2**61, -7], np.int64), np.array([5, -6, 2**20, -(2**30)], np.int64))


def _distribution(dtype: str, distribution: str, dims: str, low: str, high: str, name: str = "r") -> Array:
    text = (
        f"HloModule d\nENTRY main {{\n  a = {dtype}[] constant({low})\n  b = {dtype}[] constant({high})\n"
        f"  ROOT {name} = {dtype}[{dims}] rng(a, b), distribution={distribution}\n}}\n"
    )
    return compile_text(text).run([])[0]


def test_uniform_numbers() -> None:
    numbers = _distribution("f32", "rng_uniform", "400,50", "-2", "3")
    assert numbers.min() >= -2
    assert numbers.max() < 3
    assert abs(numbers.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.03
    assert len(np.unique(numbers)) > 19900


def test_normal_numbers() -> None:
    numbers = _distribution("f32", "rng_normal", "20000", "1", "2")
    assert abs(numbers.mean() - 1) < 0.05
    assert abs(numbers.std() - 2) < 0.05
    assert np.isfinite(numbers).all()


def test_whole_numbers() -> None:
    numbers = _distribution("s32", "rng_uniform", "5000", "-3", "4")
    assert set(numbers.tolist()) == set(range(-3, 4))


def test_instructions_have_numbers_of_their_own() -> None:
    first, again, other = (_distribution("f32", "rng_uniform", "50", "0", "1", name) for name in ("r", "r", "s"))
    np.testing.assert_array_equal(first, again)
    assert not np.isin(other, first).any()


def test_the_global_state_is_read_and_moved_on() -> None:
    text = """HloModule g
ENTRY main {
  a = u64[2] rng-get-and-update-state(), delta=5
  b = u64[2] rng-get-and-update-state(), delta=1
  ROOT r = (u64[2], u64[2]) tuple(a, b)
}
"""
    first, second = compile_text(text).run([])
    assert second[0] == first[0] + 5
    assert first[1] == second[1] == 0


KINDS: dict[str, Callable[[Any], Any]] = {
    "bits": lambda key: jax.random.bits(key, (7, 9)),
    "uniform": lambda key: jax.random.uniform(key, (130,)),
    "normal": lambda key: jax.random.normal(key, (33,)),
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.3, (50,)),
    "categorical": lambda key: jax.random.categorical(key, jnp.log(jnp.arange(1.0, 9)), shape=(20,)),
    "permutation": lambda key: jax.random.permutation(key, 37),
    "truncated normal": lambda key: jax.random.truncated_normal(key, -1.0, 2.0, (40,)),
    "randint": lambda key: jax.random.randint(key, (40,), 3, 1000),
    "split": lambda key: jax.random.key_data(jax.random.split(key, 3)),
    "fold in": lambda key: jax.random.key_data(jax.random.fold_in(key, 7)),
    "choice": lambda key: jax.random.choice(key, 50, (10,)),
    "exponential": lambda key: jax.random.exponential(key, (40,)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_threefry_of_jax(kind: str) -> None:
    """As JAX lowers it for a platform that it does not know: 20 rounds one after the other."""
    data = np.array([77777, 12], np.uint32)
    draw = jax.jit(lambda words: KINDS[kind](jax.random.wrap_key_data(words)))
    lowered = draw.trace(data).lower(lowering_platforms=("neuron",))
    check_text(lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True), data, relative=3e-5)


@pytest.mark.parametrize("implementation", ["rbg", "unsafe_rbg"])
def test_generators_of_jax(implementation: str) -> None:
    def draw(words: Any) -> Any:
        key = jax.random.wrap_key_data(words, impl=implementation)
        return jax.random.normal(key, (70,)), jax.random.bits(jax.random.split(key)[1], (9,))

    check_function(draw, np.array([3, 5, 2**31, 9], np.uint32), relative=3e-5)


def test_rotations_are_one_instruction() -> None:
    def transposed(x: Any) -> Any:
        return (x << 13) | (x >> 19), (x << 12) | (x >> 18), (x >> 25) ^ (x << 7)

    compiled = check_function(transposed, np.arange(300, dtype=np.uint32) * np.uint32(0x9E3779B9))
    alus = [record.alu for record in compiled.program.records if isinstance(record, Instr)]
    assert alus.count(("rotate-left",)) == 2
