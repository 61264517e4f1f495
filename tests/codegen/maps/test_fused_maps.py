"""Maps that fewer instructions compute than they have ops, and long rows that Scalar sums."""

from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated import Compiled, check_function
from jax import lax

from neuronx_cc.ir.isa.program import Instr, Space, Stream


def instructions(compiled: Compiled) -> list[Instr]:
    return [record for record in compiled.program.records if isinstance(record, Instr)]


def test_softplus_is_one_activation(random: np.random.Generator) -> None:
    x = np.concatenate([random.standard_normal(991) * 30, [np.nan, np.inf, -np.inf, 0, -0.0, 90, -90, 1e30, -1e30]])
    compiled = check_function(jax.nn.softplus, x.astype(np.float32).reshape(10, 100))
    made = instructions(compiled)
    assert [instr.alu for instr in made if instr.stream is Stream.SCALAR] == [("softplus",)]
    assert not any(instr.stream is Stream.GPSIMD for instr in made)


def test_softplus_far_below_zero_keeps_its_digits() -> None:
    x = np.linspace(-80, -5, 256, dtype=np.float32)
    compiled = check_function(lambda x: jnp.log(jax.nn.softplus(x)), x)
    np.testing.assert_allclose(compiled.run([x])[0], x, atol=4e-3)


@pytest.mark.parametrize("part", ["maximum", "logarithm"])
def test_softplus_of_which_a_part_is_wanted_too(part: str, random: np.random.Generator) -> None:
    x = random.standard_normal((8, 64)).astype(np.float32)

    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        largest, rest = jnp.maximum(x, 0), jnp.log1p(jnp.exp(-jnp.abs(x)))
        return largest + rest, largest if part == "maximum" else rest

    check_function(function, x)


def test_near_softplus(random: np.random.Generator) -> None:
    x, y = random.standard_normal((2, 8, 64)).astype(np.float32)
    check_function(lambda x, y: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(y))), x, y)
    check_function(lambda x: jnp.maximum(x, 1) + jnp.log1p(jnp.exp(-jnp.abs(x))), x)
    check_function(lambda x: jnp.maximum(x, 0) + jnp.log1p(jnp.exp(jnp.abs(x))), x)


def test_scalar_sums_long_rows(random: np.random.Generator) -> None:
    """A large matrix with one vector: Vector multiplies, and the row of the vector is repeated once."""
    x, y = random.standard_normal((2560, 768)).astype(np.float32), random.standard_normal(768).astype(np.float32)
    compiled = check_function(lambda x, y: jnp.sum(x * y, axis=1), x, y)
    made = instructions(compiled)
    assert any("accumulate" in instr.flags for instr in made if instr.stream is Stream.SCALAR)
    assert sum(instr.stream is Stream.DMA_LOAD for instr in made) <= 1


def test_scans_lay_their_results_out_step_by_step(random: np.random.Generator) -> None:
    """Sums over a middle dim after a scan write neighbours."""
    decay = random.uniform(0.5, 1, (128, 256, 4)).astype(np.float32)
    entry = random.standard_normal((128, 256, 4)).astype(np.float32)

    def combine(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def function(decay: jax.Array, entry: jax.Array) -> jax.Array:
        _, rows = jax.lax.associative_scan(combine, (decay, entry), axis=0)
        return jnp.tanh(jnp.sum(rows * entry, axis=2)) @ entry[0]

    compiled = check_function(function, decay, entry)
    sums = [instr for instr in instructions(compiled) if instr.op == "tensor_reduce"]
    assert sums
    assert all(instr.outs[0].dims[-1][1] == 4 for instr in sums)


def loaded(compiled: Compiled) -> int:
    """Elements of all loads, outside loops."""
    return sum(prod(instr.outs[0].counts) for instr in instructions(compiled) if instr.stream is Stream.DMA_WEIGHT)


@pytest.mark.parametrize("first", [0, 1])
def test_elements_between_others_are_loaded_with_them(first: int, random: np.random.Generator) -> None:
    x = random.standard_normal((128, 2048)).astype(np.float32)
    compiled = check_function(lambda x: jnp.exp(x[:, first::2]) - x[:, 1 - first :: 2] * 3, x)
    assert loaded(compiled) == x.size
    compiled = check_function(lambda x: x[:, ::3] * x[:, 2::3] + jnp.tanh(x[:, 1::3]), x[:, :2046])
    assert x.size < loaded(compiled) < 2.1 * x.size
    check_function(lambda x: x[:, :1022:2] * x[:, 1024:2046:2] + x[:, 3:1025:2], x)


def test_tiles_that_two_inputs_share(random: np.random.Generator) -> None:
    """One of them is needed for longer than the other."""
    x, y = random.standard_normal((2, 300, 4096)).astype(np.float32)

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        even, odd = x[:, ::2], x[:, 1::2]
        first = jnp.tanh(even) + y[:, ::2]
        second = jnp.exp(-jnp.abs(first)) * y[:, 1::2]
        return jnp.sin(first) + second * odd

    check_function(function, x, y)


LANES = {
    "product": lambda x, y, m, s: (x - m) * y,
    "transposed": lambda x, y, m, s: (m - x) * y,
    "last": lambda x, y, m, s: y - (x - m),
    "two": lambda x, y, m, s: (x - m) * s,
    "both transposed": lambda x, y, m, s: s - (m - x),
    "constant": lambda x, y, m, s: jnp.maximum(x * s, 0.5),
    "constant first": lambda x, y, m, s: 2 - (x + m),
    "chain": lambda x, y, m, s: jnp.maximum((x - m) * s + y, 0) * m + s,
    "sums": lambda x, y, m, s: jnp.sum((x - m) * y, axis=(1, 2)) + jnp.sum((y - s) * 3, axis=(1, 2)),
    "twice": lambda x, y, m, s: ((x - m) * (x - m), (x - m) + y),
}


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("features", [64, 192])
def test_one_value_a_partition_is_part_of_the_next_instruction(
    name: str, features: int, random: np.random.Generator
) -> None:
    x, y = random.standard_normal((2, features, 24, 70)).astype(np.float32)
    x[0, 0, :4] = np.nan, np.inf, -np.inf, -0.0
    mean, scale = random.standard_normal((2, features)).astype(np.float32)
    function = LANES[name]
    compiled = check_function(lambda x, y, m, s: function(x, y, m[:, None, None], s[:, None, None]), x, y, mean, scale)
    fused = [instr for instr in instructions(compiled) if "ap0" in instr.flags and len(instr.alu) == 2]
    assert fused or name == "twice"


NARROWED = {
    "sum": lambda x, y, m: x * m + jnp.tanh(y) * 3,
    "product": lambda x, y, m: (x - m) * (jnp.exp(y) * 3),
    "difference": lambda x, y, m: jnp.sin(y) * 2 - (x + m),
    "one": lambda x, y, m: (x - m) * y,
}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", NARROWED)
def test_cast_of_what_reads_one_value_a_partition_and_another_product(
    name: str, dtype: Any, random: np.random.Generator
) -> None:
    x, y = random.standard_normal((2, 256, 1000)).astype(np.float32)
    mean, function = random.standard_normal(256).astype(np.float32), NARROWED[name]
    compiled = check_function(lambda x, y, m: function(x, y, m[:, None]).astype(dtype), x, y, mean, relative=1e-2)
    fused = [instr for instr in instructions(compiled) if "ap0" in instr.flags and len(instr.alu) == 2]
    assert bool(fused) == (name == "one"), "an instruction takes one product first"


STEPS = {
    "times 0.3": lambda x, m: x * 0.3,
    "rows' products": lambda x, m: x * m,
    "rows' differences": lambda x, m: m - x,
    "tanh": lambda x, m: jnp.tanh(x),
}


@pytest.mark.parametrize("chain", list(product(STEPS, repeat=3)), ids=" ".join)
def test_each_op_is_part_of_one_instruction_at_most(chain: tuple[str, str, str], random: np.random.Generator) -> None:
    """Constants, values of a row and activations in every order."""

    def function(x: Any, m: Any) -> Any:
        for name in chain:
            x = STEPS[name](x, m)
        return x

    check_function(function, *(random.standard_normal((130, size)).astype(np.float32) for size in (70, 1)))


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale + bias


@pytest.mark.parametrize(("rows", "columns"), [*product([260], [127, 511, 513, 1021, 1025, 1536]), (2048, 768)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_norms_with_rows_that_end_within_a_bank(
    dtype: str, rows: int, columns: int, random: np.random.Generator
) -> None:
    """Scale and bias stay in PSUM; means of narrow rows are scalars of the partitions."""
    x = (random.standard_normal((rows, columns)) * 2 + 1).astype(jnp.dtype(dtype))
    scale, bias = random.standard_normal((2, columns)).astype(jnp.dtype(dtype))
    compiled = check_function(layer_norm, x, scale, bias, relative=1e-5 if dtype == "float32" else 4e-2)
    if rows == 2048:
        tiles = [each for each in instructions(compiled) if each.op == "tensor_tensor" and each.outs[0].dims[-1][0] > 1]
        assert all(source.dims[-1][1] for each in tiles for source in each.ins)
        assert dtype != "float32" or all(any(source.space is Space.PSUM for source in each.ins) for each in tiles)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("batch", "rows", "columns"), [(3, 127, 129), (24, 512, 512), (5, 513, 64), (2, 128, 4099), (33, 640, 8)]
)
def test_what_each_of_many_reads_stays(
    batch: int, rows: int, columns: int, dtype: str, random: np.random.Generator
) -> None:
    """An array that the outermost loop would load again stays on chip."""
    x = random.standard_normal((batch, rows, columns)).astype(jnp.dtype(dtype))
    scale, bias = random.standard_normal((2, rows, columns)).astype(jnp.dtype(dtype))
    relative = 1e-5 if dtype == "float32" else 2e-2
    compiled = check_function(lambda x, scale, bias: jnp.tanh(x * scale) + bias, x, scale, bias, relative=relative)
    if (batch, dtype) == (24, "float32"):
        loads = [each for each in instructions(compiled) if each.stream in (Stream.DMA_WEIGHT, Stream.DMA_LOAD)]
        fixed = [each for each in loads if not each.ins[0].coefs]
        assert len(loads) > len(fixed) == 2, "scale and bias come once, ahead of the loop"


@pytest.mark.parametrize("columns", [512, 513, 684])
def test_rows_of_several_tiles_have_banks_of_their_own(columns):
    """Where banks that another kernel has left lie apart, too few for all tiles under way were taken for a value."""

    def function(x, y):
        normal = (y - jnp.mean(y, (2, 3), keepdims=True)) * lax.rsqrt(jnp.var(y, (2, 3), keepdims=True) + 0.1)
        return jnp.sum(x.transpose([0, 1, 3, 2]), (0,)) / 127, normal, jnp.var(x.reshape((127, 4, 256)), (0, 1))

    rng = np.random.default_rng(columns)
    x, y = rng.standard_normal((127, 4, 64, 4)), rng.standard_normal((5, 7, 1, 5, columns), np.float32)
    check_function(function, x.astype(np.float16), y, relative=2e-3)
