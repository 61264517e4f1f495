"""Scatters in all their forms, on the simulator, against XLA."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function, check_text, compile_text, text_of
from indexing_cases import values, windows
from jax import lax

import neuronx_cc
from neuronx_cc.ir.isa.program import Branch
from neuronx_cc.ir.types import NUMPY_DTYPE
from neuronx_cc.runtime.executable import Executable

KINDS = [lax.scatter, lax.scatter_add, lax.scatter_mul, lax.scatter_min, lax.scatter_max]
METHODS = ["set", "add", "multiply", "min", "max"]


@pytest.mark.parametrize("seed", range(40))
def test_any_dimension_numbers(seed: int) -> None:
    random = np.random.default_rng(seed)
    case = windows(random)
    numbers = case.scatter_numbers()
    update = values(random, case.operand.dtype.type, case.result)
    scatter = lax.scatter if case.operand.dtype == np.bool_ else KINDS[seed % len(KINDS)]
    drop = lax.GatherScatterMode.FILL_OR_DROP
    check_function(lambda x, i, u: scatter(x, i, u, numbers, mode=drop), case.operand, case.indices, update)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("dims", [(50,), (50, 3), (50, 2000)])
def test_duplicates(method: str, dtype: Any, dims: tuple[int, ...], random: np.random.Generator) -> None:
    x, u = (values(random, dtype, [size, *dims[1:]]) for size in (50, 200))
    i = random.integers(-3, 55, 200).astype(np.int32)
    check_function(lambda x, i, u: getattr(x.at[i], method)(u, mode="drop"), x, i, u)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dims", [(500,), (500, 1500)])
def test_unique(method: str, dims: tuple[int, ...], random: np.random.Generator) -> None:
    x, u = (values(random, np.float32, [size, *dims[1:]]) for size in (500, 300))
    i = random.permutation(600)[:300].astype(np.int32)
    check_function(lambda x, i, u: getattr(x.at[i], method)(u, mode="drop", unique_indices=True), x, i, u)


@pytest.mark.parametrize("dims", [(3, 700), (2, 300, 513), (1, 40), (700, 5)])
def test_an_element_of_each_row(dims: tuple[int, ...], random: np.random.Generator) -> None:
    """Gradients of labels: no two updates meet, though nothing says so."""
    i = random.integers(0, dims[-1], (*dims[:-1], 1)).astype(np.int32)
    x, u = values(random, np.float32, [*dims]), values(random, np.float32, [*dims[:-1], 1])
    take = lambda x, i: jnp.take_along_axis(x, i, -1)  # noqa: E731
    check_function(lambda x, i, u: jax.vjp(lambda x: take(x, i), x)[1](u), x, i, u)
    check_function(lambda x, i, u: jnp.put_along_axis(x, i, u, -1, inplace=False), x, i, u)


def test_labels_of_many_rows_take_no_longer_than_their_array() -> None:
    x, i = jax.ShapeDtypeStruct((4, 511, 4096), jnp.float32), jax.ShapeDtypeStruct((4, 511, 1), jnp.int32)
    gradient = jax.grad(lambda x, i: (2 * jnp.take_along_axis(x, i, -1)).sum())
    made = neuronx_cc.compile(jax.jit(gradient).lower(x, i)).run([], timing_only=True).report.time_ns
    copied = neuronx_cc.compile(jax.jit(lambda x: x * 2).lower(x)).run([], timing_only=True).report.time_ns
    assert made < 1.5 * copied


def test_many_duplicates_of_long_rows(random: np.random.Generator) -> None:
    x, u = values(random, np.float32, [5000, 769]), values(random, np.float32, [700, 769])
    i = (random.zipf(1.3, 700) % 5005 - 2).astype(np.int32)
    check_function(lambda x, i, u: x.at[i].add(u, mode="drop"), x, i, u)
    check_function(lambda x, i, u: x.at[i].set(u, mode="drop"), x, i, u)


@pytest.mark.parametrize("dtype", ["pred", "u8", "s32"])
@pytest.mark.parametrize("kind", ["and", "or", "xor", "add"])
def test_bits(dtype: str, kind: str, random: np.random.Generator) -> None:
    text = f"""
HloModule m
c {{
  a = {dtype}[] parameter(0)
  b = {dtype}[] parameter(1)
  ROOT r = {dtype}[] {kind}(b, a)
}}
ENTRY e {{
  x = {dtype}[30] parameter(0)
  i = s32[90] parameter(1)
  u = {dtype}[90] parameter(2)
  ROOT s = {dtype}[30] scatter(x, i, u), update_window_dims={{}}, inserted_window_dims={{0}},
    scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=c
}}
"""
    x, u = (values(random, NUMPY_DTYPE[dtype].type, [size]) for size in (30, 90))
    check_text(text, x, random.integers(-2, 33, 90).astype(np.int32), u)


def test_special_values(random: np.random.Generator) -> None:
    x = np.array([0, -0.0, 1, np.inf, np.nan, 2] * 3, np.float32)
    u = np.array([np.nan, np.inf, -np.inf, -0.0, 5, 0.0] * 30, np.float32)
    i = random.integers(0, 18, 180).astype(np.int32)
    for method in METHODS:
        check_function(lambda x, i, u: getattr(x.at[i], method)(u), x, i, u)  # noqa: B023
        wide = (np.repeat(a[:, None], 1100, 1) for a in (x, u))
        check_function(lambda x, u, i: getattr(x.at[i], method)(u), *wide, i)  # noqa: B023


def test_negative_zero_survives() -> None:
    x, i = np.full(40, -0.0, np.float32), np.arange(3000, dtype=np.int32) % 20
    compiled = check_function(lambda x, i, u: x.at[i].add(u), x, i, np.full(3000, -0.0, np.float32))
    (result,) = compiled.run([x, i, np.full(3000, -0.0, np.float32)])
    assert np.signbit(result).all()


def test_segments_and_histograms(random: np.random.Generator) -> None:
    data, ids = values(random, np.float32, [1000, 5]), random.integers(0, 40, 1000).astype(np.int32)
    check_function(lambda d, i: jax.ops.segment_sum(d, i, 40), data, ids)
    check_function(lambda d, i: jax.ops.segment_max(d, i, 50), data, ids)
    check_function(lambda i: jnp.bincount(i, length=37), ids)


def test_the_time_that_is_assumed_is_that_of_finite_updates(random: np.random.Generator) -> None:
    data, ids = random.normal(size=(256, 128)).astype(np.float32), random.integers(0, 512, 256).astype(np.int32)
    compiled = compile_text(text_of(lambda d, i: jax.ops.segment_sum(d, i, 512), data, ids))
    executable = Executable(compiled.program, compiled.constants)
    runs = [executable.run([], timing_only=True), executable.run([data, ids])]
    assert any(isinstance(record, Branch) for record in compiled.program.records)
    assert runs[0].report.time_ns == runs[1].report.time_ns


def test_columns_and_batches(random: np.random.Generator) -> None:
    x, u = values(random, np.float32, [20, 60]), values(random, np.float32, [20, 90])
    i = random.integers(-70, 70, 90).astype(np.int32)
    check_function(lambda x, i, u: (x.at[:, i].add(u), x.at[:, i].set(u)), x, i, u)
    rows = random.integers(-5, 65, (20, 90)).astype(np.int32)
    check_function(lambda x, i, u: jax.vmap(lambda x, i, u: x.at[i].add(u))(x, i, u), x, rows, u)


FORMS = {
    "put_along_axis": lambda x, i: jnp.put_along_axis(x, i[:20, None], 1.5, axis=1, inplace=False),
    "two indices": lambda x, i: x.at[i, (i * 7) % 30].add(2.0),
    "grid": lambda x, i: x.at[i[:, None], jnp.arange(0, 30, 3)[None]].multiply(2.0),
    "subtract": lambda x, i: x.at[i].subtract(x[0]),
    "apply": lambda x, i: x.at[i].apply(jnp.tanh),
    "sorted": lambda x, i: jax.ops.segment_sum(x[i], jnp.arange(50) // 7, 9, indices_are_sorted=True),
    "gradient": lambda x, i: jax.grad(lambda x: (x[i] ** 2).sum())(x),
    "gradient along": lambda x, i: jax.grad(lambda x: (jnp.take_along_axis(x, i[None], 1) ** 2).sum())(x),
    "one-hot": lambda x, i: jnp.zeros_like(x).at[jnp.arange(20), jnp.argmax(x, 1)].set(1.0),
    "in a loop": lambda x, i: lax.scan(lambda c, at: (c.at[at].add(1.0), c[at]), x, i[:6]),
    "constant index": lambda x, i: (x.at[3].set(0.0), x.at[:, jnp.array([1, 5])].get()),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, random: np.random.Generator) -> None:
    check_function(FORMS[form], values(random, np.float32, [20, 30]), random.integers(0, 20, 50).astype(np.int32))


PLAIN = """HloModule m
c {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  h = f32[] constant(0.5)
  d = f32[] multiply(a, h)
  ROOT r = f32[] add(d, b)
}
ENTRY e {
  x = f32[30,7] parameter(0)
  i = s32[COUNT] parameter(1)
  u = f32[COUNT,7] parameter(2)
  ROOT s = f32[30,7] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, unique_indices=UNIQUE, to_apply=c
}
"""
PAIRS = """HloModule m
c {
  a = f32[] parameter(0)
  k = s32[] parameter(1)
  b = f32[] parameter(2)
  l = s32[] parameter(3)
  v = f32[] maximum(a, b)
  p = pred[] compare(b, a), direction=GT
  w = s32[] SECOND
  ROOT t = (f32[], s32[]) tuple(v, w)
}
ENTRY e {
  x = f32[30,7] parameter(0)
  y = s32[30,7] parameter(1)
  i = s32[20] parameter(2)
  u = f32[20,7] parameter(3)
  z = s32[20,7] parameter(4)
  ROOT s = (f32[30,7], s32[30,7]) scatter(x, y, i, u, z), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=c
}
"""


@pytest.mark.parametrize(("count", "unique"), [(1, False), (3, False), (20, False), (20, True)])
def test_any_combiner(count: int, unique: bool, random: np.random.Generator) -> None:
    text = PLAIN.replace("COUNT", str(count)).replace("UNIQUE", str(unique).lower())
    i = random.permutation(35)[:count] - 2 if unique else random.integers(-2, 33, count)
    check_text(text, values(random, np.float32, [30, 7]), i.astype(np.int32), values(random, np.float32, [count, 7]))


@pytest.mark.parametrize("second", ["select(p, l, k)", "add(l, k)"])
def test_two_operands(second: str, random: np.random.Generator) -> None:
    x, u = values(random, np.float32, [30, 7]), values(random, np.float32, [20, 7])
    y, z = values(random, np.int32, [30, 7]), values(random, np.int32, [20, 7])
    i = random.integers(-2, 33, 20).astype(np.int32)
    check_text(PAIRS.replace("SECOND", second), x, y, i, u, z)


def test_one_update(random: np.random.Generator) -> None:
    x, u = values(random, np.float32, [9, 4, 70]), values(random, np.float32, [4, 70])
    for at in (0, -3, 8, 9, -10):
        check_function(lambda x, i, u: (x.at[i].add(u, mode="drop"), x.at[i, :, 3].set(1.0)), x, np.int32(at), u)


def test_empty() -> None:
    x, i = np.ones((5, 3), np.float32), np.zeros((0,), np.int32)
    check_function(lambda x, i, u: x.at[i].add(u), x, i, np.zeros((0, 3), np.float32))
    check_function(lambda x, i, u: x.at[:, i].set(u), x, i, np.zeros((5, 0), np.float32))
    check_function(lambda x, i, u: x.at[i + 0].add(u), x[:, :0], np.zeros((4,), np.int32), np.zeros((4, 0), np.float32))
