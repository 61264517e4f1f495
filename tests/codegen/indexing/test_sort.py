"""Sorts and top-k: comparators, element types, sizes, special values, long rows, against jaxlib's CPU client."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import Compiled, check_function, check_text, compile_text, text_of
from xla_oracle import run_text

from neuronx_cc.ir.isa import sorting
from neuronx_cc.ir.isa.program import Instr, Ref, Space, Stream
from neuronx_cc.ir.targets import find_machine
from neuronx_cc.passes import expand_sort

Array = np.ndarray[Any, Any]

SPECIAL = np.array([[0.0, -0.0, np.nan, 1, -1, -0.0, 0.0, np.inf, -np.inf, -np.nan]], np.float32)


def floats(*dims: int, decimals: int = 1) -> Array:
    """Seeded normal numbers, few different ones."""
    return np.round(np.random.default_rng(sum(dims)).standard_normal(dims), decimals).astype(np.float32)


def integers(dtype: str, *dims: int, low: int = 0, high: int = 100) -> Array:
    return np.random.default_rng(sum(dims)).integers(low, high, dims).astype(dtype)


def programs(compiled: Compiled) -> set[str]:
    """The sorting programs that run."""
    return {record.op for record in compiled.program.records if isinstance(record, Instr)} & {"sort", "topk"}


def comparator(body: str, dims: tuple[int, ...], axis: int, operands: int = 1, dtype: str = "f32") -> str:
    """HLO text of a stable sort whose comparator of (a0, b0, a1, ...) is ``body``."""
    parameters = "\n".join(f"  {'ab'[i % 2]}{i // 2} = {dtype}[] parameter({i})" for i in range(2 * operands))
    shape = f"{dtype}[{','.join(map(str, dims))}]"
    inputs = "\n".join(f"  p{i} = {shape} parameter({i})" for i in range(operands))
    result = shape if operands == 1 else f"({', '.join([shape] * operands)})"
    listed = ", ".join(f"p{i}" for i in range(operands))
    return (
        f"HloModule s\nbefore {{\n{parameters}\n{body}\n}}\nENTRY main {{\n{inputs}\n"
        f"  ROOT r = {result} sort({listed}), dimensions={{{axis}}}, is_stable=true, to_apply=before\n}}\n"
    )


@pytest.mark.parametrize("dims", [(1,), (2,), (127,), (129,), (1000,), (4097,), (300, 33), (2, 17, 3, 5), (0,), (3, 0)])
def test_sizes(dims: tuple[int, ...]) -> None:
    check_function(lambda x: (jnp.sort(x), jnp.argsort(x)), floats(*dims))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_dims(axis: int) -> None:
    check_function(lambda x: jnp.argsort(x, axis=axis), floats(7, 19, 5))


def test_special_values_keep_their_order_and_signs() -> None:
    check_function(lambda x: (jnp.sort(x), jnp.signbit(jnp.sort(x)), jnp.argsort(x, descending=True)), SPECIAL)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2", "int8", "uint8", "int16", "uint32", "bool"])
def test_element_types(dtype: str) -> None:
    whole = integers("int64", 6, 70, high=2**32 if dtype == "uint32" else 2)
    values = whole if dtype in ("uint32", "bool") else (floats(6, 70) * 20).astype(np.float32)
    with np.errstate(invalid="ignore"):
        check_function(lambda x: (jnp.sort(x), jnp.argsort(x)), np.asarray(values).astype(jnp.dtype(dtype)))


def test_several_keys_and_what_travels_along() -> None:
    keys = [integers("int32", 4, 60, high=4), floats(4, 60, decimals=0)]
    payload = [integers("uint8", 4, 60), np.asarray(floats(4, 60)).astype(jnp.bfloat16)]
    check_function(lambda *x: jax.lax.sort(x, num_keys=2), *keys, *payload)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.median(x),
        lambda x: jnp.quantile(x, jnp.array([0.1, 0.7])),
        lambda x: jnp.searchsorted(jnp.sort(x), x[:20], method="sort"),
        lambda x: jnp.lexsort((x, jnp.round(x))),
        lambda x: jnp.unique(jnp.round(x), size=12),
    ],
    ids=["median", "quantile", "searchsorted", "lexsort", "unique"],
)
def test_functions_that_sort(function: Callable[[Any], Any]) -> None:
    check_function(function, floats(101))


READABLE = {
    "downwards": "  ROOT c = pred[] compare(a0, b0), direction=GT",
    "sides swapped": "  ROOT c = pred[] compare(b0, a0), direction=LT",
    "a function": "  x = f32[] abs(a0)\n  y = f32[] abs(b0)\n  ROOT c = pred[] compare(x, y), direction=LT",
    "total order": "  ROOT c = pred[] compare(a0, b0), direction=LT, type=TOTALORDER",
}


@pytest.mark.parametrize("body", READABLE.values(), ids=READABLE)
def test_comparators_that_become_keys(body: str) -> None:
    assert programs(check_text(comparator(body, (3, 40), 1), floats(3, 40))) == {"sort"}


@pytest.mark.parametrize("dims", [(3, 10), (1, 7), (5, 64), (130, 33), (600, 1)])
def test_any_other_comparator_is_a_network(dims: tuple[int, ...]) -> None:
    body = "  d = f32[] subtract(a0, b0)\n  z = f32[] constant(0)\n  ROOT c = pred[] compare(d, z), direction=LT"
    axis = 1 if dims[1] > 1 else 0
    assert not programs(check_text(comparator(body, dims, axis), floats(*dims)))


def test_lexicographic_choice() -> None:
    body = (
        "  e = pred[] compare(a0, b0), direction=EQ\n  l = pred[] compare(a0, b0), direction=GT\n"
        "  m = pred[] compare(a1, b1), direction=LT\n  ROOT c = pred[] select(e, m, l)"
    )
    inputs = [integers("int32", 4, 50, high=high) for high in (3, 4, 100)]
    assert programs(check_text(comparator(body, (4, 50), 1, 3, "s32"), *inputs)) == {"sort"}


def test_rows_that_are_too_long_for_a_tile_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expand_sort, "PARTITION_WORDS", 128)
    monkeypatch.setattr(expand_sort, "PARTITIONS", 4)
    check_function(lambda x: (jnp.sort(x), jnp.argsort(x)), floats(2, 1700))
    pair = [integers("int16", 1500, high=9) for _ in range(2)]
    check_function(lambda a, b: jax.lax.sort((a, b, a, b), num_keys=2), *pair)


# top-k


@pytest.mark.parametrize(("dims", "k"), [((3, 50), 1), ((3, 50), 4), ((2, 30), 20), ((2, 30000), 8), ((5,), 5)])
def test_top_k(dims: tuple[int, ...], k: int) -> None:
    check_function(lambda x: jax.lax.top_k(x, k), floats(*dims))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bfloat16", "float16"])
def test_top_k_of_other_types(dtype: str) -> None:
    values = np.asarray(integers("int32", 4, 77, high=9)).astype(jnp.dtype(dtype))
    check_function(lambda x: jax.lax.top_k(x, 5), values)


def test_top_k_of_special_values() -> None:
    check_function(lambda x: jax.lax.top_k(x, 7)[1], np.tile(SPECIAL, (2, 4)))


@pytest.mark.parametrize("smallest", [False, True])
def test_smallest_first(smallest: bool) -> None:
    largest = str(not smallest).lower()
    text = (
        "HloModule t\nENTRY main {\n  x = f32[4,60] parameter(0)\n"
        f"  ROOT r = (f32[4,3], s32[4,3]) topk(x), k=3, largest={largest}\n}}\n"
    )
    check_text(text, floats(4, 60))


def test_the_first_of_a_sort_are_a_top_k() -> None:
    distinct = np.random.default_rng(0).permutation(1200).reshape(4, 300).astype(np.float32)
    assert programs(check_function(lambda x: jnp.argsort(x, axis=1)[:, :5], distinct)) == {"topk"}
    lowered = jax.jit(lambda x: jax.lax.approx_max_k(x, 7)).trace(distinct).lower(lowering_platforms=("neuron",))
    text = lowered.compiler_ir("hlo").as_hlo_text()
    assert programs(check_text(text, distinct)) == {"topk"}
    assert programs(check_function(lambda x: jnp.argsort(x, axis=1)[:, 1:5], distinct)) == {"sort"}


# cost


def test_cost_is_that_of_a_bitonic_network() -> None:
    machine = find_machine("trn1")
    tile = Ref(Space.SBUF, "s32", 0, ((128, 1), (1, 4096), (1, 4096), (1024, 4)))
    instr = Instr("sort", Stream.GPSIMD, (tile,), (tile,), (), (1,))
    each = machine["pool.cost.sort_compare"] + machine["pool.cost.sort_move"]
    assert sorting.sort_cost(instr, machine) == machine["pool.start_cycles"] + 512 * 55 * each


@pytest.mark.parametrize("kind", ["plain", "zeros", "nans"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_sorts_of_floats_keep_the_order_of_equal_bits(dtype: str, kind: str) -> None:
    """Without a minus zero and with one kind of NaN, keys alone are sorted."""
    random = np.random.default_rng(0)
    x = random.integers(-50, 51, (33, 1009)).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    x[random.random(x.shape) < 0.05] = np.nan
    if kind == "zeros":
        x[(x == 0) & (random.random(x.shape) < 0.5)] *= -1
    if kind == "nans":
        x[np.isnan(x) & (random.random(x.shape) < 0.5)] *= -1
    text = text_of(lambda x: (jnp.sort(x, 1), jnp.sort(x, 0, descending=True)), x)
    for found, want in zip(compile_text(text).run([x]), run_text(text, [x]), strict=True):
        assert found.tobytes() == want.tobytes()


def test_a_large_sort_inside_a_loop() -> None:
    def step(_: Any, x: Any) -> Any:
        return jnp.sort(x * -1.0)

    x = np.random.default_rng(1).standard_normal(40_000, np.float32)
    check_function(lambda x: jax.lax.fori_loop(0, 3, step, x), x)
