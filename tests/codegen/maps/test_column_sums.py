"""Sums over leading dims that maps add up tile by tile: which they take, and their values at the limits."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from generated import check_function, compile_text, text_of
from jax import lax

from neuronx_cc.codegen.formation import columns
from neuronx_cc.codegen.formation.graph import Kernel
from neuronx_cc.codegen.maps.column_sums import columns_of
from neuronx_cc.ir.targets import find_machine

QUARTER = find_machine(Path(__file__).resolve().parents[2] / "machines" / "quarter.toml")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of few elements, too, which lie on chip otherwise."""
    monkeypatch.setattr(columns, "LEAST_SUMMED", 1)


def kernels(function: Any, *arrays: Any, **options: Any) -> list[str]:
    """The kinds of the kernels that ``function`` becomes."""
    program = compile_text(text_of(function, *arrays), **options).program
    return [name.split(".")[-1] for name in program.kernels]


def normal(random: np.random.Generator, *dims: int) -> Any:
    return random.standard_normal(dims, np.float32)


def standardised(x: Any, g: Any) -> Any:
    dims = tuple(range(x.ndim - 1))
    mean = x.mean(dims)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(dims) + 1e-5) * g


def test_rows_beside_each_other_fill_a_bank() -> None:
    tiles = SimpleNamespace(sizes=[4, 14, 64], order=[1, 2, 3], axis=lambda dim: (0, 0, 1)[dim])
    plan = columns_of(tiles, 1, 512)  # type: ignore[arg-type]
    assert [(piece.start, piece.columns) for piece in plan.pieces] == [(0, 64)]
    assert plan.steps == {1: 8, 0: 1}
    assert plan.several == 8


def test_long_rows_take_several_banks() -> None:
    """Dims that are kept lie in another order in the tiles: the sums have theirs."""
    tiles = SimpleNamespace(sizes=[700, 2, 3], order=[3, 2, 0], axis=lambda dim: (1, 1, 0)[dim])
    plan = columns_of(tiles, 1, 512)  # type: ignore[arg-type]
    assert [(piece.start, piece.columns) for piece in plan.pieces] == [(0, 512), (512, 188), (700, 512), (1212, 188)]
    assert plan.pieces[3].at == {1: (1, 1), 0: (512, 188)}
    assert plan.steps == {2: 1}


@pytest.mark.parametrize("rows", [128, 129, 255, 256, 509, 1000])
@pytest.mark.parametrize("kept", [7, 127, 128, 129, 511, 512, 513, 1024])
def test_statistics(rows: int, kept: int, random: np.random.Generator) -> None:
    check_function(standardised, normal(random, rows, kept) + 3, normal(random, kept), relative=1e-5)


@pytest.mark.parametrize("dims", [(2, 64, 5), (128, 3, 7), (8, 33, 33, 12), (3, 1, 67, 1, 10), (256, 2, 600)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gradient(dims: tuple[int, ...], dtype: str, random: np.random.Generator) -> None:
    def loss(x: Any, g: Any, t: Any) -> Any:
        return (jax.nn.relu(standardised(x.astype(jnp.float32), g)) * t).sum()

    x = normal(random, *dims).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    arrays = x, normal(random, dims[-1]), normal(random, *dims)
    check_function(jax.grad(loss, (0, 1)), *arrays, relative=2e-5 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize("dims", [(300, 96), (4, 65, 40)], ids=str)
def test_beside_sums_of_rows(dims: tuple[int, ...], random: np.random.Generator) -> None:
    def loss(x: Any, g: Any, b: Any, t: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return (t * (centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * g + b)).sum()

    arrays = normal(random, *dims), normal(random, dims[-1]), normal(random, dims[-1]), normal(random, *dims)
    gradient = jax.grad(loss, (0, 1, 2))
    check_function(gradient, *arrays, relative=2e-5)
    assert "reduce" not in kernels(gradient, *arrays)


def test_sums_of_one_pass_are_one_kernel(random: np.random.Generator) -> None:
    def function(x: Any) -> Any:
        return x.sum(0), (x * x).sum(0), jnp.tanh(x).sum(0), jnp.tanh(x)

    x = normal(random, 8192, 128)
    check_function(function, x, relative=1e-5)
    assert kernels(function, x) == ["map"]


@pytest.mark.parametrize(
    "dims", [(2051,), (2048 * 3,), (128 * 129,), (3, 1000), (1000, 3), (4, 5, 600), (131, 1, 37)], ids=str
)
def test_sums_of_everything(dims: tuple[int, ...], random: np.random.Generator) -> None:
    def function(x: Any, y: Any) -> Any:
        return ((x - y) ** 2).mean(), jnp.abs(x - y), jnp.abs(y).sum()

    arrays = normal(random, *dims), normal(random, *dims)
    check_function(function, *arrays, relative=1e-5)
    assert "reduce" not in kernels(function, *arrays)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.exp(x).max(0),
        lambda x: lax.reduce(jnp.exp(x), np.float32(2.0), lax.add, (0,)),
        lambda x: jnp.exp(x[:100]).sum(0),
    ],
    ids=["no sum", "another start", "few rows"],
)
def test_others_are_kernels_of_their_own(function: Any, random: np.random.Generator) -> None:
    x = normal(random, 300, 40)
    check_function(function, x, relative=1e-5)
    assert "reduce" in kernels(function, x)


WIDE = [(129, 2049), (200, 3, 1500), (128, 700, 5), (256, 5000), (3, 50, 4, 1031)]


@pytest.mark.parametrize("dims", WIDE, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_more_columns_than_psum_holds(dims: tuple[int, ...], dtype: str, random: np.random.Generator) -> None:
    """They are summed section by section, also where results lie in another order."""
    folded = tuple(range(len(dims) - 1)) if dims[0] < 100 else 0

    def function(x: Any, b: Any) -> Any:
        made = jnp.tanh(x.astype(jnp.float32) + b)
        return made.sum(folded), (made * made).sum(folded).T, made.T, (x * x).sum(folded)

    arrays = (
        normal(random, *dims).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype),
        normal(random, dims[-1]),
    )
    check_function(function, *arrays, relative=1e-5)
    assert "reduce" not in kernels(function, *arrays)


def test_sections_of_columns() -> None:
    sizes = SimpleNamespace(banks=8, bank_columns=512)
    kernel = Kernel(0, [], (100, 3, 700, 2), folded=1)
    narrow = Kernel(0, [], (100, 3, 7, 2), folded=1)
    columns_ = columns.sections_of(kernel, sizes)  # type: ignore[arg-type]
    assert [(each.start, each.columns) for each in columns_] == [(0, 1400), (1400, 1400), (2800, 1400)]
    assert columns_[2].cuts == ((1, 2, 1),)
    assert columns.sections_of(narrow, sizes) == [columns.Section(0, 42, ())]  # type: ignore[arg-type]


def test_special_values_stay_in_their_columns(random: np.random.Generator) -> None:
    x = normal(random, 600, 36)
    x[5, 3], x[300, 7], x[301, 7], x[599, 35] = np.inf, np.inf, -np.inf, np.nan
    (result,) = compile_text(text_of(lambda x: (2 * x).sum(0), x)).run([x])
    with np.errstate(invalid="ignore"):
        expected = (2 * x.astype(np.float64)).sum(0)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", [(1000, 300), (129, 31, 70), (512, 500)], ids=str)
def test_little_memory(dims: tuple[int, ...], random: np.random.Generator) -> None:
    check_function(standardised, normal(random, *dims), normal(random, dims[-1]), machine=QUARTER)
